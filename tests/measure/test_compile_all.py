"""What `make compile-all` compiles, and what it calls a fault."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda import compile as cuda_compile
from fa_kernels.cuda.compile import CompileReport, kernel_names
from fa_kernels.cuda.plan import LaunchPlan
from fa_kernels.cuda.run_decode import DECODE_KERNEL, DTYPES, MIN_ARCH
from fa_kernels.measure import compile_all as subject
from fa_kernels.measure.ceiling_attempts import BLOCK_THREADS
from fa_kernels.measure.compile_all import (
    LOOKUP_SPILL_LIMIT,
    SMEM_PER_BLOCK,
    SPILL_LIMIT,
    SPILLING_KERNEL,
    architectures,
    compile_all,
    faults,
    jobs,
)
from fa_kernels.packed import Packed
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.variants import RUNGS, VARIANTS, Variant

#: The architectures of the GPUs that readers have, and what a dtype is compiled to: bits, is bf16.
ARCHS = (75, 80, 86, 89, 90, 100, 120)
BUILDS = {"float16": (16, 0), "bfloat16": (16, 1), "float32": (32, 0)}
#: (bits, is bf16, head_dim) of the builds that stand for all where only compiling is shown.
STANDING = {(16, 0, 64), (16, 1, 128), (32, 0, 128)}


def plan_of(count_traffic: bool = False) -> LaunchPlan:
    problem = AttentionProblem(1, 1, 4096, 4096, 64)
    return VARIANTS["standard_tiled"].plan(problem, Tiling(64, 64), count_traffic=count_traffic)


def report_of(plan: LaunchPlan, **changed: object) -> CompileReport:
    registers = {step.entry: 100 for step in plan.steps}
    report = CompileReport(plan.kernel, "sm_90", plan.macros, registers, 0, 0.5, "")
    return replace(report, **changed)  # type: ignore[arg-type]


def test_a_clean_build_has_no_fault() -> None:
    assert faults(plan_of(), report_of(plan_of()), 90) == []


def test_spills_are_a_fault_where_time_is_measured() -> None:
    plan, counting = plan_of(), plan_of(count_traffic=True)
    assert faults(plan, report_of(plan, spill_bytes=8), 90) == ["8 bytes of spills"]
    assert faults(counting, report_of(counting, spill_bytes=8), 90) == []


@pytest.mark.parametrize("name", VARIANTS)
def test_only_the_backward_on_tensor_cores_may_spill_while_it_is_timed(name: str) -> None:
    """A little, and not in the plain build for an H200."""
    variant = VARIANTS[name]
    plain = AttentionProblem(1, 2, 256, 256, 64, variant.dtypes[0])
    tiling = variant.nearest_tiling(plain, Tiling(32, 32))
    masked = replace(plain, masked=True)
    plans = [variant.plan(plain, tiling), variant.plan(masked, tiling)]
    if (backward := variant.backward) is not None:
        own = backward.tiling_for(plain, SMEM_PER_BLOCK[90])
        tiling = own if backward.own_tiles_alone else tiling
        plans += [backward.plan(plain, tiling), backward.plan(masked, tiling)]
    for plan in plans:
        for arch in (80, 90):
            clean = plan.kernel != SPILLING_KERNEL or (arch == 90 and not plan.macros["MASK"])
            few, many = (report_of(plan, spill_bytes=n) for n in (SPILL_LIMIT, SPILL_LIMIT + 4))
            assert faults(plan, few, arch) == (["640 bytes of spills"] if clean else [])
            (fault,) = faults(plan, many, arch)
            assert fault == "644 bytes of spills" + ("" if clean else ", more than 640")


OPTIONS_ON: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "WINDOW": ({"window": (100, 0)}, {}),
    "MASK": ({"masked": True}, {}),
    "BIAS": ({"bias_dtype": "float32"}, {}),
    "DROPOUT": ({"dropout_p": 0.1, "seed": 0}, {}),
    "PACKED": ({"packed": Packed((0, 256), (0, 256))}, {}),
    "BLOCK_SPARSE": ({"block_mask": BlockMask.pattern("local", 256, 256, 64, 64, 0.5)}, {}),
    "DETERMINISTIC": ({}, {"deterministic": True}),
}


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, 0),
        ({"masked": True}, 0),
        ({"dropout_p": 0.1, "seed": 0}, 0),
        ({"dropout_p": 0.1, "keep_given": True}, LOOKUP_SPILL_LIMIT),
        ({"dropout_p": 0.1, "seed": 0, "masked": True}, LOOKUP_SPILL_LIMIT),
    ],
)
def test_the_backward_on_wgmma_may_spill_where_dropout_meets_a_lookup(
    fields: dict[str, Any], limit: int
) -> None:
    backward = VARIANTS["flash_wgmma"].backward
    assert backward is not None
    problem = replace(AttentionProblem(1, 2, 256, 256, 64, "float16"), **fields)
    plan = backward.plan(problem, backward.tiling_for(problem, SMEM_PER_BLOCK[90]))
    assert faults(plan, report_of(plan, spill_bytes=limit), 90) == []
    (fault,) = faults(plan, report_of(plan, spill_bytes=limit + 4), 90)
    assert fault.startswith(f"{limit + 4} bytes of spills")


@pytest.mark.parametrize("option", OPTIONS_ON)
def test_every_option_is_a_build_that_may_spill(option: str) -> None:
    """Counting is one, too, which is never timed; causal is none: it is no macro."""
    backward, tiling = VARIANTS["flash_mma"].backward, Tiling(64, 128)
    assert backward is not None
    fields, choices = OPTIONS_ON[option]
    problem = AttentionProblem(1, 2, 256, 256, 64, "float16", "bottom_right")
    plain = backward.plan(problem, tiling)
    other = backward.plan(replace(problem, **fields), tiling, **choices)
    assert other.macros[option] and not plain.macros.get(option, 0)
    assert faults(plain, report_of(plain, spill_bytes=4), 90) == ["4 bytes of spills"]
    assert faults(other, report_of(other, spill_bytes=SPILL_LIMIT), 90) == []
    counting = backward.plan(problem, tiling, count_traffic=True)
    assert faults(counting, report_of(counting, spill_bytes=SPILL_LIMIT + 4), 90) == []


@pytest.mark.parametrize(
    "line",
    [
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
        "serialized due to insufficient register resources for the wgmma pipeline in function 'f'",
        "ptxas info    : (C7519) Potential Performance Loss: wgmma.mma_async instructions wait",
    ],
)
def test_products_that_wait_for_one_another_are_a_fault(line: str) -> None:
    """ptxas says so in a line of its log, and compiles what takes several times longer."""
    plan = plan_of()
    log = f"ptxas info    : 0 bytes gmem\n{line}\nptxas info    : Used 168 registers"
    (fault,) = faults(plan, report_of(plan, log=log), 90)
    assert fault == f"every wgmma waits for the one before: {line}"
    assert faults(plan, report_of(plan, log="ptxas info    : Used 168 registers"), 90) == []


def test_a_missing_entry_is_a_fault() -> None:
    plan = plan_of()
    registers = {"standard_tiled_scores": 90, "standard_tiled_softmax": 31}
    found = faults(plan, report_of(plan, registers=registers), 90)
    assert found == ["missing entries ['standard_tiled_output']"]


def test_too_much_shared_memory_is_a_fault() -> None:
    plan = plan_of()
    steps = tuple(replace(step, smem_bytes=100 * 1024) for step in plan.steps)
    plan = replace(plan, steps=steps)
    assert faults(plan, report_of(plan), 90) == []
    (fault,) = faults(plan, report_of(plan), 75)
    assert str(plan.smem_bytes) in fault and "sm_75 has 65536" in fault


def test_every_kernel_is_compiled_for_every_architecture_of_its_header() -> None:
    """On the oldest GPU and the H200 in all dtypes and head dimensions, elsewhere in each of them
    once at least."""
    done: dict[tuple[str, int], set[tuple[int, int, int]]] = defaultdict(set)
    for plan, arch in jobs():
        if is_plain(plan) and not is_control(plan):
            done[plan.kernel, arch].add(build_of(plan.macros))
    for name in kernel_names():
        dtypes, archs = takers(name)
        assert architectures(name) == archs
        head_dims = (64, 128, 256) if name == DECODE_KERNEL else (64, 128)
        every = {(*BUILDS[dtype], d) for dtype in dtypes for d in head_dims}
        few = {pair for pair in every if pair in STANDING or pair == (16, 0, 256)}
        assert {pair[2] for pair in few} == set(head_dims)
        assert {pair[:2] for pair in few} == {BUILDS[dtype] for dtype in dtypes}
        for arch in architectures(name):
            assert done[name, arch] == (every if arch in (archs[0], 90) else few), (name, arch)


def build_of(macros: Mapping[str, int]) -> tuple[int, int, int]:
    """Bits, is bf16, head_dim."""
    return macros["IO_BITS"], macros["IO_BF16"], macros["HEAD_DIM"]


def takers(kernel: str) -> tuple[tuple[str, ...], list[int]]:
    """The dtypes and the GPUs of the variant that a kernel is of, forward or backward, or of the
    decoding kernel."""
    if kernel == DECODE_KERNEL:
        return DTYPES, [arch for arch in ARCHS if arch >= MIN_ARCH]
    (of,) = [v for v in RUNGS.values()
             if kernel in (v.kernel, v.backward.kernel if v.backward else "")]  # fmt: skip
    return of.dtypes, [arch for arch in ARCHS if of.runs_on(arch)]


def is_plain(plan: LaunchPlan) -> bool:
    """What is launched by default: no counters, no trace, no option."""
    options = ("COUNT_TRAFFIC", "TRACE", "BLOCK_SPARSE", "WINDOW", "MASK", "DROPOUT", "PACKED",
               "PAGED")  # fmt: skip
    return not any(plan.macros.get(name, 0) for name in options)


def is_control(plan: LaunchPlan) -> bool:
    """A build of a variant that only isolates a difference; in fp32 O is carried in out anyway."""
    o_io = plan.macros.get("O_IO_DTYPE", 0) and plan.macros["IO_BITS"] == 16
    return bool(o_io or plan.macros.get("ONE_BLOCK_PER_HEAD", 0))


def test_every_option_of_a_decoding_step_is_compiled() -> None:
    """For an H200 with one split and with several; elsewhere the step alone."""
    mine = [(plan, arch) for plan, arch in jobs() if plan.kernel == DECODE_KERNEL]
    assert {arch for _, arch in mine} == {arch for arch in ARCHS if arch >= MIN_ARCH}
    assert all(is_plain(plan) for plan, arch in mine if arch != 90)
    on_h200 = [plan for plan, arch in mine if arch == 90]
    few = {(arch, p.macros["HEAD_DIM"]) for p, arch in mine if p.macros["WARPS"] == 2}
    assert few == {(86, 256), (89, 256), (120, 256)}, "where four warps have no room"
    for dtype, head_dim in (("float16", 64), ("bfloat16", 128), ("float16", 256)):
        of = [p for p in on_h200 if build_of(p.macros) == (*BUILDS[dtype], head_dim)]
        for name in ("PAGED", "WINDOW", "COUNT_TRAFFIC", "ALIGNED", "BULK_COPIES"):
            assert {plan.macros[name] for plan in of} == {0, 1}
        assert len({plan.macros["GROUP_ROWS"] for plan in of}) == 2
        steps = {step.entry for plan in of for step in plan.steps}
        assert steps == {
            "decode_split_kv_append",
            "decode_split_kv_attend",
            "decode_split_kv_merge",
        }


#: Hooks that a kernel has not: the plan refuses them, and says who has them.
WITHOUT = {"06_flash_wgmma": {"PACKED"}, "06_flash_wgmma_backward": {"PACKED", "BIAS"}}


@pytest.mark.parametrize("kernel", [name for name in kernel_names() if name != DECODE_KERNEL])
def test_every_hook_is_compiled_alone_and_with_the_others(kernel: str) -> None:
    mine = [plan.macros for plan, arch in jobs() if plan.kernel == kernel and arch == 90]
    every = {"WINDOW", "MASK", "BIAS", "DROPOUT", "PACKED"}
    alone = [{h: m[h] for h in every if m[h]} for m in mine]
    hooks = every - WITHOUT.get(kernel, set())
    assert not any(set(option) - hooks for option in alone)
    for option in ({"WINDOW": 1}, {"MASK": 1}, {"BIAS": 2}, {"DROPOUT": 1}, {"DROPOUT": 2}):
        assert (option in alone) == (set(option) <= hooks)
    together = [m for m in mine if all(m[h] for h in hooks)]
    assert {build_of(m) for m in together} == standing(takers(kernel)[0])
    if kernel in ("04_flash_q_outer_backward", "05_flash_mma_backward"):
        for deterministic in (0, 1):
            of = [m for m in together if m["DETERMINISTIC"] == deterministic]
            assert {build_of(m) for m in of} == standing(takers(kernel)[0])


def standing(dtypes: Sequence[str]) -> set[tuple[int, int, int]]:
    """Those of the builds that stand for all that are of one of `dtypes`."""
    return {pair for pair in STANDING if pair[:2] in {BUILDS[dtype] for dtype in dtypes}}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_every_option_of_a_backward_is_compiled(variant: Variant) -> None:
    """What runs hold, block masks and a deterministic dq on tensor cores, in every dtype and d."""
    if variant.backward is None or variant.control_for is not None:
        return
    name = variant.backward.kernel
    mine = [plan.macros for plan, arch in jobs() if plan.kernel == name and arch == 90]
    every = {(*BUILDS[dtype], d) for dtype in variant.dtypes for d in (64, 128)}
    few = standing(variant.dtypes)
    assert {build_of(m) for m in mine if m["COUNT_TRAFFIC"]} == few
    timed = every if variant.same_algorithm else few
    if any("DETERMINISTIC" in m for m in mine):
        alone = [m for m in mine if m.get("DETERMINISTIC") and not m["PACKED"]]
        assert {build_of(m) for m in alone} == timed
    if variant.block_sparse:
        masked = [m for m in mine if m.get("BLOCK_SPARSE")]
        assert {build_of(m) for m in masked} == timed
        assert {build_of(m) for m in masked if m["MASK_BLOCK_M"] == 24} == few


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_every_option_of_a_variant_is_compiled_somewhere(variant: Variant) -> None:
    control = variant.control_for is not None
    mine = [
        (plan, arch) for plan, arch in jobs()
        if plan.kernel == variant.kernel and is_control(plan) == control
    ]  # fmt: skip
    on_h200 = [plan.macros for plan, arch in mine if arch == 90]
    every = {(*BUILDS[dtype], d) for dtype in variant.dtypes for d in (64, 128)}
    few = standing(variant.dtypes)
    assert {build_of(m) for m in on_h200} == (few if control else every)
    assert {build_of(m) for m in on_h200 if m["COUNT_TRAFFIC"]} == few
    assert {build_of(m) for m in on_h200 if m.get("TRACE")} == (few if variant.traced else set())
    if variant.block_sparse and not control:
        masked = [m for m in on_h200 if m.get("BLOCK_SPARSE")]
        assert {build_of(m) for m in masked} == (every if variant.same_algorithm else few)
        cut = [m for m in masked if (m["MASK_BLOCK_M"], m["MASK_BLOCK_N"]) == (24, 40)]
        assert {build_of(m) for m in cut} == few
        assert {build_of(m) for m in masked if m not in cut} == {build_of(m) for m in masked}
    assert any(m.get("BLOCK_SPARSE") for m in on_h200) == variant.block_sparse
    newer = {75, 90} if control else {arch for arch in ARCHS if variant.runs_on(arch)}
    assert {arch for _, arch in mine} == newer


def test_spills_of_a_trace_are_no_fault_and_those_of_a_block_mask_are() -> None:
    problem = AttentionProblem(1, 1, 256, 256, 64)
    flash = VARIANTS["flash_q_outer"]
    traced = flash.plan(problem, Tiling(64, 64), trace=True)
    assert faults(traced, report_of(traced, spill_bytes=8), 90) == []
    mask = BlockMask.pattern("local", 256, 256, 64, 64, 0.5)
    masked = flash.plan(replace(problem, block_mask=mask), Tiling(64, 64))
    assert faults(masked, report_of(masked, spill_bytes=8), 90) == ["8 bytes of spills"]


def test_one_register_may_be_missing_with_a_block_mask_on_tensor_cores() -> None:
    problem = AttentionProblem(1, 1, 256, 256, 128, "float16")
    mask = BlockMask.pattern("local", 256, 256, 128, 128, 0.5)
    variant, tiling = VARIANTS["flash_mma"], Tiling(128, 64)
    masked = variant.plan(replace(problem, block_mask=mask), tiling)
    plain = variant.plan(problem, tiling)
    assert faults(masked, report_of(masked, spill_bytes=8), 90) == []
    assert faults(masked, report_of(masked, spill_bytes=12), 90) == [
        "12 bytes of spills, more than 8"
    ]
    assert faults(plain, report_of(plain, spill_bytes=8), 90) == ["8 bytes of spills"]


def test_what_is_shipped_fits_every_gpu() -> None:
    too_large = [(p.kernel, arch) for p, arch in jobs() if p.smem_bytes > SMEM_PER_BLOCK[arch]]
    assert not too_large


def test_a_header_without_architectures_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (subject, cuda_compile):
        monkeypatch.setattr(module, "KERNEL_DIR", tmp_path)
    for name, said in (("97_all", "all of them"), ("98_new", "sm_90 and later."),
                       ("99_own", "sm_90a alone.")):  # fmt: skip
        (tmp_path / f"{name}.cu").write_text(f"// New.\n// Architectures: {said}\n")
    with pytest.raises(ValueError, match=r"97_all\.cu: its header names no architectures"):
        architectures("97_all")
    assert architectures("98_new") == [90, 100, 120]
    assert architectures("99_own") == [90]


def test_failures_are_counted_and_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of()

    def fake_report(name: str, macros: dict[str, int], arch: str) -> CompileReport:
        if arch == "sm_80":
            raise RuntimeError("02 does not compile for sm_80: log")
        return report_of(plan, spill_bytes=16 if arch == "sm_86" else 0)

    monkeypatch.setattr(subject, "compile_report", fake_report)
    monkeypatch.setattr(subject, "ceiling_faults", lambda: ["ceilings.cu sm_90: spills"])
    monkeypatch.setattr(subject, "jobs", lambda: iter([(plan, 75), (plan, 80), (plan, 86)]))
    monkeypatch.setattr(subject, "kernel_names", lambda: ["02_standard_tiled", "09_orphan"])
    assert compile_all(verbose=True) == 4
    printed = capsys.readouterr().out
    assert "FAIL 09_orphan.cu belongs to no variant" in printed
    assert "does not compile for sm_80: log" in printed and "16 bytes of spills" in printed
    assert "compiled 3 builds" in printed and "4 failures" in printed


def test_the_kernels_of_ceilings_are_compiled_for_every_architecture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan, seen = plan_of(), set()

    def fake_report(name: str, macros: dict[str, int], arch: str, source: str) -> CompileReport:
        seen.add((arch, macros["THREADS"]))
        if arch == "sm_75":
            raise RuntimeError("ceilings does not compile for sm_75: log")
        spilled = 8 if (arch, macros["THREADS"]) == ("sm_90", 256) else 0
        return report_of(plan, spill_bytes=spilled)

    monkeypatch.setattr(subject, "compile_report", fake_report)
    refused = ["ceilings does not compile for sm_75: log"] * len(BLOCK_THREADS)
    wanted = [*refused, "ceilings.cu sm_90, 256 threads: 8 bytes of spills"]
    assert subject.ceiling_faults() == wanted
    assert seen == {(f"sm_{arch}", threads) for arch in ARCHS for threads in BLOCK_THREADS}

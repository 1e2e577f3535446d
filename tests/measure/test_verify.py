"""`verify` must notice wrong kernels: wrong ones are put in, with NumPy in the GPU's place."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fa_kernels.cuda.arrays import converted
from fa_kernels.cuda.compile import kernel_hash, kernel_names
from fa_kernels.cuda.tensor_map import mappable
from fa_kernels.extras import NO_EXTRAS
from fa_kernels.measure import verified_run
from fa_kernels.measure import verify as subject
from fa_kernels.measure.cases import (
    BF16_HEAD_DIMS,
    DTYPES,
    HEAD_DIMS,
    LAYOUTS,
    MAPPED_LAYOUTS,
    MASKS,
    SEQLENS,
    Case,
    can_run,
    cases,
    is_aligned,
    make_inputs,
    suited,
    suits,
)
from fa_kernels.measure.option_cases import option_cases
from fa_kernels.measure.tally import Errors, OutOfTime, Share, Tally
from fa_kernels.measure.verified_run import kernels_of, verify, write_verified
from fa_kernels.measure.verify import takes, trace_agrees, verify_forward
from fa_kernels.problem import ITEMSIZE, AttentionProblem
from fa_kernels.tiling import Tiling, default_tiling
from fa_kernels.trace import Trace, trace_row
from fa_kernels.traffic.counter import count_traffic as count
from fa_kernels.variants import VARIANTS
from tests.cuda.fake_cupy import fake_cupy, on_gpu

FLASH = "04_flash_q_outer"
PROBLEM = AttentionProblem(2, 3, 33, 47, 20, "float16", "bottom_right")
CASES = [Case(PROBLEM, Tiling(16, 32)), Case(replace(PROBLEM, dtype="float32"), Tiling(33, 17))]


def test_the_cases_are_those_that_were_promised() -> None:
    every = list(cases())
    seen = {(c.problem.seqlen_q, c.problem.seqlen_k, c.problem.head_dim, c.problem.dtype,
             c.problem.causal) for c in every}  # fmt: skip
    for shape in ((1, 1), (17, 17), (113, 203), (1023, 1024), (239, 1)):
        assert shape in SEQLENS
    assert {1, 20, 63, 64, 96, 128, 256} <= set(HEAD_DIMS)
    assert set(DTYPES) == set(ITEMSIZE)
    promised = {
        (*shape, d, dtype, mask)
        for shape, d, dtype, mask in itertools.product(SEQLENS, HEAD_DIMS, DTYPES, MASKS)
        if dtype != "bfloat16" or d in BF16_HEAD_DIMS
    }
    assert promised <= seen
    assert {c.layout for c in every} == set(LAYOUTS)
    assert any(c.scale_inputs > 1 for c in every)
    assert any(c.problem.q_bytes // 2 > 2**31 for c in every), "offsets beyond 32 bits"
    assert any(c.problem.seqlen_q * c.problem.seqlen_k >= 2**32 for c in every)


def test_block_masks_are_among_the_cases() -> None:
    """Blocks equal to the tiles, smaller, larger, and cut by them; per head; with empty rows."""
    masked = [case for case in cases() if case.problem.block_mask is not None]
    assert {case.problem.dtype for case in masked} == set(DTYPES)
    assert {case.problem.causal for case in masked} == set(MASKS)
    leads, kinds = set(), set()
    for case in masked:
        mask, tiling = case.problem.block_mask, case.tiling
        assert mask is not None
        assert not mask.keep[..., 1, :].any() and not mask.keep[..., :, 2].any()
        leads.add(mask.lead)
        equal = (mask.block_m, mask.block_n) == (tiling.block_m, tiling.block_n)
        cuts = mask.block_m % tiling.block_m or mask.block_n % tiling.block_n
        kinds.add("equal" if equal else "cuts" if cuts else "larger")
    assert {(1, 1), (2, 3), (1, 3), (2, 1)} <= leads
    assert {"equal", "cuts"} <= kinds


def test_every_variant_is_shown_every_kind_of_case_that_it_takes() -> None:
    every = list(cases())
    for variant in VARIANTS.values():
        mine = [case for case in every if takes(variant, case)]
        assert {case.problem.dtype for case in mine} == set(variant.dtypes)
        layouts = MAPPED_LAYOUTS if variant.whole_rows else LAYOUTS
        assert {case.layout for case in mine} == set(layouts)
        assert {case.problem.causal for case in mine} == set(MASKS)
        masked = [case for case in mine if case.problem.block_mask is not None]
        assert bool(masked) == variant.block_sparse
        dims = {case.problem.head_dim for case in mine}
        promised = {d for d in HEAD_DIMS if d % 8 == 0 or not variant.whole_rows}
        assert dims == {64} if variant.control_for else promised <= dims


def test_cases_that_a_variant_would_refuse_are_left_out_and_no_others() -> None:
    """Each of them is planned, aligned as its layout is; each one left out has a reason."""
    variant = VARIANTS["flash_wgmma"]
    for case in (*cases(), *option_cases()):
        p = case.problem
        if can_run(variant, case):
            variant.plan(p, suited(variant, case).tiling, aligned=is_aligned(case))
            continue
        reasons = (p.dtype == "float32", p.head_dim % 8 != 0, p.packed is not None)
        assert any(reasons) or case.layout not in MAPPED_LAYOUTS, case


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_that_are_read_in_place_are_those_that_tma_maps(layout: str) -> None:
    """`verify` runs with warnings as errors: an array that is copied first would be a fault."""
    problem = AttentionProblem(2, 3, 17, 23, 64, "float16")
    arrays = make_inputs(Case(problem, Tiling(64, 64), layout), 0, np)
    assert {mappable(on_gpu(x)) for x in arrays} == {layout in MAPPED_LAYOUTS}


def test_a_variants_own_tiles_are_among_the_cases() -> None:
    """Default tiles decide which code a reader runs: all warps' kinds must have been verified."""
    own = [case for case in (*cases(), *option_cases()) if case.own_tiles]
    for variant in VARIANTS.values():
        mine = [case for case in own if suits(variant, case)]
        if variant.default_tiling is default_tiling:
            assert not mine
            continue
        plans = [variant.plan(c.problem, suited(variant, c).tiling) for c in mine]
        assert {c.problem.causal for c in mine} == set(MASKS)
        layouts = MAPPED_LAYOUTS if variant.whole_rows else LAYOUTS
        assert {c.layout for c in mine} == set(layouts)
        kinds = {
            (p.macros["PAIRS"], p.macros["BLOCK_M"] * 32 // p.macros["THREADS"]) for p in plans
        }
        if variant.kernel == "06_flash_wgmma":
            assert kinds == {(0, 16)}
            assert {p.macros["THREADS"] // 128 for p in plans} == {2, 3}, "warpgroups that multiply"
            # Small O; small O under a block mask; large O.
            assert {(p.macros["TAKE_TURNS"], p.macros["LAZY_RESCALE"]) for p in plans} == {
                (1, 1), (0, 1),
            }  # fmt: skip
            continue
        assert kinds == {(0, 16), (0, 32), (1, 16)}, "rows a warp has, pairs have 32 together"


def test_inputs_are_scaled_and_differ_by_seed() -> None:
    case = Case(AttentionProblem(1, 2, 100, 100, 32), Tiling(16, 16), scale_inputs=12.0)
    q, k, _ = make_inputs(case, 0, np)
    assert q.dtype == np.float16 and 11 < q.astype("f4").std() < 13
    assert (q != k).any() and (q != make_inputs(case, 1, np)[0]).any()


Run = Callable[..., tuple[Any, Any, Any]]


def honest(
    q: Any, k: Any, v: Any, p: Any, t: Any, *, extras: Any = NO_EXTRAS, count_traffic: bool = False
) -> Any:
    reference = VARIANTS["flash_q_outer"].reference
    out, lse = reference(q, k, v, p, t, extras=extras)
    return out, lse, count(reference, p, t) if count_traffic else None


def without_extras(*args: Any, extras: Any = NO_EXTRAS, **options: Any) -> Any:
    """Mask, bias and dropout mask never reach the kernel."""
    nothing = converted(extras, lambda x: x | True if x.dtype == bool else x * 0)
    return honest(*args, extras=nothing, **options)


def wrong_out(*args: Any, **options: Any) -> Any:
    out, lse, traffic = honest(*args, **options)
    out[0, 0, 5, 5] += np.float16(0.25)
    return out, lse, traffic


def wrong_lse(*args: Any, **options: Any) -> Any:
    out, lse, traffic = honest(*args, **options)
    return out, lse + np.float32(0.25), traffic


def forgotten_element(*args: Any, **options: Any) -> Any:
    """The pool's memory is poisoned with NaN before a call: an unwritten element stays NaN."""
    out, lse, traffic = honest(*args, **options)
    out[1, 2, -1, -1] = np.nan
    return out, lse, traffic


def other_with_counters(*args: Any, count_traffic: bool = False, **options: Any) -> Any:
    out, lse, traffic = honest(*args, count_traffic=count_traffic, **options)
    return (np.nextafter(out, np.inf, dtype=out.dtype) if count_traffic else out), lse, traffic


def miscounted(*args: Any, count_traffic: bool = False, **options: Any) -> Any:
    out, lse, traffic = honest(*args, count_traffic=count_traffic, **options)
    if traffic is not None:
        traffic.read_bytes["k"] += 2
    return out, lse, traffic


def crashing(*args: Any, **options: Any) -> Any:
    raise RuntimeError("cudaErrorIllegalAddress")


def copying(*args: Any, **options: Any) -> Any:
    import warnings

    warnings.warn("q's last axis is not contiguous, so it was copied once", stacklevel=2)
    return honest(*args, **options)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], tuple[Tally, list[str]]]:
    """Verifies two cases with `run` as the flash kernel: what was found, and what was said."""
    monkeypatch.setitem(sys.modules, "cupy", np)
    monkeypatch.setattr(subject, "load_in_parallel", lambda plans, threads: len(list(plans)))
    monkeypatch.setattr(subject.memory, "free_large_pools", lambda: None)
    monkeypatch.setattr(subject, "smem_limit_bytes", lambda: 227 * 1024)
    monkeypatch.setattr(subject, "cases", lambda: iter(CASES))
    monkeypatch.setattr(subject, "option_cases", lambda: iter(()))
    monkeypatch.setattr(subject, "repeats_agree", lambda variant, dtype: [])
    monkeypatch.setattr(subject, "_poison", lambda problem, variant: None)
    monkeypatch.setattr(subject, "trace_agrees", lambda variant, dtype, masked: [])

    def with_run(run: Run) -> tuple[Tally, list[str]]:
        # Alone: flash_q_outer_one_block is the same kernel with an option.
        flash = replace(VARIANTS["flash_q_outer"], run=run)
        monkeypatch.setattr(subject, "VARIANTS", {"flash_q_outer": flash})
        said: list[str] = []
        tally = Tally(say=said.append)
        verify_forward(FLASH, Share(), tally)
        return tally, said

    return with_run


def test_a_right_kernel_passes(gpu: Callable[[Run], Any]) -> None:
    tally, said = gpu(honest)
    # Two cases; NaN and inf, a trace with and without a block mask, repeats, in three dtypes each.
    assert (tally.cases, tally.failures, tally.skipped, tally.compiled) == (17, 0, 0, 4)
    assert said == []
    errors = tally.variants["flash_q_outer"].max_abs_err
    assert set(errors) == {"out", "lse"}
    assert 0 < errors["out"]["float32"] < errors["out"]["float16"] < 0.01
    assert 0 < tally.worst_ratio <= 1.0


@pytest.fixture
def one_of_each_option(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """The option cases of one dtype and head dimension, small enough for NumPy."""
    chosen = [
        case
        for case in option_cases()
        if case.problem.dtype == "float32"
        and case.problem.head_dim == 20
        and any((case.problem.masked, case.problem.bias_dtype, case.problem.keep_given))
    ]
    return lambda: iter(chosen)


def test_options_are_among_the_cases(
    gpu: Callable[[Run], Any],
    one_of_each_option: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subject, "cases", one_of_each_option)
    count = len(list(one_of_each_option()))
    assert count >= 8
    assert gpu(honest)[0].failures == 0
    assert gpu(without_extras)[0].failures == count


def test_the_option_cases_hold_every_option_in_every_dtype() -> None:
    for dtype in DTYPES:
        problems = [case.problem for case in option_cases() if case.problem.dtype == dtype]
        for name in (
            "window",
            "masked",
            "bias_dtype",
            "seed",
            "keep_given",
            "packed",
            "block_mask",
        ):
            assert any(getattr(p, name) for p in problems), name
        assert {p.group for p in problems} >= {1, 2, 3, 6}
        assert any(
            all((p.window, p.masked, p.bias_dtype, p.seed, p.packed, p.group > 1)) for p in problems
        )


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        (wrong_out, "out error 0.25"),
        (wrong_lse, "lse error 0.25"),
        (forgotten_element, "out error inf"),
        (other_with_counters, "the output changes when the counters are compiled in"),
        (miscounted, "differ from the model"),
        (crashing, "RuntimeError: cudaErrorIllegalAddress"),
        (copying, "copied once"),
    ],
)
def test_a_wrong_kernel_fails_every_case_in_words(
    run: Run, sentence: str, gpu: Callable[[Run], Any]
) -> None:
    tally, said = gpu(run)
    assert tally.failures >= 2
    failures = [text for text in said if text.startswith("FAIL flash_q_outer Case")]
    assert len(failures) == 2 and all(sentence in text for text in failures), failures


def test_a_case_this_gpu_cannot_hold_is_counted_as_refused(
    gpu: Callable[[Run], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "smem_limit_bytes", lambda: 1024)
    tally = gpu(crashing)[0]
    assert tally.cases == 9, "traces and repeats are of one small shape"
    assert (tally.failures, tally.skipped) == (0, 8)


def too_large(*args: Any, **options: Any) -> Any:
    raise MemoryError("Out of memory allocating 17,716,740,096 bytes")


def test_a_case_that_does_not_fit_is_left_out_and_said(gpu: Callable[[Run], Any]) -> None:
    tally, said = gpu(too_large)
    assert (tally.failures, tally.skipped, tally.cases) == (0, 8, 9)
    assert said[0].startswith("left out flash_q_outer Case") and "Out of memory" in said[0]


def spreading(*args: Any, **options: Any) -> Any:
    """NaN in one query row reaches the row above."""
    out, lse, traffic = honest(*args, **options)
    for batch, head, row in np.argwhere(np.isnan(out).any(axis=-1)):
        out[batch, head, row - 1] = np.nan
    return out, lse, traffic


def test_a_kernel_that_spreads_nan_fails(gpu: Callable[[Run], Any]) -> None:
    tally, said = gpu(spreading)
    assert tally.failures == 6, "NaN and inf, in three dtypes"
    assert "nan in one query row reaches another row (float16)" in said[0]


def test_all_variants_of_the_named_ones_kernel_are_verified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A record is about a kernel with all its options."""
    monkeypatch.setitem(sys.modules, "cupy", np)
    seen: set[str] = set()

    def check(variant: Any, *args: Any) -> list[str]:
        seen.add(variant.name)
        return ["wrong"] if variant.control_for else []

    monkeypatch.setattr(subject, "smem_limit_bytes", lambda: 227 * 1024)
    monkeypatch.setattr(subject, "load_in_parallel", lambda plans, threads: 0)
    monkeypatch.setattr(subject, "cases", lambda: iter(()))
    monkeypatch.setattr(subject, "option_cases", lambda: iter(()))
    monkeypatch.setattr(subject, "repeats_agree", lambda variant, dtype: [])
    monkeypatch.setattr(subject, "nan_leaves_its_row", check)
    monkeypatch.setattr(subject, "trace_agrees", check)
    tally = Tally()
    verify_forward(FLASH, Share(), tally)
    assert seen == {"flash_q_outer", "flash_q_outer_one_block"} and tally.failures == 12


# -- kernel by kernel -----------------------------------------------------------------------


def test_kernels_of_a_variant_are_its_forward_and_its_backward() -> None:
    assert kernels_of(["flash_q_outer"]) == [FLASH, f"{FLASH}_backward"]
    assert set(kernels_of([])) == set(kernel_names())


def test_kernels_whose_record_holds_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verified_run, "current_arch", lambda: "sm_90")
    status = {FLASH: "verified", f"{FLASH}_backward": "pending: no GPU"}
    monkeypatch.setattr(verified_run, "kernel_status", lambda kernel, arch: status[kernel])
    assert kernels_of(["flash_q_outer"], only_unverified=True) == [f"{FLASH}_backward"]


@pytest.mark.parametrize("of", [1, 3, 8])
def test_every_build_stands_in_one_share(of: int) -> None:
    plans = [VARIANTS["flash_q_outer"].plan(case.problem, case.tiling) for case in option_cases()]
    sizes = []
    for plan in plans:
        assert sum(Share(i, of).has(plan) for i in range(of)) == 1
    for i in range(of):
        sizes.append(sum(Share(i, of).has(plan) for plan in plans))
    assert min(sizes) > 0.3 * len(plans) / of, "shares are of one order"


def test_shares_together_are_the_whole(gpu: Callable[[Run], Any]) -> None:
    whole, _ = gpu(honest)  # also puts the stand-ins in
    parts = [Tally() for _ in range(3)]
    for i, part in enumerate(parts):
        verify_forward(FLASH, Share(i, 3), part)
    total = Tally()
    for part in parts:
        total.add(part)
    assert (total.cases, total.compiled) == (whole.cases, whole.compiled)
    assert total.variants == whole.variants


def test_a_kernel_cut_short_is_not_given(
    gpu: Callable[[Run], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu(honest)
    said: list[str] = []
    found = dict(verify([FLASH], said.append, seconds=60))
    assert (found[FLASH].cases, said) == (17, [])
    assert dict(verify([FLASH], said.append, seconds=-1)) == {}
    assert said == [f"{FLASH} was cut short by the time limit: nothing of it is recorded."]
    with pytest.raises(OutOfTime):
        verify_forward(FLASH, Share(), Tally(deadline=0.0))


def test_a_process_begins_nothing_after_the_limit() -> None:
    """Two processes, each refuses its share before it looks for a GPU."""
    said: list[str] = []
    assert dict(verify([FLASH], said.append, jobs=2, seconds=-1)) == {}
    assert len(said) == 1 and "cut short" in said[0]


def test_each_case_can_be_said(gpu: Callable[[Run], Any]) -> None:
    gpu(honest)
    said: list[str] = []
    verify_forward(FLASH, Share(), Tally(say=said.append, verbose=True))
    assert len(said) == 17 and all(" s flash_q_outer" in text for text in said)


# -- traces ---------------------------------------------------------------------------------

Change = Callable[[Trace], Trace]
HONEST: Change = lambda trace: trace  # noqa: E731
TAMPERED: dict[str, tuple[Change, str]] = {
    "m": (lambda t: replace(t, m=t.m + np.float32(0.1)), "trace of m differs by"),
    "l": (lambda t: replace(t, l=t.l * np.float32(1.5)), "trace of l differs by"),
    "alpha": (lambda t: replace(t, alpha=t.alpha + np.float32(0.1)), "trace of alpha differs"),
    "acc": (lambda t: replace(t, acc=t.acc * np.float32(1.5)), "trace of acc differs by"),
    "NaN": (lambda t: replace(t, m=t.m * np.float32(np.nan)), "trace of m differs by nan"),
    "a visit less": (
        lambda t: replace(t, key_start=t.key_start[:-1], key_stop=t.key_stop[:-1]), "other keys",
    ),
    "normalised": (lambda t: replace(t, normalised=not t.normalised), "is normalised otherwise"),
}  # fmt: skip


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """`trace_agrees` with the NumPy trace, changed, in place of the kernel's."""
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy())

    def with_change(change: Change, name: str, dtype: str, masked: bool) -> list[str]:
        variant = VARIANTS[name]

        def run(q: Any, k: Any, v: Any, p: Any, t: Any) -> Any:
            out, lse = variant.reference(*(x.get() for x in (q, k, v)), p, t)
            return on_gpu(out), on_gpu(lse), None

        def row(*inputs: Any, backend: str, **options: Any) -> Trace:
            trace = trace_row(*inputs, backend="numpy", **options)
            return change(trace) if backend == "cuda" else trace

        monkeypatch.setattr(subject, "trace_row", row)
        return trace_agrees(replace(variant, run=run), dtype, masked)

    return with_change


TRACED = [(n, dtype) for n, v in VARIANTS.items() if v.traced for dtype in v.dtypes]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("name", "dtype"), TRACED)
def test_a_right_trace_agrees(
    name: str, dtype: str, masked: bool, traced: Callable[..., list[str]]
) -> None:
    assert traced(HONEST, name, dtype, masked) == []


@pytest.mark.parametrize("name", ["flash_kv_outer", "flash_q_outer", "flash_kv_outer_io"])
@pytest.mark.parametrize("what", TAMPERED)
def test_a_wrong_trace_does_not(what: str, name: str, traced: Callable[..., list[str]]) -> None:
    change, sentence = TAMPERED[what]
    found = traced(change, name, "float16", True)
    assert any(sentence in fault for fault in found), found


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match=r"variants \['flash'\] are not known: .*flash_q_outer"):
        kernels_of(["flash"])


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> None:
    about = {"driver": "580", "nvrtc": "13.0", "cupy": "13.6"}
    monkeypatch.setattr(verified_run, "current_arch", lambda: "sm_90")
    monkeypatch.setattr(verified_run, "gpu_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(verified_run, "describe_run", lambda command, method: about)


@pytest.mark.usefixtures("described")
def test_the_record_says_what_was_run_where(tmp_path: Path) -> None:
    errors = Errors()
    errors.note("out", "float16", 0.25, 0.5)
    tally = Tally(cases=341, failures=1, skipped=3, variants={"flash_q_outer": errors})
    path = write_verified({FLASH: tally}, "make verify", tmp_path / "new")
    record = json.loads(path.read_text())
    entry = record["kernels"][FLASH]
    assert (path.name, record["arch"], record["pending"]) == ("sm_90.json", "sm_90", {})
    assert (entry["cases"], entry["failures"], entry["refused_on_this_gpu"]) == (341, 1, 3)
    assert entry["hash"] == kernel_hash(FLASH)
    assert entry["variants"]["flash_q_outer"] == {
        "max_abs_err": {"out": {"float16": 0.25}}, "worst_share_of_limit": 0.5,
    }  # fmt: skip
    assert (entry["device"], entry["driver"]) == ("NVIDIA H200", "580")
    assert entry["command"] == "make verify"


@pytest.mark.usefixtures("described")
def test_verifying_one_kernel_keeps_the_others_of_that_folder(tmp_path: Path) -> None:
    write_verified({"02_standard_tiled": Tally(cases=5)}, "", tmp_path)
    path = tmp_path / "sm_90.json"
    record = json.loads(path.read_text())
    record["pending"] = {FLASH: "new loads", "05_flash_mma": "no GPU yet"}
    path.write_text(json.dumps(record))
    write_verified({FLASH: Tally(cases=7)}, "", tmp_path)
    record = json.loads(path.read_text())
    assert {name: entry["cases"] for name, entry in record["kernels"].items()} == {
        "02_standard_tiled": 5, FLASH: 7,
    }  # fmt: skip
    assert record["pending"] == {"05_flash_mma": "no GPU yet"}

"""Compile every kernel for every architecture its header names: what CI shows without a GPU."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda.compile import (
    KERNEL_DIR,
    CompileReport,
    compile_report,
    kernel_names,
    own_arch,
)
from fa_kernels.cuda.occupancy import SM_LIMITS
from fa_kernels.cuda.plan import LaunchPlan
from fa_kernels.cuda.run_decode import DECODE_KERNEL, DTYPES, MIN_ARCH, planned
from fa_kernels.decode_problem import DecodeProblem
from fa_kernels.measure.ceiling_attempts import BLOCK_THREADS, SOURCE
from fa_kernels.packed import Packed
from fa_kernels.problem import MAX_HEAD_DIM, AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.units import KIB
from fa_kernels.variants import VARIANTS, Variant

#: Shared memory one block may have, in bytes, on the architectures of the GPUs readers have
#: (CUDA Programming Guide, table "Technical Specifications per Compute Capability").
SMEM_PER_BLOCK = {
    arch: kib * KIB
    for arch, kib in ((75, 64), (80, 163), (86, 99), (89, 99), (90, 227), (100, 227), (120, 99))
}
HEAD_DIMS = (64, 128)
#: What stands for all pairs of dtype and head dimension where a build shows only that it compiles:
#: every dtype once, both head dimensions, and the larger one for two of three, since it is there
#: that registers run out.
STANDS_FOR_ALL = {"float16": 64, "bfloat16": 128, "float32": 128}
#: Of a decoding step also the largest, for which some GPUs have room for fewer warps alone.
_DECODE_HEAD_DIMS = (*HEAD_DIMS, MAX_HEAD_DIM)
_DROPOUT = {"dropout_p": 0.1, "seed": 0}
#: Options of the front door, each a build of its own, and all of them at once.
OPTIONS: tuple[dict[str, Any], ...] = (
    {"window": (100, 0)},
    {"masked": True},
    {"bias_dtype": "float32"},
    _DROPOUT,
    {"dropout_p": 0.1, "keep_given": True},
    {"batch": 2, "packed": Packed((0, 4096, 5000), (0, 4096, 5000))},
    {
        "batch": 2,
        "packed": Packed((0, 4096, 5000), (0, 4096, 5000)),
        "window": (100, 0),
        "masked": True,
        "bias_dtype": "float32",
        **_DROPOUT,
    },
)
#: Options of a decoding step: pages, a window, new tokens, more rows than one tile has.
_DECODE_OPTIONS: tuple[dict[str, Any], ...] = (
    {"max_seqlen": None, "page_size": 64, "max_pages": 128},
    {"window": (100, 0)},
    {"seqlen_new": 1},
    {"seqlen_q": 4},
)
#: The kernel whose timed builds may spill, and how many bytes, stores and loads together.
#: There dk and dv take 128 of a thread's 255 registers for the whole loop, and ptxas puts values
#: that are needed once a visit (addresses, bounds) into local memory, outside of the products.
#: Its plain build for sm_90, the one that is compared with others, must not spill either.
SPILLING_KERNEL = "05_flash_mma_backward"
SPILL_LIMIT = 640
#: And the builds of its forward with a block mask: where a warp keeps its 32 rows, at d = 128, one
#: register is missing, which is stored before the loop and read once a visit.
MASKED_KERNEL, MASKED_SPILL_LIMIT = "05_flash_mma", 8
#: And the builds of 06's backward in which dropout meets a lookup of every element (an element
#: mask, or dropout's own mask given): ptxas asks for the bytes of many elements at once, where no
#: test of the tile's edge parts the loads, and has no room for them beside P, dk and dv.
LOOKUP_KERNEL, LOOKUP_SPILL_LIMIT = "06_flash_wgmma_backward", 512
#: Where each hook is compiled alone.
_HOOKS_ALONE = ("float16", 64)
#: Macros of the options; a plain build has none of them on.
_OPTION_MACROS = (
    "WINDOW", "MASK", "BIAS", "DROPOUT", "PACKED", "BLOCK_SPARSE", "DETERMINISTIC",
)  # fmt: skip
#: What ptxas says where it cannot keep several wgmma in flight, warnings C7505 to C7519.
_WAITS = re.compile(r"^.*\(C75\d\d\).*$|^.*wgmma.*serialized.*$", re.MULTILINE)
#: What only later ones have may follow.
_SINCE = re.compile(r"^// Architectures: sm_(\d+) and later[.;]", re.MULTILINE)


def architectures(kernel: str) -> list[int]:
    """The architectures that a kernel's header names.

    Raises:
        ValueError: the header has no line "// Architectures: sm_NN and later."
    """
    if (alone := own_arch(kernel)) is not None:
        return [int(alone[3:-1])]
    match = _SINCE.search((KERNEL_DIR / f"{kernel}.cu").read_text(encoding="utf-8"))
    if match is None:
        raise ValueError(
            f"{kernel}.cu: its header names no architectures ('sm_NN and later.', 'sm_NNa alone.')"
        )
    return [arch for arch in SMEM_PER_BLOCK if arch >= int(match[1])]


def jobs() -> Iterator[tuple[LaunchPlan, int]]:
    """(plan, architecture) of every build, backward passes after all forward ones, decoding last.

    - What runs by default, with the tiling that is shipped: on the oldest GPU (where bf16 has no
      instructions of its own) and on the H200 with every dtype and head dimension; on the others,
      which differ in instructions and in registers, with the pairs of `STANDS_FOR_ALL`.
    - Each hook alone (a mask, a bias, ...): once per kernel, in fp16 at d = 64 on the H200. Hooks
      work on scores, which are fp32 whatever the dtype and the head dimension.
    - All hooks at once, the counters and the row trace: on the H200 with the pairs that stand for
      all. Counters ask for the size of an element and traces for the width of a row, and both have
      two values there. Neither is timed, and `verify` launches all of them on a GPU.
    - Block masks and a deterministic dq are timed: like those, and on tensor cores, where runs hold
      them, with every dtype and head dimension.
    - Variants that only isolate a difference share their kernel's source and hooks: the oldest GPU
      and the H200 with the pairs that stand for all, there counted and traced too, and with one
      block mask.
    """
    for variant, head_dim in itertools.product(VARIANTS.values(), HEAD_DIMS):
        for dtype, arch in itertools.product(variant.dtypes, architectures(variant.kernel)):
            if not _compiled(variant, variant.kernel, dtype, head_dim, arch):
                continue
            problem = AttentionProblem(1, 1, 4096, 4096, head_dim, dtype)
            tiling = variant.default_tiling(head_dim, problem.itemsize, SMEM_PER_BLOCK[arch])
            yield variant.plan(problem, tiling), arch
            if arch == 90:
                yield from ((plan, arch) for plan in _with_options(variant, problem, tiling))
    for variant, head_dim in itertools.product(VARIANTS.values(), HEAD_DIMS):
        if variant.backward is None:
            continue
        kernel = variant.backward.kernel
        for dtype, arch in itertools.product(variant.dtypes, architectures(kernel)):
            if _compiled(variant, kernel, dtype, head_dim, arch):
                problem = AttentionProblem(1, 512, 4096, 4096, head_dim, dtype)
                yield from ((plan, arch) for plan in _backward_plans(variant, problem, arch))
    archs = architectures(DECODE_KERNEL)
    for arch, head_dim, dtype in itertools.product(archs, _DECODE_HEAD_DIMS, DTYPES):
        yield from ((plan, arch) for plan in _decode_plans(head_dim, dtype, arch))


def _compiled(variant: Variant, kernel: str, dtype: str, head_dim: int, arch: int) -> bool:
    """Whether `jobs` has this build of a variant's forward or backward kernel."""
    whole = arch in (architectures(kernel)[0], 90)
    if variant.control_for is not None:
        return whole and _stands_for_all(dtype, head_dim)
    return whole or _stands_for_all(dtype, head_dim)


def _stands_for_all(dtype: str, head_dim: int) -> bool:
    """Of those only decoding has, fp16 does."""
    if head_dim not in HEAD_DIMS:
        return dtype == "float16"
    return STANDS_FOR_ALL[dtype] == head_dim


def _decode_plans(head_dim: int, dtype: str, arch: int) -> Iterator[LaunchPlan]:
    """A decoding step of one split, and of several that are merged in a cluster or in HBM; on the
    H200 also its options and layouts, with the pairs that stand for all."""
    covers = _stands_for_all(dtype, head_dim)
    if arch not in (MIN_ARCH, 90) and not covers:
        return
    step = DecodeProblem(16, 32, 8, 1, 0, 8192, head_dim, dtype)
    limits: dict[str, Any] = {"limit_bytes": SMEM_PER_BLOCK[arch]}
    limits |= {"sm_bytes": SM_LIMITS[arch].smem_bytes, "clusters": arch >= 90}
    with_options = arch == 90 and covers
    for num_splits in (1, 8):
        for fields in ({}, *_DECODE_OPTIONS) if with_options else ({},):
            yield planned(replace(step, **fields), num_splits, **limits)
    if arch >= 90:  # merged in a cluster, which no option changes
        yield planned(step, 2, **limits)
        yield planned(replace(step, batch=1), 8, **limits)
    if with_options:
        for option in ({"count_traffic": True}, {"aligned": False}, {"whole_tiles": False}):
            yield planned(step, 8, **limits, **option)
        yield planned(step, 2, **limits, count_traffic=True)


def _backward_plans(variant: Variant, problem: AttentionProblem, arch: int) -> Iterator[LaunchPlan]:
    """The shipped tiling; on the H200 also counters, a deterministic dq, hooks, block masks."""
    backward = variant.backward
    assert backward is not None
    tiling = backward.tiling_for(problem, SMEM_PER_BLOCK[arch])
    yield backward.plan(problem, tiling)
    if arch != 90:
        return
    covers = _stands_for_all(problem.dtype, problem.head_dim)
    timed = variant.same_algorithm is not None
    if covers:
        yield backward.plan(problem, tiling, count_traffic=True)
    if (covers or timed) and backward.fixes_dq:
        yield backward.plan(problem, tiling, deterministic=True)
    hooks = _hooks_of(problem, partial(backward.plan, tiling=tiling))
    for number, fields in enumerate(hooks, start=1):
        yield backward.plan(replace(problem, **fields), tiling)
        # What adds dq up as it goes is another loop than what leaves dq out: both with all hooks.
        if number == len(hooks) and backward.fixes_dq:
            yield backward.plan(replace(problem, **fields), tiling, deterministic=True)
    if variant.block_sparse and (covers or timed):
        for blocks in (tiling, Tiling(24, 40)) if covers else (tiling,):
            yield backward.plan(replace(problem, block_mask=_local(problem, blocks)), tiling)


def _hooks_of(
    problem: AttentionProblem, plan: Callable[..., LaunchPlan]
) -> tuple[dict[str, Any], ...]:
    """Each hook in fp16 at d = 64; all together with the pairs that stand for all; without those
    that the kernel refuses, as `plan(problem)` does."""
    refused: set[str] = set()
    for fields in OPTIONS[:-1]:
        try:
            plan(replace(problem, **fields))
        except NotImplementedError:
            refused |= fields.keys()
    able = [{name: one[name] for name in one if name not in refused} for one in OPTIONS]
    able = [fields for fields in able if fields]
    if (problem.dtype, problem.head_dim) == _HOOKS_ALONE:
        return tuple(able)
    return tuple(able[-1:]) if _stands_for_all(problem.dtype, problem.head_dim) else ()


def _local(problem: AttentionProblem, blocks: Tiling) -> BlockMask:
    sizes = (problem.seqlen_q, problem.seqlen_k, blocks.block_m, blocks.block_n)
    return BlockMask.pattern("local", *sizes, 0.25)


def _with_options(
    variant: Variant, problem: AttentionProblem, tiling: Tiling
) -> Iterator[LaunchPlan]:
    """Counters; the row trace; hooks; block masks of the tiles' size and one that cuts them."""
    covers = _stands_for_all(problem.dtype, problem.head_dim)
    control, timed = variant.control_for is not None, variant.same_algorithm is not None
    if variant.plan(problem, tiling).steps[0].grid == problem.heads:
        yield variant.plan(replace(problem, nheads=512, nheads_kv=512), tiling)  # many blocks
    if covers:
        yield variant.plan(problem, tiling, count_traffic=True)
    if covers and variant.traced:
        yield variant.plan(problem, tiling, trace=True)
    if not control:
        for fields in _hooks_of(problem, partial(variant.plan, tiling=tiling)):
            yield _suited(variant, replace(problem, **fields), tiling)
    if variant.block_sparse and control:
        if (problem.dtype, problem.head_dim) == _HOOKS_ALONE:
            yield variant.plan(replace(problem, block_mask=_local(problem, tiling)), tiling)
    elif variant.block_sparse and (covers or timed):
        paper = Tiling.from_sram(64 * KIB, problem.head_dim, problem.dtype)
        paper = variant.nearest_tiling(problem, paper)
        cut = ((tiling, Tiling(24, 40)),) if covers else ()
        for tiles, blocks in ((tiling, tiling), (paper, paper), *cut):
            masked = replace(problem, block_mask=_local(problem, blocks))
            yield _suited(variant, masked, tiles)


def _suited(variant: Variant, problem: AttentionProblem, tiling: Tiling) -> LaunchPlan:
    return variant.plan(problem, variant.suited_tiling(problem, tiling))


def faults(plan: LaunchPlan, report: CompileReport, arch: int) -> list[str]:
    """What is wrong with one compilation, in words."""
    found = []
    # Counting and tracing need registers of their own and are never timed: only what is timed must
    # not spill.
    timed = not plan.macros["COUNT_TRAFFIC"] and not plan.macros.get("TRACE", 0)
    allowed = _spill_limit(plan, arch)
    if report.spill_bytes > allowed and timed:
        more = f", more than {allowed}" if allowed else ""
        found.append(f"{report.spill_bytes} bytes of spills{more}")
    if waits := _WAITS.search(report.log):
        found.append(f"every wgmma waits for the one before: {waits[0].strip()}")
    missing = {step.entry for step in plan.steps} - set(report.registers)
    if missing:
        found.append(f"missing entries {sorted(missing)}")
    limit = SMEM_PER_BLOCK[arch]
    if plan.smem_bytes > limit:
        found.append(f"asks for {plan.smem_bytes} bytes of shared memory, sm_{arch} has {limit}")
    return found


def _spill_limit(plan: LaunchPlan, arch: int) -> int:
    """Bytes of spills that a timed build may have."""
    plain = not any(plan.macros.get(name, 0) for name in _OPTION_MACROS)
    if plan.kernel == MASKED_KERNEL and plan.macros.get("BLOCK_SPARSE", 0):
        return MASKED_SPILL_LIMIT
    given = plan.macros.get("DROPOUT", 0) == 2
    looked_up = given or (plan.macros.get("DROPOUT", 0) and plan.macros.get("MASK", 0))
    if plan.kernel == LOOKUP_KERNEL and looked_up:
        return LOOKUP_SPILL_LIMIT
    if plan.kernel != SPILLING_KERNEL or (plain and arch == 90):
        return 0
    return SPILL_LIMIT


def compile_all(verbose: bool = False) -> int:
    """Compile everything and print what failed; the number of failures."""
    listed = {variant.kernel for variant in VARIANTS.values()}
    listed |= {v.backward.kernel for v in VARIANTS.values() if v.backward is not None}
    listed.add(DECODE_KERNEL)
    orphans = [name for name in kernel_names() if name not in listed]
    failures = [f"{name}.cu belongs to no variant" for name in orphans]
    failures += ceiling_faults()
    # A paper tiling may be the default one: what is the same build is compiled once.
    builds = {(plan.kernel, *plan.macros.items(), arch): (plan, arch) for plan, arch in jobs()}
    work = list(builds.values())
    with ThreadPoolExecutor() as pool:
        results = pool.map(_compile_one, work)
        for (plan, arch), (found, line) in zip(work, results, strict=True):
            failures += [f"{plan.kernel} sm_{arch} {dict(plan.macros)}: {fault}" for fault in found]
            if verbose:
                print(line)
    print(f"compiled {len(work)} builds of {len(listed)} kernels, {len(failures)} failures")
    for failure in failures:
        print("FAIL", failure)
    return len(failures)


def ceiling_faults() -> list[str]:
    """What is wrong with the kernels that measure what a GPU reaches, in words."""
    builds = itertools.product(SMEM_PER_BLOCK, BLOCK_THREADS)
    with ThreadPoolExecutor() as pool:
        return [fault for found in pool.map(_ceiling_faults, builds) for fault in found]


def _ceiling_faults(build: tuple[int, int]) -> list[str]:
    arch, threads = build
    source = SOURCE.read_text(encoding="utf-8")
    try:
        report = compile_report(SOURCE.stem, {"THREADS": threads}, f"sm_{arch}", source)
    except RuntimeError as error:
        return [str(error)]
    if not report.spill_bytes:
        return []
    return [f"{SOURCE.name} sm_{arch}, {threads} threads: {report.spill_bytes} bytes of spills"]


def _compile_one(job: tuple[LaunchPlan, int]) -> tuple[list[str], str]:
    plan, arch = job
    try:
        report = compile_report(plan.kernel, plan.macros, f"sm_{arch}")
    except RuntimeError as error:
        return [str(error)], f"{plan.kernel} sm_{arch}: does not compile"
    line = (
        f"{plan.kernel} sm_{arch} d={plan.macros['HEAD_DIM']} io={plan.macros['IO_BITS']} "
        f"count={plan.macros['COUNT_TRAFFIC']}: registers {dict(report.registers)}, "
        f"{report.seconds:.2f} s"
    )
    return faults(plan, report, arch), line

"""compute-sanitizer over a small set of launches: every kernel, with and without its options."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda.compile import build_with
from fa_kernels.cuda.launch import smem_limit_bytes
from fa_kernels.measure.about import current_arch
from fa_kernels.measure.cases import Case, can_run, make_inputs, suited
from fa_kernels.measure.option_cases import PACKED, make_extras
from fa_kernels.measure.verify_backward import DEFAULT, takes_backward, tiling_of
from fa_kernels.measure.verify_decode import launch_small_decode_cases
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.variants import VARIANTS, Variant

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
#: Runs of one tool take about a minute on an H200; far more means that it hangs.
TIMEOUT_S = 900
_SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")


def small_cases() -> Iterator[Case]:
    """Ragged shapes, small enough for a tool that runs kernels hundreds of times slower."""
    options: dict[str, Any] = {
        "causal": "bottom_right", "window": (40, None), "masked": True, "bias_dtype": "float32",
        "nheads_kv": 2, "dropout_p": 0.25, "seed": 3,
    }  # fmt: skip
    yield Case(AttentionProblem(1, 2, 77, 53, 20, "float32"), Tiling(17, 33))
    packed = AttentionProblem(4, 4, 113, 261, 64, "float16", packed=PACKED, **options)
    yield Case(packed, Tiling(32, 32), extras="full", lowest=True)
    keep = np.random.default_rng(0).random((1, 2, 4, 4)) < 0.6
    mask = BlockMask.from_dense(keep, 24, 40)
    blocks = AttentionProblem(1, 2, 77, 131, 64, "bfloat16", "top_left", block_mask=mask)
    yield Case(blocks, Tiling(32, 32))
    # A variant's own tiles: warps of 32 rows, pairs of warps, block masks that cut them.
    for head_dim in (64, 256):
        dense = AttentionProblem(1, 2, 150, 203, head_dim, "float16", "bottom_right")
        yield Case(dense, Tiling(1, 1), own_tiles=True)
    # Several warps and heads that share keys: from one head of q to the next in one block.
    for head_dim in (64, 128):
        packed = AttentionProblem(4, 4, 113, 261, head_dim, "float16", packed=PACKED, **options)
        yield Case(packed, Tiling(1, 1), extras="full", own_tiles=True)
    # Every option that needs no packed sequences, for kernels that take none.
    for head_dim in (64, 128):
        some = options | {"bias_dtype": None}
        plain = AttentionProblem(1, 4, 150, 203, head_dim, "bfloat16", **some)
        yield Case(plain, Tiling(1, 1), extras="full", own_tiles=True)
    # More tiles than a GPU has SMs: blocks that go on to the next one.
    yield Case(AttentionProblem(1, 300, 70, 70, 64, "bfloat16"), Tiling(1, 1), own_tiles=True)
    grouped = BlockMask.from_dense(np.random.default_rng(2).random((1, 1, 64, 64)) < 0.5, 2, 2)
    problem = AttentionProblem(1, 4, 128, 128, 64, "float16", nheads_kv=1, block_mask=grouped)
    yield Case(problem, Tiling(1, 1), own_tiles=True)
    keep = np.random.default_rng(1).random((1, 1, 7, 6)) < 0.6
    mask = BlockMask.from_dense(keep, 24, 40)
    cut = AttentionProblem(1, 2, 150, 203, 64, "float16", block_mask=mask)
    yield Case(cut, Tiling(1, 1), own_tiles=True)


def launch_small_cases(tool: str = "memcheck") -> int:
    """Launch forward and backward of every variant on `small_cases`, then decoding steps; how many
    launches of ours.

    Called in the process that a tool watches: results are looked at on the host, where they must
    be finite, and so that every launch has ended.
    """
    if tool == "racecheck":  # it does not follow __syncwarp: hopper.cuh
        build_with(EVERY_LANE_ARRIVES=1)
    launches, arch = 0, int(current_arch().removeprefix("sm_"))
    for case in small_cases():
        for variant in VARIANTS.values():
            if variant.runs_on(arch) and can_run(variant, case):
                launches += _launch(variant, suited(variant, case))
    return launches + launch_small_decode_cases()


def _launch(variant: Variant, case: Case) -> int:
    import cupy

    p, tiling = case.problem, case.tiling
    inputs = [cupy.asarray(x) for x in make_inputs(case, 0, np)]
    extras = make_extras(case, 0, cupy)
    out, lse, _ = variant.run(*inputs, p, tiling, extras=extras)
    results, launches = [out.get()], len(variant.plan(p, tiling).steps)
    if variant.backward is not None:
        d_out = cupy.asarray(make_inputs(case, 1, np)[0])
        own = replace(case, tiling=DEFAULT) if case.own_tiles else case
        tiling = tiling_of(variant, own, smem_limit_bytes())
        if not takes_backward(variant, case):
            return launches
        for deterministic in (False, True) if variant.backward.fixes_dq else (False,):
            options: dict[str, Any] = {"extras": extras, "deterministic": deterministic}
            gradients = variant.backward.run(d_out, *inputs, out, lse, p, tiling, **options)
            results += [gradient.get() for gradient in gradients[:3]]
            plan = variant.backward.plan(p, tiling, deterministic=deterministic)
            launches += len(plan.steps)
    if not all(np.isfinite(result.astype(np.float32)).all() for result in results):
        raise RuntimeError(f"{variant.name} gives NaN or inf at {p.describe()}")
    return launches


@dataclass(frozen=True)
class Finding:
    """What one tool says: its errors or hazards, None if it did not finish; its output."""

    tool: str
    count: int | None
    log: str


#: Blocks of 07 have a barrier for every warp and stage: more than synccheck has room for by itself,
#: which then stops the process instead of saying so.
_OPTIONS = {"synccheck": ("--num-cuda-barriers", "65536")}


def sanitizer() -> str | None:
    """compute-sanitizer, if it is on the PATH or in a CUDA toolkit."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return shutil.which("compute-sanitizer") or shutil.which(f"{home}/bin/compute-sanitizer")


def run_tool(tool: str, executable: str) -> Finding:
    """One tool over `launch_small_cases` in a process of its own."""
    code = (
        "from fa_kernels.measure.sanitize import launch_small_cases as run; "
        f"print('launches', run({tool!r}))"
    )
    command = [executable, "--tool", tool, *_OPTIONS.get(tool, ()), sys.executable, "-c", code]
    try:
        done = subprocess.run(
            command,
            capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Finding(tool, None, f"not finished after {TIMEOUT_S} s")
    log = done.stdout + done.stderr
    found = _SUMMARY.search(log)
    finished = found is not None and re.search(r"^launches \d+$", log, re.MULTILINE)
    if found is None or not finished:
        return Finding(tool, None, log)
    return Finding(tool, int(found[1] or found[2]), log)


def sanitize(tools: tuple[str, ...] = TOOLS) -> int:
    """Run every tool and print what it found; the number of tools with findings or no answer."""
    executable = sanitizer()
    if executable is None:
        print(
            "compute-sanitizer was not found: it comes with the CUDA toolkit; put it on the PATH "
            "or set CUDA_HOME."
        )
        return 1
    bad = 0
    for tool in tools:
        finding = run_tool(tool, executable)
        if finding.count == 0:
            said = re.search(r"^launches (\d+)$", finding.log, re.MULTILINE)
            print(f"{tool}: 0 findings in {said[1] if said else '?'} launches")
            continue
        bad += 1
        count = "no answer" if finding.count is None else f"{finding.count} findings"
        print(f"{tool}: {count}\n{finding.log[-4000:]}")
    return bad

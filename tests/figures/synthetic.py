"""A made-up run with the shape of a real one, for tests only: its times come from no GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fa_kernels.block_mask import BlockMask
from fa_kernels.measure.baselines import BASELINES, GRID_PEERS
from fa_kernels.measure.records import RUN_KEYS, SCHEMA_VERSION, Row, append_rows, mask_text
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.model import TENSORS
from fa_kernels.units import GIB, KIB
from fa_kernels.variants import ALGORITHMS, VARIANTS

RUN_ID = "20260102-h200-synthetic"
SEQLENS = tuple(2**e for e in range(7, 17))
BUDGETS_KIB = (16, 32, 64, 128, 192)
#: Nanoseconds per thousand FLOP, so that the lines lie apart.
_COST = {
    "standard_naive": 900.0, "standard_tiled": 120.0, "flash_kv_outer": 200.0,
    "flash_q_outer": 60.0,
}  # fmt: skip
_PEER_COST = {"torch_eager": 60.0, "torch_flash": 3.4, "torch_cudnn": 2.2}
_CAPACITY_GIB = 139.0
#: Block masks at d = 64, fp16, as in the real grid: with the tiles of one M.
MASKS = (("local", 1 / 2), ("local", 1 / 8), ("butterfly", 1 / 4))
MASK_KIB, MASK_MIN_SEQLEN = 64, 1024


def write_run(
    root: Path,
    run_id: str = RUN_ID,
    device: str = "NVIDIA H200",
    head_dims: Sequence[int] = (32, 64, 128),
    dtypes: Sequence[str] = ("float16", "float32"),
    seqlens: Sequence[int] = SEQLENS,
) -> Path:
    """Write run.json and rows.csv under `root` and return the run's folder."""
    folder = root / run_id
    folder.mkdir(parents=True)
    about = dict.fromkeys(RUN_KEYS, "synthetic")
    about |= {"schema": SCHEMA_VERSION, "run_id": run_id, "device": device}  # type: ignore[dict-item]
    (folder / "run.json").write_text(json.dumps(about), encoding="utf-8")
    rows = [
        row
        for dtype in dtypes
        for d in head_dims
        for n in seqlens
        for row in rows_at(AttentionProblem.of_tokens(n, d, dtype))
    ]
    append_rows(folder, rows)
    return folder


def rows_at(problem: AttentionProblem) -> Iterator[Row]:
    """All rows of one problem: our variants with the tiles of every M, then the peers, then masks.

    An untiled variant has one row, without tiles.
    """
    n = problem.seqlen_q
    for variant in VARIANTS.values():
        if problem.dtype not in variant.dtypes:
            continue
        tilings = {
            variant.nearest_tiling(problem, tiling.clipped(n, n))
            for kib in BUDGETS_KIB
            for tiling in [Tiling.from_sram(kib * KIB, problem.head_dim, problem.dtype)]
        }
        ordered = sorted(tilings, key=lambda t: (t.block_m, t.block_n))
        for tiling in ordered if variant.tiled else ordered[:1]:
            memory = variant.memory(problem)
            if memory.total_bytes > _CAPACITY_GIB * GIB:
                need = f"does not fit (estimated {memory.total_bytes / GIB:.3g} GiB)"
                yield row(problem, "fa_kernels", variant.name, tiling, "latency_ms", None, need)
                continue
            yield from _ours(problem, variant.name, tiling)
    for provider, baseline in ((name, BASELINES[name]) for name in GRID_PEERS):
        if problem.dtype in baseline.dtypes:
            ms = _ms(problem, _PEER_COST.get(provider, 10.0))
            yield row(problem, provider, "sdpa", None, "latency_ms", ms)
            extra = problem.q_bytes + baseline.workspace_bytes(problem)
            yield row(problem, provider, "sdpa", None, "extra_mem_bytes", extra)
    if (problem.dtype, problem.head_dim) == ("float16", 64) and n >= MASK_MIN_SEQLEN:
        yield from _masked(problem)


def _masked(dense: AttentionProblem) -> Iterator[Row]:
    n = dense.seqlen_q
    tiling = Tiling.from_sram(MASK_KIB * KIB, dense.head_dim, dense.dtype).clipped(n, n)
    for name, density in MASKS:
        mask = BlockMask.pattern(name, n, n, tiling.block_m, tiling.block_n, density)
        problem = replace(dense, block_mask=mask)
        for variant in ALGORITHMS.values():
            if variant.block_sparse:
                yield from _ours(problem, variant.name, tiling)


def _ours(problem: AttentionProblem, name: str, tiling: Tiling) -> Iterator[Row]:
    variant = VARIANTS[name]
    memory, traffic = variant.memory(problem), variant.launched(problem, tiling)
    values = {
        "latency_ms": _ms(problem, _COST.get(name, 50.0)) * (1 + 8 / tiling.block_n),
        "extra_mem_bytes": memory.extra_bytes,
        "peak_mem_bytes": memory.total_bytes,
        "hbm_bytes": traffic.total_bytes,
        **{f"hbm_{t}_bytes": traffic.of(t) for t in TENSORS if traffic.of(t)},
    }
    for metric, value in values.items():
        yield row(problem, "fa_kernels", name, tiling, metric, value)


def _ms(problem: AttentionProblem, cost: float) -> float:
    work = 4 * problem.head_dim * problem.seqlen_q * problem.seqlen_k * problem.heads
    work *= problem.block_mask.density if problem.block_mask else 1.0  # type: ignore[assignment]
    return 0.01 + work * cost * 1e-12


def row(
    problem: AttentionProblem,
    provider: str,
    variant: str,
    tiling: Tiling | None,
    metric: str,
    value: float | None,
    detail: str = "",
) -> Row:
    """One row; `value` None means it does not fit, with `detail` as the sentence."""
    timed = value is not None and metric == "latency_ms"
    if variant in VARIANTS and not VARIANTS[variant].tiled:
        tiling = None
    low, high = (0.98 * value, 1.04 * value) if timed and value else (value, value)
    return Row(
        provider=provider, variant=variant, pass_="fwd", dtype=problem.dtype,
        batch=problem.batch, nheads=problem.nheads, nheads_kv=problem.nheads,
        seqlen_q=problem.seqlen_q, seqlen_k=problem.seqlen_k, head_dim=problem.head_dim,
        causal="none", dropout_p=0.0,
        density=problem.block_mask.density if problem.block_mask else 1.0,
        block_m=tiling.block_m if tiling else None, block_n=tiling.block_n if tiling else None,
        metric=metric, unit="ms" if metric == "latency_ms" else "B",
        p20=low, median=value, p80=high, n=0 if value is None else 12,
        status="does not fit" if value is None else "ok", detail=detail,
        max_abs_err=None if value is None else 1e-3, block_mask=mask_text(problem),
    )  # fmt: skip

"""The table under the Run button: predicted beside counted or measured, with the ratio."""

from __future__ import annotations

from collections.abc import Sequence

from fa_kernels.measure.records import Row
from fa_kernels.tiling import Tiling
from fa_kernels.units import capacity, duration, traffic
from fa_kernels.variants import VARIANTS
from fa_kernels.widgets.text import html_table, labels

#: Metrics that get a line of their own; per-tensor bytes are in the totals.
METRICS = ("hbm_bytes", "latency_ms", "extra_mem_bytes", "peak_mem_bytes")
_FORMATS = {"hbm_bytes": traffic, "latency_ms": duration}


def predicted(row: Row) -> float | None:
    """What the models say about a row, in the row's unit; None where they say nothing."""
    variant = VARIANTS.get(row.variant)
    if variant is None or (variant.tiled and (row.block_m is None or row.block_n is None)):
        return None
    problem = row.problem
    if row.metric == "hbm_bytes":
        tiling = Tiling(row.block_m or 1, row.block_n or 1)
        return variant.launched(problem, tiling).total_bytes
    memory = variant.memory(problem)
    return {"extra_mem_bytes": memory.extra_bytes, "peak_mem_bytes": memory.total_bytes}.get(
        row.metric
    )


def _cells(row: Row) -> list[str]:
    text = labels("run")
    show = _FORMATS.get(row.metric, capacity)
    label = VARIANTS[row.variant].label if row.variant in VARIANTS else row.variant
    said = predicted(row)
    cells = [label, text["metrics"].get(row.metric, row.metric), "" if said is None else show(said)]
    if row.median is None:
        return [*cells, row.detail or row.status, "", ""]
    spread = ""
    if row.p20 is not None and row.p80 is not None and row.p20 != row.p80:
        spread = f" ({show(row.p20)} to {show(row.p80)})"
    ratio = f"{row.median / said:.4f}" if said else ""
    error = "" if row.max_abs_err is None else f"{row.max_abs_err:.1e}"
    return [*cells, show(row.median) + spread, ratio, error]


def table(rows: Sequence[Row], source: str) -> str:
    """HTML; empty while there are no rows. `source` says where the numbers come from."""
    shown = [row for row in rows if row.metric in METRICS]
    if not shown:
        return ""
    text = labels("run")
    heads = ("variant", "quantity", "predicted", "measured", "ratio", "error")
    # The row that says most: with tiles, and with a block mask where any has one.
    row = max(shown, key=lambda row: (bool(row.block_mask), row.block_m is not None))
    problem, tiles = row.problem.describe(), f"{row.block_m} × {row.block_n}"
    caption = text["caption"].format(problem=problem, tiles=tiles)
    if any(not other.block_mask for other in shown) and row.block_mask:
        caption += str(text["dense_too"])
    cells = [_cells(row) for row in sorted(shown, key=_order)]
    head = [text[name] for name in heads]
    return html_table("run", f"{source}: {caption}", head, cells, css="falab-table")


def _order(row: Row) -> tuple[int, int]:
    names = list(VARIANTS)
    place = names.index(row.variant) if row.variant in names else len(names)
    return place, METRICS.index(row.metric)

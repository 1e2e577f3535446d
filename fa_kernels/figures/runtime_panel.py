"""Panel (c): runtime against N: recorded lines, live points, or the model's lower bound."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from fa_kernels.figures import theme
from fa_kernels.figures.over_seqlen import (
    SEQLENS,
    Label,
    end_labels,
    left_of,
    line_trace,
    padded_span,
    seqlen_axis,
    seqlens_shown,
    value_axis,
)
from fa_kernels.figures.panel import RUNTIME, Cursor, Panel, Words, marks, position
from fa_kernels.figures.point import COMPARED, Point, ratio_text
from fa_kernels.figures.recorded import RecordedRun
from fa_kernels.measure.records import Row
from fa_kernels.units import duration
from fa_kernels.variants import ALGORITHMS, VARIANTS

#: Rows of crosses with words of their own; more would lie on the lines.
MOST_CROSS_ROWS = 2
#: Series that a note names; it stands over the curves.
MOST_NAMES = 2
_AXES = ("x3", "y3")
#: Where the first row of crosses stands and how far below it the next one, as shares of the panel.
_CROSSES, _CROSS_ROW = 0.95, 0.07


@lru_cache(maxsize=64)
def _runtime_curves(run: RecordedRun, key: Point) -> tuple[dict[str, list[Row]], str | None]:
    """Rows of every series, for a point whose N does not matter; and why ours are missing."""
    missing = run.missing(key)
    rows = {name: run.curve(name, key, "latency_ms") for name in run.names(key, "latency_ms")}
    return rows, missing


def runtime_panel(
    point: Point,
    run: RecordedRun | None = None,
    live: Sequence[Row] = (),
    live_on: str = "",
    log: bool = True,
) -> Panel:
    """Latency over N: recorded lines with p20-p80, live points, or the model's lower bound."""
    panel = Panel()
    curves, missing = ({}, None) if run is None else _runtime_curves(run, point.at(SEQLENS[0]))
    labels: list[Label] = []
    shown: list[float] = []
    for name, rows in curves.items():
        _recorded_line(panel, name, rows, labels, shown)
    bounded = [name for name in ALGORITHMS if not curves.get(name)]
    refused = _bound_lines(panel, point, bounded, labels, shown)
    _live_points(panel, live, shown)
    # The crosses stand above all lines.
    span = padded_span(shown, log, headroom=0.7)
    rows_of_crosses = _not_measured(panel, curves, span, log)
    panel.cursors.append(Cursor(point.seqlen, _AXES, _top_of_cursor(rows_of_crosses)))
    last = seqlens_shown(point.seqlen)[-1]
    panel.words += end_labels(labels, last, span, log, RUNTIME, _AXES)
    panel.axes["xaxis3"] = seqlen_axis(last, log, RUNTIME, "y3")
    panel.axes["yaxis3"] = value_axis("latency", "ms", span, log, RUNTIME, "x3")
    panel.head(RUNTIME, _runtime_title(point, run), _runtime_caption(point, run, bounded, live_on))
    lacking = [name for name, rows in curves.items() if rows and not _has(rows, point.seqlen)]
    note = _note(point, run, missing, refused, lacking)
    if note:
        panel.note(RUNTIME, note, log)
    return panel


def _has(rows: Sequence[Row], seqlen: int) -> bool:
    return any(row.seqlen_q == seqlen for row in rows)


def _note(
    point: Point,
    run: RecordedRun | None,
    missing: str | None,
    refused: list[int],
    lacking: list[str],
) -> str | None:
    """What is not there and why: at most one sentence, the most important one.

    `lacking`: series that have rows at other N of this curve, but none at the chosen one: neither
    a time nor a reason why there is none.
    """
    if run is None:
        return f"no run was recorded on {point.device.name}"
    if missing or (missing := run.missing_mask(point) or run.missing_seqlen(point)):
        return missing
    if lacking:
        labels = [theme.style_of(name).label for name in lacking]
        # More names than two would cover the curves; the title and the lines show the rest.
        said = labels if len(labels) <= MOST_NAMES else [*labels[:MOST_NAMES], "others"]
        return f"no row of {' and '.join(said)} at N = {point.seqlen}"
    if refused:
        return f"no mask at N = {', '.join(map(str, refused))}; too many blocks: raise M"
    return "; ".join(f"no run of {label}" for label in run.unrecorded(point)) or None


def _runtime_title(point: Point, run: RecordedRun | None) -> str:
    if run is None:
        return "Runtime: lower bound"
    rows = [run.row(name, point, "latency_ms") for name in COMPARED]
    if not all(row and row.median for row in rows):
        return "Runtime"
    times = [row.median for row in rows if row and row.median]
    labels = [VARIANTS[name].label for name in COMPARED]
    both = ", ".join(f"{label} {duration(ms)}" for label, ms in zip(labels, times, strict=True))
    return f"Runtime: {both} ({ratio_text(times[0] / times[1])})"


def _runtime_caption(
    point: Point, run: RecordedRun | None, bounded: list[str], live_on: str
) -> str:
    parts = []
    if run is not None:
        parts.append(f"recorded {run.run_id}")
    if point.blocks:
        parts.append(f"flash: {point.pattern}, s = {point.density:.3g}")
    elif run is not None:
        parts.append("bars p20-p80")
    if bounded:
        parts.append("dotted: model, lower bound")
    if live_on:
        parts.append(f"★ live on {live_on}")
    return " · ".join(parts)


def _recorded_line(
    panel: Panel, name: str, rows: Sequence[Row], labels: list[Label], shown: list[float]
) -> None:
    ok = [row for row in rows if row.median is not None]
    if not ok:
        return
    style = theme.style_of(name)
    xs, ys = [row.seqlen_q for row in ok], [row.median or 0.0 for row in ok]
    above = [(row.p80 or y) - y for row, y in zip(ok, ys, strict=True)]
    below = [y - (row.p20 or y) for row, y in zip(ok, ys, strict=True)]
    bars = {
        "type": "data", "array": above, "arrayminus": below, "symmetric": False,
        "color": style.colour, "thickness": 1.5, "width": 4,
    }  # fmt: skip
    hover = "%{fullData.name}: N = %{x}, %{y:.4~g} ms<extra></extra>"
    panel.data.append(line_trace(xs, ys, name, _AXES, error_y=bars, hovertemplate=hover))
    labels.append(Label(ys[-1], style.named, style.text_colour))
    shown += ys


def _top_of_cursor(rows_of_crosses: int) -> float:
    """Where the line at N ends, as a share of the panel: below the words beside crosses."""
    return _CROSSES - _CROSS_ROW * (rows_of_crosses - 1) - 0.08 if rows_of_crosses else 1.0


def _not_measured(
    panel: Panel, curves: dict[str, list[Row]], span: tuple[float, float], log: bool
) -> int:
    """Crosses at the top, where a point was not measured, each with the recorded reason.

    Returns how many rows of them there are.
    """

    def height(fraction: float) -> float:
        low, high = position(span[0], log), position(span[1], log)
        at = low + fraction * (high - low)
        return 10**at if log else at

    # A series without a row at this M is not here at all: nothing was tried, nothing is crossed.
    tried = {name: rows for name, rows in curves.items() if rows}
    never = [name for name, rows in tried.items() if all(row.status != "ok" for row in rows)]
    if never:
        labels = ", ".join(theme.style_of(name).label for name in never)
        text = f"{tried[never[0]][0].status}: {labels}"
        panel.words.append(
            Words(SEQLENS[0 if log else 4], height(0.8), text, _AXES, colour=theme.MUTED)
        )
    # Series that stop at the same N for the same reason share their crosses and words.
    partly: dict[tuple[tuple[int, str], ...], list[str]] = {}
    for name, rows in tried.items():
        stops = tuple((row.seqlen_q, row.status) for row in rows if row.status != "ok")
        if stops and name not in never:
            partly.setdefault(stops, []).append(name)
    if len(partly) > MOST_CROSS_ROWS:
        # More rows of words would lie on the lines: one row of crosses, and the words on hover.
        stopped = {name: tried[name] for names in partly.values() for name in names}
        _crosses(panel, stopped, height(_CROSSES), log, "not everything measured")
        return 1
    # Who stops first has its words farthest left, and they may have to move under their crosses
    # (`fit_words`): it comes last, where nothing is below it.
    rows_of_crosses = sorted(partly, key=lambda stops: -min(n for n, _ in stops))
    for k, names in enumerate(partly[stops] for stops in rows_of_crosses):
        at = height(_CROSSES - _CROSS_ROW * k)
        _crosses(panel, {name: tried[name] for name in names}, at, log)
    return len(rows_of_crosses)


def _crosses(
    panel: Panel, stopped: dict[str, list[Row]], y: float, log: bool, said: str = ""
) -> None:
    """Crosses of the series `stopped`, which all lack the same points, or are summed up by `said`.

    Each cross gives its reasons on hover.
    """
    styles = [theme.style_of(name) for name in stopped]
    label = ", ".join(style.label for style in styles)
    reasons: dict[int, list[str]] = {}
    for style, rows in zip(styles, stopped.values(), strict=True):
        for row in (row for row in rows if row.status != "ok"):
            why = f"{style.label}, N = {row.seqlen_q}: {row.detail or row.status}"
            reasons.setdefault(row.seqlen_q, []).append(why)
    colour, text_colour = (theme.MUTED,) * 2 if said else (styles[0].colour, styles[0].text_colour)
    marker = {"symbol": "x-open", "size": 9, "color": colour}
    hovers = ["<br>".join(said) for said in reasons.values()]
    title = said or f"{label}: not measured"
    panel.data.append(marks(list(reasons), [y] * len(reasons), _AXES, marker, hovers, title))
    first = min(reasons)
    status = next(r.status for rows in stopped.values() for r in rows if r.seqlen_q == first)
    text = said or f"{label}: {status}"
    place = (left_of(first, SEQLENS[-1], log), y, text, _AXES, "middle left")
    panel.words.append(Words(*place, colour=text_colour))


def _bound_lines(
    panel: Panel, point: Point, names: list[str], labels: list[Label], shown: list[float]
) -> list[int]:
    """Dotted lines of the named variants; the N at which there can be no mask are left out."""
    ns = tuple(seqlens_shown(point.seqlen))
    refused = {n for n in ns if (blocks := point.at(n).blocks) and blocks.refusal}
    for name in names:
        variant, style = ALGORITHMS[name], theme.style_of(name)
        xs = [n for n in ns if not (variant.block_sparse and n in refused)]
        ys = list(_bounds(name, point.at(xs[0]), tuple(xs)))
        line = {"color": style.colour, "width": 2, "dash": "dot"}
        hover = "%{fullData.name}: N = %{x}, %{y:.4~g} ms<extra></extra>"
        panel.data.append(
            line_trace(xs, ys, name, _AXES, mode="lines", line=line, hovertemplate=hover)
            | {"name": f"{variant.label} (model)"}
        )
        labels.append(Label(ys[-1], style.modelled, style.text_colour))
        shown += ys
    sparse = any(ALGORITHMS[name].block_sparse for name in names)
    return sorted(refused) if sparse else []


@lru_cache(maxsize=256)
def _bounds(name: str, point: Point, ns: tuple[int, ...]) -> tuple[float, ...]:
    return tuple(point.at(n).bound_ms(ALGORITHMS[name]) for n in ns)


def _live_points(panel: Panel, live: Sequence[Row], shown: list[float]) -> None:
    timed = [row for row in live if row.metric == "latency_ms" and row.median is not None]
    if not timed:
        return
    styles = [theme.style_of(row.series) for row in timed]
    ys = [row.median or 0.0 for row in timed]
    marker = {
        "symbol": "star",
        "size": 14,
        "color": [style.colour for style in styles],
        "line": {"color": theme.INK, "width": 1.5},
    }
    hovers = [f"{s.label}, live: {duration(y)}" for s, y in zip(styles, ys, strict=True)]
    panel.data.append(marks([row.seqlen_q for row in timed], ys, _AXES, marker, hovers, "live"))
    shown += ys

"""Five ways to say how many bytes moved, side by side for every variant, on one log axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fa_kernels.figures import theme
from fa_kernels.figures.point import Point
from fa_kernels.figures.recorded_numbers import Found, RecordedNumbers
from fa_kernels.units import traffic
from fa_kernels.variants import VARIANTS

#: The five columns, in the order of the table: two models, a count, two hardware counters.
PAPER, LAUNCHED, COUNTED, L2, DRAM = "paper", "launched", "counted", "l2", "dram"
WAYS = (PAPER, LAUNCHED, COUNTED, L2, DRAM)
#: Algorithms and controls, each with the tiles of a budget M. The same algorithm on other units is
#: left out: it has tiles of its own.
SHOWABLE = tuple(name for name, v in VARIANTS.items() if v.same_algorithm is None)
#: Which recorded metric answers which column.
METRICS = {COUNTED: "hbm_bytes", L2: "l2_bytes", DRAM: "dram_bytes"}
_SYMBOLS = {
    PAPER: "diamond-open", LAUNCHED: "circle", COUNTED: "circle-open", L2: "square",
    DRAM: "triangle-down",
}  # fmt: skip
GLYPHS = {PAPER: "◇", LAUNCHED: "●", COUNTED: "○", L2: "■", DRAM: "▼"}
#: px per variant, and for what stands above and below; heights of the two lanes of a row.
_ROW, _FRAME = 74, 112
_UPPER, _LOWER = 0.2, -0.16
#: Parts of the axis that words between two dots need, in the narrowest figure.
_ROOM = {"share": 0.36, "share_short": 0.21}


@dataclass(frozen=True)
class Ways:
    """The bytes of one variant at one point, each way under its own name; None: not recorded.

    `reads` are (L2 reads, DRAM reads), both by hardware counters, where both were recorded. DRAM
    is what passed during the call and, with `written_back`, what it left in the L2 to be written.
    """

    variant: str
    bytes: Mapping[str, float | None]
    compulsory_bytes: int
    reads: tuple[float, float] | None
    runs: Mapping[str, str]
    written_back: bool = False

    @property
    def l2_share(self) -> float | None:
        """Which share of the bytes that the SMs read from the L2 did not come from DRAM."""
        if self.reads is None or not self.reads[0]:
            return None
        return max(0.0, 1 - self.reads[1] / self.reads[0])


def ways_of(name: str, point: Point, numbers: RecordedNumbers) -> Ways:
    """All five ways of one variant at one point."""
    variant, problem = VARIANTS[name], point.problem

    def recorded(metric: str) -> Found | None:
        return numbers.find(name, problem, point.tiling, metric)

    found = {way: recorded(metric) for way, metric in METRICS.items()}
    values: dict[str, float | None] = {
        PAPER: variant.paper(problem, point.tiling).total_bytes,
        LAUNCHED: point.traffic(variant).total_bytes,
        **{way: number.value if number else None for way, number in found.items()},
    }
    left = recorded("dram_writeback_bytes")
    if left and values[DRAM] is not None:
        values[DRAM] = (values[DRAM] or 0.0) + left.value
    read = [recorded(metric) for metric in ("l2_read_bytes", "dram_read_bytes")]
    reads = (read[0].value, read[1].value) if read[0] and read[1] else None
    runs = {way: number.run_id for way, number in found.items() if number}
    compulsory = point.compulsory_bytes(variant)
    return Ways(name, values, compulsory, reads, runs, left is not None)


def all_ways(point: Point, numbers: RecordedNumbers) -> list[Ways]:
    """One `Ways` per shown variant that takes this dtype, in the order of VARIANTS."""
    return [ways_of(name, point, numbers) for name in shown_at(point)]


def shown_at(point: Point) -> list[str]:
    """Those of `SHOWABLE` that take the point's dtype."""
    return [name for name in SHOWABLE if point.problem.dtype in VARIANTS[name].dtypes]


def traffic_ways_spec(rows: Sequence[Ways], text: Mapping[str, Any]) -> dict[str, Any]:
    """A plotly spec: a row per variant; models and counts above, hardware counters below."""
    layout = theme.base_layout(_FRAME + _ROW * len(rows))
    layout["margin"] = {"l": 176, "r": 12, "t": 44, "b": 58}
    low, high = _span(rows)
    ticks = [10.0**e for e in range(math.ceil(low), math.floor(high) + 1)]
    layout["xaxis"] = theme.axis(
        title=theme.axis_title(text["axis"]), type="log", range=[low, high], tickvals=ticks,
        ticktext=[traffic(tick) for tick in ticks],
    )  # fmt: skip
    heights = [len(rows) - 1 - i for i in range(len(rows))]
    names = [f"<b>{_wrapped(VARIANTS[row.variant].label)}</b>&nbsp;" for row in rows]
    layout["yaxis"] = theme.axis(
        range=[-0.55, len(rows) - 0.45], tickvals=heights, ticktext=names, showgrid=False,
        tickfont=theme.font(),
    )  # fmt: skip
    layout["shapes"] = [_rule(y + 0.5) for y in heights[1:]]
    layout["annotations"] = [_legend(text)]
    data = [*_spans(rows, heights), *(_dots(way, rows, heights, text) for way in WAYS)]
    data += [_floor(rows, heights), *_words(rows, heights, text, (low, high))]
    return {"data": data, "layout": layout}


def _span(rows: Sequence[Ways]) -> tuple[float, float]:
    """The axis in decades: every number, and room for the words on either side."""
    known = [n for row in rows for n in (*row.bytes.values(), row.compulsory_bytes) if n]
    low, high = math.log10(min(known)), math.log10(max(known))
    wide = max(1.2, high - low)
    return low - 0.27 * wide, high + 0.42 * wide


def _wrapped(label: str) -> str:
    """A long label in two lines."""
    if len(label) <= 20 or ", " not in label:
        return label
    head, _, tail = label.partition(", ")
    return f"{head},&nbsp;<br>{tail}"


def _rule(y: float) -> dict[str, Any]:
    line = {"color": theme.GRID, "width": 1}
    ends = {"x0": 0, "x1": 1, "y0": y, "y1": y}
    return {"type": "line", "xref": "paper", "yref": "y", **ends, "line": line}


def _legend(text: Mapping[str, Any]) -> dict[str, Any]:
    words = [f"{GLYPHS[way]} {text['legend'][way]}" for way in WAYS]
    words.append(f"△ {text['legend']['compulsory']}")
    return {
        "x": 0, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "xshift": -170, "yshift": 10, "showarrow": False, "align": "left",
        "text": "&nbsp;&nbsp;&nbsp;".join(words), "font": theme.font(),
    }  # fmt: skip


def _spans(rows: Sequence[Ways], heights: Sequence[int]) -> list[dict[str, Any]]:
    """Thin lines: from paper to launched above, from DRAM to L2 below."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    for row, y in zip(rows, heights, strict=True):
        for a, b, lane in ((PAPER, LAUNCHED, _UPPER), (DRAM, L2, _LOWER)):
            start, end = row.bytes[a], row.bytes[b]
            if start and end:
                xs += [start, end, None]
                ys += [y + lane, y + lane, None]
    line = {"color": theme.MUTED, "width": 2}
    return [_trace("spans", xs, ys, mode="lines", line=line, hoverinfo="skip")]


def _trace(name: str, xs: Sequence[Any], ys: Sequence[Any], **options: Any) -> dict[str, Any]:
    return {"type": "scatter", "name": name, "x": list(xs), "y": list(ys), **options}


def _dots(
    way: str, rows: Sequence[Ways], heights: Sequence[int], text: Mapping[str, Any]
) -> dict[str, Any]:
    lane = _LOWER if way in (L2, DRAM) else _UPPER
    shown = [(row, y, n) for row, y in zip(rows, heights, strict=True) if (n := row.bytes[way])]
    ink = way in (PAPER, COUNTED)
    colours = [theme.INK if ink else theme.STYLES[row.variant].colour for row, _, _ in shown]
    marker = {
        "symbol": _SYMBOLS[way], "size": 19 if way == COUNTED else 13, "color": colours,
        "line": {"width": 2 if ink else 1, "color": theme.INK},
    }  # fmt: skip
    hovers = [
        f"{VARIANTS[row.variant].label}, {text['columns'][way]}: {traffic(n)}"
        for row, _, n in shown
    ]
    return _trace(
        way, [n for _, _, n in shown], [y + lane for _, y, _ in shown], mode="markers",
        marker=marker, hovertext=hovers, hoverinfo="text",
    )  # fmt: skip


def _floor(rows: Sequence[Ways], heights: Sequence[int]) -> dict[str, Any]:
    """What no cache can save, as a mark at the lower edge of the row: clear of every word."""
    marker = {
        "symbol": "triangle-up-open", "size": 11, "color": theme.MUTED, "line": {"width": 2}
    }  # fmt: skip
    hovers = [traffic(row.compulsory_bytes) for row in rows]
    return _trace(
        "compulsory", [row.compulsory_bytes for row in rows], [y - 0.4 for y in heights],
        mode="markers", marker=marker, hovertext=hovers, hoverinfo="text",
    )  # fmt: skip


def _words(
    rows: Sequence[Ways], heights: Sequence[int], text: Mapping[str, Any], span: tuple[float, float]
) -> list[dict[str, Any]]:
    """Numbers beside the dots: on the left of the smaller of a pair, on the right of the larger."""
    pieces: list[tuple[float, float, str, str, str]] = []
    for row, y in zip(rows, heights, strict=True):
        said = text["say"]
        launched = said[COUNTED if row.bytes[COUNTED] else "uncounted"]
        if row.bytes[COUNTED] and row.bytes[COUNTED] != row.bytes[LAUNCHED]:
            launched = said["apart"].format(counted=traffic(row.bytes[COUNTED] or 0))
        pieces += _pair(row, y + _UPPER, (PAPER, LAUNCHED), said, launched)
        pieces += _pair(row, y + _LOWER, (DRAM, L2), said)
        if row.l2_share is not None:
            ends = [math.log10(row.bytes[w] or 1) for w in (DRAM, L2)]
            room = abs(ends[1] - ends[0]) / (span[1] - span[0])
            if room > _ROOM["share_short"]:
                longest = "share" if room > _ROOM["share"] else "share_short"
                words = said[longest].format(share=f"{100 * row.l2_share:.0f}")
                middle = 10 ** (sum(ends) / 2)
                pieces.append((middle, y + _LOWER + 0.02, words, "top center", theme.MUTED))
        if not row.bytes[L2] and not row.bytes[DRAM]:
            right = 10 ** (span[1] - 0.01 * (span[1] - span[0]))
            pieces.append((right, y + _LOWER, said["nothing"], "middle left", theme.MUTED))
    columns = list(zip(*pieces, strict=True))
    font = {"size": theme.FONT, "color": list(columns[4])}
    options = {"textposition": list(columns[3]), "textfont": font, "hoverinfo": "skip"}
    return [_trace("words", columns[0], columns[1], mode="text", text=list(columns[2]), **options)]


def _pair(
    row: Ways, y: float, ways: tuple[str, str], said: Mapping[str, str], after: str = ""
) -> list[tuple[float, float, str, str, str]]:
    known = sorted((n, way) for way in ways if (n := row.bytes[way]))
    pad = "&nbsp;" * 4
    if len(known) == 2 and known[0][0] == known[1][0]:
        nbytes = known[0][0]
        words = f"{pad}{' = '.join(said[w] for w in ways)}{after} <b>{traffic(nbytes)}</b>"
        return [(nbytes, y, words, "middle right", theme.INK)]
    pieces = []
    for place, (nbytes, way) in enumerate(known):
        right = place == len(known) - 1
        words = f"{said[way]} <b>{traffic(nbytes)}</b>{after if way == LAUNCHED else ''}"
        words, at = (pad + words, "middle right") if right else (words + pad, "middle left")
        pieces.append((nbytes, y, words, at, theme.INK))
    return pieces

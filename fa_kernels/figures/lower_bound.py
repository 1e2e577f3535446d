"""Elements moved over M, from d to beyond N d: the law N² d² / M, two algorithms, and the floor.

FlashAttention, Proposition 3: no algorithm for exact attention moves o(N² d² / M) elements *for
all* M in [d, N d], because at M = Θ(N d) that would be o(N d), less than its input and output. Here
all is in elements per head and in multiples of N d; l, m and lse, numbers per row, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fa_kernels.device import Device
from fa_kernels.figures import theme
from fa_kernels.figures.recorded_numbers import RecordedNumbers
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.units import KIB, significant

#: q, k and v read once, out written once: what no algorithm goes below, in units of N d.
FLOOR = 4
LAW, KV_OUTER, Q_OUTER, FREE = "law", "flash_kv_outer", "flash_q_outer", "free"
LINES = (KV_OUTER, Q_OUTER, FREE, LAW)
#: Whose recorded bytes are shown: with O in the io dtype K/V outer moves what the paper says.
SHOWN = {"flash_kv_outer_io": KV_OUTER, Q_OUTER: Q_OUTER}
COUNTED, DRAM = "counted", "dram"
#: Points per doubling of M; how far beyond N d the axis goes.
_PER_OCTAVE, _BEYOND = 6, 16
_HEIGHT = 480


@dataclass(frozen=True)
class LowerBound:
    """Elements moved for one head of N rows and keys of dimension d, over M elements of SRAM."""

    N: int
    d: int

    def kv_outer(self, m: float) -> float:
        """Algorithm 1, B_c = ceil(M / 4d): 2 N d + 3 N d T, T = ceil(N / B_c), in units of N d."""
        return 2 + 3 * math.ceil(self.N / self._block_n(m))

    def q_outer(self, m: float) -> float:
        """FlashAttention-2's order with the paper's B_r = min(B_c, d): 2 + 2 ceil(N / B_r)."""
        return 2 + 2 * math.ceil(self.N / min(self._block_n(m), self.d))

    def free(self, m: float) -> float | None:
        """The same order with as many rows of Q as M holds: None where not even one fits.

        On chip are Q, O, m, l and one score of each row, and one row of K and of V: an idea on
        paper, which no kernel here has.
        """
        rows = int(m - 2 * self.d) // (2 * self.d + 3)
        return 2 + 2 * math.ceil(self.N / rows) if rows > 0 else None

    def law(self, m: float) -> float | None:
        """N² d² / M, in units of N d, where the theorem speaks: M from d to N d."""
        return self.N * self.d / m if self.d <= m <= self.N * self.d else None

    def at(self, line: str, m: float) -> float | None:
        """One of `LINES` at M = m elements."""
        ways = {KV_OUTER: self.kv_outer, Q_OUTER: self.q_outer, FREE: self.free, LAW: self.law}
        return ways[line](m)

    def _block_n(self, m: float) -> int:
        return min(self.N, max(1, math.ceil(m / (4 * self.d))))

    @property
    def law_meets_floor(self) -> float:
        """M = N d / 4: from here to N d the law is less than the floor."""
        return self.N * self.d / FLOOR

    @property
    def one_pass(self) -> int:
        """The least M at which Algorithm 1 has one tile of K and V: beyond it nothing falls."""
        return 4 * self.d * (self.N - 1) + 1

    @property
    def free_meets_floor(self) -> int:
        """The least M at which `free` moves each tensor once."""
        return self.N * (2 * self.d + 3) + 2 * self.d

    def budgets(self) -> list[float]:
        """M of the curves: from d to 16 N d, with the places where something happens."""
        octaves = math.log2(self.N * _BEYOND)
        steps = math.ceil(octaves * _PER_OCTAVE)
        even = [self.d * 2 ** (octaves * i / steps) for i in range(steps + 1)]
        marks = [self.N * self.d, self.one_pass, self.free_meets_floor]
        return sorted({*even, *(float(m) for m in marks if m <= even[-1])})


@dataclass(frozen=True)
class Point:
    """One recorded call: M in elements, elements moved in units of N d, and which run says so."""

    series: str
    way: str
    m: float
    moved: float
    run_id: str


def recorded_points(
    problem: AttentionProblem, budgets_kib: Sequence[int], numbers: RecordedNumbers
) -> list[Point]:
    """Bytes counted in the kernels and DRAM bytes, at the budgets that were recorded."""
    found: list[Point] = []
    unit = problem.heads * problem.seqlen_q * problem.head_dim * problem.itemsize
    for name in SHOWN:
        for kib in budgets_kib:
            tiling = Tiling.from_sram(kib * KIB, problem.head_dim, problem.dtype)
            tiling = tiling.clipped(problem.seqlen_q, problem.seqlen_k)
            m = kib * KIB / problem.itemsize
            counted, moved, left = (
                numbers.find(name, problem, tiling, metric)
                for metric in ("hbm_bytes", "dram_bytes", "dram_writeback_bytes")
            )
            if counted:
                found.append(Point(name, COUNTED, m, counted.value / unit, counted.run_id))
            if moved and left:
                total = (moved.value + left.value) / unit
                found.append(Point(name, DRAM, m, total, moved.run_id))
    return found


def lower_bound_spec(
    bound: LowerBound,
    points: Sequence[Point],
    device: Device,
    itemsize: int,
    text: Mapping[str, Any],
) -> dict[str, Any]:
    """A plotly spec on log axes: the law, the algorithms as steps, the floor, recorded points."""
    layout = theme.base_layout(_HEIGHT)
    layout["margin"] = {"l": 74, "r": 14, "t": 104, "b": 56}
    budgets = bound.budgets()
    known = [y for line in LINES for m in budgets if (y := bound.at(line, m))]
    known += [point.moved for point in points]
    low, high = math.log10(min(1.0, *known)) - 0.25, math.log10(max(known)) + 0.15
    ends = math.log10(budgets[0]), math.log10(budgets[-1])
    ticks = _ticks(bound)
    layout["xaxis"] = theme.axis(
        title=theme.axis_title(text["axis_m"]), type="log", range=list(ends),
        tickvals=list(ticks.values()), ticktext=list(ticks),
    )  # fmt: skip
    exponents = range(0, math.ceil(high) + 1)
    layout["yaxis"] = theme.axis(
        title=theme.axis_title(text["axis_moved"]), type="log", range=[low, high],
        tickvals=[10.0**e for e in exponents], ticktext=[f"{10**e} N d" for e in exponents],
    )  # fmt: skip
    smem = device.smem_per_block_bytes / itemsize
    layout["shapes"] = [_upright(bound.N * bound.d, "dot"), _upright(smem, "dash")]
    layout["annotations"] = [
        _legend(points, text),
        _note(bound.N * bound.d, text["at_nd"], "left"),
        _note(smem, text["at_block"].format(kib=device.smem_per_block_bytes // KIB), "right"),
    ]
    data = [_line(line, bound, budgets, text) for line in LINES]
    data += [_floor(budgets, text), *(_marks(points, way, text) for way in (COUNTED, DRAM))]
    return {"data": data, "layout": layout}


def _ticks(bound: LowerBound) -> dict[str, float]:
    """Names of the places on the axis of M; those that would collide are left out."""
    n, d = bound.N, bound.d
    found: dict[str, float] = {}
    for name, m in (("d", d), ("N d", n * d), ("d²", d * d), ("4 N d", 4 * n * d)):
        if all(abs(math.log10(m / other)) > 0.25 for other in found.values()):
            found[name] = float(m)
    return found


def _line(
    line: str, bound: LowerBound, budgets: Sequence[float], text: Mapping[str, Any]
) -> dict[str, Any]:
    known = [(m, y) for m in budgets if (y := bound.at(line, m)) is not None]
    style = theme.STYLES.get(line)
    looks = {
        LAW: {"color": theme.INK, "width": 2, "dash": "dash"},
        FREE: {"color": theme.MUTED, "width": 2, "dash": "dot"},
    }
    own = {"color": style.colour, "width": 3} if style else looks[line]
    if line != LAW:
        own = {**own, "shape": "hv"}  # tiles are whole: between two sizes nothing changes
    return {
        "type": "scatter", "mode": "lines", "name": line, "x": [m for m, _ in known],
        "y": [y for _, y in known], "line": own,
        "hovertext": [
            f"{text['lines'][line]}, M = {significant(m)}: {significant(y)} N d" for m, y in known
        ],
        "hoverinfo": "text",
    }  # fmt: skip


def _floor(budgets: Sequence[float], text: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines+text", "name": "floor",
        "x": [budgets[0], budgets[-1]], "y": [FLOOR, FLOOR],
        "text": [f"<br>&nbsp;{text['floor']}", ""], "textposition": "bottom right",
        "textfont": theme.font(), "line": {"color": theme.INK, "width": 3}, "hoverinfo": "skip",
    }  # fmt: skip


def _marks(points: Sequence[Point], way: str, text: Mapping[str, Any]) -> dict[str, Any]:
    some = [point for point in points if point.way == way]
    symbol = "circle-open" if way == COUNTED else "triangle-down"
    colours = [theme.STYLES[SHOWN[point.series]].colour for point in some]
    return {
        "type": "scatter", "mode": "markers", "name": way, "x": [p.m for p in some],
        "y": [p.moved for p in some],
        "marker": {
            "symbol": symbol, "size": 12, "color": colours,
            "line": {"width": 2 if way == COUNTED else 1,
                     "color": colours if way == COUNTED else theme.INK},
        },
        "hovertext": [
            f"{theme.STYLES[p.series].label}, {text['ways'][way]}, M = {significant(p.m)}: "
            f"{significant(p.moved)} N d"
            for p in some
        ],
        "hoverinfo": "text",
    }  # fmt: skip


def _upright(m: float, dash: str) -> dict[str, Any]:
    return {
        "type": "line", "x0": m, "x1": m, "y0": 0, "y1": 1, "yref": "paper", "layer": "below",
        "line": {"color": theme.MUTED, "width": 1.5, "dash": dash},
    }  # fmt: skip


def _note(m: float, words: str, anchor: str) -> dict[str, Any]:
    return {
        "x": math.log10(m), "xref": "x", "y": 1, "yref": "paper", "yanchor": "bottom",
        "xanchor": anchor, "showarrow": False, "text": words, "yshift": 2,
        "font": theme.font(colour=theme.MUTED),
    }  # fmt: skip


def _legend(points: Sequence[Point], text: Mapping[str, Any]) -> dict[str, Any]:
    words = []
    for line in LINES:
        style = theme.STYLES.get(line)
        dash = {LAW: "╌", FREE: "┈"}.get(line, "━")
        colour = style.text_colour if style else (theme.INK if line == LAW else theme.MUTED)
        words.append(f'<span style="color:{colour}">{dash} {text["lines"][line]}</span>')
    seen = {point.way for point in points}
    marks = [f"{g} {text['ways'][w]}" for w, g in ((COUNTED, "○"), (DRAM, "▼")) if w in seen]
    below = "&nbsp;&nbsp; ".join([*words[2:], *marks])
    return {
        "x": 0, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "xshift": -60, "yshift": 24, "showarrow": False, "align": "left", "font": theme.font(),
        "text": f"<b>{text['title']}</b><br>{'&nbsp;&nbsp; '.join(words[:2])}<br>{below}",
    }  # fmt: skip

"""The levels of a GPU's memory: how much each holds, and how fast it gives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fa_kernels.device import Device
from fa_kernels.figures import theme
from fa_kernels.figures.recorded_ceilings import MeasuredCeilings, register_gb_s, sheet_rate
from fa_kernels.units import capacity, significant

#: px of a level, and of what stands above and below them all.
_ROW, _FRAME = 62, 122
_BAR = 0.3
#: Where the axes begin and end: bytes and GB/s, in decades; words stand right of the bars.
_BYTES, _RATES = (4.6, 15.4), (2.5, 8.2)


@dataclass(frozen=True)
class Level:
    """One level of memory: `part_bytes` of an SM (HBM and L2 have no such part), and of the GPU.

    `sheet_gb_s` is the bandwidth of all parts together by the data sheet, None where it has none;
    `derived` says that it was computed from other numbers there. `measured_gb_s` is that of a run,
    None also of what no kernel measures by itself.
    """

    name: str
    part_bytes: int | None
    total_bytes: int
    sheet_gb_s: float | None
    derived: bool
    measured_gb_s: float | None
    source: str

    @property
    def ratio(self) -> float | None:
        """Measured over data sheet; None where one of them is missing."""
        if self.sheet_gb_s is None or self.measured_gb_s is None:
            return None
        return self.measured_gb_s / self.sheet_gb_s

    @property
    def gb_s(self) -> float | None:
        """The data sheet's, else the measured one."""
        return self.sheet_gb_s if self.sheet_gb_s is not None else self.measured_gb_s


#: The levels, nearest to the arithmetic first: key of the labels, and of the measured ceiling.
#: Registers have none: a kernel that multiplies reads part of its operands from a cache before
#: them, and says only what they must deliver at most.
LEVELS = {"registers": "", "shared": "smem_read", "l2": "l2_read", "hbm": "hbm_read"}


def levels_of(device: Device, measured: MeasuredCeilings) -> dict[str, Level]:
    """The four levels of a device, nearest to the arithmetic first.

    Registers have no bandwidth of their own on any data sheet: it is what multiply-adds at the peak
    of the fp32 units are worth at four operands each, and never counts as measured.
    """
    sms, registers = device.sm_count, 4 * device.registers_per_sm
    fma = sheet_rate(device, "fp32_fma")
    shared, hbm = sheet_rate(device, "smem_read"), sheet_rate(device, "hbm_read")
    return {
        "registers": Level(
            "registers", registers, sms * registers, register_gb_s(fma.value or 0.0), True, None,
            fma.source,
        ),
        "shared": Level(
            "shared", device.smem_per_sm_bytes, sms * device.smem_per_sm_bytes, shared.value, True,
            measured.rate("smem_read"), shared.source,
        ),
        "l2": Level("l2", None, device.l2_bytes, None, False, measured.l2_gb_s, ""),
        "hbm": Level(
            "hbm", None, device.hbm_capacity_bytes, hbm.value, False, measured.rate("hbm_read"),
            hbm.source,
        ),
    }  # fmt: skip


def bandwidth(gb_s: float) -> str:
    """A bandwidth as text: "4.8 TB/s"."""
    return f"{significant(gb_s / 1e3)} TB/s" if gb_s >= 999.5 else f"{significant(gb_s)} GB/s"


def levels_spec(levels: Mapping[str, Level], text: Mapping[str, Any]) -> dict[str, Any]:
    """A plotly spec on log axes: left what each level holds, right how fast it gives it."""
    found = list(levels.values())
    heights = [float(len(found) - 1 - i) for i in range(len(found))]
    layout = theme.base_layout(_FRAME + _ROW * len(found))
    layout["margin"] = {"l": 128, "r": 14, "t": 62, "b": 54}
    layout["barmode"] = "overlay"
    layout["xaxis"] = _log_axis(text["axis_capacity"], "", _BYTES, (0.0, 0.48), _byte_ticks())
    rates = {10.0**e: bandwidth(10.0**e) for e in range(3, 7)}
    layout["xaxis2"] = _log_axis(text["axis_bandwidth"], "", _RATES, (0.53, 1.0), rates)
    names = [f"{text['levels'][level.name]}&nbsp;" for level in found]
    rows = {"range": [-0.6, len(found) - 0.4], "tickvals": heights, "showgrid": False}
    layout["yaxis"] = theme.axis(**rows, ticktext=names)
    layout["yaxis2"] = theme.axis(**rows, ticktext=[""] * len(found), anchor="x2")
    layout["annotations"] = [
        _head(0.0, -112, text["title_capacity"], text["legend_capacity"]),
        _head(0.53, 0, text["title_bandwidth"], text["legend_bandwidth"]),
    ]
    return {
        "data": [
            *_capacities(found, heights, text), *_bandwidths(found, heights, text),
        ],
        "layout": layout,
    }  # fmt: skip


def _byte_ticks() -> dict[float, str]:
    # Powers of 1024 lie a little right of those of 1000; the axis counts in the former.
    ticks = [1024.0**k * m for k, m in ((1, 64), (2, 1), (2, 64), (3, 1), (3, 64))]
    return {tick: capacity(tick) for tick in ticks}


def _log_axis(
    quantity: str, unit: str, span: tuple[float, float], domain: tuple[float, float],
    ticks: Mapping[float, str],
) -> dict[str, Any]:  # fmt: skip
    return theme.axis(
        title=theme.axis_title(quantity, unit), type="log", range=list(span), domain=list(domain),
        tickvals=list(ticks), ticktext=list(ticks.values()),
    )  # fmt: skip


def _head(x: float, shift: int, title: str, legend: str) -> dict[str, Any]:
    return {
        "x": x, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "xshift": shift, "yshift": 6, "showarrow": False, "align": "left", "font": theme.font(),
        "text": f"<b>{title}</b><br>{legend}",
    }  # fmt: skip


def _bar(
    name: str, xs: Sequence[float], ys: Sequence[float], span: tuple[float, float],
    hovers: Sequence[str], axis: str, **marker: Any,
) -> dict[str, Any]:  # fmt: skip
    # On a log axis a bar has no natural root: they begin at the left edge.
    root = 10.0 ** span[0]
    return {
        "type": "bar", "orientation": "h", "name": name, "width": _BAR, "base": [root] * len(xs),
        "x": [x - root for x in xs], "y": list(ys), "xaxis": f"x{axis}", "yaxis": f"y{axis}",
        "marker": {"line": {"color": theme.INK, "width": 1}, **marker},
        "hovertext": list(hovers), "hoverinfo": "text",
    }  # fmt: skip


def _words(
    name: str, xs: Sequence[float], ys: Sequence[float], words: Sequence[str], axis: str
) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "text", "name": name, "x": list(xs), "y": list(ys),
        "xaxis": f"x{axis}", "yaxis": f"y{axis}", "text": [f"&nbsp;{word}" for word in words],
        "textposition": "middle right", "textfont": theme.font(), "hoverinfo": "skip",
        "cliponaxis": False,
    }  # fmt: skip


def _capacities(
    found: Sequence[Level], heights: Sequence[float], text: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Of the whole GPU, and over it of one SM."""
    parts = [(level, y) for level, y in zip(found, heights, strict=True) if level.part_bytes]
    totals = [float(level.total_bytes) for level in found]
    words = []
    for level in found:
        said = text["of_gpu"].format(size=capacity(level.total_bytes))
        if level.part_bytes:
            said = f"{said}<br>&nbsp;{text['of_sm'].format(size=capacity(level.part_bytes))}"
        words.append(said)
    light = theme.LEVEL_COLOURS
    return [
        _bar(
            "GPU", totals, heights, _BYTES, words, "", color=[light[v.name] for v in found],
            opacity=0.55,
        ),
        _bar(
            "SM", [float(v.part_bytes or 0) for v, _ in parts], [y for _, y in parts], _BYTES,
            [text["of_sm"].format(size=capacity(v.part_bytes or 0)) for v, _ in parts], "",
            color=[light[v.name] for v, _ in parts],
        ),
        _words("capacities", totals, heights, words, ""),
    ]  # fmt: skip


def _bandwidths(
    found: Sequence[Level], heights: Sequence[float], text: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """By the data sheet above, measured below it; in words where there is none."""
    above, below = 0.5 * _BAR + 0.03, -0.5 * _BAR - 0.03
    data: list[dict[str, Any]] = []
    xs: list[float] = []
    ys: list[float] = []
    words: list[str] = []
    for name, at, dense in (("data sheet", above, True), ("measured", below, False)):
        shown = [
            (level, y + at, rate)
            for level, y in zip(found, heights, strict=True)
            if (rate := level.sheet_gb_s if dense else level.measured_gb_s) is not None
        ]
        marker: dict[str, Any] = {"color": [theme.LEVEL_COLOURS[v.name] for v, _, _ in shown]}
        if not dense:
            marker["pattern"] = {"shape": "/"}
        rates, lines = [r for _, _, r in shown], [_rate_words(v, dense, text) for v, _, _ in shown]
        data.append(_bar(name, rates, [y for _, y, _ in shown], _RATES, lines, "2", **marker))
        xs, ys, words = [*xs, *rates], [*ys, *(y for _, y, _ in shown)], [*words, *lines]
    for level, y in zip(found, heights, strict=True):
        if level.sheet_gb_s is None:
            xs, ys = [*xs, 10.0 ** _RATES[0]], [*ys, y + above]
            words.append(text["no_sheet"])
        if level.measured_gb_s is None:
            xs, ys = [*xs, 10.0 ** _RATES[0]], [*ys, y + below]
            words.append(text["no_measured"])
    return [*data, _words("bandwidths", xs, ys, words, "2")]


def _rate_words(level: Level, sheet: bool, text: Mapping[str, Any]) -> str:
    if sheet:
        said = bandwidth(level.sheet_gb_s or 0.0)
        if level.name == "registers":
            return f"{said}, {text['derived_registers']}"
        return f"{said}, {text['derived']}" if level.derived else said
    said = bandwidth(level.measured_gb_s or 0.0)
    if level.name == "l2":
        return f"{said} {text['delivered']}"
    return f"{said} ({100 * level.ratio:.0f} %)" if level.ratio else said

"""The story in one figure: where the bytes go, and the time it takes. Large enough for a hall."""

from __future__ import annotations

from typing import Any

from fa_kernels.figures import theme
from fa_kernels.figures.panel import Frame, Panel, Words, join
from fa_kernels.figures.point import COMPARED, Point, ratio_text
from fa_kernels.figures.recorded import RecordedRun
from fa_kernels.figures.sentence import binding
from fa_kernels.figures.traffic_panel import traffic_panel
from fa_kernels.units import duration, traffic
from fa_kernels.variants import VARIANTS

HEIGHT = 620
#: How much larger than in the explorer the words are.
_ENLARGED = 1.35
_TRAFFIC = Frame(x=(0.0, 1.0), y=(0.64, 0.89), title_y=1.0, caption_y=0.945)
_TIME = Frame(x=(0.0, 1.0), y=(0.0, 0.36), title_y=0.475, caption_y=0.42)
_AXES = ("x2", "y2")


def story_spec(point: Point, run: RecordedRun | None = None) -> dict[str, Any]:
    """Traffic by tensor above, recorded latency below (the lower bound where there is no run)."""
    bytes_panel = traffic_panel(point, run, frame=_TRAFFIC, axes=("x", "y"), names=COMPARED)
    panels = [bytes_panel, _time_panel(point, run)]
    spec = join(panels, HEIGHT)
    enlarge(spec, _ENLARGED)
    spec["layout"]["margin"] = {"l": 8, "r": 12, "t": 6, "b": 56}
    return spec


def story_figure(point: Point, run: RecordedRun | None = None) -> Any:
    """`story_spec` as a `plotly.graph_objects.Figure`, checked by plotly."""
    import plotly.graph_objects as go

    return go.Figure(story_spec(point, run))


def story_sentence(point: Point, run: RecordedRun | None = None) -> str:
    """What the figure says, for its alternative text."""
    compared = [VARIANTS[name] for name in COMPARED]
    before, after = (point.traffic(variant).total_bytes for variant in compared)
    moved = (
        f"{compared[0].label.capitalize()} moves {ratio_text(before / after)} the bytes of "
        f"{compared[1].label}, {traffic(before)} against {traffic(after)}"
    )
    times = ", ".join(f"{label} {duration(ms)}" for label, ms, _ in _times(point, run))
    kind = "Recorded" if _recorded(point, run) else "Lower bound of the model"
    return f"{moved} ({point.problem.describe()}). {kind}: {times}. {binding(point)}"


def enlarge(node: Any, factor: float, key: str = "") -> None:
    """Multiply every font size in a spec, in place."""
    if isinstance(node, list):
        for item in node:
            enlarge(item, factor, key)
    elif isinstance(node, dict):
        for name, value in node.items():
            if (key.endswith("font") and name == "size") or name == "minsize":
                many = isinstance(value, list)
                node[name] = [v * factor for v in value] if many else value * factor
            else:
                enlarge(value, factor, name)


def _recorded(point: Point, run: RecordedRun | None) -> list[tuple[str, float, str]]:
    if run is None:
        return []
    found = []
    for name in run.names(point, "latency_ms"):
        if name in VARIANTS and name not in COMPARED:
            continue  # two of ours and the peers tell the story; the explorer has them all
        row = run.row(name, point, "latency_ms")
        if row is not None and row.median is not None:
            style = theme.style_of(name)
            found.append((style.label, row.median, style.colour))
    return found


def _times(point: Point, run: RecordedRun | None) -> list[tuple[str, float, str]]:
    """(label, ms, colour) of every bar: recorded, or else the lower bounds of our variants."""
    bounds = [
        (
            f"{VARIANTS[name].label}, lower bound",
            point.bound(VARIANTS[name]).ms,
            theme.style_of(name).colour,
        )
        for name in COMPARED
    ]
    return _recorded(point, run) or bounds


def _time_panel(point: Point, run: RecordedRun | None) -> Panel:
    panel, bars = Panel(), _times(point, run)
    measured = run is not None and bool(_recorded(point, run))
    longest = max(ms for _, ms, _ in bars)
    rows = list(range(len(bars)))[::-1]
    colours = [colour for _, _, colour in bars]
    panel.data.append(
        {
            "type": "bar",
            "orientation": "h",
            "x": [ms for _, ms, _ in bars],
            "y": rows,
            "width": 0.62,
            "xaxis": _AXES[0],
            "yaxis": _AXES[1],
            "marker": {
                "color": colours,
                "line": {"color": theme.INK, "width": 1},
                "pattern": {"shape": "" if measured else "/"},
            },
            "hoverinfo": "skip",
            "name": "latency",
        }
    )
    for (label, ms, _), row in zip(bars, rows, strict=True):
        panel.words.append(Words(ms, row, f"&nbsp;<b>{label}</b> {duration(ms)}", _AXES))
    panel.head(_TIME, _title(bars, measured), _caption(point, run if measured else None))
    panel.axes["xaxis2"] = theme.axis(
        title=theme.axis_title("time of one forward pass", "ms"), range=[0, longest * 1.35],
        nticks=6, domain=list(_TIME.x), anchor="y2",
    )  # fmt: skip
    panel.axes["yaxis2"] = theme.axis(
        range=[-0.6, len(bars) - 0.4], showticklabels=False, showgrid=False,
        domain=list(_TIME.y), anchor="x2",
    )  # fmt: skip
    return panel


def _title(bars: list[tuple[str, float, str]], measured: bool) -> str:
    if not measured:
        return "Time: lower bound of the model"
    times = {label: ms for label, ms, _ in bars}
    # Unfused against fused, on CUDA cores (ours) and on tensor cores (torch's): same idea, twice.
    pairs = [COMPARED, ("torch_eager", "torch_flash")]
    ratios = []
    for pair in pairs:
        slow, fast = (theme.style_of(name).label for name in pair)
        if slow in times and fast in times:
            ratios.append(f"{slow} / {fast} = {ratio_text(times[slow] / times[fast])}")
    return f"Time: {', '.join(ratios)}" if ratios else "Time"


def _caption(point: Point, run: RecordedRun | None) -> str:
    sizes = point.problem.describe()
    if run is None:
        return f"model, not measured: no run on {point.device.name} · {sizes}"
    return f"recorded {run.run_id} · {sizes}"

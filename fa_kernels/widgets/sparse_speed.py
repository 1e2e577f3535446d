"""How much time a block mask saves, recorded: against density, both passes side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fa_kernels.device import Device
from fa_kernels.device import device as find_device
from fa_kernels.figures.point import device_words
from fa_kernels.figures.recorded_sparse import (
    GOAL_DENSE,
    GOAL_FROM,
    GOAL_MS,
    GOAL_SPARSE,
    RecordedSparse,
    SparseCurves,
)
from fa_kernels.figures.sparse_speed import Shown as Panel
from fa_kernels.figures.sparse_speed import sparse_speed_spec
from fa_kernels.measure.sparse_run import HEAD_DIMS, PASSES, SEQLENS, dense_problem
from fa_kernels.problem import AttentionProblem
from fa_kernels.session import Session, in_use
from fa_kernels.traffic.floor import floor_ms
from fa_kernels.units import duration, significant, span
from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.drawn_view import DrawnView
from fa_kernels.widgets.explorer_point import default_device
from fa_kernels.widgets.headline import TIME, Headline
from fa_kernels.widgets.sparse_goals import (
    density_words,
    goals_table,
    over_limit,
    rung_numbers,
    rungs_said,
)
from fa_kernels.widgets.text import html_table, labels


@dataclass(frozen=True)
class Shown:
    """What the controls show."""

    N: int
    d: int

    @property
    def problem(self) -> AttentionProblem:
        """The dense call."""
        return dense_problem(self.N, self.d)


def takeaway(panels: Sequence[Panel], device: Device) -> str:
    """Per pass: how far from s times dense, at how many densities within the goal, and beside
    FlexAttention and dense cuDNN."""
    text = labels("sparse_speed")
    if not any(one.curves.dense and one.curves.ours for one in panels):
        return str(text["said_nothing"]).format(device=device_words(device))
    return " ".join(map(_pass_words, panels))


def _pass_words(one: Panel) -> str:
    text, curves = labels("sparse_speed"), one.curves
    title = text["titles"][one.pass_]
    if curves.dense is None or not curves.ours:
        return str(text["said_missing"]).format(pass_=title)
    dense, ours, least = curves.dense.ms, curves.ours, min(curves.ours)
    words = {"pass_": title, "ms": duration(ours[least].ms), "dense": duration(dense)}
    if least == 1:
        return str(text["said_full"]).format(**words)
    over = over_limit(curves)
    said = text["said"].format(
        s=density_words(least), saved=significant(dense / ours[least].ms),
        ideal=significant(1 / least), met=sum(ratio <= 1 for ratio in over.values()),
        of=len(over), rung=rungs_said([one]), **words,
    )  # fmt: skip
    if max(over.values()) > 1:
        said += text["said_over"].format(percent=significant(100 * (max(over.values()) - 1), 2))
    said += "."
    if ratios := curves.against(curves.flex):
        said += " " + text["said_flex"].format(ratios=span(list(ratios.values())))
    if curves.cudnn is not None:
        said += " " + _beside_cudnn(curves, curves.cudnn.ms)
    return str(said)


def _beside_cudnn(curves: SparseCurves, cudnn: float) -> str:
    """From which density down ours is faster, or at which ones."""
    text = labels("sparse_speed")
    faster = [density for density, timed in curves.ours.items() if timed.ms < cudnn]
    if not faster:
        return str(text["said_cudnn_never"])
    if max(faster) < min(s for s in (*curves.ours, math.inf) if s not in faster):
        return str(text["said_cudnn"]).format(s=density_words(max(faster)))
    return str(text["said_cudnn_at"]).format(at=", ".join(map(density_words, faster)))


def sparse_table(panels: Sequence[Panel], shown: Shown, device: Device, run_id: str) -> str:
    """A row per pass and density, then the masks of other shapes, as HTML."""
    text = labels("sparse_speed")
    head = [text[name].format(number=rung_numbers(panels)) for name in _COLUMNS]
    rows = [row for one in panels for row in _rows(one)]
    problem = shown.problem
    caption = text["caption"].format(
        problem=problem.describe(), device=device.name,
        dense=f"{GOAL_DENSE:.2f}", sparse=f"{GOAL_SPARSE:.2f}",
        below=density_words(GOAL_FROM), us=f"{1e3 * GOAL_MS:.0f}",
        source=text["recorded"].format(run_id=run_id) if rows else text["not_recorded"],
    )  # fmt: skip
    return html_table("sparse-speed", caption, head, rows, "falab-table falab-dense")


_COLUMNS = (
    "column_pass", "column_mask", "column_density", "column_ours", "column_ideal", "column_limit",
    "column_flex", "column_cudnn", "column_lists",
)  # fmt: skip


def _rows(one: Panel) -> list[list[str]]:
    text, curves = labels("sparse_speed"), one.curves
    name = text["passes"][one.pass_]
    rows = []
    if curves.dense is not None:
        cudnn = _ratio(curves.cudnn.ms if curves.cudnn else None, curves.dense.ms)
        dense = [name, text["no_mask"], "1", duration(curves.dense.ms), "", "", "", cudnn, ""]
        rows.append(dense)
    for density, timed in curves.ours.items():
        goal, ideal = curves.goal_ms(density), curves.ideal_ms(density)
        flex = curves.flex.get(density)
        rows.append(
            [name, timed.mask_words, density_words(density), duration(timed.ms),
             _ratio(timed.ms, ideal), _ratio(timed.ms, goal),
             _ratio(flex.ms if flex else None, timed.ms),
             _ratio(curves.cudnn.ms if curves.cudnn else None, timed.ms),
             _lists(curves, density, timed.ms)]
        )  # fmt: skip
    for mine, flex in curves.others:
        rows.append(
            [name, mine.mask_words, significant(mine.density), duration(mine.ms), "", "",
             _ratio(flex.ms if flex else None, mine.ms), "", ""]
        )  # fmt: skip
    return rows


def _ratio(value: float | None, base: float | None) -> str:
    return f"{value / base:.2f}" if value and base else ""


def _lists(curves: SparseCurves, density: float, ms: float) -> str:
    """The cost of the lists, on the GPU where it was measured, and its share of the call."""
    text = labels("sparse_speed")
    for place in ("device", "host"):
        us = curves.lists.get(place, {}).get(density)
        if us is not None:
            share = f"{100 * us / 1e3 / ms:.1f}"
            return str(text["lists"]).format(
                place=text["places"][place], us=duration(us / 1e3), share=share
            )
    return ""


class SparseSpeed(DrawnView):
    """Time against density; `panels` are those shown, forward first."""

    section, mark = "sparse_speed", "sparse"
    least_width = 760
    panels: Sequence[Panel]

    def __init__(self, shown: Shown, device: Device, recorded: RecordedSparse) -> None:
        self.device, self.recorded = device, recorded
        text = labels(self.section)
        self.seqlen = Choice(text["seqlen"], [(str(n), n) for n in SEQLENS], shown.N)
        self.head_dim = Choice(text["head_dim"], [(str(d), d) for d in HEAD_DIMS], shown.d)
        super().__init__(shown, (self.seqlen, self.head_dim))

    @property
    def setting(self) -> Shown:
        """What the controls show now."""
        return Shown(self.seqlen.value, self.head_dim.value)

    def headline(self) -> Headline:
        """Per pass the time without a mask, at the least density, and of the peers beside them."""
        text, words = self.text, labels("headline")
        found: dict[str, tuple[float | None, str]] = {}
        for one in self.panels:
            curves, of = one.curves, {"pass_": text["passes"][one.pass_]}
            for name, timed in (("no_mask", curves.dense), ("cudnn", curves.cudnn)):
                if timed is not None:
                    found[words[name].format(**of)] = (timed.ms, TIME)
            for name, masked in (("masked", curves.ours), ("flex", curves.flex)):
                if masked:
                    least = min(masked)
                    label = words[name].format(s=density_words(least), **of)
                    found[label] = (masked[least].ms, TIME)
        return found

    def draw(self, setting: Shown, stamp: float) -> None:
        """Compute and show a setting."""
        problem, run_id = setting.problem, self.recorded.run_id
        self.panels = [
            Panel(name, self.recorded.curves(problem, name), floor_ms(problem, name, self.device))
            for name in PASSES
        ]
        said = takeaway(self.panels, self.device)
        alt = self.text["figure"].format(sentence=said)
        table = goals_table(self.panels, problem, self.device, run_id)
        table += sparse_table(self.panels, setting, self.device, run_id)
        spec: dict[str, Any] = sparse_speed_spec(self.panels, run_id, self.text)
        self.show(spec, alt, said, table, stamp)


def sparse_speed(
    N: int = 8192, d: int = 128, *, device: str | None = None, session: Session | None = None
) -> SparseSpeed:
    """Recorded time against density of our fastest rung, FlexAttention and dense cuDNN.

    B = 2, H = 16, bf16, butterfly masks of 128 × 128 blocks; forward and backward apart. The rung
    is the one that the run has timed.

    Args:
        N: 8192 or 65536.
        d: 64 or 128.
        device: slug of the GPU whose run is shown; default: the session's.
        session: what `fa.session` returned; default: the current one.

    Raises:
        ValueError: a size that is not measured; TypeError: `session` is not one.
    """
    for name, value, known in (("N", N, SEQLENS), ("d", d, HEAD_DIMS)):
        if value not in known:
            offered = ", ".join(map(str, known))
            raise ValueError(f"{name} = {value!r} is not measured here: use {offered}.")
    used = in_use(session)
    sheet = find_device(default_device(used) if device is None else device)
    return SparseSpeed(Shown(N, d), sheet, RecordedSparse.on(sheet, used.run, used.root))

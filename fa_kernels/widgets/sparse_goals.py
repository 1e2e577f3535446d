"""What was asked of kernels under block masks, and what a run says: met, missed, by how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fa_kernels.device import Device
from fa_kernels.figures.recorded_sparse import (
    GOAL_DENSE,
    GOAL_FROM,
    GOAL_MS,
    GOAL_SPARSE,
    SparseCurves,
)
from fa_kernels.figures.rungs import number_of, said_of
from fa_kernels.figures.sparse_speed import Shown
from fa_kernels.measure.sparse_run import DENSITIES
from fa_kernels.problem import AttentionProblem
from fa_kernels.traffic.floor import fixed_backward_bytes
from fa_kernels.units import duration, significant, traffic
from fa_kernels.variants import VARIANTS
from fa_kernels.widgets.text import html_table, labels

#: Faster than FlexAttention from this density down, than dense cuDNN below that one.
FLEX_FROM, CUDNN_BELOW = GOAL_FROM, 0.4
#: Lists take at most this part of their call's time at N = 65536, where they were asked for.
LISTS_PART, LISTS_N = 0.05, 65536


def density_words(density: float) -> str:
    """ "1/4", "0.246"."""
    inverse = 1 / density
    exact = abs(inverse - round(inverse)) < 1e-3 and inverse > 1.5
    return f"1/{inverse:.0f}" if exact else significant(density)


def rungs_said(panels: Sequence[Shown]) -> str:
    """The rung whose times are shown: "rung 06"; of a run with two, "rung 06 and rung 05"."""
    return " and ".join(dict.fromkeys(said_of(VARIANTS[one.curves.series]) for one in panels))


def rung_numbers(panels: Sequence[Shown]) -> str:
    """The same for the head of a column: "06", "06, 05"."""
    return ", ".join(dict.fromkeys(number_of(VARIANTS[one.curves.series]) for one in panels))


def over_limit(curves: SparseCurves) -> dict[float, float]:
    """Density -> time over the most it should take."""
    goals = {density: curves.goal_ms(density) for density in curves.ours}
    return {s: curves.ours[s].ms / goal for s, goal in goals.items() if goal}


def over_flex(curves: SparseCurves) -> dict[float, float]:
    """Density -> time over FlexAttention's, where ours should be faster."""
    found = curves.against(curves.flex)
    return {s: 1 / ratio for s, ratio in found.items() if s <= FLEX_FROM}


def over_cudnn(curves: SparseCurves) -> dict[float, float]:
    """Density -> time over that of dense cuDNN, where ours should be faster."""
    if curves.cudnn is None:
        return {}
    cudnn = curves.cudnn.ms
    return {s: timed.ms / cudnn for s, timed in curves.ours.items() if s < CUDNN_BELOW}


def over_lists(curves: SparseCurves) -> dict[float, float]:
    """Density -> time of the lists, made on the GPU, over the most it should take."""
    lists = curves.lists.get("device", {})
    both = (density for density in curves.ours if density in lists)
    return {s: lists[s] / 1e3 / curves.ours[s].ms / LISTS_PART for s in both}


def verdict(ratios: Mapping[float, float], wanted: int) -> str:
    """Where ratios to a goal are above 1 it is missed, by how much.

    `wanted`: densities that the goal is about.
    """
    text = labels("sparse_speed")
    if not ratios:
        return str(text["not_recorded"])
    missed = {density: ratio for density, ratio in ratios.items() if ratio > 1}
    words = text["goal_met"].format(met=len(ratios) - len(missed), of=len(ratios))
    if missed:
        by = ", ".join(f"{density_words(s)}: {_more(ratio)}" for s, ratio in missed.items())
        words += text["goal_missed"].format(by=by)
    if lacking := wanted - len(ratios):
        words += text["goal_lacking"].format(count=lacking)
    return str(words)


def _more(ratio: float) -> str:
    return f"+{significant(100 * (ratio - 1), 2)} %"


def goals_table(
    panels: Sequence[Shown], problem: AttentionProblem, device: Device, run_id: str
) -> str:
    """A row per goal, a column per pass, as HTML; nothing where nothing was timed."""
    text = labels("sparse_speed")
    if not any(one.curves.dense for one in panels):
        return ""
    sparse = [s for s in DENSITIES if s <= FLEX_FROM]
    names = {
        "dense": f"{GOAL_DENSE:.2f}",
        "sparse": f"{GOAL_SPARSE:.2f}",
        "us": f"{1e3 * GOAL_MS:.0f}",
    }
    below = density_words(GOAL_FROM)
    goals = [
        (text["goal_limit"].format(below=below, **names), over_limit, len(DENSITIES)),
        (text["goal_flex"].format(s=density_words(FLEX_FROM)), over_flex, len(sparse)),
        (text["goal_cudnn"].format(s=CUDNN_BELOW), over_cudnn,
         sum(s < CUDNN_BELOW for s in DENSITIES)),
    ]  # fmt: skip
    if problem.seqlen_k == LISTS_N:
        said = text["goal_lists"].format(percent=f"{100 * LISTS_PART:.0f}")
        goals.append((said, over_lists, len(DENSITIES)))
    rows = [
        [words, *(verdict(over(one.curves), wanted) for one in panels)]
        for words, over, wanted in goals
    ]
    head = [text["column_goal"], *(text["passes"][one.pass_] for one in panels)]
    caption = text["goals"].format(
        rung=rungs_said(panels), problem=problem.describe(), run_id=run_id
    )
    backward = [one.curves for one in panels if one.pass_ == "bwd"]
    for curves in backward:
        caption += _why(curves, problem, device)
    return html_table("sparse-goals", caption, head, rows)


def _why(curves: SparseCurves, problem: AttentionProblem, device: Device) -> str:
    """Of what the backward takes beyond s times dense: the part of launches of a fixed length.

    s times dense holds s of them already.
    """
    missed = [density for density, ratio in over_limit(curves).items() if ratio > 1]
    if not missed:
        return ""
    least = min(missed)
    ideal, nbytes = curves.ideal_ms(least) or 0.0, fixed_backward_bytes(problem)
    fixed = (1 - least) * nbytes / device.hbm_bandwidth_gb_s / 1e6
    said: str = labels("sparse_speed")["why_backward"].format(
        s=density_words(least), more=duration(curves.ours[least].ms - ideal),
        fixed=duration(fixed), nbytes=traffic(nbytes), rate=f"{device.hbm_bandwidth_gb_s:.0f}",
    )  # fmt: skip
    return " " + said

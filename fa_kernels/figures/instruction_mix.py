"""What the instructions of each launch are for: stacked bars by class, from the compiled code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fa_kernels.cuda.compiled import CompiledLaunch
from fa_kernels.cuda.sass import CLASSES, CONVERT, LOCAL, InstructionMix
from fa_kernels.figures import theme
from fa_kernels.figures.rungs import Rung, row_heights, row_labels

#: Which instructions are counted: all, or those of the loops that multiply.
EVERYTHING, LOOPS = "everything", "loops"
PARTS = (LOOPS, EVERYTHING)
_ROW, _FRAME = 34, 140
#: Where the axis ends, in %: the words beside the bars stand inside.
_END = 132
#: Width of the bars in the narrowest figure, in px: what a class's name must fit into.
_BARS_PX = 100 / _END * 638

Row = tuple[Rung, CompiledLaunch]


def counts_of(mix: InstructionMix | None, part: str) -> Mapping[str, int]:
    """Instructions by class of one part; empty where nothing is known, or nothing multiplies."""
    if mix is None:
        return {}
    return mix.loops if part == LOOPS else mix.counts


def mix_rows(rows: Sequence[Row], part: str) -> list[Row]:
    """The launches that have instructions in this part."""
    return [row for row in rows if counts_of(row[1].mix, part)]


def mix_spec(rows: Sequence[Row], part: str, text: Mapping[str, Any]) -> dict[str, Any]:
    """A plotly spec: a bar per launch, its classes as shares, with the number of instructions."""
    shown = mix_rows(rows, part)
    heights = row_heights(shown)
    top = max(heights, default=0.0)
    layout = theme.base_layout(round(_FRAME + _ROW * (top + 1)))
    layout["margin"] = {"l": 176, "r": 14, "t": 84, "b": 54}
    layout["barmode"] = "overlay"
    layout["xaxis"] = theme.axis(
        title=theme.axis_title(text["axis_share"], "%"), range=[0, _END],
        tickvals=[0, 20, 40, 60, 80, 100],
    )  # fmt: skip
    layout["yaxis"] = theme.axis(
        range=[-0.6, top + 0.6], tickvals=heights, ticktext=row_labels(shown), showgrid=False,
    )  # fmt: skip
    layout["annotations"] = [_legend(shown, part, text)]
    data = [_bars(shown, heights, part, text), _words(shown, heights, part, text)]
    return {"data": data, "layout": layout}


def _bars(
    rows: Sequence[Row], heights: Sequence[float], part: str, text: Mapping[str, Any]
) -> dict[str, Any]:
    """All bars as one trace: plotly takes 1 ms for each."""
    bases, lengths, ys, names, hovers, words = [], [], [], [], [], []
    for (rung, launch), height in zip(rows, heights, strict=True):
        counts, at = counts_of(launch.mix, part), 0.0
        total = sum(counts.values())
        for name in CLASSES:
            if not counts.get(name):
                continue
            share = 100 * counts[name] / total
            label = text["short"][name]
            bases.append(at)
            lengths.append(share)
            ys.append(height)
            names.append(name)
            hovers.append(
                f"{rung.name}, {launch.entry}<br>{text['classes'][name]}: "
                f"{counts[name]} of {total}, {share:.0f} %"
            )
            words.append(_fitting(label, share))
            at += share
    return {
        "type": "bar", "orientation": "h", "name": "instructions", "x": lengths, "base": bases,
        "y": ys, "width": 0.72,
        "marker": {
            **theme.hatched(
                [theme.INSTRUCTION_COLOURS[name] for name in names],
                [_HATCHES.get(name, "") for name in names], theme.INK, 7, 0.12,
            ),
            "line": {"color": theme.INK, "width": 1},
        },
        "text": words, "textposition": "inside", "insidetextanchor": "middle", "textangle": 0,
        "constraintext": "none",
        "textfont": {
            "size": theme.SMALL,
            "color": [theme.ON_DARK if n in theme.DEEP else theme.ON_LIGHT for n in names],
        },
        "hovertext": hovers, "hoverinfo": "text",
    }  # fmt: skip


#: Neighbours of one hue are told apart without colour, too.
_HATCHES = {CONVERT: "/", LOCAL: "x"}


def _fitting(label: str, share: float) -> str:
    """Name and share, or the share alone, or nothing: what the bar has room for."""
    room = share / 100 * _BARS_PX - 4
    for words in (f"{label} {share:.0f} %", f"{share:.0f} %", f"{share:.0f}"):
        if 7 * len(words) <= room:
            return words
    return ""


def _words(
    rows: Sequence[Row], heights: Sequence[float], part: str, text: Mapping[str, Any]
) -> dict[str, Any]:
    """At the right of each bar: how many instructions, and what they do on average."""
    lines = []
    for _, launch in rows:
        total = sum(counts_of(launch.mix, part).values())
        rate = launch.mix.flops_per_instruction if launch.mix and part == LOOPS else None
        said = text["count" if rate is None else "count_rate"]
        lines.append(said.format(total=total, rate=f"{rate or 0:.0f}"))
    return {
        "type": "scatter", "mode": "text", "name": "words", "x": [101.0] * len(lines),
        "y": list(heights), "text": lines, "textposition": "middle right",
        "textfont": theme.font(), "hoverinfo": "skip", "cliponaxis": False,
    }  # fmt: skip


def _legend(rows: Sequence[Row], part: str, text: Mapping[str, Any]) -> dict[str, Any]:
    """The classes that are there, in two lines."""
    seen = [c for c in CLASSES if any(counts_of(row[1].mix, part).get(c) for row in rows)]
    words = [theme.swatch(theme.INSTRUCTION_COLOURS[c], text["classes"][c]) for c in seen]
    half = -(-len(words) // 2)
    lines = ["&nbsp;&nbsp;&nbsp;".join(some) for some in (words[:half], words[half:])]
    return {
        "x": 0, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "xshift": -160, "yshift": 8, "showarrow": False, "align": "left", "font": theme.font(),
        "text": f"<b>{text['titles'][part]}</b><br>{'<br>'.join(lines)}",
    }  # fmt: skip

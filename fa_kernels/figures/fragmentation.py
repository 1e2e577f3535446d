"""The memory of a KV cache under three ways to share it out, slot by slot, at one step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fa_kernels.figures import theme
from fa_kernels.paging import Extent, Occupancy

#: Slots in a row of the picture.
ROW_SLOTS = 256
#: px of a row, between panels, and above and below them all.
_ROW, _GAP, _TOP, _BOTTOM = 17, 44, 66, 58
#: Part of the width that the slots have; words stand right of them.
_SLOTS_WIDE = 0.6
#: Block tables that find room beside the pages, and page numbers of one.
_TABLES, _NUMBERS = 7, 9
#: Six of Okabe-Ito's, two more and a light shade of each, by the place of a sequence's letter:
#: those in the cache at one time are at most 15 letters apart, and so never of one colour.
SEQUENCE_COLOURS = (
    "#56B4E9", "#E69F00", "#009E73", "#F0E442", "#CC79A7", "#D55E00", "#8C9ED9", "#A6A6A6",
    "#B3DDF5", "#F4D48C", "#8CD3C0", "#F8F3AA", "#E8C3D7", "#ECB78C", "#CBD3EE", "#D7D7D7",
)  # fmt: skip


def colour_of(sequence: str) -> str:
    """The colour of a sequence: the same under every policy and at every step."""
    return SEQUENCE_COLOURS[(ord(sequence[0]) - ord("A")) % len(SEQUENCE_COLOURS)]


def stretches(extents: Iterable[Extent], filled: bool) -> list[tuple[str, int, int, int]]:
    """(sequence, row, first slot in the row, length) of what holds tokens, or of what does not."""
    found = []
    for extent in extents:
        start = extent.start if filled else extent.start + extent.filled
        end = extent.start + (extent.filled if filled else extent.length)
        while start < end:
            row, column = divmod(start, ROW_SLOTS)
            length = min(end - start, ROW_SLOTS - column)
            found.append((extent.sequence, row, column, length))
            start += length
    return found


def fragmentation_spec(shown: Sequence[Occupancy], text: Mapping[str, Any]) -> dict[str, Any]:
    """A plotly spec: a panel of rows of slots for each policy, its numbers and tables beside it."""
    rows = -(-shown[0].slots // ROW_SLOTS)
    height = _TOP + _BOTTOM + len(shown) * (rows * _ROW + _GAP) - _GAP
    layout = theme.base_layout(height)
    layout["margin"] = {"l": 14, "r": 14, "t": _TOP, "b": _BOTTOM}
    layout["barmode"] = "overlay"
    inner = height - _TOP - _BOTTOM
    data: list[dict[str, Any]] = []
    notes = [_note(0, 1, f"<b>{text['title']}</b>&nbsp;&nbsp; {text['legend']}", 46)]
    layout["shapes"] = []
    for i, one in enumerate(shown):
        top = 1 - i * (rows * _ROW + _GAP) / inner
        bottom = top - rows * _ROW / inner
        axes = ("x", "y") if not i else (f"x{i + 1}", f"y{i + 1}")
        layout[axes[0].replace("x", "xaxis")] = theme.axis(
            domain=[0, _SLOTS_WIDE], range=[0, ROW_SLOTS], showgrid=False, showticklabels=False,
            anchor=axes[1],
        )  # fmt: skip
        layout[axes[1].replace("y", "yaxis")] = theme.axis(
            domain=[max(0.0, bottom), top], range=[rows - 0.5, -0.5], showgrid=False,
            showticklabels=False, anchor=axes[0],
        )  # fmt: skip
        data += [_bars(one, axes, False), _bars(one, axes, True), _letters(one, axes)]
        layout["shapes"].append(_frame(axes, rows))
        notes.append(_note(0, top, text["panels"][one.policy], 2))
        notes.append(_beside(one, top, text))
    layout["annotations"] = notes
    return {"data": data, "layout": layout}


def _note(x: float, y: float, words: str, up: int) -> dict[str, Any]:
    return {
        "x": x, "y": y, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "yshift": up, "showarrow": False, "align": "left", "font": theme.font(), "text": words,
    }  # fmt: skip


def _frame(axes: tuple[str, str], rows: int) -> dict[str, Any]:
    return {
        "type": "rect", "xref": axes[0], "yref": axes[1], "x0": 0, "x1": ROW_SLOTS, "y0": -0.5,
        "y1": rows - 0.5, "line": {"color": theme.MUTED, "width": 1},
    }  # fmt: skip


def _bars(one: Occupancy, axes: tuple[str, str], filled: bool) -> dict[str, Any]:
    """Stretches that hold tokens, in the sequence's colour; those that do not, hatched in it."""
    found, kind = stretches(one.extents, filled), "tokens" if filled else "empty"
    colours = [colour_of(sequence) for sequence, *_ in found]
    marker: dict[str, Any] = {"color": colours, "line": {"color": theme.INK, "width": 1}}
    if not filled:
        marker |= {
            "color": theme.PAPER,
            "pattern": {"shape": "/", "fgcolor": colours, "size": 5, "solidity": 0.35},
        }
    return {
        "type": "bar", "orientation": "h", "name": f"{one.policy} {kind}",
        "xaxis": axes[0], "yaxis": axes[1], "width": 0.86,
        "base": [column for _, _, column, _ in found], "x": [length for *_, length in found],
        "y": [row for _, row, _, _ in found], "marker": marker, "hoverinfo": "text",
        "hovertext": [f"{sequence}: {length}" for sequence, _, _, length in found],
    }  # fmt: skip


def _letters(one: Occupancy, axes: tuple[str, str]) -> dict[str, Any]:
    """The sequence's letter on every stretch of tokens that has room for it."""
    found = [part for part in stretches(one.extents, True) if part[3] >= 10]
    return {
        "type": "scatter", "mode": "text", "name": f"{one.policy} letters", "xaxis": axes[0],
        "yaxis": axes[1], "x": [column + length / 2 for _, _, column, length in found],
        "y": [row for _, row, _, _ in found], "text": [sequence for sequence, *_ in found],
        "textfont": {"size": theme.SMALL, "color": theme.ON_LIGHT}, "hoverinfo": "skip",
    }  # fmt: skip


def _beside(one: Occupancy, top: float, text: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers of a panel, and the block tables of pages, right of it."""
    inside = len({extent.sequence for extent in one.extents})
    lines = [
        text["used"].format(percent=f"{100 * one.used:.0f}", tokens=one.tokens, taken=one.taken),
        text["inside"].format(count=inside, waiting=", ".join(one.waiting) or text["nobody"]),
    ]
    if one.external_waste:
        lines.append(
            text["stuck"].format(name=one.waiting[0], asked=one.asked, free=one.free,
                                 largest=one.largest_free)
        )  # fmt: skip
    if one.sent_back:
        lines.append(text["back"].format(names=", ".join(one.sent_back)))
    if one.tables:
        lines += [text["tables"], *_tables(one.tables, text)]
    return {
        "x": _SLOTS_WIDE, "y": top, "xref": "paper", "yref": "paper", "xanchor": "left",
        "yanchor": "top", "xshift": 14, "showarrow": False, "align": "left",
        "font": theme.font(theme.SMALL), "text": "<br>".join(lines),
    }  # fmt: skip


def _tables(tables: Mapping[str, Sequence[int]], text: Mapping[str, Any]) -> list[str]:
    lines = []
    for sequence, table in list(tables.items())[:_TABLES]:
        numbers = " ".join(map(str, table[:_NUMBERS]))
        more = " …" if len(table) > _NUMBERS else ""
        lines.append(
            f'<span style="color:{colour_of(sequence)}">■</span> {sequence}: {numbers}{more}'
        )
    left = len(tables) - _TABLES
    return [*lines, text["more"].format(count=left)] if left > 0 else lines

"""Panel (a): which tiles are on chip at one moment, and what they take of the SRAM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fa_kernels.figures import theme
from fa_kernels.figures.panel import TILES, Panel, Words, if_it_fits
from fa_kernels.figures.point import SHOWN, Point
from fa_kernels.units import KIB, capacity, significant
from fa_kernels.variants import VARIANTS

#: The walk's own square, in paper fractions: strips Q, K, V, O around the grid of S.
_X0, _X1 = TILES.x[0] + 0.004, 0.184
_Y0, _Y1 = TILES.y
_BARS_X = (0.212, TILES.x[1])
_STRIPS = {
    "q": (0.0, 0.11, 0.16, 0.70),
    "s": (0.19, 0.81, 0.16, 0.70),
    "out": (0.89, 1.0, 0.16, 0.70),
    "k": (0.19, 0.81, 0.76, 0.84),
    "v": (0.19, 0.81, 0.90, 0.98),
}
#: Finer grids than this are a grey area: only the current tile is drawn.
_MAX_LINES = 48
#: The kept blocks are drawn on at most this many cells a side.
_MAX_CELLS = 64
#: A tile is drawn at least this large a part of its strip, or it could not be seen.
_LEAST = 0.03


def _paper(u: float, v: float) -> tuple[float, float]:
    return _X0 + u * (_X1 - _X0), _Y0 + v * (_Y1 - _Y0)


def _box(
    strip: str, along: tuple[float, float], down: tuple[float, float]
) -> tuple[float, float, float, float]:
    """Part of a strip in paper coordinates; `along` and `down` are fractions from the top left."""
    u0, u1, v0, v1 = _STRIPS[strip]
    x0, y0 = _paper(u0 + along[0] * (u1 - u0), v1 - down[0] * (v1 - v0))
    x1, y1 = _paper(u0 + along[1] * (u1 - u0), v1 - down[1] * (v1 - v0))
    return x0, x1, y0, y1


def _rectangles(
    boxes: Sequence[tuple[float, float, float, float]], **style: Any
) -> list[dict[str, Any]]:
    """Boxes of one look as one shape: each shape costs a redraw half a millisecond."""
    if not boxes:
        return []
    corners = ((f"{x0:.5f}", f"{x1:.5f}", f"{y0:.5f}", f"{y1:.5f}") for x0, x1, y0, y1 in boxes)
    path = "".join(f"M{x0},{y0}L{x1},{y0}L{x1},{y1}L{x0},{y1}Z" for x0, x1, y0, y1 in corners)
    line = {"color": theme.INK, "width": 1}
    ref = {"xref": "paper", "yref": "paper"}
    return [{"type": "path", "path": path, **ref, "line": line, "layer": "above", **style}]


def _part(index: int, block: int, length: int) -> tuple[float, float]:
    """Where tile `index` lies in its strip, as fractions of it."""
    start = min(index * block / length, 1 - _LEAST)
    return start, max(min((index + 1) * block / length, 1.0), start + _LEAST)


def current_tile(point: Point, kept: np.ndarray | None) -> tuple[int, int]:
    """The tile that is drawn: a third down, half-way along, so both loops have a past."""
    rows, cols = point.passes
    i = rows // 3
    if point.blocks is None:
        return i, cols // 2
    if kept is None:  # every pattern keeps the diagonal
        last_row = min((i + 1) * point.tiling.block_m, point.seqlen) - 1
        return i, last_row // point.tiling.block_n
    visited = np.nonzero(kept[i])[0]
    return i, int(visited[len(visited) // 2])


def kept_tiles(point: Point) -> np.ndarray | None:
    """Which tiles are kept, bool (q_tiles, k_tiles); None where dense or too many to draw."""
    blocks = point.blocks
    return blocks.mask().keep[0, 0] if blocks is not None and blocks.quick else None


def tile_panel(point: Point) -> Panel:
    """The walk over tiles and the SRAM bar of the shown variant."""
    panel = Panel()
    kept = kept_tiles(point)
    i, j = current_tile(point, kept)
    rows, cols = point.passes
    where = f"Q tile {i + 1} of {rows}, K/V tile {j + 1} of {cols}"
    caption = f"model · {point.sparse_words() or where}"
    panel.head(TILES, f"{point.label(VARIANTS[SHOWN])}: the tiles in SRAM", caption)
    _draw_walk(panel, point, kept, i, j)
    _draw_bars(panel, point)
    return panel


def _draw_walk(panel: Panel, point: Point, kept: np.ndarray | None, i: int, j: int) -> None:
    n, tiling = point.seqlen, point.tiling
    down, along, whole = _part(i, tiling.block_m, n), _part(j, tiling.block_n, n), (0.0, 1.0)
    empty = {"fillcolor": "rgba(0,0,0,0)"}
    if point.blocks is not None:
        _draw_kept(panel, point, kept)
    panel.shapes += _rectangles([_box(strip, whole, whole) for strip in _STRIPS], **empty)
    if grid := _grid_path(point):
        line = {"color": theme.GRID, "width": 1}
        panel.shapes.append(
            {"type": "path", "path": grid, "xref": "paper", "yref": "paper", "line": line}
        )
    done = {"fillcolor": theme.TENSOR_COLOURS["s"], "opacity": 0.3}
    walked = []
    for start, stop in _done(point, kept, i, j):
        first, last = _part(start, tiling.block_n, n)[0], _part(stop - 1, tiling.block_n, n)[1]
        walked.append(_box("s", (first, min(last, 1.0)), down))
    panel.shapes += _rectangles(walked, **done)
    places = {
        "q": (whole, down), "out": (whole, down), "s": (along, down),
        "k": (along, whole), "v": (along, whole),
    }  # fmt: skip
    for tensor, (x, y) in places.items():
        colour = theme.TENSOR_COLOURS[tensor]
        panel.shapes += _rectangles([_box(tensor, x, y)], fillcolor=colour)
    names = {"Q": (0.055, 0.07), "O": (0.945, 0.07), "Kᵀ": (0.1, 0.80), "V": (0.1, 0.94)}
    names["S, P stay on chip"] = (0.5, 0.07)
    for text, place in names.items():
        panel.words.append(Words(*_paper(*place), text, at="middle center"))


def _done(point: Point, kept: np.ndarray | None, i: int, j: int) -> list[tuple[int, int]]:
    """Runs of tiles, [start, stop), that row `i` has visited before tile `j`."""
    if point.blocks is None:
        return [(0, j)] if j else []
    if kept is None:
        return []
    edges = np.flatnonzero(np.diff(np.concatenate([[False], kept[i, :j], [False]])))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)][-_MAX_LINES:]


def _draw_kept(panel: Panel, point: Point, kept: np.ndarray | None) -> None:
    """The kept blocks of the attention matrix, many of a long sequence's to a cell."""
    if kept is None:
        rows, cols = point.passes
        text = f"{rows} × {cols} blocks:<br>too fine to draw"
        panel.words.append(Words(*_paper(0.5, 0.6), text, at="middle center", colour=theme.MUTED))
        return
    share = kept.astype(float)
    for axis in (0, 1):
        step = -(-share.shape[axis] // _MAX_CELLS)
        starts = np.arange(0, share.shape[axis], step)
        sizes = np.diff([*starts, share.shape[axis]])
        share = np.add.reduceat(share, starts, axis=axis)
        share /= sizes[:, None] if axis == 0 else sizes
    cells = [[round(x, 2) if x else None for x in row] for row in share.tolist()]
    rows, cols = share.shape
    (x0, x1, y0, y1), n = _box("s", (0.0, 1.0), (0.0, 1.0)), point.seqlen
    # The last tiles reach past the sequence: cut the axes there, as the strips are cut.
    part = [n / (tiles * block) for tiles, block in zip(
        point.passes, (point.tiling.block_m, point.tiling.block_n), strict=True
    )]  # fmt: skip
    panel.axes["xaxis5"] = theme.axis(
        range=[-0.5, cols * part[1] - 0.5], domain=[x0, x1], anchor="y5", visible=False
    )
    panel.axes["yaxis5"] = theme.axis(
        range=[rows * part[0] - 0.5, -0.5], domain=[y1, y0], anchor="x5", visible=False
    )
    colour = theme.TENSOR_COLOURS["mask"]
    panel.data.append(
        {
            "type": "heatmap",
            "z": cells,
            "zmin": 0,
            "zmax": 1,
            "xaxis": "x5",
            "yaxis": "y5",
            "colorscale": [[0, theme.PAPER], [1, colour]],
            "showscale": False,
            "hoverongaps": False,
            "hoverinfo": "skip",
            "name": "kept blocks",
        }
    )


def _grid_path(point: Point) -> str:
    """The lines between the tiles of S as one path; empty where they would be too fine."""
    rows, cols = point.passes
    lines = []
    if cols <= _MAX_LINES:
        for k in range(1, cols):
            f = k * point.tiling.block_n / point.seqlen
            x, _, y0, y1 = _box("s", (f, f), (0.0, 1.0))
            lines.append(f"M{x:.4f},{y0:.4f}L{x:.4f},{y1:.4f}")
    if rows <= _MAX_LINES:
        for k in range(1, rows):
            f = k * point.tiling.block_m / point.seqlen
            x0, x1, y, _ = _box("s", (0.0, 1.0), (f, f))
            lines.append(f"M{x0:.4f},{y:.4f}L{x1:.4f},{y:.4f}")
    return "".join(lines)


def _draw_bars(panel: Panel, point: Point) -> None:
    layout = point.plan(VARIANTS[SHOWN]).layout
    parts = [*layout.parts, ("O", layout.accumulator_bytes)]
    tensors = [*(theme.PART_TENSORS[name] for name, _ in layout.parts), "out"]
    starts, at = [], 0
    for _, nbytes in layout.parts:
        starts.append(at / KIB)
        at += nbytes
    limit, budget = point.device.smem_per_block_bytes, point.sram_bytes
    high = max(layout.smem_bytes, limit, budget) / KIB * 1.06
    texts = [
        if_it_fits(f"{name} {significant(nbytes / KIB)}", nbytes / KIB / high, _BARS_X)
        for name, nbytes in layout.parts
    ]
    panel.data.append(
        {
            "type": "bar",
            "orientation": "h",
            "x": [nbytes / KIB for _, nbytes in parts],
            "base": [*starts, 0.0],
            "y": [1.0] * len(layout.parts) + [0.0],
            "width": 0.5,
            "marker": {
                "color": [theme.TENSOR_COLOURS[tensor] for tensor in tensors],
                "line": {"color": theme.INK, "width": 1},
                "pattern": {"shape": [""] * len(layout.parts) + ["/"], "fgcolor": theme.INK},
            },
            "text": [*texts, ""],
            "textposition": "inside",
            "constraintext": "none",
            "insidetextanchor": "middle",
            "textangle": 0,
            "textfont": {"size": theme.SMALL},
            "hovertext": [f"{name}: {capacity(nbytes)}" for name, nbytes in parts],
            "hoverinfo": "text",
            "name": "on chip",
        }
    )
    panel.axes |= _bar_axes(high)
    smem, registers = capacity(layout.smem_bytes), capacity(layout.accumulator_bytes)
    panel.words += [
        Words(0, 1.42, f"shared memory: {smem}", ("x", "y")),
        Words(0, 0.42, f"O (registers): {registers}", ("x", "y")),
    ]
    # M's line leaves out the words above the bar; it concerns shared memory, not registers.
    _mark(panel, budget / KIB, f"M = {capacity(budget)}", 1.84, ((0.66, 1.28), (1.6, 2.02)), high)
    limit_text = f"limit per block {capacity(limit)}"
    _mark(panel, limit / KIB, limit_text, -0.52, ((-0.72, 1.28),), high)


def _bar_axes(high: float) -> dict[str, dict[str, Any]]:
    step = 1.0
    while high / step > 5:
        step *= 2
    x = theme.axis(
        title=theme.axis_title("one block's SRAM", "KiB"), range=[0, high], dtick=step,
        domain=list(_BARS_X), anchor="y",
    )  # fmt: skip
    y = theme.axis(range=[-0.72, 2.02], domain=list(TILES.y), anchor="x")
    return {"xaxis": x, "yaxis": y | {"showticklabels": False, "showgrid": False}}


def _mark(
    panel: Panel,
    at: float,
    text: str,
    y: float,
    pieces: Sequence[tuple[float, float]],
    high: float,
) -> None:
    """A line at `at` KiB in `pieces`, so that it crosses no words, and its name at height `y`.

    The name stands at the side that has room: M's above the bars, the limit's below.
    """
    panel.shapes.append(
        {
            "type": "path",
            "path": "".join(f"M{at:.4f},{y0}L{at:.4f},{y1}" for y0, y1 in pieces),
            "xref": "x",
            "yref": "y",
            "line": {"color": theme.INK, "width": 2, "dash": "dash" if y > 0 else "solid"},
        }
    )
    if at > high / 2:
        panel.words.append(Words(at, y, f"{text}&nbsp;&nbsp;", ("x", "y"), "middle left"))
    else:
        panel.words.append(Words(at, y, f"&nbsp;&nbsp;{text}", ("x", "y")))

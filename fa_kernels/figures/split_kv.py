"""One query row whose keys are cut into parts: the softmax of each part, and their merge by lse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fa_kernels.decode_problem import TILE_KEYS, split_tiles
from fa_kernels.figures import theme
from fa_kernels.reference.decode import merge
from fa_kernels.reference.online_softmax import OnlineSoftmax

HEAD_DIM = 4
_HEIGHT = 340
_SCORES, _WEIGHTS = (0.0, 0.66), (0.76, 1.0)
#: Neighbouring parts differ in colour; hatches and numbers tell apart what repeats.
_COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#B3B3B3")


@dataclass(frozen=True, eq=False)
class Part:
    """The keys first <= j < stop of a row: m, l (of exp(s - m)), lse, and out (d,) of them alone.

    A part without keys has m = lse = -inf, l = 0 and an out of zeros.
    """

    first: int
    stop: int
    m: float
    l: float  # noqa: E741 - the paper's name
    lse: float
    out: np.ndarray


@dataclass(frozen=True, eq=False)
class SplitRow:
    """Scores (keys,) and values (keys, d) of a row, its parts, and what the merge makes of them.

    `weights` are exp(lse_s - lse), which add up to 1.
    """

    scores: np.ndarray
    parts: tuple[Part, ...]
    weights: np.ndarray
    out: np.ndarray
    lse: float

    @classmethod
    def of(cls, scores: np.ndarray, values: np.ndarray, num_splits: int) -> SplitRow:
        """Cut as the kernel cuts them, in whole tiles of 16 keys; float64."""
        tiles = split_tiles(len(scores), 1, None, num_splits)
        parts = []
        for first, stop in tiles:
            begin, end = min(first * TILE_KEYS, len(scores)), min(stop * TILE_KEYS, len(scores))
            state = OnlineSoftmax.empty((), 1, values.shape[1], scores.dtype)
            if begin < end:
                state.update(scores[None, begin:end], values[begin:end])
            m, total, of_part = (float(x[0]) for x in (state.m_i, state.l_i, state.lse()))
            parts.append(Part(begin, max(begin, end), m, total, of_part, state.output()[0]))
        partial_lse = np.array([[part.lse] for part in parts])
        out, lse = merge(np.array([[part.out] for part in parts]), partial_lse)
        weights = np.exp(partial_lse[:, 0] - lse[0])
        return cls(scores, tuple(parts), weights, out[0], float(lse[0]))


def random_row(keys: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores (keys,) and values (keys, HEAD_DIM) of a row, float64."""
    rng = np.random.default_rng(seed)
    return 2.0 * rng.standard_normal(keys), rng.uniform(-1.0, 1.0, (keys, HEAD_DIM))


def split_spec(row: SplitRow, text: Mapping[str, Any]) -> dict[str, Any]:
    """A plotly spec: the scores in the colours of their parts with each part's maximum; weights."""
    layout = theme.base_layout(_HEIGHT)
    layout["margin"] = {"l": 58, "r": 14, "t": 66, "b": 50}
    count = len(row.parts)
    low = float(row.scores.min())
    layout["xaxis"] = theme.axis(
        domain=list(_SCORES), title=theme.axis_title(text["axis_key"]),
        range=[-0.7, len(row.scores) - 0.3], showgrid=False,
    )  # fmt: skip
    layout["yaxis"] = theme.axis(
        title=theme.axis_title(text["axis_score"]), range=[low - 0.3, float(row.scores.max()) + 1]
    )
    layout["xaxis2"] = theme.axis(
        domain=list(_WEIGHTS), title=theme.axis_title(text["axis_part"]), anchor="y2",
        range=[0.4, count + 0.6], dtick=max(1, count // 6), showgrid=False,
    )  # fmt: skip
    layout["yaxis2"] = theme.axis(
        title=theme.axis_title(text["axis_weight"]), range=[0, 1.05], anchor="x2"
    )
    layout["shapes"] = [_most(part) for part in row.parts if part.first < part.stop]
    layout["annotations"] = [
        _note(0, f"<b>{text['title']}</b>&nbsp;&nbsp; {text['legend']}", 42, -44),
        _note(0, text["panel_scores"], 8, 0), _note(_WEIGHTS[0], text["panel_weights"], 8, 0),
    ]  # fmt: skip
    return {"data": [_scores(row, low), _weights(row)], "layout": layout}


def _note(x: float, words: str, up: int, right: int) -> dict[str, Any]:
    return {
        "x": x, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
        "xshift": right, "yshift": up, "showarrow": False, "font": theme.font(), "text": words,
    }  # fmt: skip


def _most(part: Part) -> dict[str, Any]:
    """The part's own maximum, over its keys."""
    return {
        "type": "line", "xref": "x", "yref": "y", "x0": part.first - 0.5, "x1": part.stop - 0.5,
        "y0": part.m, "y1": part.m, "line": {"color": theme.INK, "width": 2},
    }  # fmt: skip


def _colours(count: int) -> list[str]:
    return [_COLOURS[i % len(_COLOURS)] for i in range(count)]


def _scores(row: SplitRow, low: float) -> dict[str, Any]:
    colours = _colours(len(row.parts))
    owner = [i for i, part in enumerate(row.parts) for _ in range(part.first, part.stop)]
    root = low - 0.3
    return {
        "type": "bar", "name": "scores", "x": list(range(len(row.scores))), "base": root,
        "y": [float(s) - root for s in row.scores], "width": 0.9, "hoverinfo": "skip",
        "marker": {
            **theme.hatched(
                [colours[i] for i in owner], ["/" if i % 2 else "" for i in owner],
                theme.PAPER, 5, 0.25,
            ),
            "line": {"width": 0},
        },
    }  # fmt: skip


def _weights(row: SplitRow) -> dict[str, Any]:
    count = len(row.parts)
    return {
        "type": "bar", "name": "weights", "x": list(range(1, count + 1)), "xaxis": "x2",
        "yaxis": "y2", "y": [float(weight) for weight in row.weights], "hoverinfo": "skip",
        "marker": {
            **theme.hatched(
                _colours(count), ["/" if i % 2 else "" for i in range(count)],
                theme.PAPER, 5, 0.25,
            ),
            "line": {"color": theme.INK, "width": 1},
        },
    }  # fmt: skip

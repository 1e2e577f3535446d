"""Where a softmax without the maximum fails and by how much: computed here, at call time."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Sequence

import ipywidgets
import numpy as np

from fa_kernels.figures.softmax_range import (
    ONLINE,
    SAFE,
    UNSAFE,
    SoftmaxRange,
    softmax_range_spec,
)
from fa_kernels.reference.online_softmax import OnlineSoftmax
from fa_kernels.widgets.live_figure import LiveFigure
from fa_kernels.widgets.text import html_table, labels, scientific, takeaway_html
from fa_kernels.widgets.whole_row import softmax_output

KEYS, HEAD_DIM, BLOCK_N = 64, 4, 16
#: Largest scores that are tried, and how many of them below and above 0.
_FAR, _TRIED = 20000.0, 30

Way = Callable[[np.ndarray, np.ndarray], np.ndarray]


def unsafe_softmax(s: np.ndarray, v: np.ndarray) -> np.ndarray:
    """exp(s) / sum(exp(s)) @ v as written: (keys,), (keys, d) -> (d,)."""
    e = np.exp(s)
    return (e @ v) / e.sum()


def online_softmax(s: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The same in blocks of `BLOCK_N` keys, by `OnlineSoftmax` with its state in s's dtype."""
    state = OnlineSoftmax.empty((), 1, v.shape[-1], s.dtype)
    for start in range(0, len(s), BLOCK_N):
        state.update(s[None, start : start + BLOCK_N], v[start : start + BLOCK_N])
    return state.output()[0]


WAYS: dict[str, Way] = {UNSAFE: unsafe_softmax, SAFE: softmax_output, ONLINE: online_softmax}


def dtypes() -> dict[str, np.dtype]:
    """Short name -> dtype; bf16 only where ml_dtypes is installed."""
    found = {"fp16": np.dtype(np.float16)}
    if importlib.util.find_spec("ml_dtypes"):
        found["bf16"] = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    return found | {"fp32": np.dtype(np.float32), "fp64": np.dtype(np.float64)}


def row_with_largest(score: float, seed: int = 0) -> np.ndarray:
    """A row of float64 scores whose largest is `score`; the others lie up to |score| + 2 below."""
    below = np.random.default_rng(seed).random(KEYS)
    below[0] = 0.0
    return score - below * (abs(score) + 2.0)


def measure(dtype: np.dtype, name: str, seed: int = 0) -> SoftmaxRange:
    """Where `unsafe_softmax` gives no number in this dtype, and the errors of all ways."""
    values = np.random.default_rng(seed + 1).standard_normal((KEYS, HEAD_DIM)).astype(dtype)

    def output(way: str, score: float) -> tuple[np.ndarray, np.ndarray]:
        s = row_with_largest(score, seed).astype(dtype)
        truth = softmax_output(s.astype(np.float64), values.astype(np.float64))
        with np.errstate(all="ignore"):  # the failures are the subject
            return WAYS[way](s, values).astype(np.float64), truth

    def fails(score: float) -> bool:
        return not bool(np.all(np.isfinite(output(UNSAFE, score)[0])))

    high, low = _first(fails, 1.0), _first(fails, -1.0)
    tried = np.concatenate([-_magnitudes(), [0.0], _magnitudes()])
    errors = {}
    for way in WAYS:
        scores = [x for x in tried if way != UNSAFE or low < x < high]
        pairs = [output(way, float(score)) for score in scores]
        errors[way] = max(float(np.abs(got - truth).max()) for got, truth in pairs)
    return SoftmaxRange(name, low, high, errors)


def _magnitudes() -> np.ndarray:
    return np.geomspace(0.5, _FAR, _TRIED)


def _first(fails: Callable[[float], bool], sign: float) -> float:
    """The score nearest 0 on this side at which `fails`, to four digits, by bisection."""
    inside, outside = 0.0, _FAR
    while outside - inside > 1e-4 * outside:
        middle = (inside + outside) / 2
        inside, outside = (inside, middle) if fails(sign * middle) else (middle, outside)
    return sign * outside


def failures_table(ranges: Sequence[SoftmaxRange]) -> str:
    """The numbers behind the figure, as HTML."""
    text = labels("softmax")
    names = ("dtype", "column_zero", "column_overflow")
    ways = ("column_unsafe", "column_safe", "column_online")
    head = [text[name] for name in (*names, *ways)]
    rows = [
        [
            r.dtype,
            f"{r.zero_at:.4g}",
            f"{r.overflow_at:.4g}",
            *(scientific(r.errors[w]) for w in WAYS),
        ]
        for r in ranges
    ]
    caption = text["caption"].format(keys=KEYS, block=BLOCK_N)
    return html_table("softmax-failures", caption, head, rows, css="falab-table falab-dense")


def sentence(ranges: Sequence[SoftmaxRange]) -> str:
    """What the figure says, for its alternative text and the line above it."""
    text = labels("softmax")
    parts = [
        text["range"].format(dtype=r.dtype, low=f"{r.zero_at:.3g}", high=f"{r.overflow_at:.3g}")
        for r in ranges
    ]
    words = text["sentence"].format(ranges="; ".join(parts), costs=_costs(ranges))
    return str(words).replace("-", "−")


def _costs(ranges: Sequence[SoftmaxRange]) -> str:
    """The error of the online softmax beside that of the whole row, in words, dtype by dtype."""
    text = labels("softmax")
    found: dict[str, list[str]] = {}
    for r in ranges:
        online, whole = r.errors[ONLINE], r.errors[SAFE]
        if online <= whole:
            said = text["cost_none"]
        elif whole > 0:
            said = text["cost_times"].replace(
                "{times}", f"{math.ceil(100 * online / whole) / 100:g}"
            )
        else:  # the whole row in float64 is the truth itself: its error is 0 by definition
            bits = math.ceil(online / last_bit(dtypes()[r.dtype]))
            said = text["cost_bit" if bits == 1 else "cost_bits"].replace("{bits}", str(bits))
        found.setdefault(said, []).append(r.dtype)
    return ", and ".join(said.format(dtypes=_listed(names)) for said, names in found.items())


def last_bit(dtype: np.dtype) -> float:
    """The distance from 1 to the next number of a dtype; NumPy's finfo does not know bf16."""
    bit = 1.0
    while float(np.array(1 + bit / 2).astype(dtype)) > 1:
        bit /= 2
    return bit


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def softmax_failures() -> ipywidgets.VBox:
    """Softmax without the maximum, with it, and online, in every dtype there is: range and error.

    A row of 64 scores, in NumPy, every operation in the dtype; errors are absolute errors of the
    output against float64.
    """
    text = labels("softmax")
    ranges = [measure(dtype, name) for name, dtype in dtypes().items()]
    figure = LiveFigure("softmax_failures", setting={"scores": KEYS})
    figure.show(softmax_range_spec(ranges, text["figure"]), sentence(ranges))
    notes = "" if "bf16" in dtypes() else f'<div class="falab-note">{text["no_bf16"]}</div>'
    said = takeaway_html("failures", sentence(ranges))
    return ipywidgets.VBox(
        [ipywidgets.HTML(said), figure, ipywidgets.HTML(failures_table(ranges) + notes)]
    )

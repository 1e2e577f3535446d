"""How far O drifts if it is rounded to 16 bits at every pass: executed here, recorded on GPUs."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from html import escape

import ipywidgets
import numpy as np

from fa_kernels.figures.o_drift import CARRIED, NARROW, WIDE, Drift, o_drift_spec
from fa_kernels.figures.recorded_numbers import RecordedNumbers
from fa_kernels.measure.check import EPS
from fa_kernels.problem import DTYPE_FROM_SHORT, AttentionProblem, checked_int
from fa_kernels.session import Session
from fa_kernels.tiling import MAX_BLOCK, Tiling
from fa_kernels.variants import VARIANTS
from fa_kernels.widgets.explorer_point import recorded_on
from fa_kernels.widgets.live_figure import LiveFigure
from fa_kernels.widgets.seed import checked_seed
from fa_kernels.widgets.setting_view import LEAST_WIDTH
from fa_kernels.widgets.text import html_table, labels, takeaway_html

ROWS, HEAD_DIM, MAX_KEYS = 32, 64, 16384


def dtypes() -> dict[str, np.dtype]:
    """Short name -> 16-bit dtype; bf16 only where ml_dtypes is installed."""
    found = {"fp16": np.dtype(np.float16)}
    if importlib.util.find_spec("ml_dtypes"):
        found["bf16"] = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    return found


def drift_in(
    short: str, dtype: np.dtype, keys: int, numbers: RecordedNumbers, seed: int = 0
) -> Drift:
    """Both variants on the same rows and keys, cut into more and more passes (`tile_lengths`)."""
    name = DTYPE_FROM_SHORT[short]
    problem = AttentionProblem(1, 1, ROWS, keys, HEAD_DIM, name)
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((1, 1, n, HEAD_DIM)).astype(dtype) for n in (ROWS, keys, keys))
    truth = attention_in_float64(q, k, v, problem.scale)
    errors: dict[str, list[float]] = {variant: [] for variant in CARRIED}
    passes, bound = [], []
    largest_v = float(np.abs(v.astype(np.float64)).max())
    for block_n in tile_lengths(keys):
        tiling = Tiling(ROWS, block_n)
        for variant, line in errors.items():
            out = VARIANTS[variant].reference(q, k, v, problem, tiling)[0]
            line.append(float(np.abs(out.astype(np.float64) - truth).max()))
        roundings = VARIANTS[NARROW].roundings(problem, tiling)
        passes.append(roundings)
        bound.append(roundings * EPS[name] / 2 * largest_v)
    recorded = {variant: recorded_errors(variant, name, keys, numbers) for variant in CARRIED}
    return Drift(short, passes, errors, bound, recorded)


def tile_lengths(keys: int) -> list[int]:
    """Lengths of the tiles of K and V that cut `keys` into 1, 2, 4 ... tiles of at least 8 keys.

    A tile has at most `MAX_BLOCK` keys, so that longer sequences start at more tiles; where a
    length does not divide `keys`, there may be fewer tiles than asked for.
    """
    counts = [2**e for e in range(12) if 2**e * 8 <= keys]
    return [n for count in counts if (n := -(-keys // count)) <= MAX_BLOCK]


def attention_in_float64(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> np.ndarray:
    """The formula: (1, 1, rows, d), (1, 1, keys, d) twice -> (1, 1, rows, d) float64."""
    wide = [x.astype(np.float64) for x in (q, k, v)]
    s = scale * (wide[0] @ np.swapaxes(wide[1], -1, -2))
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return (p @ wide[2]) / p.sum(axis=-1, keepdims=True)


def recorded_errors(
    variant: str, dtype: str, keys: int, numbers: RecordedNumbers
) -> list[tuple[float, float]]:
    """(passes, largest error) of the variant's timings at this N and d, sorted by passes.

    At another N the error of one and the same algorithm is another: O shrinks as keys are averaged.
    """
    found = []
    for number in numbers.rows("latency_ms", variant):
        row = number.row
        same = (row.dtype, row.seqlen_k, row.head_dim) == (dtype, keys, HEAD_DIM)
        if same and row.block_n and row.max_abs_err:
            found.append((float(-(-row.seqlen_k // row.block_n)), row.max_abs_err))
    return sorted(found)


def takeaway(drifts: Sequence[Drift], keys: int) -> str:
    """What rounding O at every pass costs, in each dtype."""
    text = labels("o_drift")
    parts = [
        text["said_one"].format(
            dtype=d.dtype, growth=f"{d.growth:.0f}", wide=_short(d.errors[WIDE][-1]),
            narrow=_short(d.errors[NARROW][-1]),
        )
        for d in drifts
    ]  # fmt: skip
    return str(text["said"]).format(
        parts=" and ".join(parts), keys=keys, passes=drifts[0].passes[-1]
    )


def _short(error: float) -> str:
    digits, _, exponent = f"{error:.1e}".partition("e")
    return f"{digits} · 10{str(int(exponent)).translate(_RAISED)}"


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def drift_table(drifts: Sequence[Drift], keys: int, numbers: RecordedNumbers) -> str:
    """The errors behind the figure, one row per number of passes, as HTML."""
    text = labels("o_drift")
    head = [text["axis_passes"]]
    for drift in drifts:
        carried = [text["carried"][name].format(dtype=drift.dtype) for name in CARRIED]
        head += [f"{drift.dtype}: {words}" for words in (*carried, text["bound"])]
    body = []
    for i, count in enumerate(drifts[0].passes):
        row = [str(count)]
        for d in drifts:
            row += [f"{x:.2e}" for x in (*(d.errors[n][i] for n in CARRIED), d.bound[i])]
        body.append(row)
    measured = sum(len(line) for drift in drifts for line in drift.recorded.values())
    runs = sorted({number.run_id for number in numbers.rows("latency_ms", *CARRIED)})
    source = text["recorded" if measured else "not_recorded"]
    source = source.format(count=measured, runs=", ".join(runs))
    caption = text["caption"].format(rows=ROWS, keys=keys, head_dim=HEAD_DIM, source=source)
    return html_table("o-drift", caption, head, body, "falab-table falab-dense")


def o_drift(
    keys: int = 4096,
    *,
    seed: int = 0,
    device: str | None = None,
    session: Session | None = None,
) -> ipywidgets.VBox:
    """Error of O over the number of passes, O carried in fp32 and rounded to 16 bits at each.

    Executed in NumPy at call time: one head, 32 rows, d = 64, random normal inputs, in fp16 and,
    where ml_dtypes is installed, bf16. Open markers are errors of GPU calls with as many keys.

    Args:
        keys: the sequence length of K and V, 8 to 16384.
        seed: of the inputs, 0 to 2^32 - 1.
        device, session: as `traffic_ways`.

    Raises:
        ValueError: a bad value; value, limit and remedy.
        TypeError: `session` is not one.
    """
    text = labels("o_drift")
    keys = checked_int("keys", keys, 8, MAX_KEYS, "4096 takes about a second.")
    seed = checked_seed(seed)
    _, numbers = recorded_on(device, session)
    drifts = [drift_in(name, dtype, keys, numbers, seed) for name, dtype in dtypes().items()]
    said = takeaway(drifts, keys)
    figure = LiveFigure(
        "o_drift", setting={"keys": keys, "rows": ROWS, "d": HEAD_DIM, "seed": seed},
        least_width=LEAST_WIDTH,
    )  # fmt: skip
    figure.show(o_drift_spec(drifts, text), text["figure"].format(sentence=said))
    note = "" if len(drifts) > 1 else f'<div class="falab-note">{escape(text["no_bf16"])}</div>'
    sentence = takeaway_html("drift", escape(said))
    table = drift_table(drifts, keys, numbers) + note
    return ipywidgets.VBox([ipywidgets.HTML(sentence), figure, ipywidgets.HTML(table)])

"""The online softmax, step by step: picture, equation, code line and state move together.

Everything that happens per step happens in the page, in float64, without the kernel; only edited
scores come back. The page's numbers are those of `reference.online_softmax.OnlineSoftmax`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anywidget
import numpy as np
import traitlets

from fa_kernels.reference.online_softmax import OnlineSoftmax
from fa_kernels.widgets.live_figure import STATIC
from fa_kernels.widgets.stepper_input import (
    BLOCK_SIZES,
    MASKED,
    MAX_KEYS,
    MAX_SCORE,
    checked_block,
    checked_scores,
    checked_step,
    checked_values,
    from_cell,
    to_cell,
)
from fa_kernels.widgets.text import html_table, labels, scientific, text_table
from fa_kernels.widgets.whole_row import LIMIT, softmax_output

#: One module of the page, in four files: numbers, words, picture, and what a reader does.
SCRIPTS = ("stepper_steps.js", "stepper_words.js", "stepper_picture.js", "stepper.js")

#: Name in the labels -> the scores of one query row.
PRESETS: dict[str, tuple[float, ...]] = {
    "growing": (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5),
    "falling": (3.5, 3.0, 2.5, 2.0, 1.5, 1.0, 0.5, 0.0),
    "overflow": (2.0, 4.0, 8.0, 6.0, 12.0, 10.0, 14.0, 13.0),
    "masked_block": (MASKED, MASKED, MASKED, MASKED, 1.0, 2.0, 0.5, MASKED),
    "equal": (1.0,) * 8,
    "masked_row": (MASKED,) * 8,
}
#: Where the values v_j lie in the plane: on a ring, so that the output is seen to move.
_ANGLES = np.arange(MAX_KEYS) * 2.4
VALUES: tuple[tuple[float, float], ...] = tuple(
    (round(float(np.cos(a)), 2), round(float(np.sin(a)), 2)) for a in _ANGLES
)
#: (step that the line belongs to, line): `OnlineSoftmax.update` and `.output` for one row.
CODE = (
    ("start", "m_i, l_i, acc = -inf, 0, 0"),
    ("", "for s, v in blocks:"),
    ("max", "    m_new  = max(m_i, max(s))"),
    ("max", "    m_safe = m_new if m_new > -inf else 0"),
    ("alpha", "    alpha  = exp(m_i - m_safe)"),
    ("p", "    p      = exp(s - m_safe)"),
    ("l", "    l_i    = l_i * alpha + sum(p)"),
    ("acc", "    acc    = acc * alpha + p @ v"),
    ("acc", "    m_i    = m_new"),
    ("out", "out = acc / l_i if l_i > 0 else 0 * acc"),
)


class Stepper(anywidget.AnyWidget):
    """The widget. `cells` are the scores as text, written by the page when the reader edits."""

    _esm = "\n".join((STATIC / name).read_text(encoding="utf-8") for name in SCRIPTS)
    _css = STATIC / "stepper.css"
    cells = traitlets.List(traitlets.Unicode()).tag(sync=True)
    values = traitlets.List(traitlets.List(traitlets.Float())).tag(sync=True)
    block_n = traitlets.Int(2).tag(sync=True)
    #: Which step is on screen, in every view of the widget; one beyond the last shows the last.
    step = traitlets.Int(0, min=0).tag(sync=True)
    block_sizes = traitlets.List(traitlets.Int(), list(BLOCK_SIZES)).tag(sync=True)
    presets = traitlets.List().tag(sync=True)
    code = traitlets.List().tag(sync=True)
    text = traitlets.Dict().tag(sync=True)
    limit = traitlets.Float(LIMIT).tag(sync=True)
    max_score = traitlets.Float(MAX_SCORE).tag(sync=True)

    # What a page or a notebook sets is checked as the arguments are: a block of no keys would keep
    # the page's loop over blocks from ever ending.

    @traitlets.validate("block_n")
    def _block_offered(self, proposal: Any) -> Any:
        return _as_trait_error(checked_block, proposal["value"])

    @traitlets.validate("cells")
    def _scores_fit(self, proposal: Any) -> Any:
        cells = proposal["value"]
        _as_trait_error(checked_scores, [from_cell(cell) for cell in cells])
        if len(cells) != len(self.values):
            text = labels("stepper")["bad_cells"]
            raise traitlets.TraitError(text.format(count=len(cells), keys=len(self.values)))
        return cells

    @traitlets.validate("values")
    def _values_fit(self, proposal: Any) -> Any:
        return _as_trait_error(checked_values, proposal["value"], len(self.cells))

    @property
    def scores(self) -> np.ndarray:
        """The scores as they stand in the page now, (keys,) float64."""
        return np.array([from_cell(cell) for cell in self.cells])

    def page_state(self) -> dict[str, Any]:
        """What its page asks for, by name, as JSON has it: for a page without a kernel."""
        own = set(self.keys) - set(anywidget.AnyWidget.class_trait_names())
        return {name: getattr(self, name) for name in sorted(own) if not name.startswith("_")}

    def check(self) -> StepperCheck:
        """What `OnlineSoftmax` makes of the scores in the page, block by block."""
        return check_steps(self.scores, np.array(self.values), self.block_n)


def _as_trait_error(check: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return check(*arguments)
    except ValueError as error:
        raise traitlets.TraitError(str(error)) from None


def stepper(
    preset: str = "growing",
    *,
    scores: Sequence[float] | None = None,
    values: Sequence[Sequence[float]] | None = None,
    block_n: int = 2,
    step: int = 0,
) -> Stepper:
    """Step through the online softmax of one query row.

    Args:
        preset: "growing", "falling", "overflow", "masked_block", "equal" or "masked_row".
        scores: (keys,) scores of your own instead, at most 12; -inf masks a key.
        values: (keys, 2), what the keys stand for; each number at most 1 in size.
        block_n: keys per block, 1, 2 or 4.
        step: the step to open at; beyond the last one, the last.

    Raises:
        ValueError: a bad value; value, limit and remedy.
    """
    text = labels("stepper")
    if isinstance(preset, (list, tuple, np.ndarray)):
        row = ", ".join(str(score) for score in preset)
        raise ValueError(text["preset_is_row"].format(row=f"[{row}]"))
    if not isinstance(preset, str) or preset not in PRESETS:
        known = ", ".join(map(repr, PRESETS))
        raise ValueError(text["bad_preset"].format(preset=preset, known=known))
    block_n = checked_block(block_n)
    step = checked_step(step)
    row = checked_scores(PRESETS[preset] if scores is None else scores)
    plane = checked_values(VALUES[: len(row)] if values is None else values, len(row))
    choices = [
        {"name": name, "cells": [to_cell(s) for s in row_], **text["presets"][name]}
        for name, row_ in PRESETS.items()
        if len(row_) == len(row)
    ]
    return Stepper(
        cells=[to_cell(score) for score in row],
        values=plane,
        block_n=block_n,
        step=step,
        presets=choices,
        code=[list(line) for line in CODE],
        text=text["page"],
    )


@dataclass(frozen=True)
class StepperCheck:
    """State after each block: keys seen, m, l, alpha (blocks,), acc and out (blocks, 2), and the
    largest difference between out and the softmax of the keys so far."""

    keys: np.ndarray
    m: np.ndarray
    l: np.ndarray  # noqa: E741 - the paper's name
    alpha: np.ndarray
    acc: np.ndarray
    out: np.ndarray
    difference: np.ndarray

    @property
    def ok(self) -> bool:
        """True if every difference is within 1e-14."""
        return bool(np.all(self.difference <= LIMIT))

    def cells(self) -> list[list[str]]:
        """The table as text: a row of heads, then one row per block."""
        text = labels("stepper")
        rows = [[str(text[name]) for name in ("keys", "m", "alpha", "l", "out", "difference")]]
        for b, keys in enumerate(self.keys):
            numbers = (self.m[b], self.alpha[b], self.l[b])
            pair = ", ".join(f"{x:+.4f}" for x in self.out[b])
            difference = scientific(float(self.difference[b]))
            rows.append([f"1 … {keys}", *(f"{x:.6g}" for x in numbers), f"({pair})", difference])
        return rows

    def caption(self) -> str:
        """The verdict in one sentence."""
        text = labels("stepper")
        worst = float(self.difference.max(initial=0.0))
        return str(text["holds" if self.ok else "fails"]).format(
            worst=scientific(worst), limit=LIMIT
        )

    def __str__(self) -> str:
        return text_table(self.caption(), self.cells())

    def _repr_html_(self) -> str:
        head, *body = self.cells()
        return html_table("steps", self.caption(), head, body, css="falab-table falab-dense")


def check_steps(s: np.ndarray, v: np.ndarray, block_n: int) -> StepperCheck:
    """Run `OnlineSoftmax` over blocks of one row; s (keys,), v (keys, d), both float64."""
    state = OnlineSoftmax.empty((), 1, v.shape[-1], s.dtype)
    found: dict[str, list[Any]] = {name: [] for name in StepperCheck.__dataclass_fields__}
    for start in range(0, len(s), block_n):
        end = min(start + block_n, len(s))
        alpha, out = state.update(s[None, start:end], v[start:end])[0], state.output()[0]
        seen = {
            "keys": end, "m": state.m_i[0], "l": state.l_i[0], "alpha": alpha, "acc": state.acc[0],
            "out": out,
            "difference": np.abs(out - softmax_output(s[:end], v[:end])).max(),
        }  # fmt: skip
        for name, value in seen.items():
            found[name].append(value)
    return StepperCheck(**{name: np.array(column) for name, column in found.items()})

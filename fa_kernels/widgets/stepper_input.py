"""What the stepper takes: scores, values and a block size, checked in words, and scores as text."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from fa_kernels.problem import checked_int
from fa_kernels.widgets.text import labels

#: Scores beyond this say nothing more: exp of a difference of 1000 is 0 in float64.
MAX_SCORE = 1000.0
MAX_KEYS = 12
BLOCK_SIZES = (1, 2, 4)
#: With one key per block: the start, five operations for each key, the output.
MAX_STEP = 5 * MAX_KEYS + 1
#: The score of a key that is not attended.
MASKED = -math.inf


def checked_scores(scores: Iterable[object]) -> list[float]:
    """Scores of one row as floats; -inf masks a key. Text is refused, as for every number.

    Raises:
        ValueError: too few or too many, or one that is no score; value, limit and remedy.
    """
    text = labels("stepper")
    if isinstance(scores, str) or not isinstance(scores, Iterable):
        raise ValueError(text["no_scores"].format(scores=scores, limit=MAX_KEYS))
    given = list(scores)
    found = [_number(score) for score in given]
    if not 1 <= len(found) <= MAX_KEYS:
        raise ValueError(text["bad_count"].format(count=len(found), limit=MAX_KEYS))
    for i, score in enumerate(found):
        if score != MASKED and not abs(score) <= MAX_SCORE:
            words = text["bad_score"]
            raise ValueError(words.format(number=i + 1, score=given[i], limit=MAX_SCORE))
    return found


def _number(value: object) -> float:
    """`value` as a float; NaN for what is none."""
    try:
        return math.nan if isinstance(value, str) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan


def checked_values(values: object, keys: int) -> list[list[float]]:
    """Values of `keys` keys as pairs of floats.

    Raises:
        ValueError: not (keys, 2) numbers between -1 and 1; value, limit and remedy.
    """
    text = labels("stepper")
    try:
        plane = np.array(values, np.float64)
    except (TypeError, ValueError):  # ragged, or not numbers
        raise ValueError(text["no_values"].format(values=values, keys=keys)) from None
    if plane.shape != (keys, 2) or not np.all(np.abs(plane) <= 1):
        raise ValueError(text["bad_values"].format(shape=plane.shape, keys=keys))
    pairs: list[list[float]] = plane.tolist()
    return pairs


def checked_block(block_n: object) -> int:
    """Keys per block, one of `BLOCK_SIZES`.

    Raises:
        ValueError: another; value, limit and remedy.
    """
    known = ", ".join(map(str, BLOCK_SIZES))
    if isinstance(block_n, bool) or block_n not in BLOCK_SIZES:
        raise ValueError(labels("stepper")["bad_block"].format(block=block_n, known=known))
    return int(block_n)


def checked_step(step: object) -> int:
    """A step as an int; where a row has fewer steps, it stands for the last.

    Raises:
        ValueError: no whole number, or more steps than any row has.
    """
    return checked_int("step", step, 0, MAX_STEP, labels("stepper")["step_remedy"])


def to_cell(score: float) -> str:
    """A score as the page takes and gives it: JSON has no infinity, and text keeps every bit."""
    return "-inf" if score == MASKED else repr(score).removesuffix(".0")


def from_cell(cell: str) -> float | str:
    """The score that `to_cell` wrote, or the text itself where it is none."""
    try:
        return float(cell)
    except ValueError:
        return cell

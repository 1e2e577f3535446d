"""Merging two (m, l, acc): the order of the parts does not matter, shown in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fa_kernels.problem import checked_int
from fa_kernels.reference.online_softmax import OnlineSoftmax
from fa_kernels.widgets.seed import checked_seed
from fa_kernels.widgets.text import html_table, labels, scientific, text_table
from fa_kernels.widgets.whole_row import LIMIT, softmax_output

MAX_KEYS, MAX_TRIES = 4096, 10000
HEAD_DIM = 4


@dataclass(frozen=True)
class MergeLine:
    """One way to merge, how often it was tried, and the largest difference from the whole row."""

    name: str
    tried: int
    out_difference: float
    lse_difference: float

    @property
    def difference(self) -> float:
        """The larger of the two."""
        return max(self.out_difference, self.lse_difference)


@dataclass(frozen=True)
class MergeCheck:
    """One line per way, shown as a table."""

    lines: tuple[MergeLine, ...]
    keys: int
    sizes: tuple[int, ...]

    @property
    def ok(self) -> bool:
        """True if every difference is within 1e-14."""
        return all(line.difference <= LIMIT for line in self.lines)

    def cells(self) -> list[list[str]]:
        """The table as text: a row of heads, then one row per way."""
        text = labels("merge")
        rows = [[str(text[name]) for name in ("way", "tried", "difference_out", "difference_lse")]]
        for line in self.lines:
            differences = (line.out_difference, line.lse_difference)
            rows.append([text[line.name], str(line.tried), *map(scientific, differences)])
        return rows

    def caption(self) -> str:
        """What was merged, and the verdict."""
        text = labels("merge")
        sizes = ", ".join(map(str, self.sizes))
        verdict = text["holds" if self.ok else "fails"].format(limit=LIMIT)
        return f"{text['caption'].format(keys=self.keys, sizes=sizes)} {verdict}"

    def __str__(self) -> str:
        return text_table(self.caption(), self.cells())

    def _repr_html_(self) -> str:
        head, *body = self.cells()
        return html_table("merge", self.caption(), head, body, css="falab-table falab-dense")


def merge_check(keys: int = 64, parts: int = 6, tries: int = 100, seed: int = 0) -> MergeCheck:
    """Cut one row of scores into parts of random size, merge their states, compare with the whole.

    One part holds only masked keys, so its state is (-inf, 0, 0).

    Args:
        keys: scores in the row, at most 4096.
        parts: number of parts, at least 2 and at most `keys`.
        tries: random orders and random trees of merges, each; at most 10000.
        seed: of scores, values, cuts and orders.

    Raises:
        ValueError: a bad value; value, limit and remedy.
    """
    text = labels("merge")
    keys = checked_int("keys", keys, 2, MAX_KEYS, text["fewer_keys"])
    parts = checked_int("parts", parts, 2, keys, text["fewer_parts"])
    tries = checked_int("tries", tries, 1, MAX_TRIES, text["fewer_tries"])
    seed = checked_seed(seed)
    rng = np.random.default_rng(seed)
    s, v = 3.0 * rng.standard_normal(keys), rng.uniform(-1, 1, (keys, HEAD_DIM))
    cuts = [0, *sorted(rng.choice(keys - 1, parts - 1, replace=False) + 1), keys]
    pieces = [slice(int(a), int(b)) for a, b in itertools.pairwise(cuts)]
    s[pieces[int(rng.integers(parts))]] = -np.inf
    states = [state_of(s[piece], v[piece]) for piece in pieces]
    whole = (softmax_output(s, v), _lse(s))
    orders: list[tuple[str, int, Callable[[], OnlineSoftmax]]] = [
        ("in_order", 1, lambda: fold(states)),
        ("reversed", 1, lambda: fold(states[::-1])),
        ("random_order", tries, lambda: fold([states[i] for i in rng.permutation(parts)])),
        ("random_tree", tries, lambda: tree(states, rng)),
    ]
    lines = []
    for name, count, merged in orders:
        differences = np.array([_differences(merged(), whole) for _ in range(count)])
        lines.append(MergeLine(name, count, *map(float, differences.max(axis=0))))
    return MergeCheck(tuple(lines), keys, tuple(p.stop - p.start for p in pieces))


def state_of(s: np.ndarray, v: np.ndarray) -> OnlineSoftmax:
    """(m, l, acc) of one part: s (keys,), v (keys, d)."""
    state = OnlineSoftmax.empty((), 1, v.shape[-1], s.dtype)
    state.update(s[None], v)
    return state


def fold(states: Sequence[OnlineSoftmax]) -> OnlineSoftmax:
    """One after the other, as a loop over blocks does."""
    merged = states[0]
    for state in states[1:]:
        merged = merged.merge(state)
    return merged


def tree(states: Sequence[OnlineSoftmax], rng: np.random.Generator) -> OnlineSoftmax:
    """Any two, until one is left, as parallel workers do."""
    left = list(states)
    while len(left) > 1:
        i, j = rng.choice(len(left), 2, replace=False)
        merged = left[i].merge(left[j])
        left = [state for k, state in enumerate(left) if k not in (i, j)] + [merged]
    return left[0]


def _lse(s: np.ndarray) -> float:
    most = s.max()
    return float(most + np.log(np.exp(s - most).sum())) if most > -np.inf else -np.inf


def _differences(state: OnlineSoftmax, whole: tuple[np.ndarray, float]) -> tuple[float, float]:
    out, lse = whole
    of_lse = 0.0 if state.lse()[0] == lse else abs(float(state.lse()[0]) - lse)
    return float(np.abs(state.output()[0] - out).max()), of_lse

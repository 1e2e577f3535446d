"""Block patterns by name: which blocks of the attention matrix each keeps, and where it is from.

`BlockMask.pattern` is the door. A pattern has no lengths here: it knows how many blocks of keys
there are and, for every block row, the block of the diagonal of `causal="bottom_right"`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

#: rank(columns, diagonal block, generator): the order in which a row takes blocks, least first.
#: The generator stands in quotes because naming it loads numpy.random.
Rank = Callable[[np.ndarray, int, "np.random.Generator"], np.ndarray]
#: keep(number of key blocks, diagonal block of each row, density): bool (q_blocks, k_blocks).
Keep = Callable[[int, np.ndarray, float], np.ndarray]


@dataclass(frozen=True)
class Pattern:
    """`even`: every block row keeps the same number of blocks, which the density alone says.
    `fixed`: there is one density, and it is not asked for."""

    summary: str
    keep: Keep
    even: bool = True
    fixed: bool = False


def blocks_kept(density: float | None, k_blocks: int) -> int:
    """How many of `k_blocks` blocks a row of an even pattern of this density keeps; at least one.

    Raises:
        ValueError: a density outside (0, 1].
    """
    try:
        fits = not isinstance(density, (bool, str)) and 0.0 < float(density) <= 1.0  # type: ignore[arg-type]
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError(f"density = {density!r} must be above 0 and at most 1, e.g. 0.25.")
    return max(1, round(float(density) * k_blocks))  # type: ignore[arg-type]


def keep_blocks(
    name: str, k_blocks: int, diagonal: tuple[int, ...], density: float | None
) -> np.ndarray:
    """bool (1, 1, q_blocks, k_blocks), read-only; row i lies about key block diagonal[i].

    Raises:
        ValueError: an unknown name, a density out of range, or one that the pattern has not.
    """
    if name not in PATTERNS:
        raise ValueError(f"pattern = {name!r} is not known: use one of {', '.join(PATTERNS)}.")
    if not PATTERNS[name].fixed:
        blocks_kept(density, k_blocks)
        return _kept(name, k_blocks, diagonal, float(density or 0.0))
    keep = _kept(name, k_blocks, diagonal, 1.0)
    own = float(keep.mean())
    # A recorded row holds six digits of a density.
    if density is not None and abs(float(density) - own) > 1e-5 * own:
        raise ValueError(
            f"density = {density!r}: the pattern {name!r} keeps {own:.6g} of these blocks and no "
            "other fraction: leave density out, or use 'local'."
        )
    return keep


@functools.lru_cache(maxsize=16)
def _kept(name: str, k_blocks: int, diagonal: tuple[int, ...], density: float) -> np.ndarray:
    keep = PATTERNS[name].keep(k_blocks, np.array(diagonal), density)[None, None]
    keep.setflags(write=False)
    return keep


def _dense(k_blocks: int, diagonal: np.ndarray, density: float) -> np.ndarray:
    return np.ones((len(diagonal), k_blocks), bool)


def _causal(k_blocks: int, diagonal: np.ndarray, density: float) -> np.ndarray:
    return np.arange(k_blocks) <= diagonal[:, None]


def _local(k_blocks: int, diagonal: np.ndarray, density: float) -> np.ndarray:
    count = blocks_kept(density, k_blocks)
    first = np.clip(diagonal - count // 2, 0, k_blocks - count)[:, None]
    columns = np.arange(k_blocks)
    return (columns >= first) & (columns < first + count)


def _strided(k_blocks: int, diagonal: np.ndarray, density: float) -> np.ndarray:
    count = blocks_kept(density, k_blocks)
    steps = np.arange(count) * (k_blocks // count)
    keep = np.zeros((len(diagonal), k_blocks), bool)
    keep[np.arange(len(diagonal))[:, None], (diagonal[:, None] - steps) % k_blocks] = True
    return keep


def _by_rank(rank: Rank) -> Keep:
    """Every row keeps the blocks that `rank` puts first."""

    def keep(k_blocks: int, diagonal: np.ndarray, density: float) -> np.ndarray:
        return _first_of_rows(rank, k_blocks, diagonal, blocks_kept(density, k_blocks))

    return keep


def _first_of_rows(rank: Rank, k_blocks: int, diagonal: np.ndarray, count: int) -> np.ndarray:
    rng, columns = np.random.default_rng(0), np.arange(k_blocks)
    keep = np.zeros((len(diagonal), k_blocks), bool)
    for row, middle in enumerate(diagonal.tolist()):  # row by row: ranks of all would not fit
        keep[row, np.argpartition(rank(columns, middle, rng), count - 1)[:count]] = True
    return keep


def _near_first(columns: np.ndarray, middle: int, rng: np.random.Generator) -> np.ndarray:
    """By distance from the diagonal, of two equal ones the earlier keys."""
    return 2 * np.abs(columns - middle) + (columns > middle)


def _every_second_first(columns: np.ndarray, middle: int, rng: np.random.Generator) -> np.ndarray:
    odd = (columns - middle) % 2
    return odd * 4 * len(columns) + _near_first(columns, middle, rng)


def _few_bits_first(columns: np.ndarray, middle: int, rng: np.random.Generator) -> np.ndarray:
    differs = columns ^ middle
    return _bit_counts(differs) * (2 * len(columns)) + differs


def _bit_counts(values: np.ndarray) -> np.ndarray:
    counts = np.zeros_like(values)
    while values.any():
        counts += values & 1
        values = values >> 1
    return counts


def _shuffled(columns: np.ndarray, middle: int, rng: np.random.Generator) -> np.ndarray:
    rank = rng.permutation(len(columns)) + 1
    rank[middle] = 0
    return rank


def _global_first(columns: np.ndarray, middle: int, rng: np.random.Generator) -> np.ndarray:
    """The diagonal, the global block, then by distance."""
    rank = _near_first(columns, middle, rng) + 2
    rank[0] = 1
    rank[middle] = 0
    return rank


def _with_global(rank: Callable[[int], Rank]) -> Keep:
    """Block 0 of the keys is kept by all rows, and the rows of that block keep all.

    The other rows keep one number of blocks, by `rank(that number)`: of all numbers the one that
    brings the whole mask nearest to the density.
    """

    def keep(k_blocks: int, diagonal: np.ndarray, density: float) -> np.ndarray:
        whole, rows = diagonal == 0, len(diagonal)
        counts = np.arange(min(2, k_blocks), k_blocks + 1)
        kept = (whole.sum() * k_blocks + (rows - whole.sum()) * counts) / (rows * k_blocks)
        count = int(counts[np.abs(kept - density).argmin()])
        return _first_of_rows(rank(count), k_blocks, diagonal, count) | whole[:, None]

    return keep


def _window_then_random(count: int) -> Rank:
    """Half of what is left beside the diagonal and the global block lies near, half anywhere."""
    near = 2 + (count - 1) // 2

    def rank(columns: np.ndarray, middle: int, rng: np.random.Generator) -> np.ndarray:
        by_distance = _global_first(columns, middle, rng)
        order = np.argsort(by_distance)
        rest = rng.permutation(len(columns)) + by_distance[order[-1]] + 1
        rest[order[:near]] = by_distance[order[:near]]
        return rest

    return rank


#: Name -> pattern. Every one keeps the diagonal.
PATTERNS: Mapping[str, Pattern] = MappingProxyType(
    {
        "local": Pattern("the blocks nearest the diagonal", _local),
        "butterfly": Pattern(
            "blocks whose index differs from the diagonal's in few bits", _by_rank(_few_bits_first)
        ),
        "random": Pattern("the diagonal and random others", _by_rank(_shuffled)),
        "dense": Pattern("all blocks", _dense, fixed=True),
        "causal": Pattern("the blocks up to the diagonal", _causal, even=False, fixed=True),
        "strided": Pattern(
            "the diagonal and every n-th block before it, on from the end", _strided
        ),
        "dilated": Pattern("a window that takes every second block", _by_rank(_every_second_first)),
        "global": Pattern(
            "a window, and one block that sees all and is seen by all",
            _with_global(lambda count: _global_first),
            even=False,
        ),
        "bigbird": Pattern(
            "a window, one global block, and random ones",
            _with_global(_window_then_random),
            even=False,
        ),
    }
)
#: Patterns of which rows, counted bytes and FLOPs have a closed form at any density.
EVEN_PATTERNS = tuple(n for n, pattern in PATTERNS.items() if pattern.even and not pattern.fixed)


def block_states(kept: np.ndarray, block_m: int, block_n: int) -> tuple[np.ndarray, np.ndarray]:
    """(some, all) elements kept of every block, each (..., q_blocks, k_blocks) bool.

    `kept`: bool (..., seqlen_q, seqlen_k); a last block that reaches past the end counts what it
    has.
    """
    return (
        reduce_blocks(np.logical_or, kept, block_m, block_n),
        reduce_blocks(np.logical_and, kept, block_m, block_n),
    )


def reduce_blocks(op: np.ufunc, values: np.ndarray, block_m: int, block_n: int) -> np.ndarray:
    """`op` over every block of (..., seqlen_q, seqlen_k): (..., q_blocks, k_blocks)."""
    for axis, block in ((-2, block_m), (-1, block_n)):
        values = op.reduceat(values, np.arange(0, values.shape[axis], block), axis=axis)
    return values


def best_blocks(values: np.ndarray, count: int) -> np.ndarray:
    """The `count` greatest of every row of (..., k_blocks), of equal ones the first, as bool."""
    order = np.argsort(-values, axis=-1, kind="stable")[..., :count]
    keep = np.zeros(values.shape, bool)
    np.put_along_axis(keep, order, True, axis=-1)
    return keep

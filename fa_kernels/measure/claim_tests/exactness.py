"""Claims that the result is exact, executed in NumPy; and the errors of recorded calls."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from fa_kernels.measure.claim_tests.evidence import Evidence, pairs
from fa_kernels.measure.claim_tests.judged import Judged, judged, share
from fa_kernels.measure.claims import Claim
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.backward_standard import attention_backward_float64
from fa_kernels.reference.online_softmax import OnlineSoftmax, softmax_rows
from fa_kernels.reference.standard import attention_float64
from fa_kernels.tiling import Tiling
from fa_kernels.units import span
from fa_kernels.variants import VARIANTS

Array = np.ndarray
NUMPY = "NumPy, float64"
#: Rounding of some hundred sums and products of numbers near 1; a wrong formula misses by 1e-3.
ROUNDING = 1e-12
#: Of 16-bit outputs: the tolerance of every check of the suite, the error of a plain run twice.
PLAIN_RUNS = 2.0
#: Lengths that no tile divides, and tiles: (queries, keys, rows of a tile, keys of a tile).
AWKWARD = ((1, 1, 8, 8), (33, 97, 8, 16), (64, 64, 16, 64), (113, 203, 64, 32), (129, 127, 50, 7))
FLASH = ("flash_kv_outer", "flash_q_outer")
_SEED, _KEYS, _WIDTH, _SPLITS = 0, 257, 8, 64
#: Scores are a few units apart, as with a factor of 1/sqrt(d); larger ones test the maximum.
_SPREAD = 10.0


def _random_splits(rng: np.random.Generator) -> Iterator[list[slice]]:
    """Keys cut at random places: 1 to all of them in a block."""
    for _ in range(_SPLITS):
        cuts = np.flatnonzero(rng.random(_KEYS - 1) < rng.random()) + 1
        ends = [0, *cuts.tolist(), _KEYS]
        yield [slice(a, b) for a, b in pairwise(ends)]


def online_softmax(claim: Claim, evidence: Evidence) -> Judged:
    """The output of blocks in turn against that of all columns at once, for random splits."""
    rng = np.random.default_rng(_SEED)
    s, v = _SPREAD * rng.standard_normal((4, _KEYS)), rng.standard_normal((_KEYS, _WIDTH))
    truth = softmax_rows(s)[0] @ v
    errors = []
    for blocks in _random_splits(rng):
        state = OnlineSoftmax.empty((), len(s), _WIDTH, s.dtype)
        for block in blocks:
            state.update(s[:, block], v[block])
        errors.append(float(abs(state.output() - truth).max()))
    checks = [error < ROUNDING for error in errors]
    why = (
        f"Cut into blocks in random ways, {_KEYS} columns give the output of all columns at once "
        f"in {share(checks)} cases, to {max(errors):.1e} (up to {ROUNDING:.0e} passes as rounding)."
    )
    return judged(checks, why, NUMPY)


def merge_rule(claim: Claim, evidence: Evidence) -> Judged:
    """m and l of a vector from those of its two parts, cut at every place."""
    x = _SPREAD * np.random.default_rng(_SEED).standard_normal((1, _KEYS))
    no_values = np.zeros((_KEYS, 0))

    def state(part: slice) -> OnlineSoftmax:
        found = OnlineSoftmax.empty((), 1, 0, x.dtype)
        found.update(x[:, part], no_values[part])
        return found

    m = float(x.max())
    total = float(np.exp(x - m).sum())
    errors = []
    for cut in range(1, _KEYS):
        both = state(slice(0, cut)).merge(state(slice(cut, _KEYS)))
        errors.append(max(abs(float(both.m_i[0]) - m), abs(float(both.l_i[0]) / total - 1)))
    checks = [error < ROUNDING for error in errors]
    why = (
        f"Merged at {share(checks)} places, m and l of two parts are those of the whole vector, "
        f"to {max(errors):.1e}."
    )
    return judged(checks, why, NUMPY)


def normalised_update(claim: Claim, evidence: Evidence) -> Judged:
    """The four steps as the paper notes print them: O is divided by l after every block."""
    rng = np.random.default_rng(_SEED)
    s, v = _SPREAD * rng.standard_normal((4, _KEYS)), rng.standard_normal((_KEYS, _WIDTH))
    truth = softmax_rows(s)[0] @ v
    errors = []
    for blocks in _random_splits(rng):
        m, l_row, o = _published_step(s[:, blocks[0]], v[blocks[0]])
        for block in blocks[1:]:
            m_ij, l_ij, o_ij = _published_step(s[:, block], v[block])
            m_new = np.maximum(m, m_ij)
            l_new = np.exp(m - m_new) * l_row + np.exp(m_ij - m_new) * l_ij
            old = (l_row * np.exp(m - m_new) / l_new)[:, None] * o
            new = (l_ij * np.exp(m_ij - m_new) / l_new)[:, None] * o_ij
            m, l_row, o = m_new, l_new, old + new
        errors.append(float(abs(o - truth).max()))
    checks = [error < ROUNDING for error in errors]
    why = (
        f"The update as printed, executed for {len(checks)} random ways to cut {_KEYS} columns, "
        f"gives the output of all columns at once in {share(checks)}, to {max(errors):.1e}."
    )
    return judged(checks, why, NUMPY)


def _published_step(s: Array, v: Array) -> tuple[Array, Array, Array]:
    """m, l and the normalised output of one block by itself."""
    m = s.max(axis=-1)
    p = np.exp(s - m[:, None])
    l_row = p.sum(axis=-1)
    return m, l_row, p @ v / l_row[:, None]


def whole_row_needed(claim: Claim, evidence: Evidence) -> Judged:
    """Whether a change of the last score changes every weight before it."""
    s = np.random.default_rng(_SEED).standard_normal((1, _KEYS))
    other = s.copy()
    other[0, -1] += 1.0
    before, after = softmax_rows(s)[0][0, :-1], softmax_rows(other)[0][0, :-1]
    checks = [bool(moved) for moved in before != after]
    change = 100 * float(abs(after / before - 1).max())
    why = (
        f"Raising the last of {_KEYS} scores by 1 changes {share(checks)} weights before it, each "
        f"by {change:.2g} %."
    )
    return judged(checks, why, NUMPY)


def stable_softmax(claim: Claim, evidence: Evidence) -> Judged:
    """In fp16, whether the softmax as written fails where that with the maximum does not."""
    s = np.random.default_rng(_SEED).standard_normal((1, _KEYS)).astype(np.float16)
    checks, last = [], {}
    for shift in (0, 4, 8, 12, 100):
        row = (s + np.float16(shift)).astype(np.float16)
        with np.errstate(over="ignore", invalid="ignore"):
            exps = np.exp(row)
            unsafe = exps / exps.sum(axis=-1, keepdims=True, dtype=np.float16)
        safe = softmax_rows(row)[0]
        right = abs(safe.sum(dtype=np.float64) - 1) < 1e-2
        last[shift] = bool(np.isfinite(unsafe).all() and unsafe.any())
        checks.append(bool(right))
    broken = [shift for shift, fine in last.items() if not fine]
    checks.append(bool(broken))
    why = (
        f"In fp16, with scores around {', '.join(map(str, last))}, subtracting the maximum gives "
        f"weights that add up to 1 in {share(checks[:-1])} cases; the softmax as written gives "
        f"none with scores around {', '.join(map(str, broken)) or 'no number of these'}."
    )
    return judged(checks, why, "NumPy, float16")


def _inputs(problem: AttentionProblem) -> tuple[Array, ...]:
    rng = np.random.default_rng(_SEED)
    shapes = (problem.q_shape, problem.kv_shape, problem.kv_shape, problem.q_shape)
    return tuple(rng.standard_normal(shape) for shape in shapes)


def tiles_exact(claim: Claim, evidence: Evidence) -> Judged:
    """Both loop orders against the formula in NumPy, and recorded errors beside those of 02."""
    errors = []
    for n_q, n_k, block_m, block_n in AWKWARD:
        problem = AttentionProblem(1, 2, n_q, n_k, _WIDTH)
        q, k, v, _ = _inputs(problem)
        truth, _ = attention_float64(q, k, v, problem)
        for name in FLASH:
            out, _ = VARIANTS[name].reference(q, k, v, problem, Tiling(block_m, block_n))
            errors.append(float(abs(out - truth).max()))
    checks = [error < ROUNDING for error in errors]
    why = (
        f"In NumPy both loop orders equal the formula in {share(checks)} awkward cases, to "
        f"{max(errors):.1e}"
    )
    timed = evidence.rows("grid", metric="latency_ms", pass_="fwd")
    both = pairs(timed.of(*FLASH), timed.of("standard_tiled"))
    if not both:
        return judged(checks, f"{why}.", NUMPY)
    ratios = [(a.max_abs_err or 0.0) / (b.max_abs_err or 1.0) for a, b in both]
    on_gpu = [ratio <= PLAIN_RUNS for ratio in ratios]
    why += (
        f"; on the GPU their largest error against float64 is at most {PLAIN_RUNS:.0f} times that "
        f"of the standard kernel in {share(on_gpu)} recorded calls ({span(ratios)} times)."
    )
    return judged([*checks, *on_gpu], why, f"{NUMPY}; {timed.source}")


def gradients_from_statistics(claim: Claim, evidence: Evidence) -> Judged:
    """Gradients from q, k, v, O and one number a row against the formula that has all of P."""
    errors = []
    for n_q, n_k, block_m, block_n in AWKWARD:
        problem, tiling = AttentionProblem(1, 2, n_q, n_k, _WIDTH), Tiling(block_m, block_n)
        q, k, v, d_out = _inputs(problem)
        truth = attention_backward_float64(d_out, q, k, v, problem)
        for name in FLASH:
            backward = VARIANTS[name].backward
            assert backward is not None
            out, lse = VARIANTS[name].reference(q, k, v, problem, tiling)
            found = backward.reference(d_out, q, k, v, out, lse, problem, tiling)
            errors += [float(abs(a - b).max()) for a, b in zip(found, truth, strict=True)]
    checks = [error < ROUNDING for error in errors]
    kept = sorted({name for one in FLASH if (b := VARIANTS[one].backward) for name in b.saved})
    only = set(kept) == {"out", "lse"}
    why = (
        f"Kept are {' and '.join(reversed(kept))} (lse = m + log l, so one number a row stands for "
        f"two), and {share(checks)} gradients from them equal those of the formula, to "
        f"{max(errors):.1e}."
    )
    return judged([*checks, only], why, NUMPY)

"""Claims about FLOPs and launches: counted while NumPy multiplies, and in the plans of launches."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from fa_kernels.measure.claim_tests.evidence import Evidence
from fa_kernels.measure.claim_tests.judged import Judged, judged, share
from fa_kernels.measure.claims import Claim
from fa_kernels.measure.verdict import fit_exponent
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.online_softmax import softmax_rows
from fa_kernels.tiling import Tiling
from fa_kernels.units import flops, span
from fa_kernels.variants import RUNGS, VARIANTS

COUNTED = "counted in NumPy"
#: How near a fitted exponent must be to that of a law that holds exactly.
EXACT = 0.01
#: More than this is no "slight" increase any more.
SLIGHT = 1 / 3
_LENGTHS, _WIDTHS, _TILING = (64, 128, 256), (16, 32, 64), Tiling(32, 32)


def _counting() -> tuple[type[np.ndarray], list[int]]:
    """An array type whose matrix products add their FLOPs to the list's one number."""
    total = [0]

    class Counting(np.ndarray):
        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
            def plain(x: Any) -> Any:
                return x.view(np.ndarray) if isinstance(x, Counting) else x

            if "out" in options:
                options["out"] = tuple(map(plain, options["out"]))
            found = getattr(ufunc, method)(*map(plain, inputs), **options)
            if ufunc is np.matmul:
                total[0] += 2 * found.size * inputs[0].shape[-1]
            return found.view(Counting) if isinstance(found, np.ndarray) else found

    return Counting, total


@functools.lru_cache(maxsize=64)
def count_flops(name: str, n: int, d: int) -> tuple[int, int]:
    """FLOPs of the matrix products of forward and backward, one head, executed in NumPy.

    The backward of an algorithm that keeps P is given P.
    """
    problem, (array, total) = AttentionProblem(1, 1, n, n, d), _counting()
    rng = np.random.default_rng(0)
    plain = [rng.standard_normal((1, 1, n, d)) for _ in range(4)]
    q, k, v, d_out = (x.view(array) for x in plain)
    variant = VARIANTS[name]
    backward = variant.backward
    assert backward is not None
    out, lse = variant.reference(q, k, v, problem, _TILING)
    forward = total[0]
    kept = {}
    if "p" in backward.saved:
        s = problem.scale * (plain[0] @ np.swapaxes(plain[1], -1, -2))
        kept["p"] = softmax_rows(s)[0].view(array)
    given = (np.asarray(x).view(array) for x in (out, lse))
    backward.reference(d_out, q, k, v, *given, problem, _TILING, **kept)
    return forward, total[0] - forward


def flops_law(claim: Claim, evidence: Evidence) -> Judged:
    """Powers of N and d by which the counted FLOPs of both algorithms grow; numbers: N's, d's."""
    n_power, d_power = claim.numbers
    found: list[tuple[float, float]] = []
    for name in ("standard_tiled", "flash_q_outer"):
        for number in (0, 1):

            def counted(n: int, d: int, name: str = name, number: int = number) -> int:
                return count_flops(name, n, d)[number]

            over_n = fit_exponent((n, counted(n, _WIDTHS[1])) for n in _LENGTHS)
            over_d = fit_exponent((d, counted(_LENGTHS[1], d)) for d in _WIDTHS)
            found += [(over_n, n_power), (over_d, d_power)]
    checks = [abs(ours - law) <= EXACT for ours, law in found]
    why = (
        f"Counted over N = {span(_LENGTHS, str)} and d = {span(_WIDTHS, str)}, the FLOPs of "
        "forward and backward, standard and flash, grow as "
        f"N^{span([f for f, p in found[::2]], _two)} and "
        f"d^{span([f for f, p in found[1::2]], _two)}: {share(checks)} exponents agree."
    )
    return judged(checks, why, COUNTED)


def _two(number: float) -> str:
    return f"{number:.2f}"


def recompute_flops(claim: Claim, evidence: Evidence) -> Judged:
    """What rebuilding S adds to the FLOPs of a backward, and of forward and backward together."""
    n, d = _LENGTHS[1], _WIDTHS[1]
    keeps, rebuilds = (count_flops(name, n, d) for name in ("standard_tiled", "flash_q_outer"))
    alone, whole = rebuilds[1] / keeps[1] - 1, sum(rebuilds) / sum(keeps) - 1
    checks = [0 < more < SLIGHT for more in (alone, whole)]
    why = (
        f"At N = {n}, d = {d} one head's backward takes {flops(rebuilds[1])} instead of "
        f"{flops(keeps[1])}, {100 * alone:.0f} % more; forward and backward together "
        f"{100 * whole:.0f} % more (up to {100 * SLIGHT:.0f} % passes as slight)."
    )
    return judged(checks, why, COUNTED)


def fused_launch(claim: Claim, evidence: Evidence) -> Judged:
    """Launches of a call with causal mask and dropout: one where the kernel is fused."""
    problem = AttentionProblem(1, 1, 256, 256, 64, causal="bottom_right", dropout_p=0.1, seed=0)
    steps = {
        name: len(variant.plan(problem, variant.nearest_tiling(problem, _TILING)).steps)
        for name, variant in RUNGS.items()
        if problem.dtype in variant.dtypes
    }
    fused = {name: n for name, n in steps.items() if RUNGS[name].keeps_scores_on_chip}
    others = {name: n for name, n in steps.items() if name not in fused}
    checks = [count == 1 for count in fused.values()] + [count > 1 for count in others.values()]
    why = (
        "With a causal mask and dropout "
        + ", ".join(
            f"{name} takes {_launches(count)}" for name, count in {**fused, **others}.items()
        )
        + "."
    )
    return judged(checks, why, "plans of launches")


def _launches(count: int) -> str:
    return "one launch" if count == 1 else f"{count} launches"

"""Claims about device memory: what is allocated, what is kept, what does not fit; recorded."""

from __future__ import annotations

from fa_kernels.measure.claim_tests.arithmetic import count_flops
from fa_kernels.measure.claim_tests.evidence import Evidence, at_words, lines, sizes_of, value
from fa_kernels.measure.claim_tests.judged import Judged, judged, nothing_recorded, share
from fa_kernels.measure.claims import Claim
from fa_kernels.measure.verdict import fit_exponent
from fa_kernels.problem import AttentionProblem
from fa_kernels.units import capacity
from fa_kernels.variants import VARIANTS

#: How near a fitted power of N must be to the law's, from `LONG_FROM` on.
NEAR, LONG_FROM = 0.05, 4096
#: One fused algorithm that is trained, and the one that keeps P.
REBUILDS, KEEPS = "flash_q_outer", "standard_tiled"
#: N x N matrices by the tensor that holds them.
SCORES = ("s", "p", "dp", "ds")


def extra_memory(claim: Claim, evidence: Evidence) -> Judged:
    """Powers of N by which the recorded peak beside the inputs grows; numbers: standard, flash."""
    found = evidence.rows("backward", metric="extra_mem_bytes", pass_="both", batch=1, nheads=2)
    checks, said = [], []
    for name, law in zip((KEEPS, REBUILDS), claim.numbers, strict=True):
        for line in lines(found.of(name).rows, LONG_FROM).values():
            power = fit_exponent((row.seqlen_q, value(row)) for row in line)
            checks.append(abs(power - law) <= NEAR)
            longest = max(line, key=lambda row: row.seqlen_q)
            said.append(
                f"{VARIANTS[name].label} as N^{power:.2f} (to {capacity(value(longest))} at N = "
                f"{longest.seqlen_q})"
            )
    if not checks:
        return nothing_recorded("the peak memory of a training step over N")
    why = (
        f"From N = {LONG_FROM} on the recorded peak of forward and backward beside the inputs "
        f"grows: {', '.join(said)}."
    )
    return judged(checks, why, found.source)


def context_limit(claim: Claim, evidence: Evidence) -> Judged:
    """Calls that do not fit the GPU's memory for S and P, and whether a fused kernel's do.

    A shape at which no fused kernel was tried says nothing.
    """
    too_large = evidence.rows("grid", metric="latency_ms", pass_="fwd", status="does not fit")
    failed = too_large.of(KEEPS, "torch_eager")
    if not failed:
        return nothing_recorded("a call that does not fit")
    fused = (REBUILDS, "torch_flash")
    timed = evidence.rows("grid", metric="latency_ms", pass_="fwd").of(*fused)
    fine = {sizes_of(row) for row in timed.rows}
    tried = fine | {sizes_of(row) for row in too_large.of(*fused).rows}
    shapes = sorted({sizes_of(row) for row in failed.rows}, key=lambda shape: (shape[3], shape))
    checks = [shape in fine for shape in shapes if shape in tried]
    why = (
        f"Standard attention does not fit this GPU's memory at {len(shapes)} recorded shapes, the "
        f"shortest with {at_words(shapes[0])}; where a fused kernel was tried, it ran at "
        f"{share(checks)} of them."
    )
    return judged(checks, why, failed.source)


def only_statistics_saved(claim: Claim, evidence: Evidence) -> Judged:
    """Whether lse, which stands for m and l, is all that a backward reads of the forward."""
    found = [
        evidence.rows("backward", metric=f"hbm_{tensor}_bytes", pass_="bwd").of(REBUILDS)
        for tensor in ("lse", "out")
    ]
    if not found[0]:
        return nothing_recorded("bytes counted in the backward of flash_q_outer")
    reads = [value(row) > 0 for row in found[0].rows]
    no_out = [value(row) == 0 for row in found[1].rows]
    row = max(found[0].rows, key=lambda row: row.seqlen_q)
    stats, out = row.problem.lse_bytes, row.problem.q_bytes
    why = (
        f"The counted backward reads one number a row (lse = m + log l, which stands for both) in "
        f"{share(reads)} calls; it does without O, which it needs for δ = dO · O, in "
        f"{share(no_out)}: at N = {row.seqlen_q} lse takes {capacity(stats)} and O {capacity(out)}."
    )
    return judged([*reads, *no_out], why, found[0].source)


def scores_rebuilt(claim: Claim, evidence: Evidence) -> Judged:
    """Whether a backward that rebuilds P moves any N x N matrix; counted."""
    total = evidence.rows("backward", metric="hbm_bytes", pass_="bwd")
    fused = [name for name in VARIANTS if VARIANTS[name].keeps_scores_on_chip]
    calls = total.of(*fused).rows
    if not calls:
        return nothing_recorded("bytes counted in a backward that rebuilds P")
    moved = {
        (row.series, sizes_of(row))
        for tensor in SCORES
        for row in evidence.rows("backward", metric=f"hbm_{tensor}_bytes", pass_="bwd").rows
        if value(row) > 0
    }
    checks = [(row.series, sizes_of(row)) not in moved for row in calls]
    kept = [row for row in total.of(KEEPS).rows if (row.series, sizes_of(row)) in moved]
    why = (
        f"No byte of S, P, dP or dS was counted in {share(checks)} backward calls that rebuild S "
        f"and P tile by tile; the standard backward moved such bytes in {len(kept)} calls."
    )
    return judged(checks, why, total.source)


def like_checkpointing(claim: Claim, evidence: Evidence) -> Judged:
    """What both ideas have in common: less kept, more computed; and whether bytes go the same way.

    A checkpoint keeps q, k, v alone and runs the forward of standard attention once more.
    """
    problem = AttentionProblem(1, 32, 4096, 4096, 64, "float16")
    keeps, rebuilds = VARIANTS[KEEPS].backward, VARIANTS[REBUILDS].backward
    assert keeps is not None and rebuilds is not None
    kept = [b.saved_bytes(problem) for b in (keeps, rebuilds)]
    standard, fused = (count_flops(name, 128, 32) for name in (KEEPS, REBUILDS))
    more = [sum(fused) / sum(standard) - 1, standard[0] / sum(standard)]
    less = kept[1] < kept[0]
    checks = [less, more[0] > 0, more[1] > 0]
    why = (
        f"At {problem.describe()} the kernel that rebuilds keeps {capacity(kept[1])} instead of "
        f"{capacity(kept[0])} and computes {100 * more[0]:.0f} % more in a step; a checkpoint, "
        f"which keeps neither, computes {100 * more[1]:.0f} % more."
    )
    return judged(checks, why, "model; counted in NumPy")

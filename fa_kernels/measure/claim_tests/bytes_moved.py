"""Claims about HBM traffic: bytes counted inside recorded kernels, and the models' laws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fa_kernels.measure.claim_tests.evidence import (
    Evidence,
    Found,
    at_words,
    pairs,
    sizes_of,
    tiles_of,
    value,
)
from fa_kernels.measure.claim_tests.judged import (
    HOLDS,
    Judged,
    judged,
    nothing_recorded,
    share,
)
from fa_kernels.measure.claims import Claim
from fa_kernels.measure.records import Row
from fa_kernels.measure.verdict import fit_exponent
from fa_kernels.problem import ITEMSIZE, AttentionProblem
from fa_kernels.tiling import Tiling, flash_smem, paper_smem_bytes
from fa_kernels.traffic.model import Traffic
from fa_kernels.units import KIB, capacity, span
from fa_kernels.variants import VARIANTS

STANDARD = ("standard_naive", "standard_tiled")
FLASH = ("flash_kv_outer", "flash_q_outer")
#: How near a fitted exponent must be to a law's: tiles are whole, and N d is added to N².
NEAR = 0.15
#: "Greatly" fewer: at most half.
GREATLY = 2.0
MODEL = "model"
_LENGTHS = (4096, 8192, 16384, 32768)
_WIDTHS, _SRAM_KIB = (32, 64, 128), (64, 128, 256)


def _matrix_bytes(row: Row) -> int:
    """Bytes of one N x N matrix for every head."""
    return row.batch * row.nheads * row.seqlen_q * row.seqlen_k * ITEMSIZE[row.dtype]


def standard_writes_scores(claim: Claim, evidence: Evidence) -> Judged:
    """Whether S and P of the standard kernels went through HBM, written and read; by counting."""
    counted = [
        evidence.rows("grid", metric=metric, pass_="fwd").of(*STANDARD)
        for metric in ("hbm_s_bytes", "hbm_p_bytes")
    ]
    if not all(counted):
        return nothing_recorded("bytes of S and P counted in the standard kernels")
    passes = [[value(row) / _matrix_bytes(row) for row in found.rows] for found in counted]
    checks = [number >= 2 for column in passes for number in column]
    why = (
        f"Counted in {len(counted[0].rows)} calls of the standard kernels, all N × N numbers of S "
        f"pass through HBM {span(passes[0])} times and those of P {span(passes[1])} times, written "
        f"and read; {share(checks)} counts are 2 or more."
    )
    return judged(checks, why, counted[0].source)


def scores_stay_on_chip(claim: Claim, evidence: Evidence) -> Judged:
    """Whether what fused kernels moved is all of Q, K, V, O and lse: nothing is left for S, P."""
    fused = [name for name, variant in VARIANTS.items() if variant.keeps_scores_on_chip]
    total = evidence.rows("grid", metric="hbm_bytes", pass_="fwd").of(*fused)
    if not total:
        return nothing_recorded("bytes counted in the fused kernels")
    parts: dict[tuple[object, ...], float] = {}
    for tensor in ("q", "k", "v", "out", "lse"):
        known = evidence.rows("grid", metric=f"hbm_{tensor}_bytes", pass_="fwd").of(*fused)
        for row in known.rows:
            parts[_call(row)] = parts.get(_call(row), 0.0) + value(row)
    left = [value(row) - parts.get(_call(row), 0.0) for row in total.rows]
    checks = [abs(rest) < 1 for rest in left]
    scores = [
        evidence.rows("grid", metric=f"hbm_{tensor}_bytes", pass_="fwd").of(*fused)
        for tensor in ("s", "p")
    ]
    checks += [False for found in scores for _ in found.rows]
    why = (
        f"In {share(checks)} counted calls of the fused kernels Q, K, V, O and lse are all that "
        "was moved: no byte is left for S or P."
    )
    return judged(checks, why, total.source)


def _call(row: Row) -> tuple[object, ...]:
    return row.series, sizes_of(row), tiles_of(row)


def only_output_written(claim: Claim, evidence: Evidence) -> Judged:
    """With Q tiles outside: O written once, and nothing else; counted."""
    found = [
        evidence.rows("grid", metric=f"hbm_{tensor}_bytes", pass_="fwd").of("flash_q_outer")
        for tensor in ("out", "lse")
    ]
    if not all(found):
        return nothing_recorded("bytes of O and lse counted in flash_q_outer")
    once = [value(row) == row.problem.q_bytes for row in found[0].rows]
    nothing_else = [value(row) == 0 for row in found[1].rows]
    out, lse = (sum(map(value, column.rows)) for column in found)
    why = (
        f"Counted, O leaves the chip once, with the size of Q, in {share(once)} calls; beside it "
        f"one number a row is written for the backward, lse, {100 * lse / out:.1f} % of the bytes "
        f"of O ({share(nothing_else)} calls write none)."
    )
    return judged([*once, *nothing_else], why, found[0].source)


def fewer_bytes(claim: Claim, evidence: Evidence) -> Judged:
    """Bytes of standard over flash with equal tiles, counted and of DRAM; "greatly": half."""
    counted = evidence.rows("grid", metric="hbm_bytes", pass_="fwd")
    dram = evidence.rows("counters", metric="dram_bytes", pass_="fwd")
    both, of_dram = (
        {sizes_of(a) + tiles_of(a): value(a) / value(b) for a, b in pairs(*_rivals(found))}
        for found in (counted, dram)
    )
    if not both:
        return nothing_recorded("bytes counted in standard_tiled and flash_q_outer at one point")
    checks = [ratio >= GREATLY for ratio in (*both.values(), *of_dram.values())]
    least = min(both, key=lambda at: both[at])
    why = (
        f"Standard attention asks for {span(list(both.values()))} times the bytes of "
        f"FlashAttention with equal tiles (counted in the kernels, {len(both)} points; least at "
        f"{at_words(least[:5])}, tiles {least[5]} × {least[6]})"
    )
    if of_dram:
        many = span(list(of_dram.values()))
        why += f", and DRAM moves {many} times as many (hardware counters)"
    why += f"; {share(checks)} ratios are {GREATLY:.0f} or more."
    sources = [one.source for one, ratios in ((counted, both), (dram, of_dram)) if ratios]
    return judged(checks, why, ", ".join(sources))


def _rivals(found: Found) -> tuple[Found, Found]:
    return found.of("standard_tiled"), found.of("flash_q_outer")


# -- laws ------------------------------------------------------------------------------------------


def _head(n: int, d: int) -> AttentionProblem:
    return AttentionProblem(1, 1, n, n, d, "float16")


def standard_law(claim: Claim, evidence: Evidence) -> Judged:
    """Bytes over N d + N²: a constant by the published algorithm, and by the launched kernel?"""
    tiling, n, d = Tiling(64, 64), _LENGTHS[0], _WIDTHS[1]
    found = {}
    for model in ("paper", "launched"):
        of = getattr(VARIANTS["standard_tiled"], model)

        def over_law(size: int, width: int, of: Callable[..., Traffic] = of) -> float:
            return of(_head(size, width), tiling).total_bytes / (size * width + size * size)

        found[model] = (
            fit_exponent((x, over_law(x, d)) for x in _LENGTHS),
            fit_exponent((x, over_law(n, x)) for x in _WIDTHS),
        )
    checks = [abs(power) <= NEAR for pair in found.values() for power in pair]
    paper, launched = found["paper"], found["launched"]
    why = (
        f"Bytes over Nd + N² grow as N^{paper[0]:.2f} and d^{paper[1]:.2f} for the published "
        f"algorithm, and as N^{launched[0]:.2f} and d^{launched[1]:.2f} for our kernel, whose "
        f"products read their tiles again: {share(checks)} exponents are within {NEAR} of 0."
    )
    return judged(checks, why, MODEL)


#: Powers of N and d, and minus that of M, in the dense law.
DENSE_POWERS = (2.0, 2.0, 1.0)


def flash_law(claim: Claim, evidence: Evidence) -> Judged:
    """Powers of N, d and M, both loop orders; numbers: those of N, of d, and minus that of M."""
    n_power, d_power, m_power = claim.numbers
    laws = {"N": n_power, "d": d_power, "M": -m_power}
    found = {name: _flash_slopes(name) for name in FLASH}
    checks = [abs(found[name][x] - law) <= NEAR for name in FLASH for x, law in laws.items()]
    said = [
        f"{VARIANTS[name].label} " + ", ".join(f"{x}^{power:.2f}" for x, power in slopes.items())
        for name, slopes in found.items()
    ]
    why = (
        f"By the published algorithms the bytes grow as {' and '.join(said)} (around N = "
        f"{_LENGTHS[0]}, d = {_WIDTHS[1]}, M = {_SRAM_KIB[1]} KiB): {share(checks)} exponents are "
        f"within {NEAR} of the law's"
    )
    if abs(found["flash_q_outer"]["M"] + m_power) > NEAR:
        why += "; with Q tiles outside it is B_r, at most d, that saves bytes"
    return judged(checks, f"{why}.", MODEL)


def _flash_slopes(name: str) -> dict[str, float]:
    n, d, kib = _LENGTHS[0], _WIDTHS[1], _SRAM_KIB[1]

    def moved(size: int, width: int, sram: int) -> int:
        tiling = Tiling.from_sram(sram * KIB, width, "float16")
        return VARIANTS[name].paper(_head(size, width), tiling).total_bytes

    return {
        "N": fit_exponent((x, moved(x, d, kib)) for x in _LENGTHS),
        "d": fit_exponent((x, moved(n, x, kib)) for x in _WIDTHS),
        "M": fit_exponent((x, moved(n, d, x)) for x in _SRAM_KIB),
    }


def sparse_law(claim: Claim, evidence: Evidence) -> Judged:
    """Recorded bytes and times under block masks: by what power of s they grow."""
    names = [name for name in FLASH if VARIANTS[name].block_sparse]
    metrics = {"hbm_bytes": "bytes", "latency_ms": "time"}
    powers: dict[str, list[float]] = {}
    source = ""
    for metric, word in metrics.items():
        found = evidence.rows("grid", dense=False, metric=metric, pass_="fwd").of(*names)
        source = source or found.source
        powers[word] = [
            fit_exponent((row.density, value(row)) for row in rows)
            for rows in _by_density(found).values()
        ]
    if not any(powers.values()):
        return nothing_recorded("calls with block masks of several densities")
    checks = [abs(power - 1) <= NEAR for found in powers.values() for power in found]
    each = " and ".join(
        f"{word} as s^{span(found, lambda x: f'{x:.2f}')}"
        for word, found in powers.items()
        if found
    )
    why = (
        f"Over the recorded densities grow {each}, at N from {_LENGTHS[0]} on: {share(checks)} "
        f"exponents are within {NEAR} of 1 (what Nd moves does not shrink with s)."
    )
    dense = flash_law(replace(claim, numbers=DENSE_POWERS), evidence)
    why += f" The law of N, d and M inside of it is that of dense attention: {dense.word}."
    return judged([*checks, dense.word == HOLDS], why, f"{source}, {dense.source}")


def _by_density(found: Found) -> dict[tuple[object, ...], list[Row]]:
    """Rows that differ in density alone, those without a mask (s = 1) with them; from 3 on."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    dense: dict[tuple[object, ...], Row] = {}
    for row in found.rows:
        if row.seqlen_q < _LENGTHS[0] or row.causal != "none":
            continue
        at = (row.series, row.dtype, row.seqlen_q, row.head_dim, row.block_m, row.block_n)
        if row.block_mask:
            groups.setdefault((*at, row.block_mask), []).append(row)
        else:
            dense[at] = row
    for key, rows in groups.items():
        if key[:-1] in dense:
            rows.append(replace(dense[key[:-1]]))
    return {key: rows for key, rows in groups.items() if len({r.density for r in rows}) >= 3}


def tile_rule(claim: Claim, evidence: Evidence) -> Judged:
    """B_c and B_r of the rule, and whether all that a block needs then fits in M."""
    tiles = {
        (d, kib): Tiling.from_sram(kib * KIB, d, "float16") for d in _WIDTHS for kib in _SRAM_KIB
    }
    operands = [flash_smem(t.block_m, t.block_n, d, 2).parts[:3] for (d, _), t in tiles.items()]
    sizes = [kib * KIB for _, kib in tiles]
    fits = [sum(b for _, b in parts) <= m for parts, m in zip(operands, sizes, strict=True)]
    whole = [
        paper_smem_bytes(t.block_m, t.block_n, d, 2) <= kib * KIB for (d, kib), t in tiles.items()
    ]
    d, kib = _WIDTHS[-1], _SRAM_KIB[-1]
    need = paper_smem_bytes(tiles[d, kib].block_m, tiles[d, kib].block_n, d, 2)
    why = (
        f"With the rule's B_c and B_r, tiles of Q, K and V fit in M at {share(fits)} points (d = "
        f"{span(_WIDTHS, str)}, M = {span(_SRAM_KIB, str)} KiB, fp16; M counts elements), together "
        f"with S and O in fp32 at {share(whole)}: at d = {d}, M = {kib} KiB all of it takes "
        f"{capacity(need)}."
    )
    return judged([*fits, *whole], why, MODEL)

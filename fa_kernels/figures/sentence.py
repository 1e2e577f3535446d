"""What the figure says at a point, in words: how much more is moved, and which limit binds."""

from __future__ import annotations

from collections.abc import Iterable

from fa_kernels import units
from fa_kernels.figures.point import (
    ARITHMETIC,
    BANDWIDTH,
    CACHED,
    COMPARED,
    Bound,
    Point,
    device_words,
    ratio_text,
)
from fa_kernels.variants import VARIANTS, Variant


def sentence(point: Point) -> str:
    """What the figure says at this point, and which limit binds; also its alternative text."""
    tiles = f"B_r = {point.tiling.block_m}, B_c = {point.tiling.block_n}"
    sizes = f"N = {point.seqlen}, d = {point.problem.head_dim}, M = {point.sram_kib} KiB ({tiles})"
    if blocks := point.blocks:
        sizes += f", with {point.pattern} blocks at s = {blocks.density:.3g},"
    first, last = (VARIANTS[name] for name in COMPARED)
    moved = [point.traffic(variant).total_bytes for variant in (first, last)]
    ratio = ratio_text(moved[0] / moved[1])
    return (
        f"At {sizes} {point.label(first)} moves {ratio} the HBM bytes of {point.label(last)}. "
        f"{binding(point)}"
    )


def binding(point: Point) -> str:
    """Which limit of the device binds each compared variant, in one or two sentences."""
    name = device_words(point.device)
    compared, refusals = [VARIANTS[one] for one in COMPARED], point.refusals
    tight = [variant for variant in compared if not point.fits(variant)]
    loose = [v for v in compared if point.fits(v) and v.name not in refusals]
    words = []
    if tight:
        needs = [units.capacity(v.memory(point.problem).total_bytes) for v in tight]
        wants = " and ".join(
            f"{v.label} needs {need}" for v, need in zip(tight, needs, strict=True)
        )
        have = units.capacity(point.device.hbm_capacity_bytes)
        words.append(f"Memory capacity binds: {wants}, {name} has {have}.")
    if loose:
        words.append(f"On the {name} {_limits(point, loose)}.")
    for refused, why in refusals.items():
        words.append(f"{VARIANTS[refused].label} cannot be launched: {why}")
    return " ".join(words)


def _limits(point: Point, variants: list[Variant]) -> str:
    """One clause per limit: the variants it binds, and the times that show it."""
    bounds = {variant.label: point.bound(variant) for variant in variants}

    def bound_by(limit: str) -> tuple[str, list[Bound], str]:
        found = {label: bound for label, bound in bounds.items() if bound.limit == limit}
        some = list(found.values())
        return " and ".join(found), some, _times(dict.fromkeys(b.fp32_ms for b in some))

    clauses = []
    labels, some, fp32 = bound_by(BANDWIDTH)
    if some:
        moving = _times(b.compulsory_ms for b in some)
        clauses.append(f"{BANDWIDTH} binds {labels} ({moving}, against {fp32} of {ARITHMETIC})")
    labels, some, fp32 = bound_by(ARITHMETIC)
    if some:
        moving = _times(b.requested_ms for b in some)
        clauses.append(
            f"{ARITHMETIC} binds {labels} ({fp32}, against at most {moving} of HBM traffic)"
        )
    said = fp32
    labels, some, fp32 = bound_by(CACHED)
    if some:
        subject = "it" if said == fp32 else f"{'it' if said else ARITHMETIC} ({fp32})"
        clauses.append(f"{subject} binds {labels} as long as {_cached_words(some)}")
    return "; ".join(clauses)


def _cached_words(bounds: list[Bound]) -> str:
    names = sorted(
        {tensor.upper() for bound in bounds for tensor in bound.reread}, key="QKVSP".index
    )
    tensors = " and ".join([", ".join(names[:-1]), names[-1]])
    asked = _times(b.requested_ms for b in bounds)
    least = _times(b.compulsory_ms for b in bounds)
    return (
        f"the L2 cache answers the re-reads of {tensors} "
        f"({asked} requested at the HBM rate, {least} of it compulsory)"
    )


def _times(milliseconds: Iterable[float]) -> str:
    return " and ".join(units.duration(ms) for ms in milliseconds)

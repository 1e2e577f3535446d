"""The ladder as it is compiled: every rung's kernel, in rung order, launch by launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fa_kernels.cuda.compiled import Build, CompiledLaunch
from fa_kernels.measure.compiled_run import Shipped
from fa_kernels.variants import RUNGS, Variant


@dataclass(frozen=True)
class Rung:
    """One rung and what its kernel was compiled to; None: not for this dtype and GPU."""

    variant: Variant
    build: Build | None

    @property
    def number(self) -> str:
        """Of its kernel's file: "04"."""
        return number_of(self.variant)

    @property
    def name(self) -> str:
        """What figures and sentences call it: "04 flash"."""
        return name_of(self.variant)

    @property
    def said(self) -> str:
        """What running text calls it: "rung 04"."""
        return said_of(self.variant)

    @property
    def tiles(self) -> str:
        """Tile sizes, or "" where the kernel has none."""
        if self.build is None or not self.variant.tiled:
            return ""
        return f"{self.build.tiles[0]} × {self.build.tiles[1]}"

    def launch_name(self, launch: CompiledLaunch) -> str:
        """The part of an entry's name that tells it from the rung's other launches, or ""."""
        backward = self.variant.backward
        kernels = [backward.kernel] if backward else []
        for kernel in (*kernels, self.variant.kernel):  # the longer name first
            launch_of = kernel.partition("_")[2]
            if launch.entry.startswith(launch_of):
                return launch.entry.removeprefix(launch_of).strip("_")
        return launch.entry


def number_of(variant: Variant) -> str:
    """The rung: "04"."""
    return variant.kernel.partition("_")[0]


def said_of(variant: Variant) -> str:
    """What running text calls it: "rung 04"."""
    return f"rung {number_of(variant)}"


def name_of(variant: Variant) -> str:
    """The rung and what figures call the algorithm: "04 flash"."""
    return f"{number_of(variant)} {variant.label}"


def in_rung_order() -> list[Variant]:
    """The rungs by the number of their kernels."""
    return sorted(RUNGS.values(), key=lambda variant: variant.kernel)


def rungs(dtype: str, head_dim: int, arch: int, pass_: str = "fwd") -> list[Rung]:
    """Every rung that has this pass, as it is shipped for a GPU, recorded or compiled here."""
    found = []
    for variant in in_rung_order():
        if pass_ == "bwd" and variant.backward is None:
            continue
        shipped = Shipped.of(variant, dtype, head_dim, arch, pass_)
        found.append(Rung(variant, shipped.build() if shipped else None))
    return found


def launches(found: Sequence[Rung]) -> list[tuple[Rung, CompiledLaunch]]:
    """Every launch of every rung that has one, from the first rung on."""
    return [(rung, launch) for rung in found if rung.build for launch in rung.build.launches]


def sources(found: Sequence[Rung]) -> list[str]:
    """Where the numbers come from, each source once."""
    known = (rung.build.source for rung in found if rung.build)
    return list(dict.fromkeys(known))


def outdated(found: Sequence[Rung]) -> list[str]:
    """Rungs whose kernel or launch is not the one that was recorded."""
    return [rung.name for rung in found if rung.build and not rung.build.current]


def row_labels(rows: Sequence[tuple[Rung, CompiledLaunch]]) -> list[str]:
    """Words at the left of each row: the rung where it begins, and the launch if it has several."""
    labels, before = [], None
    for rung, launch in rows:
        part = rung.launch_name(launch)
        head = f"<b>{rung.name}</b>" if rung is not before else ""
        labels.append(f"{head}{', ' if head and part else ''}{part}&nbsp;")
        before = rung
    return labels


def row_heights(rows: Sequence[tuple[Rung, CompiledLaunch]]) -> list[float]:
    """Where each row stands, from the top down; rungs stand a little apart."""
    heights, at, before = [], 0.0, None
    for rung, _ in rows:
        at -= 0.25 if before is not None and rung is not before else 0.0
        heights.append(at)
        at, before = at - 1.0, rung
    return [height - at - 1.0 for height in heights]

"""Check compiled numbers: formulas against the compiler, the record against this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fa_kernels.cuda.compiled import CompiledLaunch, can_compile
from fa_kernels.figures.rungs import Rung, in_rung_order, name_of
from fa_kernels.measure.compiled_run import Shipped, nvrtc_version
from fa_kernels.problem import DTYPE_FROM_SHORT
from fa_kernels.widgets.rung_view import Compiled
from fa_kernels.widgets.text import html_table, labels, text_table


@dataclass(frozen=True)
class CompiledLine:
    """One launch: shared memory by formula and as planned, registers on record and made here.

    `here` is None where nothing can be compiled; `formula_bytes` None for launches that hold no
    tiles.
    """

    name: str
    formula_bytes: int | None
    recorded: CompiledLaunch
    here: CompiledLaunch | None

    @property
    def ok(self) -> bool:
        """True if nothing differs that was compared."""
        if self.formula_bytes not in (None, self.recorded.smem_bytes):
            return False
        # Instructions can be read only where nvdisasm is installed: they are not compared.
        return self.here is None or replace(self.here, mix=None) == replace(self.recorded, mix=None)


@dataclass(frozen=True)
class CompiledCheck:
    """One line per launch, shown as a table."""

    setting: Compiled
    lines: Sequence[CompiledLine]

    @property
    def ok(self) -> bool:
        """True if every line holds."""
        return all(line.ok for line in self.lines)

    def cells(self) -> list[list[str]]:
        """The table as text: a row of heads, then one row per launch."""
        text = labels("compiled_check")
        columns = ("launch", "formula", "asked", "recorded", "here", "blocks", "ratio")
        rows = [[str(text[name]) for name in columns]]
        for line in self.lines:
            one, here = line.recorded, line.here
            formula = "" if line.formula_bytes is None else str(line.formula_bytes)
            ratio = f"{here.registers / one.registers:.3f}" if here else ""
            rows.append(
                [
                    line.name, formula, str(one.smem_bytes), str(one.registers),
                    str(here.registers) if here else text["not_here"],
                    str(one.occupancy(self.setting.arch).blocks), ratio,
                ]
            )  # fmt: skip
        return rows

    def caption(self) -> str:
        """What was compared, and what came of it."""
        text = labels("compiled_check")
        compared = any(line.here for line in self.lines)
        name = "no_compiler" if not compared else "holds" if self.ok else "differs"
        verdict = text[name].format(nvrtc=nvrtc_version() if compared else "")
        s = self.setting
        return str(text["caption"]).format(d=s.d, dtype=s.dtype, arch=s.arch, verdict=verdict)

    def __str__(self) -> str:
        return text_table(self.caption(), self.cells())

    def _repr_html_(self) -> str:
        head, *body = self.cells()
        return html_table("compiled-check", self.caption(), head, body, "falab-table falab-dense")


def check_compiled(d: int = 64, *, dtype: str = "fp16", arch: int | str = 90) -> CompiledCheck:
    """Compile every rung again, where NVRTC is installed, and hold it against the record.

    Beside it the shared memory that the tiles need by formula, against what the launch asks for.
    Another release of NVRTC may use other registers: that is said, and is no fault.

    Args and errors as `resources`.
    """
    setting = Compiled.of(d, dtype, arch)
    lines: list[CompiledLine] = []
    for variant in in_rung_order():
        shipped = Shipped.of(variant, DTYPE_FROM_SHORT[setting.dtype], setting.d, setting.arch)
        build = shipped.build() if shipped else None
        if shipped is None or build is None:
            continue
        here = _compiled_here(shipped)
        for i, launch in enumerate(build.launches):
            part = Rung(variant, build).launch_name(launch)
            name = f"{name_of(variant)}, {part}" if part else name_of(variant)
            lines.append(
                CompiledLine(name, _formula(shipped, i), launch, here[i] if here else None)
            )
    return CompiledCheck(setting, lines)


def _compiled_here(shipped: Shipped) -> Sequence[CompiledLaunch]:
    if not can_compile():
        return ()
    try:
        return shipped.compiled().launches
    except (ImportError, OSError, RuntimeError):
        return ()


def _formula(shipped: Shipped, launch: int) -> int | None:
    """What the tiles of the largest launch need; a kernel states its formula in its header."""
    steps, layout = shipped.plan.steps, shipped.plan.layout
    largest = max(range(len(steps)), key=lambda i: steps[i].smem_bytes)
    return layout.smem_bytes if shipped.variant.tiled and launch == largest else None

"""What each rung takes of an SM: registers, shared memory, spills, resident blocks, the limit."""

from __future__ import annotations

from collections.abc import Sequence

from fa_kernels.cuda.compiled import CompiledLaunch
from fa_kernels.figures.resources import resources_spec
from fa_kernels.figures.rungs import Rung, launches
from fa_kernels.units import capacity
from fa_kernels.widgets.rung_view import Compiled, RungView
from fa_kernels.widgets.text import html_table, labels

_COLUMNS = (
    "column_launch",
    "column_tiles",
    "column_threads",
    "column_registers",
    "column_spills",
    "column_static",
    "column_dynamic",
    "column_blocks",
    "column_warps",
    "column_limiter",
)


def takeaway(found: Sequence[Rung], arch: int) -> str:
    """What limits each of the last rungs, how full the SM is, and whether anything spills."""
    text = labels("resources")
    rows = launches(found)
    if not rows:
        return str(text["said_nothing"])
    last = rows[-1][0]
    # Of several launches the one that fills the registers of an SM most: it does the work.
    of_last = [launch for rung, launch in rows if rung is last]
    rung, launch = last, max(of_last, key=lambda launch: launch.registers * launch.threads)
    at = launch.occupancy(arch)
    said = text["said" if at.blocks != 1 else "said_one"].format(
        name=rung.said, limiter=at.limiter, blocks=at.blocks, warps=at.warps, most=at.max_warps,
        percent=f"{100 * at.fraction:.0f}",
    )  # fmt: skip
    rung, launch = max(rows, key=lambda row: row[1].occupancy(arch).fraction)
    full = launch.occupancy(arch)
    said += " " + text["said_full"].format(
        name=rung.said, entry=launch.entry, percent=f"{100 * full.fraction:.0f}"
    )
    spilling = [r.said for r in found if r.build and r.build.spill_bytes]
    if spilling:
        return f"{said} {text['said_spills'].format(names=', '.join(spilling))}"
    return f"{said} {text['said_no_spills']}"


def resources_table(rows: Sequence[tuple[Rung, CompiledLaunch]], arch: int, caption: str) -> str:
    """The numbers behind the figure, one row per launch, as HTML."""
    text = labels("resources")
    body = []
    for rung, launch in rows:
        at = launch.occupancy(arch)
        body.append(
            [
                f"{rung.number} {launch.entry}", rung.tiles or text["no_tiles"],
                str(launch.threads), str(launch.registers), str(launch.spill_bytes),
                capacity(launch.static_smem_bytes), capacity(launch.smem_bytes), str(at.blocks),
                f"{at.warps} of {at.max_warps}", at.limiter,
            ]
        )  # fmt: skip
    head = [text[name] for name in _COLUMNS]
    return html_table("resources", caption, head, body, "falab-table falab-dense falab-ways")


class Resources(RungView):
    """Registers, shared memory, threads and blocks of every launch, against one SM."""

    section = mark = "resources"
    pins = False  # four thin bars a launch: outlines would cover them
    least_width = 640

    def draw(self, setting: Compiled, stamp: float) -> None:
        """Compute and show a setting."""
        found = setting.rungs
        rows, said = launches(found), takeaway(found, setting.arch)
        alt = self.text["figure"].format(sentence=said)
        table = resources_table(rows, setting.arch, self.caption(setting, found))
        self.show(resources_spec(rows, setting.arch, self.text), alt, said, table, stamp)


def resources(
    d: int = 64, *, dtype: str = "fp16", arch: int | str = 90, pass_: str = "fwd"
) -> Resources:
    """What a block of every rung takes of an SM, how many fit, and which limit binds.

    Read from the compiled code as it is shipped: data/compiled, or NVRTC where a kernel has changed
    since. No GPU is needed.

    Args:
        d: head dimension, 64 or 128.
        dtype: "fp16" or "fp32".
        arch: 80 (A100) or 90 (H100, H200), also as "sm_90".
        pass_: "fwd" or "bwd".

    Raises:
        ValueError: something of which no build is kept; value, limit and remedy.
    """
    return Resources(Compiled.of(d, dtype, arch, pass_))

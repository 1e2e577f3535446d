"""FlashAttention's figure 2 (middle): time and bytes over the block size, on one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fa_kernels.device import Device
from fa_kernels.device import device as find_device
from fa_kernels.figures.figure2_middle import BYTES, TIMES, figure2_middle_spec, value_of
from fa_kernels.figures.paper_recorded import devices_with_numbers, paper_numbers
from fa_kernels.measure.paper import load_paper, select
from fa_kernels.measure.paper_calls import MIDDLE_BLOCK_M
from fa_kernels.measure.paper_figures import BlockSize, block_sizes, middle
from fa_kernels.measure.speed_backward import FIG2_LEFT
from fa_kernels.measure.verdict import Verdict, middle_hbm
from fa_kernels.session import Session, in_use
from fa_kernels.units import significant
from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.drawn_view import DrawnView
from fa_kernels.widgets.explorer_point import default_device
from fa_kernels.widgets.paper_results import takeaway, verdict_table
from fa_kernels.widgets.text import html_table, labels


def middle_table(sizes: Sequence[BlockSize], found: Verdict, device: Device) -> str:
    """Every quantity under its own name, a row per block size, as HTML."""
    text = labels("figure2_middle")
    names = [n for n in (*TIMES, *BYTES) if any(value_of(one, n) is not None for one in sizes)]
    head = [text["axis_block"]]
    for name in names:
        head.append(f"{text['names'][name]}, {'ms' if name in TIMES else 'GB'}")
    body = []
    for one in sizes:
        cells = [str(one.block_n)]
        for name in names:
            value, unit = value_of(one, name), 1.0 if name in TIMES else 1e9
            absent = text["cannot"] if one.refused and name not in ("paper", "launched") else ""
            cells.append(absent if value is None else significant(value / unit))
        body.append(cells)
    runs = ", ".join(found.runs)
    source = text["recorded"].format(runs=runs) if runs else text["no_run"]
    caption = text["caption"].format(
        problem=FIG2_LEFT.describe(), device=device.name, source=source, block_m=MIDDLE_BLOCK_M
    )
    return html_table("figure2-middle", caption, head, body, "falab-table falab-dense")


class Figure2Middle(DrawnView):
    """Time and bytes over B_c; `sizes` are what is shown."""

    section, mark = "figure2_middle", "middle"
    sizes: Sequence[BlockSize]

    def __init__(self, device: str, offered: Sequence[Device], root: Path | None) -> None:
        """`offered`: GPUs to choose from; `root` holds the runs."""
        self.root = root
        gpus = [(sheet.name, sheet.slug) for sheet in offered]
        self.gpu = Choice(labels(self.section)["gpu"], gpus, device)
        self.gpu.disabled = len(gpus) < 2
        super().__init__(device, (self.gpu,))

    @property
    def setting(self) -> str:
        """The GPU that the control shows."""
        return str(self.gpu.value)

    def arguments(self) -> dict[str, Any]:
        """The GPU is all there is."""
        return {"device": self.setting}

    def draw(self, setting: str, stamp: float) -> None:
        """Compute and show the runs of a GPU."""
        sheet = find_device(setting)
        rows = select(load_paper(), paper="FlashAttention", where="fig. 2 middle")
        numbers = paper_numbers(sheet, self.root)
        self.sizes, found = block_sizes(rows, numbers), middle(rows, numbers)
        verdicts = (found, middle_hbm(rows))
        said = takeaway(verdicts)
        alt = self.text["figure"].format(sentence=said)
        table = middle_table(self.sizes, found, sheet)
        table += verdict_table("middle-sentences", self.text["sentences"], verdicts)
        self.show(figure2_middle_spec(self.sizes, self.text), alt, said, table, stamp)


def figure2_middle(*, device: str | None = None, session: Session | None = None) -> Figure2Middle:
    """Runtime, modelled, counted, L2 and DRAM bytes of Algorithm 1 over the block size B_c.

    At the shape of FlashAttention's figure 2, forward. Each quantity under its own name; one that
    no run holds is not drawn.

    Args:
        device: slug of the GPU whose runs are shown; default: the session's.
        session: what `fa.session` returned; default: the current one.

    Raises:
        ValueError: no such device; TypeError: `session` is not one.
    """
    used = in_use(session)
    sheet = find_device(default_device(used) if device is None else device)
    offered = {one.slug: one for one in (*devices_with_numbers(used.root), sheet)}
    return Figure2Middle(sheet.slug, list(offered.values()), used.root)

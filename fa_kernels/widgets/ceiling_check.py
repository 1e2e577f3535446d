"""Check a GPU against its data sheet: every measured ceiling beside what is printed, the ratio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fa_kernels.device import Device
from fa_kernels.device import device as find_device
from fa_kernels.figures.fastest_recorded import FastestKernel
from fa_kernels.figures.recorded_ceilings import PRODUCTS, MeasuredCeilings, SheetRate, sheet_rate
from fa_kernels.measure.ceiling_records import CEILINGS, CeilingRow
from fa_kernels.session import Session, in_use
from fa_kernels.units import significant
from fa_kernels.widgets.explorer_point import default_device
from fa_kernels.widgets.memory_levels import run_words
from fa_kernels.widgets.roofline import faster_words
from fa_kernels.widgets.text import html_table, labels, text_table

#: Ceilings of what is in the SMs and follows their clock -> what is counted.
PER_CLOCK = {
    "smem_read": "B", "fp32_fma": "FLOP", "exp2": "exp", "matmul_fp16_sustained": "FLOP",
    "matmul_bf16_sustained": "FLOP",
}  # fmt: skip


@dataclass(frozen=True)
class CeilingLine:
    """One ceiling: what the data sheet says of it, and what was measured; None: nothing."""

    name: str
    sheet: SheetRate
    row: CeilingRow | None

    @property
    def ratio(self) -> float | None:
        """Measured over data sheet."""
        if self.row is None or self.row.median is None or self.sheet.value is None:
            return None
        return self.row.median / self.sheet.value

    def per_clock(self, sms: int) -> float | None:
        """What one of so many SMs did in a clock; None of what no unit in them bounds."""
        if self.name not in PER_CLOCK or self.row is None:
            return None
        if self.row.median is None or self.row.sm_mhz is None:
            return None
        scale = {"T": 1e12, "G": 1e9}[self.row.unit[0]]
        return self.row.median * scale / (1e6 * self.row.sm_mhz * sms)

    def clock_cells(self, sms: int) -> tuple[str, str]:
        """The clock while it was measured, and the rate per clock and SM; "" where unknown."""
        mhz, per_clock = self.row.sm_mhz if self.row else None, self.per_clock(sms)
        said = labels("ceiling_check")["mhz"].format(mhz=f"{mhz:.0f}") if mhz else ""
        thing = f"{significant(per_clock)} {PER_CLOCK[self.name]}" if per_clock else ""
        return said, thing


@dataclass(frozen=True)
class CeilingCheck:
    """One line per ceiling, shown as a table; `fastest` recorded kernels of the GPU by dtype."""

    device: Device
    measured: MeasuredCeilings
    lines: Sequence[CeilingLine]
    fastest: Mapping[str, FastestKernel] = field(default_factory=dict)

    def cells(self) -> list[list[str]]:
        """The table as text: a row of heads, then one row per ceiling."""
        text = labels("ceiling_check")
        clocked = any(line.row and line.row.sm_mhz for line in self.lines)
        columns = ["ceiling", "unit", "sheet", "measured", "spread", "ratio"]
        columns += [*(("clock", "per_clock") if clocked else ()), "how"]
        rows = [[str(text[name]) for name in columns]]
        for line in self.lines:
            sheet = text["no_rate"] if line.sheet.value is None else significant(line.sheet.value)
            if line.sheet.derived:
                sheet = text["is_derived"].format(rate=sheet)
            row, ratio = line.row, f"{line.ratio:.3f}" if line.ratio else ""
            measured = spread = ""
            how = (
                self.measured.how(line.name)
                if row
                else text["not_in_run" if self.measured else "not_recorded"]
            )
            if row and row.median and row.p20 and row.p80:
                measured = significant(row.median)
                spread = f"{significant(row.p20)} … {significant(row.p80)}"
            rows.append(
                [
                    text["names"][line.name], CEILINGS[line.name], sheet, measured, spread, ratio,
                    *(line.clock_cells(self.device.sm_count) if clocked else ()), how,
                ]
            )  # fmt: skip
        return rows

    def caption(self) -> str:
        """The device, the run, and which products a recorded kernel is faster than."""
        text, said = labels("ceiling_check"), [run_words(self.measured)]
        faster = [
            faster_words(self.measured.product(name), self.measured.rate(name), kernel)
            for dtype, name in PRODUCTS.items()
            if (kernel := self.fastest.get(dtype))
        ]
        said += [text["is_no_limit"]] if self.measured else []
        return " ".join(
            [text["caption"].format(device=self.device.name), *said, *filter(None, faster)]
        )

    def __str__(self) -> str:
        return text_table(self.caption(), self.cells())

    def _repr_html_(self) -> str:
        head, *body = self.cells()
        return html_table("ceilings", self.caption(), head, body, "falab-table falab-dense")


def check_ceilings(device: str | None = None, session: Session | None = None) -> CeilingCheck:
    """Every ceiling of a GPU: data sheet, measured, and the ratio of the two.

    Args and errors as `memory_levels`.
    """
    used = in_use(session)
    sheet = find_device(default_device(used) if device is None else device)
    measured = MeasuredCeilings.on(sheet, used.root)
    lines = [
        CeilingLine(name, sheet_rate(sheet, name), measured.rows.get(name)) for name in CEILINGS
    ]
    fastest = FastestKernel.of_each_dtype(sheet, used.root) if measured else {}
    return CeilingCheck(sheet, measured, lines, fastest)

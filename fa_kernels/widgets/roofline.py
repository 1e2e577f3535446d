"""Where every rung and peer stands under the roofline of a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fa_kernels.device import Device
from fa_kernels.figures.point import device_words
from fa_kernels.figures.roofline import Ceilings, Mark, marks_of, roofline_spec
from fa_kernels.figures.rungs import in_rung_order
from fa_kernels.measure.compiled_run import HEAD_DIMS, Shipped
from fa_kernels.session import Session
from fa_kernels.units import significant
from fa_kernels.widgets.ladder import SizedView, ladder_runs
from fa_kernels.widgets.recompute_cost import Sizes
from fa_kernels.widgets.text import html_table, labels

_COLUMNS = (
    "column_series",
    "column_units",
    "column_intensity",
    "column_rate",
    "column_peak",
    "column_roof",
    "column_binds",
)


def tensor_cores(arch: int) -> dict[str, bool]:
    """Which variants have instructions for the tensor cores, as their compiled code says."""
    found = {}
    for variant in in_rung_order():
        dtype = "float16" if "float16" in variant.dtypes else variant.dtypes[0]
        shipped = Shipped.of(variant, dtype, HEAD_DIMS[0], arch)
        build = shipped.build() if shipped else None
        found[variant.name] = build is not None and build.uses_tensor_cores
    return found


def takeaway(marks: Sequence[Mark], ceilings: Ceilings, device: Device) -> str:
    """How near the best rung comes to the peak of its units, and which ceiling is above it."""
    text = labels("roofline")
    ours = [mark for mark in marks if not mark.at_most]
    if not ours:
        return str(text["said_nothing"])
    best = max(ours, key=lambda mark: mark.tflops)
    peak = ceilings.peak(best.tensor_cores)
    flat = ceilings.roof(best.intensity, best.tensor_cores) >= peak
    said = text["said"].format(
        name=_short(best), rate=significant(best.tflops), units=text[_units(best)],
        percent=f"{100 * best.tflops / peak:.0f}", peak=significant(peak),
        device=device_words(device),
    )  # fmt: skip
    where = text["said_flat" if flat else "said_slope"]
    said += " " + where.format(intensity=significant(best.intensity))
    peers = [mark for mark in marks if mark.at_most]
    if peers:
        top = max(peers, key=lambda mark: mark.tflops)
        share = f"{100 * top.tflops / ceilings.peak(top.tensor_cores):.0f}"
        said += " " + text["said_peer"].format(
            name=top.step.name, rate=significant(top.tflops), percent=share,
            units=text[_units(top)],
        )  # fmt: skip
    return said


def _short(mark: Mark) -> str:
    return f"rung {mark.step.name.split(' ')[0]}"


def _units(mark: Mark) -> str:
    return "units_tensor" if mark.tensor_cores else "units_fp32"


def roofline_table(marks: Sequence[Mark], ceilings: Ceilings, device: Device, problem: str) -> str:
    """The numbers behind the figure, one row per series, as HTML."""
    text, body = labels("roofline"), []
    for mark in marks:
        peak = ceilings.peak(mark.tensor_cores)
        roof = ceilings.roof(mark.intensity, mark.tensor_cores)
        binds = "bytes" if roof < peak else "arithmetic"
        most = text["at_most"] if mark.at_most else ""
        body.append(
            [
                mark.step.name, text[_units(mark)], f"{most}{significant(mark.intensity)}",
                significant(mark.tflops), f"{100 * mark.tflops / peak:.0f} %",
                f"{most}{significant(roof)}", "" if mark.at_most else text[binds],
            ]
        )  # fmt: skip
    runs = sorted({mark.step.run_id for mark in marks})
    source = text["source"].format(runs=", ".join(runs)) if runs else text["no_source"]
    caption = text["caption"].format(problem=problem, device=device.name, source=source)
    head = [text[name] for name in _COLUMNS]
    return html_table("roofline", caption, head, body, "falab-table falab-dense")


class Roofline(SizedView):
    """FLOP per byte against TFLOP/s, under the data sheet's ceilings; `marks` are those shown."""

    marks: Sequence[Mark]

    section = mark = "roofline"

    def draw(self, setting: Sizes, stamp: float) -> None:
        """Compute and show a setting."""
        problem = setting.problem
        ceilings = Ceilings.of(self.device, problem.dtype)
        marks = marks_of(self.runs.steps(problem), self._tensor_cores, self.runs)
        self.marks = marks
        said = takeaway(marks, ceilings, self.device)
        alt = self.text["figure"].format(sentence=said)
        table = roofline_table(marks, ceilings, self.device, problem.describe())
        self.show(roofline_spec(marks, ceilings, self.text), alt, said, table, stamp)

    @property
    def _tensor_cores(self) -> Mapping[str, bool]:
        return tensor_cores(self.device.sm)


def roofline(
    N: int = 4096,
    d: int = 64,
    *,
    dtype: str = "fp16",
    device: str | None = None,
    session: Session | None = None,
) -> Roofline:
    """FLOP per HBM byte (launched model) against recorded TFLOP/s, with the GPU's ceilings.

    Of a peer nobody counted the bytes: it stands, open, at the FLOP per byte of moving every tensor
    once, which no kernel exceeds.

    Args and errors as `ladder`.
    """
    return Roofline(Sizes.of(N, d, dtype), *ladder_runs(device, session))

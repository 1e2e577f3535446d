"""Where every rung and peer stands under the roofline of a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fa_kernels.device import Device
from fa_kernels.figures.fastest_recorded import FastestKernel
from fa_kernels.figures.ladder import LadderRuns
from fa_kernels.figures.point import device_words
from fa_kernels.figures.recorded_ceilings import MeasuredCeilings
from fa_kernels.figures.roofline import Ceilings, Mark, marks_of, roofline_spec
from fa_kernels.figures.rungs import in_rung_order
from fa_kernels.measure.compiled_run import HEAD_DIMS, Shipped
from fa_kernels.session import Session, in_use
from fa_kernels.units import significant
from fa_kernels.widgets.headline import Headline
from fa_kernels.widgets.ladder import SizedView, known_sizes, ladder_runs
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


def takeaway(
    marks: Sequence[Mark],
    ceilings: Ceilings,
    device: Device,
    measured: Ceilings | None = None,
    fastest: FastestKernel | None = None,
    known: str = "",
) -> str:
    """How near the best rung comes to the peak of its units, and which ceiling is above it.

    `measured`: the peaks that the GPU was seen to reach, where they are known; `fastest`: the
    fastest recorded kernel of this GPU and dtype, which may be faster than they are; `known`: what
    sizes are recorded, for a point that has nothing.
    """
    text = labels("roofline")
    ours = [mark for mark in marks if not mark.at_most]
    if not ours:
        recorded = text["said_known"].format(known=known) if known else ""
        return f"{text['said_nothing']} {recorded}".strip()
    best = max(ours, key=lambda mark: mark.tflops)
    peak = ceilings.peak(best.tensor_cores)
    flat = ceilings.roof(best.intensity, best.tensor_cores) >= peak
    said = text["said"].format(
        name=_short(best), rate=significant(best.tflops), units=text[_units(best)],
        percent=f"{100 * best.tflops / peak:.0f}", peak=significant(peak),
        device=device_words(device),
    )  # fmt: skip
    if measured and (best.tensor_cores is False or measured.tensor_tflops):
        reached = measured.peak(best.tensor_cores)
        by = measured.product if best.tensor_cores else text["by_fp32"]
        said += " " + text["said_measured"].format(
            peak=significant(reached), percent=f"{100 * best.tflops / reached:.0f}", by=by
        )
    below = best.tflops <= ceilings.roof(best.intensity, best.tensor_cores)
    where = text["said_flat" if flat else "said_slope" if below else "said_slope_above"]
    said += " " + where.format(intensity=significant(best.intensity))
    peers = [mark for mark in marks if mark.at_most]
    if peers:
        top = max(peers, key=lambda mark: mark.tflops)
        share = f"{100 * top.tflops / ceilings.peak(top.tensor_cores):.0f}"
        said += " " + text["said_peer"].format(
            name=top.step.name, rate=significant(top.tflops), percent=share,
            units=text[_units(top)],
        )  # fmt: skip
    if measured:
        said = " ".join([said, *above_words(marks, measured, fastest)])
    return said


def above_words(
    marks: Sequence[Mark], measured: Ceilings, fastest: FastestKernel | None
) -> list[str]:
    """What stands above the measured roof: marks of the figure, and the fastest recorded kernel."""
    text = labels("roofline")
    flat = [mark for mark in marks if mark.tflops > measured.peak(mark.tensor_cores)]
    slope = [
        mark
        for mark in marks
        if mark not in flat and mark.tflops > measured.roof(mark.intensity, mark.tensor_cores)
    ]
    found = {"said_above_flat": flat, "said_above_slope": slope}
    said = [
        text[name].format(names=", ".join(mark.step.name for mark in above))
        for name, above in found.items()
        if above
    ]
    faster = faster_words(measured.product, measured.tensor_tflops, fastest)
    return [*said, faster] if faster else said


def faster_words(product: str, tflops: float | None, fastest: FastestKernel | None) -> str:
    """That a recorded kernel is faster than a measured product; "" where none is."""
    if tflops is None or fastest is None or fastest.tflops <= tflops:
        return ""
    return str(labels("roofline")["said_faster"]).format(
        rate=significant(fastest.tflops), name=fastest.name, N=fastest.seqlen,
        d=fastest.head_dim, run=fastest.run_id, product=product,
    )  # fmt: skip


def _short(mark: Mark) -> str:
    return f"rung {mark.step.name.split(' ')[0]}"


def _units(mark: Mark) -> str:
    return "units_tensor" if mark.tensor_cores else "units_fp32"


def measured_words(found: MeasuredCeilings) -> str:
    """Where the measured ceilings come from, or that there are none and how to get them."""
    text = labels("roofline")
    return str(text["measured" if found else "not_measured"]).format(run=found.run_id)


def roofline_table(
    marks: Sequence[Mark], ceilings: Ceilings, device: Device, problem: str, measured: str = ""
) -> str:
    """The numbers behind the figure, one row per series, as HTML; `measured` ends the caption."""
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
    caption = f"{caption} {measured}".strip()
    head = [text[name] for name in _COLUMNS]
    return html_table("roofline", caption, head, body, "falab-table falab-dense")


class Roofline(SizedView):
    """FLOP per byte against TFLOP/s, under the data sheet's ceilings; `marks` are those shown.

    Where a run of kind "ceilings" was recorded on the device, its ceilings stand there too.
    """

    marks: Sequence[Mark]

    section = mark = "roofline"

    def __init__(
        self,
        sizes: Sizes,
        device: Device,
        runs: LadderRuns,
        measured: MeasuredCeilings,
        fastest: Mapping[str, FastestKernel | None],
    ) -> None:
        self.measured, self.fastest = measured, fastest
        super().__init__(sizes, device, runs)

    def headline(self) -> Headline:
        """The rate of every rung and peer that is shown."""
        return {mark.step.name: (mark.tflops, "TFLOP/s") for mark in self.marks}

    def draw(self, setting: Sizes, stamp: float) -> None:
        """Compute and show a setting."""
        problem = setting.problem
        ceilings = Ceilings.of(self.device, problem.dtype)
        marks = marks_of(self.runs.steps(problem), self._tensor_cores, self.runs)
        self.marks = marks
        measured = Ceilings.measured(self.measured, problem.dtype)
        fastest = self.fastest.get(problem.dtype)
        known = known_sizes(self.runs, problem)
        said = takeaway(marks, ceilings, self.device, measured, fastest, known)
        alt = self.text["figure"].format(sentence=said)
        where = measured_words(self.measured)
        table = roofline_table(marks, ceilings, self.device, problem.describe(), where)
        self.show(roofline_spec(marks, ceilings, self.text, measured), alt, said, table, stamp)

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
    sheet, runs = ladder_runs(device, session)
    root = in_use(session).root
    measured = MeasuredCeilings.on(sheet, root)
    fastest = FastestKernel.of_each_dtype(sheet, root) if measured else {}
    return Roofline(Sizes.of(N, d, dtype), sheet, runs, measured, fastest)

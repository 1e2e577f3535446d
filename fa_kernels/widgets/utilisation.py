"""How busy the units of the GPU are in every rung, by hardware counters beside predictions."""

from __future__ import annotations

from collections.abc import Sequence

from fa_kernels.device import Device
from fa_kernels.device import device as find_device
from fa_kernels.figures.ladder import LadderRuns
from fa_kernels.figures.point import device_words
from fa_kernels.figures.utilisation import (
    DRAM,
    PANELS,
    TENSOR,
    RecordedCounters,
    Used,
    predicted_words,
    utilisation_spec,
    value_words,
)
from fa_kernels.problem import SHORT_DTYPE, AttentionProblem
from fa_kernels.session import Session, in_use
from fa_kernels.units import duration, significant
from fa_kernels.widgets.explorer_point import default_device
from fa_kernels.widgets.headline import TIME, Headline
from fa_kernels.widgets.ladder import SizedView
from fa_kernels.widgets.recompute_cost import Sizes
from fa_kernels.widgets.text import html_table, labels


def takeaway(found: Sequence[Used], counters: RecordedCounters) -> str:
    """The busiest unit of the first and of the last counted rung, and of the fastest peer."""
    text, chosen = labels("utilisation"), told(found)
    if not any(one.rows for one in found):
        return str(text["said_nothing"]).format(known=_known(counters, found[0].problem))
    parts = [_busiest(one) for one in chosen]
    parts += [_bytes_alone(one) for one in found if one.variant and one.rows and not one.busiest]
    missing = [one.said for one in found if one.variant and not one.rows]
    if missing:
        parts.append(text["said_missing"].format(names=", ".join(missing)))
    return " ".join(parts)


def told(found: Sequence[Used]) -> list[Used]:
    """Those the sentence is about: the first and the last counted rung, and the fastest peer."""
    ours = [one for one in found if one.busiest and one.variant]
    peers = [one for one in found if one.busiest and not one.variant]
    fastest = min(peers, key=lambda one: one.ms or 0.0, default=None)
    return list(dict.fromkeys((*ours[:1], *ours[-1:], *([fastest] if fastest else []))))


def _busiest(one: Used) -> str:
    text = labels("utilisation")
    assert one.busiest is not None
    panel, share = one.busiest
    said = text["said"].format(
        name=f"{one.said[:1].upper()}{one.said[1:]}" if one.variant else one.said,
        unit=text["units"][panel], share=significant(share, 2),
    )  # fmt: skip
    if one.tensor_cores and one.value(TENSOR) is None:
        said += f" {text['said_without_tensor']}"
    return f"{said}{_dram(one, '; ') if panel != DRAM else ''}."


def _bytes_alone(one: Used) -> str:
    """Of a call whose busy units no run has: what there is."""
    said = str(labels("utilisation")["said_bytes_alone"]).format(name=one.said)
    return f"{said}{_dram(one, ': ')}."


def _dram(one: Used, before: str) -> str:
    """What DRAM delivers of its bandwidth, behind `before`; "" where that was not counted."""
    dram = one.value(DRAM)
    if dram is None:
        return ""
    rate = significant(one.device.hbm_bandwidth_gb_s / 1e3)
    least = significant(dram, 1 if dram < 1 else 2)
    return before + str(labels("utilisation")["said_dram"]).format(share=least, rate=rate)


def _known(counters: RecordedCounters, asked: AttentionProblem) -> str:
    """The recorded N at each d of this dtype, in words."""
    found: dict[int, set[int]] = {}
    for p in counters.sizes():
        if p.dtype == asked.dtype:
            found.setdefault(p.head_dim, set()).add(p.seqlen_q)
    parts = [f"N = {', '.join(map(str, sorted(ns)))} at d = {d}" for d, ns in sorted(found.items())]
    known = "; ".join(parts) or labels("utilisation")["none"]
    return f"{SHORT_DTYPE[asked.dtype]}: {known}"


def utilisation_table(found: Sequence[Used], device: Device) -> str:
    """Counted and predicted, one row per series, as HTML."""
    text, body = labels("utilisation"), []
    for one in found:
        tiles = f"{one.tiling.block_m} × {one.tiling.block_n}" if one.tiling else text["own"]
        if not one.rows:
            body.append([one.name, "", text["not_counted"], *[""] * (len(PANELS) + 2)])
            continue
        occupancy = one.rows.get("occupancy_pct")
        cells = [one.name, tiles, duration(one.ms or 0.0)]
        for panel in PANELS:
            counted, predicted = value_words(one, panel), predicted_words(one, panel)
            cell = counted or text["no_value"]
            cell = f"{cell} ({predicted})" if predicted else cell
            cells.append(cell.replace(" %", "\u00a0%").replace(" TB/s", "\u00a0TB/s"))
        cells.append(f"{occupancy.median:.0f} %" if occupancy and occupancy.median else "")
        body.append([*cells, one.run_id])
    head = [text["column_series"], text["column_tiles"], text["column_time"]]
    head += [text["panels"][panel] for panel in PANELS]
    head += [text["column_occupancy"], text["column_run"]]
    caption = text["caption"].format(
        problem=found[0].problem.describe(), device=device.name,
        rate=significant(device.hbm_bandwidth_gb_s / 1e3),
    )  # fmt: skip
    return html_table("utilisation", caption, head, body, "falab-table falab-dense")


class Utilisation(SizedView):
    """Bars of every unit for every rung and peer; `used` are those shown."""

    used: Sequence[Used]

    section = mark = "utilisation"

    def __init__(self, sizes: Sizes, device: Device, counters: RecordedCounters) -> None:
        self.counters = counters
        super().__init__(sizes, device, LadderRuns())  # it shows no timings

    def headline(self) -> Headline:
        """Time and share of the busiest unit of those the sentence is about."""
        time, units = labels("headline")["time"], labels(self.section)["panels"]
        found: dict[str, tuple[float | None, str]] = {}
        for one in told(self.used):
            assert one.busiest is not None
            panel, share = one.busiest
            found[time.format(variant=one.name)] = (one.ms, TIME)
            found[f"{one.name}, {units[panel]}"] = (share, "%")
        return found

    def draw(self, setting: Sizes, stamp: float) -> None:
        """Compute and show a setting."""
        found = self.used = self.counters.used(setting.problem)
        said = takeaway(found, self.counters)
        alt = self.text["figure"].format(sentence=said, device=device_words(self.device))
        table = utilisation_table(found, self.device)
        self.show(utilisation_spec(found, self.text), alt, said, table, stamp)


def utilisation(
    N: int = 4096,
    d: int = 64,
    *,
    dtype: str = "fp16",
    device: str | None = None,
    session: Session | None = None,
) -> Utilisation:
    """How busy tensor pipe, FMA pipe, issue slots, L2 and DRAM are, rung by rung, as counted.

    By recorded hardware counters, each series with the tiles that were fastest under the profiler;
    a line across a bar is what model and data sheet say it should be at least. What was not counted
    at this N, d and dtype says so.

    Args and errors as `ladder`.
    """
    used = in_use(session)
    sheet = find_device(default_device(used) if device is None else device)
    return Utilisation(Sizes.of(N, d, dtype), sheet, RecordedCounters.on(sheet, used.root))

"""The loop order compared at equal parallelism, then the parallelism by itself, over N."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import ipywidgets

from fa_kernels.device import device as find_device
from fa_kernels.figures.loop_order import (
    KV_OUTER,
    ONE_BLOCK,
    PARALLEL,
    Q_OUTER,
    STEPS,
    SWAP,
    OrderAt,
    loop_order_spec,
    missing,
    order_at,
)
from fa_kernels.figures.point import checked_head_dim, checked_sram_kib, ratio_text
from fa_kernels.figures.recorded_numbers import RecordedNumbers
from fa_kernels.session import Session, in_use
from fa_kernels.units import duration, traffic
from fa_kernels.variants import VARIANTS
from fa_kernels.widgets.explorer_point import default_device
from fa_kernels.widgets.live_figure import LiveFigure
from fa_kernels.widgets.text import html_table, labels
from fa_kernels.widgets.traffic_ways import (
    HEAD_DIMS,
    LEAST_WIDTH,
    SEQLENS,
    SRAM_KIB,
    Setting,
    dtype_choice,
    number_knob,
    numbers_of,
)

#: The N that sentences without a record speak about.
_SAID_AT = 4096


def orders(setting: Setting, device: str, numbers: RecordedNumbers) -> list[OrderAt]:
    """The three variants at every N of the grid."""
    point = setting.point(device)
    return [order_at(point.at(n), numbers) for n in SEQLENS]


def takeaway(found: Sequence[OrderAt]) -> str:
    """What the two effects are worth where they were recorded, and what the bytes did meanwhile."""
    text = labels("loop_order")
    at = next(order for order in found if order.seqlen == _SAID_AT)
    bytes_words = text["said_bytes"].format(
        N=at.seqlen, before=traffic(at.bytes[KV_OUTER]), after=traffic(at.bytes[ONE_BLOCK])
    )
    swap, parallel = (
        [(g, o.seqlen) for o in found if (g := o.gain(effect)) is not None]
        for effect in (SWAP, PARALLEL)
    )
    if not swap or not parallel:
        names = "; ".join(missing(found))
        return f"{text['said_nothing'].format(names=names)} {bytes_words}"
    said = text["said"].format(
        swap_low=ratio_text(min(swap)[0]), swap_high=ratio_text(max(swap)[0]),
        parallel_low=ratio_text(min(parallel)[0]), parallel_high=ratio_text(max(parallel)[0]),
        parallel_at=max(parallel)[1],
    )  # fmt: skip
    return f"{said} {bytes_words}"


def order_table(found: Sequence[OrderAt]) -> str:
    """The numbers behind the figure, one row per N, as HTML."""
    text = labels("loop_order")
    head = [text["axis_seqlen"], text["heads"]]
    for name in STEPS:
        head.append(text["latency_of"].format(label=VARIANTS[name].label))
    head += [text["bytes_of"].format(label=VARIANTS[name].label) for name in (KV_OUTER, Q_OUTER)]
    head += [text["swap"], text["parallel"]]
    body = []
    for order in found:
        times = [f.value if (f := order.latency[name]) else None for name in STEPS]
        gains = [order.gain(effect) for effect in (SWAP, PARALLEL)]
        body.append(
            [
                str(order.seqlen),
                str(order.point.problem.heads),
                *(duration(ms) if ms else text["not_recorded"] for ms in times),
                *(traffic(order.bytes[name]) for name in (KV_OUTER, Q_OUTER)),
                *(f"×{gain:.2f}" if gain else "" for gain in gains),
            ]
        )
    return html_table("loop-order", caption(found), head, body, "falab-table falab-dense")


def caption(found: Sequence[OrderAt]) -> str:
    """Sizes and sources in words."""
    text = labels("loop_order")
    runs = sorted({f.run_id for order in found for f in order.latency.values() if f})
    source = text["source"].format(runs=", ".join(runs)) if runs else text["no_source"]
    point = found[-1].point
    return str(text["caption"]).format(
        head_dim=point.problem.head_dim, sram=point.sram_kib, device=point.device.name,
        tiles=f"{point.tiling.block_m} × {point.tiling.block_n}", sms=point.device.sm_count,
        source=source,
    )  # fmt: skip


class LoopOrder(ipywidgets.VBox):
    """Sentence, knobs, figure and table, kept in step."""

    def __init__(self, setting: Setting, device: str, numbers: RecordedNumbers) -> None:
        self._text, self._device, self._numbers = labels("loop_order"), device, numbers
        ways = labels("traffic_ways")
        self.head_dim = number_knob(ways, "head_dim", HEAD_DIMS, setting.d, checked_head_dim)
        self.sram = number_knob(ways, "sram", SRAM_KIB, setting.M_kib, checked_sram_kib)
        self.dtype = dtype_choice(ways, setting.dtype, ["fp16", "bf16", "fp32"])
        self.sentence, self.message = ipywidgets.HTML(), ipywidgets.HTML()
        self.figure, self.table = LiveFigure(least_width=LEAST_WIDTH), ipywidgets.HTML()
        for knob in (self.head_dim, self.sram):
            knob.observe(lambda change: self.update(change.owner.stamp), "value")
        self.dtype.observe(lambda change: self.update(), "value")
        self._draw(setting, 0.0)
        row = ipywidgets.Layout(flex_flow="row wrap", align_items="center", width="100%")
        super().__init__(
            [
                self.sentence,
                ipywidgets.HBox([self.head_dim, self.sram, self.dtype], layout=row),
                self.message,
                self.figure,
                self.table,
            ]
        )

    def update(self, stamp: float = 0.0) -> None:
        """Follow the controls; where that cannot be computed, say why and keep what is there."""
        sizes = (_SAID_AT, self.head_dim.value, self.sram.value, self.dtype.value)
        try:
            self._draw(Setting(*sizes), stamp)
        except ValueError as error:
            self.figure.stale, text = True, escape(str(error))
            self.message.value = f'<div class="falab-message" role="alert">{text}</div>'
        else:
            self.figure.stale, self.message.value = False, ""

    def _draw(self, setting: Setting, stamp: float) -> None:
        found = orders(setting, self._device, self._numbers)
        said = takeaway(found)
        alt = self._text["figure"].format(sentence=said)
        self.figure.show(loop_order_spec(found, self._text), alt, stamp)
        self.sentence.value = f'<div class="falab-sentence" data-fa-order>{escape(said)}</div>'
        self.table.value = order_table(found)


def loop_order(
    d: int = 64,
    M_kib: int = 64,
    *,
    dtype: str = "fp16",
    device: str | None = None,
    session: Session | None = None,
) -> LoopOrder:
    """K/V outside against Q outside at one block per head, then against a block per Q tile.

    The first step changes the loop order alone, the second the parallelism alone. Latency comes
    from the recorded run; bytes from the launched model.

    Args and errors as `traffic_ways`; N is every N of the recorded grid.
    """
    used = in_use(session)
    slug = default_device(used) if device is None else find_device(device).slug
    return LoopOrder(Setting.of(_SAID_AT, d, M_kib, dtype), slug, numbers_of(used, slug))

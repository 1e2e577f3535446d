"""The loop order compared at equal parallelism, then the parallelism by itself, over N."""

from __future__ import annotations

from collections.abc import Sequence

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
from fa_kernels.figures.over_seqlen import SEQLENS
from fa_kernels.figures.point import checked_head_dim, checked_sram_kib, ratio_text
from fa_kernels.figures.recorded_numbers import RecordedNumbers
from fa_kernels.session import Session
from fa_kernels.units import duration, traffic
from fa_kernels.variants import VARIANTS
from fa_kernels.widgets.explorer_point import recorded_on
from fa_kernels.widgets.headline import MOVED, TIME, Headline
from fa_kernels.widgets.setting import (
    HEAD_DIMS,
    SRAM_KIB,
    Setting,
    dtype_choice,
    number_knob,
)
from fa_kernels.widgets.setting_view import SettingView
from fa_kernels.widgets.text import html_table, labels

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
    said = text["said" if len(swap) > 1 else "said_one"].format(
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


class LoopOrder(SettingView):
    """Both effects over N."""

    section, mark = "loop_order", "order"

    def __init__(self, setting: Setting, device: str, numbers: RecordedNumbers) -> None:
        self.head_dim = number_knob("head_dim", HEAD_DIMS, setting.d, checked_head_dim)
        self.sram = number_knob("sram", SRAM_KIB, setting.M_kib, checked_sram_kib)
        self.dtype = dtype_choice(setting.dtype)
        controls = (self.head_dim, self.sram, self.dtype)
        super().__init__(setting, device, numbers, controls)

    @property
    def setting(self) -> Setting:
        """What the controls show now."""
        return Setting(_SAID_AT, self.head_dim.value, self.sram.value, self.dtype.value)

    def headline(self) -> Headline:
        """Bytes and recorded time of every order at the N that the sentence names."""
        text = labels("headline")
        found: dict[str, tuple[float | None, str]] = {}
        at = next(order for order in self.found if order.seqlen == _SAID_AT)
        for name, nbytes in at.bytes.items():
            words, latency = {"variant": VARIANTS[name].label}, at.latency[name]
            found[text["moved"].format(**words)] = (nbytes, MOVED)
            found[text["time"].format(**words)] = (latency.value if latency else None, TIME)
        return found

    def draw(self, setting: Setting, stamp: float) -> None:
        """Compute and show a setting."""
        found = self.found = orders(setting, self.device, self.numbers)
        said = takeaway(found)
        alt = self.text["figure"].format(sentence=said)
        self.show(loop_order_spec(found, self.text), alt, said, order_table(found), stamp)


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
    slug, numbers = recorded_on(device, session)
    return LoopOrder(Setting.of(_SAID_AT, d, M_kib, dtype), slug, numbers)

"""The SRAM budget from which the paper's loop order moves fewer bytes, and what time says to it."""

from __future__ import annotations

from fa_kernels.device import device as find_device
from fa_kernels.figures.crossing import (
    MODELS,
    ORDERS,
    TIMED,
    Crossing,
    crossing_kib,
    crossing_spec,
    law_kib,
    tiling_at,
)
from fa_kernels.figures.loop_order import KV_OUTER, ONE_BLOCK, Q_OUTER
from fa_kernels.figures.over_seqlen import SEQLENS
from fa_kernels.figures.point import checked_head_dim, checked_seqlen, ratio_text
from fa_kernels.figures.recorded_numbers import RecordedNumbers
from fa_kernels.session import Session
from fa_kernels.units import KIB, capacity, significant
from fa_kernels.variants import VARIANTS
from fa_kernels.widgets.explorer_point import recorded_on
from fa_kernels.widgets.headline import HELD, Headline
from fa_kernels.widgets.setting import (
    HEAD_DIMS,
    SRAM_KIB,
    Setting,
    dtype_choice,
    number_knob,
)
from fa_kernels.widgets.setting_view import SettingView
from fa_kernels.widgets.text import html_table, labels

_ANY_KIB = 64


def find_crossing(setting: Setting, device: str, numbers: RecordedNumbers) -> Crossing:
    """Where the two orders cross in both models, and their recorded latencies over M."""
    point = setting.point(device)
    problem = point.problem
    latency = {
        (name, kib): found
        for name in TIMED
        for kib in SRAM_KIB
        if (found := numbers.find(name, problem, tiling_at(problem, kib), "latency_ms"))
    }
    return Crossing(point, {m: crossing_kib(problem, m) for m in MODELS}, latency)


def takeaway(found: Crossing) -> str:
    """Where the bytes cross, whether a block could have that much, and who is faster beyond."""
    text, kib = labels("crossing"), found.kib["launched"]
    limit = capacity(found.point.device.smem_per_block_bytes)
    head_dim = found.point.problem.head_dim
    if kib is None:
        return str(text["said_never"]).format(head_dim=head_dim)
    out_of_reach = kib * 1024 > found.point.device.smem_per_block_bytes
    name = "said_far" if out_of_reach else "said"
    said = str(text[name]).format(head_dim=head_dim, kib=kib, limit=limit)
    beyond = [
        b for b in SRAM_KIB if b >= kib and all((n, b) in found.latency for n in TIMED)
    ]  # fmt: skip
    if not beyond:
        return f"{said} {text['said_no_time']}"
    kv, one, q = (found.latency[name, beyond[-1]].value for name in (KV_OUTER, ONE_BLOCK, Q_OUTER))
    words = str(text["said_time"])
    said += " " + words.format(
        budget=beyond[-1], ratio=ratio_text(kv / q), alike=ratio_text(kv / one)
    )
    best = [
        min((one.value, b) for (n, b), one in found.latency.items() if n == name)
        for name in (KV_OUTER, Q_OUTER)
    ]
    (kv, kv_kib), (q, q_kib) = best
    return f"{said} " + str(text["said_best"]).format(
        kv=significant(kv), kv_kib=kv_kib, q=significant(q), q_kib=q_kib
    )


def crossing_table(setting: Setting, device: str) -> str:
    """Exact crossing beside the law for several d, with their ratio, as HTML."""
    text = labels("crossing")
    head = [text["head_dim"]]
    for model in MODELS:
        head += [text[name].format(model=model) for name in ("exact", "law", "ratio")]
    body = []
    for d in sorted({*HEAD_DIMS[:-1], setting.d}):
        problem = Setting(setting.N, d, _ANY_KIB, setting.dtype).point(device).problem
        row = [str(d)]
        for model in MODELS:
            exact, law = crossing_kib(problem, model), law_kib(problem, model)
            shown = [text["none"], significant(law), ""]
            if exact is not None:
                shown = [str(exact), significant(law), f"{exact / law:.2f}"]
            row += shown
        body.append(row)
    limit = capacity(find_device(device).smem_per_block_bytes)
    caption = text["caption"].format(
        seqlen=setting.N, dtype=setting.dtype, device=find_device(device).name, limit=limit
    )
    return html_table("crossing", caption, head, body, "falab-table falab-dense")


class CrossingView(SettingView):
    """Where the two loop orders cross, over M."""

    section = mark = "crossing"
    has_presets = True

    def __init__(self, setting: Setting, device: str, numbers: RecordedNumbers) -> None:
        self.seqlen = number_knob("seqlen", SEQLENS, setting.N, checked_seqlen)
        self.head_dim = number_knob("head_dim", HEAD_DIMS, setting.d, checked_head_dim)
        self.dtype = dtype_choice(setting.dtype)
        controls = (self.seqlen, self.head_dim, self.dtype)
        super().__init__(setting, device, numbers, controls)

    @property
    def setting(self) -> Setting:
        """What the controls show now."""
        return Setting(self.seqlen.value, self.head_dim.value, _ANY_KIB, self.dtype.value)

    def headline(self) -> Headline:
        """The budget from which K/V outside moves less, in both models."""
        text = labels("headline")
        return {
            text["crossing"].format(model=text[name]): (kib and kib * KIB, HELD)
            for name, kib in self.found.kib.items()
        }

    def draw(self, setting: Setting, stamp: float) -> None:
        """Compute and show a setting."""
        found = self.found = find_crossing(setting, self.device, self.numbers)
        said = takeaway(found)
        labels_of = [VARIANTS[name].label for name in ORDERS]
        alt = self.text["figure"].format(sentence=said, orders=" and ".join(labels_of))
        spec, table = crossing_spec(found, self.text), crossing_table(setting, self.device)
        self.show(spec, alt, said, table, stamp)


def crossing(
    N: int = 4096,
    d: int = 64,
    *,
    dtype: str = "fp16",
    device: str | None = None,
    session: Session | None = None,
) -> CrossingView:
    """Bytes of both loop orders over the budget M, and recorded latencies beside them.

    Args and errors as `traffic_ways`.
    """
    slug, numbers = recorded_on(device, session)
    return CrossingView(Setting.of(N, d, _ANY_KIB, dtype), slug, numbers)

"""Which limit binds a model's attention while it reads a prompt, and while it writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fa_kernels.device import Device
from fa_kernels.device import device as find_device
from fa_kernels.figures.point import device_words
from fa_kernels.figures.recorded_ceilings import MeasuredCeilings
from fa_kernels.figures.recorded_decode import DecodePoint, RecordedDecode
from fa_kernels.figures.recorded_speed import Curve, RecordedSpeed
from fa_kernels.figures.regimes import DTYPE, Regime, decode_of, prefill_of, regimes_spec
from fa_kernels.figures.roofline import Ceilings
from fa_kernels.model_shape import ModelShape, list_models, model_shape
from fa_kernels.problem import MAX_SEQLEN
from fa_kernels.session import Session, in_use
from fa_kernels.units import duration, significant, traffic
from fa_kernels.widgets.cache_memory import checked_batch, checked_tokens
from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.drawn_view import DrawnView
from fa_kernels.widgets.explorer_point import default_device
from fa_kernels.widgets.headline import MOVED, WORK, Headline
from fa_kernels.widgets.knob import Knob
from fa_kernels.widgets.text import html_table, labels

_TOKENS = tuple(2**e for e in range(7, 18))
_BATCHES = tuple(2**e for e in range(10))


@dataclass(frozen=True)
class Served:
    """What the controls show: slug of a model, tokens of a prompt or in the cache, sequences."""

    model: str
    tokens: int
    batch: int


@dataclass(frozen=True)
class Records:
    """What was recorded on the device: ceilings, decode steps, forward calls."""

    ceilings: MeasuredCeilings
    decode: RecordedDecode
    speed: RecordedSpeed

    @classmethod
    def on(cls, device: Device, root: Path | None) -> Records:
        """All of them, each empty where there is none."""
        return cls(
            MeasuredCeilings.on(device, root),
            RecordedDecode.on(device, root),
            RecordedSpeed.on(device, None, root),
        )

    def steps(self, model: ModelShape) -> list[DecodePoint]:
        """Recorded steps of one query row whose heads are shared as the model's, at its d."""
        return [
            point
            for point in self.decode.points
            if point.row.seqlen_q == 1
            and (point.group, point.row.head_dim) == (model.group, model.head_dim)
        ]

    def forward(self, model: ModelShape) -> Curve:
        """Recorded causal calls of the last rung at the model's d, heads not shared."""
        rungs = self.speed.ours
        if not rungs:
            return Curve("", ())
        at = {"head_dim": model.head_dim, "causal": "bottom_right", "dtype": DTYPE}
        return self.speed.curve(rungs[-1], **at)


def takeaway(
    regimes: Sequence[Regime], ceilings: Ceilings, model: ModelShape, device: Device,
    steps: Sequence[DecodePoint],
) -> str:  # fmt: skip
    """Which limit binds either regime, how far from the ridge, and what was reached."""
    text, decode = labels("regimes"), regimes[-1]
    ridge = ceilings.peak(True) * 1e3 / ceilings.bandwidth_gb_s
    said = []
    for name, one in zip(("said_prefill", "said_decode"), regimes, strict=True):
        binds = one.binds(ceilings)
        said.append(
            text[name].format(
                device=device_words(device),
                intensity=significant(one.intensity),
                ridge=significant(ridge),
                limit=text["limits"][binds],
                arithmetic=duration(one.arithmetic_ms(ceilings)),
                bytes=duration(one.bytes_ms(ceilings)),
                group=model.group,
            )
        )
    if decode.binds(ceilings) == "bytes":
        most = ceilings.roof(decode.intensity, True)
        percent = f"{100 * most / ceilings.peak(True):.2g}"
        said.append(text["said_most"].format(rate=significant(most), percent=percent))
    if steps:
        best = max(steps, key=lambda point: point.gb_s)
        said.append(
            text["said_reached"].format(
                rate=significant(best.gb_s),
                batch=best.row.batch,
                N=best.row.seqlen_k,
                percent=f"{100 * best.gb_s / ceilings.bandwidth_gb_s:.0f}",
            )
        )
    return " ".join(said)


def regimes_table(regimes: Sequence[Regime], ceilings: Ceilings, caption: str) -> str:
    """The numbers behind the figure, one row per regime, as HTML."""
    text = labels("regimes")
    names = (
        "column_regime", "column_flop", "column_least", "column_intensity",
        "column_asked", "column_asked_intensity", "column_arithmetic", "column_bytes",
        "column_binds",
    )  # fmt: skip
    body = [
        [
            text["names"][one.name], significant(one.flops / 1e9), traffic(one.least_bytes),
            significant(one.intensity), traffic(one.asked_bytes),
            significant(one.flops / one.asked_bytes), duration(one.arithmetic_ms(ceilings)),
            duration(one.bytes_ms(ceilings)), text["limits"][one.binds(ceilings)],
        ]
        for one in regimes
    ]  # fmt: skip
    return html_table("regimes", caption, [text[name] for name in names], body)


class Regimes(DrawnView):
    """Prefill and decode of a model's attention under the roofline of a GPU."""

    section = mark = "regimes"
    least_width = 780

    def __init__(self, setting: Served, device: Device, records: Records) -> None:
        text, sizes = labels("regimes"), labels("cache_memory")
        self.device, self.records = device, records
        options = [(model_shape(slug).name, slug) for slug in list_models()]
        self.model = Choice(sizes["model"], options, setting.model)
        self.tokens = Knob(
            check=checked_tokens, label=sizes["tokens"], description=text["tokens_description"],
            values=list(_TOKENS), value=setting.tokens,
        )  # fmt: skip
        self.batch = Knob(
            check=checked_batch, label=sizes["batch"], description=text["batch_description"],
            values=list(_BATCHES), value=setting.batch,
        )  # fmt: skip
        super().__init__(setting, (self.model, self.tokens, self.batch))

    @property
    def setting(self) -> Served:
        """What the controls show now."""
        return Served(self.model.value, self.tokens.value, self.batch.value)

    def headline(self) -> Headline:
        """What each regime computes, moves at least, and does per byte."""
        text, found = labels("headline"), {}
        for one, name in zip(self.found, ("prefill", "decode"), strict=True):
            word = text[name]
            found[text["work"].format(variant=word)] = (float(one.flops), WORK)
            found[text["least"].format(variant=word)] = (float(one.least_bytes), MOVED)
            found[text["intensity"].format(variant=word)] = (one.intensity, "FLOP/B")
        return found

    def draw(self, setting: Served, stamp: float) -> None:
        """Compute and show a setting."""
        model, found = model_shape(setting.model), self.records
        regimes = (
            prefill_of(model, setting.tokens, setting.batch, self.device),
            decode_of(model, setting.tokens, setting.batch),
        )
        self.found = regimes
        ceilings = Ceilings.of(self.device, DTYPE)
        measured = Ceilings.measured(found.ceilings, DTYPE)
        steps, forward = found.steps(model), found.forward(model)
        said = takeaway(regimes, ceilings, model, self.device, steps)
        alt = self.text["figure"].format(sentence=said)
        text = {**labels("roofline"), **self.text}
        spec = regimes_spec(regimes, ceilings, measured, steps, forward, text)
        self.show(spec, alt, said, regimes_table(regimes, ceilings, self._caption(setting)), stamp)

    def _caption(self, setting: Served) -> str:
        """The shape, and where lines and points come from."""
        text, found, model = self.text, self.records, model_shape(setting.model)
        steps, forward = found.steps(model), found.forward(model)
        sources = [
            text["source_ceilings" if found.ceilings else "no_ceilings"],
            text["source_decode" if steps else "no_decode"],
            text["source_forward" if forward.rates else "no_forward"],
        ]
        runs = {
            "ceilings": found.ceilings.run_id, "decode": found.decode.run_id,
            "forward": found.speed.run_id, "name": forward.name if forward.rates else "",
        }  # fmt: skip
        said = " ".join(source.format(**runs) for source in sources)
        return str(text["caption"]).format(
            model=model.name, heads=model.nheads, kv=model.nheads_kv, d=model.head_dim,
            tokens=setting.tokens, batch=setting.batch, device=self.device.name, sources=said,
        )  # fmt: skip


def regimes(
    model: str = "llama-3-8b",
    tokens: int = 8192,
    batch: int = 16,
    *,
    device: str | None = None,
    session: Session | None = None,
) -> Regimes:
    """Attention of one layer of a model, reading prompts and writing one token: which limit binds.

    Args:
        model: slug of a sheet in data/models; windows of its layers are left out.
        tokens: of each prompt, or in the cache of each sequence.
        batch: how many sequences.
        device: slug of the GPU; default: the session's.
        session: what `fa.session` returned; default: the current one.

    Raises:
        ValueError: a bad value; value, limit and remedy. TypeError: `session` is not one.
    """
    used = in_use(session)
    sheet = find_device(default_device(used) if device is None else device)
    sizes = (min(checked_tokens(tokens), MAX_SEQLEN), checked_batch(batch))
    setting = Served(model_shape(model).slug, *sizes)
    return Regimes(setting, sheet, Records.on(sheet, used.root))

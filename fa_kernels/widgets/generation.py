"""FlashAttention and the KV cache, alone and together, in a model that writes text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fa_kernels.device import Device
from fa_kernels.device import device as find_device
from fa_kernels.figures.generation import generation_spec
from fa_kernels.figures.point import device_words, ratio_text
from fa_kernels.figures.recorded_generation import WAYS, RecordedGeneration, Text
from fa_kernels.measure.generation_run import BATCHES
from fa_kernels.session import Session, in_use
from fa_kernels.units import capacity, duration
from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.drawn_view import DrawnView
from fa_kernels.widgets.explorer_point import default_device
from fa_kernels.widgets.text import html_table, labels


@dataclass(frozen=True)
class Written:
    """What the control shows: how many sequences are written at the same time."""

    batch: int


def takeaway(texts: Mapping[str, Text], batch: int, device: Device) -> str:
    """Tokens a second with neither, and how much more with either and with both."""
    text = labels("generation")
    rates = {key: one.tokens_per_s for key, one in texts.items()}
    if not any(rates.values()):
        return str(text["said_nothing"]).format(device=device_words(device))
    if not all(rates.values()):
        lacking = ", ".join(text["ways"][key] for key, rate in rates.items() if not rate)
        return str(text["said_lacking"]).format(names=lacking, batch=batch)
    times = {key: rate / rates["neither"] for key, rate in rates.items()}
    row = texts["both"].row
    assert row is not None
    said = text["said"].format(
        batch=batch, prompt=row.seqlen_q, new=row.seqlen_k - row.seqlen_q,
        device=device_words(device), rate=f"{rates['neither']:,.0f}",
        **{key: ratio_text(value) for key, value in times.items() if key != "neither"},
    )  # fmt: skip
    more = rates["both"] / max(rates["attention"], rates["cache"])
    name = "said_more" if more > 1 else "said_no_more"
    return f"{said} {text[name].format(ratio=ratio_text(more))}"


def written_table(texts: Mapping[str, Text], caption: str) -> str:
    """The numbers behind the figure, one row per way, as HTML."""
    text = labels("generation")
    names = (
        "column_way",
        "column_rate",
        "column_time",
        "column_spread",
        "column_memory",
        "column_error",
        "column_how",
    )
    body = []
    for key, one in texts.items():
        row = one.row or one.failed
        if row is None:
            continue
        timed = one.row is not None and row.median is not None
        memory = one.memory.median if one.memory else None
        body.append(
            [
                text["ways"][key], f"{one.tokens_per_s:,.0f}" if timed else row.status,
                duration(row.median or 0.0) if timed else "",
                f"{row.p20:.5g} to {row.p80:.5g}" if timed else "",
                "" if memory is None else capacity(memory),
                "" if row.max_abs_err is None else f"{row.max_abs_err:.2g}", row.detail,
            ]
        )  # fmt: skip
    return html_table("generation", caption, [text[name] for name in names], body)


class Generation(DrawnView):
    """Four bars and four lines of one batch."""

    section = mark = "generation"
    least_width = 720

    def __init__(self, setting: Written, device: Device, recorded: RecordedGeneration) -> None:
        self.recorded, self.device = recorded, device
        offered = sorted(recorded.texts) or list(BATCHES)
        options = [(str(batch), batch) for batch in offered]
        self.batch = Choice(labels("generation")["batch"], options, setting.batch)
        super().__init__(setting, (self.batch,))

    @property
    def setting(self) -> Written:
        """What the control shows now."""
        return Written(self.batch.value)

    def draw(self, setting: Written, stamp: float) -> None:
        """Compute and show a setting."""
        texts = self.recorded.texts.get(setting.batch, {key: Text() for key in WAYS})
        said = takeaway(texts, setting.batch, self.device)
        name = "caption" if self.recorded.run_id else "caption_nothing"
        caption = self.text[name].format(device=self.device.name, run=self.recorded.run_id)
        alt = self.text["figure"].format(sentence=said)
        spec = generation_spec(texts, self.text)
        self.show(spec, alt, said, written_table(texts, caption), stamp)


def generation(
    batch: int | None = None, *, device: str | None = None, session: Session | None = None
) -> Generation:
    """Recorded tokens a second of GPT-2 small: eager attention or ours, without a cache or with.

    Args:
        batch: sequences written at the same time, one that was recorded; default: the most.
        device: slug of the GPU whose run is shown; default: the session's.
        session: what `fa.session` returned; default: the current one.

    Raises:
        ValueError: a bad value, or one that was not recorded; TypeError: `session` is not one.
    """
    used = in_use(session)
    sheet = find_device(default_device(used) if device is None else device)
    recorded = RecordedGeneration.on(sheet, used.root)
    offered = sorted(recorded.texts) or list(BATCHES)
    if batch is not None and (isinstance(batch, bool) or batch not in offered):
        known = ", ".join(map(str, offered))
        raise ValueError(labels("generation")["not_offered"].format(batch=batch, known=known))
    return Generation(Written(max(offered) if batch is None else batch), sheet, recorded)

"""FlashAttention and the KV cache, alone and together, in a model that writes text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fa_kernels.device import Device
from fa_kernels.device import device as find_device
from fa_kernels.figures.generation import generation_spec
from fa_kernels.figures.point import device_words, ratio_text
from fa_kernels.figures.recorded_generation import WAYS, RecordedGeneration, Text
from fa_kernels.measure.generation_run import PROMPTS
from fa_kernels.session import Session, in_use
from fa_kernels.units import capacity, duration
from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.drawn_view import DrawnView
from fa_kernels.widgets.explorer_point import default_device
from fa_kernels.widgets.headline import Headline
from fa_kernels.widgets.text import html_table, labels


@dataclass(frozen=True)
class Written:
    """What the control shows: tokens of each prompt."""

    prompt: int


def takeaway(texts: Mapping[str, Text], prompt: int, device: Device) -> str:
    """Tokens a second with neither, and how much more with either and with both."""
    text = labels("generation")
    rates = {key: one.tokens_per_s for key, one in texts.items()}
    if not any(rates.values()):
        return str(text["said_nothing"]).format(device=device_words(device))
    if not all(rates.values()):
        lacking = ", ".join(text["ways"][key] for key, rate in rates.items() if not rate)
        return str(text["said_lacking"]).format(names=lacking, prompt=prompt)
    times = {key: rate / rates["neither"] for key, rate in rates.items()}
    row = texts["both"].row
    assert row is not None
    said = text["said"].format(
        batch=row.batch, prompt=prompt, device=device_words(device),
        rate=f"{rates['neither']:,.0f}",
        **{key: ratio_text(value) for key, value in times.items() if key != "neither"},
    )  # fmt: skip
    more = rates["both"] / max(rates["attention"], rates["cache"])
    name = "said_more" if more > 1 else "said_no_more"
    return f"{said} {text[name].format(ratio=ratio_text(more))} {_first(texts)}"


def _first(texts: Mapping[str, Text]) -> str:
    """When the first token is there, by either attention: what a cache cannot shorten."""
    times = {key: one.first.median or 0.0 for key, one in texts.items() if one.first}
    said: str = labels("generation")["said_first"]
    return said.format(eager=duration(times["cache"]), ours=duration(times["both"]))


def written_table(texts: Mapping[str, Text], caption: str) -> str:
    """The numbers behind the figure, one row per way, as HTML."""
    text = labels("generation")
    names = (
        "column_way",
        "column_rate",
        "column_first",
        "column_new",
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
                duration(one.first.median or 0.0) if one.first else "",
                f"{max(one.times)}" if timed else "",
                duration(row.median or 0.0) if timed else "",
                f"{row.p20:.5g} to {row.p80:.5g}" if timed else "",
                "" if memory is None else capacity(memory),
                "" if row.max_abs_err is None else f"{row.max_abs_err:.2g}", row.detail,
            ]
        )  # fmt: skip
    return html_table("generation", caption, [text[name] for name in names], body)


class Generation(DrawnView):
    """Four bars and four lines of one length of prompt."""

    section = mark = "generation"
    least_width = 720

    def __init__(self, setting: Written, device: Device, recorded: RecordedGeneration) -> None:
        self.recorded, self.device = recorded, device
        offered = sorted(recorded.texts) or list(PROMPTS)
        options = [(str(prompt), prompt) for prompt in offered]
        self.prompt = Choice(labels("generation")["prompt"], options, setting.prompt)
        super().__init__(setting, (self.prompt,))

    @property
    def setting(self) -> Written:
        """What the control shows now."""
        return Written(self.prompt.value)

    def headline(self) -> Headline:
        """Tokens a second in every way."""
        ways = self.text["ways"]
        return {
            ways[key]: (one.tokens_per_s or None, "tokens/s") for key, one in self.texts.items()
        }

    def draw(self, setting: Written, stamp: float) -> None:
        """Compute and show a setting."""
        texts = self.recorded.texts.get(setting.prompt, {key: Text() for key in WAYS})
        self.texts = texts
        said = takeaway(texts, setting.prompt, self.device)
        name = "caption" if self.recorded.run_id else "caption_nothing"
        caption = self.text[name].format(device=self.device.name, run=self.recorded.run_id)
        alt = self.text["figure"].format(sentence=said)
        spec = generation_spec(texts, self.text)
        self.show(spec, alt, said, written_table(texts, caption), stamp)


def generation(
    prompt: int | None = None, *, device: str | None = None, session: Session | None = None
) -> Generation:
    """Recorded tokens a second of GPT-2 small: eager attention or ours, without a cache or with.

    Args:
        prompt: tokens of each prompt, a number that was recorded; default: the most.
        device: slug of the GPU whose run is shown; default: the session's.
        session: what `fa.session` returned; default: the current one.

    Raises:
        ValueError: a bad value, or one that was not recorded; TypeError: `session` is not one.
    """
    used = in_use(session)
    sheet = find_device(default_device(used) if device is None else device)
    recorded = RecordedGeneration.on(sheet, used.root)
    offered = sorted(recorded.texts) or list(PROMPTS)
    if prompt is not None and (isinstance(prompt, bool) or prompt not in offered):
        known = ", ".join(map(str, offered))
        raise ValueError(labels("generation")["not_offered"].format(prompt=prompt, known=known))
    return Generation(Written(max(offered) if prompt is None else prompt), sheet, recorded)

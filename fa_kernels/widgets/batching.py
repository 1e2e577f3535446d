"""Requests served batch by batch or step by step, with times of the recorded decode kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fa_kernels.device import Device
from fa_kernels.device import device as find_device
from fa_kernels.figures.batching import batching_spec
from fa_kernels.figures.point import device_words, ratio_text
from fa_kernels.figures.recorded_decode import DecodeLine, RecordedDecode
from fa_kernels.model_shape import ModelShape, model_shape
from fa_kernels.paging import PAGE_SIZES
from fa_kernels.problem import checked_int
from fa_kernels.serving import POLICIES, Served, StepTimes, request_trace, serve
from fa_kernels.session import Session, in_use
from fa_kernels.units import GIB, duration, significant
from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.drawn_view import DrawnView
from fa_kernels.widgets.explorer_point import default_device
from fa_kernels.widgets.headline import TIME, Headline
from fa_kernels.widgets.knob import Knob
from fa_kernels.widgets.seed import checked_seed
from fa_kernels.widgets.text import html_table, labels

#: Requests of a trace, and tokens of the longest that may come.
COUNT, LONGEST = 48, 2048
#: Of the cache and the weights, whose numbers have 16 bits.
DTYPE = "bfloat16"
_RATES = (1, 2, 5, 10, 15, 20, 30, 40, 60, 80, 120)
_CACHE_GIB = (1, 2, 4, 8, 16, 32)
_SEEDS = tuple(range(1, 13))


def checked_rate(value: object) -> int:
    """Requests a second as an int, or a ValueError that says what it must be."""
    return checked_int("per_s", value, 1, 1000, "Choose a rate in that range.")


@dataclass(frozen=True)
class Asked:
    """What the controls show: requests a second, GiB of the cache, slots of a page, which trace."""

    per_s: int
    cache_gib: int
    page_size: int
    seed: int


def step_times(model: ModelShape, device: Device, line: DecodeLine) -> StepTimes:
    """Durations on a device: weights and products by its data sheet, attention by the line."""
    tensor = device.bf16_tensor_tflops or device.fp16_tensor_tflops
    return StepTimes(
        weights_ms=model.weight_bytes(DTYPE) / device.hbm_bandwidth_gb_s / 1e6,
        product_ms=2 * model.parameters / tensor / 1e9,
        token_ms=model.cache_bytes(1, 1, DTYPE) / line.gb_s / 1e6,
        fixed_ms=model.layers * line.fixed_ms,
    )


@lru_cache(maxsize=64)
def both(setting: Asked, times: StepTimes, token_bytes: int) -> tuple[Served, ...]:
    """The trace under each of `POLICIES`.

    Raises:
        ValueError: the cache does not hold the longest request.
    """
    requests = request_trace(setting.seed, COUNT, setting.per_s, LONGEST)
    slots = setting.cache_gib * GIB // token_bytes
    return tuple(serve(requests, policy, times, slots, setting.page_size) for policy in POLICIES)


def takeaway(served: tuple[Served, ...]) -> str:
    """Tokens a second, the wait for the first one, and what of the taken cache was used."""
    static, continuous = served
    text = labels("batching")
    name = "said" if continuous.tokens_per_s >= static.tokens_per_s else "said_slower"
    said = text[name].format(
        ratio=ratio_text(continuous.tokens_per_s / static.tokens_per_s),
        rate=f"{continuous.tokens_per_s:.0f}", static_rate=f"{static.tokens_per_s:.0f}",
        first=duration(float(np.median(continuous.first_token_ms))),
        static_first=duration(float(np.median(static.first_token_ms))),
        filled=f"{100 * continuous.filled:.0f}", static_filled=f"{100 * static.filled:.0f}",
    )  # fmt: skip
    if continuous.sent_back:
        said += " " + text["said_back"].format(count=continuous.sent_back)
    return str(said)


def source_words(line: DecodeLine, device: Device) -> str:
    """Where the durations come from."""
    text = labels("batching")
    if not line.run_id:
        return str(text["source_model"]).format(
            device=device_words(device), rate=significant(line.gb_s)
        )
    return str(text["source_run"]).format(
        device=device_words(device), run=line.run_id, points=line.points,
        fixed=duration(line.fixed_ms), rate=significant(line.gb_s),
        worst=f"{100 * line.worst:.0f}",
    )  # fmt: skip


def served_table(served: tuple[Served, ...], caption: str) -> str:
    """The numbers behind the figure, one row per policy, as HTML."""
    text = labels("batching")
    names = (
        "column_policy",
        "column_rate",
        "column_first",
        "column_late",
        "column_end",
        "column_batch",
        "column_filled",
        "column_peak",
        "column_back",
    )
    body = []
    for one in served:
        first = one.first_token_ms
        peak = max(step.taken for step in one.steps) / one.slots
        body.append(
            [
                text["policies"][one.policy], f"{one.tokens_per_s:.0f}",
                duration(float(np.median(first))), duration(float(np.percentile(first, 95))),
                duration(one.makespan_ms), f"{one.mean_batch:.1f}", f"{100 * one.filled:.0f} %",
                f"{100 * peak:.0f} %", str(one.sent_back),
            ]
        )  # fmt: skip
    return html_table("batching", caption, [text[name] for name in names], body)


class Batching(DrawnView):
    """One trace of requests, served in two ways; `served` holds both."""

    section = mark = "batching"
    least_width = 780
    served: tuple[Served, ...]

    def __init__(
        self, setting: Asked, model: ModelShape, device: Device, recorded: RecordedDecode
    ) -> None:
        text = labels("batching")
        self.model, self.device, self.line = model, device, recorded.line(device)
        self.per_s = Knob(
            check=checked_rate, label=text["per_s"], description=text["per_s_description"],
            values=list(_RATES), value=setting.per_s,
        )  # fmt: skip
        gib = sorted({*_CACHE_GIB, setting.cache_gib})
        options = [(f"{size} GiB", size) for size in gib]
        self.cache_gib = Choice(text["cache_gib"], options, setting.cache_gib)
        pages = [(str(size), size) for size in PAGE_SIZES]
        self.page_size = Choice(text["page_size"], pages, setting.page_size)
        self.seed = Knob(
            check=checked_seed, label=text["seed"], description=text["seed_description"],
            values=list(_SEEDS), value=setting.seed,
        )  # fmt: skip
        super().__init__(setting, (self.per_s, self.cache_gib, self.page_size, self.seed))

    @property
    def setting(self) -> Asked:
        """What the controls show now."""
        values: tuple[Any, ...] = (self.cache_gib.value, self.page_size.value, self.seed.value)
        return Asked(self.per_s.value, *values)

    def headline(self) -> Headline:
        """Tokens a second, the wait for the first one and the used part of the cache, both ways."""
        text, found = labels("headline"), {}
        for served, name in zip(self.served, ("static", "continuous"), strict=True):
            word, first = text[name], float(np.median(served.first_token_ms))
            found[text["rate"].format(variant=word)] = (served.tokens_per_s, "tokens/s")
            found[text["first"].format(variant=word)] = (first, TIME)
            found[text["filled"].format(variant=word)] = (100 * served.filled, "%")
        return found

    def draw(self, setting: Asked, stamp: float) -> None:
        """Compute and show a setting."""
        times = step_times(self.model, self.device, self.line)
        token_bytes = self.model.cache_bytes(1, 1, DTYPE)
        self.served = both(setting, times, token_bytes)
        said = takeaway(self.served)
        alt = self.text["figure"].format(sentence=said)
        caption = self.text["caption"].format(
            count=COUNT, seed=setting.seed, per_s=setting.per_s, model=self.model.name,
            gib=setting.cache_gib, slots=self.served[0].slots, page=setting.page_size,
            longest=max(service.request.tokens for service in self.served[0].services),
            source=source_words(self.line, self.device),
        )  # fmt: skip
        spec = batching_spec(self.served, self.text)
        self.show(spec, alt, said, served_table(self.served, caption), stamp)


def batching(
    per_s: int = 40,
    cache_gib: int = 2,
    page_size: int = 64,
    *,
    seed: int = 1,
    model: str = "llama-3-8b",
    device: str | None = None,
    session: Session | None = None,
) -> Batching:
    """Simulate a server: static batches against continuous batching with a paged cache.

    Attention's part of a decode step follows a line through the recorded times of the decode
    kernel, or the data sheet's bandwidth where there are none; the rest follows the data sheet.

    Args:
        per_s: requests that come in a second, in the mean.
        cache_gib: memory of the KV cache in GiB.
        page_size: slots of a page: 16, 32, 64, 128 or 256.
        seed: of the trace of requests.
        model: slug of a sheet in data/models, of a model without experts and windows.
        device: slug of the GPU; default: the session's.
        session: what `fa.session` returned; default: the current one.

    Raises:
        ValueError: a bad value; value, limit and remedy. TypeError: `session` is not one.
    """
    used, text = in_use(session), labels("batching")
    sheet = find_device(default_device(used) if device is None else device)
    shape = model_shape(model)
    if shape.experts > 1 or shape.window:
        raise ValueError(text["bad_model"].format(model=model))
    if isinstance(page_size, bool) or page_size not in PAGE_SIZES:
        known = ", ".join(map(str, PAGE_SIZES))
        raise ValueError(text["bad_page"].format(page=page_size, known=known))
    gib = checked_int("cache_gib", cache_gib, 1, 1024, "Choose the GiB of the cache.")
    setting = Asked(checked_rate(per_s), gib, int(page_size), checked_seed(seed))
    return Batching(setting, shape, sheet, RecordedDecode.on(sheet, used.root))

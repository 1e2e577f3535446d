"""Fragmentation of a KV cache's memory, step by step, and what pages leave of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import ipywidgets

from fa_kernels.figures.fragmentation import fragmentation_spec
from fa_kernels.paging import PAGE_SIZES, POLICIES, Occupancy, occupancies, visits
from fa_kernels.problem import checked_int
from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.drawn_view import Control, DrawnView
from fa_kernels.widgets.knob import Knob
from fa_kernels.widgets.seed import checked_seed
from fa_kernels.widgets.text import html_table, labels

#: Slots of the memory, tokens of the longest sequence that may come, and how many come.
SLOTS, LONGEST, COUNT = 2048, 512, 20
#: Tokens that a sequence grows by in a step.
STEP_TOKENS = 16
_SEEDS = tuple(range(1, 13))
_PLAY_MS = 700


@dataclass(frozen=True)
class Paged:
    """What the controls show: slots of a page, the seed of the sequences, the step from 1 on."""

    page_size: int
    seed: int
    step: int


@lru_cache(maxsize=64)
def stories(page_size: int, seed: int) -> Mapping[str, Sequence[Occupancy]]:
    """Policy -> its memory at every step."""
    guests = visits(seed, COUNT, LONGEST, STEP_TOKENS)
    return {
        policy: occupancies(guests, policy, SLOTS, LONGEST, page_size, STEP_TOKENS)
        for policy in POLICIES
    }


def at_step(story: Sequence[Occupancy], step: int) -> Occupancy:
    """The memory at a step; the last one, once all have left."""
    return story[min(step, len(story)) - 1]


def takeaway(setting: Paged) -> str:
    """How much of what is taken holds tokens now, who waits in spite of free slots, and when all
    are through."""
    text, found = labels("fragmentation"), stories(setting.page_size, setting.seed)
    now = {policy: at_step(story, setting.step) for policy, story in found.items()}
    used = {policy: f"{100 * one.used:.0f}" for policy, one in now.items()}
    said = text["said"].format(
        step=setting.step, page=setting.page_size, waste=now["paged"].internal_waste, **used
    )
    exact = now["exact"]
    if exact.external_waste:
        said += " " + text["said_stuck"].format(
            name=exact.waiting[0], asked=exact.asked, free=exact.free, largest=exact.largest_free
        )
    ends = {policy: len(story) for policy, story in found.items()}
    return f"{said} {text['said_ends'].format(**ends)}"


def waste_table(setting: Paged) -> str:
    """The numbers behind the figure, one row per policy, as HTML."""
    text = labels("fragmentation")
    names = (
        "column_policy",
        "column_taken",
        "column_tokens",
        "column_internal",
        "column_external",
        "column_used",
        "column_mean",
        "column_back",
        "column_steps",
    )
    head = [text[name] for name in names]
    body = []
    for policy, story in stories(setting.page_size, setting.seed).items():
        one = at_step(story, setting.step)
        mean = sum(each.tokens for each in story) / sum(each.taken for each in story)
        body.append(
            [
                text["policies"][policy], str(one.taken), str(one.tokens), str(one.internal_waste),
                str(one.external_waste), f"{100 * one.used:.0f} %", f"{100 * mean:.0f} %",
                str(sum(len(each.sent_back) for each in story)), str(len(story)),
            ]
        )  # fmt: skip
    caption = text["caption"].format(
        slots=SLOTS, count=COUNT, longest=LONGEST, grow=STEP_TOKENS, **vars(setting)
    )
    return html_table("fragmentation", caption, head, body)


class Fragmentation(DrawnView):
    """Rows of slots under three policies, with a control that steps and one that plays."""

    section = mark = "fragmentation"
    pins = False  # a picture of slots
    least_width = 820

    def __init__(self, setting: Paged) -> None:
        text = labels("fragmentation")
        pages = [(str(size), size) for size in PAGE_SIZES]
        self.page_size = Choice(text["page_size"], pages, setting.page_size)
        self.seed = Knob(
            check=checked_seed, label=text["seed"], description=text["seed_description"],
            values=list(_SEEDS), value=setting.seed,
        )  # fmt: skip
        self.step = Knob(
            check=self._checked_step, label=text["step"], description=text["step_description"],
            values=self._steps(setting), value=setting.step,
        )  # fmt: skip
        last = self.step.values[-1]
        self.play = ipywidgets.Play(min=1, max=last, value=setting.step, interval=_PLAY_MS)
        super().__init__(setting, (self.page_size, self.seed, self.step), (self.play,))
        ipywidgets.link((self.play, "value"), (self.step, "value"))

    @staticmethod
    def _steps(setting: Paged) -> list[int]:
        found = stories(setting.page_size, setting.seed)
        return list(range(1, max(map(len, found.values())) + 1))

    def _checked_step(self, value: object) -> int:
        return checked_int("step", value, 1, self.step.values[-1], "Choose a step of the story.")

    @property
    def setting(self) -> Paged:
        """What the controls show now."""
        return Paged(self.page_size.value, self.seed.value, self.step.value)

    def restore(self, values: Mapping[Control, Any]) -> None:
        """As many steps as that story has, or what plays it would stop short."""
        self.play.playing = False
        opened = Paged(*(values[control] for control in (self.page_size, self.seed, self.step)))
        self.step.values = self._steps(opened)
        self.play.max = self.step.values[-1]
        super().restore(values)

    def draw(self, setting: Paged, stamp: float) -> None:
        """Compute and show a setting."""
        steps = self._steps(setting)
        if len(steps) != len(self.step.values):
            self.step.values, self.play.max = steps, steps[-1]
            if setting.step > steps[-1]:
                self.step.value = steps[-1]  # comes back here
                return
        found = stories(setting.page_size, setting.seed)
        shown = [at_step(story, setting.step) for story in found.values()]
        said = takeaway(setting)
        alt = self.text["figure"].format(sentence=said)
        self.show(fragmentation_spec(shown, self.text), alt, said, waste_table(setting), stamp)


def fragmentation(page_size: int = 16, *, step: int = 24, seed: int = 2) -> Fragmentation:
    """The memory of a KV cache, slot by slot, while sequences come and go.

    Each reserves the longest, gets one piece as long as it will be, or pages with a block table.

    Args:
        page_size: slots of a page: 16, 32, 64, 128 or 256.
        step: the step that is shown first, from 1 on.
        seed: of the random lengths; equal ones give equal sequences.

    Raises:
        ValueError: a bad value; value, limit and remedy.
    """
    if isinstance(page_size, bool) or page_size not in PAGE_SIZES:
        known = ", ".join(map(str, PAGE_SIZES))
        refusal = labels("fragmentation")["bad_page"]
        raise ValueError(refusal.format(page=page_size, known=known))
    seed = checked_seed(seed)
    last = max(map(len, stories(int(page_size), seed).values()))
    step = checked_int("step", step, 1, last, "Choose a step of the story.")
    return Fragmentation(Paged(int(page_size), seed, step))

"""Sizes that models and benchmarks have: the one list of presets of N and d."""

from __future__ import annotations

from dataclasses import dataclass

from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.knob import Knob
from fa_kernels.widgets.text import labels


@dataclass(frozen=True)
class Preset:
    """A sequence length and a head dimension; batch and heads follow the recorded grid.

    `claim` is the id of the row of data/paper/claims.csv that names it, `model` the slug of the
    sheet in data/models that says d, and N where the paper does not.
    """

    N: int
    d: int = 64
    claim: str = ""
    model: str = ""

    @property
    def sizes(self) -> tuple[int, int]:
        """(N, d)."""
        return self.N, self.d


#: By name, ascending; what each stands for is in the labels. The paper's benchmarks are published
#: without their d: those presets have the recorded grid's 64, as its tables have.
PRESETS = {
    "BERT-large 512": Preset(512, claim="bert-large"),
    "GPT-2 1K": Preset(1024, claim="gpt2-huggingface", model="gpt2"),
    "LRA 2K": Preset(2048, claim="lra-flash"),
    "GPT-2 4K": Preset(4096, claim="gpt2-4k-perplexity", model="gpt2"),
    "Llama 3 8K": Preset(8192, 128, model="llama-3-8b"),
    "Path-X 16K": Preset(16384, claim="path-x"),
    "Path-256 64K": Preset(65536, claim="path-256"),
}


def preset_of(seqlen: int, head_dim: int) -> str:
    """The name of the preset of these sizes, or ""."""
    found = (name for name, preset in PRESETS.items() if preset.sizes == (seqlen, head_dim))
    return next(found, "")


def about(name: str) -> str:
    """What a preset stands for, in a sentence; of none, what the list is for."""
    text = labels("presets")
    return str(text["about"][name] if name else text["list_why"])


def preset_choice(name: str) -> Choice:
    """A list box of the presets; its first line, which is none, stands for any other sizes."""
    text = labels("presets")
    names = [(text["none"], ""), *((one, one) for one in PRESETS)]
    choice = Choice(text["list"], names, name)
    choice.about = about(name)
    choice.observe(lambda change: setattr(choice, "about", about(change.new)), "value")
    return choice


def apply_preset(name: str, seqlen: Knob, head_dim: Knob) -> None:
    """Set both knobs to a preset's sizes."""
    for knob, value in zip((seqlen, head_dim), PRESETS[name].sizes, strict=True):
        knob.error, knob.value = "", value

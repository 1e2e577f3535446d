"""What each rung's instructions are for, from its machine code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fa_kernels.cuda.sass import CLASSES, CONVERT, FP32, TENSOR
from fa_kernels.figures.instruction_mix import (
    EVERYTHING,
    LOOPS,
    PARTS,
    Row,
    counts_of,
    mix_rows,
    mix_spec,
)
from fa_kernels.figures.point import ratio_text
from fa_kernels.figures.rungs import launches
from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.rung_view import Compiled, RungView
from fa_kernels.widgets.text import html_table, labels


def takeaway(rows: Sequence[Row], part: str) -> str:
    """Which share of the instructions multiplies, rung by rung, and what one of them does."""
    text = labels("instruction_mix")
    shown = mix_rows(rows, part)
    if not shown:
        return str(text["said_nothing"])
    rung, launch = shown[-1]
    counts = counts_of(launch.mix, part)
    total = sum(counts.values())
    said = text["said_loops" if part == LOOPS else "said_everything"].format(
        name=rung.said, total=total,
        **{name: f"{100 * counts.get(name, 0) / total:.0f}" for name in (FP32, CONVERT, TENSOR)},
    )  # fmt: skip
    if part == EVERYTHING:
        return str(said)
    known = [
        (rate, rung)
        for rung, launch in shown
        if launch.mix and (rate := launch.mix.flops_per_instruction)
    ]
    tensor, plain = (
        [(rate, r.said) for rate, r in known if r.build and r.build.uses_tensor_cores is used]
        for used in (True, False)
    )
    if not tensor or not plain:
        return f"{said} {text['said_no_tensor']}"
    (rate, name), (old, before) = max(tensor), max(plain)
    return f"{said} " + text["said_rate"].format(
        name=name, rate=f"{rate:.0f}", before=before, old=f"{old:.0f}", ratio=ratio_text(rate / old)
    )


def mix_table(rows: Sequence[Row], part: str, caption: str) -> str:
    """The counts behind the figure, one row per launch, as HTML."""
    text = labels("instruction_mix")
    seen = [c for c in CLASSES if any(counts_of(row[1].mix, part).get(c) for row in rows)]
    body = []
    for rung, launch in rows:
        counts = counts_of(launch.mix, part)
        rate = launch.mix.flops_per_instruction if launch.mix else None
        cells = [str(counts.get(name, 0)) for name in seen] if counts else [""] * len(seen)
        total = str(sum(counts.values())) if counts else text["no_loop"]
        shown = f"{rate:.0f}" if rate else ""
        body.append([f"{rung.number} {launch.entry}", *cells, total, shown])
    names = [text["classes"][name] for name in seen]
    head = [text["column_launch"], *names, text["column_total"], text["column_rate"]]
    return html_table("instruction-mix", caption, head, body, "falab-table falab-dense")


class InstructionMixView(RungView):
    """Stacked bars of instruction classes, launch by launch."""

    section, mark = "instruction_mix", "mix"
    pins = False  # every bar is a whole: outlines would all be alike

    def __init__(self, setting: Compiled, part: str) -> None:
        text = labels(self.section)
        self.part = Choice(text["part"], [(text["parts"][name], name) for name in PARTS], part)
        super().__init__(setting, (self.part,))

    def arguments(self) -> dict[str, Any]:
        """What is counted is an argument, too."""
        return {**super().arguments(), "part": self.part.value}

    def draw(self, setting: Compiled, stamp: float) -> None:
        """Compute and show a setting."""
        part, found = self.part.value, setting.rungs
        rows = launches(found)
        said = takeaway(rows, part)
        alt = self.text["figure"].format(sentence=said)
        table = mix_table(rows, part, self.caption(setting, found))
        self.show(mix_spec(rows, part, self.text), alt, said, table, stamp)


def instruction_mix(
    d: int = 64,
    *,
    dtype: str = "fp16",
    arch: int | str = 90,
    part: str = LOOPS,
    pass_: str = "fwd",
) -> InstructionMixView:
    """Instructions of every rung's machine code by class: tensor core, fp32, loads and the rest.

    Each instruction is counted once, however often it runs; so the loops that multiply, which run
    most, can be looked at by themselves.

    Args:
        d, dtype, arch, pass_: as `resources`.
        part: "loops" (the innermost loops that multiply) or "everything".

    Raises:
        ValueError: something of which no build is kept, or another part; value and remedy.
    """
    if part not in PARTS:
        raise ValueError(f"part = {part!r} is not known: use {LOOPS!r} or {EVERYTHING!r}.")
    return InstructionMixView(Compiled.of(d, dtype, arch, pass_), part)

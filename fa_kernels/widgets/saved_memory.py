"""What attention keeps from forward to backward, and the peak of a training step, over N."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fa_kernels.device import Device
from fa_kernels.device import device as find_device
from fa_kernels.figures.point import checked_head_dim
from fa_kernels.figures.recorded_backward import KEEPS_P, REBUILDS_P, RecordedBackward
from fa_kernels.figures.saved_memory import (
    FITTED_FROM,
    PEAK,
    RECORDED,
    SEQLENS,
    SHOWN,
    SavedAt,
    power,
    power_words,
    saved_memory_spec,
)
from fa_kernels.problem import (
    DTYPE_FROM_SHORT,
    SHORT_DTYPE,
    AttentionProblem,
    checked_int,
    dtype_name,
)
from fa_kernels.session import Session, in_use
from fa_kernels.units import capacity, significant
from fa_kernels.variants import VARIANTS
from fa_kernels.widgets.drawn_view import DrawnView
from fa_kernels.widgets.explorer_point import default_device
from fa_kernels.widgets.headline import HELD, Headline
from fa_kernels.widgets.knob import Knob
from fa_kernels.widgets.setting import HEAD_DIMS, dtype_choice, number_knob
from fa_kernels.widgets.text import html_table, labels

HEADS, MAX_HEADS = (1, 2, 4, 8, 16, 32, 64), 1024
_COLUMNS = ("column_kept", "column_predicted", "column_measured", "column_ratio")


@dataclass(frozen=True)
class Shape:
    """One sequence of `heads` heads of dimension d; dtype by its short name."""

    d: int
    heads: int
    dtype: str

    def at(self, seqlen: int) -> AttentionProblem:
        """The problem at one N."""
        sizes = (1, self.heads, seqlen, seqlen, self.d)
        return AttentionProblem(*sizes, DTYPE_FROM_SHORT[self.dtype])


def checked_heads(value: object) -> int:
    """The number of heads as an int, or a ValueError that says what it must be."""
    return checked_int("heads", value, 1, MAX_HEADS, "2 were recorded; a model has 8 to 128.")


def recorded_backward(
    device: str | None, session: Session | None
) -> tuple[Device, RecordedBackward]:
    """The device a widget opens on, and the backward passes recorded there.

    Raises:
        ValueError: no such device; TypeError: `session` is not one.
    """
    used = in_use(session)
    sheet = find_device(default_device(used) if device is None else device)
    return sheet, RecordedBackward.on(sheet, used.root)


def takeaway(found: Sequence[SavedAt]) -> str:
    """What is kept at the longest N, how the peaks grow, and what was not run, in words."""
    text, last = labels("saved_memory"), found[-1]
    kept, slim = (last.saved[name] for name in (KEEPS_P, REBUILDS_P))
    said = text["said"].format(
        N=last.seqlen, kept=capacity(kept), slim=capacity(slim),
        ratio=significant(kept / slim),
    )  # fmt: skip
    words, names = [], [n for n in SHOWN if power(found, RECORDED, n) is not None]
    for name in names:
        known = [at for at in found if at.recorded[name] and at.seqlen >= FITTED_FROM]
        words.append(
            text["said_power"].format(
                label=VARIANTS[name].label, power=power_words(power(known, RECORDED, name)),
                model=power_words(power(known, PEAK, name)),
                low=known[0].seqlen, high=known[-1].seqlen,
            )
        )  # fmt: skip
    grows = text["said_grows"].format(powers=" and ".join(words)) if words else text["said_model"]
    return " ".join([said, grows, *_not_run(found)])


def _not_run(found: Sequence[SavedAt]) -> list[str]:
    """A sentence per variant and first N that a run tried and refused."""
    text, said = labels("saved_memory"), []
    for name in SHOWN:
        first = next((at for at in found if at.refused[name]), None)
        if first is not None:
            words = text["said_refused"].format(
                label=VARIANTS[name].label, N=first.seqlen, why=first.refused[name]
            )
            said.append(words)
    return said


def memory_table(found: Sequence[SavedAt], shape: Shape, device: Device, run: str | None) -> str:
    """The numbers behind the figure, one row per N, as HTML: predicted, recorded and the ratio."""
    text = labels("saved_memory")
    head = [text["axis_seqlen"]]
    for name in SHOWN:
        head += [text[column].format(label=VARIANTS[name].label) for column in _COLUMNS]
    body = []
    for at in found:
        row = [str(at.seqlen)]
        for name in SHOWN:
            measured = at.recorded[name]
            row += [capacity(at.saved[name]), capacity(at.peak[name])]
            if measured is None:
                row += [at.refused[name] or text["not_recorded"], ""]
            else:
                row += [capacity(measured), f"{measured / at.peak[name]:.4f}"]
        body.append(row)
    any_dot = any(size for at in found for size in at.recorded.values())
    source = text["source"].format(run=run) if any_dot else text["no_source"]
    caption = text["caption"].format(
        heads=shape.heads, head_dim=shape.d, dtype=shape.dtype, device=device.name, source=source
    )
    return html_table("saved-memory", caption, head, body, "falab-table falab-dense")


class SavedMemory(DrawnView):
    """Both kinds of memory over N."""

    section, mark = "saved_memory", "saved"

    def __init__(self, shape: Shape, device: Device, runs: RecordedBackward) -> None:
        text = labels(self.section)
        self.device, self.runs = device, runs
        self.head_dim = number_knob("head_dim", HEAD_DIMS, shape.d, checked_head_dim)
        self.heads = Knob(
            check=checked_heads, label=text["heads"], description=text["heads_description"],
            values=list(HEADS), value=shape.heads,
        )  # fmt: skip
        self.dtype = dtype_choice(shape.dtype)
        super().__init__(shape, (self.head_dim, self.heads, self.dtype))

    @property
    def setting(self) -> Shape:
        """What the controls show now."""
        return Shape(self.head_dim.value, self.heads.value, self.dtype.value)

    def headline(self) -> Headline:
        """What is kept and what the peak is at the longest N, by the model."""
        text, last = labels("headline"), self.found[-1]
        kinds = (("kept", last.saved), ("peak", last.peak))
        return {
            text[kind].format(variant=VARIANTS[name].label, N=last.seqlen): (of[name], HELD)
            for kind, of in kinds
            for name in SHOWN
        }

    def draw(self, setting: Shape, stamp: float) -> None:
        """Compute and show a setting."""
        found = self.found = [SavedAt.of(setting.at(n), self.runs) for n in SEQLENS]
        said = takeaway(found)
        table = memory_table(found, setting, self.device, self.runs.run_id)
        alt = self.text["figure"].format(sentence=said)
        self.show(saved_memory_spec(found, self.device, self.text), alt, said, table, stamp)


def saved_memory(
    d: int = 64,
    heads: int = 2,
    *,
    dtype: str = "fp16",
    device: str | None = None,
    session: Session | None = None,
) -> SavedMemory:
    """Bytes that live from forward to backward, and the peak of both passes, over N.

    Standard attention keeps P, FlashAttention out and lse. Lines are the model; open markers the
    peak that a run measured for one sequence of as many heads. Beside the inputs q, k, v and d_out.

    Args:
        d: head dimension.
        heads: of the one sequence.
        dtype: "fp16", "bf16" or "fp32".
        device, session: as `traffic_ways`.

    Raises:
        ValueError: a bad value; value, limit and remedy.
        TypeError: `session` is not one.
    """
    sheet, runs = recorded_backward(device, session)
    short = SHORT_DTYPE[dtype_name(dtype)]
    return SavedMemory(Shape(checked_head_dim(d), checked_heads(heads), short), sheet, runs)

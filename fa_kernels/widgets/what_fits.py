"""Which level of a GPU's memory holds a tile, a head's tensors, its N × N matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fa_kernels.device import Device
from fa_kernels.device import device as find_device
from fa_kernels.figures.over_seqlen import SEQLENS
from fa_kernels.figures.point import (
    checked_head_dim,
    checked_seqlen,
    device_words,
    ratio_text,
)
from fa_kernels.figures.what_fits import (
    Item,
    Place,
    fits_spec,
    items_of,
    largest_seqlen,
    place_for,
    places_of,
    rung_of,
    shipped_tiling,
)
from fa_kernels.problem import AttentionProblem
from fa_kernels.session import Session, in_use
from fa_kernels.units import capacity
from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.controls import device_options
from fa_kernels.widgets.drawn_view import DrawnView
from fa_kernels.widgets.explorer_point import default_device
from fa_kernels.widgets.headline import HELD, Headline
from fa_kernels.widgets.recompute_cost import Sizes
from fa_kernels.widgets.setting import HEAD_DIMS, dtype_choice, number_knob
from fa_kernels.widgets.text import html_table, labels


def takeaway(items: Sequence[Item], device: Device, problem: AttentionProblem) -> str:
    """Where S fits, how many blocks' memory it would take, and up to which N a block holds it."""
    text, places = labels("what_fits"), places_of(device)
    sizes = {item.key: item for item in items}
    block, scores = device.smem_per_block_bytes, sizes["s"].nbytes
    name = "said_s" if scores > block else "said_s_fits"
    said = text[name].format(
        N=problem.seqlen_q, size=capacity(scores), block=capacity(block),
        device=device_words(device), ratio=ratio_text(scores / block),
        most=largest_seqlen(block, problem.itemsize),
    )  # fmt: skip
    place = place_for(sizes["sp_all"], places)
    where = text["fits"][place.key] if place else text["fits_nowhere"]
    said += " " + text["said_all"].format(
        heads=problem.heads, size=capacity(sizes["sp_all"].nbytes), where=where
    )
    tile = sizes["tile"].nbytes
    return f"{said} {text['said_tile'].format(size=capacity(tile))}"


def item_words(problem: AttentionProblem, device: Device) -> dict[str, str]:
    """What the items are called: with the rung whose tile it is, and the number of heads."""
    keys = min(shipped_tiling(problem, device).block_n, problem.seqlen_k)
    rung = rung_of(problem, device)
    names = labels("what_fits")["items"]
    return {
        key: name.format(rung=rung, keys=keys, heads=problem.heads) for key, name in names.items()
    }


def fits_table(
    items: Sequence[Item], places: Sequence[Place], words: dict[str, str], caption: str
) -> str:
    """The numbers behind the figure: how often each item fits into each memory, as HTML."""
    text = labels("what_fits")
    head = [text["column_item"], text["column_size"]]
    head += [text["places"][place.key].format(size=capacity(place.nbytes)) for place in places]
    body = []
    for item in items:
        shares = [place.nbytes / item.nbytes for place in places]
        body.append(
            [words[item.key], capacity(item.nbytes), *(_share(share, text) for share in shares)]
        )
    return html_table("what-fits", caption, head, body, "falab-table falab-dense")


def _share(times: float, text: dict[str, str]) -> str:
    """ "holds 7" of an item, or how many times too large it is."""
    if times >= 1:
        return str(text["holds"]).format(count=int(times))
    return str(text["too_large"]).format(ratio=ratio_text(1 / times))


@dataclass(frozen=True)
class PlacedSizes(Sizes):
    """N, d and dtype by its short name, and the slug of a device."""

    device: str


class WhatFits(DrawnView):
    """Sizes of a call of attention beside the memories of a device."""

    section, mark = "what_fits", "fits"
    least_width = 860
    items: Sequence[Item]
    has_presets = True

    def __init__(self, sizes: Sizes, device: Device) -> None:
        self.seqlen = number_knob("seqlen", SEQLENS, sizes.N, checked_seqlen)
        self.head_dim = number_knob("head_dim", HEAD_DIMS, sizes.d, checked_head_dim)
        self.dtype = dtype_choice(sizes.dtype)
        self.device = Choice(labels("explorer")["device"], device_options(), device.slug)
        controls = (self.seqlen, self.head_dim, self.dtype, self.device)
        super().__init__(self.setting, controls)

    @property
    def setting(self) -> PlacedSizes:
        """What the controls show now."""
        sizes = (self.seqlen.value, self.head_dim.value, self.dtype.value)
        return PlacedSizes(*sizes, self.device.value)

    def headline(self) -> Headline:
        """Bytes of everything whose size is shown."""
        text = labels("headline")
        return {text[item.key]: (item.nbytes, HELD) for item in self.items}

    def draw(self, setting: PlacedSizes, stamp: float) -> None:
        """Compute and show a setting."""
        problem, device = setting.problem, find_device(setting.device)
        items, places = items_of(problem, device), places_of(device)
        self.items = items
        words = item_words(problem, device)
        said = takeaway(items, device, problem)
        alt = self.text["figure"].format(sentence=said)
        caption = self.text["caption"].format(problem=problem.describe(), device=device.name)
        table = fits_table(items, places, words, caption)
        self.show(fits_spec(items, places, words, self.text), alt, said, table, stamp)


def what_fits(
    N: int = 4096,
    d: int = 64,
    *,
    dtype: str = "fp16",
    device: str | None = None,
    session: Session | None = None,
) -> WhatFits:
    """Sizes of a tile, of a head's tensors and of its N × N matrices, beside what a GPU holds.

    Args:
        N, d: sequence length and head dimension; batch and heads follow (16384 tokens of width
            2048).
        dtype: "fp16", "bf16" or "fp32".
        device: slug of the GPU; default: the session's.
        session: what `fa.session` returned; default: the current one.

    Raises:
        ValueError: a bad value; value, limit and remedy. TypeError: `session` is not one.
    """
    used = in_use(session)
    sheet = find_device(default_device(used) if device is None else device)
    return WhatFits(Sizes.of(N, d, dtype), sheet)

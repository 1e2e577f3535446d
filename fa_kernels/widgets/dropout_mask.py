"""The mask that dropout draws: the same for every tiling, in both passes, and never read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fa_kernels.attention import attention, attention_backward
from fa_kernels.dropout import dropout_keep
from fa_kernels.figures.dropout_mask import BACKWARD, FORWARD, Drawn, dropout_mask_spec
from fa_kernels.problem import AttentionProblem, checked_int
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.counter import CountingHbm
from fa_kernels.traffic.model import Traffic
from fa_kernels.units import significant
from fa_kernels.variants import VARIANTS
from fa_kernels.widgets.drawn_view import DrawnView
from fa_kernels.widgets.knob import Knob
from fa_kernels.widgets.seed import checked_seed
from fa_kernels.widgets.text import html_table, labels

VARIANT = "flash_q_outer"
#: Rows and keys of the one head that is drawn; its head dimension, so that V can be the identity.
SEQLEN = 32
PERCENTS, BLOCKS = (0, 5, 10, 20, 30, 50, 75, 90), (2, 3, 4, 6, 8, 11, 16, 32)
SEEDS = tuple(range(17))


@dataclass(frozen=True)
class Draw:
    """Which mask is drawn, and the tiles the forward goes through."""

    percent: int
    seed: int
    block_m: int
    block_n: int

    @property
    def dropout_p(self) -> float:
        """The probability that an entry is dropped."""
        return self.percent / 100

    @property
    def tilings(self) -> dict[str, Tiling]:
        """The backward's tiles lie the other way round: any others would do."""
        return {
            FORWARD: Tiling(self.block_m, self.block_n),
            BACKWARD: Tiling(self.block_n, self.block_m),
        }


@dataclass(frozen=True)
class MaskCheck:
    """Masks as both passes used them, against the one that is drawn for the whole matrix.

    `mask_bytes`: read for the mask in the NumPy tiles; `added_bytes`: traffic with dropout minus
    traffic without; `given_bytes`: what an explicit mask is read for.
    """

    draw: Draw
    drawn: dict[str, Drawn]
    same: bool
    mask_bytes: int
    added_bytes: int
    given_bytes: int

    @property
    def kept(self) -> int:
        """Entries that are kept."""
        return int(self.drawn[FORWARD].keep.sum())

    @property
    def fraction(self) -> float:
        """Share of entries that is kept."""
        return self.kept / SEQLEN**2

    @property
    def deviation(self) -> float:
        """Standard deviation of `fraction` for independent draws."""
        p = self.draw.dropout_p
        return math.sqrt(p * (1 - p) / SEQLEN**2)


def checked_percent(value: object) -> int:
    """p in percent as an int, or a ValueError that says what it must be."""
    return checked_int("p", value, 0, 99, "It is the probability to drop, in percent.")


def checked_block(value: object) -> int:
    """A tile size as an int, or a ValueError that says what it must be."""
    return checked_int("block", value, 1, SEQLEN, "The matrix has 32 rows and keys.")


def masks_used(draw: Draw) -> dict[str, Drawn]:
    """The masks read off what both passes give.

    With Q = K = 0 every probability is 1 / N. With V = I, out is the dropped and scaled P itself;
    with dO = I, dV is its transpose.
    """
    zero, one = np.zeros((1, 1, SEQLEN, SEQLEN)), np.eye(SEQLEN)[None, None]
    tilings = draw.tilings
    options: dict[str, Any] = {"dropout_p": draw.dropout_p, "seed": draw.seed, "variant": VARIANT}
    out, lse = attention(
        zero, zero, one, tiling=tilings[FORWARD], return_lse=True, **options
    )  # fmt: skip
    d_v = attention_backward(
        one, zero, zero, one, out, lse, tiling=tilings[BACKWARD], **options
    )[2]  # fmt: skip
    return {
        FORWARD: Drawn(out[0, 0] > 0, tilings[FORWARD]),
        BACKWARD: Drawn(d_v[0, 0].T > 0, tilings[BACKWARD]),
    }


def moved(draw: Draw, dropout_p: float) -> Traffic:
    """Bytes that the forward's NumPy tiles move, counted while dropout draws."""
    problem = AttentionProblem(
        1, 1, SEQLEN, SEQLEN, SEQLEN, "float32", dropout_p=dropout_p, seed=draw.seed
    )
    ones, hbm = np.ones((1, 1, SEQLEN, SEQLEN), np.float32), CountingHbm()
    VARIANTS[VARIANT].reference(ones, ones, ones, problem, draw.tilings[FORWARD], hbm)
    return hbm.traffic()


def mask_check(draw: Draw) -> MaskCheck:
    """Both passes, their masks and their bytes."""
    drawn, places = masks_used(draw), np.arange(SEQLEN)
    whole = dropout_keep(draw.dropout_p, draw.seed, 0, 0, places, places)
    same = all(bool((one.keep == whole).all()) for one in drawn.values())
    with_dropout, without = moved(draw, draw.dropout_p), moved(draw, 0.0)
    given = AttentionProblem(
        1, 1, SEQLEN, SEQLEN, SEQLEN, "float32", dropout_p=draw.dropout_p, keep_given=True
    )
    given_bytes = VARIANTS[VARIANT].launched(given, draw.tilings[FORWARD]).of("mask")
    added = with_dropout.total_bytes - without.total_bytes
    return MaskCheck(draw, drawn, same, with_dropout.of("mask"), added, given_bytes)


def takeaway(check: MaskCheck) -> str:
    """Same mask or not, how much is kept against what is expected, and the bytes."""
    text = labels("dropout_mask")
    forward, backward = (f"{t.block_m} × {t.block_n}" for t in check.draw.tilings.values())
    said = text["same" if check.same else "differs"].format(forward=forward, backward=backward)
    kept = text["said_kept"].format(
        fraction=f"{100 * check.fraction:.1f}", expected=f"{100 - check.draw.percent}",
        deviation=significant(100 * check.deviation, 2),
    )  # fmt: skip
    moved_words = text["said_moved"].format(
        mask=check.mask_bytes, added=check.added_bytes, given=check.given_bytes
    )
    return f"{said} {kept} {moved_words}"


def mask_table(check: MaskCheck) -> str:
    """Predicted, counted and their ratio, as HTML."""
    text = labels("dropout_mask")
    expected = (1 - check.draw.dropout_p) * SEQLEN**2
    spread = check.deviation * SEQLEN**2
    off = (check.kept - expected) / spread if spread else 0.0
    rows = [
        [text["row_kept"], f"{expected:.1f} ± {spread:.1f}", str(check.kept),
         f"{check.kept / expected:.3f}", text["off"].format(off=f"{off:+.1f}".replace("-", "−"))],
        [text["row_bytes"], "0 B", f"{check.mask_bytes} B", "",
         text["given"].format(given=check.given_bytes)],
        [text["row_added"], "0 B", f"{check.added_bytes} B", "", ""],
    ]  # fmt: skip
    head = [text[name] for name in ("quantity", "predicted", "counted", "ratio", "note")]
    caption = text["caption"].format(
        N=SEQLEN, entries=SEQLEN**2, p=check.draw.dropout_p, seed=check.draw.seed
    )
    return html_table("dropout-mask", caption, head, rows, "falab-table falab-dense")


class DropoutMask(DrawnView):
    """The mask in both passes; `check` holds the numbers."""

    section, mark = "dropout_mask", "dropout"
    check: MaskCheck

    def __init__(self, draw: Draw) -> None:
        text = labels(self.section)
        self.percent = Knob(
            check=checked_percent, label=text["p"], description=text["p_description"], unit="%",
            values=list(PERCENTS), value=draw.percent,
        )  # fmt: skip
        self.seed = Knob(
            check=checked_seed, label=text["seed"], description=text["seed_description"],
            values=list(SEEDS), value=draw.seed,
        )  # fmt: skip
        self.block_m, self.block_n = (
            Knob(
                check=checked_block, label=text[name], description=text["tile_description"],
                values=list(BLOCKS), value=value,
            )
            for name, value in (("block_m", draw.block_m), ("block_n", draw.block_n))
        )  # fmt: skip
        super().__init__(draw, (self.percent, self.seed, self.block_m, self.block_n))

    @property
    def setting(self) -> Draw:
        """What the controls show now."""
        return Draw(self.percent.value, self.seed.value, self.block_m.value, self.block_n.value)

    def arguments(self) -> dict[str, Any]:
        """The call takes a probability."""
        return {"p": self.setting.percent / 100, **super().arguments()}

    def draw(self, setting: Draw, stamp: float) -> None:
        """Run both passes and show their masks."""
        self.check = mask_check(setting)
        said = takeaway(self.check)
        alt = self.text["figure"].format(sentence=said)
        spec = dropout_mask_spec(self.check.drawn, self.text)
        self.show(spec, alt, said, mask_table(self.check), stamp)


def dropout_mask(p: float = 0.2, seed: int = 0, block_m: int = 8, block_n: int = 16) -> DropoutMask:
    """The keep mask of a 32 × 32 attention matrix, as forward and backward really used it.

    Read off their results, in NumPy: tiles move the borders, never the mask, and no byte is moved
    for it.

    Args:
        p: probability that an entry is dropped, in whole percent: 0, 0.01 ... 0.99.
        seed: which entries, 0 to 2^32 - 1.
        block_m, block_n: the forward's tiles, 1 to 32; the backward takes them the other way round.

    Raises:
        ValueError: a bad value; value, limit and remedy.
    """
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p < 1:
        raise ValueError(f"p = {p!r} is no probability from 0 to 0.99: 0.1 is usual.")
    percent = checked_percent(round(100 * p))
    if abs(percent - 100 * p) > 1e-9:
        raise ValueError(f"p = {p!r} is no whole percent: use {percent / 100}.")
    return DropoutMask(
        Draw(percent, checked_seed(seed), checked_block(block_m), checked_block(block_n))
    )

"""N, d, M and dtype as one value: the stops of their controls, and the point they stand for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fa_kernels.device import device as find_device
from fa_kernels.figures.point import Point, checked_head_dim, checked_seqlen, checked_sram_kib
from fa_kernels.problem import (
    DTYPE_FROM_SHORT,
    SHORT_DTYPE,
    AttentionProblem,
    checked_int,
    dtype_name,
)
from fa_kernels.tiling import Tiling
from fa_kernels.units import KIB
from fa_kernels.variants import ALGORITHMS
from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.knob import Knob
from fa_kernels.widgets.text import labels

HEAD_DIMS = (16, 32, 48, 64, 80, 96, 128, 160, 192, 256)
SRAM_KIB = (4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)


@dataclass(frozen=True)
class Setting:
    """What the controls show; `batch_heads` is None for the grid's 16384 tokens of width 2048."""

    N: int
    d: int
    M_kib: int
    dtype: str
    batch_heads: tuple[int, int] | None = None

    @classmethod
    def of(
        cls, N: object, d: object, M_kib: object, dtype: object, batch_heads: object = None
    ) -> Setting:
        """Checked arguments.

        Raises:
            ValueError: a bad value; value, limit and remedy.
        """
        short = SHORT_DTYPE[dtype_name(dtype)]
        sizes = (checked_seqlen(N), checked_head_dim(d), checked_sram_kib(M_kib))
        return cls(*sizes, short, _checked_batch_heads(batch_heads))

    def point(self, device: str) -> Point:
        """The point on a device. Models need no launch: a launch that device refuses is one, too.

        Raises:
            ValueError: tiles or sizes out of range; value, limit and remedy.
        """
        name = DTYPE_FROM_SHORT[self.dtype]
        problem = AttentionProblem.of_tokens(self.N, self.d, name)
        if self.batch_heads is not None:
            batch, heads = self.batch_heads
            problem = replace(problem, batch=batch, nheads=heads, nheads_kv=heads)
        tiling = Tiling.from_sram(self.M_kib * KIB, self.d, name).clipped(self.N, self.N)
        return Point(problem, self.M_kib * KIB, tiling, find_device(device))


def _checked_batch_heads(value: object) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) != 2:
        example = "use (batch, heads), such as (2, 16)."
        raise ValueError(f"batch_heads = {value!r} is no pair: {example}")
    remedy = "Choose a recorded shape."
    batch, heads = (
        checked_int(name, one, 1, 65536, remedy)
        for name, one in zip(("batch", "heads"), value, strict=True)
    )
    return batch, heads


def number_knob(
    name: str, values: Sequence[int], value: int, check: Callable[[object], int]
) -> Knob:
    """The knob "seqlen", "head_dim" or "sram", with the same words in every widget."""
    text = labels("explorer")
    return Knob(
        check=check, label=text[name], description=text[f"{name}_description"],
        unit=text[f"{name}_unit"], values=list(values), value=value,
    )  # fmt: skip


def dtype_options() -> list[str]:
    """Short names of the dtypes that every algorithm takes, fp16 first."""
    known = [
        short
        for short, name in DTYPE_FROM_SHORT.items()
        if all(name in variant.dtypes for variant in ALGORITHMS.values())
    ]
    return sorted(known, key=("fp16", "bf16", "fp32").index)


def dtype_choice(value: str) -> Choice:
    """A list box of io dtypes by short name."""
    return Choice(labels("explorer")["dtype"], [(name, name) for name in dtype_options()], value)

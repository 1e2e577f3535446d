"""From an SRAM budget M to tile sizes, and from those to the shared memory of a launch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fa_kernels.problem import ITEMSIZE, MAX_HEAD_DIM, SHORT_DTYPE, checked_int, dtype_name
from fa_kernels.units import KIB, capacity

#: Tiles are at most this long on either side; more would exceed every GPU's shared memory.
MAX_BLOCK = 4096
#: 1 GiB: far above any SRAM, low enough that a mistyped unit is caught.
MAX_SRAM_BYTES = 1024**3


@dataclass(frozen=True)
class SmemLayout:
    """What one block keeps on chip: named parts in shared memory, and the accumulator.

    `parts` are (name, bytes) in the kernel's own layout order. `accumulator_bytes` is the fp32
    O tile, which our kernels keep in registers; the paper's Algorithm 1 keeps it in SRAM.
    """

    parts: tuple[tuple[str, int], ...]
    accumulator_bytes: int

    @property
    def smem_bytes(self) -> int:
        """Shared memory the launch asks for, in bytes."""
        return sum(nbytes for _, nbytes in self.parts)


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is >= `value`."""
    return -(-value // multiple) * multiple


def _padded(block_n: int, head_dim: int, itemsize: int) -> tuple[int, int]:
    # Rows are stored in whole 16-byte chunks: 8 fp16 or 4 fp32 elements, and S rows are fp32.
    return round_up(block_n, 4), round_up(head_dim, 16 // itemsize)


def flash_smem(block_m: int, block_n: int, head_dim: int, itemsize: int) -> SmemLayout:
    """Layout of rungs 03 and 04: Q, K, V in the io dtype; S (then P), m, l, alpha in fp32."""
    n_pad, d_pad = _padded(block_n, head_dim, itemsize)
    return SmemLayout(
        parts=(
            ("Q", itemsize * block_m * d_pad),
            ("K", itemsize * block_n * d_pad),
            ("V", itemsize * block_n * d_pad),
            ("S", 4 * block_m * n_pad),
            ("m, l, α", 4 * 3 * round_up(block_m, 4)),
        ),
        accumulator_bytes=4 * block_m * d_pad,
    )


#: What head_dim is padded to inside of 05_flash_mma: whole 64-byte lines of 16-bit elements.
MMA_HEAD_DIMS = (32, 64, 96, 128, 192, 256)


def mma_head_dim(head_dim: int) -> int:
    """head_dim as 05_flash_mma holds it on chip, padded with zeros."""
    return next(padded for padded in MMA_HEAD_DIMS if padded >= head_dim)


def flash_mma_smem(
    block_m: int,
    block_n: int,
    head_dim: int,
    itemsize: int = 2,
    stages: int = 2,
    pairs: bool = False,
) -> SmemLayout:
    """Layout of 05: Q, where O passes through at the end, and `stages` of K and V; 16-bit.

    `pairs` of warps that share rows exchange P and two numbers a row through shared memory.
    """
    row_bytes = 2 * mma_head_dim(head_dim)
    kv_bytes = stages * row_bytes * block_n
    parts = [("Q", row_bytes * block_m), ("K", kv_bytes), ("V", kv_bytes)]
    if pairs:
        parts += [("P", 2 * block_m * block_n), ("rows", 8 * block_m)]
    return SmemLayout(parts=tuple(parts), accumulator_bytes=2 * row_bytes * block_m)


#: What head_dim is padded to inside of 06_flash_wgmma: whole slabs of 64 columns.
WGMMA_HEAD_DIMS = (64, 128, 192, 256)
#: Barriers of 06, and what its producer tells the others, in bytes.
WGMMA_CONTROL_BYTES = 256


def wgmma_head_dim(head_dim: int) -> int:
    """head_dim as 06_flash_wgmma holds it on chip, padded with zeros."""
    return next(padded for padded in WGMMA_HEAD_DIMS if padded >= head_dim)


def flash_wgmma_smem(
    block_m: int, block_n: int, head_dim: int, itemsize: int = 2, stages: int = 2
) -> SmemLayout:
    """Layout of 06: Q, where O passes through at the end, `stages` of K and V, barriers; 16-bit."""
    row_bytes = 2 * wgmma_head_dim(head_dim)
    kv_bytes = stages * row_bytes * block_n
    parts = (("Q", row_bytes * block_m), ("K", kv_bytes), ("V", kv_bytes))
    control = ("barriers", WGMMA_CONTROL_BYTES)
    return SmemLayout(parts=(*parts, control), accumulator_bytes=2 * row_bytes * block_m)


def flash_mma_backward_smem(
    block_m: int,
    block_n: int,
    head_dim: int,
    itemsize: int = 2,
    stages: int = 2,
    shared: bool = False,
    bias: bool = False,
) -> SmemLayout:
    """Layout of 05's backward: K, V, `stages` of Q, dO and statistics of rows, and two dS; 16-bit.

    `shared`: warps that share keys exchange P, too. The accumulators are the dk and dv tiles.
    """
    row_bytes = 2 * mma_head_dim(head_dim)
    s_bytes = 2 * block_n * round_up(block_m, 32)
    parts = [("K", row_bytes * block_n), ("V", row_bytes * block_n)]
    parts += [("Q", stages * row_bytes * block_m), ("dO", stages * row_bytes * block_m)]
    parts += [("dS", 2 * s_bytes)] + [("P", s_bytes)] * shared
    parts += [("m, scale, δ" if bias else "m, δ", stages * 4 * (2 + bias) * block_m)]
    return SmemLayout(parts=tuple(parts), accumulator_bytes=4 * row_bytes * block_n)


def with_block_mask(
    layout: SmemLayout, tiling: Tiling, mask_block_m: int, mask_block_n: int, copies: int = 1
) -> SmemLayout:
    """`layout` and the blocks of a block mask that one tile can touch, a byte each, `copies` times.

    A tile that lies within one block is kept whole or not at all and looks at none.
    """
    if mask_block_m % tiling.block_m == 0 and mask_block_n % tiling.block_n == 0:
        return layout
    rows = -(-(tiling.block_m - 1) // mask_block_m) + 1
    cols = -(-(tiling.block_n - 1) // mask_block_n) + 1
    part = ("block mask", copies * round_up(rows * cols, 16))
    return SmemLayout((*layout.parts, part), layout.accumulator_bytes)


def standard_scores_smem(block_m: int, block_n: int, head_dim: int, itemsize: int) -> SmemLayout:
    """Layout of 02_standard_tiled's first launch, S = Q K^T: Q, K in the io dtype, S in fp32."""
    n_pad, d_pad = _padded(block_n, head_dim, itemsize)
    return SmemLayout(
        parts=(
            ("Q", itemsize * block_m * d_pad),
            ("K", itemsize * block_n * d_pad),
            ("S", 4 * block_m * n_pad),
        ),
        accumulator_bytes=0,
    )


def standard_output_smem(block_m: int, block_n: int, head_dim: int, itemsize: int) -> SmemLayout:
    """Layout of 02_standard_tiled's third launch, O = P V: P in fp32, V in the io dtype."""
    n_pad, d_pad = _padded(block_n, head_dim, itemsize)
    return SmemLayout(
        parts=(("V", itemsize * block_n * d_pad), ("P", 4 * block_m * n_pad)),
        accumulator_bytes=4 * block_m * d_pad,
    )


def paper_smem_bytes(block_m: int, block_n: int, head_dim: int, itemsize: int) -> int:
    """Algorithm 1 with S and O in fp32 SRAM: itemsize (2 B_c d + B_r d) + 4 B_r B_c + 4 B_r d."""
    io = itemsize * head_dim * (2 * block_n + block_m)
    return io + 4 * block_m * block_n + 4 * block_m * head_dim


LayoutOf = Callable[[int, int, int, int], SmemLayout]


@dataclass(frozen=True)
class Tiling:
    """Tile sizes: block_m rows of Q and O (the paper's B_r), block_n rows of K and V (B_c)."""

    block_m: int
    block_n: int

    def __post_init__(self) -> None:
        for name in ("block_m", "block_n"):
            remedy = "64 is a good tile."
            value = checked_int(name, getattr(self, name), 1, MAX_BLOCK, remedy)
            object.__setattr__(self, name, value)

    @classmethod
    def from_sram(
        cls,
        sram_bytes: object,
        head_dim: int,
        dtype: object,
        rule: str = "paper",
        layout: LayoutOf = flash_smem,
    ) -> Tiling:
        """The tiles that an SRAM budget allows.

        Args:
            sram_bytes: the budget in bytes. The paper's M counts elements: M = sram_bytes/itemsize.
            head_dim: d, 1..256.
            dtype: io dtype.
            rule: "paper": B_c = ceil(M/4d), B_r = min(B_c, d) (Algorithm 1, line 1; it leaves
                S out of the budget, so a launch may ask for more than M). "fits": the paper's
                proportions, shrunk until the launch's own shared memory is at most M.
            layout: the kernel's layout, used by "fits".

        Raises:
            ValueError: a bad budget, head_dim, dtype or rule, or (for "fits") not even 1 x 1 fits.
        """
        itemsize = ITEMSIZE[dtype_name(dtype)]
        budget = checked_int(
            "sram_bytes", sram_bytes, 1, MAX_SRAM_BYTES, "M is the SRAM of one SM, e.g. 192 KiB."
        )
        d = checked_int("head_dim", head_dim, 1, MAX_HEAD_DIM, "Choose d in that range.")
        elements = budget // itemsize
        block_n = min(MAX_BLOCK, max(1, math.ceil(elements / (4 * d))))
        if rule == "paper":
            return cls(min(block_n, d), block_n)
        if rule != "fits":
            raise ValueError(f"rule = {rule!r} is not known: use 'paper' or 'fits'.")
        return cls._largest_fitting(block_n, d, itemsize, budget, layout)

    @classmethod
    def _largest_fitting(
        cls, block_n: int, d: int, itemsize: int, budget: int, layout: LayoutOf
    ) -> Tiling:
        def fits(n: int) -> bool:
            return layout(min(n, d), n, d, itemsize).smem_bytes <= budget

        low, high = 0, block_n  # smem grows with n, so bisection finds the largest n that fits
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(middle) else (low, middle - 1)
        if low == 0:
            need = layout(1, 1, d, itemsize).smem_bytes
            raise ValueError(
                f"M = {capacity(budget)} holds not even one row of each tile at d = {d}: "
                f"the smallest tile needs {capacity(need)}. Raise M to {need} bytes or more."
            )
        return cls(min(low, d), low)

    def clipped(self, seqlen_q: int, seqlen_k: int, multiple: int = 16) -> Tiling:
        """Tiles no longer than the sequences: what a launch uses, so short inputs waste no SRAM.

        Lengths are rounded up to `multiple`, which keeps the number of distinct compiled tilings
        small; a kernel that takes multiples of more than 16 alone says so.
        """
        limit_m, limit_n = (round_up(max(1, n), multiple) for n in (seqlen_q, seqlen_k))
        return Tiling(min(self.block_m, limit_m), min(self.block_n, limit_n))


#: What a block may have on an H100 or H200, in bytes: assumed where there is no GPU to ask.
HOPPER_SMEM_PER_BLOCK = 227 * KIB
_DEFAULT_TILINGS = ((64, 64), (64, 32), (32, 32), (32, 16), (16, 16))


def default_tiling(
    head_dim: int, itemsize: int, limit_bytes: int = HOPPER_SMEM_PER_BLOCK
) -> Tiling:
    """What `tiling=None` stands for: the largest of a few tilings that two blocks can share an SM.

    Larger tiles move fewer bytes, but on CUDA cores a second block to hide the latency of the
    first is worth more (docs/tried.md).
    """
    for block_m, block_n in _DEFAULT_TILINGS:
        if 2 * flash_smem(block_m, block_n, head_dim, itemsize).smem_bytes <= limit_bytes:
            return Tiling(block_m, block_n)
    return Tiling(8, 8)


def refuse_smem(
    layout: SmemLayout,
    tiling: Tiling,
    head_dim: int,
    dtype: str,
    limit_bytes: int,
    where: str,
    layout_of: LayoutOf = flash_smem,
) -> None:
    """Raise if a launch would ask for more shared memory than one block may have.

    `layout_of` gives the layout of other tiles, for the advice.

    Raises:
        ValueError: names the tiles, what they need, the limit and a budget M that fits.
    """
    if layout.smem_bytes <= limit_bytes:
        return
    fitting = largest_paper_sram(head_dim, dtype, limit_bytes, layout_of)
    raise ValueError(
        f"d = {head_dim}, {SHORT_DTYPE[dtype]}: B_c = {tiling.block_n}, B_r = {tiling.block_m} "
        f"needs {capacity(layout.smem_bytes)} of shared memory per block, {where} allows "
        f"{capacity(limit_bytes)}: lower M to {fitting // KIB} KiB or use smaller tiles."
    )


def largest_paper_sram(
    head_dim: int, dtype: str, limit_bytes: int, layout: LayoutOf = flash_smem
) -> int:
    """The largest budget M, in whole KiB, whose paper tiles a launch can have; in bytes."""
    itemsize = ITEMSIZE[dtype]
    for kib in range(MAX_BLOCK, 0, -1):
        tiling = Tiling.from_sram(kib * KIB, head_dim, dtype)
        need = layout(tiling.block_m, tiling.block_n, head_dim, itemsize).smem_bytes
        if need <= limit_bytes:
            return kib * KIB
    return KIB

"""Block masks of torch's FlexAttention as ours, and ours as FlexAttention's.

FlexAttention lists, for every block row, the blocks that are kept whole (full_kv_num_blocks,
full_kv_indices) and those in which a function of row and key decides (kv_num_blocks, kv_indices,
mask_mod); https://pytorch.org/docs/stable/nn.attention.flex_attention.html.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask as FlexMask
from torch.nn.attention.flex_attention import create_mask, noop_mask

from fa_kernels.block_mask import BlockMask
from fa_kernels.patterns import block_states
from fa_kernels.problem import causal_name


def blocks_from_flex(flex_mask: FlexMask) -> BlockMask:
    """The blocks of a FlexAttention mask that keeps each of its blocks whole.

    Raises:
        ValueError: its mask_mod drops elements of kept blocks, which blocks alone cannot say.
    """
    blocks, mask = masks_from_flex(flex_mask)
    if mask is not None:
        raise ValueError(
            "mask_mod drops elements of kept blocks, and a BlockMask keeps or drops whole ones: "
            "take both of masks_from_flex(flex_mask) and pass them as block_mask and mask, or, for "
            "a causal mask, give causal=True with the blocks."
        )
    return blocks


def masks_from_flex(flex_mask: FlexMask) -> tuple[BlockMask, Tensor | None]:
    """What FlexAttention attends under a mask, as `attention(..., block_mask=..., mask=...)`.

    Where some blocks are partial, mask_mod is evaluated for all elements: N² booleans.

    Returns:
        The kept blocks, and the element mask that its partial blocks need, bool (batch or 1,
        nheads or 1, seqlen_q, seqlen_k) on the mask's device; None if they keep all they have.

    Raises:
        ValueError: as `BlockMask`, of too many blocks; a list with a block that is not there.
    """
    block_m, block_n = flex_mask.BLOCK_SIZE
    columns = -(-flex_mask.seq_lengths[1] // block_n)
    partial = _dense(flex_mask.kv_num_blocks, flex_mask.kv_indices, columns)
    whole = torch.zeros_like(partial)
    if flex_mask.full_kv_num_blocks is not None:
        assert flex_mask.full_kv_indices is not None
        whole = _dense(flex_mask.full_kv_num_blocks, flex_mask.full_kv_indices, columns)
    blocks = BlockMask((partial | whole).numpy(force=True), block_m, block_n)
    if not bool(partial.any()) or flex_mask.mask_mod is noop_mask:
        return blocks, None
    rows, keys = flex_mask.seq_lengths
    lead = partial.shape[:2]
    mask = create_mask(flex_mask.mask_mod, *lead, rows, keys, device=partial.device.type)
    mask = mask.to(partial.device) | _elements(whole, block_m, block_n, rows, keys)
    all_kept = bool((mask | ~_elements(partial, block_m, block_n, rows, keys)).all())
    return blocks, None if all_kept else mask


def to_flex(
    block_mask: BlockMask,
    seqlen_q: int,
    seqlen_k: int,
    *,
    causal: bool | str = False,
    mask: Tensor | None = None,
    device: Any = "cpu",
) -> FlexMask:
    """FlexAttention's mask that keeps what our call keeps, made without a look at N² elements.

    Blocks that causal or the element mask cut, and those that reach past a sequence, are partial.
    Its kernels want blocks of whole tiles, as a rule 128 x 128.

    Args:
        causal, mask: as `attention` takes them beside the block mask; mask bool (batch or 1,
            nheads or 1, seqlen_q, seqlen_k) or (seqlen_q, seqlen_k).
        device: of the call that it is for.

    Raises:
        ValueError: lengths that are not those of the mask.
    """
    block_mask.fits(*block_mask.lead, seqlen_q, seqlen_k)
    block_m, block_n = block_mask.block_m, block_mask.block_n
    keep = torch.from_numpy(block_mask.keep.copy()).to(device)
    q_blocks, k_blocks = block_mask.blocks
    first_row = torch.arange(q_blocks, device=device)[:, None] * block_m
    first_key = torch.arange(k_blocks, device=device)[None, :] * block_n
    some = keep
    whole = keep & (first_row + block_m <= seqlen_q) & (first_key + block_n <= seqlen_k)
    alignment = causal_name(causal)
    offset = seqlen_k - seqlen_q if alignment == "bottom_right" else 0
    if alignment is not None:
        last_row = torch.clamp(first_row + block_m, max=seqlen_q) - 1
        some = some & (first_key <= last_row + offset)
        whole = whole & (first_key + block_n - 1 <= first_row + offset)
    if mask is not None:
        mask = mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape)).to(device)
        states = block_states(mask.numpy(force=True), block_m, block_n)
        any_of, all_of = (torch.from_numpy(state).to(device) for state in states)
        some, whole = some & any_of, whole & all_of
    lists = _ordered(some & ~whole), _ordered(some & whole)
    mod = _mask_mod(keep, block_m, block_n, None if alignment is None else offset, mask)
    return FlexMask.from_kv_blocks(
        *lists[0],
        *lists[1],
        BLOCK_SIZE=(block_m, block_n),
        mask_mod=mod,
        seq_lengths=(seqlen_q, seqlen_k),
    )


def _mask_mod(
    keep: Tensor, block_m: int, block_n: int, offset: int | None, mask: Tensor | None
) -> Any:
    """Everything that is kept, blocks too: FlexAttention without a compiler asks nothing else."""
    of_batch, of_head = (size > 1 for size in keep.shape[:2])

    def kept(b: Tensor, h: Tensor, row: Tensor, key: Tensor) -> Tensor:
        found = keep[b if of_batch else 0, h if of_head else 0, row // block_m, key // block_n]
        if offset is not None:
            found = found & (key <= row + offset)
        if mask is not None:
            batch, head = (b if mask.shape[0] > 1 else 0), (h if mask.shape[1] > 1 else 0)
            found = found & mask[batch, head, row, key]
        return found

    return kept


def _ordered(dense: Tensor) -> tuple[Tensor, Tensor]:
    """(number of blocks, their indices, ascending, the others behind them) of every row."""
    order = torch.argsort((~dense).to(torch.int8), dim=-1, stable=True)
    return dense.sum(dim=-1, dtype=torch.int32), order.to(torch.int32)


def _dense(count: Tensor, indices: Tensor, columns: int) -> Tensor:
    """bool (batch or 1, nheads or 1, q_blocks, columns) of FlexAttention's lists.

    They may be shorter than a row has blocks, and what stands behind `count` says nothing.

    Raises:
        ValueError: a listed block that is none of the row's.
    """
    listed = torch.arange(indices.shape[-1], device=indices.device) < count[..., None]
    outside = indices[listed & ((indices < 0) | (indices >= columns))]
    if len(outside):
        raise ValueError(
            f"block {int(outside[0])} of keys is listed, a row has {columns} of them: give the "
            "FlexAttention mask the seq_lengths and BLOCK_SIZE that its lists were made for."
        )
    # One column more takes what is not listed: a True is never overwritten.
    dense = torch.zeros((*indices.shape[:-1], columns + 1), dtype=torch.bool, device=indices.device)
    dense.scatter_(-1, torch.where(listed, indices.long(), columns), True)
    dense = dense[..., :columns]
    return dense.reshape((1,) * (4 - dense.ndim) + tuple(dense.shape))


def _elements(dense: Tensor, block_m: int, block_n: int, rows: int, keys: int) -> Tensor:
    """Every block repeated over its elements, cut to the sequences."""
    wide = dense.repeat_interleave(block_m, dim=-2).repeat_interleave(block_n, dim=-1)
    return wide[..., :rows, :keys]

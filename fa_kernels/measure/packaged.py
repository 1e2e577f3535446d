"""FlexAttention, compiled per problem, and the packages fa3-fwd and flash-attn-4."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from fa_kernels.measure.torch_tensors import refuse_dropout, refuse_other_alignment
from fa_kernels.problem import AttentionProblem

#: FlexAttention's own block, where the blocks of a mask are not made of whole ones.
FLEX_BLOCK = 128


def flex_forward(problem: AttentionProblem, device: Any) -> Callable[..., Any]:
    """FlexAttention compiled for this problem, with causal and block masks as its BlockMask."""
    refuse_dropout(problem, "flex_attention")
    mask, scale = _flex_mask(problem, device), problem.scale
    # Masks of one block size are inputs of one kernel, whatever they keep.
    blocks = problem.block_mask
    size = None if blocks is None else (blocks.block_m, blocks.block_n, blocks.lead)
    compiled = _compiled_for(replace(problem, block_mask=None), size)
    return lambda q, k, v: compiled(q, k, v, block_mask=mask, scale=scale)


@lru_cache(maxsize=1)
def _compiled_for(dense: AttentionProblem, mask_size: tuple[Any, ...] | None) -> Callable[..., Any]:
    """FlexAttention compiled for the sizes of the last problem, or anew for others."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    # After a few problems torch would stop compiling and run the formula eagerly, with all scores
    # in memory.
    torch.compiler.reset()
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


def _flex_mask(problem: AttentionProblem, device: Any) -> Any:
    import torch
    from torch.nn.attention.flex_attention import and_masks, create_block_mask

    mask, sizes = problem.block_mask, (problem.seqlen_q, problem.seqlen_k)
    if mask is not None and mask.block_m % FLEX_BLOCK == mask.block_n % FLEX_BLOCK == 0:
        from fa_kernels.integrations.flex import to_flex

        return to_flex(mask, *sizes, causal=problem.causal or False, device=device)
    mods, lead = [], (1, 1)
    if problem.causal:
        top_left = problem.causal == "top_left"
        offset = 0 if top_left else problem.seqlen_k - problem.seqlen_q
        mods.append(lambda b, h, row, column: row + offset >= column)
    if mask is not None:
        keep = torch.from_numpy(mask.keep.copy()).to(device)
        lead, (block_m, block_n) = mask.lead, (mask.block_m, mask.block_n)

        def kept(b: Any, h: Any, row: Any, column: Any) -> Any:
            batch, head = (b if lead[0] > 1 else 0), (h if lead[1] > 1 else 0)
            return keep[batch, head, row // block_m, column // block_n]

        mods.append(kept)
    if not mods:
        return None
    over = [None if n == 1 else n for n in lead]
    return create_block_mask(and_masks(*mods), *over, *sizes, device=device, BLOCK_SIZE=FLEX_BLOCK)


def fa3_forward(problem: AttentionProblem, device: Any) -> Callable[..., Any]:
    """FlashAttention-3 of the package fa3-fwd."""
    _let_fa3_find_its_flags()
    return _flash_attn_func("fa3_fwd_interface", problem)


def _let_fa3_find_its_flags() -> None:
    # It was built under another name, but still looks for its build flags under the old one.
    config = importlib.import_module("fa3_fwd_config")
    sys.modules.setdefault("flash_attn_config", config)


def fa3_decode_forward(problem: AttentionProblem, device: Any) -> Callable[..., Any]:
    """FlashAttention-3's function for caches, which chooses its own number of splits."""
    import torch

    _let_fa3_find_its_flags()
    func = importlib.import_module("fa3_fwd_interface").flash_attn_with_kvcache
    lengths = torch.full((problem.batch,), problem.seqlen_k, dtype=torch.int32, device=device)
    options: dict[str, Any] = {"softmax_scale": problem.scale, "num_splits": 0}
    options |= {"causal": problem.causal is not None, "cache_seqlens": lengths}

    def call(q: Any, k: Any, v: Any) -> Any:
        out = func(*(x.transpose(1, 2) for x in (q, k, v)), **options)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    return call


def fa4_forward(problem: AttentionProblem, device: Any) -> Callable[..., Any]:
    """FlashAttention-4 of the package flash-attn-4."""
    return _flash_attn_func("flash_attn.cute", problem)


def _flash_attn_func(module: str, problem: AttentionProblem) -> Callable[..., Any]:
    """`flash_attn_func` of a module: (batch, N, heads, d), causal aligned bottom right."""
    refuse_other_alignment(problem, "bottom_right", f"causal of {module}")
    refuse_dropout(problem, f"flash_attn_func of {module}")
    func = importlib.import_module(module).flash_attn_func
    options = {"softmax_scale": problem.scale, "causal": problem.causal is not None}

    def call(q: Any, k: Any, v: Any) -> Any:
        out = func(*(x.transpose(1, 2) for x in (q, k, v)), **options)
        # Some releases give lse beside it.
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    return call

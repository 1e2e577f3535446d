"""A decoding step that was checked and planned before, ready to launch again for the next token.

As recipe.py for the forward pass: generation makes the same call for every token and layer.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable
from typing import Any

import numpy as np

from fa_kernels.cuda import recipe_backward
from fa_kernels.cuda.recipe_backward import BackwardRecipe, Record
from fa_kernels.decode_problem import DecodeProblem


class DecodeRecipe:
    """The launches of one step with everything but its arrays.

    Called with the arrays of the front door, CuPy arrays or torch tensors, it gives out and lse of
    their kind, on the current stream of their library. Right for arrays of the same `key` alone.
    """

    def __init__(self, record: Record, problem: DecodeProblem) -> None:
        """`record`: of q, the caches, what there is of k_new, v_new and block_table, lengths."""
        import cupy

        self._launches, self._cupy = BackwardRecipe(record), cupy
        self._batch, self._room = problem.batch, problem.capacity - problem.seqlen_new

    def __call__(self, *given: Any) -> tuple[Any, Any] | None:
        """out, lse; None for a length that the checks have to refuse.

        Args:
            given: q, k_cache, v_cache, k_new, v_new, block_table, each None where it was, and
                cache_seqlens, an array or one number.

        Raises:
            MemoryError: neither library's pool has room for them and the workspace.
        """
        *arrays, lengths = given
        if type(lengths) is int:
            if not 0 <= lengths <= self._room:
                return None
            lengths = self._filled(arrays[0], lengths)
        inputs = [x for x in arrays if x is not None]
        out, lse, *_ = self._launches.launched([*inputs, lengths], arrays[0])
        return out, lse

    def _filled(self, q: Any, length: int) -> Any:
        if type(q) is self._cupy.ndarray:
            return self._cupy.full((self._batch,), length, np.int32)
        torch = sys.modules["torch"]
        return torch.full((self._batch,), length, dtype=torch.int32, device=q.device)


def key(
    tensors: tuple[Any, ...], lengths: Any, window: Any, softmax_scale: Any, num_splits: Any,
    backend: Any,
) -> Hashable | None:  # fmt: skip
    """What decides how a step is launched, as `recipe_backward.key`; None: look at it closely.

    `tensors`: q, the caches, k_new, v_new, block_table. Lengths on the host, but for one number,
    have no key; nor has a call with CuPy arrays in a captured graph, whose workspace is its own.
    """
    sides = (None, None) if window is None else window
    if type(sides) is not tuple or len(sides) != 2:
        return None
    there = tuple(x for x in tensors if x is not None)
    if type(lengths) is not int:
        there = (*there, lengths)
    absent = tuple(x is None for x in tensors)
    options = (type(lengths) is int, *absent, *sides, softmax_scale, num_splits, backend)
    found = recipe_backward.key(there, "decode", *options)
    cupy = sys.modules.get("cupy")
    if found is None or cupy is None:
        return None
    of_cupy = type(tensors[0]) is cupy.ndarray
    if of_cupy and cupy.cuda.get_current_stream().is_capturing():
        return None
    return found

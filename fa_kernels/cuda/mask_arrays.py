"""What stays on the GPU for block masks: each mask, its lists, and recipes that read them.

Lists depend on no value of q, k or v: they are made at the first call with a mask, and the host
waits until they are there. So they may be read on any stream, and in a CUDA graph.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda.stream import capturing
from fa_kernels.units import MIB

#: What the masks and lists of one GPU may take together; those of the newest call stay in any case.
LIMIT_BYTES = 256 * MIB
#: Recipes of calls with block masks, of all masks together.
MAX_RECIPES = 256
#: What makes two lists of a mask from its array on the GPU.
Build = Callable[[Any], tuple[Any, Any]]


@dataclass(eq=False)
class _OfMask:
    """One mask on one GPU: its blocks, uint8, and its lists by what they were made for."""

    keep: Any
    lists: OrderedDict[Hashable, tuple[Any, Any]] = field(default_factory=OrderedDict)
    in_graph: bool = False

    @property
    def nbytes(self) -> int:
        return int(self.keep.nbytes + sum(a.nbytes + b.nbytes for a, b in self.lists.values()))


class MaskArrays:
    """Masks and lists by GPU, the least recently used ones dropped first, with their recipes.

    Those that a CUDA graph was captured with stay for good: it holds their addresses.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES, max_recipes: int = MAX_RECIPES) -> None:
        """`limit_bytes`: of each GPU."""
        self._limit_bytes, self._max_recipes = limit_bytes, max_recipes
        self._known: OrderedDict[tuple[Hashable, int], _OfMask] = OrderedDict()
        self._recipes: OrderedDict[Hashable, tuple[Any, tuple[Hashable, int]]] = OrderedDict()
        self._lock = threading.RLock()

    def lists(self, mask: BlockMask, how: Hashable, build: Build) -> tuple[Any, Any, Any]:
        """Two lists of `mask`, as `build` makes them, and its blocks, uint8, on this GPU.

        Args:
            how: all that `build` depends on beside the mask.
            build: makes the lists of the blocks, on the current stream.

        Raises:
            ValueError: they are not there while a CUDA graph is captured.
        """
        at = (mask.key, _device())
        with self._lock:
            known = self._known.get(at)
            in_graph = capturing()
            if known is None or how not in known.lists:
                if in_graph:
                    raise ValueError(
                        "the lists of this block_mask are not on the GPU yet, and making them "
                        "waits for it, which the capture of a CUDA graph forbids: make one such "
                        "call (mask, sizes, options) before, on any stream, also if the mask was "
                        "used long ago."
                    )
                known = self._made(mask, at, how, build)
            known.in_graph |= in_graph
            known.lists.move_to_end(how)
            self._known.move_to_end(at)
            return (*known.lists[how], known.keep)

    def _made(
        self, mask: BlockMask, at: tuple[Hashable, int], how: Hashable, build: Build
    ) -> _OfMask:
        import cupy

        known = self._known.get(at)
        if known is None:
            blocks = np.ascontiguousarray(mask.keep).view(np.uint8)
            known = _OfMask(cupy.asarray(blocks))
        known.lists[how] = build(known.keep)
        # Once, here: whoever finds them later may launch on another stream.
        cupy.cuda.get_current_stream().synchronize()
        self._known[at] = known
        self._known.move_to_end(at)
        self._make_room(at)
        return known

    def _make_room(self, newest: tuple[Hashable, int]) -> None:
        """Drop what was used longest ago, until the rest of the newest's GPU is in the limit."""
        import cupy

        device = newest[1]
        mine = [at for at, known in self._known.items() if at[1] == device and not known.in_graph]
        total = sum(self._known[at].nbytes for at in mine)
        if total <= self._limit_bytes:
            return
        # Memory goes back to the stream that it was made on; others may still be reading it.
        cupy.cuda.Device(device).synchronize()
        for at in mine:
            if total > self._limit_bytes and at != newest:
                total -= self._known.pop(at).nbytes
                self._forget(at)
        if total > self._limit_bytes and newest in mine:
            self._forget(newest)
            lists = self._known[newest].lists
            while total > self._limit_bytes and len(lists) > 1:
                total -= sum(array.nbytes for array in lists.popitem(last=False)[1])

    def _forget(self, at: tuple[Hashable, int]) -> None:
        """Drop the recipes of a mask, which hold its lists."""
        for of in [of for of, (_, mask) in self._recipes.items() if mask == at]:
            del self._recipes[of]

    def recipe(self, of: Hashable) -> Any:
        """The recipe that was remembered for a key, or None; its mask has been used."""
        with self._lock:
            found = self._recipes.get(of)
            if found is None:
                return None
            recipe, at = found
            self._recipes.move_to_end(of)
            self._known.move_to_end(at)
            return recipe

    def remember(self, of: Hashable, mask: BlockMask, recipe: Any) -> None:
        """Keep a recipe as long as the lists of `mask` on this GPU, which it reads."""
        at = (mask.key, _device())
        with self._lock:
            if at not in self._known:
                return
            self._recipes[of] = (recipe, at)
            if len(self._recipes) > self._max_recipes:
                self._recipes.popitem(last=False)

    def clear(self) -> None:
        """Forget all; nothing that reads them may still run."""
        with self._lock:
            self._recipes.clear()
            self._known.clear()


def _device() -> int:
    import cupy

    return int(cupy.cuda.Device().id)


#: Those of this process.
KEPT = MaskArrays()

"""Bounds of packed sequences on the GPU, made once and read on any stream and in CUDA graphs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np

from fa_kernels.cuda.stream import capturing
from fa_kernels.packed import Packed

#: Bounds that are kept on all GPUs together; those of graphs come on top.
MAX_KEPT = 16


@dataclass(eq=False)
class _Bounds:
    """Of q and of k, v, int32 on one GPU."""

    arrays: tuple[Any, Any]
    in_graph: bool = False


class PackedArrays:
    """Bounds by GPU, the least recently used ones dropped first.

    Those that a CUDA graph was captured with stay for good: it holds their addresses.
    """

    def __init__(self, most: int = MAX_KEPT) -> None:
        self._most = most
        self._known: OrderedDict[tuple[Packed, int], _Bounds] = OrderedDict()
        self._lock = threading.Lock()

    def bounds(self, packed: Packed) -> tuple[Any, Any]:
        """cu_seqlens_q and cu_seqlens_k, int32 CuPy arrays on the current GPU.

        Raises:
            ValueError: they are not there while a CUDA graph is captured.
        """
        import cupy

        at = (packed, int(cupy.cuda.Device().id))
        with self._lock:
            known, in_graph = self._known.get(at), capturing()
            if known is None:
                if in_graph:
                    raise ValueError(
                        "the bounds of these packed sequences are not on the GPU yet, and copying "
                        "them waits for it, which the capture of a CUDA graph forbids: make one "
                        "such call (the same cu_seqlens) before, on any stream."
                    )
                known = self._known[at] = self._made(packed)
                self._make_room(at)
            known.in_graph |= in_graph
            self._known.move_to_end(at)
            return known.arrays

    def clear(self) -> None:
        """Forget all; nothing that reads them may still run."""
        with self._lock:
            self._known.clear()

    def _made(self, packed: Packed) -> _Bounds:
        import cupy

        q, k = (np.array(bounds, np.int32) for bounds in (packed.cu_seqlens_q, packed.cu_seqlens_k))
        made = _Bounds((cupy.asarray(q), cupy.asarray(k)))
        # Once, here: whoever finds them later may launch on another stream.
        cupy.cuda.get_current_stream().synchronize()
        return made

    def _make_room(self, newest: tuple[Packed, int]) -> None:
        import cupy

        old = [at for at, known in self._known.items() if not known.in_graph and at != newest]
        for at in old[: max(0, len(old) + 1 - self._most)]:
            # Memory goes back to the stream that it was made on; others may still be reading it.
            cupy.cuda.Device(at[1]).synchronize()
            del self._known[at]


#: Those of this process.
KEPT = PackedArrays()

"""Which decoding steps a run measures, and in which ways: caches, splits, graphs, peers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fa_kernels.cuda.run_decode import chosen_splits
from fa_kernels.decode_problem import DecodeProblem
from fa_kernels.measure.verify_decode import DECODE
from fa_kernels.problem import AttentionProblem

DTYPE = "bfloat16"
PAGES = (16, 64, 256)
SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
#: Calls of one graph that stands for the layers of a model, each on a cache of its own.
LAYERS = 32
PEERS = ("torch_flash", "torch_cudnn", "fa3")


@dataclass(frozen=True)
class Ours:
    """One way to launch our kernel; `layers` > 0: captured in a graph, so many steps long."""

    page_size: int | None = None
    num_splits: int | None = None
    layers: int = 0

    def name(self, left: int | None) -> str:
        """As a variant's: "decode_split_kv_page64_graph"."""
        parts = [DECODE]
        parts += [] if left is None else [f"window{left}"]
        parts += [] if self.page_size is None else [f"page{self.page_size}"]
        parts += [] if self.num_splits is None else [f"splits{self.num_splits}"]
        if self.layers:
            parts.append("graph" if self.layers == 1 else f"graph{self.layers}")
        return "_".join(parts)

    def problem(self, of: AttentionProblem) -> DecodeProblem:
        """The decoding step that gives what `of` does."""
        assert of.nheads_kv is not None
        pages: dict[str, Any] = {"max_seqlen": of.seqlen_k}
        if self.page_size is not None:
            number = -(-of.seqlen_k // self.page_size)
            pages = {"max_seqlen": None, "page_size": self.page_size, "max_pages": number}
        return DecodeProblem(
            batch=of.batch, nheads=of.nheads, nheads_kv=of.nheads_kv, seqlen_q=of.seqlen_q,
            seqlen_new=0, head_dim=of.head_dim, dtype=of.dtype, window=of.window,
            softmax_scale=of.scale, **pages,
        )  # fmt: skip

    def splits(self, of: AttentionProblem) -> int:
        """Those asked for, or the default on this GPU."""
        return self.num_splits or chosen_splits(self.problem(of))

    def detail(self, of: AttentionProblem) -> str:
        """What the row says of it."""
        cache = "contiguous" if self.page_size is None else f"pages of {self.page_size}"
        text = f"{cache}, num_splits {self.splits(of)}"
        if self.layers == 1:
            return f"{text}, one step in a CUDA graph"
        if self.layers:
            return f"{text}, one of {self.layers} steps in a CUDA graph, each on its own cache"
        return text


@dataclass(frozen=True)
class DecodePoint:
    """One shape as the attention call that it ends, with what is measured there."""

    attention: AttentionProblem
    ours: tuple[Ours, ...]
    peers: tuple[str, ...]

    @property
    def seqlen_q(self) -> int:
        """By which the time left is estimated: here the keys."""
        return self.attention.seqlen_k

    @property
    def recorded(self) -> AttentionProblem:
        """As `Row.problem` has it: a window stands in the variant's name alone."""
        return replace(self.attention, window=None)

    @property
    def kv_bytes(self) -> int:
        """K and V that a step has to read, each key once."""
        step = Ours().problem(self.attention)
        return step.read_bytes([self.attention.seqlen_k] * step.batch)

    @property
    def first(self) -> str:
        """The variant by which a point that was measured is known."""
        return self.ours[0].name(self._left)

    @property
    def _left(self) -> int | None:
        return None if self.attention.window is None else self.attention.window[0]

    def names(self) -> dict[str, Ours]:
        """Our ways by their names."""
        return {one.name(self._left): one for one in self.ours}

    def describe(self) -> str:
        """In words."""
        return self.attention.describe()


def points() -> list[DecodePoint]:
    """The five shapes of grouped and ungrouped heads, short and long; a short one in graphs; every
    number of splits; several query rows; a window."""
    both, paged = (Ours(), Ours(64)), (Ours(), *map(Ours, PAGES))
    sizes = (
        (1, 65536, 32, 8, 128), (16, 8192, 32, 8, 128), (64, 4096, 32, 8, 128),
        (16, 8192, 32, 32, 128), (128, 2048, 16, 16, 64),
    )  # fmt: skip
    found = [DecodePoint(_call(*size), paged, PEERS) for size in sizes]
    sweep = tuple(Ours(num_splits=n) for n in SPLITS)
    found[0] = replace(found[0], ours=(*paged, *sweep))
    graphs = (Ours(layers=1), Ours(layers=LAYERS), Ours(64, layers=1))
    found.append(DecodePoint(_call(1, 1024, 32, 8, 128), (*both, *graphs), PEERS))
    rows = _call(16, 8192, 32, 8, 128, seqlen_q=4, causal="bottom_right")
    # torch's causal mask is aligned otherwise.
    found.append(DecodePoint(rows, both, ("fa3",)))
    window = _call(16, 8192, 32, 8, 128, causal="bottom_right", window=(4096, 0))
    found.append(DecodePoint(window, both, ()))
    return found


def _call(
    batch: int, seqlen_k: int, nheads: int, nheads_kv: int, head_dim: int, seqlen_q: int = 1,
    causal: str | None = None, window: tuple[int, int] | None = None,
) -> AttentionProblem:  # fmt: skip
    return AttentionProblem(
        batch, nheads, seqlen_q, seqlen_k, head_dim, DTYPE, causal, nheads_kv=nheads_kv,
        window=window,
    )  # fmt: skip

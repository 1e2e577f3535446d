"""One decoding step as a value: the sizes of queries, KV cache and pages, checked, with no arrays.

The cache holds the keys and values of the tokens so far; a step attends them with a few new rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fa_kernels.problem import (
    HOST_ITEMSIZE,
    MAX_HEAD_DIM,
    MAX_SEQLEN,
    SHORT_DTYPE,
    AttentionProblem,
    checked_int,
    checked_window,
    dtype_name,
)

#: Keys of one tile: the depth of a tensor-core product, so that a tile never straddles two pages.
TILE_KEYS = 16
#: More parts than this would make the merge longer than the parts.
MAX_SPLITS = 128


@dataclass(frozen=True)
class DecodeProblem:
    """The sizes and options of one call of `fa.decode`, without its arrays and lengths.

    q is (batch, nheads, seqlen_q, head_dim). The caches are (batch, nheads_kv, max_seqlen,
    head_dim); with `page_size` they are (num_pages, nheads_kv, page_size, head_dim), and each
    sequence has a row of `max_pages` page numbers, so max_seqlen is max_pages * page_size.
    `seqlen_new` tokens are appended first, 0 for none. Row i attends keys up to its own position,
    total - seqlen_q + i; `window` = (left, right) bounds them, right changing nothing, since no
    row sees what comes after it. `softmax_scale` None means 1/sqrt(head_dim).

    Raises:
        ValueError: a size out of range, sizes that do not belong together; value, limit, remedy.
    """

    batch: int
    nheads: int
    nheads_kv: int
    seqlen_q: int
    seqlen_new: int
    max_seqlen: int | None
    head_dim: int
    dtype: str = "float16"
    page_size: int | None = None
    max_pages: int | None = None
    window: tuple[int | None, int | None] | None = None
    softmax_scale: float | None = None
    num_pages: int | None = None

    def __post_init__(self) -> None:
        self._put("max_seqlen", self._checked_capacity())
        name = dtype_name(self.dtype, HOST_ITEMSIZE)
        self._put("dtype", name)
        remedy = "Pass at least one query row per head."
        self._put("seqlen_q", checked_int("seqlen_q", self.seqlen_q, 1, MAX_SEQLEN, remedy))
        self._put("batch", checked_int("batch", self.batch, 1, 2**24, "Split the batch."))
        remedy = "Pad the heads, or split them."
        self._put("head_dim", checked_int("head_dim", self.head_dim, 1, MAX_HEAD_DIM, remedy))
        # Heads, groups, scale and window are those of any attention call, with the same limits.
        like = AttentionProblem(
            self.batch, self.nheads, self.seqlen_q, self.capacity, self.head_dim, name,
            softmax_scale=self.softmax_scale, nheads_kv=self.nheads_kv,
        )  # fmt: skip
        self._put("softmax_scale", like.scale)
        window = checked_window(self.window)
        # Without a left side nothing is bounded: no row sees what comes after it anyway.
        self._put("window", None if window is None or window[0] is None else window)
        remedy = "Give the cache more room, or append fewer tokens."
        of_new = ("seqlen_new", self.seqlen_new, 0, self.capacity, remedy)
        self._put("seqlen_new", checked_int(*of_new))

    def _put(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _checked_capacity(self) -> int:
        """max_seqlen, which pages imply."""
        remedy = "Make the cache longer, or split it."
        if self.page_size is None:
            if self.max_pages is not None or self.num_pages is not None:
                raise ValueError(
                    f"max_pages = {self.max_pages}, num_pages = {self.num_pages} without a "
                    "page_size: pages need one. Pass page_size, a multiple of 16."
                )
            return checked_int("max_seqlen", self.max_seqlen, 1, MAX_SEQLEN, remedy)
        size = checked_page_size(self.page_size)
        self._put("page_size", size)
        pages = checked_int("max_pages", self.max_pages, 1, MAX_SEQLEN // size, remedy)
        self._put("max_pages", pages)
        there = pages * self.batch if self.num_pages is None else self.num_pages
        self._put("num_pages", checked_int("num_pages", there, 1, 2**31 - 1, "Split the cache."))
        if self.max_seqlen not in (None, pages * size):
            raise ValueError(
                f"max_seqlen = {self.max_seqlen} with max_pages = {pages} of {size} tokens: it is "
                f"{pages * size} then. Leave it out (None)."
            )
        return pages * size

    @property
    def capacity(self) -> int:
        """Tokens that the cache of one sequence can hold."""
        assert self.max_seqlen is not None
        return self.max_seqlen

    @property
    def paged(self) -> bool:
        """True if the cache is made of pages."""
        return self.page_size is not None

    @property
    def group(self) -> int:
        """Query heads that share one k/v head: head h uses h // group."""
        return self.nheads // self.nheads_kv

    @property
    def rows(self) -> int:
        """Query rows that one k/v head serves: all rows of all heads of its group, packed."""
        return self.group * self.seqlen_q

    @property
    def itemsize(self) -> int:
        """Bytes of one element of q, out and the caches."""
        return HOST_ITEMSIZE[self.dtype]

    @property
    def scale(self) -> float:
        """softmax_scale, with the default filled in."""
        assert self.softmax_scale is not None
        return self.softmax_scale

    @property
    def left(self) -> int | None:
        """How many keys before its own a row attends; None: all of them."""
        return None if self.window is None else self.window[0]

    @property
    def q_shape(self) -> tuple[int, int, int, int]:
        """Shape of q and out."""
        return (self.batch, self.nheads, self.seqlen_q, self.head_dim)

    @property
    def cache_shape(self) -> tuple[int, int, int, int]:
        """Shape of k_cache, which is that of v_cache."""
        if self.page_size is None:
            return (self.batch, self.nheads_kv, self.capacity, self.head_dim)
        assert self.num_pages is not None
        return (self.num_pages, self.nheads_kv, self.page_size, self.head_dim)

    @property
    def new_shape(self) -> tuple[int, int, int, int]:
        """Shape of k_new, which is that of v_new."""
        return (self.batch, self.nheads_kv, self.seqlen_new, self.head_dim)

    @property
    def token_bytes(self) -> int:
        """Bytes of k and v of one token: what the cache of a layer grows by."""
        return 2 * self.nheads_kv * self.head_dim * self.itemsize

    @property
    def cache_bytes(self) -> int:
        """Bytes of k_cache and v_cache together, filled or not."""
        slots = self.batch * self.capacity
        if self.page_size is not None:
            assert self.num_pages is not None
            slots = self.num_pages * self.page_size
        return slots * self.token_bytes

    @property
    def q_bytes(self) -> int:
        """Bytes of q, which are those of out."""
        return self.batch * self.nheads * self.seqlen_q * self.head_dim * self.itemsize

    @property
    def lse_bytes(self) -> int:
        """Bytes of lse, one fp32 per query row."""
        return self.batch * self.nheads * self.seqlen_q * 4

    def partial_bytes(self, num_splits: int) -> int:
        """Workspace of a call: fp32 out and lse of every row and split; 0 for one split.

        At most: splits that a cluster of blocks merges on chip leave nothing.
        """
        if num_splits == 1:
            return 0
        return num_splits * self.batch * self.nheads * self.seqlen_q * (self.head_dim + 1) * 4

    def read_bytes(self, totals: Sequence[int]) -> int:
        """Bytes of k and v that hold `totals` tokens: what a step has to read at least once.

        With a window only the keys that some row attends.
        """
        return self.token_bytes * sum(
            total - lowest_key(total, self.seqlen_q, self.left) for total in totals
        )

    def describe(self) -> str:
        """One line for captions: "B = 16, H = 32, H_kv = 8, N_k = 8192, d = 128, bf16"."""
        heads = f"H = {self.nheads}" + (f", H_kv = {self.nheads_kv}" if self.group > 1 else "")
        text = f"B = {self.batch}, {heads}, N_k = {self.capacity}, d = {self.head_dim}, "
        text += SHORT_DTYPE.get(self.dtype, "fp64")
        if self.seqlen_q > 1:
            text += f", {self.seqlen_q} query rows"
        if self.page_size is not None:
            text += f", pages of {self.page_size}"
        if self.left is not None:
            text += f", window ({self.left}, 0)"
        return text


def checked_page_size(page_size: object) -> int:
    """`page_size` as an int.

    Raises:
        ValueError: not a multiple of `TILE_KEYS`.
    """
    remedy = "Use pages of 16, 32, 64, 128 or 256 tokens."
    size = checked_int("page_size", page_size, TILE_KEYS, MAX_SEQLEN, remedy)
    if size % TILE_KEYS:
        raise ValueError(
            f"page_size = {size} is not a multiple of {TILE_KEYS}: a tile of {TILE_KEYS} keys "
            f"would straddle two pages. {remedy}"
        )
    return size


def checked_splits(num_splits: object) -> int:
    """`num_splits` as an int.

    Raises:
        ValueError: not between 1 and `MAX_SPLITS`.
    """
    remedy = "Pass None to let the number of SMs decide."
    return checked_int("num_splits", num_splits, 1, MAX_SPLITS, remedy)


def lowest_key(total: int, seqlen_q: int, left: int | None) -> int:
    """The first key that any row attends of a sequence of `total` tokens; `total` at most."""
    if left is None:
        return 0
    return min(total, max(0, total - seqlen_q - left))


def split_tiles(
    total: int, seqlen_q: int, left: int | None, num_splits: int
) -> tuple[tuple[int, int], ...]:
    """(first, stop) of each split's tiles of `TILE_KEYS` keys; first >= stop for an empty one.

    From the tile of the lowest key that any row attends to the last key, cut into equal numbers of
    tiles; the last splits may be shorter, or empty.
    """
    first, stop = lowest_key(total, seqlen_q, left) // TILE_KEYS, -(-total // TILE_KEYS)
    per = -(-(stop - first) // num_splits)
    begins = [first + s * per for s in range(num_splits)]
    return tuple((begin, min(stop, begin + per)) for begin in begins)

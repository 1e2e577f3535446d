"""One attention call as a value: its sizes, dtype and mask, checked in words, with no arrays."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fa_kernels.block_mask import BlockMask
    from fa_kernels.packed import Packed

#: io dtypes by name: bytes of one element, and the short name used on screen.
ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2}
SHORT_DTYPE = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
DTYPE_FROM_SHORT = {short: name for name, short in SHORT_DTYPE.items()}
#: What the references in NumPy take: float64 too, which no kernel does and gradient checks need.
HOST_ITEMSIZE = {**ITEMSIZE, "float64": 8}

MAX_HEAD_DIM = 256
#: Scores are fp32 in the kernels: a larger scale would overflow before any key is weighed.
MAX_SCALE = 1e30
#: Row and key indices are 32-bit inside the kernels; offsets are 64-bit.
MAX_SEQLEN = 2**24

CAUSAL_CHOICES = (False, True, "bottom_right", "top_left")


def checked_int(name: str, value: object, low: int, high: int, remedy: str) -> int:
    """`value` as an int in [low, high].

    Raises:
        ValueError: not a whole number, or out of range; the message names value, limit and remedy.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        # A float that is a whole number (a slider's 4096.0) is accepted; 0.5 and NaN are not.
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(
            f"{name} = {value!r} is not a whole number: it must be between {low} and {high}. "
            f"{remedy}"
        ) from None
    if not low <= number <= high:
        raise ValueError(
            f"{name} = {number} is out of range: it must be between {low} and {high}. {remedy}"
        )
    return number


def dtype_name(dtype: object, known: Mapping[str, int] = ITEMSIZE) -> str:
    """The io dtype's full name from "fp16", "float16", `np.float16` or `torch.float16`.

    Raises:
        ValueError: a dtype that is not among the `known`: those the suite has kernels for.
    """
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    name = name.removeprefix("torch.")
    name = DTYPE_FROM_SHORT.get(name, name)
    if name not in known:
        raise ValueError(
            f"dtype = {name} is not supported: use one of {', '.join(known)}; cast q, k and v."
        )
    return name


def causal_name(causal: object) -> str | None:
    """None, "bottom_right" or "top_left"; True means bottom_right, as in FlashAttention >= 2.1."""
    for choice in CAUSAL_CHOICES:
        if type(causal) is type(choice) and causal == choice:
            if causal is False:
                return None
            return "bottom_right" if causal is True else str(causal)
    raise ValueError(
        f"causal = {causal!r} is not known: use False, True (= 'bottom_right') or 'top_left'."
    )


def checked_dropout_p(dropout_p: object) -> float:
    """`dropout_p` as a float in [0, 1).

    Raises:
        ValueError: anything else.
    """
    number = isinstance(dropout_p, (int, float)) and not isinstance(dropout_p, bool)
    if not number or not 0.0 <= dropout_p < 1.0:  # type: ignore[operator]
        raise ValueError(
            f"dropout_p = {dropout_p!r} must be at least 0 and below 1: it is the fraction of the "
            "probabilities that is dropped, e.g. 0.1."
        )
    return float(dropout_p)  # type: ignore[arg-type]


def checked_seed(seed: object) -> int:
    """`seed` as an int in 0 .. 2^64 - 1.

    Raises:
        ValueError: anything else.
    """
    return checked_int("seed", seed, 0, 2**64 - 1, "Pass a whole number, e.g. seed=0.")


def checked_window(window: Any) -> tuple[int | None, int | None] | None:
    """(left, right), each None or at least 0; None where neither side is bounded.

    Raises:
        ValueError: anything else.
    """
    if window is None:
        return None
    try:
        if isinstance(window, str):
            raise TypeError
        left, right = window
    except (TypeError, ValueError):
        raise ValueError(
            f"window = {window!r} is not a pair: pass (left, right), how many keys before and "
            "after its own a row attends, None for all of them, e.g. window=(128, 0)."
        ) from None
    remedy = "Use None for an unbounded side."
    sides = [
        None if side is None else checked_int(f"window {name}", side, 0, 2**31, remedy)
        for name, side in (("left", left), ("right", right))
    ]
    return None if sides == [None, None] else (sides[0], sides[1])


@dataclass(frozen=True)
class AttentionProblem:
    """The sizes and options of one attention call, without its arrays.

    q is (batch, nheads, seqlen_q, head_dim); k and v are (batch, nheads_kv, seqlen_k, head_dim).
    `causal` is None, "bottom_right" or "top_left"; `softmax_scale` None means 1/sqrt(head_dim).
    `block_mask` keeps blocks of the attention matrix; None keeps all. `window` is (left, right):
    row i attends keys i + offset - left ... i + offset + right, offset = seqlen_k - seqlen_q.
    `dropout_p` > 0 needs `seed`, or `keep_given`. All masks must keep a pair.

    `masked`, `bias_dtype` and `keep_given` say that the call brings an element mask, a bias of
    that dtype, an explicit dropout mask (`Extras` holds them). With `packed`, batch is the number
    of sequences and seqlen_q, seqlen_k are those of the longest.
    """

    batch: int
    nheads: int
    seqlen_q: int
    seqlen_k: int
    head_dim: int
    dtype: str = "float16"
    causal: str | None = None
    softmax_scale: float | None = None
    nheads_kv: int | None = None
    block_mask: BlockMask | None = None
    window: tuple[int | None, int | None] | None = None
    dropout_p: float = 0.0
    seed: int | None = None
    masked: bool = False
    bias_dtype: str | None = None
    keep_given: bool = False
    packed: Packed | None = None

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        put("batch", checked_int("batch", self.batch, 0, 2**24, "Split the batch."))
        remedy = "Pass at least one head; split them if there are more."
        put("nheads", checked_int("nheads", self.nheads, 1, 2**16, remedy))
        kv = self.nheads if self.nheads_kv is None else self.nheads_kv
        put("nheads_kv", checked_int("nheads_kv", kv, 1, self.nheads, "Use a divisor of nheads."))
        if self.nheads % kv:
            raise ValueError(
                f"nheads_kv = {kv} does not divide nheads = {self.nheads}: "
                "every group of query heads shares one k/v head. Use a divisor of nheads."
            )
        for name in ("seqlen_q", "seqlen_k"):
            put(
                name, checked_int(name, getattr(self, name), 0, MAX_SEQLEN, "Shorten the sequence.")
            )
        remedy = "Split or pad the heads."
        put("head_dim", checked_int("head_dim", self.head_dim, 1, MAX_HEAD_DIM, remedy))
        put("dtype", dtype_name(self.dtype, HOST_ITEMSIZE))
        if self.causal is not None:
            put("causal", causal_name(self.causal))
        put("softmax_scale", self._checked_scale())
        if self.block_mask is not None:
            self.block_mask.fits(self.batch, self.nheads, self.seqlen_q, self.seqlen_k)
        put("window", checked_window(self.window))
        self._check_dropout(put)
        if self.bias_dtype is not None:
            put("bias_dtype", dtype_name(self.bias_dtype, HOST_ITEMSIZE))
            if self.bias_dtype not in ("float32", self.dtype):
                able = " or ".join(sorted({"float32", self.dtype}))
                raise ValueError(
                    f"bias is {self.bias_dtype}, q is {self.dtype}: cast the bias to {able}."
                )
        if self.packed is not None:
            self._check_packed()

    def _check_dropout(self, put: Any) -> None:
        put("dropout_p", checked_dropout_p(self.dropout_p))
        if self.seed is not None:
            put("seed", checked_seed(self.seed))
        if self.dropout_p and self.seed is None and not self.keep_given:
            raise ValueError(
                f"dropout_p = {self.dropout_p} needs a seed: pass seed=0, or another whole number, "
                "so that the same mask can be drawn again by the backward pass."
            )

    def _check_packed(self) -> None:
        assert self.packed is not None
        p = self.packed
        if (self.batch, self.seqlen_q, self.seqlen_k) != (p.sequences, p.longest_q, p.longest_k):
            raise ValueError(
                f"batch = {self.batch}, seqlen_q = {self.seqlen_q}, seqlen_k = {self.seqlen_k}; "
                f"packed sequences need {p.sequences}, {p.longest_q}, {p.longest_k}: the number "
                "of sequences and the longest of them."
            )
        if self.block_mask is not None:
            raise NotImplementedError(
                "block_mask with cu_seqlens: every sequence would need blocks of its own. Call "
                "once per sequence, or pass an element mask."
            )

    def sequences(self) -> Iterator[tuple[slice, slice, AttentionProblem]]:
        """(rows of q, rows of k, its problem) of every packed sequence, with batch = 1."""
        assert self.packed is not None
        for q, k in self.packed.slices():
            yield (
                q,
                k,
                replace(
                    self,
                    batch=1,
                    seqlen_q=q.stop - q.start,
                    seqlen_k=k.stop - k.start,
                    packed=None,
                ),
            )

    def _checked_scale(self) -> float:
        if self.softmax_scale is None:
            return 1.0 / math.sqrt(self.head_dim)
        try:
            # Text is refused even where it reads as a number, as for every size.
            text = isinstance(self.softmax_scale, str)
            scale = math.nan if text else float(self.softmax_scale)
        except (TypeError, ValueError, OverflowError):
            scale = math.nan
        fault = "not a finite number" if not math.isfinite(scale) else "too large for fp32 scores"
        if not math.isfinite(scale) or abs(scale) > MAX_SCALE:
            raise ValueError(
                f"softmax_scale = {self.softmax_scale!r} is {fault}: "
                f"pass None for 1/sqrt(head_dim) = {1.0 / math.sqrt(self.head_dim):.4g}."
            )
        return scale

    @classmethod
    def of_tokens(
        cls,
        seqlen: object,
        head_dim: object,
        dtype: str = "float16",
        *,
        tokens: int = 16384,
        hidden: int = 2048,
        causal: str | None = None,
    ) -> AttentionProblem:
        """The grid of the recorded runs: batch = max(1, tokens/seqlen), nheads = hidden/head_dim.

        So every point of a curve over `seqlen` holds the same number of tokens and the same model
        width (the shapes of FlashAttention-2, figs. 4-7), until one sequence exceeds `tokens`.
        """
        n = checked_int("N", seqlen, 1, MAX_SEQLEN, "Choose a sequence length in that range.")
        remedy = "Choose a head dimension in that range."
        d = checked_int("d", head_dim, 1, MAX_HEAD_DIM, remedy)
        total = checked_int("tokens", tokens, 1, 2**31, "Choose how many tokens the batch holds.")
        width = checked_int("hidden", hidden, 1, 2**20, "Choose the width of the model.")
        return cls(max(1, total // n), max(1, width // d), n, n, d, dtype, causal)

    @property
    def itemsize(self) -> int:
        """Bytes of one element of q, k, v and out."""
        return HOST_ITEMSIZE[self.dtype]

    @property
    def scale(self) -> float:
        """softmax_scale, with the default filled in."""
        assert self.softmax_scale is not None
        return self.softmax_scale

    @property
    def heads(self) -> int:
        """batch x nheads: how many independent attention matrices there are."""
        return self.batch * self.nheads

    @property
    def group(self) -> int:
        """Query heads that share one k/v head: head h of q uses head h // group of k and v."""
        assert self.nheads_kv is not None
        return self.nheads // self.nheads_kv

    @property
    def q_rows(self) -> int:
        """Rows of q over all batches and heads, which are those of out and lse."""
        tokens = self.batch * self.seqlen_q if self.packed is None else self.packed.total_q
        return tokens * self.nheads

    @property
    def kv_rows(self) -> int:
        """Rows of k over all batches and heads, which are those of v."""
        assert self.nheads_kv is not None
        tokens = self.batch * self.seqlen_k if self.packed is None else self.packed.total_k
        return tokens * self.nheads_kv

    @property
    def q_shape(self) -> tuple[int, int, int, int]:
        """Shape of q and out."""
        if self.packed is not None:
            return (1, self.nheads, self.packed.total_q, self.head_dim)
        return (self.batch, self.nheads, self.seqlen_q, self.head_dim)

    @property
    def kv_shape(self) -> tuple[int, int, int, int]:
        """Shape of k and v."""
        assert self.nheads_kv is not None
        if self.packed is not None:
            return (1, self.nheads_kv, self.packed.total_k, self.head_dim)
        return (self.batch, self.nheads_kv, self.seqlen_k, self.head_dim)

    @property
    def q_bytes(self) -> int:
        """Bytes of q, which are those of out."""
        return self.q_rows * self.head_dim * self.itemsize

    @property
    def kv_bytes(self) -> int:
        """Bytes of k, which are those of v."""
        return self.kv_rows * self.head_dim * self.itemsize

    @property
    def lse_bytes(self) -> int:
        """Bytes of lse, one fp32 per query row."""
        return self.q_rows * 4

    def describe(self) -> str:
        """One line for captions: "B = 4, H = 32, N = 4096, d = 64, fp16"."""
        same = self.seqlen_q == self.seqlen_k
        n = f"N = {self.seqlen_q}" if same else f"N_q = {self.seqlen_q}, N_k = {self.seqlen_k}"
        mask = f", causal ({self.causal})" if self.causal else ""
        if self.window is not None:
            left, right = ("∞" if side is None else side for side in self.window)
            mask += f", window ({left}, {right})"
        if self.block_mask is not None:
            mask += f", {self.block_mask.describe()}"
        given = {"mask": self.masked, "bias": self.bias_dtype, "dropout": self.dropout_p}
        mask += "".join(f", {name}" for name, there in given.items() if there)
        heads = f"H = {self.nheads}" + (f", H_kv = {self.nheads_kv}" if self.group > 1 else "")
        n = f"packed, longest {n}" if self.packed is not None else n
        dtype = SHORT_DTYPE.get(self.dtype, "fp64")
        return f"B = {self.batch}, {heads}, {n}, d = {self.head_dim}, {dtype}{mask}"

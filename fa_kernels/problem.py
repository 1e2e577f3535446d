"""One attention call as a value: its sizes, dtype and mask, checked in words, with no arrays."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fa_kernels.block_mask import BlockMask

#: io dtypes by name: bytes of one element, and the short name used on screen.
ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2}
SHORT_DTYPE = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
DTYPE_FROM_SHORT = {short: name for name, short in SHORT_DTYPE.items()}

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


def dtype_name(dtype: object) -> str:
    """The io dtype's full name from "fp16", "float16", `np.float16` or `torch.float16`.

    Raises:
        ValueError: a dtype the suite has no kernels for.
    """
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    name = name.removeprefix("torch.")
    name = DTYPE_FROM_SHORT.get(name, name)
    if name not in ITEMSIZE:
        raise ValueError(
            f"dtype = {name} is not supported: use one of {', '.join(ITEMSIZE)}; cast q, k and v."
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


@dataclass(frozen=True)
class AttentionProblem:
    """The sizes and options of one attention forward pass.

    q is (batch, nheads, seqlen_q, head_dim); k and v are (batch, nheads_kv, seqlen_k, head_dim).
    `causal` is None, "bottom_right" or "top_left"; `softmax_scale` None means 1/sqrt(head_dim).
    `block_mask` keeps blocks of the attention matrix; None keeps all. Both masks must keep a pair.
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
        put("dtype", dtype_name(self.dtype))
        if self.causal is not None:
            put("causal", causal_name(self.causal))
        put("softmax_scale", self._checked_scale())
        if self.block_mask is not None:
            self.block_mask.fits(self.batch, self.nheads, self.seqlen_q, self.seqlen_k)

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
        return ITEMSIZE[self.dtype]

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
    def q_bytes(self) -> int:
        """Bytes of q, which are those of out."""
        return self.heads * self.seqlen_q * self.head_dim * self.itemsize

    @property
    def kv_bytes(self) -> int:
        """Bytes of k, which are those of v."""
        assert self.nheads_kv is not None
        return self.batch * self.nheads_kv * self.seqlen_k * self.head_dim * self.itemsize

    @property
    def lse_bytes(self) -> int:
        """Bytes of lse, one fp32 per query row."""
        return self.heads * self.seqlen_q * 4

    def describe(self) -> str:
        """One line for captions: "B = 4, H = 32, N = 4096, d = 64, fp16"."""
        same = self.seqlen_q == self.seqlen_k
        n = f"N = {self.seqlen_q}" if same else f"N_q = {self.seqlen_q}, N_k = {self.seqlen_k}"
        mask = f", causal ({self.causal})" if self.causal else ""
        if self.block_mask is not None:
            mask += f", {self.block_mask.describe()}"
        dtype = SHORT_DTYPE[self.dtype]
        return f"B = {self.batch}, H = {self.nheads}, {n}, d = {self.head_dim}, {dtype}{mask}"

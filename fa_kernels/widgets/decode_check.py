"""Claim, then check: a decode step is the last row of attention over the whole sequence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fa_kernels.decoding import decode
from fa_kernels.problem import AttentionProblem, checked_int
from fa_kernels.reference.standard import attention_float64
from fa_kernels.session import Session, in_use
from fa_kernels.widgets.seed import checked_seed
from fa_kernels.widgets.text import html_table, labels, scientific, text_table
from fa_kernels.widgets.whole_row import LIMIT

BATCH, NHEADS, NHEADS_KV, HEAD_DIM = 2, 8, 2, 64
MAX_TOKENS, PAGE_SIZE = 4096, 16
#: Tokens that are appended by k_new and v_new instead of lying in the cache before.
APPENDED = 3
_SPLITS = 5


@dataclass(frozen=True)
class DecodeLine:
    """One call: key of its name, where it ran, dtype, difference and limit; or why it did not."""

    name: str
    backend: str
    dtype: str
    difference: float
    limit: float
    refusal: str = ""

    @property
    def ok(self) -> bool:
        """True if it ran, within its limit."""
        return not self.refusal and self.difference <= self.limit


@dataclass(frozen=True)
class DecodeCheck:
    """One line per call, shown as a table."""

    tokens: int
    lines: tuple[DecodeLine, ...]

    @property
    def ok(self) -> bool:
        """True if all that ran are within their limits."""
        return all(line.ok for line in self.lines if not line.refusal)

    def cells(self) -> list[list[str]]:
        """The table as text: a row of heads, then one row per call."""
        text = labels("decode_check")
        rows = [[str(text[name]) for name in ("call", "backend", "dtype", "difference", "limit")]]
        for line in self.lines:
            name = text["names"][line.name].format(
                splits=_SPLITS, page=PAGE_SIZE, appended=APPENDED
            )
            found = line.refusal or scientific(line.difference)
            limit = "" if line.refusal else f"{line.limit:.1e}"
            rows.append([name, text["backends"][line.backend], line.dtype, found, limit])
        return rows

    def caption(self) -> str:
        """What was compared, and the verdict."""
        text = labels("decode_check")
        said = text["caption"].format(
            batch=BATCH, heads=NHEADS, kv=NHEADS_KV, d=HEAD_DIM, tokens=self.tokens
        )
        return f"{said} {text['holds' if self.ok else 'fails']}"

    def __str__(self) -> str:
        return text_table(self.caption(), self.cells())

    def _repr_html_(self) -> str:
        head, *body = self.cells()
        return html_table("decode-check", self.caption(), head, body)


@dataclass(frozen=True, eq=False)
class _Sequences:
    """q of all rows and k, v of `tokens` tokens, and the last row of attention in float64."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray

    @property
    def tokens(self) -> int:
        return int(self.k.shape[2])

    def truth(self) -> np.ndarray:
        """(batch, nheads, 1, d): causal attention of the whole, its last row."""
        problem = AttentionProblem(
            BATCH, NHEADS, self.tokens, self.tokens, HEAD_DIM, "float32", "bottom_right",
            nheads_kv=NHEADS_KV,
        )  # fmt: skip
        return attention_float64(self.q, self.k, self.v, problem)[0][:, :, -1:]

    def calls(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Key of the labels -> arguments of `decode`."""
        whole = {"k_cache": self.k, "v_cache": self.v, "cache_seqlens": self.tokens}
        yield "plain", whole
        yield "splits", {**whole, "num_splits": _SPLITS}
        yield "paged", {**self._pages(), "cache_seqlens": self.tokens, "num_splits": _SPLITS}
        before = self.tokens - APPENDED
        caches = [x.copy() for x in (self.k, self.v)]
        for cache in caches:
            cache[:, :, before:] = 0  # filled by the call itself
        new = {"k_new": self.k[:, :, before:], "v_new": self.v[:, :, before:]}
        yield "appended", {
            "k_cache": caches[0], "v_cache": caches[1], "cache_seqlens": before, **new
        }  # fmt: skip

    def _pages(self) -> dict[str, Any]:
        """The caches cut into pages, which lie in random order; one page more than needed."""
        each = -(-self.tokens // PAGE_SIZE)
        order = np.random.default_rng(0).permutation(BATCH * each + 1)[: BATCH * each]
        table = order.reshape(BATCH, each).astype(np.int32)
        found: dict[str, Any] = {"block_table": table}
        for name, cache in (("k_cache", self.k), ("v_cache", self.v)):
            shape = (BATCH * each + 1, NHEADS_KV, PAGE_SIZE, HEAD_DIM)
            pages = np.zeros(shape, cache.dtype)
            for b in range(BATCH):
                for i, page in enumerate(table[b]):
                    piece = cache[b, :, i * PAGE_SIZE : (i + 1) * PAGE_SIZE]
                    pages[page, :, : piece.shape[1]] = piece
            found[name] = pages
        return found


def _lines(given: _Sequences, backend: str, limit: float, dtype: str) -> Iterator[DecodeLine]:
    truth, last = given.truth(), given.q[:, :, -1:]
    for name, arguments in given.calls():
        try:
            out = decode(last, backend=backend, **arguments)
        except (NotImplementedError, ModuleNotFoundError) as refusal:
            yield DecodeLine(name, backend, dtype, 0.0, limit, str(refusal))
            continue
        found = float(np.abs(out.astype(np.float64) - truth).max())
        yield DecodeLine(name, backend, dtype, found, limit)


def check_decode(
    tokens: int = 300, *, seed: int = 0, session: Session | None = None
) -> DecodeCheck:
    """Hold `fa.decode` against the last row of causal attention, in NumPy and on a live GPU.

    Plain, in parts, from pages in random order, and with the last tokens appended by the call.

    Args:
        tokens: of each of two sequences, from 4 to 4096.
        seed: of queries, keys and values.
        session: what `fa.session` returned; default: the current one.

    Raises:
        ValueError: a bad value; value, limit and remedy. TypeError: `session` is not one.
    """
    used = in_use(session)
    remedy = "Choose a length in that range."
    tokens = checked_int("tokens", tokens, APPENDED + 1, MAX_TOKENS, remedy)
    rng = np.random.default_rng(checked_seed(seed))
    heads = (NHEADS, NHEADS_KV, NHEADS_KV)
    wide = _Sequences(*(rng.standard_normal((BATCH, n, tokens, HEAD_DIM)) for n in heads))
    lines = list(_lines(wide, "numpy", LIMIT, "fp64"))
    if used.backend == "cuda":
        half = _Sequences(*(x.astype(np.float16) for x in (wide.q, wide.k, wide.v)))
        plain = next(_lines(half, "numpy", 0.0, "fp16")).difference
        # Twice what NumPy makes of the same numbers, and one rounding of the largest output.
        limit = 2 * plain + float(np.abs(half.truth()).max()) * 2.0**-11
        lines += _lines(half, "cuda", limit, "fp16")
    return DecodeCheck(tokens, tuple(lines))

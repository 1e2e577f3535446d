"""The online softmax: running maximum m, sum l and accumulator acc of a row, one block at a time.

Source: Milakov & Gimelshein 2018 (arXiv 1805.02867); FlashAttention (2205.14135) section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass
class OnlineSoftmax:
    """State of a set of rows after some blocks of keys.

    m_i, l_i: (..., rows). acc: (..., rows, head_dim), unnormalised: softmax(prefix) @ v is acc/l_i.
    A row that has seen no kept key has m_i = -inf, l_i = 0, acc = 0.
    """

    m_i: np.ndarray
    l_i: np.ndarray
    acc: np.ndarray

    @classmethod
    def empty(
        cls, lead: tuple[int, ...], rows: int, head_dim: int, dtype: np.dtype
    ) -> OnlineSoftmax:
        """No keys seen yet; `lead` are the leading (batch, head) axes."""
        shape = (*lead, rows)
        minus_inf = np.full(shape, -np.inf, dtype)
        return cls(minus_inf, np.zeros(shape, dtype), np.zeros((*shape, head_dim), dtype))

    def update(self, s: np.ndarray, v: np.ndarray, dropout: np.ndarray | None = None) -> np.ndarray:
        """Take in one block: s (..., rows, keys), -inf where masked; v (..., keys, head_dim).

        `dropout` (..., rows, keys) multiplies P on its way to acc; l sums P without it, since
        dropout comes after the softmax.

        Returns alpha (..., rows), the factor that what was there before has been scaled by.
        """
        m_new = np.maximum(self.m_i, s.max(axis=-1, initial=-np.inf))
        # While a row has seen only masked keys its maximum is -inf, and -inf - -inf is NaN.
        m_safe = np.where(m_new == -np.inf, 0.0, m_new).astype(s.dtype)
        alpha = np.exp(self.m_i - m_safe)
        p = np.exp(s - m_safe[..., None])
        self.l_i = self.l_i * alpha + p.sum(axis=-1)
        self.acc = self.acc * alpha[..., None] + (p if dropout is None else p * dropout) @ v
        self.m_i = m_new
        return alpha

    def merge(self, other: OnlineSoftmax) -> OnlineSoftmax:
        """The state after both sets of keys; commutative and associative up to rounding."""
        m_new = np.maximum(self.m_i, other.m_i)
        m_safe = np.where(m_new == -np.inf, 0.0, m_new).astype(self.m_i.dtype)
        a, b = np.exp(self.m_i - m_safe), np.exp(other.m_i - m_safe)
        l_new = self.l_i * a + other.l_i * b
        return OnlineSoftmax(m_new, l_new, self.acc * a[..., None] + other.acc * b[..., None])

    def output(self) -> np.ndarray:
        """acc / l, (..., rows, head_dim); 0 for a row with no kept key."""
        l_safe = np.where(self.l_i == 0.0, 1.0, self.l_i).astype(self.acc.dtype)
        return self.acc / l_safe[..., None]

    def lse(self) -> np.ndarray:
        """log sum exp of the scores, natural log, (..., rows); -inf for a row with no kept key."""
        with np.errstate(divide="ignore"):
            return self.m_i + np.log(self.l_i)


def softmax_rows(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """softmax(s) and lse of whole rows s (..., keys), keys >= 1; 0 and -inf for a masked row."""
    m = s.max(axis=-1, keepdims=True)
    exps = np.exp(s - np.where(m == -np.inf, 0.0, m).astype(s.dtype))
    l_row = exps.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (m + np.log(l_row))[..., 0]
    return exps / np.where(l_row == 0.0, 1.0, l_row).astype(s.dtype), lse

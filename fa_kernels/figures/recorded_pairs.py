"""Calls that two recorded runs both hold, paired: the same work, measured twice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

from fa_kernels.measure.records import OURS, UNITS, Row, Run
from fa_kernels.problem import SHORT_DTYPE

#: Share of the calls that "nearly all of them" leaves out at each end.
_TAIL = 0.05
#: Columns that say what was measured, not which call it was.
_FOUND = {"unit", "p20", "median", "p80", "n", "status", "detail", "max_abs_err"}
_CALL = tuple(name.name for name in fields(Row) if name.name not in _FOUND)
#: What the model knows to the byte, so that it is the same on any GPU: for our own kernels.
MEMORY = ("extra_mem_bytes", "peak_mem_bytes")
_LATENCY = "latency_ms"


def is_counted(metric: str) -> bool:
    """True of bytes that were counted inside a kernel, in all or of one tensor."""
    return metric.startswith("hbm_")


@dataclass(frozen=True)
class Pair:
    """One call and metric in both runs."""

    first: Row
    second: Row

    @property
    def values(self) -> tuple[float, float]:
        """Both medians."""
        assert self.first.median is not None and self.second.median is not None
        return self.first.median, self.second.median

    @property
    def ratio(self) -> float | None:
        """First over second; None where one of them is 0 and the other is not."""
        first, second = self.values
        if first == second:
            return 1.0
        return first / second if first > 0 and second > 0 else None

    @property
    def seqlen(self) -> int:
        """N; of a call that decodes, the keys."""
        return max(self.first.seqlen_q, self.first.seqlen_k)

    @property
    def overlaps(self) -> bool:
        """True if the two runs' p20 to p80 have a value in common."""
        (a20, a80), (b20, b80) = _spread(self.first), _spread(self.second)
        return a20 <= b80 and b20 <= a80

    @property
    def own_spread(self) -> tuple[float, float]:
        """Ratios that the two p20..p80 alone allow, if the medians were equal: (least, most)."""
        (a20, a80), (b20, b80) = _spread(self.first), _spread(self.second)
        a, b = self.values
        if not min(a, b, b20, b80) > 0:
            return 1.0, 1.0
        return (a20 / a) / (b80 / b), (a80 / a) / (b20 / b)


def _spread(row: Row) -> tuple[float, float]:
    assert row.p20 is not None and row.p80 is not None
    return row.p20, row.p80


def call_words(row: Row) -> str:
    """The call in words, without who computes it: "B = 4, H = 32, N = 4096, d = 64, fp16, ..."."""
    same = row.seqlen_q == row.seqlen_k
    n = f"N = {row.seqlen_q}" if same else f"N_q = {row.seqlen_q}, N_k = {row.seqlen_k}"
    heads = f"H = {row.nheads}"
    heads += "" if row.nheads_kv == row.nheads else f", H_kv = {row.nheads_kv}"
    dtype = SHORT_DTYPE.get(row.dtype, row.dtype)
    said = f"B = {row.batch}, {heads}, {n}, d = {row.head_dim}, {dtype}"
    if row.block_m is not None and row.block_n is not None:
        said += f", tiles {row.block_m} × {row.block_n}"
    said += "" if row.pass_ == "fwd" else f", {row.pass_}"
    said += "" if row.causal == "none" else f", causal ({row.causal})"
    said += f", dropout {row.dropout_p:g}" if row.dropout_p else ""
    said += f", block mask {row.block_mask}, density {row.density:.3g}" if row.block_mask else ""
    return said + (f", {row.inputs} inputs" if row.inputs else "")


@dataclass(frozen=True)
class Ratios:
    """Ratios of several pairs: the median, and the range that holds nine tenths of them.

    With fewer than 20 none is left out.
    """

    count: int
    median: float
    low: float
    high: float

    @property
    def leaves_out(self) -> bool:
        """True if some calls lie outside `low` to `high`."""
        return math.floor(_TAIL * self.count) > 0

    @classmethod
    def of(cls, pairs: Iterable[Pair]) -> Ratios | None:
        """Of the pairs that have a ratio; None if there are none."""
        found = sorted(pair.ratio for pair in pairs if pair.ratio is not None)
        if not found:
            return None
        left_out = math.floor(_TAIL * len(found))
        return cls(len(found), middle(found), found[left_out], found[-1 - left_out])


def middle(values: Sequence[float]) -> float:
    """The median of sorted values; of an even number, the geometric mean of the two in between."""
    half = len(values) // 2
    return values[half] if len(values) % 2 else math.sqrt(values[half - 1] * values[half])


class RecordedPairs:
    """Two runs beside each other. Only what was measured in both is compared: no interpolation."""

    def __init__(self, first: Run, second: Run) -> None:
        self.first, self.second = first, second
        of_first, of_second = _measured(first), _measured(second)
        self._held: dict[str, list[Pair]] = {}
        self._alone: dict[str, tuple[list[Row], list[Row]]] = {}
        for call, row in of_first.items():
            if call in of_second:
                self._held.setdefault(row.metric, []).append(Pair(row, of_second[call]))
            else:
                self._alone.setdefault(row.metric, ([], []))[0].append(row)
        for call, row in of_second.items():
            if call not in of_first:
                self._alone.setdefault(row.metric, ([], []))[1].append(row)

    @property
    def metrics(self) -> list[str]:
        """Metrics that both hold of some call: time first, bytes by tensor left out."""
        known = [_LATENCY, "extra_mem_bytes", "hbm_bytes", *UNITS]
        found = {m for m in self._held if not is_counted(m) or m == "hbm_bytes"}
        return list(dict.fromkeys(m for m in known if m in found))

    @cached_property
    def dtypes(self) -> list[str]:
        """dtypes of the calls that both hold."""
        return sorted({p.first.dtype for pairs in self._held.values() for p in pairs})

    @cached_property
    def head_dims(self) -> list[int]:
        """d of the calls that both hold."""
        return sorted({p.first.head_dim for pairs in self._held.values() for p in pairs})

    def pairs(self, metric: str, dtype: str = "", head_dim: int = 0) -> list[Pair]:
        """Pairs of one metric, of one dtype and d or ("" and 0) of all."""
        return [p for p in self._held.get(metric, []) if _is_at(p.first, dtype, head_dim)]

    def alone(self, metric: str, dtype: str = "", head_dim: int = 0) -> tuple[int, int]:
        """How many calls only the first and only the second run holds, of a metric."""
        first, second = self._alone.get(metric, ([], []))
        a, b = (sum(_is_at(row, dtype, head_dim) for row in rows) for rows in (first, second))
        return a, b

    @cached_property
    def counted(self) -> list[Pair]:
        """Every number of counted bytes that both hold, by tensor and in all."""
        return [p for m, pairs in self._held.items() if is_counted(m) for p in pairs]

    @cached_property
    def memory(self) -> list[Pair]:
        """Extra and peak memory of every call of our kernels that both hold.

        Steps of a whole model are left out: what they hold is the model's and an allocator's.
        """
        return [pair for pair in self._memory if pair.first.provider == OURS]

    @cached_property
    def peer_memory(self) -> list[Pair]:
        """The same of the peers, which a library's allocator may round differently."""
        return [pair for pair in self._memory if pair.first.provider != OURS]

    @property
    def _memory(self) -> list[Pair]:
        held = (pair for metric in MEMORY for pair in self._held.get(metric, []))
        return [pair for pair in held if pair.first.pass_ != "step"]

    @property
    def same_device(self) -> bool:
        """True if both were recorded on GPUs of one name."""
        return self.first.device == self.second.device


def unequal(pairs: Iterable[Pair]) -> list[Pair]:
    """Those whose two values are not the same number."""
    return [pair for pair in pairs if pair.values[0] != pair.values[1]]


def departures(pairs: Sequence[Pair]) -> list[Pair]:
    """Pairs whose ratio is not the median ratio, the farthest from it first."""
    ratios = Ratios.of(pairs)
    if ratios is None:
        return []
    far = {
        i: abs(math.log(pair.ratio / ratios.median))
        for i, pair in enumerate(pairs)
        if pair.ratio is not None and pair.ratio != ratios.median
    }
    return [pairs[i] for i in sorted(far, key=lambda i: far[i], reverse=True)]


def _measured(run: Run) -> dict[tuple[object, ...], Row]:
    # A resumed run may hold a point twice: the later row is the one that was finished.
    return {
        tuple(getattr(row, name) for name in _CALL): row
        for row in run.rows
        if row.status == "ok" and row.median is not None
    }


def _is_at(row: Row, dtype: str, head_dim: int) -> bool:
    return dtype in ("", row.dtype) and head_dim in (0, row.head_dim)

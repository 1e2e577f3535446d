"""Recorded texts of a whole model: with and without a cache, by whose attention, how fast."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fa_kernels.device import Device
from fa_kernels.figures.recorded import runs_on
from fa_kernels.measure.generation_run import EAGER, EAGER_CACHED, OURS, OURS_CACHED
from fa_kernels.measure.records import Row, Run

#: Key of the labels -> provider and variant of the rows, from neither to both.
WAYS = {
    "neither": (EAGER.provider, EAGER.variant),
    "attention": (OURS.provider, OURS.variant),
    "cache": (EAGER_CACHED.provider, EAGER_CACHED.variant),
    "both": (OURS_CACHED.provider, OURS_CACHED.variant),
}


@dataclass(frozen=True)
class Text:
    """One way to write: rows of its times by new tokens, and of its memory; `failed` says why."""

    times: dict[int, Row] = field(default_factory=dict)
    memory: Row | None = None
    failed: Row | None = None

    @property
    def row(self) -> Row | None:
        """That of all tokens; None: it was not timed."""
        return self.times[max(self.times)] if self.times else None

    @property
    def first(self) -> Row | None:
        """That of the first token, which waits for the prompt; None: it was not timed."""
        return self.times[min(self.times)] if self.times else None

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all sequences a second, behind the first one; 0 if they were not timed."""
        row, first = self.row, self.first
        if row is None or first is None or not row.median or not first.median or row is first:
            return 0.0
        return row.batch * (row.seqlen_k - first.seqlen_k) / (row.median - first.median) * 1e3


@dataclass(frozen=True)
class RecordedGeneration:
    """Texts of one run of kind "generation": tokens of the prompt -> key of `WAYS` -> text."""

    run_id: str = ""
    texts: dict[int, dict[str, Text]] = field(default_factory=dict)

    @classmethod
    def on(cls, device: Device, root: Path | None = None) -> RecordedGeneration:
        """The newest run of a device in which something was timed."""
        for run in runs_on(device, "generation", root):
            found = cls(run.run_id, _texts(run))
            if any(text.times for texts in found.texts.values() for text in texts.values()):
                return found
        return cls()


def _texts(run: Run) -> dict[int, dict[str, Text]]:
    keys = {way: key for key, way in WAYS.items()}
    found: dict[int, dict[str, Text]] = {}
    for row in run.rows:
        key = keys.get((row.provider, row.variant))
        if key is None:
            continue
        texts = found.setdefault(row.seqlen_q, {key: Text() for key in WAYS})
        if row.status != "ok":
            texts[key] = Text(failed=row)
        elif row.metric == "latency_ms":
            texts[key].times[row.seqlen_k - row.seqlen_q] = row
        elif row.metric == "extra_mem_bytes":
            texts[key] = Text(texts[key].times, row)
    return found

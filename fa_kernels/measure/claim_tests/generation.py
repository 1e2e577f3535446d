"""Claims about writing text: recorded steps of a whole model, with and without a KV cache."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from fa_kernels.measure.claim_tests.evidence import Evidence, Found, value
from fa_kernels.measure.claim_tests.judged import Judged, judged, nothing_recorded, share
from fa_kernels.measure.claims import Claim
from fa_kernels.measure.generation_run import EAGER_CACHED, OURS, OURS_CACHED, Way
from fa_kernels.measure.records import Row
from fa_kernels.measure.verdict import listed
from fa_kernels.units import span

#: Fused attention alone, the cache alone, and both.
_ALONE, _TOGETHER = (OURS, EAGER_CACHED), OURS_CACHED


@dataclass(frozen=True)
class _Text:
    """Of one prompt in one way: ms until the first new token, and ms of each after it."""

    first_ms: float
    token_ms: float


def layers_work_together(claim: Claim, evidence: Evidence) -> Judged:
    """Whether with cache and fused attention a token takes less time than with either alone, and a
    prompt less than with the cache alone."""
    found = evidence.rows("generation", dense=False, metric="latency_ms", pass_="step")
    texts = _texts(found)
    checks: list[bool] = []
    tokens: list[float] = []
    prompts: list[float] = []
    for ways in texts.values():
        both, (attention, cache) = ways[_key(_TOGETHER)], (ways[_key(way)] for way in _ALONE)
        tokens.append(min(attention.token_ms, cache.token_ms) / both.token_ms)
        prompts.append(cache.first_ms / both.first_ms)
        checks += [tokens[-1] > 1, prompts[-1] > 1]
    if not checks:
        return nothing_recorded("steps of a model with and without a KV cache")
    after = listed([str(prompt) for prompt in sorted(texts)])
    why = (
        f"After prompts of {after} tokens, tokens come {span(tokens)} times as "
        f"fast with both as with the faster of the two alone, and the prompt is read "
        f"{span(prompts)} times as fast as with the cache alone: {share(checks)} comparisons."
    )
    return judged(checks, why, found.source)


def _key(way: Way) -> tuple[str, str]:
    return way.provider, way.variant


def _texts(found: Found) -> dict[int, dict[tuple[str, str], _Text]]:
    """Prompt length -> way -> its times, of the prompts that hold all three ways."""
    rows: dict[int, dict[tuple[str, str], list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in found.rows:
        rows[row.seqlen_q][row.provider, row.variant].append(row)
    whole = {_key(way) for way in (*_ALONE, _TOGETHER)}
    return {
        prompt: {way: _text(some) for way, some in ways.items() if way in whole}
        for prompt, ways in rows.items()
        if all(len(ways[way]) > 1 for way in whole)
    }


def _text(rows: Sequence[Row]) -> _Text:
    first, *_, last = sorted(rows, key=lambda row: row.seqlen_k)
    tokens = last.seqlen_k - first.seqlen_k
    return _Text(value(first), (value(last) - value(first)) / tokens)

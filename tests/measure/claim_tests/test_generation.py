"""The verdict on cache and fused attention turns with the recorded steps."""

from __future__ import annotations

from fa_kernels.measure.claim_tests.evidence import Evidence
from fa_kernels.measure.claim_tests.judged import FAILS, HOLDS, LIMITED, UNTESTED
from fa_kernels.measure.records import Row
from tests.measure.claim_tests.altered import altered, scaled, verdict

STEPS = {"pass_": "step", "metric": "latency_ms"}


def slower(factor: float, row: Row) -> Row:
    changed = scaled(factor if row.variant == "decode_split_kv" else 1.0)(row)
    assert changed is not None
    return changed


def test_both_are_faster_than_either(evidence: Evidence) -> None:
    found = verdict("layers_work_together", evidence)
    assert (found.word, found.met) == (HOLDS, found.made)
    assert "512 and 4096 tokens" in found.why and "generation" in found.source


def test_it_turns_with_the_steps(evidence: Evidence) -> None:
    some = altered(evidence, lambda row: slower(1.5, row), **STEPS)
    assert verdict("layers_work_together", some).word == LIMITED
    none = altered(evidence, lambda row: slower(1000.0, row), **STEPS)
    assert verdict("layers_work_together", none).word == FAILS


def test_without_one_of_the_ways_it_is_not_tested(evidence: Evidence) -> None:
    gone = altered(evidence, lambda row: None if row.variant == "eager_cached" else row, **STEPS)
    assert verdict("layers_work_together", gone).word == UNTESTED

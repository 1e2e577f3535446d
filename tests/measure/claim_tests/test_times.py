"""Verdicts on times turn with the times; the recorded ones give the words that are shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fa_kernels.measure.claim_tests.evidence import Evidence
from fa_kernels.measure.claim_tests.judged import FAILS, HOLDS, LIMITED, UNTESTED
from fa_kernels.measure.claim_tests.times import bytes_ms, products_ms
from fa_kernels.measure.records import Row
from fa_kernels.variants import FAST
from tests.measure.claim_tests.altered import altered, scaled, verdict, with_rows
from tests.measure.rows import row

LATENCY = {"metric": "latency_ms", "pass_": "fwd"}
DRAM = {"metric": "dram_bytes"}


def test_bounds_of_one_call(evidence: Evidence) -> None:
    """16384 tokens of width 2048 at N = 4096, d = 64: 550 GFLOP, by hand."""
    gpu, flops = evidence.device, 4 * 64 * 4096**2 * 128
    ours, peer = row(), row(provider="torch_eager", variant="sdpa", block_m=None, block_n=None)
    assert products_ms(ours, gpu) == pytest.approx(flops / 67e12 * 1e3)
    assert products_ms(peer, gpu) == pytest.approx(flops / 989.5e12 * 1e3)
    assert products_ms(replace(peer, dtype="float32"), gpu) == products_ms(ours, gpu)
    read = replace(ours, metric="dram_bytes", unit="B", p20=4.8e9, median=4.8e9, p80=4.8e9)
    assert bytes_ms(read, gpu) == pytest.approx(1.0)


def test_memory_binds_standard_attention_on_tensor_cores_alone(evidence: Evidence) -> None:
    found = verdict("memory_bound", evidence)
    assert found.word == LIMITED and "torch eager" in found.why
    eager = altered(evidence, lambda row: None, "standard_tiled", **DRAM)
    assert verdict("memory_bound", eager).word == HOLDS
    assert verdict("memory_bound", altered(evidence, scaled(1e-3), **DRAM)).word == FAILS
    assert verdict("memory_bound", altered(evidence, scaled(1e3), **DRAM)).word == HOLDS


def test_idle_units(evidence: Evidence) -> None:
    found = verdict("units_idle", evidence)
    assert found.word == LIMITED
    assert verdict("units_idle", altered(evidence, scaled(0.02), **LATENCY)).word == FAILS
    busy = altered(altered(evidence, scaled(1e3), **DRAM), scaled(10), **LATENCY)
    assert verdict("units_idle", busy).word == HOLDS


def test_fused_kernels_do_not_wait_for_hbm(evidence: Evidence) -> None:
    assert verdict("freed_from_waiting", evidence).word == HOLDS
    assert verdict("freed_from_waiting", altered(evidence, scaled(3), **DRAM)).word == LIMITED
    assert verdict("freed_from_waiting", altered(evidence, scaled(1e3), **DRAM)).word == FAILS


def test_two_to_four_times(evidence: Evidence) -> None:
    found = verdict("speedup", evidence)
    assert found.word == LIMITED and 0 < found.met < found.made
    assert "0 below" in found.why and "(A100" in found.why
    slower = altered(evidence, scaled(20), "torch_flash", **LATENCY)
    turned = verdict("speedup", slower)
    assert turned.word == FAILS and f"{turned.made} below" in turned.why
    assert verdict("speedup", evidence, 1, 100).word == HOLDS
    assert verdict("speedup", altered(evidence, lambda row: None, "torch_flash")).word == UNTESTED


def test_orders_of_magnitude(evidence: Evidence) -> None:
    assert verdict("orders_of_magnitude", evidence).word == LIMITED
    assert verdict("orders_of_magnitude", evidence, 1.5).word == HOLDS
    same = altered(evidence, scaled(0.02), "standard_naive", "torch_eager", **LATENCY)
    assert verdict("orders_of_magnitude", same).word == FAILS


def test_time_grows_with_the_square(evidence: Evidence) -> None:
    assert verdict("quadratic_time", evidence).word in (HOLDS, LIMITED)
    assert verdict("quadratic_time", evidence, 3).word == FAILS
    linear = altered(evidence, scaled(lambda row: 1 / row.seqlen_q), **LATENCY)
    assert verdict("quadratic_time", linear).word == FAILS


def test_recomputation(evidence: Evidence) -> None:
    found = verdict("recompute_pays", evidence)
    assert found.word == LIMITED
    assert "faster at 0 of 18 points" in found.why  # 06 says the same of the fp32 units
    backward = {"metric": "latency_ms", "pass_": "bwd"}
    slow = altered(evidence, scaled(100), *FAST, **backward)
    assert verdict("recompute_pays", slow).word == FAILS
    fast = altered(evidence, scaled(0.1), *FAST, "flash_q_outer", **backward)
    assert verdict("recompute_pays", fast).word == HOLDS
    neither = altered(fast, lambda row: None, *FAST, "flash_q_outer", **backward)
    assert verdict("recompute_pays", neither).word == UNTESTED


@pytest.mark.parametrize(("factor", "word"), [(4.0, HOLDS), (2.0, FAILS)])
def test_training_is_judged_once_unfused_steps_are_recorded(
    evidence: Evidence, factor: float, word: str
) -> None:
    found = verdict("training_speedup", evidence)
    assert found.word == UNTESTED and "fused kernels alone take" in found.why

    def unfused(row: Row) -> Row | None:
        if (row.pass_, row.metric, row.series) != ("step", "latency_ms", "torch_flash"):
            return None
        return replace(scaled(factor)(row) or row, provider="torch_eager")

    assert verdict("training_speedup", with_rows(evidence, unfused)).word in (word, LIMITED)
    assert verdict("training_speedup", with_rows(evidence, unfused), 1.5).word == HOLDS

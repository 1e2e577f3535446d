"""Pairs of two runs: only equal calls meet, ratios and equal bytes follow from the rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fa_kernels.figures.recorded_pairs import (
    Pair,
    Ratios,
    RecordedPairs,
    call_words,
    departures,
    unequal,
)
from fa_kernels.measure.records import Row, load_run
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from tests.figures.synthetic import row
from tests.figures.synthetic_pairs import A100, A100_ID, NEW_ID, OLD_ID, slower, write_pair_run

PROBLEM = AttentionProblem(2, 4, 512, 512, 64, "float16")


def timed(ms: float, **other: object) -> Row:
    one = row(PROBLEM, "fa_kernels", "flash_q_outer", Tiling(64, 64), "latency_ms", ms)
    return replace(one, **other)  # type: ignore[arg-type]


def recorded(root: Path, first: str = OLD_ID, second: str = NEW_ID) -> RecordedPairs:
    return RecordedPairs(load_run(first, root), load_run(second, root))


def test_every_call_meets_its_like(tmp_path: Path) -> None:
    write_pair_run(tmp_path, OLD_ID, lambda row: slower(row, 2.0))
    write_pair_run(tmp_path, NEW_ID)
    found = recorded(tmp_path)
    pairs = found.pairs("latency_ms")
    assert len(pairs) == len(found.second.select(metric="latency_ms", status="ok")) > 20
    assert all(pair.ratio == pytest.approx(2.0, rel=1e-4) for pair in pairs)
    assert not any(pair.overlaps for pair in pairs)
    assert found.alone("latency_ms") == (0, 0) and found.same_device
    assert found.metrics == ["latency_ms", "extra_mem_bytes", "hbm_bytes", "peak_mem_bytes"]
    assert (found.dtypes, found.head_dims) == (["float16"], [64])
    assert found.pairs("latency_ms", "float32") == found.pairs("latency_ms", "", 128) == []


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("block_m", 32), ("block_n", 32), ("batch", 1), ("nheads", 8), ("nheads_kv", 2),
        ("seqlen_k", 256), ("causal", "top_left"), ("dropout_p", 0.5), ("pass_", "bwd"),
        ("provider", "torch_flash"), ("variant", "flash_kv_outer"), ("inputs", "outliers"),
    ],
)  # fmt: skip
def test_another_call_is_no_partner(tmp_path: Path, column: str, value: object) -> None:
    """Nothing is interpolated: one column that differs is another call."""
    write_pair_run(tmp_path, OLD_ID)
    run = load_run(OLD_ID, tmp_path)
    first, second = replace(run, rows=(timed(1.0),)), replace(run, rows=(timed(1.0),))
    assert len(RecordedPairs(first, second).pairs("latency_ms")) == 1
    other = replace(run, rows=(timed(1.0, **{column: value}),))
    found = RecordedPairs(first, other)
    assert found.pairs("latency_ms") == [] and found.alone("latency_ms") == (1, 1)


def test_the_row_that_was_finished_last_counts(tmp_path: Path) -> None:
    write_pair_run(tmp_path, OLD_ID)
    run = load_run(OLD_ID, tmp_path)
    twice = replace(run, rows=(timed(9.0), timed(3.0)))
    (pair,) = RecordedPairs(twice, replace(run, rows=(timed(1.0),))).pairs("latency_ms")
    assert pair.values == (3.0, 1.0)


def test_what_was_not_measured_is_held_by_the_other_alone(tmp_path: Path) -> None:
    lost = ("latency_ms", "flash_kv_outer")
    write_pair_run(tmp_path, OLD_ID)
    write_pair_run(tmp_path, NEW_ID, lambda r: None if (r.metric, r.variant) == lost else r)
    found = recorded(tmp_path)
    count = len(found.first.select(metric="latency_ms", variant="flash_kv_outer", status="ok"))
    assert found.alone("latency_ms") == (count, 0) and count > 1
    assert found.alone("latency_ms", "float32") == (0, 0)


def test_bytes_that_differ_are_found(tmp_path: Path) -> None:
    def one_byte_more(row: Row) -> Row:
        wanted = (row.metric, row.variant) == ("hbm_k_bytes", "flash_q_outer")
        if not wanted or row.median is None:
            return row
        more = row.median + 1
        return replace(row, p20=more, median=more, p80=more)

    write_pair_run(tmp_path, OLD_ID)
    write_pair_run(tmp_path, NEW_ID)
    write_pair_run(tmp_path, A100_ID, one_byte_more, A100)
    assert unequal(recorded(tmp_path).counted) == [] == unequal(recorded(tmp_path).memory)
    other = recorded(tmp_path, OLD_ID, A100_ID)
    wrong = unequal(other.counted)
    assert wrong and {p.first.metric for p in wrong} == {"hbm_k_bytes"} and not other.same_device
    assert {p.first.provider for p in other.memory} == {"fa_kernels"}
    assert "fa_kernels" not in {p.first.provider for p in other.peer_memory} != set()


def test_ratios_leave_out_a_twentieth_at_each_end() -> None:
    pairs = [Pair(timed(float(i)), timed(1.0)) for i in range(1, 41)]
    found = Ratios.of(pairs)
    assert found is not None and found.leaves_out
    assert (found.count, found.low, found.high) == (40, 3.0, 38.0)
    assert found.median == pytest.approx((20 * 21) ** 0.5)
    few = Ratios.of(pairs[:19])
    assert few is not None and (few.low, few.high) == (1.0, 19.0) and not few.leaves_out
    assert Ratios.of([]) is None


def test_departures_begin_with_the_farthest_on_either_side() -> None:
    pairs = [Pair(timed(ms), timed(1.0)) for ms in (1.0, 1.0, 1.0, 1.5, 0.25)]
    assert [pair.ratio for pair in departures(pairs)] == [0.25, 1.5]


def test_zero_has_no_ratio_unless_both_are() -> None:
    zero = timed(0.0, metric="dram_bytes", p20=0.0, p80=0.0)
    assert Pair(zero, zero).ratio == 1.0
    assert Pair(zero, timed(1.0)).ratio is None is Pair(timed(1.0), zero).ratio
    assert Pair(zero, timed(1.0)).own_spread == (1.0, 1.0)


def test_spread_and_overlap_are_of_both_runs() -> None:
    first = timed(1.0, p20=0.9, p80=1.1)
    pair = Pair(first, timed(2.0, p20=1.6, p80=2.5))
    assert pair.own_spread == pytest.approx((0.9 / 1.25, 1.1 / 0.8))
    assert not pair.overlaps and Pair(first, timed(1.15, p20=1.1, p80=1.2)).overlaps


def test_a_call_is_named_with_all_that_makes_it_one() -> None:
    plain = timed(1.0)
    assert call_words(plain) == "B = 2, H = 4, N = 512, d = 64, fp16, tiles 64 × 64"
    other = replace(
        plain, pass_="bwd", causal="top_left", dropout_p=0.1, nheads_kv=2, seqlen_k=256,
        block_m=None, block_n=None, block_mask="local 64x64", density=0.5, inputs="outliers",
    )  # fmt: skip
    assert call_words(other) == (
        "B = 2, H = 4, H_kv = 2, N_q = 512, N_k = 256, d = 64, fp16, bwd, causal (top_left), "
        "dropout 0.1, block mask local 64x64, density 0.5, outliers inputs"
    )

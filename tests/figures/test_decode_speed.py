"""The README's numbers on decoding are those of a run of kind "decode", and nothing without one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from fa_kernels.device import device
from fa_kernels.figures import decode_speed as subject
from fa_kernels.figures.decode_speed import decode_run_on, decoding, tb_per_s
from fa_kernels.measure.decode_points import LAYERS, DecodePoint, points
from fa_kernels.measure.point import Contender, row_of
from fa_kernels.measure.records import OURS, Row, Run

FIRST = points()[0]
SHORT = next(p for p in points() if p.attention.seqlen_k == 1024)


def row(point: DecodePoint, provider: str, variant: str, ms: float) -> Row:
    contender = Contender(provider, variant, None, 0, lambda *a: print, lambda p: None)
    made = row_of(point.attention, contender, "latency_ms", value=ms, error=1e-4)
    return replace(made, pass_="decode", n=20)


def rows() -> Iterator[Row]:
    """Two points; the k/v bytes of the first are 2^28."""
    yield row(FIRST, OURS, "decode_split_kv", 0.1)
    yield row(FIRST, OURS, "decode_split_kv_page64", 0.2)
    yield row(FIRST, OURS, "decode_split_kv_splits1", 0.01)  # not what a call takes
    yield row(FIRST, "torch_cudnn", "sdpa", 0.4)
    yield row(FIRST, "fa3", "flash_attn_func", 0.8)
    yield row(FIRST, "fa3", "flash_attn_with_kvcache", 0.4)
    yield row(SHORT, OURS, "decode_split_kv", 0.02)
    yield row(SHORT, OURS, "decode_split_kv_graph", 0.0123)
    yield row(SHORT, OURS, f"decode_split_kv_graph{LAYERS}", 0.0045)
    yield row(SHORT, OURS, "decode_split_kv_page64_graph", 0.001)


RUN = Run("20270101-h200-decode", {"device": "NVIDIA H200", "kind": "decode"}, tuple(rows()))


def test_rates_are_bytes_of_the_cache_by_the_least_time() -> None:
    assert FIRST.kv_bytes == 2**28
    assert tb_per_s(RUN, FIRST, OURS, "decode_split_kv") == pytest.approx(2.68435456)
    assert tb_per_s(RUN, FIRST, "fa3") == pytest.approx(2**28 / 0.4e9), "the faster function"
    assert tb_per_s(RUN, FIRST, "torch_flash") is None


def test_the_table_has_a_line_for_each_point_that_was_timed() -> None:
    text = decoding(RUN)
    assert "| 1 | 65536 | 32 / 8 | 128 | 2.68 | 1.34 |  | 0.67 | 0.67 |" in text.splitlines()
    assert text.count("\n| 1 | ") == 2 and "16384" not in text
    assert f"`{RUN.run_id}`" in text and "NVIDIA H200" in text
    assert max(len(line) for line in text.splitlines() if "|" not in line) <= 100


def test_graphs_are_told_below_it() -> None:
    last = " ".join(decoding(RUN).split("\n\n")[-1].splitlines())
    assert last.startswith("Alone in a CUDA graph a step of B = 1, N_k = 1024 takes 12.3 µs; as")
    assert f"one of {LAYERS} in a CUDA graph" in last and "takes 4.5 µs (cold L2)" in last
    without = replace(RUN, rows=tuple(r for r in RUN.rows if "graph" not in r.variant))
    assert "graph" not in decoding(without)


def test_without_a_run_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decoding(None) == "" == decoding(replace(RUN, rows=()))
    monkeypatch.setattr(subject, "list_runs", lambda kind: [RUN.run_id])
    monkeypatch.setattr(subject, "load_run", lambda run_id: RUN)
    assert decode_run_on(device("h200")) is RUN
    monkeypatch.setattr(subject, "load_run", lambda run_id: replace(RUN, about={"device": "X"}))
    assert decode_run_on(device("h200")) is None

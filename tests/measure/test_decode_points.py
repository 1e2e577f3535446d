"""The points of a run of decoding steps, their names and their bytes."""

from __future__ import annotations

import pytest

from fa_kernels.measure.decode_points import LAYERS, PAGES, PEERS, SPLITS, Ours, points
from fa_kernels.problem import AttentionProblem
from tests.cuda.fake_decode import install

SMALL = AttentionProblem(2, 4, 2, 80, 16, "float16", "bottom_right", nheads_kv=2)


def test_the_points_are_those_that_were_promised() -> None:
    every = points()
    sizes = {(p.attention.batch, p.attention.seqlen_k, p.attention.nheads, p.attention.nheads_kv,
              p.attention.head_dim) for p in every}  # fmt: skip
    assert sizes >= {
        (1, 65536, 32, 8, 128), (16, 8192, 32, 8, 128), (64, 4096, 32, 8, 128),
        (16, 8192, 32, 32, 128), (128, 2048, 16, 16, 64), (1, 1024, 32, 8, 128),
    }  # fmt: skip
    for point in every:
        assert Ours() in point.ours, "contiguous beside it"
        assert set(point.peers) <= set(PEERS)
    assert sum({Ours(n) for n in PAGES} <= set(p.ours) for p in every) == 5
    assert any({o.num_splits for o in p.ours} >= set(SPLITS) for p in every)
    (short,) = (p for p in every if p.attention.seqlen_k == 1024)
    assert {o.layers for o in short.ours} == {0, 1, LAYERS}
    assert {p.attention.seqlen_q for p in every} == {1, 4}
    assert {p.attention.window for p in every} == {None, (4096, 0)}


def test_no_two_rows_of_a_run_are_of_one_name() -> None:
    keys = [(p.recorded, name) for p in points() for name in p.names()]
    assert len(keys) == len(set(keys)) == sum(len(p.ours) for p in points())


def test_the_bytes_of_a_point_are_those_of_its_cache() -> None:
    of = {(p.attention.batch, p.attention.nheads_kv, p.attention.seqlen_k, p.attention.window):
          p.kv_bytes for p in points()}  # fmt: skip
    assert of[1, 8, 65536, None] == 65536 * 8 * 128 * 2 * 2
    assert of[16, 8, 8192, (4096, 0)] == 16 * 4097 * 8 * 128 * 2 * 2


def test_details_say_how_it_was_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    assert Ours(64, 7).detail(SMALL) == "pages of 64, num_splits 7"
    assert "contiguous, num_splits" in Ours().detail(SMALL)
    assert Ours(layers=1).detail(SMALL).endswith("one step in a CUDA graph")
    assert "one of 32 steps in a CUDA graph, each on its own cache" in Ours(layers=32).detail(SMALL)
    assert Ours(16, 2, 1).name(4096) == "decode_split_kv_window4096_page16_splits2_graph"

"""A run of decoding steps: the real run and the real calls, a fake GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fa_kernels import __main__ as cli
from fa_kernels.cuda import launch
from fa_kernels.measure import baselines, decode_run, sweep, timing
from fa_kernels.measure.check import Truth
from fa_kernels.measure.decode_points import LAYERS, PEERS, DecodePoint, Ours, points
from fa_kernels.measure.decode_run import contenders, in_pages
from fa_kernels.measure.point import Contender, row_of
from fa_kernels.measure.records import OURS, Row, Run, load_run
from fa_kernels.problem import AttentionProblem
from tests.cuda.fake_decode import Gpu, install, on_gpu
from tests.measure.slow_sweep import describe
from tests.reference.problems import random_inputs

SMALL = AttentionProblem(2, 4, 2, 80, 16, "float16", "bottom_right", nheads_kv=2)
WAYS = (Ours(), Ours(16), Ours(32, 3), Ours(num_splits=2), Ours(layers=1), Ours(64, layers=3))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """An H200 whose decoding kernels do what they say, also of a call that was laid out before."""

    def prepared(q: Any, k: Any, v: Any, *rest: Any) -> Any:
        *new, table, lengths, step, splits = rest
        assert new == [None, None]

        def again(*given: Any) -> Any:
            assert [id(x) for x in given[:3]] == [id(q), id(k), id(v)] and given[-1] is lengths
            return decode_run.run_decode(q, k, v, lengths, step, splits, block_table=table)[:2]

        return again

    monkeypatch.setattr(decode_run, "prepare_decode", prepared)
    return install(monkeypatch)


class FakeMeasure:
    """Stands in for `measure_problem`: a row for every contender."""

    def __init__(self) -> None:
        self.seen: list[tuple[AttentionProblem, list[Contender]]] = []

    def __call__(
        self, problem: AttentionProblem, found: Sequence[Contender], flush: Any
    ) -> Iterator[Row]:
        self.seen.append((problem, list(found)))
        for contender in found:
            contender.refuse(problem)
            detail = contender.name_kernels(lambda: None) if contender.provider == OURS else ""
            row = row_of(problem, contender, "latency_ms", value=3.2, error=1e-4, detail=detail)
            yield replace(row, n=20)


@pytest.fixture
def measured(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> FakeMeasure:
    """Every package but torch's is there; nothing is timed."""
    fake, versions = FakeMeasure(), {"torch": "2.11.0", "fa3-fwd": "0.0.3"}
    monkeypatch.setattr(baselines, "_version", versions.get)
    monkeypatch.setattr(decode_run, "measure_problem", fake)
    monkeypatch.setattr(sweep, "describe_run", describe)
    monkeypatch.setattr(launch, "available", lambda: True)
    monkeypatch.setattr("fa_kernels.measure.point.current_arch", lambda: "sm_90")
    monkeypatch.setattr(decode_run, "load_in_parallel", lambda plans: len(list(plans)))
    monkeypatch.setattr(timing, "Flush", lambda: "cold")
    monkeypatch.setattr(decode_run, "host_rows", lambda say: iter(()))
    load_run.cache_clear()
    return fake


def read(root: Path) -> Run:
    load_run.cache_clear()
    return load_run("20260102-h200-decode", root)


# -- the calls that are timed ---------------------------------------------------------------


@pytest.mark.parametrize("ours", WAYS, ids=lambda ours: ours.name(None))
def test_what_is_timed_is_attention(gpu: Gpu, ours: Ours) -> None:
    point = DecodePoint(SMALL, (ours,), ())
    inputs = [on_gpu(x) for x in random_inputs(SMALL, "float16")]
    (contender,) = contenders(point, ())
    call = contender.prepare(*inputs, SMALL)
    gpu.launches.clear()
    out, lse = call()
    check = Truth([x.get() for x in inputs], SMALL, xp=np).check(out.get(), lse.get())
    assert check.ok, check
    steps = gpu.entries.count("decode_split_kv_attend")
    assert steps == max(1, ours.layers)
    of_keys = [args for _, step, args in gpu.launches if step.entry == "decode_split_kv_attend"]
    caches = {args[2].ctypes.data for args in of_keys}
    assert len(caches) == steps, "each layer has a cache of its own"


@pytest.mark.usefixtures("gpu")
def test_bytes_are_counted_and_held_against_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [on_gpu(x) for x in random_inputs(SMALL, "float16")]
    contiguous, paged = contenders(DecodePoint(SMALL, (Ours(), Ours(16)), ()), ())
    assert contiguous.count is not None and paged.count is not None
    counted = [c.count(*inputs, SMALL) for c in (contiguous, paged)]  # type: ignore[misc]
    assert counted[0].of("k") == counted[1].of("k") == 2 * 2 * 80 * 16 * 2
    assert (counted[0].of("mask"), counted[1].of("mask")) == (0, 2 * 2 * 5 * 4)
    monkeypatch.setattr("tests.cuda.fake_decode._add", lambda totals, hbm: None)
    with pytest.raises(RuntimeError, match="differ from the model"):
        contiguous.count(*inputs, SMALL)


@pytest.mark.usefixtures("gpu")
def test_pages_hold_what_the_cache_does() -> None:
    step = Ours(32).problem(SMALL)
    cache = on_gpu(random_inputs(SMALL, "float16")[1])
    order = np.random.default_rng(1).permutation(6)
    pages = in_pages(cache, order, step).get()
    for b, table in enumerate(order.reshape(2, 3)):
        whole = np.concatenate(list(pages[table]), axis=1)
        np.testing.assert_array_equal(whole[:, :80], cache[b])
        assert not whole[:, 80:].any()


def test_the_cost_of_a_call_is_that_of_one_token(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """With CuPy arrays and, where torch is, with its tensors; each call appends its token."""
    costs: list[str] = []

    def host_cost(call: Any) -> Any:
        costs.append(type(call()).__name__)
        return timing.Latency(1.0, 2.0, 3.0, 20)

    small = DecodePoint(replace(SMALL, seqlen_q=1), (Ours(),), ())
    monkeypatch.setattr(decode_run, "points", lambda: [small])
    monkeypatch.setattr(decode_run, "host_cost_us", host_cost)
    monkeypatch.setattr(decode_run, "random_inputs", lambda p: [
        on_gpu(x) for x in random_inputs(p, p.dtype)])  # fmt: skip
    monkeypatch.setattr(decode_run, "tensors", lambda *arrays: list(arrays))
    for versions, kinds in (({}, ["CuPy arrays"]),
                            ({"torch": "2"}, ["CuPy arrays", "torch tensors"])):  # fmt: skip
        monkeypatch.setattr(baselines, "_version", versions.get)
        gpu.launches.clear()
        rows = list(decode_run.host_rows(lambda text: None))
        assert [row.detail for row in rows] == kinds
        assert {(r.metric, r.median, r.pass_, r.variant) for r in rows} == {
            ("launch_us", 2.0, "decode", "decode_split_kv")
        }
        assert gpu.entries[:2] == ["decode_split_kv_append", "decode_split_kv_attend"]
    assert costs == ["CupyArray"] * 3


# -- the run --------------------------------------------------------------------------------


def test_a_run_of_every_point(
    measured: FakeMeasure, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["measure", "--decode", "--out", str(tmp_path)]) == 0
    run = read(tmp_path)
    assert run.kind == "decode" and run.about["packages"] == {"fa3-fwd": "0.0.3"}
    assert "A decoding step" in run.about["method"]
    assert {row.pass_ for row in run.rows} == {"decode"}
    assert len(measured.seen) == len(points())
    names = {row.variant for row in run.select(provider="fa3")}
    assert names == {"flash_attn_func", "flash_attn_with_kvcache"}
    assert {row.provider for row in run.rows} == {OURS, *PEERS}
    (layers,) = run.select(variant=f"decode_split_kv_graph{LAYERS}")
    assert layers.median == pytest.approx(3.2 / LAYERS), "the time of one step"
    windowed = [r for r in run.rows if "window" in r.variant]
    assert len(windowed) == 2 and {r.causal for r in windowed} == {"bottom_right"}
    said = capsys.readouterr().out
    assert "decode_split_kv 3200.0 us (0.08 TB/s)" in said, said
    assert "pages of 64" in run.select(variant="decode_split_kv_page64")[0].detail


def test_it_goes_on_where_it_stopped(measured: FakeMeasure, tmp_path: Path) -> None:
    out = ["measure", "--decode", "--out", str(tmp_path)]
    assert cli.main([*out, "--minutes", "0"]) == 0
    assert not measured.seen
    for _ in range(2):
        assert cli.main([*out, "--resume", "20260102-h200-decode"]) == 0
    assert len(measured.seen) == len(points())


def test_peers_that_are_not_installed_are_left_out(
    measured: FakeMeasure,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(baselines, "_version", lambda name: None)
    assert cli.main(["measure", "--decode", "--out", str(tmp_path)]) == 0
    assert {row.provider for row in read(tmp_path).rows} == {OURS} and measured.seen
    assert "not installed: torch_flash, torch_cudnn, fa3" in capsys.readouterr().out


def test_options_of_other_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--decode takes no seqlens"):
        cli.main(["measure", "--decode", "--seqlens", "64", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="--speed and --decode are runs of different kinds"):
        cli.main(["measure", "--decode", "--speed"])


def test_torchs_peers_are_told_of_grouped_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    asked: list[dict[str, Any]] = []
    monkeypatch.setitem(sys.modules, "cupy", np)

    def sdpa(q: Any, k: Any, v: Any, **options: Any) -> Any:
        asked.append(options)
        return q

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", sdpa)
    plain = AttentionProblem(1, 4, 1, 8, 16, "float32")
    for problem in (plain, replace(plain, nheads_kv=2)):
        baselines.BASELINES["torch_math"].prepare(*random_inputs(problem, "float32"), problem)()
    assert ["enable_gqa" in options for options in asked] == [False, True]

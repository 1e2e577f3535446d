"""Errors against float64 on record: inputs as they are called, what is exact, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fa_kernels import __main__ as cli
from fa_kernels.cuda import launch
from fa_kernels.measure import numerics, records
from fa_kernels.measure.numerics import (
    DTYPES,
    EXACT,
    HEAD_DIMS,
    INPUTS,
    RISE,
    SEQLENS,
    Case,
    cases,
    flash_on_tensor_cores,
    measure_case,
    numpy_contenders,
    record_numerics,
)
from fa_kernels.measure.records import Row, load_run
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.flash import flash_q_outer
from fa_kernels.tiling import Tiling
from fa_kernels.variants import VARIANTS

PROBLEM = AttentionProblem(1, 4, 32, 512, 64, "float16")


def measured(case: Case) -> dict[str, Row]:
    rows = list(measure_case(case, numpy_contenders(case.problem), case.draw(), np))
    assert {row.inputs for row in rows} == {case.inputs}
    return {row.series: row for row in rows if row.metric == "rmse"}


def test_every_dtype_n_d_and_distribution_is_a_case() -> None:
    for backend in ("cuda", "numpy"):
        found = cases(backend)
        assert len(set(found)) == len(SEQLENS) * len(HEAD_DIMS) * len(DTYPES) * len(INPUTS)
    assert all(case.problem.seqlen_q == case.problem.seqlen_k for case in cases("cuda"))


def test_outliers_are_rare_and_ten_times_as_wide() -> None:
    _, k, _ = Case(PROBLEM, "outliers").draw()
    large = np.abs(k) > 6  # N(0, 1) has two in a thousand million
    assert 0.1e-3 < large.mean() < 1e-3
    assert not (np.abs(Case(PROBLEM, "normal").draw()[1]) > 6).any()


@pytest.mark.parametrize(
    ("keys", "dtype"), [(128, "float16"), (8192, "float16"), (8192, "bfloat16")]
)
def test_rising_scores_move_the_maximum_in_nearly_every_tile(keys: int, dtype: str) -> None:
    problem = replace(PROBLEM, seqlen_k=keys, dtype=dtype)
    q, k, _ = (x.astype(np.float64) for x in Case(problem, "rising").draw())
    s = problem.scale * (q @ np.swapaxes(k, -1, -2))
    tiles = s.reshape(*s.shape[:-1], keys // 64, 64).max(axis=-1)
    moved = np.diff(np.maximum.accumulate(tiles, axis=-1), axis=-1) > 0
    assert moved.mean() > 0.99
    assert np.median(s[..., -1] - s[..., 0]) == pytest.approx(RISE, rel=0.02)


def test_the_same_inputs_are_drawn_for_every_dtype() -> None:
    wide = Case(replace(PROBLEM, dtype="float32"), "outliers").draw()
    narrow = Case(PROBLEM, "outliers").draw()
    for x, y in zip(wide, narrow, strict=True):
        np.testing.assert_allclose(x, y.astype(np.float32), rtol=2**-11, atol=2**-24)


@pytest.mark.parametrize("inputs", INPUTS)
def test_flash_is_as_near_as_the_dtype_allows_and_standard_is_not(inputs: str) -> None:
    found = measured(Case(PROBLEM, inputs))
    assert set(found) == {EXACT, *(n for n, v in VARIANTS.items() if "float16" in v.dtypes)}
    rmse = {name: row.median or 0.0 for name, row in found.items()}
    for name in ("flash_q_outer", "flash_kv_outer"):
        assert rmse[name] == pytest.approx(rmse[EXACT], rel=0.02)
    assert rmse["flash_q_outer"] < rmse["flash_mma"] < 2 * rmse[EXACT] < rmse["standard_tiled"]
    for row in found.values():
        assert row.max_abs_err is not None and row.max_abs_err >= (row.median or 0.0)
        assert row.status == "ok" and "32 of 32 rows checked" in row.detail


def test_in_fp32_the_order_of_the_sums_is_all_that_differs() -> None:
    found = measured(Case(replace(PROBLEM, dtype="float32"), "normal"))
    errors = [found[name].median or 0.0 for name in ("standard_tiled", "flash_q_outer")]
    assert max(errors) < 3 * min(errors)
    assert min(errors) > (found[EXACT].median or 0.0)


def test_without_rounding_of_p_the_tensor_cores_are_flash() -> None:
    """In fp32 P is stored as it is: then both are the same algorithm."""
    problem = replace(PROBLEM, dtype="float32", seqlen_k=200)
    q, k, v = Case(problem, "normal").draw()
    mine, lse = flash_on_tensor_cores(q, k, v, problem, Tiling(32, 64))
    theirs, want = flash_q_outer(q, k, v, problem, Tiling(32, 64))
    np.testing.assert_allclose(mine, theirs, atol=1e-6)
    np.testing.assert_allclose(lse, want, atol=1e-5)


def test_what_is_not_finite_or_refused_is_a_row_that_says_so() -> None:
    case = Case(PROBLEM, "normal")
    (whole, *_) = numpy_contenders(PROBLEM)

    def gives(change: Callable[[], Any]) -> Row:
        contender = replace(whole, prepare=lambda *_: change)
        return list(measure_case(case, [contender], case.draw(), np))[-1]

    bad = gives(lambda: np.full((1, 4, 32, 64), np.nan, np.float16))
    assert (bad.status, bad.median) == ("failed", None) and "not finite" in bad.detail

    def refuses() -> Any:
        raise NotImplementedError("no such kernel")

    refused = gives(refuses)
    assert refused.status == "refused" and "no such kernel" in refused.detail
    assert refused.inputs == "normal"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics, "SEQLENS", (64, 128))
    monkeypatch.setattr(numerics, "HEAD_DIMS", (16,))
    monkeypatch.setattr(numerics, "DTYPES", ("float16", "float32"))


@pytest.mark.usefixtures("small")
def test_a_run_is_resumed_where_it_stopped_and_says_what_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, finished = record_numerics(tmp_path, "numerics", "x", seconds=-1, backend="numpy")
    assert not finished
    run_id = folder.name
    assert cli.main(
        ["measure", "--numerics", "--backend", "numpy", "--out", str(tmp_path), "--resume", run_id]
    ) == 0  # fmt: skip
    assert "12 cases to do" in capsys.readouterr().out
    load_run.cache_clear()
    run = load_run(run_id, tmp_path)
    assert run.kind == "numerics" and run.device == f"CPU (NumPy {np.__version__})"
    assert run.about["cpu"] and run.about["cupy"] is None and "NumPy" in run.about["method"]
    assert {row.inputs for row in run.rows} == set(INPUTS)
    _, finished = record_numerics(tmp_path, "numerics", "x", run_id, backend="numpy", say=print)
    assert finished and "0 cases to do" in capsys.readouterr().out


@pytest.mark.usefixtures("small")
def test_on_a_gpu_kernels_and_peers_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With NumPy in CuPy's place, and references in that of kernels."""
    import sys

    def describe(command: str, method: str) -> dict[str, Any]:
        about = dict.fromkeys(records.RUN_KEYS, "x") | {"schema": records.SCHEMA_VERSION}
        return about | {"run_id": "20260102-h200-", "command": command, "method": method}

    plans: list[Any] = []
    monkeypatch.setitem(sys.modules, "cupy", np)
    monkeypatch.setattr("fa_kernels.measure.sweep.describe_run", describe)
    monkeypatch.setattr(launch, "available", lambda: True)
    monkeypatch.setattr(launch, "smem_limit_bytes", lambda: 227 * 1024)
    monkeypatch.setattr(numerics, "smem_limit_bytes", lambda: 227 * 1024)
    monkeypatch.setattr(numerics.memory, "free_pools", lambda: None)
    monkeypatch.setattr(numerics, "load_in_parallel", lambda todo: plans.__iadd__(todo))
    monkeypatch.setattr(numerics, "installed_peers", lambda: ("torch_cudnn",))
    monkeypatch.setattr("fa_kernels.measure.point.launch.refuse_on_this_gpu", lambda *_: None)
    monkeypatch.setattr(
        numerics, "our_contender", lambda v, t, p: numerics._in_numpy(v, v.reference, p, t)
    )
    assert cli.main(["measure", "--numerics", "--out", str(tmp_path)]) == 0
    run = load_run("20260102-h200-numerics", tmp_path)
    assert {row.seqlen_q for row in run.rows} == {64, 128} and plans
    assert {row.series for row in run.rows} == {EXACT, "torch_cudnn", *VARIANTS}
    # cuDNN computes on GPUs alone: a row says so, and the run goes on.
    peers = run.select(provider="torch_cudnn")
    assert {row.status for row in peers} == {"failed"} and {r.dtype for r in peers} == {"float16"}


def test_a_backend_is_asked_for_with_numerics_alone() -> None:
    with pytest.raises(SystemExit, match="--backend says where --numerics computes"):
        cli.main(["measure", "--speed", "--backend", "numpy"])

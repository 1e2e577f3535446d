"""Traces on disk: what is written is read back, to the bit; what is broken is named."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from fa_kernels.cuda.launch import available
from fa_kernels.measure import traces
from fa_kernels.measure.traces import TraceError, TraceProblem, differences, load, record, recorded
from fa_kernels.trace import Trace

PROBLEM = TraceProblem(12, 4, 3, 4, 4)
ABOUT = {"schema": 1, "run_id": "x-", "device": "NVIDIA H200", "commit": "abc", "started": "2026"}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that gives NumPy's numbers, and a GPU that describes itself."""
    real = TraceProblem.trace

    def trace(self: TraceProblem, backend: str) -> Trace:
        return dataclasses.replace(real(self, "numpy"), backend=backend)

    monkeypatch.setattr(TraceProblem, "trace", trace)
    monkeypatch.setattr(traces, "describe_run", lambda command, method: dict(ABOUT))


@pytest.mark.usefixtures("gpu")
def test_round_trip(tmp_path: Path) -> None:
    path = record(tmp_path / "new" / "20261130-h200.json", PROBLEM)
    found, want = load(path), PROBLEM.trace("cuda")
    assert (found.device, found.problem, found.name) == ("NVIDIA H200", PROBLEM, "20261130-h200")
    for field in dataclasses.fields(Trace):
        got, wanted = getattr(found.cuda, field.name), getattr(want, field.name)
        assert np.array_equal(got, wanted), field.name
        if isinstance(wanted, np.ndarray):
            assert got.dtype == wanted.dtype, field.name
    assert recorded(PROBLEM, tmp_path / "new") is not None
    assert recorded(TraceProblem(), tmp_path / "new") is None


@pytest.mark.usefixtures("gpu")
def test_infinities_survive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = PROBLEM.trace("numpy")
    masked = dataclasses.replace(made, m=np.full_like(made.m, -np.inf))
    monkeypatch.setattr(TraceProblem, "trace", lambda self, backend: masked)
    path = record(tmp_path / "a.json", PROBLEM)
    json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert load(path).cuda.m[0] == -math.inf


@pytest.mark.usefixtures("gpu")
def test_append_only(tmp_path: Path) -> None:
    path = record(tmp_path / "a.json", PROBLEM)
    with pytest.raises(FileExistsError, match="append-only"):
        record(path, PROBLEM)


@pytest.mark.usefixtures("gpu")
def test_a_wrong_kernel_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trace(self: TraceProblem, backend: str) -> Trace:
        steps, scale = np.arange(3, dtype=np.float32), 2.0 if backend == "cuda" else 1.0
        zero = np.zeros(3, np.int64)
        acc = np.full((3, 4), np.nan if backend == "cuda" else scale, np.float32)
        return Trace("flash_q_outer", backend, False, 0, 0, 3, zero, zero, steps, steps, steps, acc)

    monkeypatch.setattr(TraceProblem, "trace", trace)
    with pytest.raises(RuntimeError, match="not recorded"):
        record(tmp_path / "a.json", PROBLEM)
    assert not list(tmp_path.iterdir())


def test_differences_count_infinities_as_equal_only_to_themselves() -> None:
    made = PROBLEM.trace("numpy")
    low = dataclasses.replace(made, m=np.full_like(made.m, -np.inf))
    assert differences(low, low)["m"] == 0.0
    assert differences(low, made)["m"] == math.inf
    with pytest.raises(ValueError, match="different problems"):
        differences(made, TraceProblem(8, 4, 3, 4, 4).trace("numpy"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 2}, "schema 2"),
        ({"device": None}, "device is missing"),
        ({"problem": {"seqlen": 0}}, "seqlen = 0"),
        ({"problem": {"what": 1}}, "what"),
        ({"trace": {}}, "variant"),
        ({"trace": None}, "cannot be read"),
    ],
)
@pytest.mark.usefixtures("gpu")
def test_a_broken_file_is_named(tmp_path: Path, change: dict[str, object], words: str) -> None:
    path = record(tmp_path / "a.json", PROBLEM)
    content = json.loads(path.read_text(encoding="utf-8")) | change
    content = {key: value for key, value in content.items() if value is not None}
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(TraceError, match=words):
        load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"a\.json cannot be read"):
        load(tmp_path / "a.json")


def test_inputs_make_alpha_act() -> None:
    assert (TraceProblem().trace("numpy").alpha[1:] < 1).all()


@pytest.mark.gpu
@pytest.mark.skipif(not available(), reason="needs CuPy and a CUDA GPU")
@pytest.mark.parametrize("variant", ["flash_q_outer", "flash_kv_outer"])
def test_the_kernel_holds_what_numpy_holds(variant: str) -> None:
    problem = TraceProblem(variant=variant)
    apart = differences(problem.trace("cuda"), problem.trace("numpy"))
    assert max(apart.values()) < 1e-4

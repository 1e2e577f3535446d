"""`verify` must notice wrong kernels: wrong ones are put in, with NumPy in the GPU's place."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fa_kernels.cuda.compile import kernel_hash
from fa_kernels.measure import verify as subject
from fa_kernels.measure.cases import (
    DTYPES,
    HEAD_DIMS,
    LAYOUTS,
    MASKS,
    SEQLENS,
    Case,
    cases,
    make_inputs,
)
from fa_kernels.measure.verify import Tally, verify, write_verified
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.counter import count_traffic as count
from fa_kernels.variants import VARIANTS

FLASH = "04_flash_q_outer"
PROBLEM = AttentionProblem(2, 3, 33, 47, 20, "float16", "bottom_right")
CASES = [Case(PROBLEM, Tiling(16, 32)), Case(replace(PROBLEM, dtype="float32"), Tiling(33, 17))]


def test_the_cases_are_those_that_were_promised() -> None:
    every = list(cases())
    seen = {(c.problem.seqlen_q, c.problem.seqlen_k, c.problem.head_dim, c.problem.dtype,
             c.problem.causal) for c in every}  # fmt: skip
    for shape in ((1, 1), (17, 17), (113, 203), (1023, 1024), (239, 1)):
        assert shape in SEQLENS
    assert {1, 20, 63, 64, 96, 128, 256} <= set(HEAD_DIMS)
    promised = itertools.product(SEQLENS, HEAD_DIMS, DTYPES, MASKS)
    assert {(*shape, d, dtype, mask) for shape, d, dtype, mask in promised} <= seen
    assert {c.layout for c in every} == set(LAYOUTS)
    assert any(c.scale_inputs > 1 for c in every)
    assert any(c.problem.q_bytes // 2 > 2**31 for c in every), "offsets beyond 32 bits"
    assert any(c.problem.seqlen_q * c.problem.seqlen_k >= 2**32 for c in every)


def test_inputs_are_scaled_and_differ_by_seed() -> None:
    case = Case(AttentionProblem(1, 2, 100, 100, 32), Tiling(16, 16), scale_inputs=12.0)
    q, k, _ = make_inputs(case, 0, np)
    assert q.dtype == np.float16 and 11 < q.astype("f4").std() < 13
    assert (q != k).any() and (q != make_inputs(case, 1, np)[0]).any()


Run = Callable[..., tuple[Any, Any, Any]]


def honest(q: Any, k: Any, v: Any, p: Any, t: Any, *, count_traffic: bool = False) -> Any:
    reference = VARIANTS["flash_q_outer"].reference
    return *reference(q, k, v, p, t), count(reference, p, t) if count_traffic else None


def wrong_out(*args: Any, **options: Any) -> Any:
    out, lse, traffic = honest(*args, **options)
    out[0, 0, 5, 5] += np.float16(0.25)
    return out, lse, traffic


def wrong_lse(*args: Any, **options: Any) -> Any:
    out, lse, traffic = honest(*args, **options)
    return out, lse + np.float32(0.25), traffic


def forgotten_element(*args: Any, **options: Any) -> Any:
    """The pool's memory is poisoned with NaN before a call: an unwritten element stays NaN."""
    out, lse, traffic = honest(*args, **options)
    out[1, 2, -1, -1] = np.nan
    return out, lse, traffic


def other_with_counters(*args: Any, count_traffic: bool = False) -> Any:
    out, lse, traffic = honest(*args, count_traffic=count_traffic)
    return (np.nextafter(out, np.inf, dtype=out.dtype) if count_traffic else out), lse, traffic


def miscounted(*args: Any, count_traffic: bool = False) -> Any:
    out, lse, traffic = honest(*args, count_traffic=count_traffic)
    if traffic is not None:
        traffic.read_bytes["k"] += 2
    return out, lse, traffic


def crashing(*args: Any, **options: Any) -> Any:
    raise RuntimeError("cudaErrorIllegalAddress")


def copying(*args: Any, **options: Any) -> Any:
    import warnings

    warnings.warn("q's last axis is not contiguous, so it was copied once", stacklevel=2)
    return honest(*args, **options)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], tuple[dict[str, Tally], list[str]]]:
    """Runs `verify` on two cases with `run` as the flash kernel: tallies and what was said."""
    monkeypatch.setitem(sys.modules, "cupy", np)
    monkeypatch.setattr(subject, "precompile", lambda *a: 0)
    monkeypatch.setattr(subject, "smem_limit_bytes", lambda: 227 * 1024)
    monkeypatch.setattr(subject, "cases", lambda: iter(CASES))
    monkeypatch.setattr(subject, "_poison", lambda problem, variant: None)

    def with_run(run: Run) -> tuple[dict[str, Tally], list[str]]:
        monkeypatch.setitem(VARIANTS, "flash_q_outer", replace(VARIANTS["flash_q_outer"], run=run))
        said: list[str] = []
        return verify(["flash_q_outer"], said.append), said

    return with_run


def test_a_right_kernel_passes(gpu: Callable[[Run], Any]) -> None:
    tallies, said = gpu(honest)
    tally = tallies[FLASH]
    assert (list(tallies), tally.cases, tally.failures, tally.skipped) == ([FLASH], 6, 0, 0)
    assert not any(text.startswith("FAIL") for text in said)
    assert tally.max_out_err is not None and set(tally.max_out_err) == {"float16", "float32"}
    assert 0 < tally.max_out_err["float32"] < tally.max_out_err["float16"] < 0.01
    assert 0 < tally.worst_ratio <= 1.0


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        (wrong_out, "out error 0.25"),
        (wrong_lse, "lse error 0.25"),
        (forgotten_element, "out error inf"),
        (other_with_counters, "the output changes when the counters are compiled in"),
        (miscounted, "differ from the model"),
        (crashing, "RuntimeError: cudaErrorIllegalAddress"),
        (copying, "copied once"),
    ],
)
def test_a_wrong_kernel_fails_every_case_in_words(
    run: Run, sentence: str, gpu: Callable[[Run], Any]
) -> None:
    tallies, said = gpu(run)
    assert tallies[FLASH].failures >= 2
    failures = [text for text in said if text.startswith(f"FAIL {FLASH} Case")]
    assert len(failures) == 2 and all(sentence in text for text in failures), failures


def test_a_case_this_gpu_cannot_hold_is_counted_as_refused(
    gpu: Callable[[Run], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "smem_limit_bytes", lambda: 1024)
    tally = gpu(crashing)[0][FLASH]
    assert (tally.cases, tally.failures, tally.skipped) == (0, 0, 6)


def spreading(*args: Any, **options: Any) -> Any:
    """NaN in one query row reaches the row above."""
    out, lse, traffic = honest(*args, **options)
    for batch, head, row in np.argwhere(np.isnan(out).any(axis=-1)):
        out[batch, head, row - 1] = np.nan
    return out, lse, traffic


def test_a_kernel_that_spreads_nan_fails(gpu: Callable[[Run], Any]) -> None:
    tallies, said = gpu(spreading)
    assert tallies[FLASH].failures == 4, "NaN and inf, in two dtypes"
    assert "nan in one query row reaches another row (float16)" in said[1]


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match=r"variants \['flash'\] are not known: .*flash_q_outer"):
        verify(["flash"])


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> None:
    about = {"driver": "580", "nvrtc": "13.0", "cupy": "13.6"}
    monkeypatch.setattr(subject, "current_arch", lambda: "sm_90")
    monkeypatch.setattr(subject, "gpu_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(subject, "describe_run", lambda command, method: about)


@pytest.mark.usefixtures("described")
def test_the_record_says_what_was_run_where(tmp_path: Path) -> None:
    tally = Tally(cases=341, failures=1, skipped=3, worst_ratio=0.98765)
    path = write_verified({FLASH: tally}, "make verify", tmp_path / "new")
    record = json.loads(path.read_text())
    entry = record["kernels"][FLASH]
    assert (path.name, record["arch"], record["pending"]) == ("sm_90.json", "sm_90", {})
    assert (entry["cases"], entry["failures"], entry["refused_on_this_gpu"]) == (341, 1, 3)
    assert entry["hash"] == kernel_hash(FLASH)
    assert (entry["device"], entry["driver"]) == ("NVIDIA H200", "580")
    assert entry["command"] == "make verify"


@pytest.mark.usefixtures("described")
def test_verifying_one_kernel_keeps_the_others_of_that_folder(tmp_path: Path) -> None:
    write_verified({"02_standard_tiled": Tally(cases=5)}, "", tmp_path)
    path = tmp_path / "sm_90.json"
    record = json.loads(path.read_text())
    record["pending"] = {FLASH: "new loads", "05_flash_mma": "no GPU yet"}
    path.write_text(json.dumps(record))
    write_verified({FLASH: Tally(cases=7)}, "", tmp_path)
    record = json.loads(path.read_text())
    assert {name: entry["cases"] for name, entry in record["kernels"].items()} == {
        "02_standard_tiled": 5, FLASH: 7,
    }  # fmt: skip
    assert record["pending"] == {"05_flash_mma": "no GPU yet"}

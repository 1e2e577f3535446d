"""`verify` must notice a wrong decoding kernel: wrong ones are put in, NumPy in the GPU's place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fa_kernels.cuda.run_decode import DECODE_KERNEL, DTYPES, planned
from fa_kernels.decode_problem import DecodeProblem
from fa_kernels.measure import sanitize, verified_run
from fa_kernels.measure import verify_decode as subject
from fa_kernels.measure.decode_cases import (
    HEAD_DIMS,
    LAYOUTS,
    PAGES,
    TOTALS,
    DecodeCase,
    decode_cases,
    make_decode_inputs,
    small_decode_cases,
)
from fa_kernels.measure.tally import Share, Tally
from tests.cuda.fake_decode import Gpu, install

PLAIN = DecodeProblem(3, 4, 2, 2, 1, 64, 16, "float16")
CASES = [
    DecodeCase(PLAIN, (1, 33, 64), 1),
    DecodeCase(replace(PLAIN, max_seqlen=None, page_size=16, max_pages=4), (1, 33, 64), 3),
    DecodeCase(replace(PLAIN, seqlen_new=0, dtype="bfloat16"), (0, 1, 64), 2),
    DecodeCase(replace(PLAIN, head_dim=256), (1, 33, 64), 2, little_smem=True),
]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    monkeypatch.setattr(subject, "decode_cases", lambda: iter(CASES))
    monkeypatch.setattr(subject, "load_in_parallel", lambda plans, threads: len(list(plans)))
    monkeypatch.setattr(subject, "smem_limit_bytes", lambda: 227 * 1024)
    monkeypatch.setattr("fa_kernels.measure.verify.REPEATS", 3)
    return install(monkeypatch)


def verified(say: Callable[[str], None] = print) -> Tally:
    tally = Tally(say=say)
    subject.verify_decode(DECODE_KERNEL, Share(), tally)
    return tally


def test_the_cases_are_those_that_were_promised() -> None:
    every = list(decode_cases())
    assert {c.problem.head_dim for c in every} >= set(HEAD_DIMS)
    assert {c.problem.page_size for c in every} >= {None, *PAGES}
    assert {c.problem.dtype for c in every} == set(DTYPES)
    assert {c.layout for c in every} == set(LAYOUTS)
    assert {c.num_splits for c in every} >= {1, 2, 3, 128}
    assert {c.problem.group for c in every} >= {1, 4, 8}
    assert any(0 in c.totals for c in every) and any(c.scale_inputs > 1 for c in every)
    assert any(c.problem.seqlen_q > min(c.totals) for c in every), "rows before the first token"
    assert any(c.problem.left == 0 and c.problem.paged for c in every)
    warps = {planned(c.problem, c.num_splits, **c.builds).macros["WARPS"] for c in every}
    assert warps == {2, 4}, "also those that a GPU with less shared memory has"
    assert {c.problem.seqlen_new > 0 for c in every} == {False, True}
    for case in every:
        assert max(case.totals) <= case.problem.capacity
        assert min(case.totals) >= case.problem.seqlen_new
    ends = [c.problem.cache_bytes // 2 // c.problem.itemsize for c in every]
    assert max(ends) > 2**31, "offsets beyond 32 bits"
    assert TOTALS[0] == 0


def test_an_honest_kernel_passes(gpu: Gpu) -> None:
    tally = verified()
    assert (tally.failures, tally.skipped) == (0, 0)
    assert tally.cases == len(CASES) + 28
    errors = tally.variants[subject.DECODE]
    assert set(errors.max_abs_err["out"]) == set(DTYPES) and 0 < errors.worst_ratio <= 1
    assert gpu.entries.count("decode_split_kv_append") > 0
    assert {plan.macros["WARPS"] for plan, _, _ in gpu.launches} == {2, 4}


def wrong(kernels: dict[str, Any], entry: str, change: Callable[[list[Any]], None]) -> None:
    """Let `change` act on the arguments of one kernel after its launch."""
    honest = kernels[entry]

    def run(plan: Any, args: list[Any]) -> None:
        kept = list(args)
        honest(plan, args)
        change(kept)

    kernels[entry] = run


def scaled(args: list[Any]) -> None:
    args[6][...] *= 1.05  # out


def last_sequence_scaled(args: list[Any]) -> None:
    args[6][-1] *= 1.05


def lse_in_log2(args: list[Any]) -> None:
    args[8][...] *= 1.4427


def writes_the_next_token_too(args: list[Any]) -> None:
    args[4][:, :, -1] = 0.5


def forgets_the_new_value(args: list[Any]) -> None:
    args[6][...] = np.nan


FAULTS: dict[str, tuple[str, Callable[[list[Any]], None], str]] = {
    "scaled": ("decode_split_kv_attend", scaled, "out error"),
    "one sequence": ("decode_split_kv_attend", last_sequence_scaled, "out error"),
    "lse": ("decode_split_kv_attend", lse_in_log2, "lse error"),
    "cache": ("decode_split_kv_append", writes_the_next_token_too, "the cache of k does not hold"),
    "value": ("decode_split_kv_append", forgets_the_new_value, "the cache of v does not hold"),
}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_kernel_fails(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, change, said = FAULTS[name]
    kernels = dict(__import__("tests.cuda.fake_decode", fromlist=["_KERNELS"])._KERNELS)
    wrong(kernels, entry, change)
    monkeypatch.setattr("tests.cuda.fake_decode._KERNELS", kernels)
    monkeypatch.setattr(subject, "_more", lambda: iter(()))
    heard: list[str] = []
    assert verified(heard.append).failures > 0
    assert any(said in text for text in heard), heard


@pytest.mark.usefixtures("gpu")
def test_wrong_counters_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.cuda.fake_decode._add", lambda totals, hbm: None)
    monkeypatch.setattr(subject, "_more", lambda: iter(()))
    heard: list[str] = []
    assert verified(heard.append).failures == len(CASES)
    assert all("differ from the model" in text for text in heard)


@pytest.mark.usefixtures("gpu")
def test_a_graph_that_reads_the_lengths_too_early_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that would hold the lengths of the capture."""
    launch = Gpu.launch

    def early(self: Gpu, plan: Any, step: Any, args: Any) -> None:
        copied = [a.copy() if getattr(a, "dtype", None) == np.int32 and a.ndim == 1 else a
                  for a in args]  # fmt: skip
        launch(self, plan, step, copied if self.capturing else args)

    monkeypatch.setattr(Gpu, "launch", early)
    gpu = install(monkeypatch)
    assert not gpu.launches
    assert "out of a graph is another" in "".join(subject.graph_agrees("float16", False, 3))


@pytest.mark.usefixtures("gpu")
def test_nan_that_spreads_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = dict(__import__("tests.cuda.fake_decode", fromlist=["_KERNELS"])._KERNELS)

    def spread(args: list[Any]) -> None:
        if np.isnan(args[0].astype(np.float32)).any():
            args[9][...] = np.nan  # the partial out of every row

    wrong(kernels, "decode_split_kv_attend", spread)
    monkeypatch.setattr("tests.cuda.fake_decode._KERNELS", kernels)
    faults = subject.nan_leaves_its_decode_row("float16", np.nan, 9)
    assert faults == ["nan in one query row reaches another row (float16)"]


@pytest.mark.usefixtures("gpu")
def test_inputs_are_nan_where_there_is_no_token() -> None:
    for layout in LAYOUTS:
        case = replace(CASES[0], layout=layout)
        inputs = make_decode_inputs(case, 0)
        assert inputs.k.shape == PLAIN.cache_shape
        assert inputs.k.strides[-1] == 2
        for b, total in enumerate(case.totals):
            wide = inputs.k[b].astype(np.float32)
            assert np.isnan(wide[:, total - 1 :]).all() and np.isfinite(wide[:, : total - 1]).all()
    assert np.isfinite(inputs.k_all.astype(np.float32)).all()


def test_shares_take_every_case_once(gpu: Gpu) -> None:
    parts = [Tally() for _ in range(3)]
    for i, part in enumerate(parts):
        subject.verify_decode(DECODE_KERNEL, Share(i, 3), part)
    assert sum(part.cases for part in parts) == len(CASES) + 28
    assert gpu.launches


def test_verify_knows_the_kernel_by_name(gpu: Gpu) -> None:
    assert verified_run.kernels_of(["decode_split_kv"]) == [DECODE_KERNEL]
    assert DECODE_KERNEL not in verified_run.kernels_of(["flash_mma"])
    with pytest.raises(ValueError, match="name any of .*decode_split_kv"):
        verified_run.kernels_of(["decode"])
    found = dict(verified_run.verify([DECODE_KERNEL], lambda text: None))
    assert found[DECODE_KERNEL].failures == 0 and gpu.launches


def test_the_sanitizer_sees_small_steps(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitize, "small_cases", lambda: iter(()))
    launches = sanitize.launch_small_cases()
    assert launches == len(gpu.launches) > len(list(small_decode_cases()))

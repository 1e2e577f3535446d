"""Timing a drawn mask: checked first, beside the dense call, never a wrong result."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda.launch import available
from fa_kernels.measure import live
from fa_kernels.measure.check import Truth
from fa_kernels.measure.live import MaskTiming, time_mask
from fa_kernels.measure.timing import Latency
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference.flash import flash_q_outer
from fa_kernels.tiling import Tiling

KEEP = np.tril(np.ones((4, 4), bool))
PROBLEM = AttentionProblem(1, 2, 64, 64, 16, "float16", block_mask=BlockMask(KEEP, 16, 16))


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No GPU: the kernel is its NumPy specification, and each call takes as long as it keeps."""
    called: list[str] = []

    def prepared(variant: Any, tiling: Tiling, problem: AttentionProblem) -> Any:
        def prepare(q: Any, k: Any, v: Any, p: AttentionProblem) -> Any:
            assert p == problem

            def call() -> Any:
                called.append("dense" if p.block_mask is None else "masked")
                return flash_q_outer(q, k, v, p, Tiling(16, 16))

            return call

        return SimpleNamespace(prepare=prepare)

    def interleaved(calls: Any, flush: Any, first: Any, cancelled: Any) -> list[Latency | None]:
        for call in calls:
            call()
        return [Latency(ms, ms, ms, 3) for ms in first]

    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((1, 2, 64, 16)).astype(np.float16) for _ in range(3)]
    monkeypatch.setattr(live, "our_contender", prepared)
    monkeypatch.setattr(live, "random_inputs", lambda problem: inputs)
    monkeypatch.setattr(live, "Truth", lambda *given: Truth(*given, xp=np))
    monkeypatch.setattr(live, "time_once", lambda call, flush: float(bool(call())) * len(called))
    monkeypatch.setattr(live, "time_interleaved", interleaved)
    monkeypatch.setattr(live, "Flush", lambda: None)
    monkeypatch.setattr(live, "smem_limit_bytes", lambda: 227 * 1024)
    monkeypatch.setattr(live, "gpu_arch", lambda: 90)
    monkeypatch.setattr(live, "refuse_memory", lambda what, need: None)
    monkeypatch.setattr(live, "free_pools", lambda: called.append("freed"))
    return called


def test_the_masked_result_is_checked_then_both_are_timed_in_turns(times: list[str]) -> None:
    told: list[str] = []
    (timing,) = time_mask(PROBLEM, lambda fraction, text: told.append(text))
    assert isinstance(timing, MaskTiming) and timing.problem == PROBLEM
    assert timing.variant == "flash_wgmma", "the fastest that sm_90 runs"
    assert times == ["masked", "dense", "masked", "dense", "masked", "freed"]
    assert (timing.dense.median, timing.masked.median) == (2.0, 3.0)
    assert 0 <= timing.error < 1e-2 and told == ["compiling", "checking", "timing"]


def test_a_wrong_result_is_never_timed(times: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = AttentionProblem(1, 2, 64, 64, 16, "float16")  # as if the mask were not looked at
    monkeypatch.setattr(live, "Truth", lambda inputs, _: Truth(inputs, wrong, xp=np))
    with pytest.raises(RuntimeError, match="the masked result is wrong: error"):
        list(time_mask(PROBLEM))
    assert times == ["masked", "freed"]


def test_cancel_times_nothing(times: list[str]) -> None:
    assert list(time_mask(PROBLEM, cancelled=lambda: True)) == [] and times == ["freed"]


@pytest.mark.gpu
@pytest.mark.skipif(not available(), reason="needs CuPy and a GPU")
def test_a_mask_is_timed_on_the_gpu() -> None:
    mask = BlockMask(np.tril(np.ones((16, 16), bool)), 128, 128)
    problem = AttentionProblem(1, 4, 2048, 2048, 64, "bfloat16", block_mask=mask)
    (timing,) = time_mask(problem)
    assert timing.dense.median > 0 and timing.masked.median > 0 and timing.error < 0.1

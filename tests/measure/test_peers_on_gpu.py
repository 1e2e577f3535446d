"""Peers on a GPU: each that is installed is right, and its kernels are named."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda.launch import available
from fa_kernels.measure import gpu_state, memory, timing
from fa_kernels.measure.baselines import BASELINES
from fa_kernels.measure.check import Truth
from fa_kernels.measure.kernel_names import kernels_of
from fa_kernels.measure.point import peer_contender, random_inputs
from fa_kernels.problem import AttentionProblem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not available(), reason="needs CuPy and a CUDA GPU"),
]


def call_of(name: str, problem: AttentionProblem) -> tuple[Any, list[Any]]:
    """The peer's call and its inputs; skips what is not installed or not for this."""
    if not BASELINES[name].installed:
        pytest.skip(f"{name} is not installed")
    try:
        peer_contender(BASELINES[name], problem).refuse(problem)
    except NotImplementedError as why:
        pytest.skip(str(why))
    inputs = random_inputs(problem)
    return BASELINES[name].prepare(*inputs, problem), inputs


@pytest.mark.parametrize("causal", [None, "bottom_right"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", BASELINES)
def test_a_peer_is_attention_and_names_its_kernels(
    name: str, dtype: str, causal: str | None
) -> None:
    problem = AttentionProblem(2, 4, 1024, 1024, 64, dtype, causal)
    call, inputs = call_of(name, problem)
    assert Truth(inputs, problem).check(call()).ok
    text = kernels_of(call)
    print(f"{name} {dtype} {causal}: {text}")
    assert text.startswith("kernels: ")


def test_flex_takes_a_block_mask() -> None:
    mask = BlockMask.pattern("local", 1024, 1024, 64, 128, 0.25)
    problem = AttentionProblem(2, 4, 1024, 1024, 64, "float16", block_mask=mask)
    call, inputs = call_of("flex", problem)
    assert Truth(inputs, problem).check(call()).ok


def test_a_warm_call_and_its_memory_are_read() -> None:
    problem = AttentionProblem(4, 16, 2048, 2048, 64, "float16")
    call, _ = call_of("torch_flash", problem)
    call()
    assert 0 < timing.time_once(call, timing.WarmL2()) < 100
    taken = memory.device_bytes(call)
    assert problem.q_bytes <= taken < 100 * problem.q_bytes, "at least its output"


def test_the_gpus_state_is_read() -> None:
    with gpu_state.watching() as readings:
        code = "import time; time.sleep(2.5)"
        subprocess.run([sys.executable, "-c", code], check=True)
    print(gpu_state.summarise(readings))
    assert readings and readings[0]["sm_mhz"] > 0 and readings[0]["temperature_c"] > 0

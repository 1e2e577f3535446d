"""What is timed of the fast backward passes, where, and against how many heads it is checked."""

from __future__ import annotations

import pytest

from fa_kernels.measure import speed_backward
from fa_kernels.measure.speed_backward import FIG2_LEFT, TILES, backward_plans
from fa_kernels.measure.speed_run import problems
from fa_kernels.problem import AttentionProblem
from fa_kernels.variants import FAST, VARIANTS


@pytest.fixture(autouse=True)
def an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed_backward, "smem_limit_bytes", lambda: 227 * 1024)


def test_the_first_papers_shape_comes_with_backward_passes_alone() -> None:
    assert FIG2_LEFT in problems() and FIG2_LEFT in problems(["bwd"])
    assert FIG2_LEFT not in problems(["fwd"]) and len(problems(["fwd"])) == 72
    sizes = (FIG2_LEFT.batch, FIG2_LEFT.nheads, FIG2_LEFT.seqlen_q, FIG2_LEFT.head_dim)
    assert sizes == (64, 16, 1024, 64)  # FlashAttention, figure 2


@pytest.mark.parametrize("problem", problems(["bwd"]), ids=lambda p: p.describe())
def test_everything_that_is_timed_is_compiled_ahead(problem: AttentionProblem) -> None:
    plans = [p for p in backward_plans(problem, FAST) if p.kernel == "05_flash_mma_backward"]
    backward = VARIANTS["flash_mma"].backward
    assert backward is not None
    own = backward.tiling_for(problem, 227 * 1024)
    assert backward.plan(problem, own) in plans
    assert backward.plan(problem, own, deterministic=True) in plans
    others = {(p.macros["BLOCK_M"], p.macros["BLOCK_N"]) for p in plans}
    more = (problem.seqlen_q, problem.dtype) == (4096, "float16")
    assert (len(others) > 1) == more and others <= {*TILES, (own.block_m, own.block_n)}


@pytest.mark.parametrize("problem", problems(["bwd"]), ids=lambda p: p.describe())
def test_what_06_leaves_to_05_is_not_timed_as_its_own(problem: AttentionProblem) -> None:
    """Up to d = 128 in its own tiles, and without a deterministic dq; else nothing of it."""
    plans = [p for p in backward_plans(problem, FAST) if p.kernel == "06_flash_wgmma_backward"]
    if problem.head_dim > 128:
        assert not plans
        return
    backward = VARIANTS["flash_wgmma"].backward
    assert backward is not None
    assert backward.plan(problem, backward.tiling_for(problem, 227 * 1024)) in plans
    assert len({tuple(plan.macros.items()) for plan in plans}) == 1


def test_a_few_heads_are_checked_with_both_ends() -> None:
    problem = AttentionProblem(4, 8, 64, 64, 64, "float16", nheads_kv=2)
    assert speed_backward._few_heads(problem) == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert speed_backward._few_heads(AttentionProblem(1, 1, 64, 64, 64, "float16")) == [(0, 0)]

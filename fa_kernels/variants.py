"""VARIANTS: the one list of algorithms. Every table, legend, test and widget loops over it."""

from __future__ import annotations

import math

from fa_kernels.cuda import plan as plans
from fa_kernels.cuda import (
    plan_backward,
    plan_mma,
    plan_mma_backward,
    plan_wgmma,
    plan_wgmma_backward,
    run_backward,
    run_wgmma,
    run_wgmma_backward,
)
from fa_kernels.cuda import run as runs
from fa_kernels.problem import AttentionProblem
from fa_kernels.reference import backward_flash, backward_standard, flash
from fa_kernels.reference.naive import standard_naive
from fa_kernels.reference.standard import standard_tiled
from fa_kernels.tiling import Tiling
from fa_kernels.traffic import backward, model
from fa_kernels.traffic.model import Traffic
from fa_kernels.variant import Backward, Variant, scores_bytes


def _scores_and_probabilities(problem: AttentionProblem) -> int:
    return 2 * scores_bytes(problem)


def _nothing(problem: AttentionProblem) -> int:
    return 0


def _partial_o_and_l(problem: AttentionProblem) -> int:
    # fp32 outputs hold the partial O themselves.
    o_bytes = 2 * problem.q_bytes if problem.itemsize == 2 else 0
    return o_bytes + problem.lse_bytes


def _l_alone(problem: AttentionProblem) -> int:
    return problem.lse_bytes


def _paper_standard(problem: AttentionProblem, tiling: Tiling) -> Traffic:
    return model.paper_standard(problem)


def _paper_standard_backward(problem: AttentionProblem, tiling: Tiling) -> Traffic:
    return backward.paper_standard_backward(problem)


def _scores_and_lse(problem: AttentionProblem) -> int:
    # P rebuilt, with its S, which then holds dP and dS, and its lse.
    return 2 * scores_bytes(problem) + problem.lse_bytes


def _partial_dq(problem: AttentionProblem) -> int:
    # An fp32 dq holds its partial sums itself.
    dq_bytes = 2 * problem.q_bytes if problem.itemsize == 2 else 0
    return dq_bytes + _two_numbers_a_row(problem)


def _two_numbers_a_row(problem: AttentionProblem) -> int:
    # With a bias P is rebuilt from m and 1 / l where lse cannot hold them.
    return 2 * problem.lse_bytes if problem.bias_dtype is not None else 0


def _partial_dq_and_delta(problem: AttentionProblem) -> int:
    return _partial_dq(problem) + problem.lse_bytes


def _padded_dq_and_delta(problem: AttentionProblem) -> int:
    # Whole tiles of dq's sums, with the columns that pad head_dim.
    tiling = plan_wgmma_backward.default_wgmma_backward_tiling(problem.head_dim, problem.itemsize)
    shape = plan_wgmma_backward.dq_sum_shape(problem, tiling)
    return 4 * math.prod(shape) + problem.lse_bytes


def _visits(problem: AttentionProblem, tiling: Tiling) -> int:
    return -(-problem.seqlen_k // tiling.block_n)


VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant(
            name="standard_naive",
            kernel="01_standard_naive",
            label="naive standard",
            summary="three launches, a thread per element, nothing shared on chip",
            source="FlashAttention, Algorithm 0",
            reference=standard_naive,
            run=runs.run_standard_naive,
            plan=plans.plan_standard_naive,
            paper=_paper_standard,
            launched=model.launched_standard_naive,
            workspace_bytes=_scores_and_probabilities,
            tiled=False,
        ),
        Variant(
            name="standard_tiled",
            kernel="02_standard_tiled",
            label="standard",
            summary="three tiled launches, S and P through HBM",
            source="FlashAttention, Algorithm 0",
            reference=standard_tiled,
            run=runs.run_standard_tiled,
            plan=plans.plan_standard_tiled,
            paper=_paper_standard,
            launched=model.launched_standard_tiled,
            workspace_bytes=_scores_and_probabilities,
            backward=Backward(
                kernel="02_standard_tiled_backward",
                summary="five tiled launches, P, dP and dS through HBM",
                source="FlashAttention, Algorithm 3",
                reference=backward_standard.standard_tiled_backward,
                run=run_backward.run_standard_tiled_backward,
                plan=plan_backward.plan_standard_tiled_backward,
                paper=_paper_standard_backward,
                launched=backward.launched_standard_tiled_backward,
                workspace_bytes=_scores_and_lse,
                saved=("p",),
            ),
        ),
        Variant(
            name="flash_kv_outer",
            kernel="03_flash_kv_outer",
            label="flash, K/V outer",
            summary="one launch, K/V tiles outside, O through HBM at every pass",
            source="FlashAttention, Algorithm 1",
            reference=flash.flash_kv_outer,
            run=runs.run_flash_kv_outer,
            plan=plans.plan_flash_kv_outer,
            paper=model.paper_flash_kv_outer,
            launched=model.launched_flash_kv_outer,
            workspace_bytes=_partial_o_and_l,
            block_sparse=True,
            traced=True,
            normalised=True,
            keeps_scores_on_chip=True,
            law="N² d² / M",
            backward=Backward(
                kernel="03_flash_kv_outer_backward",
                summary="S and P rebuilt, K/V tiles outside, dq through HBM at every pass",
                source="FlashAttention, Algorithm 4",
                reference=backward_flash.flash_kv_outer_backward,
                run=run_backward.run_flash_kv_outer_backward,
                plan=plan_backward.plan_flash_kv_outer_backward,
                paper=backward.paper_flash_kv_outer_backward,
                launched=backward.launched_flash_kv_outer_backward,
                workspace_bytes=_partial_dq,
                saved=("out", "lse"),
            ),
        ),
        Variant(
            name="flash_kv_outer_io",
            kernel="03_flash_kv_outer",
            label="flash, K/V outer, 16-bit O",
            summary="the same, with O rounded to 16 bits at every pass",
            source="FlashAttention, Algorithm 1",
            reference=flash.flash_kv_outer_io,
            run=runs.run_flash_kv_outer_io,
            plan=plans.plan_flash_kv_outer_io,
            paper=model.paper_flash_kv_outer,
            launched=model.launched_flash_kv_outer_io,
            workspace_bytes=_l_alone,
            dtypes=("float16", "bfloat16"),  # with fp32 it is flash_kv_outer itself
            control_for="flash_kv_outer",
            block_sparse=True,
            traced=True,
            normalised=True,
            keeps_scores_on_chip=True,
            law="N² d² / M",
            roundings=_visits,
        ),
        Variant(
            name="flash_q_outer_one_block",
            kernel="04_flash_q_outer",
            label="flash, one block per head",
            summary="Q tiles outside, all of a head's in one block, as K/V outer must",
            source="FlashAttention-2, Algorithm 1",
            reference=flash.flash_q_outer,
            run=runs.run_flash_q_outer_one_block,
            plan=plans.plan_flash_q_outer_one_block,
            paper=model.paper_flash_q_outer,
            launched=model.launched_flash_q_outer,
            workspace_bytes=_nothing,
            control_for="flash_q_outer",
            block_sparse=True,
            traced=True,
            keeps_scores_on_chip=True,
            law="N² d / B_r",
        ),
        Variant(
            name="flash_q_outer",
            kernel="04_flash_q_outer",
            label="flash",
            summary="one launch, S, P and O stay on chip, Q tiles outside",
            source="FlashAttention-2, Algorithm 1",
            reference=flash.flash_q_outer,
            run=runs.run_flash_q_outer,
            prepare=runs.prepare_flash_q_outer,
            plan=plans.plan_flash_q_outer,
            paper=model.paper_flash_q_outer,
            launched=model.launched_flash_q_outer,
            workspace_bytes=_nothing,
            block_sparse=True,
            traced=True,
            keeps_scores_on_chip=True,
            law="N² d / B_r",
            backward=Backward(
                kernel="04_flash_q_outer_backward",
                summary="S and P rebuilt, a block per K/V tile, dq added up by all of them",
                source="FlashAttention-2, Algorithm 2",
                reference=backward_flash.flash_q_outer_backward,
                run=run_backward.run_flash_q_outer_backward,
                plan=plan_backward.plan_flash_q_outer_backward,
                paper=backward.paper_flash_q_outer_backward,
                launched=backward.launched_flash_q_outer_backward,
                workspace_bytes=_partial_dq_and_delta,
                saved=("out", "lse"),
            ),
        ),
        Variant(
            name="flash_mma",
            kernel="05_flash_mma",
            label="flash, tensor cores",
            summary="the same on tensor cores, K and V copied ahead, S and P in registers",
            source="FlashAttention-2, Algorithm 1",
            reference=flash.flash_q_outer,
            run=runs.run_flash_mma,
            prepare=runs.prepare_flash_mma,
            plan=plan_mma.plan_flash_mma,
            paper=model.paper_flash_q_outer,
            launched=model.launched_flash_q_outer,
            workspace_bytes=_nothing,
            dtypes=("float16", "bfloat16"),
            min_arch=80,
            block_sparse=True,
            keeps_scores_on_chip=True,
            law="N² d / B_r",
            same_algorithm="flash_q_outer",
            tile_multiple=16,
            tensor_cores=True,
            switches=plan_mma.SWITCHES,
            default_tiling=plan_mma.default_mma_tiling,
            backward=Backward(
                kernel="05_flash_mma_backward",
                summary="the same on tensor cores, S and dP transposed and in registers",
                source="FlashAttention-2, Algorithm 2",
                reference=backward_flash.flash_q_outer_backward,
                run=run_backward.run_flash_mma_backward,
                plan=plan_mma_backward.plan_flash_mma_backward,
                paper=backward.paper_flash_q_outer_backward,
                launched=backward.launched_flash_q_outer_backward,
                workspace_bytes=_partial_dq_and_delta,
                saved=("out", "lse"),
                default_tiling=plan_mma_backward.default_mma_backward_tiling,
                prepare=run_backward.prepare_flash_mma_backward,
            ),
        ),
        Variant(
            name="flash_wgmma",
            kernel="06_flash_wgmma",
            label="flash, warpgroups",
            summary="the same on Hopper's warpgroups: one copies by TMA, the others multiply",
            source="FlashAttention-3, Algorithm 2",
            reference=flash.flash_q_outer_boxes,
            run=run_wgmma.run_flash_wgmma,
            prepare=run_wgmma.prepare_flash_wgmma,
            plan=plan_wgmma.plan_flash_wgmma,
            paper=model.paper_flash_q_outer,
            launched=model.launched_flash_wgmma,
            workspace_bytes=_nothing,
            dtypes=("float16", "bfloat16"),
            min_arch=90,
            max_arch=90,
            whole_rows=True,
            packs=False,
            block_sparse=True,
            keeps_scores_on_chip=True,
            law="N² d / B_r",
            same_algorithm="flash_q_outer",
            tile_multiple=plan_wgmma.GROUP_ROWS,
            tensor_cores=True,
            switches=plan_wgmma.SWITCHES,
            default_tiling=plan_wgmma.default_wgmma_tiling,
            suited_tiling=plan_wgmma.suited_wgmma_tiling,
            backward=Backward(
                kernel="06_flash_wgmma_backward",
                summary="the same on warpgroups, Q and dO by TMA, dS alone through shared memory",
                source="FlashAttention-3, section 3",
                reference=backward_flash.flash_q_outer_boxes_backward,
                run=run_wgmma_backward.run_flash_wgmma_backward,
                plan=plan_wgmma_backward.plan_flash_wgmma_backward,
                paper=backward.paper_flash_q_outer_backward,
                launched=backward.launched_flash_wgmma_backward,
                workspace_bytes=_padded_dq_and_delta,
                saved=("out", "lse"),
                default_tiling=plan_wgmma_backward.default_wgmma_backward_tiling,
                prepare=run_wgmma_backward.prepare_flash_wgmma_backward,
                fixes_dq=False,
                own_tiles_alone=True,
            ),
        ),
    )
}
#: Those on tensor cores, in rung order: what is measured beside other people's kernels.
FAST: tuple[str, ...] = tuple(name for name, one in VARIANTS.items() if one.tensor_cores)
#: The rungs: without those that only isolate one difference.
RUNGS: dict[str, Variant] = {
    name: variant for name, variant in VARIANTS.items() if variant.control_for is None
}
#: The algorithms that pages compare: each once, as its tiles can be chosen freely.
ALGORITHMS: dict[str, Variant] = {
    name: variant for name, variant in RUNGS.items() if variant.same_algorithm is None
}


def with_backward(variant: Variant) -> Variant | None:
    """The variant whose gradients are those of `variant`: itself or its partner; None: neither."""
    partner = VARIANTS.get(variant.control_for or variant.same_algorithm or "")
    return next((v for v in (variant, partner) if v is not None and v.backward is not None), None)


def fast_variants(arch: int) -> tuple[str, ...]:
    """Those of `FAST` that run on a GPU of this compute capability (90), the fastest last."""
    return tuple(name for name in FAST if VARIANTS[name].runs_on(arch))


def fastest(arch: int) -> str:
    """The last of `fast_variants`; "flash_q_outer", which runs everywhere, where there is none."""
    return ("flash_q_outer", *fast_variants(arch))[-1]


def find_variant(name: str) -> Variant:
    """The variant called `name`.

    Raises:
        ValueError: no such variant; the message lists those there are.
    """
    if not isinstance(name, str) or name not in VARIANTS:
        known = ", ".join(repr(known) for known in VARIANTS)
        # Figures show labels, and files are called after kernels: both are tried.
        meant = [v.name for v in ALGORITHMS.values() if name in (v.label, v.kernel)]
        hint = f" (did you mean {meant[0]!r}?)" if meant else ""
        raise ValueError(f"variant = {name!r} is not known{hint}: use 'auto' or one of {known}.")
    return VARIANTS[name]

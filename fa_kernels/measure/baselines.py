"""Other people's attention behind one signature, by the name of the kernel that runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fa_kernels.measure.packaged import fa3_forward, fa4_forward, flex_forward
from fa_kernels.measure.torch_tensors import (
    Forward,
    prepare_training_with,
    prepare_with,
    refuse_other_alignment,
)
from fa_kernels.measure.torch_tensors import tensors as tensors
from fa_kernels.problem import AttentionProblem

Prepare = Callable[..., Callable[[], Any]]
PrepareTraining = Callable[..., tuple[Callable[[], Any], Callable[[], Any]]]


@dataclass(frozen=True)
class Baseline:
    """A peer. `prepare(q, k, v, problem)` takes CuPy arrays; what it returns, called, gives out.

    `prepare_training(q, k, v, d_out, problem)`: two calls that give dq, dk, dv, one of forward and
    backward together and one of the backward alone. `dropout_p` of the problem is that of the
    call, which draws a mask of its own: no seed makes it ours. `workspace_bytes` is what a forward
    holds beside its tensors, `training_workspace_bytes` what both calls of training do. `variant`:
    the function that is called. `distribution`: what to install for it. `archs`: the GPUs it is
    for, () for any.
    """

    provider: str
    summary: str
    dtypes: tuple[str, ...]
    prepare: Prepare
    workspace_bytes: Callable[[AttentionProblem], int]
    prepare_training: PrepareTraining | None = None
    training_workspace_bytes: Callable[[AttentionProblem], int] = lambda problem: 0
    variant: str = "sdpa"
    distribution: str = "torch"
    block_sparse: bool = False
    archs: tuple[str, ...] = ()

    @property
    def installed(self) -> bool:
        """True if torch and the peer's own package are."""
        return None not in (_version("torch"), _version(self.distribution))


def _eager(problem: AttentionProblem, device: Any) -> Callable[..., Any]:
    """softmax(q kᵀ scale) v as most models write it: matmul, scale, softmax, dropout, matmul."""
    import torch

    keep = None
    if problem.causal:
        offset = problem.seqlen_k - problem.seqlen_q if problem.causal == "bottom_right" else 0
        ones = torch.ones(problem.seqlen_q, problem.seqlen_k, dtype=torch.bool, device=device)
        keep = ones.tril(diagonal=offset)

    def call(q: Any, k: Any, v: Any) -> Any:
        s = (q @ k.transpose(-1, -2)) * problem.scale
        if keep is not None:
            s = s.masked_fill(~keep, float("-inf"))
        p = torch.softmax(s, dim=-1)
        if problem.dropout_p:
            p = torch.dropout(p, problem.dropout_p, True)
        return p @ v

    return call


def _sdpa(backend_name: str) -> Forward:
    def forward(problem: AttentionProblem, device: Any) -> Callable[..., Any]:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        refuse_other_alignment(problem, "top_left", "torch's is_causal")
        backend = getattr(SDPBackend, backend_name)
        sdpa = torch.nn.functional.scaled_dot_product_attention
        options: dict[str, Any] = {"is_causal": problem.causal is not None, "scale": problem.scale}
        if problem.dropout_p:
            options["dropout_p"] = problem.dropout_p
        if problem.group > 1:
            options["enable_gqa"] = True

        def call(q: Any, k: Any, v: Any) -> Any:
            with sdpa_kernel([backend]):
                return sdpa(q, k, v, **options)

        return call

    return forward


def _eager_workspace(problem: AttentionProblem) -> int:
    # q kᵀ, its scaled copy and the softmax: at most two of the three live at a time; with dropout
    # the softmax before and after, and the mask.
    matrices = 4 if problem.dropout_p else 2
    return matrices * problem.heads * problem.seqlen_q * problem.seqlen_k * problem.itemsize


def _eager_training_workspace(problem: AttentionProblem) -> int:
    # P is saved for the backward, with dropout P, its mask and what is left of it; the gradients
    # of all of them come on top, once for each of the two calls.
    matrices = 9 if problem.dropout_p else 6
    return matrices * problem.heads * problem.seqlen_q * problem.seqlen_k * problem.itemsize


def _math_workspace(problem: AttentionProblem) -> int:
    # In fp32, whatever the inputs: scores, masked scores and their softmax.
    return 3 * problem.heads * problem.seqlen_q * problem.seqlen_k * 4


def _none(problem: AttentionProblem) -> int:
    return 0


HALF, ALL = ("float16", "bfloat16"), ("float32", "float16", "bfloat16")


def _of_torch(
    provider: str,
    summary: str,
    dtypes: tuple[str, ...],
    forward: Forward,
    workspace_bytes: Callable[[AttentionProblem], int] = _none,
    **more: Any,
) -> Baseline:
    prepare, training = prepare_with(forward), prepare_training_with(forward)
    more = {"prepare_training": training} | more
    return Baseline(provider, summary, dtypes, prepare, workspace_bytes, **more)


BASELINES: dict[str, Baseline] = {
    b.provider: b
    for b in (
        _of_torch(
            "torch_eager",
            "torch, four unfused calls: matmul, scale, softmax, matmul",
            ALL,
            _eager,
            _eager_workspace,
            training_workspace_bytes=_eager_training_workspace,
        ),
        _of_torch(
            "torch_flash",
            "torch SDPA, FLASH_ATTENTION (FlashAttention-2)",
            HALF,
            _sdpa("FLASH_ATTENTION"),
        ),
        _of_torch("torch_cudnn", "torch SDPA, CUDNN_ATTENTION", HALF, _sdpa("CUDNN_ATTENTION")),
        _of_torch("torch_math", "torch SDPA, MATH", ALL, _sdpa("MATH"), _math_workspace),
        _of_torch(
            "torch_efficient",
            "torch SDPA, EFFICIENT_ATTENTION",
            ALL,
            _sdpa("EFFICIENT_ATTENTION"),
        ),
        _of_torch(
            "flex",
            "torch FlexAttention, compiled",
            ALL,
            flex_forward,
            variant="flex_attention",
            block_sparse=True,
        ),
        _of_torch(
            "fa3",
            "the package fa3-fwd (FlashAttention-3), forward alone",
            ("bfloat16",),
            fa3_forward,
            prepare_training=None,
            variant="flash_attn_func",
            distribution="fa3-fwd",
            archs=("sm_90",),
        ),
        _of_torch(
            "fa4",
            "the package flash-attn-4 (FlashAttention-4)",
            HALF,
            fa4_forward,
            variant="flash_attn_func",
            distribution="flash-attn-4",
            archs=("sm_90", "sm_100", "sm_103"),
        ),
    )
}
#: The peers of the recorded grid, of the README's table and of pages that show a rung's peers
#: whether or not they were measured; the others appear where they were asked for.
GRID_PEERS = ("torch_eager", "torch_flash", "torch_cudnn")


def checked_peers(names: tuple[str, ...]) -> tuple[str, ...]:
    """`names`, if all are known.

    Raises:
        ValueError: one is not; it says which there are.
    """
    unknown = [name for name in names if name not in BASELINES]
    if unknown:
        raise ValueError(f"peers {unknown} are not known: name any of {', '.join(BASELINES)}.")
    return names


def packages_of(names: tuple[str, ...]) -> dict[str, str]:
    """Versions of what has to be installed for these peers, besides torch."""
    wanted = {BASELINES[name].distribution for name in names} - {"torch"}
    return {name: found for name in sorted(wanted) if (found := _version(name))}


def _version(distribution: str) -> str | None:
    from fa_kernels.measure.about import version  # loads much, and figures load this module

    return version(distribution)

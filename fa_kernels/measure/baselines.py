"""Other people's attention behind one signature: torch, by the name of the kernel that runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fa_kernels.problem import AttentionProblem


@dataclass(frozen=True)
class Baseline:
    """A peer. `prepare(q, k, v, problem)` takes CuPy arrays; what it returns, called, gives out.

    `prepare_training(q, k, v, d_out, problem)`: two calls that give dq, dk, dv, one of forward and
    backward together and one of the backward alone. `dropout_p` of the problem is that of the
    call, which draws a mask of its own: no seed makes it ours. `workspace_bytes` is what a forward
    holds beside its tensors, `training_workspace_bytes` what both calls of training do.
    """

    provider: str
    summary: str
    dtypes: tuple[str, ...]
    prepare: Callable[..., Callable[[], Any]]
    workspace_bytes: Callable[[AttentionProblem], int]
    prepare_training: Callable[..., tuple[Callable[[], Any], Callable[[], Any]]] | None = None
    training_workspace_bytes: Callable[[AttentionProblem], int] = lambda problem: 0


def tensors(*arrays: Any) -> list[Any]:
    """CuPy arrays as torch tensors, in place; bf16 as its bits, which every DLPack knows."""
    import torch

    return [
        torch.from_dlpack(a.view("int16")).view(torch.bfloat16)
        if a.dtype.name == "bfloat16"
        else torch.from_dlpack(a)
        for a in arrays
    ]


def _array(tensor: Any) -> Any:
    """A torch tensor as a CuPy array, in place."""
    import cupy
    import torch

    from fa_kernels.cuda.arrays import bfloat16

    if tensor.dtype == torch.bfloat16:
        return cupy.from_dlpack(tensor.view(torch.int16)).view(bfloat16())
    return cupy.from_dlpack(tensor)


Forward = Callable[[], Any]


def _eager(tq: Any, tk: Any, tv: Any, problem: AttentionProblem) -> Forward:
    """softmax(q kᵀ scale) v as most models write it: matmul, scale, softmax, dropout, matmul."""
    import torch

    keep = None
    if problem.causal:
        offset = problem.seqlen_k - problem.seqlen_q if problem.causal == "bottom_right" else 0
        ones = torch.ones(problem.seqlen_q, problem.seqlen_k, dtype=torch.bool, device=tq.device)
        keep = ones.tril(diagonal=offset)

    def forward() -> Any:
        s = (tq @ tk.transpose(-1, -2)) * problem.scale
        if keep is not None:
            s = s.masked_fill(~keep, float("-inf"))
        p = torch.softmax(s, dim=-1)
        if problem.dropout_p:
            p = torch.dropout(p, problem.dropout_p, True)
        return p @ tv

    return forward


def _sdpa(backend_name: str) -> Callable[..., Forward]:
    def make(tq: Any, tk: Any, tv: Any, problem: AttentionProblem) -> Forward:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        if problem.causal and problem.seqlen_q != problem.seqlen_k:
            raise NotImplementedError("torch's is_causal is top_left: compare square problems")
        backend = getattr(SDPBackend, backend_name)
        sdpa = torch.nn.functional.scaled_dot_product_attention
        options: dict[str, Any] = {"is_causal": problem.causal is not None, "scale": problem.scale}
        if problem.dropout_p:
            options["dropout_p"] = problem.dropout_p

        def forward() -> Any:
            with sdpa_kernel([backend]):
                return sdpa(tq, tk, tv, **options)

        return forward

    return make


def _prepare(make: Callable[..., Forward]) -> Callable[..., Callable[[], Any]]:
    def prepare(q: Any, k: Any, v: Any, problem: AttentionProblem) -> Callable[[], Any]:
        forward = make(*tensors(q, k, v), problem)
        return lambda: _array(forward())

    return prepare


def _prepare_training(
    make: Callable[..., Forward],
) -> Callable[..., tuple[Callable[[], Any], Callable[[], Any]]]:
    def prepare(
        q: Any, k: Any, v: Any, d_out: Any, problem: AttentionProblem
    ) -> tuple[Callable[[], Any], Callable[[], Any]]:
        import torch

        inputs = [x.requires_grad_() for x in tensors(q, k, v)]
        (gradient,) = tensors(d_out)
        forward, grad = make(*inputs, problem), torch.autograd.grad
        saved: list[Any] = []  # by the first backward, so that forward and backward need not wait

        def both() -> Any:
            return [_array(x) for x in grad(forward(), inputs, gradient)]

        def backward() -> Any:
            if not saved:
                saved.append(forward())
            return [_array(x) for x in grad(saved[0], inputs, gradient, retain_graph=True)]

        return both, backward

    return prepare


def _eager_workspace(problem: AttentionProblem) -> int:
    # q kᵀ, its scaled copy and the softmax: at most two of the three live at a time; with dropout
    # the softmax before and after, and the mask.
    return (
        (4 if problem.dropout_p else 2)
        * problem.heads
        * problem.seqlen_q
        * problem.seqlen_k
        * problem.itemsize
    )


def _eager_training_workspace(problem: AttentionProblem) -> int:
    # P is saved for the backward, with dropout P, its mask and what is left of it; the gradients
    # of all of them come on top, once for each of the two calls.
    matrices = 9 if problem.dropout_p else 6
    return matrices * problem.heads * problem.seqlen_q * problem.seqlen_k * problem.itemsize


def _none(problem: AttentionProblem) -> int:
    return 0


BASELINES: dict[str, Baseline] = {
    b.provider: b
    for b in (
        Baseline(
            "torch_eager",
            "torch, four unfused calls: matmul, scale, softmax, matmul",
            ("float32", "float16", "bfloat16"),
            _prepare(_eager),
            _eager_workspace,
            _prepare_training(_eager),
            _eager_training_workspace,
        ),
        Baseline(
            "torch_flash",
            "torch SDPA, FLASH_ATTENTION (FlashAttention-2)",
            ("float16", "bfloat16"),
            _prepare(_sdpa("FLASH_ATTENTION")),
            _none,
            _prepare_training(_sdpa("FLASH_ATTENTION")),
        ),
        Baseline(
            "torch_cudnn",
            "torch SDPA, CUDNN_ATTENTION",
            ("float16", "bfloat16"),
            _prepare(_sdpa("CUDNN_ATTENTION")),
            _none,
            _prepare_training(_sdpa("CUDNN_ATTENTION")),
        ),
    )
}

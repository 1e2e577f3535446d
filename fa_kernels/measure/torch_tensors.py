"""CuPy arrays as torch tensors and back, in place, and a peer's forward as calls on arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fa_kernels.problem import AttentionProblem

#: forward(problem, device) -> f(q, k, v), which takes and gives tensors (batch, heads, N, d).
Forward = Callable[[AttentionProblem, Any], Callable[..., Any]]


def tensors(*arrays: Any) -> list[Any]:
    """CuPy arrays as torch tensors, in place; bf16 as its bits, which every DLPack knows."""
    import torch

    return [
        torch.from_dlpack(a.view("int16")).view(torch.bfloat16)
        if a.dtype.name == "bfloat16"
        else torch.from_dlpack(a)
        for a in arrays
    ]


def array_of(tensor: Any) -> Any:
    """A torch tensor as a CuPy array, in place."""
    import cupy
    import torch

    from fa_kernels.cuda.arrays import bfloat16

    if tensor.dtype == torch.bfloat16:
        return cupy.from_dlpack(tensor.view(torch.int16)).view(bfloat16())
    return cupy.from_dlpack(tensor)


def prepare_with(forward: Forward) -> Callable[..., Callable[[], Any]]:
    """`Baseline.prepare` of a forward: on CuPy arrays, once laid out."""

    def prepare(q: Any, k: Any, v: Any, problem: AttentionProblem) -> Callable[[], Any]:
        inputs = tensors(q, k, v)
        call = forward(problem, inputs[0].device)
        return lambda: array_of(call(*inputs))

    return prepare


def prepare_training_with(
    forward: Forward,
) -> Callable[..., tuple[Callable[[], Any], Callable[[], Any]]]:
    """`Baseline.prepare_training` of a forward that torch's autograd differentiates."""

    def prepare(
        q: Any, k: Any, v: Any, d_out: Any, problem: AttentionProblem
    ) -> tuple[Callable[[], Any], Callable[[], Any]]:
        import torch

        inputs = [x.requires_grad_() for x in tensors(q, k, v)]
        (gradient,) = tensors(d_out)
        call, grad = forward(problem, inputs[0].device), torch.autograd.grad
        saved: list[Any] = []  # by the first backward, so that forward and backward need not wait

        def both() -> Any:
            return [array_of(x) for x in grad(call(*inputs), inputs, gradient)]

        def backward() -> Any:
            if not saved:
                saved.append(call(*inputs))
            return [array_of(x) for x in grad(saved[0], inputs, gradient, retain_graph=True)]

        return both, backward

    return prepare


def refuse_other_alignment(problem: AttentionProblem, aligned: str, whose: str) -> None:
    """Raise unless `whose` causal mask, which is `aligned`, is that of the problem.

    Raises:
        NotImplementedError: the two differ, which they do only where the problem is not square.
    """
    square = problem.seqlen_q == problem.seqlen_k
    if problem.causal and problem.causal != aligned and not square:
        raise NotImplementedError(f"{whose} is {aligned}: compare square problems")


def refuse_dropout(problem: AttentionProblem, whose: str) -> None:
    """Raise if the problem has dropout.

    Raises:
        NotImplementedError: `whose` function is called without any here.
    """
    if problem.dropout_p or problem.keep_given:
        raise NotImplementedError(f"{whose} is called without dropout: compare with dropout_p = 0")

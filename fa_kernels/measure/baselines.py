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
    backward together and one of the backward alone.
    """

    provider: str
    summary: str
    dtypes: tuple[str, ...]
    prepare: Callable[..., Callable[[], Any]]
    workspace_bytes: Callable[[AttentionProblem], int]
    prepare_training: Callable[..., tuple[Callable[[], Any], Callable[[], Any]]] | None = None


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


def _prepare_eager(q: Any, k: Any, v: Any, problem: AttentionProblem) -> Callable[[], Any]:
    """softmax(q kᵀ scale) v as most models write it: matmul, scale, softmax, matmul."""
    import torch

    tq, tk, tv = tensors(q, k, v)
    keep = None
    if problem.causal:
        offset = problem.seqlen_k - problem.seqlen_q if problem.causal == "bottom_right" else 0
        ones = torch.ones(problem.seqlen_q, problem.seqlen_k, dtype=torch.bool, device=tq.device)
        keep = ones.tril(diagonal=offset)

    def call() -> Any:
        s = (tq @ tk.transpose(-1, -2)) * problem.scale
        if keep is not None:
            s = s.masked_fill(~keep, float("-inf"))
        return _array(torch.softmax(s, dim=-1) @ tv)

    return call


def _prepare_sdpa(backend_name: str) -> Callable[..., Callable[[], Any]]:
    def prepare(q: Any, k: Any, v: Any, problem: AttentionProblem) -> Callable[[], Any]:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        if problem.causal and problem.seqlen_q != problem.seqlen_k:
            raise NotImplementedError("torch's is_causal is top_left: compare square problems")
        backend = getattr(SDPBackend, backend_name)
        tq, tk, tv = tensors(q, k, v)
        sdpa = torch.nn.functional.scaled_dot_product_attention

        def call() -> Any:
            with sdpa_kernel([backend]):
                out = sdpa(tq, tk, tv, is_causal=problem.causal is not None, scale=problem.scale)
            return _array(out)

        return call

    return prepare


def _prepare_sdpa_training(
    backend_name: str,
) -> Callable[..., tuple[Callable[[], Any], Callable[[], Any]]]:
    def prepare(
        q: Any, k: Any, v: Any, d_out: Any, problem: AttentionProblem
    ) -> tuple[Callable[[], Any], Callable[[], Any]]:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        if problem.causal and problem.seqlen_q != problem.seqlen_k:
            raise NotImplementedError("torch's is_causal is top_left: compare square problems")
        backend, causal = getattr(SDPBackend, backend_name), problem.causal is not None
        inputs = [x.requires_grad_() for x in tensors(q, k, v)]
        (gradient,) = tensors(d_out)
        sdpa, grad = torch.nn.functional.scaled_dot_product_attention, torch.autograd.grad

        def forward() -> Any:
            with sdpa_kernel([backend]):
                return sdpa(*inputs, is_causal=causal, scale=problem.scale)

        saved = forward()

        def both() -> Any:
            return [_array(x) for x in grad(forward(), inputs, gradient)]

        def backward() -> Any:
            return [_array(x) for x in grad(saved, inputs, gradient, retain_graph=True)]

        return both, backward

    return prepare


def _eager_workspace(problem: AttentionProblem) -> int:
    # q kᵀ, its scaled copy and the softmax: at most two of the three live at a time.
    return 2 * problem.heads * problem.seqlen_q * problem.seqlen_k * problem.itemsize


def _none(problem: AttentionProblem) -> int:
    return 0


BASELINES: dict[str, Baseline] = {
    b.provider: b
    for b in (
        Baseline(
            "torch_eager",
            "torch, four unfused calls: matmul, scale, softmax, matmul",
            ("float32", "float16", "bfloat16"),
            _prepare_eager,
            _eager_workspace,
        ),
        Baseline(
            "torch_flash",
            "torch SDPA, FLASH_ATTENTION (FlashAttention-2)",
            ("float16", "bfloat16"),
            _prepare_sdpa("FLASH_ATTENTION"),
            _none,
            _prepare_sdpa_training("FLASH_ATTENTION"),
        ),
        Baseline(
            "torch_cudnn",
            "torch SDPA, CUDNN_ATTENTION",
            ("float16", "bfloat16"),
            _prepare_sdpa("CUDNN_ATTENTION"),
            _none,
            _prepare_sdpa_training("CUDNN_ATTENTION"),
        ),
    )
}

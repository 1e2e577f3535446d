"""Bytes that a call moves however few blocks a mask keeps: the term Theta(N d)."""

from __future__ import annotations

from fa_kernels.device import Device
from fa_kernels.problem import AttentionProblem


def floor_bytes(problem: AttentionProblem, pass_: str) -> int:
    """Every tensor of a call once: what no kernel gets under where all rows attend something.

    Forward: q, k, v in; out and lse out. Backward: q, k, v, out, d_out and lse in; dq, dk, dv out.

    Args:
        pass_: "fwd" or "bwd".

    Raises:
        ValueError: another pass.
    """
    if pass_ not in ("fwd", "bwd"):
        raise ValueError(f"pass_ = {pass_!r} is not known: use 'fwd' or 'bwd'.")
    times = 1 if pass_ == "fwd" else 2
    return times * 2 * (problem.q_bytes + problem.kv_bytes) + problem.lse_bytes


def floor_ms(problem: AttentionProblem, pass_: str, device: Device) -> float:
    """`floor_bytes` at the HBM bandwidth of a data sheet."""
    return floor_bytes(problem, pass_) / device.hbm_bandwidth_gb_s / 1e6


def fixed_backward_bytes(problem: AttentionProblem) -> int:
    """What the backwards of 05 and 06 move beside their tiles, whatever a mask keeps.

    (06 also the padding of its last tiles and of head_dim.)

    delta: d_out and out in, delta out. dq: its fp32 sums cleared, then read and rounded into dq;
    with fp32 tensors dq is its own sum, and only cleared.
    """
    delta = 2 * problem.q_bytes + problem.lse_bytes
    sums = 4 * problem.q_rows * problem.head_dim
    rounded = 0 if problem.itemsize == 4 else sums + problem.q_bytes
    return delta + sums + rounded

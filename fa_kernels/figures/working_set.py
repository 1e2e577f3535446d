"""What a kernel reads again, how much of it is in use at once, and whether the L2 can hold it."""

from __future__ import annotations

from dataclasses import dataclass

from fa_kernels.figures.point import Point
from fa_kernels.problem import AttentionProblem
from fa_kernels.variants import Variant

#: A block reserves this much shared memory for CUDA itself.
_RESERVED_BYTES = 1024
MAX_BLOCKS_PER_SM = 32


@dataclass(frozen=True)
class WorkingSet:
    """The tensors that are read more than once, and the bytes of them that are in use at one time.

    `heads` (batch, head) pairs are worked on at once, at most: an estimate from shared memory and
    threads alone, since registers may allow fewer blocks on an SM. `whole` marks what lives from
    one launch to the next, of every head. `fits`: the device's L2 can hold it.
    """

    tensors: tuple[str, ...]
    heads: int
    whole: bool
    set_bytes: int
    l2_bytes: int

    @property
    def fits(self) -> bool:
        """True if a re-read can be answered by the L2 cache."""
        return self.set_bytes <= self.l2_bytes


def working_set(variant: Variant, point: Point) -> WorkingSet:
    """What `variant` reads again at this point, and how much of it competes for the L2 at once.

    Raises:
        ValueError: how many heads are at work depends on a launch, and there can be none here
            (`Point.refusal`).
    """
    problem, moved = point.problem, point.traffic(variant)
    between = [t for t in ("s", "p") if moved.read_bytes.get(t, 0)]
    if between:  # written by one launch, read by the next: all heads' at once
        size = sum(moved.written_bytes[t] for t in between)
        return WorkingSet(tuple(between), problem.heads, True, size, point.device.l2_bytes)
    sizes = _head_bytes(variant, problem)
    again = tuple(
        t for t, size in sizes.items() if moved.read_bytes.get(t, 0) > size * problem.heads
    )
    carried = tuple(t for t in ("out", "lse") if moved.read_bytes.get(t, 0))
    tensors = (*again, *(t for t in carried if t not in again))
    heads = _heads_at_once(variant, point)
    size = heads * sum(sizes[t] for t in tensors)
    return WorkingSet(tensors, heads, False, size, point.device.l2_bytes)


def _head_bytes(variant: Variant, problem: AttentionProblem) -> dict[str, int]:
    """Bytes of each tensor per (batch, head); of what is carried between passes where there is."""
    head = 1 / problem.heads
    q, kv = round(problem.q_bytes * head), round(problem.kv_bytes * head)
    stats = round(problem.lse_bytes * head)
    # Partial O is as wide as its workspace, or lies in out itself; m and l are two numbers a row.
    partial = round(variant.workspace_bytes(problem) * head) - stats
    return {"q": q, "k": kv, "v": kv, "out": max(q, partial), "lse": 2 * stats}


def _heads_at_once(variant: Variant, point: Point) -> int:
    (step,) = point.plan(variant).steps
    gpu, heads = point.device, point.problem.heads
    need = step.smem_bytes + step.static_smem_bytes + _RESERVED_BYTES
    per_sm = min(
        gpu.smem_per_sm_bytes // need, gpu.max_threads_per_sm // step.threads, MAX_BLOCKS_PER_SM
    )
    blocks_per_head = max(1, step.grid // heads)
    at_once = gpu.sm_count * max(1, per_sm)
    return min(heads, -(-at_once // blocks_per_head) + (blocks_per_head > 1))

"""Calls of attention as users make them, judged by a formula that knows one dense mask and no more.

Options are turned into that mask by the words of their definition, element by element, so that a
fault in the package's own masks is seen here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import fa_kernels as fa
from fa_kernels.block_mask import BlockMask
from fa_kernels.call import Call, checked_call
from fa_kernels.cuda.arrays import io_dtype
from fa_kernels.cuda.launch import available, gpu_arch
from fa_kernels.extras import Extras
from fa_kernels.measure.check import Truth
from fa_kernels.measure.check_backward import NAMES, BackwardTruth
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import HOPPER_SMEM_PER_BLOCK, Tiling
from fa_kernels.variants import with_backward
from tests.chain_rule import plain_gradients
from tests.reference.problems import Arrays, plain_attention

#: The backends, the second only where there is a GPU.
BACKENDS = [
    "numpy",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not available(), reason="needs CuPy and a CUDA GPU"),
        ],
    ),
]
#: out, lse and, if asked for, gradients in float64.
Wanted = tuple[np.ndarray, np.ndarray, Arrays | None]
SPARSE = [name for name, variant in fa.VARIANTS.items() if variant.block_sparse]


def dtypes_of(variant: str, *wanted: str) -> list[str]:
    """Those of the wanted dtypes that a variant takes, or its widest."""
    own = fa.VARIANTS[variant].dtypes
    return [dtype for dtype in wanted if dtype in own] or [own[0]]


@dataclass(frozen=True)
class Case:
    """One call: q, k, v, options of `fa.attention` and, if gradients are asked for, d_out."""

    inputs: Arrays
    options: dict[str, Any] = field(default_factory=dict)
    d_out: np.ndarray | None = None
    tiling: Tiling | None = None

    @property
    def dtype(self) -> str:
        """The io dtype's name."""
        return self.inputs[0].dtype.name


@dataclass(frozen=True)
class Result:
    """What a call gave, on the host."""

    out: np.ndarray
    lse: np.ndarray
    gradients: Arrays | None


def random_case(
    dtype: str,
    nq: int,
    nk: int | None = None,
    d: int = 16,
    *,
    batch: int = 1,
    nheads: int = 2,
    nheads_kv: int | None = None,
    gradients: bool = True,
    tiling: Tiling | None = None,
    **options: Any,
) -> Case:
    """A case of standard normal q, k, v and d_out."""
    rng, io = np.random.default_rng(0), io_dtype(dtype)
    of_q = (batch, nheads, nq, d)
    of_k = (batch, nheads_kv or nheads, nq if nk is None else nk, d)
    q, k, v, d_out = (rng.standard_normal(s).astype(io) for s in (of_q, of_k, of_k, of_q))
    return Case((q, k, v), options, d_out if gradients else None, tiling)


def run(case: Case, variant: str, backend: str, *, deterministic: bool = False) -> Result:
    """The call through the front door, and its gradients by `backward_of` the variant.

    On a GPU every build takes seconds: controls, whose kernel is their partner's, are left out.
    """
    if backend == "cuda" and fa.VARIANTS[variant].control_for is not None:
        pytest.skip("its partner runs the same kernel")
    if backend == "cuda" and not on_this_gpu(case, variant, deterministic):
        pytest.skip("not written for this GPU, or for this call, which it refuses")
    options = {**case.options, "tiling": case.tiling, "backend": backend}
    own = {**options, "tiling": tiling_of(case, variant)}
    out, lse = fa.attention(*case.inputs, variant=variant, return_lse=True, **own)
    if case.d_out is None:
        return Result(out, lse, None)
    saved = (case.d_out, *case.inputs, out, lse)
    partner = backward_of(variant)
    if backend == "cuda":  # NumPy runs any tiles
        options["tiling"] = backward_tiling_of(case, partner)
    gradients = fa.attention_backward(
        *saved, variant=partner, deterministic=deterministic, **options
    )
    return Result(out, lse, gradients)


def on_this_gpu(case: Case, variant: str, deterministic: bool) -> bool:
    """False where the variant's kernel refuses the GPU, or the call and its gradients."""
    known, tiling = fa.VARIANTS[variant], case.tiling
    problem = checked_call(*case.inputs, variant, tiling, "numpy", **case.options).problem
    if not (known.runs_on(gpu_arch()) and known.takes(problem)):
        return False
    backward = known.backward if case.d_out is not None else None
    if backward is None:
        return True
    able = backward.fixes_dq or not deterministic
    return able and backward.takes(problem, HOPPER_SMEM_PER_BLOCK)


def backward_of(variant: str) -> str:
    """The variant itself, or the one that rounds S like naive: lse says which S it is of."""
    return variant if with_backward(fa.VARIANTS[variant]) is not None else "standard_tiled"


def tiling_of(case: Case, variant: str) -> Tiling | None:
    """The case's tiling, or the nearest that the variant's kernel can have."""
    if case.tiling is None:
        return None
    problem = checked_call(*case.inputs, variant, case.tiling, "numpy", **case.options).problem
    # The NumPy execution takes what a kernel refuses, with any tiles.
    able = fa.VARIANTS[variant].takes(problem)
    return fa.VARIANTS[variant].nearest_tiling(problem, case.tiling) if able else case.tiling


def backward_tiling_of(case: Case, variant: str) -> Tiling | None:
    """The case's tiling where the kernel of the variant's gradients can have it, else None."""
    partner = with_backward(fa.VARIANTS[variant])
    if case.tiling is None or partner is None or partner.backward is None:
        return None
    call = checked_call(*case.inputs, partner.name, case.tiling, "numpy", **case.options)
    try:
        partner.backward.plan(call.problem, call.tiling)
    except ValueError:
        return None
    return case.tiling


def dense_mask(case: Case) -> np.ndarray:
    """Bool, (batch, nheads, rows of q, rows of k) or what broadcasts: who attends whom."""
    q, k, _ = case.inputs
    options, shape = case.options, (*q.shape[:3], k.shape[2])
    if "cu_seqlens_q" in options:
        return _packed_mask(case, shape)
    return _attends(shape[2], shape[3], options) & options.get("mask", True)


def _attends(nq: int, nk: int, options: dict[str, Any]) -> np.ndarray:
    """(batch or 1, nheads or 1, rows, keys): what causal, window and block mask let a row see."""
    row, key = np.arange(nq)[:, None], np.arange(nk)[None, :]
    mine = row + nk - nq
    last = {False: np.full_like(row, nk), True: mine, "bottom_right": mine, "top_left": row}
    attends: np.ndarray = key <= last[options.get("causal", False)]
    left, right = options.get("window") or (None, None)
    attends = attends & (True if left is None else key >= mine - left)
    attends = attends & (True if right is None else key <= mine + right)
    blocks: BlockMask | None = options.get("block_mask")
    if blocks is None:
        return attends[None, None]
    return attends & blocks.keep[:, :, row // blocks.block_m, key // blocks.block_n]


def _packed_mask(case: Case, shape: tuple[int, ...]) -> np.ndarray:
    """Sequences side by side: a row attends keys of its own alone. Element masks are not here."""
    assert "mask" not in case.options
    kept = np.zeros(shape, bool)
    of_q, of_k = (list(map(int, case.options[f"cu_seqlens_{x}"])) for x in "qk")
    for i in range(len(of_q) - 1):
        rows, keys = slice(*of_q[i : i + 2]), slice(*of_k[i : i + 2])
        own = _attends(rows.stop - rows.start, keys.stop - keys.start, case.options)
        kept[:, :, rows, keys] = own
    return kept


def expected(case: Case) -> Wanted:
    """out, lse and gradients in float64 from the dense mask."""
    q, k, v = case.inputs
    options, shape = case.options, (*q.shape[:3], k.shape[2])
    mask = np.broadcast_to(dense_mask(case), shape)

    def over(name: str) -> Any:
        given = options.get(name)
        return None if given is None else np.broadcast_to(given, mask.shape)

    extras = Extras(mask, over("bias"), over("dropout_keep"))
    batch, nheads, nq, nk = mask.shape
    problem = AttentionProblem(
        batch, nheads, nq, nk, q.shape[3], "float64", softmax_scale=options.get("softmax_scale"),
        nheads_kv=k.shape[1], masked=True, dropout_p=options.get("dropout_p", 0.0),
        keep_given=extras.dropout_keep is not None, seed=options.get("seed"),
    )  # fmt: skip
    out, lse = plain_attention(q, k, v, problem, extras)
    if case.d_out is None:
        return out, lse, None
    return out, lse, plain_gradients(case.d_out, q, k, v, problem, extras)


def judge(case: Case, variant: str, *results: Result) -> list[str]:
    """Faults in words: errors above the project's tolerance, NaN, masked rows that are not 0.

    Several results of one call are held to the same formula, which is computed once.
    """
    with np.errstate(over="ignore"):  # finfo.min and a negative score
        want = expected(case)
    call = checked_call(*case.inputs, variant, tiling_of(case, variant), "numpy", **case.options)
    everything = np.arange(case.inputs[0].shape[2])
    truth = Truth(case.inputs, call.problem, extras=call.extras, xp=np, rows=everything)
    faults = []
    for result in results:
        faults += _faults_of_out(case, call, truth, result, want)
    if case.d_out is not None:
        limits = BackwardTruth(case.inputs, case.d_out, call.problem, call.extras, np)
        for result in results:
            faults += _faults_of_gradients(case, limits, result, want)
    return faults


def _faults_of_out(case: Case, call: Call, truth: Truth, result: Result, want: Wanted) -> list[str]:
    roundings = call.variant.roundings(call.problem, call.tiling)
    in_hbm = not call.variant.keeps_scores_on_chip
    found = truth.check(result.out, result.lse, roundings, scores_in_io=in_hbm)
    faults = [] if found.ok else [f"not the formula: {found}"]
    masked = _attend_nothing(case)
    if result.out[masked].any() or not np.isneginf(result.lse[masked]).all():
        faults.append("a row that attends nothing is not 0 with lse = -inf")
    out, lse, _ = want
    faults += _beyond("out", result.out, out, found.out_limit)
    usual = np.abs(lse) < 1e6  # an infinity or about finfo.min, which Truth has looked at
    return faults + _beyond("lse", result.lse[usual], lse[usual], found.lse_limit)


def _faults_of_gradients(
    case: Case, limits: BackwardTruth, result: Result, want: Wanted
) -> list[str]:
    assert result.gradients is not None and want[2] is not None
    found = limits.check(*result.gradients)
    faults = [] if found.ok else [f"not the chain rule: {found}"]
    for name, got, exact in zip(NAMES, result.gradients, want[2], strict=True):
        faults += _beyond(name, got, exact, found.limits[name])
    if result.gradients[0][_attend_nothing(case)].any():
        faults.append("a row that attends nothing has a gradient")
    return faults


def _attend_nothing(case: Case) -> np.ndarray:
    """Bool (batch, nheads, rows): no key is left by masks and biases of -inf."""
    kept = dense_mask(case) & ~np.isneginf(np.asarray(case.options.get("bias", 0.0), np.float32))
    return np.broadcast_to(~kept.any(axis=-1), case.inputs[0].shape[:3])


def _beyond(name: str, got: np.ndarray, want: np.ndarray, limit: float) -> list[str]:
    error = float(np.abs(got.astype(np.float64) - want).max(initial=0.0))
    return [] if error <= limit else [f"{name} is off by {error:.3g}, the limit is {limit:.3g}"]

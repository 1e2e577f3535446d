"""Every backward pass from arrays to launches: arguments in the kernels' own order and values."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fa_kernels import tile_list
from fa_kernels.cuda import plan as plans
from fa_kernels.cuda.plan import LaunchPlan
from fa_kernels.cuda.plan_mma import kv_heads_in_section
from fa_kernels.extras import NO_EXTRAS, Extras
from fa_kernels.measure.cases import MAPPED_LAYOUTS
from fa_kernels.packed import Packed
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.model import ALL_TENSORS
from fa_kernels.variants import VARIANTS, Backward
from tests.cuda.fake_cupy import PROBLEM, TILING, GpuArray, inputs, on_gpu
from tests.cuda.signatures import parameters
from tests.cuda.test_run import OPTIONS, assert_arguments, gpu_extras, with_options
from tests.reference.problems import random_mask

BACKWARD = {name: v.backward for name, v in VARIANTS.items() if v.backward is not None}
each_backward = pytest.mark.parametrize("backward", BACKWARD.values(), ids=BACKWARD)
FLASH = {name: b for name, b in BACKWARD.items() if name != "standard_tiled"}
#: Those whose dq is summed by all blocks, and has a launch of its own where the order is fixed.
BY_KEYS = ("flash_q_outer", "flash_mma")
each_flash = pytest.mark.parametrize("backward", FLASH.values(), ids=FLASH)
each_backward_and_dtype = pytest.mark.parametrize(
    ("backward", "dtype"),
    [
        pytest.param(b, dtype, id=f"{name}-{dtype}")
        for name, b in BACKWARD.items()
        for dtype in VARIANTS[name].dtypes
    ],
)
both = pytest.mark.parametrize("deterministic", [False, True])
INPUTS = ("d_out", "q", "k", "v", "out", "lse")


def arrays(problem: AttentionProblem = PROBLEM, layout: str = "bhsd") -> dict[str, Any]:
    """d_out, q, k, v, out and lse of `problem` on the GPU, by name."""
    q, k, v = inputs(layout, problem)
    out = on_gpu(np.ones(q.shape, q.dtype))
    lse = on_gpu(np.zeros(q.shape[:3], np.float32))
    d_out = inputs(layout, problem)[0]
    return dict(zip(INPUTS, (d_out, q, k, v, out, lse), strict=True))


def tiles_of(backward: Backward, problem: AttentionProblem = PROBLEM) -> Tiling:
    """TILING, or the tiles that it takes alone."""
    own = backward.tiling_for(problem, 227 * 1024)
    return own if backward.own_tiles_alone else TILING


def refuses(backward: Backward, problem: AttentionProblem, deterministic: bool = False) -> str:
    """What a backward pass says of a call that it leaves to 05; "" of all that it takes."""
    if backward.kernel != "06_flash_wgmma_backward":
        return ""
    for asked, why in ((problem.packed, "packed sequences"), (problem.bias_dtype, "takes no bias"),
                       (deterministic, "is not deterministic")):  # fmt: skip
        if asked:
            return f"{why}.*[Uu]se variant='flash_mma'"
    return ""


def plan_of(
    backward: Backward, entry: str, problem: AttentionProblem, **options: bool
) -> LaunchPlan:
    """The plan that a launch belongs to: 02 rebuilds P by the kernel of its forward."""
    made = backward.plan(problem, tiles_of(backward, problem), **options)
    if any(step.entry == entry for step in made.steps):
        return made
    options.pop("deterministic", None)
    return plans.plan_standard_tiled(problem, TILING, **options)


def assert_launches(
    backward: Backward,
    calls: list[Any],
    known: dict[str, Any],
    problem: AttentionProblem,
    **options: bool,
) -> dict[str, Any]:
    """Every launch against its plan and its kernel's signature; all arrays by name."""
    if backward not in FLASH.values():
        known = {name: array for name, array in known.items() if name not in ("out", "lse")}
    for entry, grid, block, args, smem, _ in calls:
        plan = plan_of(backward, entry, problem, **options)
        step = next(step for step in plan.steps if step.entry == entry)
        assert (grid, block, smem) == ((step.grid,), (step.threads,), step.smem_bytes)
        assert_arguments(plan, entry, args, known, problem)
    return known


@both
@pytest.mark.parametrize("count", [False, True])
@each_backward_and_dtype
def test_arguments_are_the_kernels_parameters(
    backward: Backward, dtype: str, count: bool, deterministic: bool, calls: list[Any]
) -> None:
    for causal in (None, "bottom_right", "top_left"):
        calls.clear()
        problem = replace(PROBLEM, dtype=dtype, causal=causal)
        known = arrays(problem)
        options = {"deterministic": deterministic, "count_traffic": count}
        tiling = tiles_of(backward, problem)
        if why := refuses(backward, problem, deterministic):
            with pytest.raises(NotImplementedError, match=why):
                backward.run(*known.values(), problem, tiling, **options)
            assert not calls
            continue
        dq, dk, dv, traffic = backward.run(*known.values(), problem, tiling, **options)
        for gradient, like in ((dq, known["q"]), (dk, known["k"]), (dv, known["v"])):
            assert (gradient.shape, gradient.dtype) == (like.shape, like.dtype)
            assert gradient.flags.c_contiguous
        assert (traffic is None) == (not count)
        if backward in FLASH.values():
            entries = [step.entry for step in backward.plan(problem, tiling, **options).steps]
            assert [call[0] for call in calls] == entries
        known |= {"dq": dq, "dk": dk, "dv": dv}
        known = assert_launches(backward, calls, known, problem, **options)
        assert ("traffic_totals" in known) == count
        assert not count or known["traffic_totals"].shape == (len(ALL_TENSORS), 2)


@both
@pytest.mark.parametrize("fields", OPTIONS.values(), ids=OPTIONS)
@each_backward
def test_every_option_reaches_the_kernel(
    backward: Backward, fields: dict[str, Any], deterministic: bool, calls: list[Any]
) -> None:
    problem = with_options(fields)
    known, extras = arrays(problem), gpu_extras(problem)
    options = {"deterministic": deterministic, "count_traffic": True}
    tiling = tiles_of(backward, problem)
    if why := refuses(backward, problem, deterministic):
        with pytest.raises(NotImplementedError, match=why):
            backward.run(*known.values(), problem, tiling, extras=extras, **options)
        assert not calls
        return
    dq, dk, dv, _ = backward.run(*known.values(), problem, tiling, extras=extras, **options)
    assert dq.shape == problem.q_shape and dk.shape == dv.shape == problem.kv_shape
    given = {"mask": extras.mask, "bias": extras.bias, "keep": extras.dropout_keep}
    known |= {name: array for name, array in given.items() if array is not None}
    known |= {"dq": dq, "dk": dk, "dv": dv}
    assert_launches(backward, calls, known, problem, **options)


def named(call: Any, plan: LaunchPlan) -> dict[str, Any]:
    """The arguments of a launch by the names of its parameters."""
    names = [name for _, name in parameters(plan.kernel, call[0], plan.macros)]
    return dict(zip(names, call[3], strict=True))


@both
@pytest.mark.parametrize("lead", [(1, 1), (2, 3)])
@each_flash
def test_each_launch_gets_the_lists_of_the_tiles_that_it_owns(
    backward: Backward, lead: tuple[int, int], deterministic: bool, calls: list[Any]
) -> None:
    mask = random_mask(17, 23, 8, 8, lead)
    problem = replace(PROBLEM, block_mask=mask, bias_dtype="float32")
    with_statistics = not refuses(backward, problem)
    if not with_statistics:
        problem = replace(problem, bias_dtype=None)
    if refuses(backward, problem, deterministic):
        return
    extras, tiling = gpu_extras(problem), tiles_of(backward, problem)
    backward.run(
        *arrays(problem).values(), problem, tiling, extras=extras, deterministic=deterministic
    )
    plan = backward.plan(problem, tiling, deterministic=deterministic)
    orders = {"keys": tile_list.by_kv, "rows": tile_list.by_q, "statistics": tile_list.by_q}
    seen = set()
    for call in calls:
        ending = call[0].rpartition("_")[2]
        if ending not in orders:
            continue
        seen.add(ending)
        args = named(call, plan)
        if plan.kernel in ("05_flash_mma_backward", "06_flash_wgmma_backward"):
            alike = problem.group == 1 or lead[1] == 1
            by_keys, longest = ending == "keys", ending == "rows" or (ending == "keys" and alike)
            queues = tile_list.queues(problem, tiling, by_keys, longest)
            records = queues.records.view("<i8").reshape(*queues.records.shape, 2)
            assert args["list_start"].tolist() == records.tolist()
            assert args["list_entries"].tolist() == queues.entries.tolist()
            if ending == "keys":
                assert args["heads_in_section"] == kv_heads_in_section(problem)
        else:
            lists = orders[ending](problem, tiling)
            assert args["list_start"].tolist() == lists.start.tolist()
            assert args["list_entries"].tolist() == lists.entries.tolist()
        np.testing.assert_array_equal(args["mask_keep"], mask.keep)
        wants = (lead[1] if lead[0] > 1 else 0, int(lead[1] > 1))
        assert (args["mask_batch_lead"], args["mask_head_lead"]) == wants
    assert "keys" in seen and ("statistics" in seen) == with_statistics
    sums = [BACKWARD[name] for name in BY_KEYS]
    assert ("rows" in seen) == (deterministic and backward in sums)


def test_without_a_bias_lse_itself_is_the_statistics(calls: list[Any]) -> None:
    for backward in FLASH.values():
        calls.clear()
        known, tiling = arrays(), tiles_of(backward)
        backward.run(*known.values(), PROBLEM, tiling)
        keys = next(call for call in calls if call[0].endswith("_keys"))
        args = named(keys, backward.plan(PROBLEM, tiling))
        biased = replace(PROBLEM, bias_dtype="float32")
        if refuses(backward, biased):  # no statistics but lse are anything to it
            assert args["lse"] is known["lse"]
            continue
        assert args["row_m"] is known["lse"]
        calls.clear()
        backward.run(*known.values(), biased, TILING, extras=gpu_extras(biased))
        plan = backward.plan(biased, TILING)
        first, last = (
            named(next(call for call in calls if call[0].endswith(name)), plan)
            for name in ("_statistics", "_keys")
        )
        assert first["lse"] is known["lse"] and last["row_m"] is not known["lse"]
        assert last["row_m"] is first["row_m"] and last["row_scale"] is first["row_scale"]


@pytest.mark.parametrize("name", BY_KEYS)
def test_a_sum_of_dq_starts_from_zero(
    name: str, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other memory may hold anything; what atomic additions go to may not."""
    monkeypatch.setattr(
        sys.modules["cupy"], "empty", lambda shape, dtype: on_gpu(np.full(shape, 7, dtype))
    )
    for dtype in VARIANTS[name].dtypes:
        calls.clear()
        problem = replace(PROBLEM, dtype=dtype)
        backward = BACKWARD[name]
        dq, *_ = backward.run(*arrays(problem).values(), problem, TILING)
        keys = next(call for call in calls if call[0].endswith("_keys"))
        dq_sum = named(keys, backward.plan(problem, TILING))["dq_sum"]
        assert dq_sum.dtype == np.float32 and not dq_sum.any()
        assert (dq_sum is dq) == (dtype == "float32")


def test_sums_of_dq_in_whole_tiles_start_from_zero(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """06 adds to padding, too, and converts what rows and columns there are."""
    monkeypatch.setattr(
        sys.modules["cupy"], "empty", lambda shape, dtype: on_gpu(np.full(shape, 7, dtype))
    )
    backward = BACKWARD["flash_wgmma"]
    backward.run(*arrays().values(), PROBLEM, tiles_of(backward))
    plan = backward.plan(PROBLEM, tiles_of(backward))
    keys, convert = (named(call, plan) for call in calls if not call[0].endswith("_delta"))
    assert keys["dq_sum"] is convert["dq_sum"] and not keys["dq_sum"].any()
    assert keys["dq_sum"].shape == (2, 3, 1, 128 * 64) and keys["dq_sum"].dtype == np.float32


@each_backward
def test_arrays_that_are_not_the_problems_are_refused(backward: Backward, calls: list[Any]) -> None:
    right = arrays()
    used = INPUTS if backward in FLASH.values() else INPUTS[:4]
    for name in used:
        for wrong in (right[name][:, :, :-1], right[name].astype(np.float64)):
            changed = {**right, name: on_gpu(wrong)}
            with pytest.raises(ValueError, match=rf"^{name} is .*, the problem says"):
                backward.run(*changed.values(), PROBLEM, tiles_of(backward))
    problem = replace(PROBLEM, masked=True)
    with pytest.raises(ValueError, match="^mask is"):
        backward.run(*right.values(), problem, tiles_of(backward), extras=NO_EXTRAS)
    assert not calls


@pytest.mark.parametrize("layout", ["bshd", "strided", "reversed", "broadcast", "unaligned"])
@each_backward
def test_any_rows_are_used_in_place(backward: Backward, layout: str, calls: list[Any]) -> None:
    known = arrays(layout=layout)
    if backward.kernel == "06_flash_wgmma_backward" and layout not in MAPPED_LAYOUTS:
        with pytest.warns(UserWarning, match="TMA .* copied once") as record:
            backward.run(*known.values(), PROBLEM, tiles_of(backward))
        assert [str(one.message).split()[0] for one in record] == ["d_out", "q", "k", "v"]
        assert len(calls) == 3
        return
    dq, dk, dv, _ = backward.run(*known.values(), PROBLEM, tiles_of(backward))
    known |= {"dq": dq, "dk": dk, "dv": dv}
    assert_launches(backward, calls, known, PROBLEM, aligned=layout != "unaligned")


@pytest.mark.parametrize(("name", "as_inputs"), [("flash_mma", True), ("flash_q_outer", False)])
@pytest.mark.usefixtures("calls")
def test_gradients_lie_by_rows_only_where_the_kernel_can(name: str, as_inputs: bool) -> None:
    """04 adds an fp32 dq up in place, by row number."""
    known = arrays(layout="bshd")
    for gradient, x in zip(
        BACKWARD[name].run(*known.values(), PROBLEM, TILING)[:3],
        (known["q"], known["k"], known["v"]),
        strict=True,
    ):
        assert (gradient.strides == x.strides) == as_inputs
        assert gradient.flags.c_contiguous != as_inputs


@each_flash
def test_lse_may_be_strided(backward: Backward, calls: list[Any]) -> None:
    """Kernels find its rows by number: it is made contiguous."""
    known = arrays()
    wide = on_gpu(np.arange(2 * 3 * 34, dtype=np.float32).reshape(2, 3, 34))
    known["lse"] = wide[..., ::2]
    with pytest.warns(UserWarning, match=r"lse.*copied once"):
        backward.run(*known.values(), PROBLEM, tiles_of(backward))
    keys = next(call for call in calls if call[0].endswith("_keys"))
    args = named(keys, backward.plan(PROBLEM, tiles_of(backward)))
    row_m = args["row_m" if "row_m" in args else "lse"]
    assert row_m.flags.c_contiguous
    np.testing.assert_array_equal(row_m, known["lse"])


# -- 02 -------------------------------------------------------------------------------------


def entries(calls: list[Any]) -> list[str]:
    return [call[0].removeprefix("standard_tiled_") for call in calls]


def test_standard_rebuilds_p_unless_it_is_given(calls: list[Any]) -> None:
    backward = BACKWARD["standard_tiled"]
    own = ["backward_dv", "backward_dp", "backward_ds", "backward_dq", "backward_dk"]
    known = arrays()
    backward.run(*known.values(), PROBLEM, TILING)
    assert entries(calls) == ["scores", "softmax", *own]
    args = {call[0]: named(call, plan_of(backward, call[0], PROBLEM)) for call in calls}
    rebuilt = args["standard_tiled_softmax"]["p"]
    assert rebuilt is args["standard_tiled_backward_dv"]["p"]
    # dP and dS stand where S stood.
    assert args["standard_tiled_scores"]["s"] is args["standard_tiled_backward_dp"]["dp"]
    assert args["standard_tiled_backward_dp"]["dp"] is args["standard_tiled_backward_dk"]["ds"]
    calls.clear()
    p = on_gpu(np.ones((2, 3, 17, 23), np.float16))
    backward.run(*known.values(), PROBLEM, TILING, p=p)
    assert entries(calls) == own
    assert calls[0][3][0] is p and calls[1][3][4] is not p


def test_a_p_of_packed_sequences_is_as_large_as_the_longest(calls: list[Any]) -> None:
    packed = Packed((0, 17, 20), (0, 9, 32))
    problem = AttentionProblem(2, 3, 17, 23, 16, "float16", packed=packed)
    known = arrays(problem)
    BACKWARD["standard_tiled"].run(*known.values(), problem, TILING)
    assert calls[2][3][0].shape == (2, 3, 17, 23)


@pytest.mark.parametrize("change", ["shape", "dtype", "order", "alignment"])
def test_another_p_is_refused(change: str, calls: list[Any]) -> None:
    p = on_gpu(np.ones((2, 3, 17, 23), np.float16))
    wrong = {
        "shape": p[:, :, :16],
        "dtype": p.astype(np.float32),
        "order": on_gpu(np.asfortranarray(p)),
        "alignment": on_gpu(np.ones(p.size + 1, np.float16)[1:]).reshape(p.shape),
    }[change]
    with pytest.raises(ValueError, match=r"^p is .* it must be contiguous \(from a multiple of 16"):
        BACKWARD["standard_tiled"].run(*arrays().values(), PROBLEM, TILING, p=wrong)
    assert not calls


# -- memory ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [None, "float32"])
@each_backward_and_dtype
def test_the_workspace_is_what_was_promised(
    backward: Backward,
    dtype: str,
    bias: str | None,
    calls: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Everything that is allocated, beside the gradients and counters."""
    cupy, made = sys.modules["cupy"], []

    def noting(make: Any) -> Any:
        def allocate(shape: Any, kind: Any) -> Any:
            made.append(make(shape, kind))
            return made[-1]

        return allocate

    for name in ("empty", "zeros"):
        monkeypatch.setattr(cupy, name, noting(getattr(cupy, name)))
    problem = replace(PROBLEM, dtype=dtype, bias_dtype=bias)
    if refuses(backward, problem):
        return
    extras = gpu_extras(problem) if bias else Extras()
    tiling = tiles_of(backward, problem)
    gradients = backward.run(*arrays(problem).values(), problem, tiling, extras=extras)[:3]
    workspace = [a for a in made if not any(a is g for g in gradients)]
    assert sum(a.nbytes for a in workspace) == backward.workspace_bytes(problem)
    assert all(isinstance(a, GpuArray) for a in workspace)


def test_offsets_beyond_32_bits_are_passed_in_full(calls: list[Any]) -> None:
    problem = AttentionProblem(1, 1, 1, 1, 16, "float16")
    row = on_gpu(np.zeros((1, 1, 1, 16), np.float16))
    far = np.lib.stride_tricks.as_strided(row, (1, 1, 1, 16), (2**40, 2**36, 32, 2), subok=True)
    lse = on_gpu(np.zeros((1, 1, 1), np.float32))
    for backward in FLASH.values():
        calls.clear()
        tiling = tiles_of(backward, problem)
        backward.run(far, row, far, row, row, lse, problem, tiling)
        plan = backward.plan(problem, tiling)
        args: dict[str, Any] = {}
        for call in (call for call in calls if call[0].endswith(("_delta", "_keys"))):
            args |= named(call, plan)
        names = {"d_out_strides", "k_strides"} & args.keys()
        assert len(names) == (1 if backward.own_tiles_alone else 2)  # others are in tensor maps
        for name in names:
            assert args[name][0].tolist() == (2**39, 2**35, 16)

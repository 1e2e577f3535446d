"""Every variant from arrays to launches: arguments in the kernels' own order, types and values."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fa_kernels import tile_list
from fa_kernels.block_mask import BlockMask
from fa_kernels.cuda import launch as launching
from fa_kernels.cuda import tensor_map
from fa_kernels.cuda.arguments import rows_aligned, usable
from fa_kernels.cuda.arrays import converted
from fa_kernels.cuda.run import TRACE_HEADER, RowTrace
from fa_kernels.cuda.work_counters import work_counters
from fa_kernels.dropout import keep_scale
from fa_kernels.extras import Extras
from fa_kernels.measure.cases import LAYOUTS, Case
from fa_kernels.measure.option_cases import make_extras
from fa_kernels.packed import Packed
from fa_kernels.problem import AttentionProblem
from fa_kernels.tiling import Tiling
from fa_kernels.traffic.model import ALL_TENSORS
from fa_kernels.variants import VARIANTS, Variant
from tests.cuda.fake_cupy import PROBLEM, TILING, GpuArray, Kernel, inputs, on_gpu
from tests.cuda.signatures import parameters
from tests.reference.problems import allowed_pairs, random_mask

each_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
SPARSE = {name: variant for name, variant in VARIANTS.items() if variant.block_sparse}
each_sparse = pytest.mark.parametrize("variant", SPARSE.values(), ids=SPARSE)
TRACED = {name: variant for name, variant in VARIANTS.items() if variant.traced}
each_traced = pytest.mark.parametrize("variant", TRACED.values(), ids=TRACED)


# -- strides and alignment ------------------------------------------------------------------


def test_rows_are_aligned_if_every_row_starts_at_16_bytes() -> None:
    def of(shape: tuple[int, ...], dtype: str = "float16") -> Any:
        return on_gpu(np.zeros(shape, dtype))

    assert rows_aligned(of((2, 3, 5, 64)), of((1, 1, 1, 8)))
    assert not rows_aligned(of((2, 3, 5, 63)))
    assert not rows_aligned(of((2, 3, 5, 64)), of((2, 3, 5, 20)))
    assert rows_aligned(of((2, 3, 5, 20), "float32")) and not rows_aligned(of((2, 3, 5, 18), "f4"))
    assert rows_aligned(of((1, 1, 1, 63))), "one row has no stride to be wrong"
    shifted = on_gpu(np.zeros(2 * 5 * 64 + 1, np.float16)[1:]).reshape(1, 2, 5, 64)
    assert not rows_aligned(shifted), "every stride is right and the start is not"


def test_the_layouts_of_verify_are_what_they_say() -> None:
    d64 = AttentionProblem(2, 3, 17, 23, 64, "float16")
    for layout in LAYOUTS:
        q = inputs(layout, d64)[0]
        assert q.shape == (2, 3, 17, 64)
        assert q.strides[-1] == q.itemsize, "none of them may need a copy"
        assert rows_aligned(q) == (layout != "unaligned")
    assert not inputs("bshd", d64)[0].flags.c_contiguous


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_rows_are_used_in_place(layout: str) -> None:
    q = inputs(layout)[0]
    assert usable("q", q) is q


@pytest.mark.usefixtures("calls")
def test_a_last_axis_that_is_not_contiguous_is_copied_once_and_reported() -> None:
    q = on_gpu(np.arange(2 * 3 * 4 * 8, dtype=np.float32).reshape(2, 3, 4, 8))
    for view in (q[..., ::2], q[..., ::-1], q.transpose(0, 1, 3, 2)):
        with pytest.warns(UserWarning, match=r"q.*copied once.*contiguous last axis") as record:
            copy = usable("q", view)
        assert len(record) == 1
        assert copy.flags.c_contiguous
        np.testing.assert_array_equal(copy, view)
    one_column = q[..., ::8]
    assert usable("q", one_column) is one_column  # d = 1: there is no next element


def test_the_strides_argument_is_three_int64_in_elements(calls: list[Any]) -> None:
    for layout in LAYOUTS:
        q, k, v = inputs(layout)
        VARIANTS["flash_q_outer"].run(q, k, v, PROBLEM, TILING)
        args = calls[-1][3]
        for array, strides in zip((q, k, v), (args[1], args[3], args[5]), strict=True):
            assert strides.nbytes == 24 and strides.shape == (1,)
            want = [stride // array.itemsize for stride in array.strides[:3]]
            assert list(strides[0].tolist()) == want


def test_offsets_beyond_32_bits_are_passed_in_full(calls: list[Any]) -> None:
    row = on_gpu(np.zeros((1, 1, 1, 16), np.float16))
    far = np.lib.stride_tricks.as_strided(row, (1, 1, 1, 16), (2**40, 2**36, 32, 2), subok=True)
    problem = AttentionProblem(1, 1, 1, 1, 16, "float16")
    VARIANTS["flash_q_outer"].run(far, row, row, problem, TILING)
    assert calls[-1][3][1][0].tolist() == (2**39, 2**35, 16)


# -- arguments ------------------------------------------------------------------------------

WIDTHS: dict[str, Any] = {"int": np.int32, "i64": np.int64, "float": np.float32}
WIDTHS |= {"u64": np.uint64, "unsigned": np.uint32}
ELEMENTS = {"float": "f4", "int": "i4", "i64": "i8", "u64": "u8", "unsigned char": "u1"}
#: Element arrays: bytes to a kernel, bool to NumPy.
FLAGS = ("mask", "keep")


def assert_arguments(
    plan: Any, entry: str, args: Any, arrays: dict[str, Any], p: AttentionProblem
) -> None:
    """Types, widths and values of one launch against the kernel's signature and the problem."""
    declared = parameters(plan.kernel, entry, plan.macros)
    # dq = scale dq_sum has no exponential in it.
    natural = plan.kernel[1] < "3" or p.bias_dtype or entry == "flash_wgmma_backward_convert"
    assert len(args) == len(declared), declared
    values = {
        "nheads": p.nheads,
        "seqlen_q": p.seqlen_q,
        "seqlen_k": p.seqlen_k,
        "kv_group": p.group,
        # The flash rungs work in log2 units, unless a bias may be finfo.min.
        "scale": p.scale if natural else p.scale / np.log(2.0),
        "rows": p.heads * p.seqlen_q,
        "elements": p.heads * p.seqlen_q * p.head_dim,
        "seed": p.seed,
        "keep_scale": keep_scale(p.dropout_p, p.keep_given),
        "drop_below": round(p.dropout_p * 2**16) << 16,
        "total_q": None if p.packed is None else p.packed.total_q,
        "items": plan.steps[0].grid,
    }
    for arg, (kind, name) in zip(args, declared, strict=True):
        if kind == "Strides":
            array = arrays[name.removesuffix("_strides")]
            assert arg.tolist() == [tuple(s // array.itemsize for s in array.strides[:3])]
        elif kind == "Strides4":
            array = arrays[name.removesuffix("_strides")]
            assert arg.tolist() == [tuple(s // array.itemsize for s in array.strides)]
        elif kind == "__grid_constant__ TensorMap":
            array = arrays[name.removesuffix("_map")]
            rows = plan.macros["BLOCK_M" if name in ("q_map", "d_out_map") else "BLOCK_N"]
            assert_map(arg, array, rows)
        elif (kind, name) == ("unsigned*", "counters"):
            assert type(arg) is np.int64 and arg == work_counters(0)
        elif kind == "Band":
            assert arg.nbytes == 24
            assert_band(arg[0], p)
        elif kind.endswith("*"):
            element = "?" if name in FLAGS else ELEMENTS.get(kind[:-1], arrays["q"].dtype)
            element = p.bias_dtype if kind == "bias_t*" else element
            # An fp32 O that is carried in out has no workspace; nothing looks at the pointer.
            assert isinstance(arg, GpuArray) and arg.dtype == element, (name, arg.dtype)
            arrays.setdefault(name, arg)
            assert arg is arrays[name], f"{name} is another array than before"
        else:
            assert type(arg) is WIDTHS[kind], (name, type(arg))
            assert name not in values or arg == pytest.approx(values[name], rel=1e-7), name


def assert_map(arg: Any, array: Any, rows: int) -> None:
    """One element that goes by value, of that array, in boxes of that many rows."""
    assert (arg.shape, arg.dtype.itemsize) == ((1,), 128)
    told = tensor_map.driver().of(arg)
    assert told.address == array.data.ptr
    assert told.lengths == array.shape[::-1] and told.box == (64, rows, 1, 1)


def assert_band(band: Any, p: AttentionProblem) -> None:
    """What the kernel makes of the three numbers is the mask of every sequence."""
    begin, end, bottom_right = (int(x) for x in band)
    for one in [p] if p.packed is None else [part for _, _, part in p.sequences()]:
        offset = one.seqlen_k - one.seqlen_q
        first, last = begin, end
        if p.packed is not None:
            first, last = begin + offset, min(end, bottom_right + offset)
        row, key = np.ogrid[: one.seqlen_q, : one.seqlen_k]
        kept = (key >= row + first) & (key <= row + last)
        np.testing.assert_array_equal(kept, allowed_pairs(replace(one, block_mask=None)))


def gpu_extras(problem: AttentionProblem) -> Extras:
    extras = make_extras(Case(problem, TILING, extras="transposed"), 0, np)
    return converted(extras, on_gpu)


def problems(variant: Variant) -> Iterator[AttentionProblem]:
    for dtype in variant.dtypes:
        for causal in (None, "bottom_right", "top_left"):
            yield replace(PROBLEM, dtype=dtype, causal=causal)


@pytest.mark.parametrize("count", [False, True])
@each_variant
def test_arguments_are_the_kernels_parameters(
    variant: Variant, count: bool, calls: list[Any]
) -> None:
    for problem in problems(variant):
        calls.clear()
        q, k, v = inputs(problem=problem)
        tiling = variant.nearest_tiling(problem, TILING)
        out, lse, traffic = variant.run(q, k, v, problem, tiling, count_traffic=count)
        assert (out.shape, out.dtype) == (q.shape, q.dtype)
        assert (lse.shape, lse.dtype) == (q.shape[:3], np.float32)
        assert (traffic is None) == (not count)
        plan = variant.plan(problem, tiling, count_traffic=count)
        assert [c[0] for c in calls] == [step.entry for step in plan.steps]
        arrays = {"q": q, "k": k, "v": v, "out": out, "lse": lse}
        for (entry, grid, block, args, smem, _), step in zip(calls, plan.steps, strict=True):
            assert (grid, block, smem) == ((step.grid,), (step.threads,), step.smem_bytes)
            assert_arguments(plan, entry, args, arrays, problem)
        counters = arrays.get("traffic_totals")
        assert (counters is not None) == count
        assert counters is None or counters.shape == (len(ALL_TENSORS), 2)


PACKED = Packed((0, 17, 17, 20), (0, 9, 14, 37))
FLAGGED = {"masked": True, "bias_dtype": "float32", "dropout_p": 0.25}
OPTIONS: dict[str, dict[str, Any]] = {
    "window": {"window": (5, 3)},
    "window and top_left": {"window": (None, 4), "causal": "top_left"},
    "an empty band": {"window": (0, 0), "causal": "top_left"},
    "grouped heads": {"nheads_kv": 1},
    "mask": {"masked": True},
    "bias": {"bias_dtype": "float32"},
    "bias of the io dtype": {"bias_dtype": "float16"},
    "dropout": {"dropout_p": 0.25, "seed": 2**63 + 5},
    "a dropout mask": {"dropout_p": 0.25, "keep_given": True},
    "packed": {"packed": PACKED, "causal": "bottom_right"},
    "packed, top_left": {"packed": PACKED, "causal": "top_left", "window": (3, 2)},
    "everything": {**FLAGGED, "seed": 7, "nheads_kv": 1, "window": (9, None), "packed": PACKED},
}


def with_options(fields: dict[str, Any]) -> AttentionProblem:
    if "packed" in fields:
        fields = {**fields, "batch": 3, "seqlen_q": 17, "seqlen_k": 23}
    return replace(PROBLEM, **{"causal": None, "nheads_kv": 3, **fields})


@pytest.mark.parametrize("fields", OPTIONS.values(), ids=OPTIONS)
@each_variant
def test_every_option_reaches_the_kernel(
    variant: Variant, fields: dict[str, Any], calls: list[Any]
) -> None:
    problem = with_options(fields)
    (q, k, v), extras = inputs(problem=problem), gpu_extras(problem)
    if not variant.takes(problem):
        with pytest.raises(NotImplementedError, match="takes no packed .* Use variant='flash_mma'"):
            variant.run(q, k, v, problem, TILING, extras=extras)
        assert problem.packed is not None and not variant.packs and not calls
        return
    tiling = variant.nearest_tiling(problem, TILING)
    out, lse, _ = variant.run(q, k, v, problem, tiling, extras=extras, count_traffic=True)
    assert out.shape == problem.q_shape and lse.shape == problem.q_shape[:3]
    plan = variant.plan(problem, tiling, count_traffic=True)
    arrays = {"q": q, "k": k, "v": v, "out": out, "lse": lse}
    given = {"mask": extras.mask, "bias": extras.bias, "keep": extras.dropout_keep}
    arrays |= {name: array for name, array in given.items() if array is not None}
    for entry, _, _, args, _, _ in calls:
        assert_arguments(plan, entry, args, arrays, problem)
    if problem.packed is not None:
        assert arrays["cu_seqlens_q"].tolist() == list(PACKED.cu_seqlens_q)
        assert arrays["cu_seqlens_k"].tolist() == list(PACKED.cu_seqlens_k)


@each_variant
def test_extras_that_are_not_the_problems_are_refused(variant: Variant, calls: list[Any]) -> None:
    problem = with_options(FLAGGED | {"keep_given": True})
    extras, (q, k, v) = gpu_extras(problem), inputs(problem=problem)
    tiling = variant.nearest_tiling(problem, TILING)
    for name in ("mask", "bias", "dropout_keep"):
        array = getattr(extras, name)
        for wrong in (None, array[..., :-1], array.astype(np.float64)):
            fields: dict[str, Any] = {name: wrong}
            with pytest.raises(ValueError, match=rf"^{name} is .*, the problem says"):
                variant.run(q, k, v, problem, tiling, extras=replace(extras, **fields))
    bare = replace(problem, masked=False)
    with pytest.raises(ValueError, match="^mask is"):
        variant.run(q, k, v, bare, tiling, extras=extras)
    assert not calls


def test_the_workspace_of_kv_outer_is_what_was_promised(calls: list[Any]) -> None:
    for name in ("flash_kv_outer", "flash_kv_outer_io"):
        for dtype in VARIANTS[name].dtypes:
            problem = replace(PROBLEM, dtype=dtype)
            q, k, v = inputs(problem=problem)
            _, lse, _ = VARIANTS[name].run(q, k, v, problem, TILING)
            plan = VARIANTS[name].plan(problem, TILING)
            names = [n for _, n in parameters(plan.kernel, "flash_kv_outer", plan.macros)]
            args = dict(zip(names, calls[-1][3], strict=True))
            assert args["l_hbm"].shape == lse.shape and args["l_hbm"] is not lse
            carried = name.endswith("_io") or dtype == "float32"
            extra = args["l_hbm"].nbytes + (0 if carried else args["o_partial"].nbytes)
            assert extra == VARIANTS[name].workspace_bytes(problem)
            assert (args["o_partial"] is lse) == carried


# -- block masks ----------------------------------------------------------------------------


def masked(lead: tuple[int, int] = (1, 1), **changed: Any) -> AttentionProblem:
    return replace(PROBLEM, block_mask=random_mask(17, 23, 8, 8, lead), **changed)


def mask_arguments(calls: list[Any], variant: Variant, problem: AttentionProblem) -> dict[str, Any]:
    """Every argument of the last launch by the name of its parameter."""
    plan = variant.plan(problem, variant.nearest_tiling(problem, TILING))
    names = [name for _, name in parameters(plan.kernel, plan.steps[0].entry, plan.macros)]
    return dict(zip(names, calls[-1][3], strict=True))


@pytest.mark.parametrize("lead", [(1, 1), (1, 3), (2, 1), (2, 3)])
@each_sparse
def test_a_block_mask_adds_its_lists_and_itself(
    variant: Variant, lead: tuple[int, int], calls: list[Any]
) -> None:
    problem = masked(lead, dtype="float16")
    q, k, v = inputs(problem=problem)
    tiling = variant.nearest_tiling(problem, TILING)
    out, lse, _ = variant.run(q, k, v, problem, tiling, count_traffic=True)
    plan = variant.plan(problem, tiling, count_traffic=True)
    arrays = {"q": q, "k": k, "v": v, "out": out, "lse": lse}
    assert_arguments(plan, calls[-1][0], calls[-1][3], arrays, problem)
    order = tile_list.by_kv if variant.kernel == "03_flash_kv_outer" else tile_list.by_q
    lists = order(problem, tiling)
    if variant.tensor_cores:
        queues = tile_list.queues(problem, tiling)
        records = arrays["list_start"].view(tile_list.LIST_RECORD)[..., 0]
        np.testing.assert_array_equal(records, queues.records)
        np.testing.assert_array_equal(arrays["list_entries"], queues.entries)
    else:
        np.testing.assert_array_equal(arrays["list_start"], lists.start)
        np.testing.assert_array_equal(arrays["list_entries"], lists.entries)
    assert problem.block_mask is not None
    np.testing.assert_array_equal(arrays["mask_keep"], problem.block_mask.keep)


@pytest.mark.parametrize("lead", [(1, 1), (1, 3), (2, 1), (2, 3)])
@each_sparse
def test_every_head_finds_its_own_mask(
    variant: Variant, lead: tuple[int, int], calls: list[Any]
) -> None:
    """batch * mask_batch_lead + head * mask_head_lead, as the kernels compute it."""
    problem = masked(lead, dtype="float16")
    variant.run(*inputs(problem=problem), problem, variant.nearest_tiling(problem, TILING))
    args = mask_arguments(calls, variant, problem)
    assert (args["mask_q_blocks"], args["mask_k_blocks"]) == (3, 3)
    flat = args["mask_keep"].reshape(-1, 3, 3)
    assert problem.block_mask is not None
    for batch, head in np.ndindex(2, 3):
        number = batch * args["mask_batch_lead"] + head * args["mask_head_lead"]
        np.testing.assert_array_equal(flat[number], problem.block_mask.at(batch, head).keep[0, 0])


def test_lists_and_mask_are_copied_to_the_gpu_once(calls: list[Any]) -> None:
    copies = sys.modules["cupy"].copies
    problem = masked(dtype="float16")
    run = VARIANTS["flash_q_outer"].run
    run(*inputs(problem=problem), problem, TILING)
    assert len(copies) == 3
    same = replace(problem, block_mask=random_mask(17, 23, 8, 8))  # an equal mask, made anew
    run(*inputs(problem=same), same, TILING)
    assert len(copies) == 3
    first, second = (mask_arguments(calls[:n], VARIANTS["flash_q_outer"], problem) for n in (1, 2))
    assert first["mask_keep"] is second["mask_keep"]
    # Another tiling, causal mask or loop order has other lists.
    run(*inputs(problem=problem), problem, Tiling(8, 16))
    other = replace(problem, causal=None)
    run(*inputs(problem=other), other, TILING)
    VARIANTS["flash_kv_outer"].run(*inputs(problem=problem), problem, TILING)
    assert len(copies) == 9, "the mask itself once"


@each_sparse
def test_a_mask_that_keeps_nothing_still_has_valid_pointers(
    variant: Variant, calls: list[Any]
) -> None:
    nothing = BlockMask.from_dense(np.zeros((3, 3), bool), 8, 8)
    problem = replace(PROBLEM, block_mask=nothing, dtype="float16")
    variant.run(*inputs(problem=problem), problem, variant.nearest_tiling(problem, TILING))
    assert mask_arguments(calls, variant, problem)["list_entries"].size >= 1


@pytest.mark.parametrize("name", ["standard_naive", "standard_tiled"])
def test_a_block_mask_is_not_ignored_by_what_takes_none(name: str, calls: list[Any]) -> None:
    problem = masked()
    with pytest.raises(NotImplementedError, match="has no block mask: use variant="):
        VARIANTS[name].run(*inputs(problem=problem), problem, TILING)
    assert not calls


# -- traces ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [False, True])
@each_traced
def test_a_trace_has_room_for_every_visit_of_its_row(
    variant: Variant, mask: bool, calls: list[Any]
) -> None:
    problem = replace(masked((2, 3)) if mask else PROBLEM, dtype="float16")
    allowed = np.broadcast_to(allowed_pairs(problem), (2, 3, 17, 23))
    for batch, head, row in ((0, 0, 0), (1, 2, 16), (1, 0, 7)):
        calls.clear()
        trace = RowTrace(batch, head, row)
        q, k, v = inputs(problem=problem)
        out, lse, _ = variant.run(q, k, v, problem, TILING, count_traffic=True, trace=trace)
        plan = variant.plan(problem, TILING, trace=True, count_traffic=True)
        arrays = {"q": q, "k": k, "v": v, "out": out, "lse": lse}
        assert_arguments(plan, calls[-1][0], calls[-1][3], arrays, problem)
        names = [n for _, n in parameters(plan.kernel, plan.steps[0].entry, plan.macros)]
        args = dict(zip(names, calls[-1][3], strict=True))
        assert args["trace_row"] == (batch * 3 + head) * 17 + row
        tile = slice(row // 16 * 16, row // 16 * 16 + 16)  # visits are those of the row's Q tile
        visits = sum(allowed[batch, head, tile, j : j + 16].any() for j in (0, 16))
        assert trace.records is not None and type(trace.records) is np.ndarray
        assert trace.records.shape == (visits, TRACE_HEADER + 16)
        assert args["trace"].shape == (max(1, visits), TRACE_HEADER + 16), "a valid pointer"


# -- results and refusals -------------------------------------------------------------------


def test_counters_come_back_by_tensor(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    class Counts(Kernel):
        def __call__(self, grid: Any, block: Any, args: Any, shared_mem: int) -> None:
            args[-1][...] = np.arange(2 * len(ALL_TENSORS), dtype=np.uint64).reshape(-1, 2) + 2**40

    monkeypatch.setattr(launching, "load_entry", lambda name, macros, entry: Counts(entry, calls))
    _, _, traffic = VARIANTS["flash_q_outer"].run(*inputs(), PROBLEM, TILING, count_traffic=True)
    assert traffic is not None
    assert traffic.read_bytes == {t: 2 * i + 2**40 for i, t in enumerate(ALL_TENSORS)}
    assert traffic.written_bytes == {t: 2 * i + 1 + 2**40 for i, t in enumerate(ALL_TENSORS)}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_too_much_shared_memory_is_refused_before_anything_is_allocated(
    variant: Variant, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "smem_limit_bytes", lambda: 1024)
    monkeypatch.setattr(sys.modules["cupy"], "empty", lambda *a: pytest.fail("allocated"))
    problem = replace(PROBLEM, dtype=variant.dtypes[0])
    tiling = variant.nearest_tiling(problem, TILING)
    if variant.kernel == "01_standard_naive":  # it has none
        monkeypatch.undo()
        assert variant.plan(problem, TILING).smem_bytes == 0
        return
    tiles = f"B_c = {tiling.block_n}, B_r = {tiling.block_m}"
    with pytest.raises(ValueError, match=rf"{tiles} needs .* this GPU allows 1 KiB"):
        variant.run(*inputs(problem=problem), problem, tiling)
    assert not calls


@each_variant
def test_arrays_that_are_not_the_problems_are_refused(variant: Variant, calls: list[Any]) -> None:
    """A kernel would read out of bounds."""
    problem = replace(PROBLEM, dtype="float16")
    q, k, v = inputs(problem=problem)
    for wrong, name in (
        (replace(problem, seqlen_k=problem.seqlen_k + 1), "k"),
        (replace(problem, seqlen_q=problem.seqlen_q + 1), "q"),
        (replace(problem, batch=3), "q"),
        (replace(problem, dtype="bfloat16"), "q"),
    ):
        with pytest.raises(ValueError, match=rf"^{name} is float16 of shape .*, the problem says"):
            variant.run(q, k, v, wrong, variant.nearest_tiling(problem, TILING))
    assert not calls

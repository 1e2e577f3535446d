"""From arrays to the launches of 07_decode_split_kv: arguments, workspace, graphs, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fa_kernels.cuda import run_decode as subject
from fa_kernels.cuda.run_decode import run_decode
from fa_kernels.decode_problem import DecodeProblem
from fa_kernels.traffic.decode_model import launched_decode
from tests.cuda.fake_decode import Gpu, install, on_gpu
from tests.cuda.signatures import parameters
from tests.decode_steps import Step, formula, make

PLAIN = DecodeProblem(2, 4, 2, 3, 2, 48, 16, "float16")
PROBLEMS = {
    "plain": PLAIN,
    "nothing new": replace(PLAIN, seqlen_new=0),
    "window": replace(PLAIN, window=(9, 2)),
    "paged": replace(PLAIN, max_seqlen=None, page_size=16, max_pages=3, num_pages=7),
    "large pages": replace(PLAIN, max_seqlen=None, page_size=272, max_pages=2, num_pages=5),
}
TOTALS = (48, 17)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return install(monkeypatch)


def run(step: Step, num_splits: int, lengths: Any = None, **options: Any) -> Any:
    """`run_decode` of a step on the GPU."""
    q, k, v = (on_gpu(x) for x in (step.q, step.k, step.v))
    new = {name: on_gpu(getattr(step, name)) for name in ("k_new", "v_new", "block_table")}
    lengths = on_gpu(step.cache_seqlens) if lengths is None else lengths
    return run_decode(q, k, v, lengths, step.problem, num_splits, **new | options)


@pytest.mark.parametrize("num_splits", [1, 3, 9])
@pytest.mark.parametrize("name", PROBLEMS)
def test_arguments_are_what_the_kernels_take(gpu: Gpu, name: str, num_splits: int) -> None:
    step = make(PROBLEMS[name], TOTALS)
    out, lse, counted = run(step, num_splits)
    want_out, want_lse = formula(step)
    np.testing.assert_allclose(out.get().astype(float), want_out, atol=2e-3)
    np.testing.assert_allclose(lse.get(), want_lse, atol=1e-4)
    assert counted is None
    entries = ["decode_split_kv_append"] * (step.problem.seqlen_new > 0) + [
        "decode_split_kv_attend"
    ]
    assert gpu.entries == entries + ["decode_split_kv_merge"] * (num_splits > 8)


TYPES: dict[str, Any] = {"int": np.int32, "i64": np.int64, "float": np.float32}
ELEMENTS = {"float*": "float32", "int*": "int32", "io_t*": "float16", "u64*": "uint64"}


@pytest.mark.parametrize("num_splits", [1, 3, 9])
@pytest.mark.parametrize("name", PROBLEMS)
def test_arguments_are_those_of_the_source(gpu: Gpu, name: str, num_splits: int) -> None:
    """Their number, widths and kinds; of arrays the dtype."""
    run(make(PROBLEMS[name], TOTALS), num_splits, count_traffic=True)
    for plan, step, args in gpu.launches:
        declared = parameters(plan.kernel, step.entry, plan.macros)
        assert len(args) == len(declared), declared
        for (kind, parameter), arg in zip(declared, args, strict=True):
            if kind in TYPES:
                assert type(arg) is TYPES[kind], parameter
            elif kind == "Strides":
                assert arg.dtype.names == ("batch", "head", "row"), parameter
            else:
                assert arg.dtype.name == ELEMENTS[kind], parameter


def test_counters_are_the_last_argument_of_every_launch(gpu: Gpu) -> None:
    for splits, launches in ((2, 2), (9, 3)):  # merged in a cluster; by a launch
        gpu.launches.clear()
        _, _, counted = run(make(PLAIN, TOTALS), splits, count_traffic=True)
        rows, on_chip = subject.block_rows(PLAIN, splits), splits == 2
        assert subject.merges_on_chip(PLAIN, splits) is on_chip
        model = launched_decode(PLAIN, TOTALS, splits, rows, on_chip)
        assert counted is not None and counted.same_as(model)
        (totals,) = {id(args[-1]): args[-1] for _, _, args in gpu.launches}.values()
        assert totals.dtype == np.uint64 and len(gpu.launches) == launches


def test_what_a_cluster_merges_leaves_nothing_in_hbm(gpu: Gpu) -> None:
    run(make(PLAIN, TOTALS), 3)
    assert len(gpu.made) == 2, "out and lse"
    gpu.made.clear()
    run(make(PLAIN, TOTALS), 3, limits={"clusters": False})
    assert len(gpu.made) == 4


def test_one_number_is_filled_in_on_the_gpu(gpu: Gpu) -> None:
    step = make(PLAIN, (20, 20))
    out, _, _ = run(step, 1, lengths=18)
    np.testing.assert_allclose(out.get().astype(float), formula(step)[0], atol=2e-3)
    assert gpu.launches[-1][2][11].dtype == np.int32 and gpu.launches[-1][2][11].tolist() == [
        18,
        18,
    ]


def test_a_graph_keeps_its_workspace_as_long_as_its_result(gpu: Gpu) -> None:
    step = make(PLAIN, (20, 20))
    eager, _, _ = run(step, 9, lengths=18)
    assert len(gpu.made) == 5, "out, lse, both partial ones and the lengths"
    gpu.made.clear()
    stream = gpu.cupy.cuda.Stream(non_blocking=True)
    stream.begin_capture()
    out, lse, _ = run(step, 9, lengths=18)
    stream.end_capture().launch(stream)
    (buffer,) = gpu.made
    for array in (out, lse, *gpu.launches[-2][2][9:12]):
        assert np.shares_memory(array, buffer)
        assert (array.ctypes.data - buffer.ctypes.data) % 256 == 0
    np.testing.assert_array_equal(out, eager)


def test_the_dummies_of_one_split_are_addresses_of_its_own(gpu: Gpu) -> None:
    _, lse, _ = run(make(replace(PLAIN, seqlen_new=0), TOTALS), 1)
    (launch,) = gpu.launches
    assert launch[2][9] is lse and launch[2][10] is lse and len(gpu.made) == 2


def test_unaligned_rows_are_another_build(gpu: Gpu) -> None:
    problem = replace(PLAIN, head_dim=12)
    run(make(problem, TOTALS), 1)
    run(make(PLAIN, TOTALS), 1)
    assert [plan.macros["ALIGNED"] for plan, _, _ in gpu.launches] == [0, 0, 1, 1]


def test_rows_with_gaps_between_them_are_another_build(gpu: Gpu) -> None:
    """A cache as models have it, (batch, seqlen, heads, d): a tile of a head is no single block."""
    step = make(replace(PLAIN, seqlen_new=0), TOTALS)
    rows = step.k.transpose(0, 2, 1, 3).copy().view(type(on_gpu(step.k))).transpose(0, 2, 1, 3)
    q, k, v, lengths = (on_gpu(x) for x in (step.q, step.k, step.v, step.cache_seqlens))
    for cache in (k, rows):
        run_decode(q, cache, v, lengths, step.problem, 1)
    assert [plan.macros["BULK_COPIES"] for plan, _, _ in gpu.launches] == [1, 0]


def test_pages_of_other_libraries_are_taken_transposed(gpu: Gpu) -> None:
    """(pages, page_size, heads, d), as flash-attn and vLLM have them: written in place, too."""
    step = make(PROBLEMS["paged"], TOTALS)
    theirs = [on_gpu(np.ascontiguousarray(x.swapaxes(1, 2))) for x in (step.k, step.v)]
    k, v = (x.transpose(0, 2, 1, 3) for x in theirs)
    rest = {name: on_gpu(getattr(step, name)) for name in ("k_new", "v_new", "block_table")}
    lengths = on_gpu(step.cache_seqlens)
    out, _, _ = run_decode(on_gpu(step.q), k, v, lengths, step.problem, 2, **rest)
    np.testing.assert_allclose(out.get().astype(float), formula(step)[0], atol=2e-3)
    assert all(args[2] is k or args[4] is k for _, _, args in gpu.launches[:2]), "no copy"
    assert {plan.macros["BULK_COPIES"] for plan, _, _ in gpu.launches} == {0}
    page, slot = divmod(int(step.cache_seqlens[0]), 16)
    assert step.block_table is not None and step.k_new is not None
    written = theirs[0][int(step.block_table[0, page]), slot]
    np.testing.assert_array_equal(written, step.k_new[0, :, 0])


def test_a_plan_is_made_once(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    plan = subject.plan_decode

    def counting(*args: Any, **options: Any) -> Any:
        made.append(args)
        return plan(*args, **options)

    monkeypatch.setattr(subject, "plan_decode", counting)
    subject.planned.cache_clear()
    step = make(PLAIN, TOTALS)
    for _ in range(3):
        run(step, 2)
    assert len(made) == 1


@pytest.mark.usefixtures("gpu")
def test_arrays_that_are_not_the_problems_are_refused() -> None:
    step = make(PLAIN, TOTALS)
    with pytest.raises(ValueError, match=r"q is \('float32'.*the problem says \('float16'"):
        run(replace(step, q=step.q.astype(np.float32)), 1)
    with pytest.raises(ValueError, match="k_new is None, the problem says"):
        run(replace(step, k_new=None), 1)
    with pytest.raises(ValueError, match="block_table is .* the problem says int32 None"):
        run(replace(step, block_table=np.zeros((2, 3), np.int32)), 1)
    with pytest.raises(ValueError, match=r"cache_seqlens is \('int64', \(2,\)\), .* int32 \(2,\)"):
        run(step, 1, lengths=on_gpu(np.array([3, 3])))

"""Ceilings of a device: what the launches must leave, what is timed, what a run holds."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fa_kernels.__main__ import main
from fa_kernels.cuda import launch, sass
from fa_kernels.cuda.compile import compile_report
from fa_kernels.measure import (
    ceiling_attempts,
    ceiling_products,
    ceiling_timing,
    ceilings,
    ceilings_run,
    gemm,
    gpu_state,
    memory,
    sweep,
)
from fa_kernels.measure.ceiling_attempts import BLOCK_THREADS, SOURCE, Attempt, Gpu
from fa_kernels.measure.ceiling_records import (
    CEILINGS,
    COLUMNS,
    FILE,
    LATER,
    CeilingRow,
    append_ceilings,
    load_ceilings,
    row_fault,
    without_rate,
)
from fa_kernels.measure.ceilings import GROUPS, WAYS, measure_ceiling, measure_group
from fa_kernels.measure.ceilings_run import record_ceilings
from fa_kernels.measure.gemm import Gemm
from fa_kernels.measure.records import (
    MEASURED_DIR,
    RUN_KEYS,
    SCHEMA_VERSION,
    RecordError,
    list_runs,
    load_run,
)
from tests.measure import fake_ceilings
from tests.measure.fake_ceilings import GPU
from tests.measure.rows import ROW as ATTENTION_ROW
from tests.measure.rows import write_run

OURS = list(WAYS)
ROW = CeilingRow(
    "hbm_read",
    "fa_kernels",
    "GB/s",
    4100.0,
    4200.0,
    4300.0,
    20,
    4.3e9,
    2**32,
    "ok",
    "a launch",
    0.0,
)


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small launches, executed in NumPy; each takes a millisecond."""
    monkeypatch.setitem(sys.modules, "cupy", fake_ceilings.fake_cupy())
    monkeypatch.setattr(ceiling_attempts, "kernel", fake_ceilings.kernel)
    monkeypatch.setattr(gemm, "multiply", fake_ceilings.multiply)
    sizes = {
        "STREAM_BYTES": 2**20, "L2_BYTES_PER_SM": 10**6, "SMEM_BYTES_PER_SM": 10**5,
        "FMA_STEPS": 64, "EXP_STEPS": 64, "ADDS_PER_SM": 2**17, "MATMUL": (32, 64),
        "APART_BYTES": (2**18, 2**19),
    }  # fmt: skip
    for name, value in sizes.items():
        monkeypatch.setattr(ceiling_attempts, name, value)
    monkeypatch.setattr(ceiling_timing, "timed_ms", lambda run: 1.0)
    monkeypatch.setattr(ceiling_timing, "sustained_ms", lambda run, seconds: [1.0] * 8)
    monkeypatch.setattr(ceiling_products, "PAUSE_SECONDS", 0.0)


def attempts_of(name: str) -> list[Attempt]:
    return list(WAYS[name](GPU))


def spoil(monkeypatch: pytest.MonkeyPatch, entry: str, change: Callable[..., None]) -> None:
    """Let one kernel do `change` in the place of what it should."""
    monkeypatch.setitem(fake_ceilings.KERNELS, entry, change)


# -- what a launch must leave ----------------------------------------------------------------------


@pytest.mark.parametrize("names", GROUPS)
def test_what_the_kernels_compute_is_what_is_expected(
    emulated: None, names: tuple[str, ...]
) -> None:
    """Every launch shape: executed step by step, compared with the closed form."""
    rows = measure_group(names, GPU)
    assert tuple(row.ceiling for row in rows) == names
    for row in rows:
        assert row.status == "ok", row.detail
        assert row.unit == CEILINGS[row.ceiling] and row_fault(row) is None


def test_the_groups_are_the_ceilings_in_their_order() -> None:
    assert [name for names in GROUPS for name in names] == list(CEILINGS)


@pytest.mark.parametrize("name", OURS)
def test_several_shapes_are_tried_and_sizes_are_said(emulated: None, name: str) -> None:
    found = attempts_of(name)
    assert len(found) > 1 and len({attempt.words for attempt in found}) == len(found)
    assert all(attempt.amount > 0 for attempt in found)
    assert f"fastest of {len(found)}" in measure_ceiling(name, GPU).detail


@pytest.mark.parametrize("name", OURS)
def test_a_kernel_that_does_nothing_is_not_timed(
    emulated: None, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for entry in fake_ceilings.KERNELS:
        spoil(monkeypatch, entry, lambda *args: None)
    monkeypatch.setattr(ceiling_timing, "timed_ms", lambda run: pytest.fail("timed what is wrong"))
    row = measure_ceiling(name, GPU)
    assert (row.status, row.median) == ("failed", None) and "wrong by" in row.detail


@pytest.mark.parametrize(
    ("name", "entry", "last"),
    [
        ("hbm_copy", "copy_stream", 1),
        ("hbm_read", "read_stream", 1),
        ("l2_read", "read_stream", 1),
        ("l2_read_apart", "read_apart", 1),
        ("smem_read", "read_shared", 1),
        ("l2_add", "add_in_l2", 1),
        ("fp32_fma", "multiply_add", 32),
        ("exp2", "exponentials", 8),
    ],
)
def test_a_kernel_that_does_less_is_found_out(
    emulated: None, monkeypatch: pytest.MonkeyPatch, name: str, entry: str, last: int
) -> None:
    """The last argument of each says how often: less by `last` shows."""
    real = fake_ceilings.KERNELS[entry]
    spoil(monkeypatch, entry, lambda *args: real(*args[:-1], args[-1] - last))
    assert measure_ceiling(name, GPU).status == "failed"


def test_what_one_shape_copied_does_not_pass_for_the_next(
    emulated: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = fake_ceilings.copy_stream, [0]

    def once(*args: Any) -> None:
        calls[0] += 1
        if calls[0] == 1:
            real(*args)

    spoil(monkeypatch, "copy_stream", once)
    assert measure_ceiling("hbm_copy", GPU).status == "failed"


def test_bytes_are_those_that_the_kernels_touch(
    emulated: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = attempts_of("hbm_copy")[0]
    assert copied.amount == 2 * 2**19 == 2 * copied.set_bytes
    read = attempts_of("hbm_read")[-1]
    assert read.amount == read.set_bytes == 2**20
    for attempt in attempts_of("l2_read"):
        assert attempt.set_bytes == GPU.l2_bytes // 8
        assert 0 <= GPU.sm_count * 10**6 - attempt.amount < 0.3e6
    apart = attempts_of("l2_read_apart")
    assert len({attempt.set_bytes for attempt in apart}) > 1
    for attempt in apart:
        assert attempt.set_bytes <= GPU.l2_bytes and attempt.amount % attempt.set_bytes == 0
    for attempt in attempts_of("smem_read"):
        assert attempt.amount <= GPU.sm_count * 10**5


def test_every_block_of_a_set_apart_reads_what_no_other_does(
    emulated: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rates of the sizes stand in the detail; a small L2 gets smaller sets."""
    row = measure_ceiling("l2_read_apart", GPU)
    tried = row.detail.partition("tried shortly: ")[2]
    assert "256 KiB" in tried and "512 KiB" in tried and tried.endswith(" GB/s")
    monkeypatch.setattr(ceiling_attempts, "APART_BYTES", (2**30,))
    small = attempts_of("l2_read_apart")
    assert small and all(attempt.set_bytes <= GPU.l2_bytes for attempt in small)
    read: list[int] = []
    spoil(
        monkeypatch, "read_apart",
        lambda blocks, threads, source, sums, own, per_block: read.append(
            4 * source.size - blocks * int(own) * threads * 64
        ),
    )  # fmt: skip
    for attempt in small:
        attempt.run()
    assert read == [0] * len(small), "block for block, the whole set and nothing twice"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_that_are_added_up_in_16_bits_are_found_out(
    emulated: None, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    made = Gemm.of(dtype, 128)
    kind = made.a.dtype
    right = (made.a.astype(np.float32) @ made.b.astype(np.float32)).astype(kind)
    assert made.error(right) <= made.allowed
    low = np.zeros_like(right)
    for k in range(128):
        low = (low + made.a[:, k : k + 1] * made.b[k]).astype(kind)
    assert made.error(low) > made.error(right)
    assert made.error(right.T.copy()) > made.allowed
    spoiled = right.copy()
    spoiled[made.truth[0][0][0]] = 0
    assert made.error(spoiled) > made.allowed


# -- what is timed ---------------------------------------------------------------------------------


def test_the_fastest_shape_stands_for_the_ceiling(
    emulated: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = attempts_of("hbm_read")
    times = iter([3.0] * 3 + [1.0] * 3 + [2.0] * 3 * (len(shapes) - 2) + [1.0, 2.0] * 10)
    monkeypatch.setattr(ceiling_timing, "timed_ms", lambda run: next(times))
    row = measure_ceiling("hbm_read", GPU)
    assert row.detail.startswith(shapes[1].words) and row.amount == shapes[1].amount
    best = row.amount / 1e-3 / 1e9
    assert (row.p20, row.median, row.p80) == pytest.approx((best / 2, 0.75 * best, best))
    assert row.n == ceiling_timing.SAMPLES


def test_without_cublas_the_remedy_is_named(
    emulated: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(dtype: str, layout: str) -> Any:
        raise ImportError("no libcublas")

    monkeypatch.setattr(gemm, "multiply", missing)
    rows = measure_group(GROUPS[-1], GPU)
    assert len(rows) == 4
    for row in rows:
        assert row.status == "refused" and "pip install nvidia-cublas" in row.detail
        assert row_fault(row) is None


def test_a_launch_that_fails_leaves_the_others(
    emulated: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("an illegal\nmemory access")

    spoil(monkeypatch, "read_shared", broken)
    row = measure_ceiling("smem_read", GPU)
    assert row.status == "failed" and row.detail == "RuntimeError: an illegal memory access"
    assert measure_ceiling("exp2", GPU).status == "ok"


# -- what the compiler makes of it -----------------------------------------------------------------

#: Entry -> instructions that one of its loops must hold, how many at least, and those that no loop
#: may hold: what the unit in question does not wait for.
IN_LOOPS = {
    "copy_stream": ({"LDG.E.EF.128": 4, "STG.E.EF.128": 4}, "LDL"),
    "read_stream": ({"LDG.E.128.STRONG.GPU": 4}, "LDL"),
    "read_apart": ({"LDG.E.128.STRONG.GPU": 4}, "LDL"),
    "read_shared": ({"LDS.128": 8}, "STS"),
    "add_in_l2": ({"RED": 4}, "LDG"),
    "multiply_add": ({"FFMA": 128}, "LD"),
    "exponentials": ({"MUFU.EX2": 32, "FADD": 64}, "FMUL"),
}


@pytest.mark.parametrize("arch", [80, 90])
def test_the_loops_hold_the_instructions_that_are_meant(arch: int) -> None:
    """Not hoisted, not split into narrower ones, and nothing spilled."""
    pytest.importorskip("cupy_backends")
    source = SOURCE.read_text(encoding="utf-8")
    for threads in BLOCK_THREADS:
        report = compile_report(SOURCE.stem, {"THREADS": threads}, f"sm_{arch}", source)
        assert report.spill_bytes == 0 and set(report.registers) == set(IN_LOOPS)
        # 1024 threads on an SM: what fits there at once with 64 registers each.
        assert max(report.registers.values()) <= 64
    if sass.nvdisasm() is None:
        pytest.skip("nvdisasm is not here: pip install nvidia-cuda-nvdisasm")
    loops = sass.read_loops(sass.listing(report.cubin))
    for entry, (wanted, unwanted) in IN_LOOPS.items():
        largest = max(loops[entry], key=len)
        for opcode, least in wanted.items():
            assert sum(code.startswith(opcode) for code in largest) >= least, (entry, largest)
        assert not any(code.startswith(unwanted) for code in largest), (entry, largest)
        # Little else: a loop of FFMA is FFMA.
        if entry == "multiply_add":
            assert sum(code.startswith("FFMA") for code in largest) >= 0.95 * len(largest)


def test_python_and_cuda_agree_on_the_sizes() -> None:
    code = SOURCE.read_text(encoding="utf-8")
    for name in ("IN_FLIGHT", "VECTOR_BYTES", "FMA_CHAINS", "EXP_CHAINS"):
        assert f"constexpr int {name} = {getattr(ceiling_attempts, name)};" in code
    assert all(len(line) <= 100 for line in code.splitlines())
    assert code.startswith("// What one GPU reaches")


# -- the record ------------------------------------------------------------------------------------


@pytest.fixture
def on_a_gpu(emulated: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that says of itself what a run needs."""
    about: dict[str, Any] = dict.fromkeys(RUN_KEYS, "x")
    about |= {"schema": SCHEMA_VERSION, "run_id": "20270101-h200-", "device": "NVIDIA H200"}
    monkeypatch.setattr(
        sweep, "describe_run", lambda command, method: {**about, "command": command}
    )
    monkeypatch.setattr(launch, "available", lambda: True)
    monkeypatch.setattr(Gpu, "current", classmethod(lambda cls: GPU))
    monkeypatch.setattr(memory, "free_pools", lambda: None)


def test_the_command_records_every_ceiling(
    on_a_gpu: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["measure", "--ceilings", "--commit", "abc", "--out", str(tmp_path)]) == 0
    (run_id,) = list_runs(tmp_path, kind="ceilings")
    assert run_id == "20270101-h200-ceilings" and run_id in capsys.readouterr().out
    rows = load_ceilings(run_id, tmp_path)
    assert [row.ceiling for row in rows] == list(CEILINGS)
    assert {row.status for row in rows} == {"ok"}
    run = load_run(run_id, tmp_path)
    assert run.about["commit"] == "abc" and run.about["method"] == ceilings.METHOD
    assert run.rows == ()


def test_a_run_goes_on_where_it_stopped(on_a_gpu: None, tmp_path: Path) -> None:
    said: list[str] = []
    folder, whole = record_ceilings(tmp_path, "ceilings", "x", seconds=-1.0, say=said.append)
    assert not whole and load_ceilings(folder.name, tmp_path) == ()
    assert said == [f"deadline reached with {len(GROUPS)} left: resume {folder.name}"]
    append_ceilings(folder, [ROW])
    folder, whole = record_ceilings(tmp_path, "ceilings", "x", folder.name, say=said.append)
    rows = load_ceilings(folder.name, tmp_path)
    assert whole and rows[0] == ROW and len(rows) == len(CEILINGS)


def test_the_clock_at_work_is_on_record(
    on_a_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read ten times a second, into each row and as a whole into run.json."""
    readings: list[dict[str, float]] = []
    asked: list[int] = []

    @contextlib.contextmanager
    def watching(interval_ms: int) -> Iterator[list[dict[str, float]]]:
        asked.append(interval_ms)
        yield readings

    def sustained(run: Callable[[], None], seconds: float) -> list[float]:
        readings.extend({"sm_mhz": mhz, "busy_pct": 100.0} for mhz in (345.0, 1755.0, 1755.0))
        return [1.0] * 8

    monkeypatch.setattr(gpu_state, "watching", watching)
    monkeypatch.setattr(ceiling_timing, "sustained_ms", sustained)
    folder, whole = record_ceilings(tmp_path, "ceilings", "x", say=lambda line: None)
    rows = {row.ceiling: row for row in load_ceilings(folder.name, tmp_path)}
    bursts = ("matmul_fp16", "matmul_bf16")
    assert whole and asked == [ceilings_run.INTERVAL_MS] and asked[0] <= 100
    assert {row.sm_mhz for name, row in rows.items() if name not in bursts} == {1755.0}
    assert " at 1755 MHz: " in ceilings_run.said(rows["fp32_fma"])
    (state,) = json.loads((folder / "run.json").read_text())["gpu_state"]
    assert state["sm_mhz"]["median"] == 1755.0


def test_a_run_killed_in_the_middle_goes_on_and_is_sealed(
    on_a_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ceilings.measure_group

    def killed(names: tuple[str, ...], *args: Any) -> list[CeilingRow]:
        if names == GROUPS[3]:
            raise KeyboardInterrupt
        return real(names, *args)

    monkeypatch.setattr(ceilings, "measure_group", killed)
    with pytest.raises(KeyboardInterrupt):
        record_ceilings(tmp_path, "ceilings", "x", say=lambda line: None)
    (run_id,) = list_runs(tmp_path)
    with (tmp_path / run_id / FILE).open("a") as file:
        file.write("smem_read,fa_ker")  # as a kill in the middle of a write leaves it
    monkeypatch.setattr(ceilings, "measure_group", real)
    record_ceilings(tmp_path, "ceilings", "x", run_id, say=lambda line: None)
    assert [row.ceiling for row in load_ceilings(run_id, tmp_path)] == list(CEILINGS)
    assert load_run(run_id, tmp_path).about["ceilings_seal"] == "seal_ceilings.csv"


def test_an_older_run_is_not_gone_on_with(on_a_gpu: None, tmp_path: Path) -> None:
    folder = write_run(tmp_path, [], "20260101-h200-ceilings", kind="ceilings")
    (folder / FILE).write_text(",".join(COLUMNS[:-1]) + "\n")
    about = (folder / "run.json").read_bytes()
    with pytest.raises(RecordError, match="start another run with --label"):
        record_ceilings(tmp_path, "ceilings", "x", folder.name)
    assert (folder / "run.json").read_bytes() == about


def test_the_option_takes_no_grid() -> None:
    with pytest.raises(SystemExit, match="--ceilings takes no seqlens"):
        main(["measure", "--ceilings", "--seqlens", "128"])
    with pytest.raises(SystemExit, match="different kinds"):
        main(["measure", "--ceilings", "--speed"])


def test_a_measured_line_says_rate_or_reason() -> None:
    assert ceilings_run.said(ROW) == "hbm_read 4200 GB/s: a launch"
    refused = without_rate("matmul_fp16", "cublas", "refused", "no cuBLAS")
    assert ceilings_run.said(refused) == "matmul_fp16 refused: no cuBLAS"


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"ceiling": "hbm_write"}, "not known"),
        ({"unit": "TFLOP/s"}, "not known"),
        ({"status": "good"}, "status"),
        ({"detail": ""}, "no word"),
        ({"median": float("nan")}, "finite"),
        ({"set_bytes": -1}, "negative"),
        ({"median": None}, "missing"),
        ({"median": 5000.0}, "order"),
        ({"n": 2}, "fewer than 3"),
        ({"max_abs_err": None}, "not checked"),
        ({"status": "failed"}, "a rate of status"),
        ({"sm_mhz": 0.0}, "a clock that is not positive"),
    ],
)
def test_what_is_no_ceiling_is_refused(changed: dict[str, Any], fault: str, tmp_path: Path) -> None:
    row = replace(ROW, **changed)
    assert fault in (row_fault(row) or "")
    with pytest.raises(RecordError, match="refusing to record"):
        append_ceilings(tmp_path, [row])
    assert not (tmp_path / FILE).exists()


def written(root: Path, text: str) -> str:
    """A run whose ceilings.csv holds `text`."""
    folder = write_run(root, [], "20270101-h200-ceilings", kind="ceilings")
    (folder / FILE).write_text(text, encoding="utf-8")
    load_run.cache_clear()
    return folder.name


GOOD = "hbm_read,fa_kernels,GB/s,1,2,3,20,1e9,1024,ok,a launch,0,1980"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a,b\n", "other columns"),
        (f"{','.join(COLUMNS)}\n{GOOD},more\n", "more cells"),
        (f"{','.join(COLUMNS)}\n{GOOD[:-5]}\n", "sm_mhz = None"),
        (f"{','.join(COLUMNS)}\n{GOOD.replace('20', 'many')}\n", "n = 'many' is no int"),
        (f"{','.join(COLUMNS)}\n{GOOD.replace('GB/s', 'B/s')}\n", "not known"),
    ],
)
def test_a_corrupt_file_is_refused_in_words(text: str, fault: str, tmp_path: Path) -> None:
    run_id = written(tmp_path, text)
    with pytest.raises(RecordError, match=fault) as refusal:
        load_ceilings(run_id, tmp_path)
    assert "git checkout" in str(refusal.value)


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    run_id = written(tmp_path, f"{','.join(COLUMNS)}\n{GOOD}\n")
    (row,) = load_ceilings(run_id, tmp_path)
    assert (row.p20, row.median, row.p80, row.n, row.set_bytes) == (1.0, 2.0, 3.0, 20, 1024)


def test_another_kind_of_run_has_no_ceilings(tmp_path: Path) -> None:
    folder = write_run(tmp_path, [ATTENTION_ROW])
    load_run.cache_clear()
    with pytest.raises(RecordError, match="of kind 'grid', not 'ceilings'"):
        load_ceilings(folder.name, tmp_path)


def test_the_schema_file_says_what_the_loader_reads() -> None:
    path = MEASURED_DIR.parent / "schema" / "ceilings.schema.json"
    schema = json.loads(path.read_text(encoding="utf-8"))
    assert tuple(field["name"] for field in schema["fields"]) == COLUMNS
    said = {field["name"]: field["description"] for field in schema["fields"]}
    assert all(name in said["ceiling"] for name in CEILINGS)
    assert all(unit in said["unit"] for unit in CEILINGS.values())


@pytest.mark.parametrize("run_id", list_runs(kind="ceilings"))
def test_recorded_ceilings_are_whole_and_none_failed(run_id: str) -> None:
    rows = load_ceilings(run_id)
    older = [name for name in CEILINGS if name not in LATER]
    assert [row.ceiling for row in rows] in (list(CEILINGS), older)
    assert not [row for row in rows if row.status != "ok"]


# -- on a GPU --------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not launch.available(), reason="needs CuPy and a CUDA GPU")
@pytest.mark.parametrize("names", GROUPS)
def test_this_gpu_reaches_its_ceilings(names: tuple[str, ...]) -> None:
    rows = measure_group(names, Gpu.current())
    memory.free_pools()
    for row in rows:
        if row.status == "refused":
            pytest.skip(row.detail)
        assert row.status == "ok", row.detail
        assert row.p20 and row.p80 and row.p80 / row.p20 < 1.5

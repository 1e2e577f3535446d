"""`python -m fa_kernels`: every command parses, and refuses in one sentence without a GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fa_kernels import __main__ as cli
from fa_kernels.cuda import launch
from fa_kernels.measure import compile_all, compiled_run, doctor, records, sweep, verified_run
from fa_kernels.measure.tally import Tally

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = ("doctor", "verify", "measure", "compile-all")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "available", lambda: False)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "available", lambda: True)


def exit_text(call: Callable[[], Any]) -> str:
    with pytest.raises(SystemExit) as stop:
        call()
    assert isinstance(stop.value.code, str), "exits with a sentence, not with a number"
    return stop.value.code


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("command", ["verify", "measure"])
def test_what_needs_a_gpu_says_so(command: str) -> None:
    text = exit_text(lambda: cli.main([command]))
    assert text.startswith(f"{command} needs CuPy and a CUDA GPU")
    assert "`python -m fa_kernels doctor`" in text


def test_help_lists_the_commands() -> None:
    """In a process of its own: the module really runs."""
    done = subprocess.run(
        [sys.executable, "-m", "fa_kernels", "--help"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert all(command in done.stdout for command in COMMANDS)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["dcotor"],
        ["measure", "--seqlens", "many"],
        ["measure", "--minutes", "x"],
        ["doctor", "x"],
    ],
)
def test_bad_arguments_print_the_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    assert "usage: python -m fa_kernels" in capsys.readouterr().err


def test_doctor_prints_its_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "report", lambda: "all well")
    assert cli.main(["doctor"]) == 0
    assert capsys.readouterr().out == "all well\n"


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("failures", [0, 1, 256])
def test_compile_all_fails_if_anything_failed(
    failures: int, verbose: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def fake(verbose: bool) -> int:
        asked.append(verbose)
        return failures

    monkeypatch.setattr(compile_all, "compile_all", fake)
    status = cli.main(["compile-all", "--verbose"] if verbose else ["compile-all"])
    # The shell sees status modulo 256: 256 failures must not read as success.
    assert bool(status % 256) == bool(failures)
    assert asked == [verbose]


def test_record_writes_what_was_compiled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def fake(command: str) -> list[Path]:
        asked.append(command)
        return [Path("sm_90.json")]

    monkeypatch.setattr(compiled_run, "record_compiled", fake)
    monkeypatch.setattr(compile_all, "compile_all", lambda verbose: 1)
    monkeypatch.setattr(sys, "argv", ["fa_kernels", "compile-all", "--record"])
    assert cli.main(["compile-all", "--record"]) == 0
    assert asked == ["python -m fa_kernels compile-all --record"]
    assert capsys.readouterr().out == "wrote sm_90.json\n"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError("nvdisasm was not found"), "nvdisasm was not found"),
        (ModuleNotFoundError("No module named 'cupy'"), "no GPU is needed"),
        (RuntimeError("04 does not compile"), "04 does not compile"),
    ],
)
def test_record_refuses_in_a_sentence(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(command: str) -> list[Path]:
        raise error

    monkeypatch.setattr(compiled_run, "record_compiled", refuses)
    assert words in exit_text(lambda: cli.main(["compile-all", "--record"]))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("failures", "status"), [(0, 0), (2, 1)])
def test_verify_writes_the_record_and_fails_with_the_kernels(
    failures: int, status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: dict[str, Any] = {}

    def fake_verify(kernels: list[str], **options: Any) -> Iterator[tuple[str, Tally]]:
        seen.update(kernels=kernels, options=options)
        yield "04_flash_q_outer", Tally(cases=9, failures=failures)
        assert list(seen["written"]) == ["04_flash_q_outer"], "each kernel is written at once"
        yield "04_flash_q_outer_backward", Tally(cases=3)

    def fake_write(tallies: dict[str, Tally], command: str, root: Path) -> Path:
        seen.update(command=command, root=root, written=tallies)
        return root / "sm_90.json"

    monkeypatch.setattr(verified_run, "is_for_this_gpu", lambda kernel: True)
    monkeypatch.setattr(verified_run, "verify", fake_verify)
    monkeypatch.setattr(verified_run, "write_verified", fake_write)
    monkeypatch.setattr(sys, "argv", ["x", "verify", "flash_q_outer", "--out", str(tmp_path)])
    arguments = ["verify", "flash_q_outer", "--out", str(tmp_path), "--minutes", "2", "--jobs", "3"]
    assert cli.main(arguments) == status
    assert seen["kernels"] == ["04_flash_q_outer", "04_flash_q_outer_backward"]
    assert seen["options"] == {"jobs": 3, "seconds": 120.0, "verbose": False}
    # Without the path of somebody's machine.
    assert seen["command"] == f"python -m fa_kernels verify flash_q_outer --out {tmp_path.name}"
    assert seen["root"] == tmp_path


@pytest.mark.usefixtures("gpu")
def test_verify_says_what_a_time_limit_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verified_run, "is_for_this_gpu", lambda kernel: True)
    monkeypatch.setattr(verified_run, "verify", lambda *args, **options: iter(()))
    assert cli.main(["verify", "flash_q_outer", "--minutes", "0.1", "--jobs", "1"]) == 1
    assert "2 kernels are left: go on with `verify --unverified`." in capsys.readouterr().out


@pytest.mark.usefixtures("gpu")
def test_verify_leaves_out_what_is_for_another_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An A100 has no warpgroups: it records the others, and says which it could not."""
    gpu = SimpleNamespace(Device=lambda *_: SimpleNamespace(id=0, compute_capability="80"))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=gpu))
    assert verified_run.is_for_this_gpu("05_flash_mma_backward")
    seen: list[str] = []

    def fake_verify(kernels: list[str], **options: Any) -> Iterator[tuple[str, Tally]]:
        seen.extend(kernels)
        return ((kernel, Tally()) for kernel in kernels)

    monkeypatch.setattr(verified_run, "verify", fake_verify)
    monkeypatch.setattr(verified_run, "write_verified", lambda *args: Path("sm_80.json"))
    assert cli.main(["verify", "flash_q_outer", "flash_wgmma", "--jobs", "1"]) == 0
    assert seen == ["04_flash_q_outer", "04_flash_q_outer_backward"]
    said = capsys.readouterr().out
    assert "left out: 06_flash_wgmma is written in instructions of sm_90a alone" in said


@pytest.mark.usefixtures("gpu")
def test_verify_refuses_no_process() -> None:
    assert "got 0" in exit_text(lambda: cli.main(["verify", "--jobs", "0"]))


@pytest.mark.usefixtures("gpu")
def test_verify_refuses_an_unknown_variant() -> None:
    text = exit_text(lambda: cli.main(["verify", "flash"]))
    assert "flash_q_outer" in text and "'flash'" in text


@pytest.mark.usefixtures("gpu")
def test_measure_passes_the_grid_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def fake_start(label: str, command: str, root: Path, resume: Any, commit: Any) -> Path:
        seen.update(label=label, root=root, resume=resume, commit=commit)
        return root / "run"

    def fake_sweep(folder: Path, grid: sweep.Grid, deadline: float | None, l2: str) -> bool:
        seen.update(folder=folder, grid=grid, deadline=deadline, l2=l2)
        return True

    monkeypatch.setattr(sweep, "start_run", fake_start)
    monkeypatch.setattr(sweep, "run_sweep", fake_sweep)
    command = "measure --label small --seqlens 128 256 --head-dims 64 --dtypes fp16 --sram-kib 64"
    rest = ["--peers", "--minutes", "2", "--out", str(tmp_path), "--commit", "abc"]
    rest += ["--control-sram-kib", "32", "--max-latency-ms", "5e3"]
    assert cli.main([*command.split(), *rest]) == 0
    sizes = ((128, 256), (64,), ("fp16",), (64,), (32,))
    assert seen["grid"] == sweep.Grid(*sizes, peers=(), max_latency_ms=5000.0)
    assert (seen["label"], seen["deadline"], seen["commit"]) == ("small", 120.0, "abc")
    assert seen["folder"] == tmp_path / "run"
    cli.main(["measure"])
    assert seen["grid"] == sweep.Grid() and seen["deadline"] is None
    assert seen["root"] == records.MEASURED_DIR


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--seqlens", "0"], "N = 0 is out of range"),
        (["--head-dims", "257"], "d = 257 is out of range"),
        (["--dtypes", "fp64"], "dtype = fp64 is not supported"),
        (["--sram-kib", "0"], "sram_bytes = 0 is out of range"),
        (["--peers", "torch_flsh"], "torch_flash"),
    ],
)
def test_measure_refuses_a_bad_grid_before_it_writes_anything(
    arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sweep, "describe_run", lambda *a: pytest.fail("a run was started"))
    text = exit_text(lambda: cli.main(["measure", "--out", str(tmp_path), *arguments]))
    assert sentence in text
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("gpu")
def test_measure_refuses_to_resume_what_is_not_there(tmp_path: Path) -> None:
    arguments = ["measure", "--out", str(tmp_path), "--resume", "20260101-h200-grid"]
    text = exit_text(lambda: cli.main(arguments))
    assert "there is no recorded run '20260101-h200-grid'" in text

"""Nsight Compute: where it is looked for, what its tables say, and its refusals in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_kernels.measure import ncu
from fa_kernels.measure.ncu import Launch, NcuRefused, Profile, find_ncu, parse_csv

RAW = """\
==PROF== Connected to process 4711 (/usr/bin/python3.12)
==PROF== Profiling "standard_scores" - 0: 0%....50%....100% - 1 pass
==PROF== Disconnected from process 4711
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","dram__bytes_read.sum","gpu__time_duration.sum","lts__t_sectors_srcunit_tex_op_read.sum","sm__warps_active.avg.pct_of_peak_sustained_active"
"","","","","","","","","","","","byte","ns","sector","%"
"0","4711","python3.12","127.0.0.1","standard_scores","1","7","(128, 1, 1)","(131072, 1, 1)","0","9.0","1,073,741,824","1,250,000","33,554,432","43.75"
"1","4711","python3.12","127.0.0.1","void cutlass::Kernel<float, 3>(Params)","1","7","(128, 1, 1)","(8, 1, 1)","0","9.0","0","5,120","n/a","0.5"
"""  # noqa: E501
DETAILS = """\
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"0","7","a","h","standard_scores","1","7","(1, 1, 1)","(1, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_read.sum","Gbyte","1.5"
"0","7","a","h","standard_scores","1","7","(1, 1, 1)","(1, 1, 1)","0","9.0","Command line profiler metrics","gpu__time_duration.sum","usecond","1,250.5"
"1","7","a","h","flash_q_outer","1","7","(1, 1, 1)","(1, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_read.sum","Kbyte","640"
"""  # noqa: E501


def test_one_line_a_launch() -> None:
    first, second = parse_csv(RAW)
    assert first == Launch(
        "standard_scores",
        {
            "dram__bytes_read.sum": 2**30,
            "gpu__time_duration.sum": 1.25,
            "lts__t_sectors_srcunit_tex_op_read.sum": 2**25,
            "sm__warps_active.avg.pct_of_peak_sustained_active": 43.75,
        },
    )
    assert second.kernel == "void cutlass::Kernel<float, 3>(Params)"
    assert second.values["dram__bytes_read.sum"] == 0, "nothing read is a reading"
    assert "lts__t_sectors_srcunit_tex_op_read.sum" not in second.values, "n/a is none"


def test_one_line_a_number() -> None:
    first, second = parse_csv(DETAILS)
    assert first.values == {"dram__bytes_read.sum": 1.5e9, "gpu__time_duration.sum": 1.2505}
    assert second == Launch("flash_q_outer", {"dram__bytes_read.sum": 640e3})


def test_the_same_launch_number_of_two_processes_is_two_launches() -> None:
    other = RAW.splitlines()[5].replace("4711", "4712")
    assert len(parse_csv(RAW + other)) == 3


@pytest.mark.parametrize(
    ("unit", "scale"),
    [
        ("byte", 1), ("Kbyte", 1e3), ("Mbyte", 1e6), ("Gbyte", 1e9), ("Tbyte", 1e12),
        ("Kibyte", 1024), ("ns", 1e-6), ("nsecond", 1e-6), ("us", 1e-3), ("usecond", 1e-3),
        ("ms", 1), ("msecond", 1), ("s", 1e3), ("second", 1e3), ("sector", 1), ("Ksector", 1e3),
        ("%", 1), ("inst", 1), ("furlong", None), ("byte/second", None),
    ],
)  # fmt: skip
def test_units(unit: str, scale: float | None) -> None:
    table = f'"ID","Kernel Name","a__b.sum"\n"","","{unit}"\n"0","k","1,234.5"\n'
    (launch,) = parse_csv(table)
    assert launch.values == ({} if scale is None else {"a__b.sum": pytest.approx(1234.5 * scale)})


@pytest.mark.parametrize("cell", ["n/a", "", "nan", "inf", "(!) n/a", "yes"])
def test_what_is_no_number_is_left_out(cell: str) -> None:
    assert parse_csv(f'"ID","Kernel Name","a__b"\n"","","%"\n"0","k","{cell}"\n')[0].values == {}


@pytest.mark.parametrize(
    "text",
    [
        "", "==WARNING== No kernels were profiled.", '"a","b"\n"0","1"', RAW.split('""')[0],
        "\n".join(line for line in RAW.splitlines() if not line.startswith('"",')),
    ],
    ids=["nothing", "a warning", "another table", "a header", "no units"],
)  # fmt: skip
def test_what_is_no_table_has_no_launches(text: str) -> None:
    assert parse_csv(text) == []


# -- finding it ------------------------------------------------------------------------------------


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\nexit 3\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(ncu, "PLACES", (f"{tmp_path}/cuda/bin/ncu", f"{tmp_path}/nsight/*/ncu"))
    return tmp_path


def test_without_ncu_the_sentence_says_what_is_missing_and_what_works(nowhere: Path) -> None:
    with pytest.raises(NcuRefused, match="was not found on PATH.*install it.*need no profiler"):
        find_ncu()


def test_path_comes_first_then_cuda_home_then_the_newest(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable(nowhere / "nsight/2024.3.2/ncu")
    executable(nowhere / "nsight/2025.10.1/ncu")
    newest = executable(nowhere / "nsight/2025.11.0/ncu")
    assert find_ncu() == str(newest)
    toolkit = executable(nowhere / "cuda/bin/ncu")
    assert find_ncu() == str(toolkit)
    home = executable(nowhere / "home/bin/ncu")
    monkeypatch.setenv("CUDA_HOME", str(nowhere / "home"))
    assert find_ncu() == str(home)
    on_path = executable(nowhere / "bin/ncu")
    assert find_ncu() == str(on_path)


def test_an_ncu_that_does_not_run_has_no_version_and_knows_nothing(nowhere: Path) -> None:
    broken = str(executable(nowhere / "bin/ncu"))
    assert ncu.ncu_version(broken) == ncu.ncu_version("nothing/there") == "unknown"
    assert ncu.known_counters(broken) == frozenset()


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("printed", "sentence"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
            "Performance Counters on the target device 0.",
            "run as root, or have the driver module loaded with NVreg_RestrictProf",
        ),
        ("==ERROR== Failed to initialize the profiler: LibraryNotLoaded", "some containers"),
        (
            "==ERROR== Profiling failed because a driver resource was unavailable.",
            "pause it with `dcgmi profile --pause`",
        ),
    ],
)
def test_refusals_say_why_and_what_to_do(printed: str, sentence: str) -> None:
    refusal = Profile((), 1, 1, f"hello\n{printed}\n==WARNING== No kernels").refusal
    assert refusal is not None and sentence in refusal
    assert refusal.startswith("No hardware counters: ") and "\n" not in refusal
    assert "`python -m fa_kernels measure`" in refusal


@pytest.mark.parametrize(
    ("printed", "complaint"),
    [
        ("", "ncu printed nothing, exit status 9"),
        ("hello\n", "hello"),
        ("==ERROR== Failed to find metric regex:^a$\nbye\n", "Failed to find metric regex:^a$"),
        (
            "Traceback\nValueError: no\n==ERROR== The application returned an error code (1).",
            "ValueError: no",
        ),
    ],
)
def test_complaints_are_the_last_error(printed: str, complaint: str) -> None:
    found = Profile((), 1, 9, printed)
    assert (found.complaint, found.refusal) == (complaint, None)


def test_a_program_that_hangs_is_ended(tmp_path: Path) -> None:
    stuck = tmp_path / "ncu"
    stuck.write_text("#!/bin/sh\necho begun\nexec sleep 30\n", encoding="utf-8")
    stuck.chmod(0o755)
    found = ncu.profile(str(stuck), ["dram__bytes_read.sum"], ["python"], timeout_s=0.5)
    assert found.launches == () and "ended after" in found.text

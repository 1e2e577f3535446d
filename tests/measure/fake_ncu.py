"""A stand-in for `ncu`: takes its options, plays the profiled program, prints a canned table.

FAKE_NCU says what goes wrong: "denied", "crash:<job>", "deadline:<job>", "wrong:<job>",
"narrow" (one pass holds two counters), "lacks:<counter>".
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

UNITS = {"gpu__time_duration": "ns", "dram__bytes": "byte", "lts__t_sectors": "sector"}
FIXED = {
    "gpu__time_duration.sum": 250_000,
    "dram__bytes_read.sum": 3_000_000,
    "dram__bytes_write.sum": 1_000_000,
    "lts__t_sectors_srcunit_tex_op_read.sum": 400_000,
    "lts__t_sectors_srcunit_tex_op_write.sum": 100_000,
    "lts__t_sectors_srcunit_tex.sum": 510_000,
    "lts__t_sectors_srcunit_tex_lookup_hit.sum": 300_000,
    "lts__t_sectors_srcunit_tex_lookup_miss.sum": 100_000,
}
HEADER = [
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream",
    "Block Size", "Grid Size", "Device", "CC",
]  # fmt: skip


def main(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        print("NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.3.1.0 (build 1)")
        return 0
    if arguments == ["--query-metrics"]:
        names = {name.split(".")[0] for name in FIXED} | {"sm__inst_issued", "sm__warps_active"}
        print(
            "Device NVIDIA H200 (GH100)\n",
            *sorted(names | {"sm__pipe_fma_cycles_active"}),
            sep="\n",
        )
        return 0
    asked = json.loads(Path(arguments[-2]).read_text())
    metrics = arguments[arguments.index("--metrics") + 1].split(",")
    log = Path(arguments[arguments.index("--log-file") + 1])
    fault, _, at = os.environ.get("FAKE_NCU", "").partition(":")
    with Path(os.environ["FAKE_NCU_LOG"]).open("a") as calls:
        calls.write(
            json.dumps({"metrics": metrics, "jobs": len(asked["jobs"]), "all": arguments}) + "\n"
        )
    print("what the program prints, on lines of its own")
    if fault == "denied":
        text = (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
        )
        log.write_text(text + "Performance Counters on the target device 0.\n")
        return 1
    passes = 2 if fault == "narrow" and len(metrics) > 3 else 1
    kernels, status = play(asked, fault, at, Path(arguments[-1]))
    lacking = at if fault == "lacks" else None
    log.write_text("\n".join(table(kernels, metrics, passes, lacking)) + "\n")
    return status


def play(asked: dict, fault: str, at: str, report: Path) -> tuple[list[str], int]:
    """What the program launches, and its exit status; its report is written on the way."""
    kernels = ["fa_calibrate"]
    with report.open("a") as file:

        def say(number: int, status: str, detail: str, error: float | None = None) -> None:
            line = {"number": number, "status": status, "detail": detail, "max_abs_err": error}
            file.write(json.dumps(line) + "\n")

        for job in asked["jobs"]:
            number = job["number"]
            here = str(number) == at
            if fault == "deadline" and here:
                say(-1, "end", "deadline")
                return kernels, 0
            kernels += [f"fa_before_{number}", *entries(job)]
            if fault == "crash" and here:
                print("CUDARuntimeError: illegal address", file=sys.stderr)
                return kernels, 1
            kernels += ["fa_after"] if asked["with_after"] else []
            if fault == "wrong" and here:
                say(number, "failed", "wrong: error 1 (limit 0.1)")
            else:
                say(number, "ok", "64 of 64 rows checked", 0.0005)
        say(-1, "end", "")
    return kernels, 0


def entries(job: dict) -> list[str]:
    # The names come with the environment, of a backward by "variant pass": the fake knows none.
    names = json.loads(os.environ["FAKE_NCU_ENTRIES"])
    forward = names.get(job["variant"], ["void at::gemm<3, 4>(x)"])
    return names.get(f"{job['variant']} {job['pass_']}", forward)


def table(kernels: list[str], metrics: list[str], passes: int, lacking: str | None) -> list[str]:
    lines = ["==PROF== Connected to process 7 (python)"]
    for i, kernel in enumerate(kernels):
        plural = "pass" if passes == 1 else "passes"
        lines.append(f'==PROF== Profiling "{kernel}" - {i}: 0%....50%....100% - {passes} {plural}')
    lines.append("==PROF== Disconnected from process 7")
    metrics = sorted(metrics)
    units = [next((u for start, u in UNITS.items() if m.startswith(start)), "%") for m in metrics]
    lines.append(cells([*HEADER, *metrics]))
    lines.append(cells([*[""] * len(HEADER), *units]))
    for i, kernel in enumerate(kernels):
        about = [i, 7, "python", "127.0.0.1", kernel, 1, 7, "(256, 1, 1)", "(9, 1, 1)", 0, "9.0"]
        numbers = ["n/a" if m == lacking else f"{FIXED.get(m, 40):,}" for m in metrics]
        lines.append(cells([*about, *numbers]))
    return lines


def cells(values: list) -> str:
    return ",".join(f'"{value}"' for value in values)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""From ncu's counters of single launches to the metrics of one call."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fa_kernels.measure.ncu import Launch
from fa_kernels.measure.profiled import AFTER, BEFORE
from fa_kernels.measure.records import COUNTER_UNITS

#: Bytes of one sector, in which the L2 is asked and answers.
SECTOR_BYTES = 32
#: Our short name of each counter, and the names ncu may know it by on one GPU or another.
COUNTERS: dict[str, tuple[str, ...]] = {
    "time": ("gpu__time_duration.sum",),
    "dram_read": ("dram__bytes_read.sum", "dram__bytes_op_read.sum"),
    "dram_write": ("dram__bytes_write.sum", "dram__bytes_op_write.sum"),
    # srcunit_tex: what the SMs ask. All sources together would count twice what one half of the
    # L2 fetches from the other.
    "l2_read": ("lts__t_sectors_srcunit_tex_op_read.sum",),
    "l2_write": ("lts__t_sectors_srcunit_tex_op_write.sum",),
    "l2_all": ("lts__t_sectors_srcunit_tex.sum",),
    "l2_hit": ("lts__t_sectors_srcunit_tex_lookup_hit.sum",),
    "l2_miss": ("lts__t_sectors_srcunit_tex_lookup_miss.sum",),
    # Of elapsed and not of active cycles: an SM that has run out of blocks counts as idle.
    "issue": (
        "sm__inst_issued.avg.pct_of_peak_sustained_elapsed",
        "sm__inst_executed.avg.pct_of_peak_sustained_elapsed",
    ),
    "fma": (
        "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_elapsed",
        "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "sm__inst_executed_pipe_fmaheavy.avg.pct_of_peak_sustained_elapsed",
    ),
    # Cycles, not instructions: one wgmma of Hopper keeps the pipe busy for many.
    "tensor": (
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_elapsed",
    ),
    "warps": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
}
_SHORT = {name: short for short, names in COUNTERS.items() for name in names}


@dataclass(frozen=True)
class Group:
    """Counters that are read together if one pass holds them, and the metrics that need them.

    Where a call has no number, the row that says why is the one of `metrics[0]`.
    """

    counters: tuple[str, ...]
    metrics: tuple[str, ...]


#: In the order in which they are read, should time run out.
GROUPS = (
    Group(
        ("dram_read", "dram_write"),
        ("dram_bytes", "dram_read_bytes", "dram_write_bytes", "dram_writeback_bytes",
         "ncu_latency_ms"),
    ),
    Group(
        ("l2_read", "l2_write", "l2_hit", "l2_miss"),
        ("l2_bytes", "l2_read_bytes", "l2_write_bytes", "l2_hit_pct"),
    ),
    Group(
        ("issue", "fma", "tensor", "warps"),
        ("sm_pct", "fma_pct", "tensor_pct", "occupancy_pct"),
    ),
)  # fmt: skip

#: L2 of passes that give gradients: some add to dq by atomic operations, which the L2 carries out,
#: and which count neither as reads nor as writes.
L2_WITH_ATOMICS = Group(
    ("l2_read", "l2_write", "l2_all"),
    ("l2_bytes", "l2_read_bytes", "l2_write_bytes", "l2_atomic_bytes"),
)


def name_for_ncu(counter: str, known: frozenset[str]) -> str:
    """ncu's name of one of `COUNTERS`: the first it knows, or the usual one if it won't say."""
    names = COUNTERS[counter]
    return next((name for name in names if name.split(".")[0] in known), names[0])


def short_values(launch: Launch) -> dict[str, float]:
    """The counters of one launch by our short names."""
    return {_SHORT[name]: value for name, value in launch.values.items() if name in _SHORT}


def launches_by_job(launches: Sequence[Launch]) -> dict[int, tuple[list[Launch], Launch | None]]:
    """What was launched between each job's marks: (the call's launches, the read after it)."""
    found: dict[int, tuple[list[Launch], Launch | None]] = {}
    number = None
    for launch in launches:
        mark = re.match(rf"{BEFORE}(\d+)\b", launch.kernel)
        if mark:
            number = int(mark[1])
            found[number] = ([], None)
        elif number is not None and re.match(rf"{AFTER}\b", launch.kernel):
            found[number] = (found[number][0], launch)
            number = None
        elif number is not None:
            found[number][0].append(launch)
    return found


def totals(launches: Sequence[Launch], after: Launch | None = None) -> dict[str, float]:
    """Counters of one call by short name: sums, and percentages weighted by time.

    What any launch lacks is left out: a sum over some launches would pass for the call's.
    `after` is the read that followed, whose writes are what the call had left in the L2.
    """
    counted = [short_values(launch) for launch in launches]
    found: dict[str, float] = {}
    for short in set.intersection(*map(set, counted)) if counted else ():
        values = [one[short] for one in counted]
        if ".pct_" not in COUNTERS[short][0]:
            found[short] = sum(values)
        elif (total := sum(one.get("time", 0.0) for one in counted)) > 0:
            weighted = sum(one.get("time", 0.0) * one[short] for one in counted)
            found[short] = weighted / total
    if after is not None and "dram_write" in short_values(after):
        found["writeback"] = short_values(after)["dram_write"]
    return found


_RULES: dict[str, Callable[[Mapping[str, float]], float]] = {
    "dram_bytes": lambda c: c["dram_read"] + c["dram_write"],
    "dram_read_bytes": lambda c: c["dram_read"],
    "dram_write_bytes": lambda c: c["dram_write"],
    "dram_writeback_bytes": lambda c: c["writeback"],
    "ncu_latency_ms": lambda c: c["time"],
    "l2_bytes": lambda c: SECTOR_BYTES * (c["l2_read"] + c["l2_write"]),
    "l2_read_bytes": lambda c: SECTOR_BYTES * c["l2_read"],
    "l2_write_bytes": lambda c: SECTOR_BYTES * c["l2_write"],
    # Not below 0: a call without any has as many sectors in all as it reads and writes.
    "l2_atomic_bytes": lambda c: (
        SECTOR_BYTES * max(0.0, c["l2_all"] - c["l2_read"] - c["l2_write"])
    ),
    "l2_hit_pct": lambda c: 100 * c["l2_hit"] / (c["l2_hit"] + c["l2_miss"]),
    "sm_pct": lambda c: c["issue"],
    "fma_pct": lambda c: c["fma"],
    "tensor_pct": lambda c: c["tensor"],
    "occupancy_pct": lambda c: c["warps"],
}


def metrics_of(counted: Mapping[str, float], group: Group) -> dict[str, float]:
    """The group's metrics of one call from its `totals`; those whose counters are all there."""
    found: dict[str, float] = {}
    for metric in group.metrics:
        with contextlib.suppress(KeyError, ZeroDivisionError):
            value = _RULES[metric](counted)
            if COUNTER_UNITS[metric] == "B":
                value = round(value)  # an integer is written with every digit
            elif COUNTER_UNITS[metric] == "%":
                value = min(value, 100.0)  # counters of two clocks may say 100.02 %
            found[metric] = value
    return found

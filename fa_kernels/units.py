"""The one formatter: capacities in KiB/MiB/GiB, traffic and rates in GB and GB/s."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

KIB = 1024
MIB = 1024**2
GIB = 1024**3

_CAPACITY = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
#: Steps of traffic, largest first; also for axes.
TRAFFIC_STEPS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_FLOPS = ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP"))


def significant(value: float, digits: int = 3) -> str:
    """`value` with at least `digits` significant digits and no exponent: 0.0123, 4.57, 1234."""
    if value == 0:
        return "0"
    text = f"{value:.{digits}g}"
    if "e" in text:
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        text = f"{value:.0f}" if abs(value) >= 1 else f"{value:.{decimals}f}".rstrip("0")
    return text


def _scaled(value: float, steps: tuple[tuple[float, str], ...], smallest: str) -> str:
    for size, unit in steps:
        # 0.9995 rounds to 1.00 at three digits: move up a unit rather than print "1000 KiB".
        if abs(value) >= size * 0.9995:
            return f"{significant(value / size)} {unit}"
    return f"{significant(value)} {smallest}"


def capacity(nbytes: float) -> str:
    """A capacity in bytes as text in binary units: `capacity(49152)` is "48 KiB"."""
    return _scaled(nbytes, _CAPACITY, "B")


def traffic(nbytes: float) -> str:
    """An amount of moved data in bytes as text in decimal units: `traffic(4.1e9)` is "4.1 GB"."""
    return _scaled(nbytes, TRAFFIC_STEPS, "B")


def flops(count: float) -> str:
    """A number of floating-point operations as text: `flops(6.9e10)` is "69 GFLOP"."""
    return _scaled(count, _FLOPS, "FLOP")


def duration(milliseconds: float) -> str:
    """A time in milliseconds as text, in µs below 0.1 ms and in s above 1000 ms."""
    if milliseconds < 0.1:
        return f"{significant(milliseconds * 1e3)} µs"
    if milliseconds >= 999.5:
        return f"{significant(milliseconds / 1e3)} s"
    return f"{significant(milliseconds)} ms"


def span(values: Sequence[float], show: Callable[[float], str] = significant) -> str:
    """The least and the greatest of some numbers, "1.2 to 3.4", or one where both read alike."""
    low, high = show(min(values)), show(max(values))
    return low if low == high else f"{low} to {high}"

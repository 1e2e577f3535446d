"""How launches are timed that keep a GPU busy: one by one, and on and on."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fa_kernels.measure import timing
from fa_kernels.measure.ceiling_attempts import Attempt
from fa_kernels.measure.gpu_state import Reading

QUICK, SAMPLES, WARM_UP = 3, 20, 3
#: How long a launch goes on for its clock to be read, several times.
CLOCK_SECONDS = 0.5
#: Launches that wait while one runs.
_AHEAD = 8


class WrongResult(ValueError):
    """A launch did not leave what it must; the message says by how much."""


@dataclass(frozen=True)
class Fastest:
    """The fastest of `tried` launch shapes; `wrong` is its checked error.

    `by_set` has the best rate, per ms, of each size that was worked on.
    """

    attempt: Attempt
    ms: float
    wrong: float
    tried: int
    by_set: dict[int, float] = field(default_factory=dict)


def fastest_of(attempts: Iterable[Attempt], best: Fastest | None = None) -> Fastest | None:
    """Check every attempt and time it shortly; the fastest of them and of `best`; None of none.

    Raises:
        WrongResult: a launch left something else than it must; it is not timed.
    """
    for attempt in attempts:
        attempt.run()
        error, allowed = attempt.error()
        if not error <= allowed:  # also where it is not a number
            raise WrongResult(f"wrong by {error:.3g}, {allowed:.3g} allowed: {attempt.words}")
        for _ in range(WARM_UP):
            attempt.run()
        ms = timing.summarise([timed_ms(attempt.run) for _ in range(QUICK)]).median
        tried, by_set = (best.tried + 1, best.by_set) if best else (1, {})
        rate = attempt.amount / ms
        by_set = {**by_set, attempt.set_bytes: max(rate, by_set.get(attempt.set_bytes, 0.0))}
        # By rate: launch shapes differ a little in what they get through.
        if best is None or rate > best.attempt.amount / best.ms:
            best = Fastest(attempt, ms, error, tried, by_set)
        else:
            best = Fastest(best.attempt, best.ms, best.wrong, tried, by_set)
    return best


def sampled_ms(run: Callable[[], None]) -> list[float]:
    """Milliseconds of `SAMPLES` launches, each queued while another ran, after some for warm-up."""
    for _ in range(WARM_UP):
        run()
    return [timed_ms(run) for _ in range(SAMPLES)]


def timed_ms(run: Callable[[], None]) -> float:
    """GPU milliseconds of one launch that was queued while another ran.

    Else the time between the first event and the launch, in which Python works, would count.
    """
    import cupy

    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    run()
    start.record()
    run()
    stop.record()
    stop.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, stop))


def sustained_ms(run: Callable[[], None], seconds: float) -> list[float]:
    """GPU milliseconds of each of the launches that fill `seconds`, back to back."""
    import cupy

    def recorded() -> object:
        event = cupy.cuda.Event()
        event.record()
        return event

    waiting, times, total = deque([recorded()]), [], 0.0
    while total < 1e3 * seconds:
        run()
        waiting.append(recorded())
        if len(waiting) > _AHEAD:  # some are queued at any time: the GPU never waits for Python
            first = waiting.popleft()
            waiting[0].synchronize()  # type: ignore[attr-defined]
            times.append(float(cupy.cuda.get_elapsed_time(first, waiting[0])))
            total += times[-1]
    waiting[-1].synchronize()  # type: ignore[attr-defined]
    return times


def clock_at_work(run: Callable[[], None], readings: Sequence[Reading]) -> float | None:
    """Median SM clock in MHz while a launch goes on; None where nothing reads it.

    `readings` grows meanwhile.
    """
    before = len(readings)
    sustained_ms(run, CLOCK_SECONDS)
    return median_clock(readings[before:])


def median_clock(readings: Sequence[Reading]) -> float | None:
    """Median SM clock of what was read since a launch began; the first may be from before."""
    clocks = [reading["sm_mhz"] for reading in readings[1:] if "sm_mhz" in reading]
    return statistics.median(clocks) if clocks else None

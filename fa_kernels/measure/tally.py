"""What verification finds: cases, failures, errors; shares of a kernel's cases; a time limit."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from fa_kernels.cuda.plan import LaunchPlan
from fa_kernels.measure.check import Check
from fa_kernels.measure.check_backward import GradientCheck


class OutOfTime(Exception):
    """The time given to a verification is over; a kernel cut short is not recorded."""


@dataclass(frozen=True)
class Share:
    """The part of a kernel's cases that one process takes, so that several can share a kernel.

    Cases that need the same build stand in the same share: no build is compiled twice.
    """

    index: int = 0
    of: int = 1

    def has(self, plan: LaunchPlan) -> bool:
        """True if the build of `plan` belongs to this share."""
        return zlib.crc32(repr(sorted(plan.macros.items())).encode()) % self.of == self.index


@dataclass
class Errors:
    """The largest errors of one variant over its cases, by tensor and dtype, and how much of its
    limit the worst of them used."""

    max_abs_err: dict[str, dict[str, float]] = field(default_factory=dict)
    worst_ratio: float = 0.0

    def note(self, tensor: str, dtype: str, error: float, limit: float) -> None:
        """Take in one tensor of a case that passed."""
        of_tensor = self.max_abs_err.setdefault(tensor, {})
        of_tensor[dtype] = max(of_tensor.get(dtype, 0.0), error)
        if limit:
            self.worst_ratio = max(self.worst_ratio, error / limit)


@dataclass
class Tally:
    """What verification found for one kernel, and for each variant that is launched from it.

    `deadline`: what `time.time()` may not pass before a case begins; `verbose`: say each case.
    """

    cases: int = 0
    failures: int = 0
    skipped: int = 0
    compiled: int = 0
    variants: dict[str, Errors] = field(default_factory=dict)
    say: Callable[[str], None] = print
    verbose: bool = False
    deadline: float = math.inf

    @property
    def worst_ratio(self) -> float:
        """The largest error of any variant, as a fraction of its limit."""
        return max((errors.worst_ratio for errors in self.variants.values()), default=0.0)

    def count(self, check: Callable[[], list[str]], what: str) -> None:
        """One more case: what `check` finds is said; an exception is a fault like any other.

        Only a case that does not fit into the GPU's memory is left out, and said.

        Raises:
            OutOfTime: the deadline has passed.
        """
        start = time.time()
        if start > self.deadline:
            raise OutOfTime
        try:
            with np.errstate(invalid="ignore"):
                faults = check()
        except MemoryError as error:
            self.leave_out(what, error)
            return
        except Exception as error:  # the other cases still run
            faults = [f"{type(error).__name__}: {error}"]
        self.cases += 1
        if faults:
            self.failures += 1
            self.say(f"FAIL {what}: {'; '.join(faults)[:600]}")
        elif self.verbose:
            self.say(f"{time.time() - start:.3f} s {what}")

    def leave_out(self, what: str, why: object) -> None:
        """One case less: it cannot run on this GPU, which is no fault."""
        self.skipped += 1
        self.say(f"left out {what}: {why}")

    def note(self, variant: str, dtype: str, check: Check) -> None:
        """Take in the errors of a case that passed."""
        errors = self.variants.setdefault(variant, Errors())
        errors.note("out", dtype, check.out_err, check.out_limit)
        errors.note("lse", dtype, check.lse_err, check.lse_limit)

    def note_gradients(self, variant: str, dtype: str, check: GradientCheck) -> None:
        """Take in the errors of a case of a backward pass that passed."""
        errors = self.variants.setdefault(variant, Errors())
        for name, error in check.errors.items():
            errors.note(name, dtype, error, check.limits[name])

    def add(self, other: Tally) -> None:
        """Take in the tally of another share of the same kernel."""
        self.cases += other.cases
        self.failures += other.failures
        self.skipped += other.skipped
        self.compiled += other.compiled
        for variant, errors in other.variants.items():
            mine = self.variants.setdefault(variant, Errors())
            for tensor, by_dtype in errors.max_abs_err.items():
                for dtype, error in by_dtype.items():
                    mine.note(tensor, dtype, error, 0.0)
            mine.worst_ratio = max(mine.worst_ratio, errors.worst_ratio)

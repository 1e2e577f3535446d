"""Traces of one row, (m, l, alpha, acc) per step: of NumPy and of the CUDA kernel, kept as JSON.

A file of data/traces holds the problem, from which the inputs are drawn and the NumPy trace is made
again, the kernel's trace with its largest difference from NumPy's, and what a run says about
itself: device, versions, commit. JSON has no infinity: "-inf" is text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from fa_kernels.measure.about import describe_run
from fa_kernels.problem import checked_int
from fa_kernels.tiling import Tiling
from fa_kernels.trace import Trace, trace_row

TRACES_DIR = Path(__file__).parents[2] / "data" / "traces"
SCHEMA_VERSION = 1
#: What is compared, step by step.
QUANTITIES = ("m", "l", "alpha", "acc")
_INTS = ("key_start", "key_stop")
MAX_SEQLEN, MAX_HEAD_DIM = 4096, 256


class TraceError(ValueError):
    """A trace file that cannot be read; the message names file, fault and remedy."""


@dataclass(frozen=True)
class TraceProblem:
    """One row of one head, in float32, and how it is tiled; `seed` draws the inputs."""

    seqlen: int = 256
    head_dim: int = 64
    row: int = 100
    block_m: int = 64
    block_n: int = 64
    seed: int = 0
    variant: str = "flash_q_outer"

    def __post_init__(self) -> None:
        limits = {"seqlen": MAX_SEQLEN, "head_dim": MAX_HEAD_DIM}
        for name, limit in limits.items():
            value = checked_int(name, getattr(self, name), 1, limit, f"Choose 1 to {limit}.")
            object.__setattr__(self, name, value)
        last = self.seqlen - 1
        row = checked_int("row", self.row, 0, last, f"Choose 0 to {last} (seqlen - 1).")
        object.__setattr__(self, "row", row)
        seed = checked_int("seed", self.seed, 0, 2**32 - 1, "Any whole number from 0 will do.")
        object.__setattr__(self, "seed", seed)
        Tiling(self.block_m, self.block_n)  # refuses what is no tile

    @property
    def tiling(self) -> Tiling:
        """Tile sizes."""
        return Tiling(self.block_m, self.block_n)

    def inputs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """q, k, v, each (1, 1, seqlen, head_dim) float32.

        Normal, with keys that point more and more along the traced query: its scores grow, so that
        alpha has something to do at every step.
        """
        rng = np.random.default_rng(self.seed)
        shape = (self.seqlen, self.head_dim)
        q, k, v = (rng.standard_normal(shape) for _ in range(3))
        along = q[self.row] * math.sqrt(self.head_dim) / (q[self.row] @ q[self.row])
        k += 4.0 * np.linspace(0.0, 1.0, self.seqlen)[:, None] * along
        return _one_head(q), _one_head(k), _one_head(v)

    def trace(self, backend: str) -> Trace:
        """The trace of `row` by "numpy" or "cuda"."""
        q, k, v = self.inputs()
        return trace_row(
            q, k, v, row=self.row, variant=self.variant, tiling=self.tiling, backend=backend
        )


@dataclass(frozen=True)
class RecordedTrace:
    """A file of data/traces: `about` as in run.json, the problem, and the kernel's trace."""

    name: str
    about: Mapping[str, Any]
    problem: TraceProblem
    cuda: Trace

    @property
    def device(self) -> str:
        """The GPU's name as CUDA reports it."""
        return str(self.about["device"])


def _one_head(x: np.ndarray) -> np.ndarray:
    return x[None, None].astype(np.float32)


def differences(a: Trace, b: Trace) -> dict[str, float]:
    """Quantity -> largest absolute difference over all steps; equal infinities differ by 0."""
    found = {}
    for name in QUANTITIES:
        x, y = (np.asarray(getattr(trace, name), np.float64) for trace in (a, b))
        if x.shape != y.shape:
            raise ValueError(f"{name}: shapes {x.shape} and {y.shape} belong to different problems")
        with np.errstate(invalid="ignore"):
            found[name] = float(np.where(x == y, 0.0, np.abs(x - y)).max(initial=0.0))
    return found


def record_all(command: str, commit: str | None = None, root: Path | None = None) -> list[Path]:
    """Record what notebook 02 shows, a row of each loop order, as <date>-<gpu>-<variant>.json.

    Raises:
        FileExistsError, RuntimeError: as `record`.
    """
    prefix = str(describe_run(command, "")["run_id"])
    return [
        record(
            (root or TRACES_DIR) / f"{prefix}{variant.replace('_', '-')}.json",
            TraceProblem(variant=variant),
            command,
            commit,
        )
        for variant in ("flash_q_outer", "flash_kv_outer")
    ]


def record(
    path: Path,
    problem: TraceProblem | None = None,
    command: str = "fa_kernels.measure.traces.record",
    commit: str | None = None,
) -> Path:
    """Trace `problem` on the current GPU and write it to a new file.

    `commit` is recorded where the checkout has no .git.

    Raises:
        FileExistsError: traces are append-only.
        RuntimeError: there is no GPU, or the two traces differ by more than fp32 rounding.
    """
    if path.exists():
        raise FileExistsError(f"{path} exists: traces are append-only, choose another name.")
    problem = problem or TraceProblem()
    cuda, numpy_ = problem.trace("cuda"), problem.trace("numpy")
    apart = differences(cuda, numpy_)
    if not all(value <= 1e-3 for value in apart.values()):  # NaN fails, too
        raise RuntimeError(f"the kernel's trace differs from NumPy's by {apart}: not recorded.")
    about = describe_run(command, "one launch with -DTRACE, one row")
    about["commit"] = commit or about["commit"]
    about = {name: value for name, value in about.items() if name not in ("schema", "run_id")}
    content = {
        "schema": SCHEMA_VERSION,
        **about,
        "problem": asdict(problem),
        "largest_difference_from_numpy": apart,
        "trace": _to_json(cuda),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, allow_nan=False, indent=1) + "\n", encoding="utf-8")
    return path


def load(path: Path) -> RecordedTrace:
    """Read and check one file.

    Raises:
        TraceError: missing or corrupt file, unknown schema, missing keys, wrong shapes.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA_VERSION:
            raise ValueError(f"schema {content['schema']} is not {SCHEMA_VERSION}")
        problem = TraceProblem(**content["problem"])
        trace = _from_json(content["trace"], problem)
        about = {k: v for k, v in content.items() if k not in ("problem", "trace")}
        missing = [key for key in ("device", "commit", "started") if key not in about]
        if missing:
            raise ValueError(f"{', '.join(missing)} is missing")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TraceError(
            f"{path.name} cannot be read ({error}): restore it with `git checkout data/traces`."
        ) from error
    return RecordedTrace(path.stem, about, problem, trace)


def recorded(problem: TraceProblem, root: Path | None = None) -> RecordedTrace | None:
    """The newest recorded trace of exactly this problem (files sort by name), or None."""
    for path in sorted((root or TRACES_DIR).glob("*.json"), reverse=True):
        found = load(path)
        if found.problem == problem:
            return found
    return None


def _to_json(trace: Trace) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for field in fields(trace):
        value = getattr(trace, field.name)
        written[field.name] = _texts(value.tolist()) if isinstance(value, np.ndarray) else value
    return written


def _texts(value: Any) -> Any:
    """Nested lists of numbers, with what JSON cannot hold as text."""
    if isinstance(value, list):
        return [_texts(item) for item in value]
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def _from_json(content: Mapping[str, Any], problem: TraceProblem) -> Trace:
    values: dict[str, Any] = {}
    for field in fields(Trace):
        value = content[field.name]
        if isinstance(value, list):
            dtype = np.int64 if field.name in _INTS else np.float32
            value = np.array(value, dtype=object).astype(dtype)
        values[field.name] = value
    trace = Trace(**values)
    steps = len(trace.key_start)
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("key_stop", "m", "l", "alpha"), (steps,))
    for name, shape in (shapes | {"acc": (steps, problem.head_dim)}).items():
        if getattr(trace, name).shape != shape:
            raise ValueError(f"{name} has shape {getattr(trace, name).shape}, not {shape}")
    return trace

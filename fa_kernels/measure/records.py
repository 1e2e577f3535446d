"""Runs on disk: data/measured/<run_id>/{run.json, rows.csv}, append-only, validated when read."""

from __future__ import annotations

import csv
import functools
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from fa_kernels.block_mask import BlockMask, mask_blocks
from fa_kernels.measure import seal
from fa_kernels.measure.mask_column import mask_text as mask_text
from fa_kernels.measure.mask_column import parse_mask as parse_mask
from fa_kernels.measure.seal import REMEDY as _REMEDY
from fa_kernels.measure.seal import RecordError as RecordError
from fa_kernels.problem import ITEMSIZE, MAX_HEAD_DIM, MAX_SEQLEN, AttentionProblem

MEASURED_DIR = Path(__file__).parents[2] / "data" / "measured"
SCHEMA_VERSION = 1
STATUSES = ("ok", "skipped (estimated)", "does not fit", "refused", "failed")
PASSES = ("fwd", "bwd", "both", "step", "decode")
#: Read by hardware counters, under names of their own: what is counted in the kernels is hbm_*.
COUNTER_UNITS = {
    "dram_bytes": "B",
    "dram_read_bytes": "B",
    "dram_write_bytes": "B",
    "dram_writeback_bytes": "B",
    "l2_bytes": "B",
    "l2_read_bytes": "B",
    "l2_write_bytes": "B",
    "l2_hit_pct": "%",
    "sm_pct": "%",
    "fma_pct": "%",
    "tensor_pct": "%",
    "occupancy_pct": "%",
    "ncu_latency_ms": "ms",
    "l2_atomic_bytes": "B",
}
UNITS = {
    "latency_ms": "ms",
    "deterministic_latency_ms": "ms",
    "peak_mem_bytes": "B",
    "extra_mem_bytes": "B",
    "device_mem_bytes": "B",
    "launch_us": "us",
    "host_lists_us": "us",
    "device_lists_us": "us",
    "compile_s": "s",
    "rmse": "",
    "rms": "",
    **COUNTER_UNITS,
}
#: What a run holds, `kind` of run.json: the explorer's grid of timings (also where there is no
#: such key), hardware counters of a list of shapes, backward passes, the fast kernels beside their
#: peers, training steps of a whole model ("step": the problem is one of its attention calls),
#: what the device reaches (no rows here: `ceiling_records`), errors against float64 by dtype,
#: N and what the inputs are, the calls of published tables and figures, or block masks of falling
#: density. Kinds of their own, so that no page takes them for the above: "peers", the fast kernels
#: beside peers and at shapes that were asked for, and what was timed with a warm L2. "generation":
#: a whole model that writes text ("step": seqlen_q tokens of prompt, seqlen_k with those that are
#: written by then).
RUN_KINDS = (
    "grid", "counters", "backward", "speed", "training", "ceilings", "numerics", "paper",
    "peers", "grid-warm", "speed-warm", "peers-warm", "decode", "generation", "sparse",
)  # fmt: skip
#: `provider` of our own kernels.
OURS = "fa_kernels"
T = TypeVar("T")
ContenderKey = tuple[str, str, int | None, int | None]
#: What a run must say about itself; a point that cannot be traced is worth nothing.
RUN_KEYS = (
    "schema", "run_id", "command", "commit", "dirty", "started", "device", "arch", "driver",
    "cuda", "nvrtc", "cupy", "torch", "python", "clocks", "method",
)  # fmt: skip
#: date-gpu-name in lower case, e.g. 20261129-h200-grid.
RUN_ID = re.compile(r"\d{8}-[a-z0-9]+(-[a-z0-9]+)+")


@dataclass(frozen=True)
class Row:
    """One measured (or deliberately not measured) number; the columns of rows.csv, in order.

    `pass_` is the column "pass". `p20`, `median`, `p80` are None unless status is "ok".
    `max_abs_err` is the largest error of this row's output against float64. `block_mask` is
    "local 64x64" (pattern and block size; `density` says how much of it is kept), "" for none.
    `inputs` names the distribution of q, k and v, "" for standard normal.
    """

    provider: str
    variant: str
    pass_: str
    dtype: str
    batch: int
    nheads: int
    nheads_kv: int
    seqlen_q: int
    seqlen_k: int
    head_dim: int
    causal: str
    dropout_p: float
    density: float
    block_m: int | None
    block_n: int | None
    metric: str
    unit: str
    p20: float | None
    median: float | None
    p80: float | None
    n: int
    status: str
    detail: str
    max_abs_err: float | None
    block_mask: str = ""
    inputs: str = ""

    @property
    def problem(self) -> AttentionProblem:
        """The attention call this row is about."""
        causal = None if self.causal == "none" else self.causal
        sizes = (self.batch, self.nheads, self.seqlen_q, self.seqlen_k, self.head_dim)
        mask = None
        if self.block_mask:
            name, block_m, block_n = parse_mask(self.block_mask)
            blocks = (self.seqlen_q, self.seqlen_k, block_m, block_n)
            mask = BlockMask.pattern(name, *blocks, self.density)
        return AttentionProblem(
            *sizes, self.dtype, causal, nheads_kv=self.nheads_kv, block_mask=mask
        )

    @property
    def series(self) -> str:
        """Whose curve this row belongs to: the variant for our kernels, the provider for peers."""
        return self.variant if self.provider == OURS else self.provider

    @property
    def contender(self) -> ContenderKey:
        """What was run: provider, variant and tile sizes (None for peers)."""
        return self.provider, self.variant, self.block_m, self.block_n


COLUMNS = tuple(field.name.rstrip("_") for field in fields(Row))
#: Columns that came later stand last; in runs recorded before, each of them is "" in every row.
HEADERS = tuple(COLUMNS[:n] for n in range(COLUMNS.index("block_mask"), len(COLUMNS) + 1))
_KINDS = {field.name.rstrip("_"): str(field.type) for field in fields(Row)}


@dataclass(frozen=True)
class Run:
    """One recorded run: what it says about itself, and its rows."""

    run_id: str
    about: Mapping[str, Any]
    rows: tuple[Row, ...]

    @property
    def device(self) -> str:
        """The GPU's name as CUDA reports it."""
        return str(self.about["device"])

    @property
    def kind(self) -> str:
        """One of `RUN_KINDS`."""
        return str(self.about.get("kind", "grid"))

    def select(self, **wanted: Any) -> list[Row]:
        """Rows whose columns equal `wanted`, e.g. `select(metric="latency_ms", head_dim=64)`."""
        return [
            row for row in self.rows if all(getattr(row, k) == value for k, value in wanted.items())
        ]

    def values(self, column: str, **wanted: Any) -> list[Any]:
        """The distinct values of a column among the selected rows, sorted; None left out."""
        found = {getattr(row, column) for row in self.select(**wanted)} - {None}
        return sorted(found)


def list_runs(root: Path | None = None, kind: str | None = None) -> list[str]:
    """Run ids under data/measured, newest first; only those of one of `RUN_KINDS` if given."""
    folder = root or MEASURED_DIR
    paths = [p for p in folder.glob("*") if (p / "run.json").exists()]
    names = [p.name for p in paths if kind in (None, _said(p / "run.json", "kind", "grid"))]
    return sorted(names, reverse=True)


def device_of(run_id: str, root: Path | None = None) -> str:
    """The GPU of a run by its run.json alone, as CUDA calls it; "" if that cannot be read."""
    return _said((root or MEASURED_DIR) / run_id / "run.json", "device", "")


def _said(path: Path, key: str, otherwise: str) -> str:
    # A run that cannot be read counts as the grid: whoever opens that one says what is wrong.
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        return str(about.get(key, otherwise))
    except (OSError, ValueError, RecursionError, AttributeError):
        return otherwise


@functools.lru_cache(maxsize=64)
def load_run(run_id: str, root: Path | None = None) -> Run:
    """Read and validate one run.

    Raises:
        RecordError: missing or corrupt file, unknown column, status or unit, wrong type, rows
            that were edited since they were written.
    """
    folder = (root or MEASURED_DIR) / run_id
    about = _read_about(folder / "run.json", run_id)
    seal.check_end(folder)
    # Names row and field, which a seal cannot.
    rows = tuple(read_table(folder / "rows.csv", HEADERS, _parse_row))
    seal.check(folder, "seal" in about)
    return Run(run_id, about, rows)


def _read_about(path: Path, run_id: str) -> dict[str, Any]:
    if not path.exists():
        known = ", ".join(list_runs(path.parents[1])) or "none"
        raise RecordError(f"there is no recorded run {run_id!r} (recorded: {known}); {_REMEDY}.")
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # a folder, bad UTF-8, nested too deep
        raise RecordError(f"{run_id}/run.json is not valid JSON ({error}); {_REMEDY}.") from error
    missing = [key for key in RUN_KEYS if key not in about] if isinstance(about, dict) else ["all"]
    if missing:
        raise RecordError(f"{run_id}/run.json lacks {', '.join(missing)}; {_REMEDY}.")
    if about["schema"] != SCHEMA_VERSION:
        raise RecordError(
            f"{run_id}/run.json has schema {about['schema']!r}, this version reads "
            f"{SCHEMA_VERSION}; {_REMEDY}."
        )
    if about["run_id"] != run_id or not RUN_ID.fullmatch(run_id):
        raise RecordError(f"{run_id}/run.json calls itself {about['run_id']!r}; {_REMEDY}.")
    if not isinstance(about["device"], str) or not about["device"]:
        raise RecordError(f"{run_id}/run.json names no device; {_REMEDY}.")
    if about.get("kind", "grid") not in RUN_KINDS:
        raise RecordError(
            f"{run_id}/run.json has kind {about['kind']!r}, not one of {RUN_KINDS}; {_REMEDY}."
        )
    return about


def read_table(
    path: Path, headers: Sequence[tuple[str, ...]], parse: Callable[[Mapping[str, Any], str], T]
) -> Iterator[T]:
    """`parse(cells by column, place in words)` of every line of a run's table.

    `headers`: the columns that it may have, today's last.

    Raises:
        RecordError: other columns, or a file that cannot be read; and what `parse` raises.
    """
    where = f"{path.parent.name}/{path.name}"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) not in headers:
                raise RecordError(
                    f"{where} has other columns than {', '.join(headers[-1])}; {_REMEDY}."
                )
            yield from (parse(raw, f"{where} line {reader.line_num}") for raw in reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RecordError(f"{where} cannot be read ({error}); {_REMEDY}.") from error


def _parse_row(raw: Mapping[str, Any], where: str) -> Row:
    values: dict[str, Any] = {}
    if None in raw:  # csv keeps what is left over under the key None
        raise RecordError(f"{where}: more cells than columns; {_REMEDY}.")
    for column in (c for c in COLUMNS if c in raw):
        name = "pass_" if column == "pass" else column
        try:
            values[name] = _parse(raw[column], _KINDS[column])
        except (ValueError, TypeError) as error:
            raise RecordError(
                f"{where}: {column} = {raw[column]!r} is not of type {_KINDS[column]}; {_REMEDY}."
            ) from error
    row = Row(**values)
    fault = row_fault(row)
    if fault:
        raise RecordError(f"{where}: {fault}; {_REMEDY}.")
    return row


def _parse(text: str, kind: str) -> Any:
    if text == "" and "None" in kind:
        return None
    if kind.startswith("int"):
        return int(text)
    if kind.startswith("float"):
        number = float(text)
        if not math.isfinite(number):
            raise ValueError(text)
        return number
    if text is None:
        raise TypeError("missing")
    return text


def row_fault(row: Row) -> str | None:
    """What is wrong with a row, in words, or None. The same rules hold for writing and reading."""
    if row.status not in STATUSES:
        return f"status = {row.status!r} is not one of {STATUSES}"
    if row.pass_ not in PASSES:
        return f"pass = {row.pass_!r} is not one of {PASSES}"
    if row.dtype not in ITEMSIZE:
        return f"dtype = {row.dtype!r} is not one of {tuple(ITEMSIZE)}"
    unit = UNITS.get(row.metric, "B" if row.metric.startswith("hbm_") else None)
    if unit is None or row.unit != unit:
        return f"metric {row.metric!r} with unit {row.unit!r} is not known"
    for number in (row.p20, row.median, row.p80, row.max_abs_err):
        if number is not None and not math.isfinite(number):
            return f"{number} is not a finite number"
    sizes = (row.batch, row.nheads, row.nheads_kv, row.seqlen_q, row.seqlen_k, row.head_dim)
    blocks = (1 if row.block_m is None else row.block_m, 1 if row.block_n is None else row.block_n)
    if min(*sizes, *blocks) < 1 or row.n < 0:
        return "a size, tile or sample count that is not positive"
    if row.block_mask:
        try:
            _, block_m, block_n = parse_mask(row.block_mask)
            mask_blocks(row.seqlen_q, row.seqlen_k, block_m, block_n)
        except ValueError as error:
            return str(error)
    if row.causal not in ("none", "bottom_right", "top_left"):
        return f"causal = {row.causal!r} is not one of none, bottom_right, top_left"
    if not 0.0 < row.density <= 1.0 or (row.density < 1.0 and not row.block_mask):
        return f"density = {row.density} without a block mask, or out of range"
    if row.head_dim > MAX_HEAD_DIM or max(row.seqlen_q, row.seqlen_k) > MAX_SEQLEN:
        return f"head_dim or seqlen beyond {MAX_HEAD_DIM} or {MAX_SEQLEN}"
    if row.status == "ok":
        if row.median is None or row.median < 0:
            return "status is ok but there is no median"
        if row.p20 is None or row.p80 is None or not row.p20 <= row.median <= row.p80:
            return "p20, median and p80 are not in order"
        if row.metric == "latency_ms" and row.p20 <= 0:
            return "a latency that is not positive"
        if row.unit == "%" and row.p80 > 100:
            return f"{row.p80} is more than 100 %"
        if row.metric == "latency_ms" and row.max_abs_err is None:
            return "a timing without max_abs_err: it was not checked against float64"
        if row.metric in COUNTER_UNITS and row.max_abs_err is None:
            return "a counter without max_abs_err: its call was not checked against float64"
    elif (row.p20, row.median, row.p80) != (None, None, None):
        return f"status is {row.status!r} but there is a median, p20 or p80"
    return None


def append_rows(folder: Path, rows: Iterable[Row]) -> None:
    """Append rows to <folder>/rows.csv, all or none; the header first if the file is new.

    Raises:
        RecordError: a row that `row_fault` refuses, or a run that something else writes to;
            nothing is written then.
    """
    rows = list(rows)
    for row in rows:
        fault = row_fault(row)
        if fault:
            raise RecordError(f"refusing to record {row}: {fault}.")
    path = folder / "rows.csv"
    columns = _columns_of(path)
    if late := [c for c in COLUMNS[len(columns) :] if any(getattr(row, c) for row in rows)]:
        raise RecordError(
            f"{folder.name} was begun before runs held {late[0]}: start another with --label."
        )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if not path.exists():
        writer.writerow(COLUMNS)
    for row in rows:
        cells = [_text(getattr(row, field.name)) for field in fields(Row)]
        writer.writerow(cells[: len(columns)])
    if rows or not path.exists():
        seal.append(folder, text.getvalue().encode("utf-8"))
        load_run.cache_clear()


def _columns_of(path: Path) -> tuple[str, ...]:
    """The columns of a rows.csv; those of a new one if it is not there."""
    if not path.exists():
        return COLUMNS
    with path.open(newline="", encoding="utf-8") as file:
        header = tuple(next(csv.reader(file), ()))
    return header if header in HEADERS else COLUMNS


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)

"""What a GPU reaches, unit by unit: ceilings.csv of a run of kind "ceilings".

A ceiling belongs to a device and to no attention call, so it has none of the columns of rows.csv,
which such a run has too, but empty.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fa_kernels.measure import seal
from fa_kernels.measure.records import MEASURED_DIR, RecordError, load_run, read_table

FILE = "ceilings.csv"
#: Says in run.json that ceilings.csv has a seal; a run from before there was one lacks it.
SEALED = "ceilings_seal"
#: Ceiling -> unit; the order is that of tables: from far away to near, then arithmetic.
CEILINGS = {
    "hbm_copy": "GB/s",
    "hbm_read": "GB/s",
    "l2_read": "GB/s",
    "l2_read_apart": "GB/s",
    "l2_add": "Gadd/s",
    "smem_read": "GB/s",
    "fp32_fma": "TFLOP/s",
    "exp2": "Gexp/s",
    "matmul_fp16": "TFLOP/s",
    "matmul_bf16": "TFLOP/s",
    "matmul_fp16_sustained": "TFLOP/s",
    "matmul_bf16_sustained": "TFLOP/s",
}
#: Those of them that came later: runs recorded before lack them.
LATER = ("l2_read_apart", "matmul_fp16_sustained", "matmul_bf16_sustained")
STATUSES = ("ok", "refused", "failed")
_REMEDY = seal.REMEDY


@dataclass(frozen=True)
class CeilingRow:
    """One measured rate; the columns of ceilings.csv, in order.

    `amount` is what one launch moves or computes, in the unit's own thing without its prefix (B,
    FLOP, exp, add), and `set_bytes` what it works on, 0 where that is registers alone. `p20`,
    `median` and `p80` are rates, None unless status is "ok". `max_abs_err` is the difference of
    the launch's result from what it must be, taken before it was timed. `sm_mhz` is the median
    clock of the SMs while the same launch went on, None where nothing read it.
    """

    ceiling: str
    provider: str
    unit: str
    p20: float | None
    median: float | None
    p80: float | None
    n: int
    amount: float
    set_bytes: int
    status: str
    detail: str
    max_abs_err: float | None
    sm_mhz: float | None = None


COLUMNS = tuple(field.name for field in fields(CeilingRow))
#: The last column came later.
HEADERS = (COLUMNS[:-1], COLUMNS)
_KINDS = {field.name: str(field.type) for field in fields(CeilingRow)}


def without_rate(name: str, provider: str, status: str, detail: str) -> CeilingRow:
    """The row of a ceiling that was not measured, with the reason."""
    nothing = (None, None, None, 0, 0.0, 0)
    return CeilingRow(name, provider, CEILINGS[name], *nothing, status, detail, None)


def row_fault(row: CeilingRow) -> str | None:
    """What is wrong with a row, in words, or None. The same rules hold for writing and reading."""
    unit = CEILINGS.get(row.ceiling)
    if unit is None or row.unit != unit:
        return f"ceiling {row.ceiling!r} in {row.unit!r} is not known"
    if row.status not in STATUSES:
        return f"status = {row.status!r} is not one of {STATUSES}"
    if not row.provider or not row.detail:
        return "no provider, or no word on how it was measured"
    numbers = (row.p20, row.median, row.p80, row.max_abs_err, row.amount, row.sm_mhz)
    if not all(math.isfinite(number) for number in numbers if number is not None):
        return "a number that is not finite"
    if min(row.n, row.amount, row.set_bytes) < 0:
        return "a negative amount, size or number of samples"
    if row.sm_mhz is not None and row.sm_mhz <= 0:
        return "a clock that is not positive"
    rates = (row.p20, row.median, row.p80)
    if row.status != "ok":
        return None if rates == (None, None, None) else f"a rate of status {row.status!r}"
    if row.p20 is None or row.median is None or row.p80 is None:
        return "status is ok but p20, median or p80 is missing"
    if not 0 < row.p20 <= row.median <= row.p80:
        return "p20, median and p80 are not positive, or not in order"
    if row.n < 3 or row.max_abs_err is None:
        return "fewer than 3 samples, or no max_abs_err: its result was not checked"
    return None


def begin_ceilings(folder: Path) -> None:
    """Begin ceilings.csv of a new run, sealed, or go on with it after whatever stopped the run.

    Raises:
        RecordError: rows were edited since they were written, or the run is from before
            ceilings.csv had all its columns; nothing is changed then.
    """
    path, header = folder / FILE, (",".join(COLUMNS) + "\n").encode()
    if not path.exists() and not seal.is_sealed(folder, FILE):
        seal.write_atomically(path, header.decode())
    if path.exists() and path.read_bytes() == header and not seal.is_sealed(folder, FILE):
        seal.begin(folder, FILE)  # new, or killed before it could be
    if path.exists() and not path.read_bytes().startswith(header):
        raise RecordError(
            f"{folder.name}/{FILE} has not all columns ({', '.join(COLUMNS)}): it is from before "
            "there were these, or was edited; start another run with --label."
        )
    seal.mend(folder, FILE)


def append_ceilings(folder: Path, rows: Iterable[CeilingRow]) -> None:
    """Append rows to <folder>/ceilings.csv, all or none; the header first if the file is new.

    Raises:
        RecordError: a row that `row_fault` refuses, or a run that something else writes to;
            nothing is written then.
    """
    rows = list(rows)
    for row in rows:
        if fault := row_fault(row):
            raise RecordError(f"refusing to record {row}: {fault}.")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if not (folder / FILE).exists():
        writer.writerow(COLUMNS)
    writer.writerows([_text(getattr(row, name)) for name in COLUMNS] for row in rows)
    seal.append(folder, text.getvalue().encode("utf-8"), FILE)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def load_ceilings(run_id: str, root: Path | None = None) -> tuple[CeilingRow, ...]:
    """The ceilings of a run; () of one that has not got that far.

    Raises:
        RecordError: no such run, one of another kind, or a file that is not valid.
    """
    run = load_run(run_id, root)
    if run.kind != "ceilings":
        raise RecordError(f"{run_id} is a run of kind {run.kind!r}, not 'ceilings'; {_REMEDY}.")
    path = (root or MEASURED_DIR) / run_id / FILE
    if not path.exists() and not seal.is_sealed(path.parent, FILE):
        return ()
    seal.check_end(path.parent, FILE)
    rows = tuple(read_table(path, HEADERS, _parse))
    seal.check(path.parent, SEALED in run.about, FILE)
    return rows


def _parse(raw: Mapping[Any, Any], where: str) -> CeilingRow:
    if None in raw:  # csv keeps what is left over under the key None
        raise RecordError(f"{where}: more cells than columns; {_REMEDY}.")
    values: dict[str, Any] = {}
    for column in (name for name in COLUMNS if name in raw):
        text, kind = raw[column], _KINDS[column]
        try:
            if text is None:
                raise ValueError("missing")
            if text == "" and "None" in kind:
                values[column] = None
            elif kind.startswith("int"):
                values[column] = int(text)
            else:
                values[column] = float(text) if kind.startswith("float") else text
        except ValueError as error:
            raise RecordError(f"{where}: {column} = {text!r} is no {kind}; {_REMEDY}.") from error
    row = CeilingRow(**values)
    if fault := row_fault(row):
        raise RecordError(f"{where}: {fault}; {_REMEDY}.")
    return row

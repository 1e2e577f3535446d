"""Published numbers, data/paper/*.csv: one number a row with table, version and how it was read."""

from __future__ import annotations

import csv
import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from fa_kernels.measure.records import RecordError
from fa_kernels.problem import ITEMSIZE, MAX_HEAD_DIM, MAX_SEQLEN, AttentionProblem

PAPER_DIR = Path(__file__).parents[2] / "data" / "paper"
#: File name without .csv -> the paper's name and arXiv id.
PAPERS: Mapping[str, tuple[str, str]] = {
    "flashattention": ("FlashAttention", "2205.14135"),
    "flashattention-2": ("FlashAttention-2", "2307.08691"),
    "flashattention-3": ("FlashAttention-3", "2407.08608"),
}
#: What was published, and its unit as printed: the MB of table 21 are MiB, and the ms are means.
UNITS: Mapping[str, str] = {
    "latency": "ms",
    "memory": "MB",
    "hbm": "GB",
    "flops": "GFLOP",
    "rate": "TFLOP/s",
    "speedup": "x",
    "rmse": "",
    "": "",
}
PRINTED, READ_OFF, UNREAD = "printed", "read off a figure", "not transcribed"
#: "" in a column of text: the paper's table or caption, as far as we hold it, does not say.
CHOICES: Mapping[str, tuple[str, ...]] = {
    "dtype": ("", *ITEMSIZE),
    "pass": ("", "fwd", "bwd", "both"),
    "causal": ("", "none", "causal"),
    "mask": ("", "none", "key padding"),
    "algorithm": (
        "PyTorch",
        "Megatron",
        "standard",
        "FlashAttention",
        "block-sparse FlashAttention",
        "FlashAttention-2",
        "cuDNN",
        "FlashAttention-3",
    ),
    "metric": tuple(UNITS),
    "how": (PRINTED, READ_OFF, UNREAD),
}
WHERE = re.compile(r"(table \d+|fig\. \d+( (left|middle|right))?|figs\. \d+-\d+)")
NUMBER = re.compile(r"[0-9][0-9.e+-]*", re.ASCII)
REMEDY = "restore it with `git checkout data/paper`"


@dataclass(frozen=True)
class PublishedRow:
    """One number of a paper, or a point of one of its figures that nobody read; columns in order.

    `pass_` is the column "pass"; `where` is "table 9" or "fig. 2 left". None and "": the table or
    caption does not say. `mask` "key padding" keeps a length of each sequence. `block_n` is B_c.
    `value` None goes with `how` "not transcribed", and only with it.
    """

    paper: str
    arxiv: str
    version: str
    where: str
    gpu: str
    dtype: str
    batch: int | None
    nheads: int | None
    seqlen: int | None
    head_dim: int | None
    pass_: str
    causal: str
    mask: str
    dropout_p: float | None
    density: float | None
    block_n: int | None
    algorithm: str
    metric: str
    value: float | None
    unit: str
    how: str
    note: str

    @property
    def problem(self) -> AttentionProblem:
        """The call this row is about, without padding and dropout; fp16 where no dtype is said.

        Raises:
            ValueError: the paper does not give every size.
        """
        sizes = (self.batch, self.nheads, self.seqlen, self.head_dim)
        known = [size for size in sizes if size is not None]
        if len(known) < len(sizes):
            raise ValueError(
                f"{self.source} gives no whole shape: batch, nheads, seqlen, head_dim = {sizes}; "
                "choose another row."
            )
        batch, nheads, seqlen, d = known
        causal = "bottom_right" if self.causal == "causal" else None
        return AttentionProblem(batch, nheads, seqlen, seqlen, d, self.dtype or "float16", causal)

    @property
    def source(self) -> str:
        """ "FlashAttention (arXiv 2205.14135), fig. 2 left, version 2022-06"."""
        version = f", version {self.version}" if self.version else ""
        return f"{self.paper} (arXiv {self.arxiv}), {self.where}{version}"

    @property
    def key(self) -> tuple[object, ...]:
        """What tells this row from all others: everything but the number and its reading."""
        last = {"value", "unit", "how", "note"}
        return tuple(getattr(self, f.name) for f in fields(self) if f.name not in last)


COLUMNS = tuple(field.name.rstrip("_") for field in fields(PublishedRow))
_KINDS = {field.name.rstrip("_"): str(field.type) for field in fields(PublishedRow)}


@functools.lru_cache(maxsize=8)
def load_paper(folder: Path | None = None) -> tuple[PublishedRow, ...]:
    """All published numbers, paper by paper in the order of `PAPERS`.

    Raises:
        RecordError: a missing or unreadable file, other columns, or a row that `row_fault`
            refuses; the message names file, line, column and remedy.
    """
    return tuple(row for name in PAPERS for row in _read(folder or PAPER_DIR, name))


def select(rows: Iterable[PublishedRow], **wanted: object) -> tuple[PublishedRow, ...]:
    """The rows whose columns have these values, e.g. `where="table 21"`; pass is `pass_`."""
    return tuple(r for r in rows if all(getattr(r, key) == wanted[key] for key in wanted))


def _read(folder: Path, name: str) -> list[PublishedRow]:
    path = folder / f"{name}.csv"
    where = f"{folder.name}/{path.name}"
    rows: list[PublishedRow] = []
    seen: dict[tuple[object, ...], int] = {}
    for line, cells in lines_of(path, COLUMNS):
        at = f"{where} line {line}"
        row = _parse_row(cells, at)
        fault = row_fault(row, name)
        if row.key in seen:
            fault = f"the same point as line {seen[row.key]}"
        if fault:
            raise RecordError(f"{at}: {fault}; {REMEDY}.")
        seen[row.key] = line
        rows.append(row)
    if not rows:
        raise RecordError(f"{where} holds no rows; {REMEDY}.")
    return rows


def lines_of(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """(number of the line, its cells) of a file of data/paper, without its line of columns.

    Raises:
        RecordError: a file that cannot be read, or other columns.
    """
    where = f"{path.parent.name}/{path.name}"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file, strict=True)
            if next(reader, []) != list(columns):
                raise RecordError(f"{where} has other columns than {', '.join(columns)}; {REMEDY}.")
            for cells in reader:
                yield reader.line_num, cells
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RecordError(f"{where} cannot be read ({error}); {REMEDY}.") from error


def _parse_row(cells: Sequence[str], at: str) -> PublishedRow:
    if len(cells) != len(COLUMNS):
        raise RecordError(f"{at}: {len(cells)} cells instead of {len(COLUMNS)}; {REMEDY}.")
    values: dict[str, str | int | float | None] = {}
    for column, text in zip(COLUMNS, cells, strict=True):
        kind = _KINDS[column]
        name = "pass_" if column == "pass" else column
        try:
            values[name] = _parse(text, kind)
        except ValueError as error:
            raise RecordError(f"{at}: {column} = {text!r} is not of type {kind}; {REMEDY}.") from (
                error
            )
    return PublishedRow(**values)  # type: ignore[arg-type]


def _parse(text: str, kind: str) -> str | int | float | None:
    if kind == "str":
        return text
    if not text:
        return None
    number = int(text) if kind.startswith("int") else float(text)
    # Python also reads "1_000", " 7" and "inf", which a paper does not print.
    if not NUMBER.fullmatch(text) or not math.isfinite(number):
        raise ValueError(text)
    return number


def row_fault(row: PublishedRow, name: str) -> str | None:
    """What is wrong with a row of <name>.csv, in words, or None."""
    if (row.paper, row.arxiv) != PAPERS[name]:
        return f"paper, arxiv = {row.paper!r}, {row.arxiv!r} are not {PAPERS[name]}"
    if not WHERE.fullmatch(row.where):
        return f"where = {row.where!r} is not like 'table 9', 'fig. 2 left' or 'figs. 4-7'"
    for column, known in CHOICES.items():
        value = row.pass_ if column == "pass" else getattr(row, column)
        if value not in known:
            return f"{column} = {value!r} is not one of {known}"
    if row.unit != UNITS[row.metric]:
        return f"unit = {row.unit!r} is not that of {row.metric!r}, {UNITS[row.metric]!r}"
    if (row.value is None) != (row.how == UNREAD):
        return f"value = {row.value} does not go with how = {row.how!r}"
    if row.value is not None and (row.value <= 0 or not row.metric):
        return f"value = {row.value} of metric {row.metric!r}: a published number is positive"
    for column, top in (
        ("batch", 2**24),
        ("nheads", 2**16),
        ("seqlen", MAX_SEQLEN),
        ("head_dim", MAX_HEAD_DIM),
        ("block_n", MAX_SEQLEN),
    ):
        size = getattr(row, column)
        if size is not None and not 1 <= size <= top:
            return f"{column} = {size} is not between 1 and {top}"
    if row.dropout_p is not None and not 0.0 <= row.dropout_p < 1.0:
        return f"dropout_p = {row.dropout_p} is not at least 0 and below 1"
    if row.density is not None and not 0.0 < row.density <= 1.0:
        return f"density = {row.density} is not above 0 and at most 1"
    return None

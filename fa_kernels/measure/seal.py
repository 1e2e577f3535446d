"""seal.csv of a run: which bytes of rows.csv the run itself wrote, block by block, with hashes.

Another table of a run has a seal of its own, by the same functions and rules: `file_of`.

Rows are appended first, then sealed by a rename: a run that is killed in between keeps whole blocks
alone, and whatever was changed later by hand is told from what was measured.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

FILE = "seal.csv"
ROWS = "rows.csv"
HEADER = "last_line,end_byte,sha256"
#: What to do about a run that cannot be read.
REMEDY = "restore it with `git checkout data/measured`, or choose another run"


class RecordError(ValueError):
    """A run that cannot be read; the message names file, place, fault and remedy."""


@dataclass(frozen=True)
class Block:
    """What one append wrote: up to which line and byte of the table, and the hash of its bytes."""

    last_line: int
    end_byte: int
    sha256: str


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that at any moment, a crash included, the old or the new one is there."""
    part = path.with_name(f"{path.name}.part")
    with part.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def append_bytes(path: Path, data: bytes) -> None:
    """Append to a file and wait until it is on disk."""
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def file_of(table: str) -> str:
    """The seal of a table: "seal.csv" of rows.csv, "seal_ceilings.csv" of ceilings.csv."""
    return FILE if table == ROWS else f"seal_{table}"


def is_sealed(folder: Path, table: str = ROWS) -> bool:
    """True if a table of the run has a seal; those recorded before there were any have none."""
    return (folder / file_of(table)).exists()


def begin(folder: Path, table: str = ROWS) -> None:
    """Seal what a table of a new run holds: its header."""
    data = (folder / table).read_bytes()
    _write(folder, table, [_block_after(Block(0, 0, ""), data)])


def append(folder: Path, data: bytes, table: str = ROWS) -> None:
    """Append `data`, whole lines, to a table; if it is sealed they are sealed, too.

    Raises:
        RecordError: a sealed table does not end where its seal does; nothing is written.
    """
    path = folder / table
    if not is_sealed(folder, table):
        append_bytes(path, data)
        return
    blocks = _read(folder, table)
    if path.stat().st_size != blocks[-1].end_byte:
        raise RecordError(
            f"{folder.name}/{table} does not end where its seal does: another process writes to "
            "this run, or it was edited; let one alone measure, and resume the run."
        )
    append_bytes(path, data)
    _write(folder, table, [*blocks, _block_after(blocks[-1], data)])


def mend(folder: Path, table: str = ROWS) -> None:
    """Cut off what a killed run had begun to append to rows.csv, so that it can be resumed.

    Nothing is done to a table without a seal.

    Raises:
        RecordError: its rows were edited since they were written; nothing is cut then.
    """
    if not is_sealed(folder, table):
        return
    fault = _fault(folder, table)
    if fault:
        raise RecordError(f"{folder.name}/{fault}; {REMEDY}.")
    for part in folder.glob("*.part"):
        part.unlink()
    end = _read(folder, table)[-1].end_byte
    path = folder / table
    if path.stat().st_size > end:
        with path.open("r+b") as file:
            file.truncate(end)
            os.fsync(file.fileno())


def check(folder: Path, expected: bool, table: str = ROWS) -> None:
    """Refuse a run with a table that is not what the run wrote.

    `expected`: run.json speaks of a seal; runs from before there were any have none.

    Raises:
        RecordError: rows were changed, removed or added, or the seal is missing.
    """
    if not (expected or is_sealed(folder, table)):
        return
    fault = _fault(folder, table)
    if fault:
        raise RecordError(f"{folder.name}/{fault}; {REMEDY}.")


def check_end(folder: Path, table: str = ROWS) -> None:
    """Refuse a run with rows after its last sealed one, unless those before are faulty already.

    Raises:
        RecordError: it was killed while it wrote, or rows were added by hand.
    """
    if is_sealed(folder, table) and _fault(folder, table) is None:
        last = _read(folder, table)[-1]
        if (folder / table).stat().st_size > last.end_byte:
            raise RecordError(
                f"{folder.name}/{table} line {last.last_line + 1} and what follows was not sealed "
                f"by the run: it was killed while it wrote (`--resume {folder.name}` measures that "
                f"again), or rows were added; {REMEDY}."
            )


def _fault(folder: Path, table: str) -> str | None:
    """What of the sealed bytes is not as the run wrote it, with its lines, or None."""
    try:
        blocks, data = _read(folder, table), (folder / table).read_bytes()
    except (OSError, ValueError) as error:
        return f"{file_of(table)} cannot be read ({error})"
    begin, first_line = 0, 1
    for block in blocks:
        if len(data) < block.end_byte:
            held, wrote = data.count(b"\n"), blocks[-1].last_line
            return f"{table} was cut or edited: it has {held} lines, the run wrote {wrote}"
        if hashlib.sha256(data[begin : block.end_byte]).hexdigest() != block.sha256:
            lines = f"lines {first_line} to {block.last_line}"
            return f"{table} {lines}: a row was changed, removed or added since the run wrote them"
        begin, first_line = block.end_byte, block.last_line + 1
    return None


def _block_after(last: Block, data: bytes) -> Block:
    lines, end = last.last_line + data.count(b"\n"), last.end_byte + len(data)
    return Block(lines, end, hashlib.sha256(data).hexdigest())


def _read(folder: Path, table: str) -> list[Block]:
    lines = (folder / file_of(table)).read_text(encoding="utf-8").splitlines()
    if len(lines) < 2 or lines[0] != HEADER:
        raise ValueError(f"it does not begin with {HEADER} and a line for the header of {table}")
    cells = [line.split(",") for line in lines[1:]]
    return [Block(int(line), int(byte), digest) for line, byte, digest in cells]


def _write(folder: Path, table: str, blocks: list[Block]) -> None:
    lines = [HEADER, *(f"{b.last_line},{b.end_byte},{b.sha256}" for b in blocks)]
    write_atomically(folder / file_of(table), "\n".join(lines) + "\n")

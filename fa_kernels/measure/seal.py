"""seal.csv of a run: which bytes of rows.csv the run itself wrote, block by block, with hashes.

Rows are appended first, then sealed by a rename: a run that is killed in between keeps whole blocks
alone, and whatever was changed later by hand is told from what was measured.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

FILE = "seal.csv"
HEADER = "last_line,end_byte,sha256"
#: What to do about a run that cannot be read.
REMEDY = "restore it with `git checkout data/measured`, or choose another run"


class RecordError(ValueError):
    """A run that cannot be read; the message names file, place, fault and remedy."""


@dataclass(frozen=True)
class Block:
    """What one append wrote: up to which line and byte of rows.csv, and the hash of its bytes."""

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


def is_sealed(folder: Path) -> bool:
    """True if the run has a seal; those recorded before there were any have none."""
    return (folder / FILE).exists()


def begin(folder: Path) -> None:
    """Seal what rows.csv of a new run holds: its header."""
    data = (folder / "rows.csv").read_bytes()
    _write(folder, [_block_after(Block(0, 0, ""), data)])


def append(folder: Path, data: bytes) -> None:
    """Append `data`, whole lines, to rows.csv; in a sealed run they are sealed, too.

    Raises:
        RecordError: rows.csv of a sealed run does not end where its seal does; nothing is written.
    """
    path = folder / "rows.csv"
    if not is_sealed(folder):
        append_bytes(path, data)
        return
    blocks = _read(folder)
    if path.stat().st_size != blocks[-1].end_byte:
        raise RecordError(
            f"{folder.name}/rows.csv does not end where its seal does: another process writes to "
            "this run, or it was edited; let one alone measure, and resume the run."
        )
    append_bytes(path, data)
    _write(folder, [*blocks, _block_after(blocks[-1], data)])


def mend(folder: Path) -> None:
    """Cut off what a killed run had begun to append to rows.csv, so that it can be resumed.

    Nothing is done to a run without a seal.

    Raises:
        RecordError: its rows were edited since they were written; nothing is cut then.
    """
    if not is_sealed(folder):
        return
    fault = _fault(folder)
    if fault:
        raise RecordError(f"{folder.name}/{fault}; {REMEDY}.")
    for part in folder.glob("*.part"):
        part.unlink()
    end = _read(folder)[-1].end_byte
    path = folder / "rows.csv"
    if path.stat().st_size > end:
        with path.open("r+b") as file:
            file.truncate(end)
            os.fsync(file.fileno())


def check(folder: Path, expected: bool) -> None:
    """Refuse a run whose rows.csv is not what the run wrote.

    `expected`: run.json speaks of a seal; runs from before there were any have none.

    Raises:
        RecordError: rows were changed, removed or added, or the seal is missing.
    """
    if not (expected or is_sealed(folder)):
        return
    fault = _fault(folder)
    if fault:
        raise RecordError(f"{folder.name}/{fault}; {REMEDY}.")


def check_end(folder: Path) -> None:
    """Refuse a run with rows after its last sealed one, unless those before are faulty already.

    Raises:
        RecordError: it was killed while it wrote, or rows were added by hand.
    """
    if is_sealed(folder) and _fault(folder) is None:
        last = _read(folder)[-1]
        if (folder / "rows.csv").stat().st_size > last.end_byte:
            raise RecordError(
                f"{folder.name}/rows.csv line {last.last_line + 1} and what follows was not sealed "
                f"by the run: it was killed while it wrote (`--resume {folder.name}` measures that "
                f"again), or rows were added; {REMEDY}."
            )


def _fault(folder: Path) -> str | None:
    """What of the sealed bytes is not as the run wrote it, with its lines, or None."""
    try:
        blocks, data = _read(folder), (folder / "rows.csv").read_bytes()
    except (OSError, ValueError) as error:
        return f"{FILE} cannot be read ({error})"
    begin, first_line = 0, 1
    for block in blocks:
        if len(data) < block.end_byte:
            held, wrote = data.count(b"\n"), blocks[-1].last_line
            return f"rows.csv was cut or edited: it has {held} lines, the run wrote {wrote}"
        if hashlib.sha256(data[begin : block.end_byte]).hexdigest() != block.sha256:
            lines = f"lines {first_line} to {block.last_line}"
            return f"rows.csv {lines}: a row was changed, removed or added since the run wrote them"
        begin, first_line = block.end_byte, block.last_line + 1
    return None


def _block_after(last: Block, data: bytes) -> Block:
    lines, end = last.last_line + data.count(b"\n"), last.end_byte + len(data)
    return Block(lines, end, hashlib.sha256(data).hexdigest())


def _read(folder: Path) -> list[Block]:
    lines = (folder / FILE).read_text(encoding="utf-8").splitlines()
    if len(lines) < 2 or lines[0] != HEADER:
        raise ValueError(f"it does not begin with {HEADER} and a line for the header of rows.csv")
    cells = [line.split(",") for line in lines[1:]]
    return [Block(int(line), int(byte), digest) for line, byte, digest in cells]


def _write(folder: Path, blocks: list[Block]) -> None:
    lines = [HEADER, *(f"{b.last_line},{b.end_byte},{b.sha256}" for b in blocks)]
    write_atomically(folder / FILE, "\n".join(lines) + "\n")

"""ceilings.csv: what a run wrote is told from what was cut, edited or added, whatever stops it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fa_kernels.device import device
from fa_kernels.measure import seal
from fa_kernels.measure.ceiling_records import (
    COLUMNS,
    FILE,
    HEADERS,
    SEALED,
    CeilingRow,
    append_ceilings,
    begin_ceilings,
    load_ceilings,
)
from fa_kernels.measure.claim_tests.evidence import Evidence
from fa_kernels.measure.records import MEASURED_DIR, RecordError, list_runs, load_run
from tests.figures.synthetic_ceilings import row_of
from tests.measure.rows import write_run

RUN_ID = "20270101-h200-ceilings"
SEAL = seal.file_of(FILE)
ROWS = [replace(row_of(name), sm_mhz=1755.0) for name in ("hbm_read", "smem_read", "exp2")]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    load_run.cache_clear()
    yield
    load_run.cache_clear()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A sealed run of two ceilings: a header, lines 2 and 3."""
    folder = write_run(tmp_path, [], RUN_ID, kind="ceilings", **{SEALED: SEAL})
    begin_ceilings(folder)
    for row in ROWS[:2]:
        append_ceilings(folder, [row])
    return folder


def load(folder: Path) -> list[CeilingRow]:
    load_run.cache_clear()
    return list(load_ceilings(folder.name, folder.parent))


def same(found: list[CeilingRow], wanted: list[CeilingRow]) -> bool:
    """By name and clock; rates are written with six digits."""
    return [(r.ceiling, r.sm_mhz) for r in found] == [(r.ceiling, r.sm_mhz) for r in wanted]


def test_what_the_run_wrote_is_read_and_rows_csv_has_its_own_seal(run: Path) -> None:
    assert same(load(run), ROWS[:2])
    lines = (run / SEAL).read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["last_line", "1", "2", "3"]
    assert seal.file_of(seal.ROWS) == seal.FILE != SEAL


def changed(lines: list[bytes]) -> None:
    lines[2] = lines[2].replace(b",20,", b",21,")


def removed(lines: list[bytes]) -> None:
    del lines[1]


def added(lines: list[bytes]) -> None:
    lines.append(lines[-1])


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (changed, "ceilings.csv lines 3 to 3: a row was changed, removed or added"),
        (removed, "ceilings.csv lines 2 to 2: a row was changed, removed or added"),
        (added, f"ceilings.csv line 4 and what follows was not sealed .*--resume {RUN_ID}"),
    ],
)
def test_every_edit_by_hand_is_refused_with_file_and_row(
    run: Path, edit: Callable[[list[bytes]], None], sentence: str
) -> None:
    lines = (run / FILE).read_bytes().splitlines(keepends=True)
    edit(lines)
    (run / FILE).write_bytes(b"".join(lines))
    with pytest.raises(RecordError, match=sentence) as refusal:
        load(run)
    assert str(refusal.value).startswith(f"{RUN_ID}/")
    assert Evidence.on(device("h200"), run.parent).ceilings == (), (
        "a claim does not rest on it, nor stop"
    )


def test_edited_rows_are_neither_mended_nor_measured_on(run: Path) -> None:
    edited = (run / FILE).read_bytes().replace(b",20,", b",21,", 1) + b"half a li"
    (run / FILE).write_bytes(edited)
    with pytest.raises(RecordError, match="ceilings.csv lines 2 to 2: a row was changed"):
        begin_ceilings(run)
    assert (run / FILE).read_bytes() == edited


def test_a_seal_or_a_table_that_was_taken_away_is_missed(run: Path) -> None:
    text = (run / SEAL).read_text()
    (run / SEAL).unlink()
    with pytest.raises(RecordError, match="seal_ceilings.csv cannot be read"):
        load(run)
    (run / SEAL).write_text(text)
    (run / FILE).unlink()
    for call in (load, begin_ceilings):
        with pytest.raises(RecordError, match="cannot be read"):
            call(run)


def test_wherever_a_write_is_cut_the_rest_can_be_appended_once(run: Path) -> None:
    """Killed at any byte of an append: mending leaves whole rows, and nothing is doubled."""
    whole, sealed = (run / FILE).read_bytes(), (run / SEAL).read_text()
    append_ceilings(run, ROWS[2:])
    longer = (run / FILE).read_bytes()
    for cut in range(len(whole), len(longer) + 1):  # the last: written, but not sealed
        (run / FILE).write_bytes(longer[:cut])
        (run / SEAL).write_text(sealed)
        if cut > len(whole):
            with pytest.raises(RecordError, match="line 4 and what follows was not sealed"):
                load(run)
        begin_ceilings(run)
        assert (run / FILE).read_bytes() == whole
    append_ceilings(run, ROWS[2:])
    assert same(load(run), ROWS)


@pytest.mark.parametrize("left", [(), (FILE,), (FILE, f"{SEAL}.part")])
def test_wherever_the_beginning_is_cut_the_run_can_begin(
    tmp_path: Path, left: tuple[str, ...]
) -> None:
    folder = write_run(tmp_path, [], RUN_ID, kind="ceilings", **{SEALED: SEAL})
    for name in left:
        (folder / name).write_text(",".join(COLUMNS) + "\n" if name == FILE else "last_")
    begin_ceilings(folder)
    assert load(folder) == []
    append_ceilings(folder, ROWS)
    assert same(load(folder), ROWS)


def test_two_processes_do_not_write_to_one_run(run: Path) -> None:
    seal.append_bytes(run / FILE, b"of another process\n")
    with pytest.raises(RecordError, match="ceilings.csv does not end where its seal does"):
        append_ceilings(run, ROWS[2:])


def test_a_run_from_before_seals_and_clocks_is_read_and_not_gone_on_with(tmp_path: Path) -> None:
    folder = write_run(tmp_path, [], RUN_ID, kind="ceilings")
    line = "hbm_read,fa_kernels,GB/s,1,2,3,20,1e9,1024,ok,a launch,0"
    old = f"{','.join(HEADERS[0])}\n{line}\n"
    (folder / FILE).write_text(old)
    (row,) = load(folder)
    assert row.median == 2.0 and row.sm_mhz is None
    with pytest.raises(RecordError, match="start another run with --label"):
        begin_ceilings(folder)
    assert (folder / FILE).read_text() == old and not (folder / SEAL).exists()


@pytest.mark.parametrize("run_id", list_runs(kind="ceilings"))
def test_recorded_runs_are_whole_and_a_changed_digit_is_found_if_they_are_sealed(
    run_id: str, tmp_path: Path
) -> None:
    folder = tmp_path / run_id
    shutil.copytree(MEASURED_DIR / run_id, folder)
    assert load(folder)
    if seal.is_sealed(folder, FILE):
        text = (folder / FILE).read_bytes()
        (folder / FILE).write_bytes(text.replace(b",20,", b",21,", 1))
        with pytest.raises(RecordError, match="a row was changed"):
            load(folder)

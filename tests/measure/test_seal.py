"""A sealed run: what it wrote is told from what was cut, edited or added; no kill costs a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fa_kernels.measure import records, seal
from fa_kernels.measure.records import RecordError, append_rows, load_run
from tests.measure.rows import REFUSED, ROW, RUN_ID, row, write_run

FIRST, SECOND = [ROW, REFUSED], [row(seqlen_q=512, seqlen_k=512), row(batch=8), row(batch=16)]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    load_run.cache_clear()
    yield
    load_run.cache_clear()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two problems: rows.csv has a header, lines 2 and 3, lines 4 to 6."""
    folder = write_run(tmp_path, [], seal=seal.FILE)
    seal.begin(folder)
    append_rows(folder, FIRST)
    append_rows(folder, SECOND)
    return folder


def load(folder: Path) -> list[records.Row]:
    load_run.cache_clear()
    return list(load_run(folder.name, folder.parent).rows)


def refusal(folder: Path) -> str:
    with pytest.raises(RecordError) as error:
        load(folder)
    text = str(error.value)
    assert text.startswith(f"{RUN_ID}/") and "git checkout data/measured" in text
    return text


def test_what_the_run_wrote_is_read(run: Path) -> None:
    assert load(run) == FIRST + SECOND
    lines = (run / seal.FILE).read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["last_line", "1", "3", "6"]
    assert int(lines[-1].split(",")[1]) == (run / "rows.csv").stat().st_size


def line_removed(lines: list[bytes]) -> None:
    del lines[4]


def number_changed(lines: list[bytes]) -> None:
    lines[3] = lines[3].replace(b",1.5,", b",1.4,")


def last_line_removed(lines: list[bytes]) -> None:
    del lines[-1]


def swapped(lines: list[bytes]) -> None:
    lines[1], lines[2] = lines[2], lines[1]


def copied(lines: list[bytes]) -> None:
    lines.append(lines[-1])


def inserted(lines: list[bytes]) -> None:
    lines.insert(2, lines[1])


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (number_changed, "rows.csv lines 4 to 6: a row was changed, removed or added"),
        (line_removed, "rows.csv was cut or edited: it has 5 lines, the run wrote 6"),
        (last_line_removed, "rows.csv was cut or edited: it has 5 lines, the run wrote 6"),
        (swapped, "rows.csv lines 2 to 3: a row was changed"),
        (inserted, "rows.csv lines 2 to 3: a row was changed"),
        (
            copied,
            f"rows.csv line 7 and what follows was not sealed by the run: .*--resume {RUN_ID}",
        ),
    ],
)
def test_every_edit_by_hand_is_refused(
    run: Path, edit: Callable[[list[bytes]], None], sentence: str
) -> None:
    lines = (run / "rows.csv").read_bytes().splitlines(keepends=True)
    before = list(lines)
    edit(lines)
    assert lines != before
    (run / "rows.csv").write_bytes(b"".join(lines))
    load_run.cache_clear()
    with pytest.raises(RecordError, match=sentence):
        load(run)
    refusal(run)


def test_a_field_that_cannot_be_is_named_before_the_seal(run: Path) -> None:
    text = (run / "rows.csv").read_text().replace(",8,32,32,", ",eight,32,32,")
    (run / "rows.csv").write_text(text)
    assert "rows.csv line 5: batch = 'eight' is not of type int" in refusal(run)


@pytest.mark.parametrize(
    "content", ["", "last_line\n", "last_line,end_byte,sha256\n", "{header}\n1,x,abc\n"]
)
def test_a_damaged_seal_is_refused(run: Path, content: str) -> None:
    (run / seal.FILE).write_text(content.format(header=seal.HEADER))
    assert "seal.csv cannot be read" in refusal(run)


def test_a_seal_that_was_taken_away_is_missed(run: Path) -> None:
    (run / seal.FILE).unlink()
    assert "seal.csv cannot be read" in refusal(run)


def test_runs_from_before_there_were_seals_are_read(tmp_path: Path) -> None:
    folder = write_run(tmp_path, FIRST)
    assert "seal" not in json.loads((folder / "run.json").read_text())
    seal.mend(folder)
    append_rows(folder, SECOND)
    assert load(folder) == FIRST + SECOND and not (folder / seal.FILE).exists()


def test_wherever_a_write_is_cut_the_rest_can_be_appended_once(run: Path) -> None:
    """Killed at any byte of an append: mending leaves whole problems, and nothing is doubled."""
    whole, sealed = (run / "rows.csv").read_bytes(), (run / seal.FILE).read_text()
    third = [row(batch=2), row(batch=3)]
    append_rows(run, third)
    longer = (run / "rows.csv").read_bytes()
    for cut in range(len(whole), len(longer) + 1):  # the last: written, but not sealed
        (run / "rows.csv").write_bytes(longer[:cut])
        (run / seal.FILE).write_text(sealed)
        if cut > len(whole):
            with pytest.raises(RecordError, match="line 7 and what follows was not sealed"):
                load(run)
        seal.mend(run)
        assert (run / "rows.csv").read_bytes() == whole
    append_rows(run, third)
    assert load(run) == FIRST + SECOND + third


def test_mending_takes_half_written_files_away(run: Path) -> None:
    (run / "run.json.part").write_text("{")
    seal.mend(run)
    assert sorted(path.name for path in run.iterdir()) == ["rows.csv", "run.json", "seal.csv"]


def test_mending_refuses_what_was_edited_and_cuts_nothing(run: Path) -> None:
    edited = (run / "rows.csv").read_bytes().replace(b",1.5,", b",1.4,", 1) + b"half a li"
    (run / "rows.csv").write_bytes(edited)
    with pytest.raises(RecordError, match="lines 2 to 3: a row was changed"):
        seal.mend(run)
    assert (run / "rows.csv").read_bytes() == edited


def test_two_processes_do_not_write_to_one_run(run: Path) -> None:
    seal.append_bytes(run / "rows.csv", b"of another process\n")
    before = (run / "rows.csv").read_bytes()
    with pytest.raises(RecordError, match="another process writes to this run"):
        append_rows(run, FIRST)
    assert (run / "rows.csv").read_bytes() == before


def test_a_file_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    seal.write_atomically(path, "old")

    def killed(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(seal.os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        seal.write_atomically(path, "new")
    assert path.read_text() == "old"

"""The commands: what they print and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_kernels.__main__ import main
from fa_kernels.present import command
from fa_kernels.present.printing import NoBrowserError, PrintError


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One small page instead of both decks."""

    def write(folder: Path, used: object) -> dict[Path, str]:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "talk.html").write_text("<!DOCTYPE html>", encoding="utf-8")
        return {folder / "talk.html": "?print-pdf"}

    monkeypatch.setattr(command, "write_slides", write)


@pytest.mark.usefixtures("quick")
def test_paths_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def printed(pages: dict[Path, str]) -> dict[Path, Path]:
        asked.append(pages)
        return {page: page.with_suffix(".pdf") for page in pages}

    monkeypatch.setattr(command, "print_pdfs", printed)
    assert main(["slides", "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.split() == [
        "wrote", str(tmp_path / "out/talk.html"), "wrote", str(tmp_path / "out/talk.pdf"),
    ]  # fmt: skip
    assert asked == [{tmp_path / "out/talk.html": "?print-pdf"}]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("error", "status", "said"),
    [(NoBrowserError("none"), 0, "apt install chromium"), (PrintError("too slow"), 1, "too slow")],
)
def test_without_a_browser_the_html_is_there(
    error: Exception,
    status: int,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(pages: object) -> None:
        raise error

    monkeypatch.setattr(command, "print_pdfs", fail)
    assert main(["slides", "--out", str(tmp_path / "out")]) == status
    assert said in capsys.readouterr().out
    assert (tmp_path / "out/talk.html").exists()


def test_a_run_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="20000101-none"):
        main(["handout", "--run", "20000101-none", "--out", str(tmp_path)])


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(SystemExit, match="is a file"):
        main(["slides", "--out", str(path)])


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match="--out .*file/in"):
        main(["handout", "--no-pdf", "--out", str(tmp_path / "file/in")])

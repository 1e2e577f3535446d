"""`python -m fa_kernels figures`: a line for each figure, an exit code if one failed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from fa_kernels import __main__ as cli
from fa_kernels.widgets import figures_command
from fa_kernels.widgets.suite import FIGURES, SuiteFigure, Written, write_all

SOME = [one for one in FIGURES if one.name in ("00_story", "06_speed")]


@pytest.fixture
def some(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short list instead of every figure."""

    monkeypatch.setattr(figures_command, "write_all", partial(write_all, figures=SOME))


@pytest.mark.usefixtures("some")
def test_every_figure_gets_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new"
    asked = ["figures", "--all", "--venue", "icml", "--formats", "html", "--out", str(out)]
    assert cli.main(asked) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].split(" ")[-1] for line in lines[:2]] == ["00_story", "06_speed"]
    assert lines[2] == f"{out}: 2 written, 0 skipped, 0 failed."
    assert (
        lines[3].endswith(": 00_story, 06_speed.") and len(lines) == 4
    )  # made for more than 3.25 in
    assert '"width_inches": 3.25' in (out / "06_speed.json").read_text(encoding="utf-8")


@pytest.mark.usefixtures("some")
def test_without_a_browser_it_says_once_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "kaleido", None)
    assert cli.main(["figures", "--all", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.count("PDF, SVG, PNG were not written: they need a browser") == 1
    assert said.endswith("HTML was written instead.\n")
    assert {path.suffix for path in tmp_path.iterdir()} == {".html", ".json"}


@pytest.mark.usefixtures("some")
def test_what_no_run_has_is_skipped_with_exit_code_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, root = tmp_path / "figures", tmp_path / "runs"
    root.mkdir()
    assert figures_command.rebuild_all(None, None, ["html"], out, "a test", root) == 0
    said = capsys.readouterr().out
    assert "06_speed: skipped: No run " in said and "1 written, 1 skipped, 0 failed" in said


def test_a_failure_is_said_and_told_by_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Written(SuiteFigure("broken", "story"), "failed", "ValueError: odd")
    monkeypatch.setattr(figures_command, "write_all", lambda *args: iter([broken]))
    assert cli.main(["figures", "--all", "--out", str(tmp_path)]) == 1
    assert "broken: failed: ValueError: odd" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--all", "--venue", "nature"], "'nature' is not known: use neurips"),
        (["--all", "--formats", "eps"], "use a list of one or more of pdf, svg"),
        (["--all", "--run", "20200101-t4-grid"], "20200101-t4-grid"),
        (["--all", "--out", __file__], "is a file"),
        (["--venue", "icml"], "give --all"),
        (["--out", "figures"], "give --all"),
    ],
)
def test_bad_wishes_are_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=said):
        cli.main(["figures", *asked])
    assert not list(tmp_path.iterdir())


def test_without_all_the_readme_is_redrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def redraw(run_id: str) -> list[Path]:
        asked.append(run_id)
        return [tmp_path / "README.md"]

    monkeypatch.setattr(figures_command, "redraw", redraw)
    assert cli.main(["figures", "--run", "20200101-t4-grid"]) == 0
    assert asked == ["20200101-t4-grid"] and "wrote " in capsys.readouterr().out

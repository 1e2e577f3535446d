"""Every text the code asks for is in labels/en.toml, and every text there is asked for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from fa_kernels.widgets import text

WIDGETS = Path(text.__file__).parent


def keys() -> set[str]:
    sections = tomllib.loads((text.LABELS_DIR / "en.toml").read_text(encoding="utf-8"))
    return {key for section in sections.values() for key in section if key != "metrics"}


def test_no_text_is_left_over() -> None:
    # Figures have words handed to them by the widgets that show them; slides have a section.
    folders = [WIDGETS, WIDGETS.parent / "figures", WIDGETS.parent / "present"]
    paths = [path for folder in folders for path in folder.rglob("*.py")]
    code = "".join(path.read_text(encoding="utf-8") for path in paths)
    quoted = set(re.findall(r"""["']([a-z0-9_]+)["']""", code))
    # The page's own code gets a section as a whole.
    pages = "".join(path.read_text(encoding="utf-8") for path in WIDGETS.glob("static/*.js"))
    quoted |= set(re.findall(r"\bwords\.(\w+)", pages))
    quoted |= set(re.findall(r"""["'](\w+)["']""", pages))
    derived = {f"{n}_{k}" for n in ("seqlen", "head_dim", "sram") for k in ("description", "unit")}
    derived |= {f"{n}_{k}" for n in ("source", "missing") for k in ("counted", "l2", "dram")}
    derived |= {"source_dram_bare"} | {f"column_{name}" for name in ("seqlen", "name", "kernel")}
    assert keys() <= quoted | derived


def test_unknown_language() -> None:
    with pytest.raises(ValueError, match="language = 'xx' has no labels: use one of en"):
        text.labels("run", "xx")


def test_one_table_of_text_and_it_has_no_spaces_at_the_ends() -> None:
    shown = text.text_table("Caption", [["a", "long head"], ["longer cell", ""]])
    assert shown == "Caption\na            long head\nlonger cell"
    joins = [p.name for p in WIDGETS.rglob("*.py") if "ljust(" in p.read_text(encoding="utf-8")]
    assert joins == ["text.py"], "use text_table"


def test_no_list_box_that_gives_its_keys_to_jupyterlab() -> None:
    found = [p.name for p in WIDGETS.rglob("*.py") if "Dropdown(" in p.read_text(encoding="utf-8")]
    assert not found, "use Choice: in a Dropdown, typing b inserts a cell"


@pytest.mark.parametrize(
    ("said", "message", "more"),
    [
        (
            f"{'x' * 60} is 3.2 times as much. Recorded: 1 ms.",
            f"{'x' * 60} is 3.2 times as much.",
            1,
        ),
        (
            "Memory: reproduces. Cells are equal. So is time.",
            "Memory: reproduces. Cells are equal.",
            1,
        ),
        ("One sentence, of 4.8 TB/s.", "One sentence, of 4.8 TB/s.", 0),
    ],
)
def test_the_first_sentence_is_the_message(said: str, message: str, more: int) -> None:
    html = text.takeaway_html("mark", said)
    assert html.startswith(f'<div class="falab-sentence" data-fa-mark>{message}')
    assert html.count('<span class="falab-more">') == more
    assert re.sub("<[^>]+>", "", html) == said


def test_a_number_and_its_unit_stay_on_one_line() -> None:
    table = text.html_table(
        "t", "", ["time", "why"], [["4 ms (3 %)", "takes 4 ms, which is too long"]]
    )
    assert "<td>4\N{NO-BREAK SPACE}ms (3\N{NO-BREAK SPACE}%)</td>" in table
    assert "takes 4 ms, which" in table

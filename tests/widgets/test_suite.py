"""The list of every figure is the notebooks'; each is drawn, has its export row, is written."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

import fa_kernels as fa
from fa_kernels.figures.provenance import Provenance
from fa_kernels.measure.about import ROOT
from fa_kernels.session import Session
from fa_kernels.widgets import suite
from fa_kernels.widgets.export import offer
from fa_kernels.widgets.suite import FIGURES, SuiteFigure, live_figures, write_all

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
#: What a module that draws by a live figure cannot do without.
DRAWS = re.compile(r"LiveFigure\(|class \w+\((Drawn|Setting|Rung|Sized)View\)")

Call = tuple[str, tuple[tuple[str, Any], ...]]


def bound(function: str, args: Any, kwargs: Any) -> Call:
    """A call with every argument under its name, so that two ways of writing it are one."""
    given = inspect.signature(getattr(fa, function)).bind(*args, **kwargs).arguments
    return function, tuple(sorted(given.items()))


def shown_in(path: Path) -> Iterator[Call]:
    """The calls `fa.<widget>(...)` whose result a notebook's cell shows."""
    for cell in nbformat.read(path, as_version=4).cells:
        body = ast.parse(cell.source).body if cell.cell_type == "code" else []
        match body[-1] if body else None:
            case ast.Expr(ast.Call(ast.Attribute(ast.Name("fa"), name), args, keywords)):
                values = [eval_of(arg) for arg in args]
                yield bound(name, values, {k.arg: eval_of(k.value) for k in keywords})


def eval_of(node: ast.expr) -> Any:
    """A literal, or a fraction such as 1 / 4."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return eval_of(node.left) / eval_of(node.right)
    return ast.literal_eval(node)


def may_draw(function: str) -> bool:
    module = inspect.getmodule(getattr(fa, function))
    return module is not None and bool(DRAWS.search(inspect.getsource(module)))


def test_the_list_is_what_the_notebooks_show() -> None:
    listed = {bound(one.function, one.args, one.kwargs): one.name for one in FIGURES}
    assert len(listed) == len(FIGURES) == len({one.name for one in FIGURES})
    found: dict[Call, set[str]] = {}
    for path in NOTEBOOKS:
        for call in shown_in(path):
            found.setdefault(call, set()).add(path.name[:2])
    for call, name in listed.items():
        assert call in found, f"{name}: no notebook shows {call}: correct suite.FIGURES"
        assert name[:2] == min(found[call]), f"{name}: named after another notebook"
    for function, arguments in found.keys() - listed.keys():
        if may_draw(function):
            drawn = live_figures(getattr(fa, function)(**dict(arguments)))
            assert not drawn, f"add {function}{arguments} to suite.FIGURES: a notebook shows it"


@pytest.mark.parametrize("one", FIGURES, ids=lambda one: one.name)
def test_every_figure_is_drawn_and_has_its_export_row(one: SuiteFigure) -> None:
    used = fa.session("numpy")
    (live,) = live_figures(one.widget())
    assert live.export_offer == offer() and live.alt
    shown = live.export.shown()
    assert live.name != "figure" and shown.spec == live.spec and shown.sentence + shown.alt
    told = Provenance.of(shown)
    assert told.caption and all("missing" not in about for about in told.sources(used.root))
    if not one.recorded:
        assert shown.spec["data"]


def test_without_any_run_what_is_recorded_is_skipped_and_says_why(bare: Session) -> None:
    quick = [one for one in FIGURES if one.function in ("speed", "numerics", "generation", "story")]
    folder = bare.root / "figures" if bare.root else Path()
    found = {
        one.figure.name: one for one in write_all(bare, folder, formats=["html"], figures=quick)
    }
    for one in quick:
        result = found[one.name]
        assert result.state == ("skipped" if one.recorded else "written")
        assert not one.recorded or re.match("No run ", result.said)
    written = {one.name for one in quick if not one.recorded}
    assert {path.stem for path in folder.iterdir()} == written and written


def test_files_of_the_name_are_replaced_and_the_command_is_told(tmp_path: Path) -> None:
    used, story = fa.session("numpy"), [FIGURES[0]]
    for venue in ("icml", "jmlr"):
        (one,) = write_all(used, tmp_path, venue, ["html"], "the command", story)
        assert one.state == "written" and not one.missing
    told = json.loads((tmp_path / "00_story.json").read_text(encoding="utf-8"))
    assert (told["venue"], told["command"]) == ("jmlr", "the command")
    assert told["package"]["commit"] and told["sources"][0]["device"]


def test_one_failure_does_not_keep_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = SuiteFigure("broken", "story", kwargs={"N": "many"})
    first, second = write_all(
        fa.session("numpy"), tmp_path, formats=["html"], figures=[broken, FIGURES[0]]
    )
    assert first.state == "failed" and "many" in first.said and second.state == "written"


@pytest.mark.parametrize(("venue", "formats"), [("nature", None), (None, ["eps"])])
def test_bad_wishes_are_refused_before_anything_is_drawn(
    tmp_path: Path, venue: str | None, formats: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "_write", lambda *args: pytest.fail("drawn"))
    with pytest.raises(ValueError, match="use "):
        write_all(fa.session("numpy"), tmp_path, venue, formats)

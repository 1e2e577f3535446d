"""The pages as written: everything beside them, nothing from a network."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fa_kernels.figures.papers import PAPERS
from fa_kernels.present.deck_page import stepper_script
from fa_kernels.present.slide import HANDOUT, Slide, of_deck

PAGES = ("slides/talk20.html", "slides/talk45.html", "handout/handout.html")
#: What a browser would load: src, href of a link, url(...).
LOADED = re.compile(r'<(?:script|img|iframe|link)[^>]*?\s(?:src|href)="([^"]+)"')
IN_CSS = re.compile(r'url\(\s*["\']?([^"\')]+)')


def data_of(page: str) -> dict[str, dict[str, object]]:
    found = re.search(r'<script type="application/json" id="fa-data">(.*?)</script>', page)
    assert found is not None
    return dict(json.loads(found[1]))


@pytest.mark.parametrize("name", PAGES)
def test_everything_a_page_loads_lies_beside_it(built: Path, name: str) -> None:
    path = built / name
    loaded = LOADED.findall(path.read_text(encoding="utf-8"))
    assert loaded
    for address in loaded:
        assert (path.parent / address).is_file(), address


@pytest.mark.parametrize("folder", ["slides", "handout"])
def test_styles_load_nothing_from_elsewhere(built: Path, folder: str) -> None:
    styles = sorted((built / folder / "assets").rglob("*.css"))
    assert styles
    for style in styles:
        for address in IN_CSS.findall(style.read_text(encoding="utf-8")):
            here = address.startswith("data:") or (style.parent / address).is_file()
            assert here, f"{style.name}: {address}"


@pytest.mark.parametrize("deck", ["20", "45"])
def test_a_deck_has_its_slides(built: Path, talk: tuple[Slide, ...], deck: str) -> None:
    page = (built / "slides" / f"talk{deck}.html").read_text(encoding="utf-8")
    slides = of_deck(talk, deck)
    assert re.findall(r'<section id="([a-z0-9-]+)"', page) == [slide.name for slide in slides]
    assert page.count('<aside class="notes">') == len(slides)
    figures = data_of(page)["figures"]
    assert set(figures) == {s.name for s in slides if s.figure not in ("", "stepper")}
    assert set(re.findall(r'data-fa-figure="([^"]+)"', page)) == set(figures)


def test_each_stop_of_a_slider_has_a_figure_and_words_of_its_own(
    built: Path, talk: tuple[Slide, ...]
) -> None:
    figures = data_of((built / "slides/talk45.html").read_text(encoding="utf-8"))["figures"]
    varied = [slide for slide in talk if slide.vary and "45" in slide.decks]
    assert len(varied) >= 3
    for slide in varied:
        stops = figures[slide.name]["stops"]  # type: ignore[index]
        assert slide.vary is not None and len(stops) == len(slide.vary.values)
        for part in ("spec", "sentence"):
            assert len({json.dumps(stop[part]) for stop in stops}) == len(stops), slide.name


def test_figures_name_their_runs(built: Path) -> None:
    page = (built / "slides/talk20.html").read_text(encoding="utf-8")
    sources = re.findall(r'<p class="fa-source">(.*?)</p>', page)
    assert sum("recorded 2" in source for source in sources) >= 8
    assert all("H200" in source or "No recorded run" in source for source in sources)


def test_the_handout_is_complete(built: Path, talk: tuple[Slide, ...]) -> None:
    page = (built / "handout/handout.html").read_text(encoding="utf-8")
    for slide in of_deck(talk, HANDOUT):
        assert f'<section id="{slide.name}">' in page
    for entry in PAPERS.values():
        assert entry.split(",", 1)[0] in page
    shown, listed = page.split('<section id="provenance">')
    runs = set(re.findall(r"(?<=[ >])20\d{6}-[a-z0-9-]+", shown.split("<script")[0]))
    assert len(runs) > 8 and not [run for run in runs if f"<td>{run}</td>" not in listed]
    answers = re.search(r"<h3>Answers</h3><ol>(.*?)</ol>", page, re.DOTALL)
    assert answers is not None and answers[1].count("<li>") >= 4


def test_the_steppers_module_becomes_a_classic_script() -> None:
    assert "return { render };" in stepper_script("const render = 1;\nexport default { render };\n")
    with pytest.raises(ValueError, match="export default"):
        stepper_script("export function render() {}")

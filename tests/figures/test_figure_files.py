"""Exported figures: exact sizes, TrueType letters, no requests, and whose numbers they show."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
import yaml

import fa_kernels as fa
from fa_kernels.figures import theme
from fa_kernels.figures.figure_files import FORMATS, IMAGES, VENUES, save_figure
from fa_kernels.figures.papers import PAPERS, papers_shown
from fa_kernels.figures.provenance import plain, suite_bibtex
from fa_kernels.measure.about import ROOT
from fa_kernels.measure.maps import list_maps
from fa_kernels.measure.records import load_run
from tests.browser.conftest import chromium_path

SPEED = "20261201-h200-speed-3"
needs_browser = pytest.mark.skipif(chromium_path() is None, reason="no Chromium")


@pytest.fixture(scope="module")
def speed() -> Any:
    """A figure of the recorded run as it stands in the notebook, with sentence and table."""
    return fa.speed(64, device="h200", session=fa.session("numpy"))


@pytest.fixture(scope="module")
def icml(speed: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    save_figure(speed, "speed", "icml", folder=folder)
    return folder


@pytest.fixture
def html_alone(speed: Any, tmp_path: Path) -> Path:
    """A sidecar that needs no browser."""
    save_figure(speed, "speed", folder=tmp_path, formats=["html"])
    return tmp_path


@pytest.fixture
def no_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    import kaleido
    from kaleido.errors import ChromeNotFoundError

    def fail(*args: Any, **kwargs: Any) -> None:
        raise ChromeNotFoundError("no Chrome")

    monkeypatch.setattr(kaleido, "write_fig_from_object_sync", fail)


def page_of(pdf: bytes) -> tuple[float, float]:
    """Width and height in points of the only page, as its last version says."""
    boxes = re.findall(rb"/MediaBox ?\[0 0 ([\d.]+) ([\d.]+)\]", pdf)
    return float(boxes[-1][0]), float(boxes[-1][1])


def pixels_of(png: bytes) -> tuple[int, int]:
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def about(folder: Path, name: str) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return said


def check_sizes(folder: Path, name: str, inches: float) -> None:
    said = about(folder, name)
    height = said["height_inches"]
    assert said["width_inches"] == inches
    pdf, png = ((folder / f"{name}.{suffix}").read_bytes() for suffix in ("pdf", "png"))
    assert page_of(pdf) == pytest.approx((inches * 72, height * 72), abs=1e-3)
    assert pixels_of(png) == (round(inches * 600), round(height * 600))
    assert struct.unpack(">4sIIB", png[37:50]) == (b"pHYs", 23622, 23622, 1)
    svg = (folder / f"{name}.svg").read_text(encoding="utf-8")
    size = re.search(r'width="([\d.]+)" height="([\d.]+)"', svg)
    assert size and [float(px) for px in size.groups()] == pytest.approx([inches * 96, height * 96])
    assert f"figure {{ margin: 0; width: {inches:g}in; }}" in (folder / f"{name}.html").read_text(
        encoding="utf-8"
    )


@needs_browser
def test_sizes_of_a_narrow_column(icml: Path) -> None:
    assert {path.name for path in icml.iterdir()} == {f"speed.{suffix}" for suffix in FORMATS}
    check_sizes(icml, "speed", 3.25)


@needs_browser
@pytest.mark.parametrize(
    ("asked", "inches"),
    [
        ({}, 5.5),
        ({"venue": "icml-wide"}, 6.75),
        ({"venue": "beamer"}, 5.51),
        ({"width_inches": 10 / 3}, 3.33),
    ],
)
def test_sizes(speed: Any, tmp_path: Path, asked: dict[str, Any], inches: float) -> None:
    save_figure(speed, "speed", folder=tmp_path, **asked)
    check_sizes(tmp_path, "speed", inches)
    assert about(tmp_path, "speed")["smallest_words_pt"] >= 6


@needs_browser
def test_letters_are_true_type(icml: Path) -> None:
    pdf = (icml / "speed.pdf").read_bytes()
    assert b"/FontFile2" in pdf and b"/CIDFontType2" in pdf
    assert b"/Type3" not in pdf and b"/FontFile3" not in pdf
    assert b"LiberationSans" in pdf or b"Arial" in pdf or b"Helvetica" in pdf


@needs_browser
def test_a_page_that_was_rounded_can_still_be_read(speed: Any, tmp_path: Path) -> None:
    """Its table of objects points at the page that was written again."""
    save_figure(speed, "speed", folder=tmp_path, width_inches=3.33)
    pdf = (tmp_path / "speed.pdf").read_bytes()
    (start,) = re.findall(rb"startxref\n(\d+)\n%%EOF\n$", pdf)
    table = re.match(
        rb"xref\n0 1\n0{10} 65535 f \n(\d+) 1\n(\d{10}) 00000 n \ntrailer\n<<", pdf[int(start) :]
    )
    assert table
    assert pdf[int(table[2]) :].startswith(b"%b 0 obj\n<</Type /Page\n" % table[1])
    (before,) = re.findall(rb"/Prev (\d+)>>", pdf)
    assert pdf[int(before) :].startswith(b"xref")


@needs_browser
def test_the_html_asks_no_network(icml: Path) -> None:
    from playwright.sync_api import sync_playwright

    page_file = icml / "speed.html"
    text = page_file.read_text(encoding="utf-8")
    assert not re.search(r"<(script|img|iframe)[^>]*\ssrc=|<link|@import", text)
    asked, wrong = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=["--no-sandbox"])
        page = browser.new_page(color_scheme="dark")
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(page_file.as_uri())
        page.wait_for_selector("#figure .main-svg")
        page.wait_for_timeout(200)
        box = page.locator("figure .sheet").bounding_box()
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        browser.close()
    assert asked == [page_file.as_uri()] and not wrong
    assert box and (box["x"], box["y"], box["width"]) == pytest.approx((0, 0, 3.25 * 96))
    assert paper == "rgb(255, 255, 255)"


# -- provenance ------------------------------------------------------------------------------------


@needs_browser
def test_the_sidecar_is_the_runs(speed: Any, icml: Path) -> None:
    said, run = about(icml, "speed"), load_run(SPEED)
    assert said["sources"] == [dict(run.about)]
    source = said["sources"][0]
    assert (source["device"], source["driver"]) == ("NVIDIA H200", run.about["driver"])
    assert {"commit", "command", "cuda", "torch"} <= source.keys()
    wanted = {"d": 64, "causal": False, "dtype": "fp16", "pass_": "fwd"}
    assert said["parameters"] == wanted
    assert said["caption"] == plain(speed.sentence.value)
    assert said["caption"].startswith("Rung 06")
    assert said["alt"] == speed.figure.alt
    assert set(said["bibtex"]) == {"FlashAttention-2", "FlashAttention-3"}
    assert said["package"]["version"] == fa.__version__ and said["package"]["commit"]
    assert said["call"] == "fa.save_figure(fig, 'speed', venue='icml')"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", said["created"])
    for name, digest in said["files"].items():
        assert hashlib.sha256((icml / name).read_bytes()).hexdigest() == digest
    assert any(f"made for {speed.figure.least_width} px" in note for note in said["notes"])


def test_it_says_how_much_width_is_enough(speed: Any, tmp_path: Path) -> None:
    least = speed.figure.least_width
    narrow = save_figure(speed, "a", "icml", folder=tmp_path, formats=["html"])
    found = re.search(rf"made for {least} px, which take ([\d.]+) in", narrow.cramped)
    assert found and narrow.cramped in repr(narrow)
    enough = save_figure(
        speed, "b", width_inches=float(found[1]), folder=tmp_path, formats=["html"]
    )
    assert enough.cramped == "" and not any("px" in note for note in about(tmp_path, "b")["notes"])
    assert 3.25 < float(found[1]) < 3.25 * least / 400


def test_sources_of_every_run_in_the_table(no_browser: None, tmp_path: Path) -> None:
    """The ladder's figure names no run; its table does, all of them."""
    with pytest.warns(UserWarning, match="not written"):
        save_figure(fa.ladder(device="h200"), "ladder", folder=tmp_path)
    runs = {source["run_id"] for source in about(tmp_path, "ladder")["sources"]}
    assert runs == {SPEED, "20261130-h200-grid"}
    assert set(about(tmp_path, "ladder")["bibtex"]) == {
        "FlashAttention", "FlashAttention-2", "FlashAttention-3",
    }  # fmt: skip


def said_of(figure: Any, folder: Path, **options: Any) -> dict[str, Any]:
    with pytest.warns(UserWarning, match="not written"):
        save_figure(figure, "bare", folder=folder, **options)
    return about(folder, "bare")


def test_a_bare_figure_says_that_it_says_nothing(no_browser: None, tmp_path: Path) -> None:
    said = said_of(go.Figure(go.Scatter(y=[1, 2])), tmp_path)
    assert (said["caption"], said["parameters"], said["sources"]) == ("", {}, [])
    assert set(said["read_from"].values()) == {"nowhere"}
    assert len(said["notes"]) == 3 and "names no recorded run" in said["notes"][2]


def test_layout_meta_and_the_call_come_first(no_browser: None, tmp_path: Path) -> None:
    meta = {"caption": "of meta", "parameters": {"N": 1}, "run_ids": [SPEED], "papers": []}
    figure = go.Figure(layout={"meta": meta, "title": "a title"})
    said = said_of(figure, tmp_path, caption="of the call", papers=["Online softmax"])
    assert (said["caption"], said["parameters"]) == ("of the call", {"N": 1})
    assert said["sources"] == [dict(load_run(SPEED).about)]
    assert said["bibtex"] == {"Online softmax": PAPERS["Online softmax"]}
    assert said["read_from"] == {
        "caption": "the call", "parameters": "layout.meta", "sources": "layout.meta",
        "papers": "the call",
    }  # fmt: skip


def test_a_box_around_one_figure_is_that_figure(tmp_path: Path) -> None:
    save_figure(fa.softmax_failures(), "bare", folder=tmp_path, formats=["html"])
    said = about(tmp_path, "bare")
    assert said["caption"].startswith("Without the maximum") and said["parameters"]["scores"]


def test_maps_of_a_model_are_a_source_too(tmp_path: Path) -> None:
    """They lie in a folder of their own; the figure names them as it names a run."""
    save_figure(fa.sparse_quality(), "bare", folder=tmp_path, formats=["html"])
    (source,) = about(tmp_path, "bare")["sources"]
    assert (
        source["run_id"] == list_maps()[0]
        and {"commit", "command", "device", "model"} <= source.keys()
    )


def test_a_run_that_is_not_here_is_named_as_missing(no_browser: None, tmp_path: Path) -> None:
    figure = go.Figure(layout={"title": "<b>Time</b>, recorded 20200101-t4-grid"})
    (source,) = said_of(figure, tmp_path)["sources"]
    assert source["run_id"] == "20200101-t4-grid" and "no recorded run" in source["missing"]


def test_the_suite_is_cited_as_its_citation_file_says(html_alone: Path) -> None:
    """The sidecar's entry, CITATION.cff and the README are one."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    entry = about(html_alone, "speed")["package"]["bibtex"]
    assert entry == suite_bibtex()
    for name, value in (
        ("title", cited["title"]), ("author", cited["authors"][0]["name"]),
        ("version", cited["version"]), ("license", cited["license"]),
    ):  # fmt: skip
        assert re.search(rf"\b{name} = {{+{re.escape(value)}}}+", entry), name
    assert cited["type"] == "software" and entry.startswith("@software{")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert entry in readme and PAPERS["FlashAttention"] in readme


def test_papers_are_those_of_what_is_named() -> None:
    assert papers_shown([], ["torch flash", "12 ms"]) == ["FlashAttention-2"]
    assert papers_shown(["standard_tiled"], []) == ["FlashAttention"]
    assert papers_shown([], ["FlashAttention, table 9: forward"]) == ["FlashAttention"]
    assert papers_shown([], ["FlashAttention-2, figs. 4-7"]) == ["FlashAttention-2"]
    assert papers_shown([], ["flash-like"]) == [] == papers_shown(["words"], ["torch eager"])
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["references"][0]
    plain = PAPERS["FlashAttention"].replace("{", "").replace("}", "")
    assert cited["title"] in plain
    for entry in PAPERS.values():
        assert entry.count("{") == entry.count("}") and entry.startswith("@")


# -- on white --------------------------------------------------------------------------------------


def test_a_dark_template_stays_on_the_screen(no_browser: None, tmp_path: Path) -> None:
    figure = go.Figure(go.Scatter(y=[1, 2]), layout={"template": "plotly_dark"})
    before = figure.to_json()
    said_of(figure, tmp_path)
    assert figure.to_json() == before  # the caller's is left as it was
    drawn = (tmp_path / "bare.html").read_text(encoding="utf-8").rpartition("Plotly.newPlot")[2]
    assert f'"paper_bgcolor":"{theme.PAPER}"' in drawn and "rgb(17,17,17)" not in drawn


# -- no browser, no overwriting, bad values --------------------------------------------------------


def test_without_a_browser(speed: Any, no_browser: None, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="PDF, SVG, PNG were not written.*apt install chromium"):
        saved = save_figure(speed, "speed", folder=tmp_path / "new")
    assert [path.name for path in saved.files] == ["speed.html", "speed.json"]
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"speed.html", "speed.json"}
    assert saved.missing == about(tmp_path / "new", "speed")["missing"] and saved.missing
    assert saved.missing in repr(saved)


def test_without_kaleido(speed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "kaleido", None)
    with pytest.warns(UserWarning, match="kaleido.*pip install"):
        saved = save_figure(speed, "speed", folder=tmp_path)
    assert len(saved.files) == 2


@pytest.mark.parametrize("asked", [["pdf"], ["svg", "png"]])
def test_html_stands_in_for_what_needs_a_browser(
    speed: Any, no_browser: None, tmp_path: Path, asked: list[str]
) -> None:
    names = ", ".join(name.upper() for name in sorted(asked, key=IMAGES.index))
    with pytest.warns(UserWarning, match=f"^{names} w(as|ere) not written"):
        saved = save_figure(speed, "speed", folder=tmp_path, formats=asked)
    assert [path.name for path in saved.files] == ["speed.html", "speed.json"]


def test_formats_are_chosen(speed: Any, no_browser: None, tmp_path: Path) -> None:
    """HTML alone starts no browser, so that none is missing."""
    command = "python -m fa_kernels figures --all"
    saved = save_figure(speed, "speed", folder=tmp_path, formats=["html"], command=command)
    assert [path.name for path in saved.files] == ["speed.html", "speed.json"]
    assert not saved.missing and about(tmp_path, "speed")["command"] == command


@needs_browser
def test_no_other_format_than_asked_for(speed: Any, tmp_path: Path) -> None:
    save_figure(speed, "speed", "icml", folder=tmp_path, formats=["svg"])
    assert {path.name for path in tmp_path.iterdir()} == {"speed.svg", "speed.json"}
    assert about(tmp_path, "speed")["files"].keys() == {"speed.svg"}


def test_nothing_is_overwritten(speed: Any, no_browser: None, tmp_path: Path) -> None:
    (tmp_path / "speed.pdf").write_text("mine")
    with pytest.raises(FileExistsError, match=r"speed.pdf in .* overwrite=True"):
        save_figure(speed, "speed", folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["speed.pdf"]
    with pytest.warns(UserWarning, match="pdf of that name are of an earlier export"):
        save_figure(speed, "speed", folder=tmp_path, overwrite=True)
    assert (tmp_path / "speed.pdf").read_text() == "mine" and (tmp_path / "speed.json").exists()
    with pytest.warns(UserWarning, match="not written"):
        save_figure(speed, "speed", "icml", folder=tmp_path, overwrite=True)
    assert about(tmp_path, "speed")["venue"] == "icml"


def test_a_failure_leaves_nothing(
    speed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import kaleido

    def fail(wanted: list[dict[str, Any]], **kwargs: Any) -> None:
        wanted[0]["path"].write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(kaleido, "write_fig_from_object_sync", fail)
    with pytest.raises(OSError, match="no space"):
        save_figure(speed, "speed", folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"name": "a/b"}, ValueError, "letters, digits"),
        ({"name": "../up"}, ValueError, "folder=..."),
        ({"name": "speed.pdf"}, ValueError, "without a suffix"),
        ({"name": ""}, ValueError, "name = ''"),
        ({"name": "con"}, ValueError, "every system"),
        ({"name": 3}, ValueError, "name = 3"),
        ({"venue": "nature"}, ValueError, r"'nature' is not known: use neurips \(5.5\)"),
        ({"venue": []}, ValueError, "width_inches="),
        ({"width_inches": 0}, ValueError, "use 2 to 20"),
        ({"width_inches": float("nan")}, ValueError, "use 2 to 20"),
        ({"width_inches": "5"}, ValueError, "use 2 to 20"),
        ({"width_inches": True}, ValueError, "use 2 to 20"),
        ({"venue": "icml", "width_inches": 3}, ValueError, "one of the two"),
        ({"formats": ["eps"]}, ValueError, r"\['eps'\]: use a list .* of pdf, svg, png, html"),
        ({"formats": "pdf"}, ValueError, "use a list"),
        ({"formats": []}, ValueError, "one or more"),
        ({"papers": ["FlashAttention-9"]}, ValueError, "'FlashAttention-9' is not known"),
        ({"fig": 3}, TypeError, "fig is a int"),
    ],
)
def test_bad_values_are_refused_in_words(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    folder = tmp_path / "new"
    call = {"fig": go.Figure(), "name": "fine", "folder": folder, **options}
    with pytest.raises(error, match=said):
        save_figure(**call)
    assert not folder.exists()


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    for folder in (tmp_path / "taken", tmp_path / "taken" / "below"):
        with pytest.raises(ValueError, match="is a file"):
            save_figure(go.Figure(), "fine", folder=folder)


def test_a_figure_of_an_earlier_setting_is_refused(tmp_path: Path) -> None:
    widget = fa.speed(64, device="h200")
    widget.figure.stale = True
    with pytest.raises(ValueError, match="earlier setting"):
        save_figure(widget, "speed", folder=tmp_path)


def test_venues_and_the_public_name() -> None:
    assert {VENUES[v] for v in ("neurips", "iclr")} == {5.5}
    assert (VENUES["icml"], VENUES["icml-wide"], VENUES["aistats-wide"]) == (3.25, 6.75, 6.75)
    public: Callable[..., Any] = fa.save_figure
    assert public is save_figure and set(IMAGES) < set(FORMATS)


def test_figures_save_is_the_same_function() -> None:
    assert fa.figures.save is fa.save_figure
    with pytest.raises(AttributeError, match="no attribute 'sav'"):
        _ = fa.figures.sav

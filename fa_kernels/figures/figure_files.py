"""Figures for papers and slides: a venue's column width, four formats, and their provenance."""

from __future__ import annotations

import datetime
import hashlib
import html
import json
import math
import os
import re
import shutil
import struct
import tempfile
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fa_kernels.figures import theme
from fa_kernels.figures.panel import LEAST_WIDTH
from fa_kernels.figures.provenance import Provenance, Shown, package

#: Widths of a column in inches, by venue; "-wide" is both columns of a page that has two.
VENUES = {
    "neurips": 5.5,
    "iclr": 5.5,
    "icml": 3.25,
    "icml-wide": 6.75,
    "aistats": 3.25,
    "aistats-wide": 6.75,
    "ieee": 3.5,
    "jmlr": 6.0,
    "beamer": 5.51,  # 16:9: a page of 160 mm with margins of 10 mm
}
#: Inches. Below, no axis has room beside its labels; above, no page is as wide.
LEAST_INCHES, MOST_INCHES = 2.0, 20.0
#: px of CSS per inch, and pixels per inch of the PNG.
_CSS, DPI = 96, 600
#: Points of a figure's smallest words: at least, and where there is room.
_LEAST_PT, _BEST_PT = 6.0, 7.0
#: px of a figure that does not say its height.
_HEIGHT = 420
#: Of the width that a figure is made for; this little less does not show.
_ALMOST = 0.98
#: Drawn by a browser; HTML and JSON need none.
IMAGES = ("pdf", "svg", "png")
FORMATS = (*IMAGES, "html", "json")
#: Not for files on Windows.
_RESERVED = re.compile(r"(?i)con|prn|aux|nul|(com|lpt)\d")


@dataclass(frozen=True)
class Sheet:
    """A figure's size on paper in inches, and in the px that it is drawn in before it is scaled."""

    width: float
    height: float
    width_px: int
    height_px: float
    words_px: float

    @classmethod
    def of(cls, inches: float, spec: Mapping[str, Any], least_width: int) -> Sheet:
        """As wide as `inches`; the words grow where the drawing has room for `least_width` px."""
        column, words_px = inches * _CSS, min(_letters(spec), default=float(theme.SMALL))
        height_px = spec.get("layout", {}).get("height") or _HEIGHT
        by_words = [pt / 72 * _CSS / words_px for pt in (_LEAST_PT, _BEST_PT)]
        scale = min(max(column / least_width, by_words[0]), by_words[1])
        width_px = round(column / scale)
        scale = column / width_px
        height = math.ceil(height_px * scale / 8) / 12  # whole 6 pt: no page is rounded
        return cls(inches, height, width_px, height * _CSS / scale, words_px)

    @property
    def scale(self) -> float:
        """CSS px on paper per px of the drawing."""
        return self.width * _CSS / self.width_px

    @property
    def words_pt(self) -> float:
        """Size of the smallest words."""
        return self.words_px * self.scale * 72 / _CSS


@dataclass(frozen=True)
class Saved:
    """The files written; sentences on those that were not, and on a width too small, else empty."""

    files: tuple[Path, ...]
    missing: str = ""
    cramped: str = ""

    def __repr__(self) -> str:
        names = ", ".join(path.name for path in self.files)
        said = f"{self.files[0].parent}: {names}" if self.files else "nothing"
        return " ".join(filter(None, (f"{said}.", self.missing, self.cramped)))


def save_figure(
    fig: Any,
    name: str,
    venue: str | None = None,
    *,
    width_inches: float | None = None,
    folder: str | Path = "figures",
    formats: Sequence[str] | None = None,
    overwrite: bool = False,
    caption: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    run_ids: Sequence[str] | None = None,
    papers: Sequence[str] | None = None,
    command: str | None = None,
    root: Path | None = None,
) -> Saved:
    """Write a figure as PDF, SVG, PNG (600 dpi) and HTML at column width, and its provenance.

    Always in the colours for white paper. Letters of the PDF are TrueType, the smallest words at
    least 6 pt. The HTML holds plotly.js and asks no network for anything. Without a browser only
    HTML and JSON are written, with a warning that says what is missing. LaTeX between $ signs is
    not typeset.

    Args:
        fig: a plotly figure, its dict, or a widget such as `fa.ladder()` returns.
        name: of the files, without suffix: letters, digits, "-" and "_".
        venue: a key of `VENUES`; default "neurips".
        width_inches: instead of a venue, 2 to 20; rounded to hundredths.
        folder: made if it is not there.
        formats: of "pdf", "svg", "png" and "html"; default: all. Without a browser it is HTML.
        overwrite: replace files of that name.
        caption, parameters, run_ids, papers: for the sidecar <name>.json; what is not given is read
            off the figure, and the sidecar says where (`figures.provenance`).
        command: that draws the figure, for the sidecar too; beside the call.
        root: folder of the recorded runs; default data/measured.

    Raises:
        ValueError: bad name, venue, width, format, folder or paper; FileExistsError: a file is
            there; TypeError: not a figure. Nothing has been written then.
    """
    inches, wanted = checked_width(venue, width_inches), checked_formats(formats)
    where, stem = Path(folder), _checked_name(name)
    _refuse_existing(where, stem, overwrite)
    shown = Shown.of(fig)
    told = Provenance.of(shown, caption, parameters, run_ids, papers)
    sheet = Sheet.of(inches, shown.spec, shown.least_width or LEAST_WIDTH)
    figure, cramped = _for_paper(shown.spec, sheet), _cramped(sheet, shown.least_width)

    where.mkdir(parents=True, exist_ok=True)
    # Beside the files, so that each is moved to its place in one step.
    staging = Path(tempfile.mkdtemp(prefix=f".{stem}-", dir=where))
    try:
        images = [suffix for suffix in IMAGES if suffix in wanted]
        missing = _draw(figure, sheet, staging, stem, images) if images else ""
        if "html" in wanted or missing:
            page = _page(figure, sheet, stem, told)
            (staging / f"{stem}.html").write_text(page, encoding="utf-8")
        written = [path for f in FORMATS if (path := staging / f"{stem}.{f}").exists()]
        if kept := [f for f in images if missing and (where / f"{stem}.{f}").exists()]:
            missing += f" {', '.join(kept)} of that name are of an earlier export."
        about = {
            "name": stem,
            "caption": told.caption,
            "alt": told.alt,
            "parameters": told.parameters,
            "sources": told.sources(root),
            "read_from": told.read_from,
            "notes": told.notes + [cramped] * bool(cramped),
            "words": shown.words,
            "bibtex": told.bibtex,
            "package": package(),
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "call": _call(stem, venue, width_inches),
            "command": command,
            "venue": None if width_inches is not None else venue or "neurips",
            "width_inches": sheet.width,
            "height_inches": sheet.height,
            "smallest_words_pt": round(sheet.words_pt, 1),
            "files": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in written},
            "missing": missing,
        }
        sidecar = staging / f"{stem}.json"
        text = json.dumps(about, indent=2, ensure_ascii=False, default=str)
        sidecar.write_text(text + "\n", encoding="utf-8")
        _refuse_existing(where, stem, overwrite)  # it may have come while the browser drew
        for path in [*written, sidecar]:
            os.replace(path, where / path.name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    if missing:
        warnings.warn(missing, stacklevel=2)
    return Saved(tuple(where / path.name for path in [*written, sidecar]), missing, cramped)


# -- what is refused ---------------------------------------------------------------------------


def _checked_name(name: object) -> str:
    good = isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", name)
    if not good or _RESERVED.fullmatch(str(name)):
        raise ValueError(
            f"name = {name!r} is no file name for every system: use up to 100 letters, digits, "
            "'-' and '_', without a suffix; the folder is folder=..."
        )
    return str(name)


def checked_width(venue: object, inches: object = None) -> float:
    """Inches of a venue's column ("neurips"), or those asked for; ValueError: of neither."""
    if venue is not None and inches is not None:
        raise ValueError(f"venue = {venue!r} and width_inches = {inches!r}: give one of the two.")
    if inches is None:
        known = ", ".join(f"{name} ({width:g})" for name, width in VENUES.items())
        wanted = "neurips" if venue is None else venue
        if not isinstance(wanted, str) or wanted not in VENUES:
            raise ValueError(f"venue = {venue!r} is not known: use {known}, or width_inches=...")
        return VENUES[wanted]
    number = isinstance(inches, int | float) and not isinstance(inches, bool)
    if not number or not LEAST_INCHES <= float(str(inches)) <= MOST_INCHES:
        limits = f"{LEAST_INCHES:g} to {MOST_INCHES:g}"
        raise ValueError(f"width_inches = {inches!r} is no width of a figure: use {limits}.")
    return round(float(str(inches)), 2)


def checked_formats(formats: Sequence[str] | None) -> list[str]:
    """Suffixes to write beside the JSON, all by default; ValueError: none, or an unknown one."""
    known = FORMATS[:-1]
    wanted = list(known if formats is None else formats)
    if isinstance(formats, str) or not wanted or not set(wanted) <= set(known):
        raise ValueError(f"formats = {formats!r}: use a list of one or more of {', '.join(known)}.")
    return wanted


def _refuse_existing(where: Path, stem: str, overwrite: bool) -> None:
    for part in (where, *where.parents):
        if part.exists() and not part.is_dir():
            raise ValueError(f"folder = {str(where)!r}: {part} is a file; choose another folder.")
    paths = [where / f"{stem}.{suffix}" for suffix in FORMATS]
    if folders := [path.name for path in paths if path.is_dir()]:
        raise ValueError(f"{folders[0]} in {where} is a folder: choose another name.")
    there = [path.name for path in paths if path.exists() or path.is_symlink()]
    if there and not overwrite:
        raise FileExistsError(
            f"{', '.join(there)} in {where} would be overwritten: choose another name, or "
            "overwrite=True."
        )


def _cramped(sheet: Sheet, least: int | None) -> str:
    if least is None or sheet.width_px >= _ALMOST * least:
        return ""
    enough = math.ceil(sheet.width * least / sheet.width_px * 20) / 20
    return (
        f"Drawn {sheet.width_px} px wide to keep its words at {sheet.words_pt:.1f} pt; the figure "
        f"is made for {least} px, which take {enough:.4g} in: look for words that overlap or are "
        "cut off, or give it more width."
    )


def _call(stem: str, venue: str | None, inches: float | None) -> str:
    size = f"venue={venue or 'neurips'!r}" if inches is None else f"width_inches={inches!r}"
    return f"fa.save_figure(fig, {stem!r}, {size})"


# -- drawing -------------------------------------------------------------------------------------


def _letters(node: Any, key: str = "") -> Iterator[float]:
    """Every font size that a spec names, in px."""
    if isinstance(node, Mapping):
        for name, value in node.items():
            if key.endswith("font") and name == "size" and value is not None:
                yield from map(float, value if isinstance(value, list | tuple) else [value])
            elif name != "template":
                yield from _letters(value, name)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _letters(value, key)


def _for_paper(spec: Mapping[str, Any], sheet: Sheet) -> Any:
    """A copy on white, with plotly's own template and size taken away."""
    import plotly.graph_objects as go

    layout = {name: value for name, value in spec.get("layout", {}).items() if name != "template"}
    figure = go.Figure({"data": spec["data"], "layout": layout})
    # The page of a notebook uses no template either.
    figure.update_layout(
        template=go.layout.Template(), paper_bgcolor=theme.PAPER, plot_bgcolor="rgba(0,0,0,0)",
        autosize=False, width=sheet.width_px, height=sheet.height_px,
    )  # fmt: skip
    if figure.layout.font.family is None:
        figure.update_layout(font_family=theme.FONT_FAMILY)
    return figure


def _draw(figure: Any, sheet: Sheet, folder: Path, stem: str, images: Sequence[str]) -> str:
    """Write the images; where there is no browser, the sentence that says so, else ""."""
    try:
        import kaleido
        from choreographer.errors import BrowserDepsError, BrowserFailedError, ChromeNotFoundError
    except ImportError:
        return _without(
            images, "kaleido, which drives it,", "pip install 'flashattention-lab[lab]'"
        )
    wanted = []
    for suffix in images:
        # A PNG is cut to whole pixels: a hair more than exact, so that none is lost.
        scale = sheet.scale * DPI / _CSS * (1 + 1e-9) if suffix == "png" else sheet.scale
        size = {"width": sheet.width_px, "height": sheet.height_px, "scale": scale}
        wanted.append({"fig": figure, "path": folder / f"{stem}.{suffix}", "opts": size})
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The kopts argument is ignored")
            # Else the page asks a network for MathJax.
            kaleido.write_fig_from_object_sync(
                wanted, kopts={"mathjax": False}, cancel_on_error=True
            )
    except (ChromeNotFoundError, BrowserDepsError, BrowserFailedError) as error:
        for suffix in images:
            (folder / f"{stem}.{suffix}").unlink(missing_ok=True)
        found = isinstance(error, ChromeNotFoundError)
        what = "Chromium or Chrome" if found else "a Chromium or Chrome that starts"
        remedy = "Debian: apt install chromium; anywhere: kaleido_get_chrome"
        return _without(images, what, remedy)
    png, pdf = folder / f"{stem}.png", folder / f"{stem}.pdf"
    if "png" in images:
        png.write_bytes(_with_dpi(png.read_bytes(), DPI))
    if "pdf" in images:
        pdf.write_bytes(_with_page(pdf.read_bytes(), sheet))
    return ""


def _without(images: Sequence[str], what: str, remedy: str) -> str:
    names = ", ".join(name.upper() for name in images)
    verbs = "were not written: they need" if len(images) > 1 else "was not written: it needs"
    return f"{names} {verbs} a browser, and {what} is missing ({remedy})."


def _with_dpi(png: bytes, dpi: int) -> bytes:
    """A PNG that says how many pixels go on an inch: the chunk pHYs after the header."""
    per_metre = round(dpi / 0.0254)
    body = b"pHYs" + struct.pack(">IIB", per_metre, per_metre, 1)
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    header = 8 + 25  # signature and IHDR
    return png[:header] + chunk + png[header:]


def _with_page(pdf: bytes, sheet: Sheet) -> bytes:
    """A PDF whose page is exactly the sheet: browsers round pages to whole points.

    The page object is written again behind the end, as PDF's incremental updates do.
    """
    size = b"%.6g %.6g" % (sheet.width * 72, sheet.height * 72)
    page = re.search(rb"(\d+) 0 obj\n<</Type /Page\n.*?endobj", pdf, re.DOTALL)
    trailer = re.search(rb"trailer\n<<([^<>]*)>>\nstartxref\n(\d+)\n%%EOF\s*$", pdf)
    if page is None or trailer is None or b"[0 0 %b]" % size in page[0]:
        return pdf
    box = re.sub(rb"/MediaBox \[[^\]]*\]", b"/MediaBox [0 0 %b]" % size, page[0])
    at = len(pdf)
    table = b"xref\n0 1\n%010d 65535 f \n%b 1\n%010d 00000 n \n" % (0, page[1], at)
    end = b"trailer\n<<%b\n/Prev %b>>\n" % (trailer[1], trailer[2])
    return b"%b%b\n%b%bstartxref\n%d\n%%%%EOF\n" % (pdf, box, table, end, at + len(box) + 1)


def _page(figure: Any, sheet: Sheet, stem: str, told: Provenance) -> str:
    """One HTML file, the figure at its size on paper, still alive under the mouse."""
    drawing = figure.to_html(
        full_html=False, include_plotlyjs=True, include_mathjax=False, div_id="figure",
        config={"displayModeBar": False, "responsive": False},
    )  # fmt: skip
    said, alt = html.escape(told.caption), html.escape(told.alt or told.caption or stem)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{html.escape(stem)}</title>
<style>
body {{ margin: 0; background: {theme.PAPER}; color: {theme.INK}; color-scheme: light;
        font-family: {theme.FONT_FAMILY}; }}
figure {{ margin: 0; width: {sheet.width:g}in; }}
.sheet {{ width: {sheet.width:g}in; height: {sheet.height:g}in; overflow: hidden; }}
.drawing {{ width: {sheet.width_px}px; height: {sheet.height_px:.4f}px;
            transform: scale({sheet.scale:.8f}); transform-origin: 0 0; }}
figcaption {{ font-size: {theme.SMALL}px; }}
</style>
</head>
<body>
<figure>
<div class="sheet" role="img" aria-label="{alt}"><div class="drawing">{drawing}</div></div>
<figcaption>{said}</figcaption>
</figure>
</body>
</html>
"""

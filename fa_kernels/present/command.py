"""`python -m fa_kernels slides` and `handout`: the pages, what they load, and their PDFs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from fa_kernels.present.deck_page import deck_page, stepper_script
from fa_kernels.present.drawn import Gallery
from fa_kernels.present.facts import Facts
from fa_kernels.present.handout_page import handout_page
from fa_kernels.present.printing import NoBrowserError, PrintError, print_pdfs
from fa_kernels.present.said import filled
from fa_kernels.present.slide import DECKS, HANDOUT, TALK, SlideError, of_deck, read_slides
from fa_kernels.session import Session, session
from fa_kernels.widgets.live_figure import plotly_js
from fa_kernels.widgets.stepper import Stepper
from fa_kernels.widgets.text import labels

STATIC = Path(__file__).parent / "static"
SLIDES_OUT, HANDOUT_OUT = Path("build/slides"), Path("build/handout")
#: What each kind of page loads of `static`, beside plotly.js.
_OF_DECKS = ("reveal", "fonts", "deck.css", "deck.js")
_OF_HANDOUT = ("fonts", "handout.css", "handout.js")


def write_slides(folder: Path, used: Session, talk: Path = TALK) -> dict[Path, str]:
    """Write both decks as HTML; path -> the query with which it is printed.

    Raises:
        SlideError: a text that is no deck, or names what is not there.
    """
    gallery, facts = Gallery(used), Facts(used)
    slides, pages = read_slides(talk), {}
    for deck in DECKS:
        shown = [filled(slide, gallery, facts) for slide in of_deck(slides, deck)]
        pages[folder / f"talk{deck}.html"] = deck_page(shown, deck, gallery, facts)
    stepper_js = stepper_script(str(Stepper._esm))
    made = {"stepper.js": stepper_js, "stepper.css": str(Stepper._css)}
    _write(folder, pages, _OF_DECKS, made)
    return dict.fromkeys(pages, "?print-pdf")


def write_handout(folder: Path, used: Session, talk: Path = TALK) -> dict[Path, str]:
    """Write the handout as HTML; arguments and errors as `write_slides`."""
    gallery, facts = Gallery(used), Facts(used)
    slides = read_slides(talk)
    shown = [filled(slide, gallery, facts, False) for slide in of_deck(slides, HANDOUT)]
    pages = {folder / "handout.html": handout_page(slides[0].title, shown, gallery, facts)}
    _write(folder, pages, _OF_HANDOUT, {})
    return dict.fromkeys(pages, "")


def build(kind: str, run_id: str | None, out: Path | None, pdf: bool = True) -> int:
    """Write "slides" or "handout" and print where; 1 if a PDF failed.

    Exits with a sentence where a run, the folder or the slides' text will not do.
    """
    used = session("numpy", run_id)
    if run_id is not None and used.run is None:
        sys.exit(" ".join(used.notes))
    folder = out or (SLIDES_OUT if kind == "slides" else HANDOUT_OUT)
    if folder.exists() and not folder.is_dir():
        sys.exit(f"--out {folder} is a file: choose another folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)  # before the figures, which take seconds
        pages = (write_slides if kind == "slides" else write_handout)(folder, used)
    except SlideError as error:
        sys.exit(str(error))
    except OSError as error:
        sys.exit(f"--out {folder}: {error}")
    for page in pages:
        print(f"wrote {page}", flush=True)
    return _print_all(pages) if pdf else 0


def _print_all(pages: Mapping[Path, str]) -> int:
    text = labels("present")
    try:
        for pdf in print_pdfs(pages).values():
            print(f"wrote {pdf}")
    except NoBrowserError:
        print(text["no_browser"])
    except PrintError as error:
        print(text["failed_pdf"].format(why=error))
        return 1
    return 0


def _write(
    folder: Path, pages: Mapping[Path, str], static: tuple[str, ...], made: Mapping[str, str]
) -> None:
    assets = folder / "assets"
    assets.mkdir(parents=True, exist_ok=True)
    for name in static:
        source = STATIC / name
        if source.is_dir():
            shutil.copytree(source, assets / name, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, assets / name)
    (assets / "plotly.min.js").write_bytes(plotly_js())
    for name, text in made.items():
        (assets / name).write_text(text, encoding="utf-8")
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")

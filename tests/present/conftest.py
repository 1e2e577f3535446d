"""One build of decks and handout for all tests of a worker: it takes seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_kernels.present.command import write_handout, write_slides
from fa_kernels.present.drawn import Gallery
from fa_kernels.present.facts import Facts
from fa_kernels.present.said import filled
from fa_kernels.present.slide import Slide, read_slides
from fa_kernels.session import Session, session


@pytest.fixture(scope="session")
def used() -> Session:
    return session("numpy")


@pytest.fixture(scope="session")
def gallery(used: Session) -> Gallery:
    return Gallery(used)


@pytest.fixture(scope="session")
def facts(used: Session) -> Facts:
    return Facts(used)


@pytest.fixture(scope="session")
def talk(gallery: Gallery, facts: Facts) -> tuple[Slide, ...]:
    """The slides with their placeholders filled in."""
    return tuple(filled(slide, gallery, facts) for slide in read_slides())


@pytest.fixture(scope="session")
def built(used: Session, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `slides` and `handout`, as the commands write them, without PDFs."""
    folder = tmp_path_factory.mktemp("present")
    write_slides(folder / "slides", used)
    write_handout(folder / "handout", used)
    return folder

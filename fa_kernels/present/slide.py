"""One slide as its text says it, and the reader of that text.

A file of slides holds parts with lines of "---" between. A part begins with its name and where it
is shown, `## ladder | 20 45 handout`, goes on with `key: value` lines up to the first empty line,
then Markdown for the screen, then `notes:` with what is spoken, then `more:` with what only the
longer deck has time to say.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

TALK = Path(__file__).parent / "slides" / "talk.md"
#: The decks by their minutes, and the handout.
DECKS = ("20", "45")
HANDOUT = "handout"
#: The figure of a slide that is no figure of the suite.
STEPPER = "stepper"
#: How a slide is laid out: one column, or words left of the figure.
LAYOUTS = ("figure", "split", "text", "title", "questions", "references")
#: Spoken words a minute, and the seconds a hall needs to think about a question.
WORDS_PER_MINUTE = 130
ASK_SECONDS = 15

_HEAD = re.compile(r"## ([a-z][a-z0-9-]*) \| ([a-z0-9 ]+)")
_KEY = re.compile(r"([a-z]+): (.*)")
_KEYS = {"title", "layout", "figure", "vary", "sentence", "ask", "claims", "picture", "pause"}


class SlideError(ValueError):
    """A text that is no slide; the message names the slide and the remedy."""


@dataclass(frozen=True)
class Vary:
    """The argument that a slider moves, its values, and which of them is shown first."""

    argument: str
    values: tuple[int, ...]
    start: int

    @classmethod
    def parse(cls, text: str) -> Vary:
        """ "N 1024 *4096 16384": the star marks the first to be shown."""
        argument, *words = text.split()
        marked = [i for i, word in enumerate(words) if word.startswith("*")]
        numbers = [word.lstrip("*") for word in words]
        if len(words) < 2 or len(marked) != 1 or not all(n.isdigit() for n in numbers):
            raise SlideError(
                f"vary: {text!r} is not an argument and two values or more, one with a star: "
                "write it like `N 1024 *4096 16384`."
            )
        return cls(argument, tuple(map(int, numbers)), marked[0])


@dataclass(frozen=True)
class Slide:
    """A slide; texts still hold their placeholders, `{sentence:05_ladder 1}`.

    `figure` is a name of the suite or "stepper"; `sentence` says which of its sentences stand above
    it ("1-2"); `claims` are ids of claims, shown as a table; `pause` are seconds without words.
    """

    name: str
    decks: tuple[str, ...]
    title: str
    layout: str = "figure"
    figure: str = ""
    vary: Vary | None = None
    sentence: str = ""
    ask: str = ""
    claims: tuple[str, ...] = ()
    picture: str = ""
    pause: int = 0
    body: str = ""
    notes: str = ""
    more: str = ""

    def spoken(self, deck: str) -> str:
        """What is said in a deck; the handout has all of it."""
        return self.notes if deck == DECKS[0] else f"{self.notes}\n\n{self.more}".strip()

    def seconds(self, spoken: str) -> int:
        """How long the slide takes with these words, placeholders filled in."""
        asked = ASK_SECONDS if self.ask else 0
        return round(len(spoken.split()) / WORDS_PER_MINUTE * 60) + self.pause + asked


def read_slides(path: Path = TALK) -> tuple[Slide, ...]:
    """All slides of a file, in order.

    Raises:
        SlideError: a part that is no slide, an unknown key, deck or layout, a name given twice.
    """
    text = path.read_text(encoding="utf-8")
    parts = [part.strip() for part in re.split(r"^---$", text, flags=re.MULTILINE)]
    slides = tuple(_slide(part) for part in parts if part.startswith("## "))
    if lost := [part for part in parts[1:] if not part.startswith("## ")]:
        raise SlideError(f"{lost[0][:40]!r} does not begin with `## name | 20 45 handout`.")
    names = [slide.name for slide in slides]
    if twice := {name for name in names if names.count(name) > 1}:
        raise SlideError(f"{path.name}: {', '.join(sorted(twice))} is there twice: rename one.")
    return slides


def of_deck(slides: Sequence[Slide], deck: str) -> tuple[Slide, ...]:
    """The slides that a deck ("20", "45") or the "handout" shows."""
    return tuple(slide for slide in slides if deck in slide.decks)


def _slide(part: str) -> Slide:
    first, _, rest = part.partition("\n")
    head = _HEAD.fullmatch(first.strip())
    if head is None:
        raise SlideError(f"{first!r} is no head of a slide: write `## name | 20 45 handout`.")
    name, decks = head[1], tuple(head[2].split())
    if unknown := set(decks) - {*DECKS, HANDOUT}:
        raise SlideError(f"{name}: {sorted(unknown)} is no deck: use 20, 45 and handout.")
    keys, _, text = f"{rest}\n".partition("\n\n")
    body, notes, more = _split_text(text)
    return replace(_with_keys(name, decks, keys), body=body, notes=notes, more=more)


def _with_keys(name: str, decks: tuple[str, ...], lines: str) -> Slide:
    found: dict[str, str] = {}
    for line in filter(None, lines.splitlines()):
        key = _KEY.fullmatch(line.strip())
        if key is None or key[1] not in _KEYS:
            raise SlideError(f"{name}: {line!r} is not one of {', '.join(sorted(_KEYS))}.")
        found[key[1]] = key[2].strip()
    if "title" not in found:
        raise SlideError(f"{name} has no title: add a line `title: ...`.")
    if (layout := found.get("layout", "figure")) not in LAYOUTS:
        raise SlideError(f"{name}: layout {layout!r} is not one of {', '.join(LAYOUTS)}.")
    if not (pause := found.get("pause", "0")).isdigit():
        raise SlideError(f"{name}: pause {pause!r} is no number of seconds.")
    return Slide(
        name, decks, found["title"], layout, found.get("figure", ""),
        Vary.parse(found["vary"]) if "vary" in found else None, found.get("sentence", ""),
        found.get("ask", ""), tuple(found.get("claims", "").split()), found.get("picture", ""),
        int(pause),
    )  # fmt: skip


def _split_text(text: str) -> tuple[str, str, str]:
    """What is shown, what is spoken, what only the longer deck says."""
    shown, _, rest = f"\n{text}".partition("\nnotes:\n")
    notes, _, more = rest.partition("\nmore:\n")
    return shown.strip(), notes.strip(), more.strip()

"""The row under a figure: back to the opening setting, pin for comparison, copy the call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fa_kernels.figures.ghost import ghosted, has_ghost
from fa_kernels.widgets.headline import Headline, differences
from fa_kernels.widgets.text import labels

if TYPE_CHECKING:
    from fa_kernels.widgets.live_figure import LiveFigure


class Steered(Protocol):
    """What a widget with controls says of itself to the row under its figure."""

    def update(self, stamp: float = 0.0) -> None:
        """Draw what the controls show."""

    def reset(self) -> None:
        """Back to the setting that the cell opened with, in one redraw."""

    def call(self) -> str:
        """`fa.<function>(...)` that opens the widget as its controls stand."""

    def said(self) -> dict[str, str]:
        """Label -> value of every control that means something now."""

    def headline(self) -> Headline:
        """Name -> (value, unit) of what the figure is about; {} if it has no such numbers."""

    pins: bool

    @property
    def moves(self) -> bool:
        """True if some control has another value to offer."""

    def ghost_scales(self, before: Any) -> Mapping[str, float]:
        """Axis -> factor, where an axis counts in units of the setting; `before` is a setting."""


@dataclass(frozen=True)
class Pin:
    """A figure as it was when the reader pinned it."""

    spec: dict[str, Any]
    said: Mapping[str, str]
    call: str
    headline: Headline
    setting: Any

    def differs(self, said: Mapping[str, str]) -> list[tuple[str, str, str]]:
        """(label, pinned, now) of the controls that stand elsewhere now."""
        nothing = labels("row")["nothing"]
        names = dict.fromkeys((*self.said, *said))
        pairs = [(name, self.said.get(name, nothing), said.get(name, nothing)) for name in names]
        return [(name, before, now) for name, before, now in pairs if before != now]


class FigureRow:
    """The row of one live figure, and what is pinned behind it.

    `owner` is the widget around the figure; without one, or without controls, the row is empty.
    """

    def __init__(self, figure: LiveFigure, owner: Any) -> None:
        self._figure, self.pin = figure, None  # type: LiveFigure, Pin | None
        self.owner: Steered | None = owner if hasattr(owner, "said") else None
        self._plain: tuple[dict[str, Any], str] = {}, ""  # figure and words without any ghost
        self._said: dict[str, str] = {}
        self._setting: Any = None

    def actions(self) -> list[str]:
        """Of "reset", "pin" and "copy" those that do something here."""
        if self.owner is None:
            return []
        if not self.owner.moves:
            return ["copy"]
        pins = ["pin"] if (self.owner.pins and has_ghost(self._plain[0])) or self.pin else []
        return ["reset", *pins, "copy"]

    def follow(self, spec: dict[str, Any], alt: str) -> dict[str, Any]:
        """What the page shows of a figure that was just drawn, as traits of the live figure."""
        self._plain = spec, alt
        if self.owner is None:
            return {"spec": spec, "alt": alt}
        self._said, self._setting = self.owner.said(), getattr(self.owner, "setting", None)
        return {"call": self.owner.call(), "actions": self.actions(), **self._with_ghost()}

    def answer(self, wanted: object) -> None:
        """What the page asks for: "reset", "pin" or "unpin"."""
        if self.owner is None:
            return
        try:
            if wanted == "reset":
                self.owner.reset()
            elif wanted in ("pin", "unpin"):
                self.set_pin(wanted == "pin")
        except Exception as error:  # a traceback would go to a log nobody sees
            words = labels("explorer")["unexpected"]
            self._figure.row_said = words.format(kind=type(error).__name__, text=error)
        else:
            self._figure.row_said = ""

    def set_pin(self, pinned: bool) -> None:
        """Keep the figure as it is now behind those to come, or let it go."""
        if pinned and "pin" in self.actions() and self.owner is not None:
            headline = self.owner.headline()
            call = self._figure.call
            self.pin = Pin(self._plain[0], self._said, call, headline, self._setting)
        elif not pinned:
            self.pin = None
        with self._figure.hold_sync():
            for name, value in self._with_ghost().items():
                setattr(self._figure, name, value)
            if not pinned and self.owner is not None:
                self.owner.update()  # axes that were drawn to hold both

    def _with_ghost(self) -> dict[str, Any]:
        spec, alt = self._plain
        pin, text = self.pin, labels("row")
        if pin is None or self.owner is None:
            return {"spec": spec, "alt": alt, "pinned": False, "pinned_said": {}}
        differs = pin.differs(self._said)
        scales = self.owner.ghost_scales(pin.setting)
        short = ", ".join(f"{name} = {before}" for name, before, _ in differs)
        faint = text["faint"].format(setting=short)
        long = ", ".join(
            text["instead"].format(name=name, pinned=before, now=now)
            for name, before, now in differs
        )
        drawn = ghosted(spec, pin.spec, faint, scales) if differs else spec
        line = text["pinned" if differs else "pinned_same"].format(differences=long)
        if differs and drawn["data"] == spec["data"]:
            line, drawn = f"{line} {text['pinned_alike']}", spec
        now = self.owner.headline() if differs else {}
        numbers, rest = differences(now, pin.headline if differs else {})
        if numbers:
            line = f"{line} {text['numbers']}"
        return {
            "spec": drawn,
            "alt": " ".join([alt, line, *(f"{name}: {said}." for name, said in numbers)]),
            "pinned": True,
            "pinned_said": {
                "line": line,
                "call": pin.call,
                "numbers": numbers,
                "rest": rest,
                "caption": f"{faint}." if drawn is not spec else "",
            },
        }


def row_words() -> dict[str, str]:
    """The words that the page itself puts on the row."""
    text = labels("row")
    names = (
        "label", "reset", "reset_why", "pin", "pin_why", "copy", "copy_why", "copied", "by_hand",
    )  # fmt: skip
    return {name: str(text[name]) for name in names}

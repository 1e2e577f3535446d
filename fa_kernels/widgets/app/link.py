"""What the app shows as one value, and as the query of a link that opens it again."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from urllib.parse import parse_qs, urlencode

from fa_kernels.problem import checked_int
from fa_kernels.session import Session
from fa_kernels.widgets.controls import Settings
from fa_kernels.widgets.explorer_point import opening_settings, point_of
from fa_kernels.widgets.stepper import PRESETS
from fa_kernels.widgets.stepper_input import (
    checked_block,
    checked_scores,
    checked_step,
    from_cell,
    to_cell,
)
from fa_kernels.widgets.text import labels

VIEWS = ("explorer", "stepper", "story")
#: "" follows the system.
THEMES = ("", "light", "dark")
#: Size of text in percent of what fits the window; what A− and A+ step through.
SIZES = (70, 80, 90, 100, 115, 130, 150, 175, 200)


@dataclass(frozen=True)
class State:
    """View, setting of the explorer, row and place of the stepper, theme, size of text.

    The names are those of `fa.app`'s arguments and of the link. `scores` are cells of the stepper.
    """

    view: str = "explorer"
    N: object = 4096
    d: object = 64
    M_kib: object = None
    dtype: object = "fp16"
    device: object = None
    scale: object = "log"
    pattern: object = "dense"
    density: object = 1 / 4
    scores: tuple[str, ...] = tuple(to_cell(score) for score in PRESETS["growing"])
    block_n: int = 2
    step: int = 0
    theme: str = ""
    size: int = 100

    def settings(self, session: Session) -> Settings:
        """The explorer's settings; M_kib and device None stand for what `session` suggests.

        Raises:
            ValueError: what no control can hold or that device cannot launch.
        """
        found = opening_settings(
            session, self.N, self.d, self.M_kib, self.dtype, self.device, self.scale,
            self.pattern, self.density,
        )  # fmt: skip
        point_of(found)
        return found

    def with_settings(self, settings: Settings) -> State:
        """The same with the explorer at `settings`."""
        return replace(self, **{field.name: getattr(settings, field.name) for field in _SHARED})

    def query(self) -> str:
        """The link's query. The explorer's setting is always told: defaults may change."""
        told: dict[str, object] = {"view": self.view}
        told |= {name: getattr(self, name) for name in ("N", "d", "M_kib", "dtype", "device")}
        told["scale"] = self.scale
        if self.pattern != "dense":
            told |= {"pattern": self.pattern, "density": f"{self.density:.6g}"}
        start = State()
        if self.scores != start.scores:
            told["scores"] = ",".join(self.scores)
        names = ("block_n", "step", "theme", "size")
        told |= {name: getattr(self, name) for name in names if _differs(self, start, name)}
        return urlencode(told, safe=",")


_SHARED = [field for field in fields(Settings) if field.name in State.__dataclass_fields__]
#: What a link may say: the names of `State`.
KEYS = tuple(field.name for field in fields(State))


def _differs(one: State, other: State, name: str) -> bool:
    return bool(getattr(one, name) != getattr(other, name))


def checked_state(state: State, session: Session) -> State:
    """`state`, with every value in the type of its control.

    Raises:
        ValueError: a bad value; value, limit and remedy.
    """
    text = labels("app")
    if state.view not in VIEWS:
        raise ValueError(text["bad_view"].format(view=state.view, known=", ".join(VIEWS)))
    if state.theme not in THEMES:
        raise ValueError(text["bad_theme"].format(theme=state.theme))
    size = checked_int("size", state.size, SIZES[0], SIZES[-1], text["size_remedy"])
    step = checked_step(state.step)
    scores = tuple(to_cell(s) for s in checked_scores([from_cell(c) for c in state.scores]))
    block_n = checked_block(state.block_n)
    settled = state.with_settings(state.settings(session))
    return replace(settled, scores=scores, block_n=block_n, step=step, size=size)


def opened(query: str, asked: State, session: Session) -> tuple[State, list[str]]:
    """`asked` with what a link's query says instead, and a sentence for each value it may not say.

    Raises:
        ValueError: `asked` itself is no state of the app.
    """
    state, checked = asked, checked_state(asked, session)
    # Other keys are a token, or something of the server's.
    waiting = {key: _value(key, v[-1]) for key, v in parse_qs(query).items() if key in KEYS}
    while waiting:
        refused: dict[str, ValueError] = {}
        for key, value in waiting.items():
            # In the type of its control or not: `checked_state` says.
            tried = replace(state, **{key: value})  # type: ignore[arg-type]
            try:
                checked = checked_state(tried, session)
            except ValueError as error:
                refused[key] = error
            else:
                state = tried
        if len(refused) == len(waiting):
            break
        # M may be too much for one device and not for that which the link names after it.
        waiting = {key: waiting[key] for key in refused}
    said = labels("app")["bad_link"]
    return checked, [said.format(key=key, sentence=refused[key]) for key in waiting]


def query_of_page() -> str:
    """The query with which a page was opened: Voila tells its kernel so; elsewhere ""."""
    is_voila = os.environ.get("SERVER_SOFTWARE", "").startswith("voila")
    return os.environ.get("QUERY_STRING", "") if is_voila else ""


def _value(key: str, text: str) -> object:
    """A value of the query in the type that its argument has; text that is no number stays text."""
    if key == "scores":
        return tuple(cell.strip() for cell in text.split(","))
    if key in ("view", "dtype", "device", "scale", "pattern", "theme"):
        return text
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text

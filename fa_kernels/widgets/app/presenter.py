"""The app: explorer, stepper and story in one window for a speaker, and a link for its state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ipywidgets

from fa_kernels.figures.story import story_sentence, story_spec
from fa_kernels.session import Session, in_use
from fa_kernels.widgets.app.bar import Bar
from fa_kernels.widgets.app.link import VIEWS, State, checked_state, opened, query_of_page
from fa_kernels.widgets.explorer import Explorer
from fa_kernels.widgets.live_figure import LiveFigure
from fa_kernels.widgets.stepper import stepper
from fa_kernels.widgets.stepper_input import from_cell
from fa_kernels.widgets.text import labels


class App(ipywidgets.VBox):
    """Bar and views. All views stay as they are while another one is on screen.

    The story shows the explorer's point: one setting for the whole talk.
    """

    def __init__(self, state: State, session: Session, notes: Sequence[str] = ()) -> None:
        text = labels("app")
        self.session = session
        self.explorer = Explorer(state.settings(session), session)
        self.stepper = stepper(
            scores=[float(from_cell(cell)) for cell in state.scores],
            block_n=state.block_n, step=state.step,
        )  # fmt: skip
        self.story = LiveFigure("story")
        self.bar = Bar(
            view=state.view, theme=state.theme, size=state.size, text=text["page"],
            banner=[session.live, session.recorded, "model"], notes=[*session.notes, *notes],
        )  # fmt: skip
        self._drawn_story: object = None
        views = {"explorer": self._explorer_view(), "stepper": [self.stepper]}
        views["story"] = self._story_view()
        super().__init__([self.bar, *(_view(name, views[name]) for name in VIEWS)])
        self.add_class("falab-app")
        self.explorer.on_update = self.follow
        self.bar.observe(lambda change: self.follow(), ["view", "theme", "size"])
        self.stepper.observe(lambda change: self.follow(), ["cells", "block_n", "step"])
        self.follow()

    @property
    def state(self) -> State:
        """What is on screen now."""
        bar, steps = self.bar, self.stepper
        stepping = {"scores": tuple(steps.cells), "block_n": steps.block_n, "step": steps.step}
        state = State(view=bar.view, theme=bar.theme, size=bar.size, **stepping)
        return state.with_settings(self.explorer.controls.settings)

    def follow(self) -> None:
        """Keep the link in step, and the story while it is on screen."""
        self.bar.query = self.state.query()
        if self.bar.view == "story":
            self._draw_story()

    def _draw_story(self) -> None:
        point, settings = self.explorer.point, self.explorer.controls.settings
        self.story.stale = self.explorer.figure.stale
        if self._drawn_story == point:
            return
        run = self.explorer.runs.on(point.device)
        self.story.setting = settings
        self.story.show(story_spec(point, run), story_sentence(point, run))
        self._drawn_story = point

    def _explorer_view(self) -> list[Any]:
        """The explorer's parts, rearranged: controls at the side, the figure in all other room."""
        whole = self.explorer
        side = ipywidgets.VBox([whole.controls, whole.message, whole.run_panel, whole.status])
        side.add_class("falab-side")
        figure = ipywidgets.VBox([whole.figure, whole.theta])
        figure.add_class("falab-main")
        whole.children = (whole.sentence, side, figure)
        return [whole]

    def _story_view(self) -> list[Any]:
        """The knobs and sentence of the explorer once more, above the story's figure."""
        knobs = ipywidgets.HBox(list(self.explorer.controls.knobs))
        knobs.add_class("falab-knobs")
        return [self.explorer.sentence, knobs, self.explorer.message, self.story]


def _view(name: str, children: Sequence[Any]) -> Any:
    box = ipywidgets.VBox(list(children))
    box.add_class("falab-view")
    box.add_class(f"falab-view-{name}")
    return box


def app(
    view: str = "explorer",
    N: int = 4096,
    d: int = 64,
    M_kib: int | None = None,
    *,
    dtype: str = "fp16",
    device: str | None = None,
    scale: str = "log",
    pattern: str = "dense",
    density: float = 1 / 4,
    session: Session | None = None,
) -> App:
    """Explorer, stepper and story for a speaker: one bar, keys, a link that keeps the state.

    `make app` serves it full screen. What the address of the page says goes before arguments.

    Args:
        view: "explorer", "stepper" or "story".
        N, d, M_kib, dtype, device, scale, pattern, density, session: as `explorer`.

    Raises:
        ValueError: an argument the controls cannot show or the device cannot launch. A bad value in
            the address raises nothing: the app says so and keeps its own.
        TypeError: `session` is not one.
    """
    used = in_use(session)
    asked = State(view, N, d, M_kib, dtype, device, scale, pattern, density)
    query = query_of_page()
    state, notes = opened(query, asked, used) if query else (checked_state(asked, used), [])
    return App(state, used, notes)

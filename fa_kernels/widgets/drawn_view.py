"""Sentence, controls, figure and table, kept in step with what the controls show."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import ipywidgets

from fa_kernels.widgets.fold import Fold
from fa_kernels.widgets.live_figure import LiveFigure
from fa_kernels.widgets.presets import apply_preset, preset_choice, preset_of
from fa_kernels.widgets.steered import Control, Steering
from fa_kernels.widgets.text import labels, takeaway_html

__all__ = ["LEAST_WIDTH", "Control", "DrawnView"]

#: In px: these figures are readable narrower than the explorer, so that a projector's large
#: letters do not make the page scroll sideways.
LEAST_WIDTH = 800


class DrawnView(Steering, ipywidgets.VBox):
    """A widget that shows one setting.

    A subclass names its label section and says which setting its controls show (`setting`) and how
    to draw one (`draw`, which calls `show`). What cannot be computed is said in `message`; figure,
    sentence and table then keep what they show, faded. The row under the figure is `Steering`'s:
    the section is also the name of the call, unless `function` says another.
    """

    #: Section of the labels; the page finds the sentence by the mark, as data-fa-<mark>.
    section = mark = ""
    #: px below which the figure's words would collide and it scrolls sideways instead; in
    #: Presentation Mode times the factor of its letters.
    least_width = LEAST_WIDTH
    #: A list of known N and d beside the controls, which are then called `seqlen` and `head_dim`.
    has_presets = False
    #: True of a table that is longer than a screen: it is folded away until a reader opens it.
    folds_table = False

    def __init__(
        self,
        setting: Any,
        controls: Sequence[Control],
        aside: Sequence[ipywidgets.DOMWidget | Control] = (),
    ) -> None:
        """`controls` lead to `moved` when they change; `aside` stand beside them, and do not."""
        self.text, self.function = labels(self.section), self.function or self.section
        self.sentence, self.message = ipywidgets.HTML(), ipywidgets.HTML()
        name = type(self).__module__.rpartition(".")[2]
        self.figure = LiveFigure(name, owner=self, least_width=self.least_width)
        folds = self.folds_table
        self.table = Fold(summary=self.text["table"]) if folds else ipywidgets.HTML()
        self.steer(controls)
        for control in controls:
            control.observe(lambda change: self._heard(change.owner), "value")
        if self.has_presets:
            self.preset = preset_choice(preset_of(*self._sizes))
            self.preset.observe(lambda change: self._choose_preset(change.new), "value")
            aside = (*aside, self.preset)
        self.draw(setting, 0.0)
        row = ipywidgets.Layout(flex_flow="row wrap", align_items="center", width="100%")
        shown = ipywidgets.HBox([*controls, *aside], layout=row)
        super().__init__([self.sentence, shown, self.message, self.figure, self.table])

    def draw(self, setting: Any, stamp: float) -> None:
        """Compute and show a setting.

        Raises:
            ValueError: it cannot be computed; value, limit and remedy.
        """
        raise NotImplementedError

    def _heard(self, control: Control) -> None:
        if not self._quiet:
            self.moved(control)

    def moved(self, control: Control) -> None:
        """A control has another value."""
        self.update(control.stamp)

    @property
    def _sizes(self) -> tuple[int, int]:
        knobs: Any = self
        return knobs.seqlen.value, knobs.head_dim.value

    def _choose_preset(self, name: str) -> None:
        """Set N and d at once; the list's first line, which is none, changes nothing."""
        if self._quiet or not name:
            return
        knobs: Any = self
        self._quiet = True
        try:
            apply_preset(name, knobs.seqlen, knobs.head_dim)
        finally:
            self._quiet = False
        self.update(self.preset.stamp)

    def _follow_preset(self) -> None:
        """The list says the preset that N and d are of, if any."""
        if self.has_presets:
            self._quiet = True
            self.preset.value = preset_of(*self._sizes)
            self._quiet = False

    def update(self, stamp: float = 0.0) -> None:
        """Follow the controls; where that cannot be computed, say why and keep what is there."""
        words = labels("explorer")
        self._follow_preset()
        try:
            self.draw(self.setting, stamp)
        except ValueError as error:
            self._complain(words["kept"].format(sentence=error))
        except Exception as error:  # a traceback would go to a log nobody sees
            self._complain(words["unexpected"].format(kind=type(error).__name__, text=error))
        else:
            self._complain("")

    def show(self, spec: dict[str, Any], alt: str, said: str, table: str, stamp: float) -> None:
        """Put figure, alternative text, sentence and table (HTML) on the page."""
        self.figure.show(spec, alt, stamp)
        self.sentence.value = takeaway_html(self.mark, escape(said))
        self.table.value = table

    def _complain(self, text: str) -> None:
        self.figure.stale = bool(text)
        for shown in (self.sentence, self.table):
            (shown.add_class if text else shown.remove_class)("falab-stale")
        html = f'<div class="falab-message" role="alert" data-fa-message>{escape(text)}</div>'
        self.message.value = html if text else ""

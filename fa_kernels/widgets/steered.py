"""What controls do for the row under a figure: go back, and say where they stand."""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.headline import Headline
from fa_kernels.widgets.knob import Knob
from fa_kernels.widgets.text import labels

Control = Knob | Choice


class Steering:
    """Reset, Copy call and the words of a pinned setting, for a widget with controls.

    A subclass has `setting`, a dataclass whose fields are arguments of `fa.<function>`, and calls
    `steer` before it draws. Where an argument is none of the fields, it says so in `arguments`.
    """

    #: The name of the call that opens it: `fa.<function>`.
    function = ""
    #: False where the figure behind would be another one, not this one at another setting.
    pins = True
    #: True while controls are set together: they are then drawn once, at the end.
    _quiet = False
    controls_shown: Sequence[Control] = ()
    _opening: Mapping[Control, Any] = {}

    def steer(self, controls: Sequence[Control]) -> None:
        """Take these controls as they stand as what the cell opened with."""
        self.controls_shown = tuple(controls)
        self._opening = {control: control.value for control in controls}

    @property
    def setting(self) -> Any:
        """What the controls show now."""
        raise NotImplementedError

    def update(self, stamp: float = 0.0) -> None:
        """Draw what the controls show."""
        raise NotImplementedError

    @property
    def moves(self) -> bool:
        """True if some control has another value to offer."""
        return any(
            isinstance(control, Knob) or (len(control.texts) > 1 and not control.disabled)
            for control in self.controls_shown
        )

    def said(self) -> dict[str, str]:
        """Label -> value of every control that means something now."""
        found, counted = {}, labels("explorer")["seqlen_unit"]  # "N = 4096" says it all
        for control in self.controls_shown:
            if isinstance(control, Knob):
                unit = "" if control.unit == counted else control.unit
                found[control.label] = f"{control.value} {unit}".strip()
            elif not control.disabled:
                found[control.label] = control.texts[control.index]
        return found

    def reset(self) -> None:
        """Back to the setting that the cell opened with, in one redraw."""
        self._quiet = True
        try:
            for control in self.controls_shown:
                if isinstance(control, Knob):
                    control.error = ""
            self.restore(self._opening)
        finally:
            self._quiet = False
        self.update()

    def restore(self, values: Mapping[Control, Any]) -> None:
        """Set controls to these values; called while nothing is drawn."""
        for control, value in values.items():
            control.value = value

    def arguments(self) -> dict[str, Any]:
        """The arguments that open the widget as it is: fields of the setting, and the device."""
        known = _parameters(self.function)
        setting = self.setting
        found = {field.name: getattr(setting, field.name) for field in dataclasses.fields(setting)}
        sheet = getattr(self, "device", None)
        found.setdefault("device", getattr(sheet, "slug", sheet))
        return {name: found[name] for name in known if name in found}

    def call(self) -> str:
        """`fa.<function>(...)` that opens the widget as its controls stand; None is left out."""
        given = {name: value for name, value in self.arguments().items() if value is not None}
        said = ", ".join(f"{name}={_literal(value)}" for name, value in given.items())
        return f"fa.{self.function}({said})"

    def headline(self) -> Headline:
        """Name -> (value, unit) of what the figure is about, at the setting that is drawn."""
        return {}

    def ghost_scales(self, before: Any) -> Mapping[str, float]:
        """Axis -> factor, where an axis counts in units of the setting; `before` is a setting."""
        return {}


@cache
def _parameters(function: str) -> tuple[str, ...]:
    # By name, because the package itself stands above this layer.
    return tuple(inspect.signature(getattr(sys.modules["fa_kernels"], function)).parameters)


def _literal(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)

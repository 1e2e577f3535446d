"""A drawn view of one `Setting` of one device, with the forward numbers recorded there."""

from __future__ import annotations

from collections.abc import Sequence

from fa_kernels.figures.recorded_numbers import RecordedNumbers
from fa_kernels.widgets.drawn_view import LEAST_WIDTH, DrawnView
from fa_kernels.widgets.setting import Setting
from fa_kernels.widgets.steered import Control

__all__ = ["LEAST_WIDTH", "Control", "SettingView"]


class SettingView(DrawnView):
    """A `DrawnView` that shows one `Setting` of one device."""

    def __init__(
        self,
        setting: Setting,
        device: str,
        numbers: RecordedNumbers,
        controls: Sequence[Control],
        aside: Sequence[Control] = (),
    ) -> None:
        """`controls` lead to `moved` when they change; `aside` stand beside them, and do not."""
        self.device, self.numbers = device, numbers
        super().__init__(setting, controls, aside)

    @property
    def setting(self) -> Setting:
        """What the controls show now."""
        raise NotImplementedError

    def draw(self, setting: Setting, stamp: float) -> None:
        """Compute and show a setting.

        Raises:
            ValueError: it cannot be computed; value, limit and remedy.
        """
        raise NotImplementedError

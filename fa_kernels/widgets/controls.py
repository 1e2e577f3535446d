"""The explorer's controls: knobs N, d, M; dtype, device, scale, block pattern; presets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import ipywidgets

from fa_kernels.device import device, readable_devices
from fa_kernels.figures.over_seqlen import SEQLENS
from fa_kernels.figures.point import (
    Point,
    checked_head_dim,
    checked_seqlen,
    checked_sram_kib,
    device_words,
)
from fa_kernels.figures.sparse import CHOICES, DENSE, checked_density, checked_pattern
from fa_kernels.problem import DTYPE_FROM_SHORT, SHORT_DTYPE, dtype_name
from fa_kernels.tiling import largest_paper_sram
from fa_kernels.units import KIB
from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.knob import Knob
from fa_kernels.widgets.presets import PRESETS, about
from fa_kernels.widgets.setting import HEAD_DIMS, SRAM_KIB, dtype_choice, number_knob
from fa_kernels.widgets.text import labels

#: What the density control offers; an argument may lie between.
DENSITIES = (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64)


@dataclass(frozen=True)
class Settings:
    """What the controls are set to, as `fa.explorer` takes it."""

    N: int
    d: int
    M_kib: int
    dtype: str
    device: str
    scale: str = "log"
    pattern: str = DENSE
    density: float = 1 / 4

    def call(self) -> str:
        """The call that opens the explorer in this state."""
        sparse = f', pattern="{self.pattern}", density={self.density:.6g}'
        return (
            f'fa.explorer(N={self.N}, d={self.d}, M_kib={self.M_kib}, dtype="{self.dtype}", '
            f'device="{self.device}", scale="{self.scale}"{sparse if self.is_sparse else ""})'
        )

    @property
    def is_sparse(self) -> bool:
        """True if a pattern is chosen; the density means nothing without one."""
        return self.pattern != DENSE


def density_options(own: float) -> list[tuple[str, float]]:
    """(text, density) of the density control; `own` is among them, wherever it lies."""
    values = sorted({*DENSITIES, own}, reverse=True)
    return [(f"1/{round(1 / v)}" if v in DENSITIES else f"{v:.6g}", v) for v in values]


def device_options() -> list[tuple[str, str]]:
    """(name, slug) of every device whose sheet can be read."""
    return [(device_words(sheet), sheet.slug) for sheet in readable_devices()]


class Controls(ipywidgets.VBox):
    """All controls; `on_change(stamp)` is called once per change, with the knob's time stamp."""

    def __init__(self, settings: Settings, on_change: Callable[[float], None]) -> None:
        text = labels("explorer")
        self._on_change, self._quiet = on_change, False
        self.seqlen = number_knob("seqlen", SEQLENS, settings.N, checked_seqlen)
        self.head_dim = number_knob("head_dim", HEAD_DIMS, settings.d, checked_head_dim)
        self.sram = number_knob("sram", SRAM_KIB, settings.M_kib, checked_sram_kib)
        self.dtype = dtype_choice(settings.dtype)
        self.device = Choice(text["device"], device_options(), settings.device)
        scales = [(text["scale_log"], "log"), (text["scale_linear"], "linear")]
        self.scale = Choice(text["scale"], scales, settings.scale)
        self.pattern = Choice(text["pattern"], _plain(CHOICES), settings.pattern)
        densities = density_options(settings.density)
        self.density = Choice(text["density"], densities, settings.density)
        self.density.disabled = not settings.is_sparse
        self.presets = [_button(name, about(name)) for name in PRESETS]
        #: Beside the sentence that refuses M: the remedy as a button, there only when it helps.
        self.remedy = _button("", text["set_sram_why"])
        self.remedy.layout.display, self.remedy.layout.align_self = "none", "flex-start"
        self.remedy.on_click(lambda clicked: self.apply_remedy())
        for button in self.presets:
            button.on_click(lambda clicked: self.apply_preset(clicked.description))
        controls: list[Knob | Choice] = [*self.knobs, *self.choices]
        for control in controls:
            control.observe(lambda change: self._changed(change.owner.stamp), "value")
        wrap = ipywidgets.Layout(flex_flow="row wrap", align_items="center", width="100%")
        super().__init__(
            [
                ipywidgets.HBox(list(self.knobs), layout=wrap),
                ipywidgets.HBox(list(self.choices), layout=wrap),
                ipywidgets.HBox(self.presets, layout=wrap),
                self.remedy,
            ]
        )

    @property
    def knobs(self) -> tuple[Knob, Knob, Knob]:
        """N, d and M."""
        return self.seqlen, self.head_dim, self.sram

    @property
    def choices(self) -> tuple[Choice, ...]:
        """dtype, device, scale, pattern and density."""
        return self.dtype, self.device, self.scale, self.pattern, self.density

    @property
    def settings(self) -> Settings:
        """What the controls are set to now."""
        return Settings(
            self.seqlen.value, self.head_dim.value, self.sram.value,
            self.dtype.value, self.device.value, self.scale.value,
            self.pattern.value, self.density.value,
        )  # fmt: skip

    def apply(self, settings: Settings) -> None:
        """Set all controls at once: one change, not eight."""
        self._quiet = True
        try:
            for knob, value in zip(
                self.knobs, (settings.N, settings.d, settings.M_kib), strict=True
            ):
                knob.error, knob.value = "", value
            self.dtype.value, self.device.value = settings.dtype, settings.device
            self.scale.value, self.pattern.value = settings.scale, settings.pattern
            self.density.offer(density_options(settings.density), settings.density)
        finally:
            self._quiet = False
        self._changed(0.0)

    def apply_preset(self, name: str) -> None:
        """Set N and d to a preset's; everything else stays."""
        n, d = PRESETS[name].sizes
        self.apply(replace(self.settings, N=n, d=d))

    def apply_remedy(self) -> None:
        """Set M to what the refusal advises; everything else stays."""
        kib = remedy_kib(self.settings)
        if kib is not None:
            self.apply(replace(self.settings, M_kib=kib))

    def _changed(self, stamp: float) -> None:
        if self._quiet:
            return
        self.density.disabled = not self.settings.is_sparse
        self._on_change(stamp)
        kib = remedy_kib(self.settings)
        if kib is not None:
            self.remedy.description = labels("explorer")["set_sram"].format(sram=kib)
        self.remedy.layout.display = "none" if kib is None else ""


def remedy_kib(settings: Settings) -> int | None:
    """The M in KiB that a device which refuses this one would launch, or None where M is good."""
    name, sheet = DTYPE_FROM_SHORT[settings.dtype], device(settings.device)
    kib = _largest_kib(settings.d, name, sheet.smem_per_block_bytes)
    if settings.M_kib <= kib:
        return None
    for tried in (settings.M_kib, kib):
        try:  # short sequences have smaller tiles; a mask can be refused for its own reasons
            Point.of(settings.N, settings.d, tried, name, sheet, settings.pattern, settings.density)
        except ValueError:
            continue
        return None if tried == settings.M_kib else kib
    return None


@lru_cache(maxsize=64)
def _largest_kib(head_dim: int, dtype: str, limit_bytes: int) -> int:
    return largest_paper_sram(head_dim, dtype, limit_bytes) // KIB


def _plain(names: Iterable[str]) -> list[tuple[str, str]]:
    return [(name, name) for name in names]


def _button(text: str, about: str = "") -> Any:
    layout = ipywidgets.Layout(width="auto")
    button = ipywidgets.Button(description=text, tooltip=about or text, layout=layout)
    button.add_class("falab-compact")
    return button


def checked_settings(
    N: object,
    d: object,
    M_kib: object,
    dtype: object,
    device_slug: object,
    scale: object,
    pattern: object = DENSE,
    density: object = 1 / 4,
) -> Settings:
    """Arguments of `fa.explorer` as settings.

    Raises:
        ValueError: a value that no control can hold; value, limit and remedy.
    """
    short = SHORT_DTYPE[dtype_name(dtype)]
    if scale not in ("log", "linear"):
        raise ValueError(f"scale = {scale!r} is not known: use 'log' or 'linear'.")
    slug = device(str(device_slug)).slug
    return Settings(
        checked_seqlen(N), checked_head_dim(d), checked_sram_kib(M_kib), short, slug, str(scale),
        checked_pattern(pattern), checked_density(density),
    )  # fmt: skip

"""One meaning per colour, readable on white and on dark."""

from __future__ import annotations

import re

import pytest

from fa_kernels.figures import theme
from fa_kernels.measure.baselines import BASELINES
from fa_kernels.traffic.model import ALL_TENSORS, BACKWARD_TENSORS
from fa_kernels.variants import VARIANTS

DARK_PAGE = theme.DARK[theme.PAPER]


def dark(colour: str) -> str:
    """What live_figure.js makes of a colour where the page is dark."""
    return theme.DARK.get(colour, colour)


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_everything_has_a_style() -> None:
    assert set(theme.STYLES) == {*VARIANTS, *BASELINES}
    assert set(theme.TENSOR_COLOURS) == set(theme.TENSOR_LABELS) == set(ALL_TENSORS)


def test_one_meaning_per_colour() -> None:
    lines = {style.colour for style in theme.STYLES.values()}
    assert len(lines) == len(theme.STYLES)
    assert len(set(theme.TENSOR_COLOURS.values())) == len(ALL_TENSORS)
    assert not lines.intersection(theme.TENSOR_COLOURS.values())


def test_gradients_are_of_the_backward_pass_and_all_but_delta() -> None:
    assert set(theme.GRADIENTS) == set(BACKWARD_TENSORS) - {"delta"}


def test_lines_differ_also_without_colour() -> None:
    looks = {(style.dash, style.marker) for style in theme.STYLES.values()}
    assert len(looks) == len(theme.STYLES)
    assert "dot" not in {style.dash for style in theme.STYLES.values()}, "dots mark model bounds"


def test_markers_beside_words_differ_too() -> None:
    glyphs = [style.named[0] for style in theme.STYLES.values()]
    assert len(set(glyphs)) == len(glyphs)
    assert "┄" not in glyphs, "dots mark model bounds"
    assert all(style.modelled.startswith("┄ ") for style in theme.STYLES.values())


def test_the_compared_variants_have_their_familys_pure_hue() -> None:
    assert theme.style_of("standard_tiled").colour == "#D55E00"
    assert theme.style_of("flash_q_outer").colour == "#009E73"
    # As everywhere in a family, the algorithms come before the controls, and those before the same
    # algorithm on other units.
    assert [look.line for look in theme._FAMILIES["flash"]] == [
        theme.style_of(name).colour
        for name in ("flash_q_outer", "flash_kv_outer", "flash_q_outer_one_block",
                     "flash_kv_outer_io", "flash_mma", "flash_wgmma")
    ]  # fmt: skip


@pytest.mark.parametrize("name", theme.STYLES)
def test_lines_and_words_stand_out_on_both_pages(name: str) -> None:
    style = theme.STYLES[name]
    dark_line, dark_text = dark(style.colour), dark(style.text_colour)
    assert contrast(style.colour, theme.PAPER) >= 3
    assert contrast(dark_line, DARK_PAGE) >= 3
    assert contrast(style.text_colour, theme.PAPER) >= 4.5
    assert contrast(dark_text, DARK_PAGE) >= 4.5


@pytest.mark.parametrize("colour", [theme.INK, theme.MUTED])
def test_text_colours_are_readable(colour: str) -> None:
    assert contrast(colour, theme.PAPER) >= 4.5
    assert contrast(dark(colour), DARK_PAGE) >= 4.5


def test_dark_page_keeps_meanings_apart() -> None:
    colours = [*theme.TENSOR_COLOURS.values(), *(s.colour for s in theme.STYLES.values())]
    assert len(set(map(dark, colours))) == len(colours)


def test_the_pages_script_finds_every_colour() -> None:
    """It looks for six upper-case digits, and replaces what it finds in one pass."""
    colours = [*theme.TENSOR_COLOURS.values(), *(s.colour for s in theme.STYLES.values())]
    for colour in [*theme.DARK, *theme.DARK.values(), *colours]:
        assert re.fullmatch("#[0-9A-F]{6}", colour), colour


def test_nothing_below_twelve_pixels() -> None:
    assert theme.font(8)["size"] == theme.SMALL == 12


def test_unknown_series_still_get_a_style() -> None:
    assert theme.style_of("fa3").label == "fa3"


def test_axis_titles_name_their_unit() -> None:
    assert theme.axis_title("latency", "ms")["text"] == "latency (ms)"

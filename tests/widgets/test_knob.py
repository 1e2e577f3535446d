"""Knobs: typed text becomes a value or a sentence, and the old value stays."""

from __future__ import annotations

import pytest

from fa_kernels.figures.point import checked_head_dim, checked_seqlen, checked_sram_kib
from fa_kernels.widgets.knob import Knob, parse


def knob() -> Knob:
    return Knob(check=checked_head_dim, label="d", values=[16, 32, 64], value=64)


@pytest.mark.parametrize("text", ["96", " 96 ", "96.0", "9.6e1"])
def test_good_text_is_taken(text: str) -> None:
    made = knob()
    made.receive({"typed": text})
    assert (made.value, made.error) == (96, "")


@pytest.mark.parametrize("text", ["0", "1e9", "NaN", "abc", "-3", "257", "", "inf", "6.5", "٣x"])
def test_bad_text_is_a_sentence(text: str) -> None:
    made = knob()
    made.receive({"typed": text})
    assert made.value == 64
    assert made.error.startswith("d = ")
    assert "between 1 and 256" in made.error


def test_a_good_value_clears_the_sentence() -> None:
    made = knob()
    made.type("257")
    made.type("65")
    assert (made.value, made.error) == (65, "")


def test_typing_is_no_movement() -> None:
    made = knob()
    made.stamp = 12.0
    made.type("65")
    assert made.stamp == 0.0


@pytest.mark.parametrize("content", [None, 3, {}, {"other": 1}])
def test_other_messages_are_ignored(content: object) -> None:
    made = knob()
    made.receive(content)
    assert (made.value, made.error) == (64, "")


def test_each_knob_names_its_own_quantity() -> None:
    for name, check in {"N": checked_seqlen, "d": checked_head_dim, "M": checked_sram_kib}.items():
        with pytest.raises(ValueError, match=f"^{name} = 0 is out of range"):
            parse("0", check)

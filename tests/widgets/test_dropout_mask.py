"""The dropout mask: tiles never move it, both passes use it, and no byte is read for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fa_kernels as fa
from fa_kernels.figures.dropout_mask import BACKWARD, FORWARD
from fa_kernels.widgets import dropout_mask as module
from fa_kernels.widgets.dropout_mask import SEQLEN, Draw, mask_check, masks_used


@pytest.mark.parametrize(("block_m", "block_n"), [(8, 16), (1, 32), (32, 32), (5, 7), (11, 2)])
@pytest.mark.parametrize("percent", [0, 20, 90])
def test_the_same_mask_whatever_the_tiles(percent: int, block_m: int, block_n: int) -> None:
    check = mask_check(Draw(percent, 3, block_m, block_n))
    assert check.same
    assert (check.mask_bytes, check.added_bytes) == (0, 0)
    assert check.given_bytes == SEQLEN**2, "the comparison has something to compare with"


def test_masks_are_read_off_results_and_differ_by_seed() -> None:
    one, other = (masks_used(Draw(50, seed, 8, 8)) for seed in (0, 1))
    assert (one[FORWARD].keep == one[BACKWARD].keep).all()
    assert 0.3 < (one[FORWARD].keep != other[FORWARD].keep).mean() < 0.7


def test_kept_entries_are_as_many_as_expected() -> None:
    checks = [mask_check(Draw(20, seed, 8, 16)) for seed in range(40)]
    off = [(check.fraction - 0.8) / check.deviation for check in checks]
    assert max(map(abs, off)) < 4
    assert abs(np.mean(off)) < 4 / 40**0.5


def test_another_mask_in_the_backward_would_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.attention_backward

    def with_other_seed(*tensors: Any, **options: Any) -> Any:
        return real(*tensors, **options | {"seed": options["seed"] + 1})

    monkeypatch.setattr(module, "attention_backward", with_other_seed)
    widget = fa.dropout_mask()
    assert not widget.check.same and "The masks differ" in widget.sentence.value


def test_knobs_move_borders_and_not_cells() -> None:
    widget = fa.dropout_mask()
    cells, borders = widget.figure.spec["data"][0]["z"], widget.figure.spec["data"][1]["y"]
    widget.block_m.value = 11
    assert widget.figure.spec["data"][0]["z"] == cells
    assert widget.figure.spec["data"][1]["y"] != borders
    widget.seed.value = 1
    assert widget.figure.spec["data"][0]["z"] != cells
    assert "The same mask in both passes" in widget.sentence.value
    widget.percent.value = 0
    assert widget.check.kept == SEQLEN**2 and "± 0\u00a0% is expected" in widget.sentence.value


def test_typing_a_bad_tile() -> None:
    widget = fa.dropout_mask()
    widget.block_n.type("33")
    assert "33" in widget.block_n.error and widget.block_n.value == 16


@pytest.mark.parametrize(
    ("options", "said"),
    [({"p": 1}, "p = 1"), ({"p": -0.1}, "p = -0.1"), ({"p": 0.125}, "no whole percent"),
     ({"p": True}, "p = True"), ({"seed": 2**32}, "seed"), ({"block_m": 0}, "block = 0")],
)  # fmt: skip
def test_bad_values_are_refused_in_words(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fa.dropout_mask(**options)

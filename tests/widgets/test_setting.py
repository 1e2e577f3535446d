"""Settings and their controls: one set of stops and words for every widget."""

from __future__ import annotations

import pytest

from fa_kernels.figures.point import checked_sram_kib
from fa_kernels.problem import SHORT_DTYPE
from fa_kernels.session import Session
from fa_kernels.widgets.explorer import explorer
from fa_kernels.widgets.setting import SRAM_KIB, Setting, dtype_choice, number_knob
from fa_kernels.widgets.traffic_ways import traffic_ways


def test_a_setting_is_a_point_with_the_grids_batch_or_its_own() -> None:
    plain = Setting.of(1024, 64.0, 64, "float16")
    assert (plain.d, plain.dtype) == (64, "fp16")
    assert plain.point("h200").problem.batch == 16
    other = Setting(1024, 64, 64, "fp16", (64, 16)).point("h200").problem
    assert (other.batch, other.nheads, other.nheads_kv) == (64, 16, 16)


@pytest.mark.parametrize("arguments", [(0, 64, 64, "fp16"), (1, 64, "8", "fp16"), (1, 1, 1, "x")])
def test_bad_values_are_refused(arguments: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match="must be between|is not supported"):
        Setting.of(*arguments)


def test_all_widgets_have_the_same_controls(bare: Session) -> None:
    ways, controls = traffic_ways(session=bare), explorer(session=bare).controls
    for name in ("seqlen", "head_dim", "sram"):
        one, two = getattr(ways, name), getattr(controls, name)
        assert (one.label, one.unit, one.values) == (two.label, two.unit, two.values)
    assert ways.dtype.options == controls.dtype.options


def test_knob_and_list_box() -> None:
    knob = number_knob("sram", SRAM_KIB, 64, checked_sram_kib)
    assert (knob.label, knob.unit, knob.value) == ("M", "KiB", 64)
    assert set(dtype_choice("bf16").texts) == set(SHORT_DTYPE.values())

"""The rates beside the peers: what is said follows from the run, and what was not run says so."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

import fa_kernels as fa
from fa_kernels.measure.speed_run import SEQLENS
from fa_kernels.session import Session, session
from fa_kernels.widgets.text import labels
from tests.figures.synthetic_speed import SPEED_ID, write_speed_run

TEXT = labels("speed")


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Session:
    root: Path = tmp_path_factory.mktemp("speed")
    write_speed_run(root)
    return session("numpy", root=root)


def plain(html: str) -> str:
    return unescape(re.sub("<[^>]*>", "", html))


def test_the_sentence_is_computed(timed: Session) -> None:
    widget = fa.speed(session=timed)
    said = plain(widget.sentence.value)
    assert said.startswith("Rung 05 computes 300 to 300 TFLOP/s from N = 512 to N = 16384, at most")
    assert "30 % of the H200 SXM's 990" in said
    assert "1.25× the speed of torch flash (1.25× to 1.25×)" in said
    assert "0.75× the speed of torch cuDNN" in said
    assert widget.figure.alt.startswith(said)


def test_the_table_has_every_number_and_its_source(timed: Session) -> None:
    widget = fa.speed(session=timed)
    table = widget.table.value
    assert f"recorded {SPEED_ID}" in table and TEXT["flops_none"] in plain(table)
    assert table.count("<tr>") == 1 + len(SEQLENS) and table.count("<td>1.25×</td>") == len(SEQLENS)
    assert "time of torch flash / time of 05" in table
    assert "16384 tokens of width 2048" in table


def test_controls_move_figure_sentence_and_convention(timed: Session) -> None:
    widget = fa.speed(session=timed)
    spec = widget.figure.spec
    widget.head_dim.value = 256
    assert "d = 256, fp16, no mask" in widget.table.value
    widget.causal.value = True
    assert TEXT["flops_causal"] in plain(widget.table.value) and widget.figure.spec != spec
    widget.dtype.value = "bf16"
    assert "d = 256, bf16, causal mask" in widget.table.value and not widget.figure.stale
    assert [rate.row.dtype for rate in widget.curve("flash_mma").rates] == ["bfloat16"] * 6
    assert widget.curve("flash_mma").rates[0].row.causal == "bottom_right"


def test_without_a_run_it_says_so(bare: Session) -> None:
    widget = fa.speed(session=bare)
    assert "make measure ARGS=--speed" in widget.sentence.value
    assert TEXT["not_recorded"] in widget.table.value and widget.figure.spec["data"] == []
    assert widget.curve("flash_mma").rates == ()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"d": 80}, "d = 80 is not measured here: use 64, 128, 256"),
        ({"causal": "top_left"}, "causal = 'top_left' is not measured here: use False, True"),
        ({"dtype": "fp32"}, "dtype = 'fp32' is not measured here: use fp16, bf16"),
    ],
)
def test_what_is_not_measured_is_refused(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fa.speed(**arguments)


def test_the_recorded_run_is_shown() -> None:
    """The run of this checkout: rung 05 and both peers at every d, mask and dtype."""
    used = session("numpy")
    for d in (64, 128, 256):
        for causal in (False, True):
            for dtype in ("fp16", "bf16"):
                widget = fa.speed(d, causal, dtype=dtype, session=used)
                assert {"flash_mma", "torch_flash", "torch_cudnn"} <= {
                    curve.series for curve in widget.curves if len(curve.rates) == len(SEQLENS)
                }

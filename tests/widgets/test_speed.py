"""The rates beside the peers: what is said follows from the run, and what was not run says so."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import fa_kernels as fa
from fa_kernels.figures.recorded_speed import LONG_FROM
from fa_kernels.measure.records import OURS, append_rows, load_run
from fa_kernels.measure.speed_run import SEQLENS
from fa_kernels.session import Session, session
from fa_kernels.widgets.text import labels
from tests.figures.synthetic_speed import BACKWARD_ID, SPEED_ID, write_speed_run

TEXT = labels("speed")
#: N from which on a kernel's rate hardly depends on it.
LONG = [n for n in SEQLENS if n >= LONG_FROM]


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Session:
    root: Path = tmp_path_factory.mktemp("speed")
    write_speed_run(root)
    write_speed_run(root, BACKWARD_ID, pass_="bwd")
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
    assert f"recorded {SPEED_ID}" in table and "FLOP: 4 N² d per head" in plain(table)
    assert table.count("<tr>") == 1 + len(SEQLENS) and table.count("<td>1.25×</td>") == len(SEQLENS)
    assert "time of torch flash / time of 05" in table
    assert "16384 tokens of width 2048" in table


def test_controls_move_figure_sentence_and_convention(timed: Session) -> None:
    widget = fa.speed(session=timed)
    spec = widget.figure.spec
    widget.head_dim.value = 256
    assert "d = 256, fp16, no mask" in widget.table.value
    widget.causal.value = True
    assert "N (N + 1) / 2 of N²" in plain(widget.table.value) and widget.figure.spec != spec
    widget.dtype.value = "bf16"
    assert "d = 256, bf16, causal mask" in widget.table.value and not widget.figure.stale
    assert [rate.row.dtype for rate in widget.curve("flash_mma").rates] == ["bfloat16"] * 6
    assert widget.curve("flash_mma").rates[0].row.causal == "bottom_right"


def test_the_backward_has_its_run_its_flop_and_its_option(timed: Session) -> None:
    widget = fa.speed(session=timed, pass_="bwd")
    said, table = plain(widget.sentence.value), widget.table.value
    assert said.startswith("The backward pass of rung 05 computes 280 to 280 TFLOP/s")
    assert "1.25× the speed of torch flash" in said
    assert said.endswith("With a deterministic dQ it takes 1.50× the time (1.50× to 1.50×).")
    assert f"recorded {BACKWARD_ID}" in table and "FLOP: 10 N² d per head, 5 products" in table
    assert "05, deterministic dQ: median" in table
    assert [rate.row.metric for rate in widget.deterministic.rates] == (
        ["deterministic_latency_ms"] * len(SEQLENS)
    )
    heading = widget.figure.spec["layout"]["annotations"][0]["text"]
    assert TEXT["titles"]["bwd"] in heading and BACKWARD_ID in heading
    widget.pass_.value = "fwd"
    assert plain(widget.sentence.value) == plain(fa.speed(session=timed).sentence.value)
    assert f"recorded {SPEED_ID}" in widget.table.value and not widget.deterministic.rates
    assert "FLOP: 4 N² d per head, 2 products" in widget.table.value


def test_a_rung_without_a_deterministic_dq_leaves_it_to_the_one_before(timed: Session) -> None:
    """Of the runs of this checkout: 06 adds dq up in any order, 05 has the option."""
    widget = fa.speed(pass_="bwd", session=session("numpy"))
    said = plain(widget.sentence.value)
    assert said.startswith("The backward pass of rung 06 computes")
    assert re.search(r"With a deterministic dQ rung 05 takes 1\.\d\d× its time", said)
    assert "05, deterministic dQ: median" in widget.table.value
    assert widget.deterministic.series == "flash_mma" and widget.deterministic.rates


def test_both_passes_of_the_last_rung_stand_against_all_others() -> None:
    table = fa.step_times(session=session("numpy"))
    assert re.match(
        r"Forward and backward of rung 06 together take [\d.]+ ms: 0\.\d+× the time of "
        r"05 flash, tensor cores, 0\.\d+× the time of torch flash and 0\.\d+× the time of "
        r"torch cuDNN\.",
        table.sentence(),
    )
    assert [row[-1] for row in table.cells()][:3:2] == ["both / rung 06", "1.00"]


def test_both_passes_as_one_call(timed: Session, bare: Session) -> None:
    table = fa.step_times(session=timed)
    assert [row[0] for row in table.cells()[1:]] == [
        "05 flash, tensor cores", "torch flash", "torch cuDNN",
    ]  # fmt: skip
    assert [row[-1] for row in table.cells()[1:]] == ["1.00", "1.25", "0.70"]
    assert "0.80× the time of torch flash and 1.43× the time of torch cuDNN" in table.sentence()
    assert "B = 64, H = 16, N = 1024, d = 64, fp16" in str(table) and BACKWARD_ID in str(table)
    assert 'data-fa-table="step-times"' in table._repr_html_()
    assert "make measure ARGS=--speed" in str(fa.step_times(session=bare))


def test_both_passes_without_anybody_else(tmp_path: Path) -> None:
    folder = write_speed_run(tmp_path, BACKWARD_ID, pass_="bwd")
    kept = [row for row in load_run(BACKWARD_ID, tmp_path).rows if row.provider == OURS]
    (folder / "rows.csv").unlink()
    append_rows(folder, kept)
    table = fa.step_times(session=session("numpy", root=tmp_path))
    assert re.fullmatch(
        r"Forward and backward of rung 05 together take [\d.]+ ms; nobody else was timed in that "
        r"run\.", table.sentence(),
    )  # fmt: skip
    assert len(table.cells()) == 2


def test_without_a_run_it_says_so(bare: Session) -> None:
    assert "the backward pass" in fa.speed(session=bare, pass_="bwd").sentence.value
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
        ({"pass_": "both"}, "pass_ = 'both' is not measured here: use fwd, bwd"),
    ],
)
def test_what_is_not_measured_is_refused(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fa.speed(**arguments)


def test_the_recorded_run_is_shown() -> None:
    """The runs of this checkout: both rungs and both peers at every d, mask and dtype.

    And what notebooks 05 and 06 say in words: where the rungs stand beside FlashAttention-2 and
    cuDNN, forward and backward.
    """
    used = session("numpy")
    for d in (64, 128, 256):
        for causal in (False, True):
            for dtype in ("fp16", "bf16"):
                backward = fa.speed(d, causal, dtype=dtype, pass_="bwd", session=used)
                for n in LONG:
                    fa2, old, cudnn = rates(backward, n, "torch_flash", "flash_mma", "torch_cudnn")
                    assert fa2 < old < cudnn
                    if d <= 128:  # of which 06 has a backward
                        assert cudnn < rates(backward, n, "flash_wgmma")[0]
                widget = fa.speed(d, causal, dtype=dtype, session=used)
                assert {"flash_wgmma", "flash_mma", "torch_flash", "torch_cudnn"} <= {
                    curve.series for curve in widget.curves if len(curve.rates) == len(SEQLENS)
                }
                for n in LONG:
                    fa2, old, cudnn, new = rates(
                        widget, n, "torch_flash", "flash_mma", "torch_cudnn", "flash_wgmma"
                    )
                    assert max(fa2, old) < cudnn < new and (d == 256 or fa2 < old)


def rates(widget: Any, n: int, *series: str) -> list[float]:
    """TFLOP/s of each at this N."""
    found = [widget.curve(name).at(n) for name in series]
    assert all(found)
    return [rate.tflops for rate in found]

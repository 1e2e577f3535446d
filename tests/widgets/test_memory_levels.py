"""The widgets of 01: what they say follows from the data sheets and the recorded ceilings."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

import fa_kernels as fa
from fa_kernels.device import device, list_devices
from fa_kernels.figures.fastest_recorded import FastestKernel
from fa_kernels.figures.memory_levels import levels_of
from fa_kernels.figures.provenance import Provenance, Shown
from fa_kernels.figures.recorded_ceilings import MeasuredCeilings
from fa_kernels.measure.ceiling_records import CEILINGS, LATER
from fa_kernels.session import Session, session
from fa_kernels.units import significant
from fa_kernels.widgets.memory_levels import Gaps
from fa_kernels.widgets.text import labels
from tests.figures import synthetic_ceilings
from tests.figures.synthetic import write_run
from tests.figures.synthetic_ceilings import RUN_ID, write_ceilings_run

LEVELS, FITS, CHECK = (labels(s) for s in ("memory_levels", "what_fits", "ceiling_check"))
COMMAND = "python -m fa_kernels measure --ceilings"


@pytest.fixture
def measured(tmp_path: Path) -> Session:
    root = tmp_path / "measured"
    write_ceilings_run(root)
    return session("numpy", root=root)


def plain(text: str) -> str:
    return html.unescape(re.sub("<[^>]*>", "", text))


# -- levels ----------------------------------------------------------------------------------------


def test_without_a_run_the_data_sheet_speaks_and_the_remedy_is_named(bare: Session) -> None:
    widget = fa.memory_levels("h200", bare)
    said, table = plain(widget.sentence.value), plain(widget.table.value)
    assert said.startswith(
        "On the H200 SXM all SMs together read shared memory 7.0 times as fast as HBM"
    )
    assert "Measured" not in said and COMMAND in table
    assert "H200 data sheet 3367400" in table


def test_with_a_run_both_stand_there(measured: Session) -> None:
    widget = fa.memory_levels("h200", measured)
    assert "Measured it is 7.4 times" in plain(widget.sentence.value)
    assert f"Measured: {RUN_ID}." in plain(widget.table.value)
    assert "0.950" in widget.table.value and COMMAND not in widget.table.value
    widget.device.value = "a100-40gb"
    assert "Measured" not in plain(widget.sentence.value)
    assert (
        plain(widget.sentence.value).startswith("On the A100 40GB ")
        and COMMAND in widget.table.value
    )


@pytest.mark.parametrize("slug", list_devices())
def test_the_gaps_are_ratios_of_the_sheet(slug: str) -> None:
    gpu = device(slug)
    gaps = Gaps.of(gpu, levels_of(gpu, MeasuredCeilings()))
    assert gaps.faster_measured is None
    assert gaps.larger_block / gaps.larger_gpu == pytest.approx(
        gpu.sm_count * gpu.smem_per_sm_bytes / gpu.smem_per_block_bytes
    )
    one_sm = gaps.faster / gpu.sm_count
    said = plain(fa.memory_levels(slug).sentence.value)
    assert ("slower than all of HBM" in said) == (one_sm < 1)
    assert LEVELS[gaps.claim] in said


@pytest.mark.parametrize(
    ("larger_gpu", "larger_block", "claim"),
    [
        (2e4, 1e6, "claim_gpu"),
        (2e3, 2e4, "claim_block"),
        (2e3, 2e5, "claim_between"),
        (2e2, 2e3, "claim_neither"),
        (2e5, 2e6, "claim_neither"),
    ],
)
def test_tens_of_thousands_is_judged(larger_gpu: float, larger_block: float, claim: str) -> None:
    assert Gaps(10.0, None, larger_gpu, larger_block).claim == claim


def test_an_unknown_device_is_refused() -> None:
    for call in (fa.memory_levels, fa.check_ceilings):
        with pytest.raises(ValueError, match="device = 'h300' is not known"):
            call("h300")
    with pytest.raises(ValueError, match="device = 'h300' is not known"):
        fa.what_fits(device="h300")
    with pytest.raises(TypeError, match="is not a session"):
        fa.memory_levels(session="x")


# -- what fits -------------------------------------------------------------------------------------


def test_s_does_not_fit_into_a_block_and_the_sentence_says_how_far() -> None:
    widget = fa.what_fits(4096, 64, device="h200")
    said = plain(widget.sentence.value)
    assert "S of one head at N = 4096 takes 32 MiB: 144× what a block may have" in said
    assert "up to N = 340" in said and "8 GiB, in HBM only" in said
    assert "holds 7" in plain(widget.table.value)  # tiles of 32 KiB in 227 KiB
    assert not widget.figure.stale


def test_a_short_sequence_fits() -> None:
    widget = fa.what_fits(4096, 64, device="h200")
    widget.seqlen.value = 256
    assert "would fit into what a block may have" in plain(widget.sentence.value)
    widget.seqlen.value, widget.device.value = 65536, "t4"
    assert "too large for HBM" in plain(widget.sentence.value)


@pytest.mark.parametrize(
    ("changed", "said"), [({"N": 0}, "N = 0"), ({"d": 512}, "d = 512"), ({"dtype": "fp8"}, "fp8")]
)
def test_what_cannot_be_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fa.what_fits(**changed)


# -- the check -------------------------------------------------------------------------------------


def test_every_ceiling_has_a_line_with_and_without_a_run(bare: Session, measured: Session) -> None:
    assert set(CHECK["names"]) == set(CEILINGS)
    without, found = fa.check_ceilings("h200", bare), fa.check_ceilings("h200", measured)
    assert COMMAND in str(without) and RUN_ID in str(found)
    assert len(without.cells()) == len(found.cells()) == len(CEILINGS) + 1
    assert not any(line.ratio for line in without.lines)
    ratios = {line.name: line.ratio for line in found.lines}
    assert ratios["hbm_read"] == pytest.approx(0.9) and ratios["l2_read"] is None
    assert 'data-fa-table="ceilings"' in found._repr_html_() and "0.900" in found._repr_html_()


def test_what_a_run_lacks_is_said(tmp_path: Path) -> None:
    write_ceilings_run(tmp_path, ("exp2",))
    check = fa.check_ceilings("h200", session("numpy", root=tmp_path))
    row = next(row for row in check.cells() if row[0] == CHECK["names"]["exp2"])
    assert row[-1] == CHECK["not_in_run"] and row[3] == ""


def test_an_exported_figure_says_its_parameters_and_its_run(measured: Session) -> None:
    levels = Provenance.of(Shown.of(fa.memory_levels("h200", measured)))
    assert levels.parameters == {"device": "h200"} and levels.run_ids == [RUN_ID]
    fits = Provenance.of(Shown.of(fa.what_fits(2048, 128, dtype="bf16", device="t4")))
    assert fits.parameters == {"N": 2048, "d": 128, "dtype": "bf16", "device": "t4"}


@pytest.mark.parametrize("part", [0.2, 0.7])
def test_a_recorded_kernel_that_beats_the_product_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: float
) -> None:
    """A measured product is not called a limit where a recorded kernel is faster."""
    monkeypatch.setitem(synthetic_ceilings.PART, "matmul_fp16", part)
    write_run(tmp_path, head_dims=(64,), seqlens=(4096,))
    write_ceilings_run(tmp_path)
    check = fa.check_ceilings("h200", session("numpy", root=tmp_path))
    fastest = FastestKernel.of_each_dtype(device("h200"), tmp_path)["float16"]
    beaten = fastest.tflops > synthetic_ceilings.rate_of("matmul_fp16")
    said = (
        f"A recorded kernel reaches {significant(fastest.tflops)} TFLOP/s (forward, torch cuDNN, "
        f"N = 4096, d = 64; {fastest.run_id}): cuBLAS (4096 × 4096 × 4096) is not the most."
    )
    assert beaten == (part == 0.2) and (said in check.caption()) == beaten
    assert CHECK["is_no_limit"] in check.caption()
    how = next(row[-1] for row in check.cells() if row[0] == CHECK["names"]["matmul_fp16"])
    assert how.startswith("cuBLAS, 4096 × 4096 × 4096, ")


def test_registers_are_not_called_measured_and_the_l2_delivers(measured: Session) -> None:
    table = plain(fa.memory_levels("h200", measured).table.value)
    assert "at four operands an FMA (three read, one written), and not measured" in table
    assert LEVELS["measured_l2_apart"] in table and LEVELS["measured_l2"] not in table
    assert "delivered" not in fa.memory_levels("t4", measured).table.value


def test_an_older_run_says_that_sms_shared_lines(tmp_path: Path) -> None:
    write_ceilings_run(tmp_path, LATER)
    table = plain(fa.memory_levels("h200", session("numpy", root=tmp_path)).table.value)
    assert LEVELS["measured_l2"] in table and LEVELS["measured_l2_apart"] not in table


def test_rates_per_clock_stand_where_a_clock_was_read(tmp_path: Path, measured: Session) -> None:
    gpu = device("h200")
    write_ceilings_run(tmp_path, sm_mhz=1500.0)
    check = fa.check_ceilings("h200", session("numpy", root=tmp_path))
    head, *body = check.cells()
    rows = {row[0]: dict(zip(head, row, strict=True)) for row in body}
    smem = rows[CHECK["names"]["smem_read"]]
    a_clock = synthetic_ceilings.rate_of("smem_read") * 1e9 / (1500e6 * gpu.sm_count)
    assert smem[CHECK["clock"]] == "1500 MHz"
    assert smem[CHECK["per_clock"]] == f"{significant(a_clock)} B"
    assert rows[CHECK["names"]["hbm_read"]][CHECK["per_clock"]] == ""
    assert CHECK["clock"] not in fa.check_ceilings("h200", measured).cells()[0]

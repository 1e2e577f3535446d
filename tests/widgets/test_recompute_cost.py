"""What rebuilding costs: computed sentences, with a run and without, and the checks beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

import fa_kernels as fa
from fa_kernels.session import Session, session
from fa_kernels.widgets import backward_check
from fa_kernels.widgets.backward_check import MAX_SEQLEN, check_backward
from fa_kernels.widgets.text import labels
from tests.figures.synthetic_backward import RUN_ID, write_backward_run
from tests.figures.synthetic_speed import BACKWARD_ID, SPEED_ID, write_speed_run

TEXT, CHECK, STEPS = labels("recompute_cost"), labels("backward_check"), labels("checkpointing")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Session:
    root: Path = tmp_path_factory.mktemp("backward")
    write_backward_run(root)
    return session("numpy", root=root)


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """Both kinds of runs."""
    root: Path = tmp_path_factory.mktemp("fast")
    write_backward_run(root)
    write_speed_run(root)
    write_speed_run(root, BACKWARD_ID, pass_="bwd")
    return session("numpy", root=root)


def test_tensor_cores_are_weighed_against_the_matrices(fast: Session) -> None:
    widget = fa.recompute_cost(session=fast)
    # 5 products at 280 TFLOP/s; seven numbers a pair at 4.8 TB/s.
    assert "5 products, takes 4.91 ms, 0.982 ms a product" in widget.sentence.value
    assert (
        "6.26 ms at the rate of HBM: 6.4× the time of that product, 1.3×" in widget.sentence.value
    )
    for run in (RUN_ID, BACKWARD_ID, SPEED_ID):
        assert run in widget.table.value
    widget.head_dim.value = 256
    assert "0.32× that of the whole backward" in widget.sentence.value
    widget.dtype.value = "fp32"
    assert "No rung on tensor cores takes fp32." in widget.sentence.value
    assert TEXT["ways"]["tensor_cores"] not in widget.table.value


def test_the_fastest_rung_that_was_timed_is_the_one_that_is_weighed(fast: Session) -> None:
    assert "On tensor cores (rung 05) the whole" in fa.recompute_cost(session=fast).sentence.value
    widget = fa.recompute_cost(session=session("numpy"))  # the runs of this checkout
    assert "On tensor cores (rung 06) the whole" in widget.sentence.value
    assert "128 (rung 05) and 128 × 128 (rung 06)" in widget.table.value
    widget.head_dim.value = 256  # of which 06 has no backward
    assert "On tensor cores (rung 05) the whole" in widget.sentence.value
    assert TEXT["ways"]["warpgroups"] not in widget.table.value


def test_a_gpu_without_them(fast: Session) -> None:
    said = fa.recompute_cost(device="t4", session=fast).sentence.value
    assert "No rung on tensor cores runs on the" in said and "T4" in said


def test_only_one_of_both_runs(trained: Session, tmp_path: Path) -> None:
    assert TEXT["said_fast_unknown"] in fa.recompute_cost(session=trained).sentence.value
    write_speed_run(tmp_path, BACKWARD_ID, pass_="bwd")
    widget = fa.recompute_cost(session=session("numpy", root=tmp_path))
    assert TEXT["said_no_time_of_these"] in widget.sentence.value
    assert "4.91 ms" in widget.sentence.value
    assert RUN_ID not in widget.table.value and BACKWARD_ID in widget.table.value


def test_the_sentence_compares_times(trained: Session) -> None:
    widget = fa.recompute_cost(session=trained)
    said = widget.sentence.value
    assert "5 products of matrices instead of 4 (25\u00a0% more FLOP)" in said
    assert "1.1× the time of reading P" in said and "deterministic dQ (7 products): 145 ms" in said
    assert "arithmetic is the higher limit" in said
    assert RUN_ID in widget.table.value


def test_without_a_run_no_time_is_said(bare: Session) -> None:
    widget = fa.recompute_cost(session=bare)
    assert widget.sentence.value.endswith(f"{TEXT['said_no_time']}</span></div>")
    assert TEXT["no_source"] in widget.table.value


def test_short_sequences_may_ask_for_more(bare: Session) -> None:
    """With one tile of keys as wide as d there is little to save: the sentence must turn round."""
    said = fa.recompute_cost(N=32, d=256, session=bare).sentence.value
    assert "% more)." in said and "% less)." not in said


def test_knobs(trained: Session) -> None:
    widget = fa.recompute_cost(session=trained)
    widget.seqlen.value = 333
    assert TEXT["said_no_time"] in widget.sentence.value
    widget.seqlen.value, widget.dtype.value = 1024, "fp32"
    assert "Recorded:" in widget.sentence.value and not widget.figure.stale


def test_the_check_counts_what_is_predicted(trained: Session, bare: Session) -> None:
    for used in (trained, bare):
        check = fa.check_backward(session=used)
        assert check.ok and CHECK["holds"] in str(check)
        assert all(line.ratio == 1 for line in check.lines)
    assert [line.kernel_bytes is None for line in check.lines] == [True] * 6
    assert CHECK["no_source"] in check.caption()
    recorded = fa.check_backward(session=trained)
    assert [line.kernel_bytes is None for line in recorded.lines] == [False] * 3 + [True] * 3
    assert 'data-fa-table="backward-check"' in recorded._repr_html_()


def test_the_check_can_fail(bare: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backward_check, "counted_bytes", lambda cost: 1)
    check = check_backward(N=64, session=bare)
    assert not check.ok and CHECK["fails"] in check.caption()


@pytest.mark.filterwarnings("error")
def test_counting_is_quiet(bare: Session) -> None:
    check_backward(N=130, d=24, session=bare)  # a warning would stand under the reader's cell


def test_long_sequences_are_refused(bare: Session) -> None:
    with pytest.raises(ValueError, match=str(MAX_SEQLEN)):
        check_backward(N=4096, session=bare)


def test_four_ways_of_a_training_step(trained: Session) -> None:
    table = fa.checkpointing(session=trained)
    keep, again, rebuild, twice = table.strategies
    assert [s.products for s in table.strategies] == [6, 8, 7, 9]
    assert again.kept_bytes == 0 and again.peak_bytes == keep.peak_bytes
    assert again.ms == pytest.approx((keep.ms or 0) + (keep.cost.forward_ms or 0))
    assert again.moved_bytes > keep.moved_bytes > rebuild.moved_bytes > twice.moved_bytes
    assert rebuild.kept_bytes < keep.kept_bytes / 10
    assert "At the 6 recorded N" in table.caption() and "faster nowhere" in table.caption()
    assert RUN_ID in table._repr_html_()


def test_a_step_that_was_not_recorded(bare: Session) -> None:
    table = fa.checkpointing(N=512, session=bare)
    assert all(one.ms is None for one in table.strategies)
    assert STEPS["said_nothing"] in str(table) and STEPS["no_source"] in str(table)

"""The editor: its numbers are the models', its check can fail, its copied call makes the mask."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fa_kernels as fa
from fa_kernels.masks import matmul_flops
from fa_kernels.measure import live as live_module
from fa_kernels.measure.live import MaskTiming
from fa_kernels.measure.timing import Latency
from fa_kernels.patterns import PATTERNS
from fa_kernels.session import Session, session
from fa_kernels.widgets import mask_editor as module
from fa_kernels.widgets.mask_editor import EDITED, PERCENTS, SIDE, MaskEditor, preset
from fa_kernels.widgets.text import labels
from tests.figures.synthetic_sparse import SPARSE_ID, dense_ms, write_sparse_run

TEXT = labels("mask_editor")


@pytest.fixture
def editor(bare: Session) -> MaskEditor:
    return fa.mask_editor(session=bare)


def plain(html: str) -> str:
    return unescape(re.sub("<[^>]*>", " ", html))


def cells(editor: MaskEditor, name: str) -> list[str]:
    """The row of the table with this label."""
    words = re.escape(TEXT[name].format(number="05"))
    found = re.search(rf"<td[^>]*>{words}</td>(.*?)</tr>", editor.table.value)
    assert found, name
    return re.findall(r"<td>(.*?)</td>", found[1].replace("\N{NO-BREAK SPACE}", " "))


def test_the_sentence_says_what_is_kept_and_that_it_is_right(editor: MaskEditor) -> None:
    said = plain(editor.sentence.value)
    assert "64 of 256 blocks are kept, s = 0.25: at most 4 times as fast as dense." in said
    assert "give the dense masked formula" in said and editor.difference < 1e-14


@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern_is_right_at_every_stop(name: str, bare: Session) -> None:
    editor = fa.mask_editor(name, session=bare)
    for percent in PERCENTS:
        editor.density.value = percent
        assert editor.difference < 1e-14 and editor.pattern.value == name
        np.testing.assert_array_equal(editor.grid.keep, preset(name, percent))


def test_the_numbers_are_those_of_the_models(editor: MaskEditor) -> None:
    keep = np.random.default_rng(0).random((SIDE, SIDE)) < 0.3
    editor.grid.put(keep)
    masked, dense = editor.call.masked(keep), editor.call.dense
    assert cells(editor, "row_kept") == ["256", str(keep.sum()), f"{keep.mean():.3f}"]
    ratio = matmul_flops(masked) / matmul_flops(dense)
    assert cells(editor, "row_flops")[-1] == f"{ratio:.3f}" == f"{keep.mean():.3f}"
    fast = fa.VARIANTS["flash_wgmma"]
    whole, part = (module.moved(problem, fast, editor.device) for problem in (dense, masked))
    assert cells(editor, "row_bytes")[-1] == f"{part.total_bytes / whole.total_bytes:.3f}"
    assert cells(editor, "row_kv")[-1] == f"{keep.mean():.3f}"
    assert editor.mask == masked.block_mask and editor.mask.density == keep.mean()


def test_a_stroke_is_drawn_by_hand_and_undone(editor: MaskEditor) -> None:
    first = editor.grid.rows
    editor.grid.receive({"rows": [*first[:-1], "#" * SIDE]})
    assert editor.pattern.value == EDITED
    assert "from_dense" in editor.grid.code
    editor.grid.receive({"do": "undo"})
    assert editor.pattern.value == "local" and editor.grid.rows == first
    assert 'pattern("local"' in editor.grid.code


def test_rows_that_keep_nothing_are_named_and_right(editor: MaskEditor) -> None:
    editor.grid.put(np.arange(SIDE * SIDE).reshape(SIDE, SIDE) < 5 * SIDE)
    said = plain(editor.sentence.value)
    assert "Block rows that keep nothing: 11; their output is 0." in said
    assert editor.difference < 1e-14
    editor.grid.put(np.zeros((SIDE, SIDE), bool))
    assert "None of the 256 blocks is kept: every output is 0." in plain(editor.sentence.value)
    assert editor.difference == 0.0


def test_the_check_can_fail(editor: MaskEditor, monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.attention
    monkeypatch.setattr(module, "attention", lambda *a, **k: real(*a, **{**k, "block_mask": None}))
    editor.density.value = 50
    assert "Wrong in NumPy" in plain(editor.sentence.value) and editor.difference > 0.01


@pytest.mark.parametrize("name", [*PATTERNS, EDITED])
def test_the_copied_call_makes_the_mask(name: str, bare: Session) -> None:
    editor = fa.mask_editor(name or "random", session=bare)
    if name == EDITED:
        editor.grid.put(np.random.default_rng(1).random((SIDE, SIDE)) < 0.4)
    made: dict[str, Any] = {"fa": fa}
    exec(editor.grid.code.partition("\nout =")[0], made)
    assert made["mask"] == editor.mask
    assert editor.grid.code.endswith("out = fa.attention(q, k, v, block_mask=mask)")


def test_controls_begin_anew(editor: MaskEditor) -> None:
    editor.pattern.value = "butterfly"
    np.testing.assert_array_equal(editor.grid.keep, preset("butterfly", 25))
    editor.grid.put(~editor.grid.keep)
    assert editor.pattern.value == EDITED
    editor.density.value = 50  # of a pattern again
    np.testing.assert_array_equal(editor.grid.keep, preset("local", 50))
    assert editor.pattern.value == "local" and editor.grid.can_undo
    editor.seqlen.value, editor.head_dim.value = 65536, 64
    assert "N = 65536, d = 64" in editor.table.value and "4096 × 4096" in editor.table.value


def test_times_are_those_of_a_run(tmp_path: Path, editor: MaskEditor) -> None:
    assert TEXT["no_run"] in editor.table.value and TEXT["row_time"] not in editor.table.value
    write_sparse_run(tmp_path)
    timed = fa.mask_editor(density=0.5, session=session("numpy", root=tmp_path))
    dense = dense_ms(timed.call.dense, "fwd")
    shown = cells(timed, "row_time")
    assert shown[0] == fa.units.duration(dense) and shown[1] == fa.units.duration(dense / 2)
    assert f"recorded {SPARSE_ID}" in timed.table.value


def test_the_rung_is_the_one_that_was_timed_else_the_fastest_of_the_gpu(
    tmp_path: Path, bare: Session
) -> None:
    def forward(editor: MaskEditor) -> str:
        return re.findall(r"Forward of \d\d", editor.table.value)[0]

    assert forward(fa.mask_editor(session=bare)) == "Forward of 06"
    assert forward(fa.mask_editor(session=bare, device="a100-80gb")) == "Forward of 05"
    assert forward(fa.mask_editor(session=bare, device="t4")) == "Forward of 04"
    write_sparse_run(tmp_path)
    assert forward(fa.mask_editor(session=session("numpy", root=tmp_path))) == "Forward of 05"


def test_a_change_is_quick(editor: MaskEditor) -> None:
    editor.seqlen.value = 65536
    start = time.process_time()
    for percent in PERCENTS:
        editor.density.value = percent
    assert (time.process_time() - start) / len(PERCENTS) < 0.25


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"pattern": "diagonal"}, "pattern = 'diagonal' is not known: use one of local"),
        ({"density": 0}, "density = 0 must be above 0 and at most 1"),
        ({"density": "half"}, "density = 'half' must be"),
        ({"N": 4096}, "N = 4096 is not offered here: use 8192, 65536"),
        ({"d": 80}, "d = 80 is not offered here: use 64, 128"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fa.mask_editor(**arguments)


# -- Run, where there is a GPU -----------------------------------------------------------------


def latency(ms: float) -> Latency:
    return Latency(ms, ms, ms, 3)


@pytest.fixture
def live(bare: Session, monkeypatch: pytest.MonkeyPatch) -> MaskEditor:
    """An editor of a session with a GPU, which takes s times 4 ms, or refuses."""

    def time_mask(problem: Any, on_progress: Any, cancelled: Any) -> Any:
        on_progress(0.5, "timing")
        if problem.seqlen_q > 8192:
            raise ValueError("not enough memory: choose N = 8192.")
        if not cancelled():
            masked = latency(4.0 * problem.block_mask.density)
            yield MaskTiming(problem, latency(4.0), masked, 1e-3, "flash_mma")

    monkeypatch.setattr(live_module, "time_mask", time_mask)
    return fa.mask_editor(session=replace(bare, backend="cuda", gpu="NVIDIA H200"))


def run(editor: MaskEditor) -> str:
    """Press Run and wait; what the note says then."""
    assert editor.timer is not None
    editor.timer.run.click()
    editor.timer.background.join(5)
    return plain(editor.timer.note.value).strip()


def test_without_a_gpu_there_is_nothing_to_run(editor: MaskEditor) -> None:
    assert editor.timer is None


def test_run_times_the_mask_on_screen_beside_the_dense_call(live: MaskEditor) -> None:
    assert "measured here" not in plain(live.table.value)
    assert live.timer is not None and "rung that NVIDIA H200 runs" in live.timer.note.value
    assert run(live) == "done: measured on NVIDIA H200"
    assert cells(live, "row_live") == ["4 ms", "1 ms", "0.250"]
    live.density.value = 50
    assert "measured here" not in plain(live.table.value), "that of another mask"
    live.density.value = 25
    assert cells(live, "row_live")[1] == "1 ms", "what was measured stays known"


def test_a_refusal_is_said_in_place(live: MaskEditor) -> None:
    live.seqlen.value = 65536
    assert run(live) == "not enough memory: choose N = 8192."
    live.seqlen.value = 8192
    live.grid.rows = ["." * SIDE] * SIDE
    assert run(live).startswith("This mask keeps no block")
    assert live.timer is not None and live.timer.cancel.disabled

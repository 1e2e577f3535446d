"""The explorer's handlers, called as functions: no browser, no GPU."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fa_kernels.device import device, list_devices
from fa_kernels.figures.explorer import explorer_spec
from fa_kernels.figures.over_seqlen import SEQLENS
from fa_kernels.figures.point import Point, sentence
from fa_kernels.figures.recorded import RecordedRun
from fa_kernels.measure.records import Row, load_run
from fa_kernels.session import Session, session
from fa_kernels.widgets.checks import check_traffic
from fa_kernels.widgets.controls import HEAD_DIMS, PRESETS, SRAM_KIB, Settings, checked_settings
from fa_kernels.widgets.explorer import Explorer, default_device, explorer
from fa_kernels.widgets.story import story
from tests.figures.synthetic import row

START = Settings(4096, 64, 192, "fp16", "h200")


@pytest.fixture
def lab(recorded: Session) -> Explorer:
    return Explorer(START, recorded)


def changed(lab: Explorer) -> list[Any]:
    """Records every figure that is sent from now on."""
    seen: list[Any] = []
    lab.figure.observe(lambda change: seen.append(change.new), "spec")
    return seen


def test_knobs_move_figure_sentence_and_status(lab: Explorer) -> None:
    seen = changed(lab)
    lab.controls.seqlen.value = 8192
    lab.controls.head_dim.value = 128
    lab.controls.sram.value = 128
    assert len(seen) == 3
    assert "N = 8192, d = 128, M = 128 KiB" in lab.sentence.value
    assert "N = 8192, d = 128, fp16 on NVIDIA H200 SXM" in lab.status.value
    assert "At N = 8192, d = 128" in lab.figure.alt
    assert lab.message.value == ""


def test_dtype_device_and_scale_move_it_too(lab: Explorer) -> None:
    seen = changed(lab)
    lab.controls.scale.value = "linear"
    assert seen[-1]["layout"]["yaxis3"]["type"] == "linear"
    lab.controls.dtype.value = "fp32"
    assert "fp32" in lab.status.value
    lab.controls.apply(Settings(4096, 64, 64, "fp16", "a100-80gb"))
    assert "On A100" in lab.sentence.value
    assert "recorded" not in lab.status.value.split("<br>")[0]


def test_a_refusal_is_shown_and_the_figure_stays(lab: Explorer) -> None:
    seen = changed(lab)
    lab.controls.sram.value = 256
    assert seen == []
    assert "NVIDIA H200 SXM allows 227 KiB: lower M to" in lab.message.value
    assert 'role="alert"' in lab.message.value
    assert lab.point.sram_kib == 192
    lab.controls.sram.value = 128
    assert lab.message.value == ""
    assert len(seen) == 1


def test_a_bad_value_changes_nothing(lab: Explorer) -> None:
    seen = changed(lab)
    for text in ("0", "1000000000", "nan", "abc", "-3", "257"):
        lab.controls.head_dim.type(text)
        assert lab.controls.head_dim.error.startswith("d = ")
    assert seen == []
    assert lab.point.problem.head_dim == 64


def test_an_unexpected_error_is_shown(lab: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, **options: Any) -> None:
        raise KeyError("boom <here>")

    monkeypatch.setattr("fa_kernels.widgets.explorer.explorer_spec", broken)
    seen = changed(lab)
    lab.controls.seqlen.value = 1024
    assert seen == []
    assert "KeyError" in lab.message.value
    assert "boom &lt;here&gt;" in lab.message.value


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_one_change(lab: Explorer, name: str) -> None:
    lab.controls.apply(Settings(300, 20, 64, "fp16", "h200"))
    seen = changed(lab)
    lab.controls.apply_preset(name)
    assert len(seen) == 1
    assert (lab.point.seqlen, lab.point.problem.head_dim) == PRESETS[name]
    assert len(PRESETS) <= 8


def test_reset_goes_back_to_the_start(lab: Explorer) -> None:
    lab.controls.head_dim.type("999")
    lab.controls.apply(Settings(300, 20, 64, "fp32", "t4", "linear"))
    lab.controls.reset.click()
    assert lab.controls.settings == START
    assert lab.controls.head_dim.error == ""


def test_the_call_opens_the_same_view(lab: Explorer) -> None:
    lab.controls.seqlen.value = 2048
    call = lab.controls.settings.call()
    assert call.startswith("fa.explorer(N=2048, d=64, M_kib=192, ")
    again = eval(call, {"fa": type("fa", (), {"explorer": staticmethod(explorer)})})
    assert again.controls.settings == lab.controls.settings


def test_without_a_run_it_still_opens(bare: Session) -> None:
    lab = explorer(session=bare)
    assert lab.controls.settings == replace(START, M_kib=64)
    assert "model" in lab.status.value


def test_m_starts_at_what_the_device_allows(bare: Session) -> None:
    assert explorer(device="t4", session=bare).point.sram_kib < 64
    assert explorer(device="t4", d=256, dtype="fp32", session=bare).message.value == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"N": 0}, "N = 0 is out of range"),
        ({"N": 10**9}, "N = 1000000000 is out of range"),
        ({"d": 257}, "d = 257 is out of range"),
        ({"M_kib": 0}, "M = 0 is out of range"),
        ({"d": float("nan")}, "d = nan is not a whole number"),
        ({"dtype": "int8"}, "dtype = int8 is not supported"),
        ({"dtype": "bf16"}, "dtype = bf16 has no kernel yet"),
        ({"device": "abacus"}, "device = 'abacus' is not known"),
        ({"device": ""}, "device = '' is not known"),
        ({"scale": "cubic"}, "scale = 'cubic' is not known"),
        ({"M_kib": 256}, "lower M to"),
    ],
)
def test_bad_arguments_are_refused(bare: Session, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        explorer(session=bare, **options)


@pytest.mark.parametrize("call", [explorer, story, check_traffic])
@pytest.mark.parametrize("given", ["x", 0, "", session])
def test_what_is_no_session_is_refused(call: Any, given: object) -> None:
    with pytest.raises(
        TypeError, match=r"^session = .* is not a session: pass what fa\.session\(\)"
    ):
        call(session=given)


def test_the_other_calls_refuse_a_bad_device_too(bare: Session) -> None:
    for call in (story, check_traffic):
        with pytest.raises(ValueError, match="device = '' is not known: choose one of a100"):
            call(device="", session=bare)


def test_the_share_of_the_peak_is_shown_where_it_was_recorded() -> None:
    lab = explorer(M_kib=64, session=session("numpy"))
    assert re.search(r"recorded here: standard reaches \d+ % and flash \d+ % of", lab.status.value)
    assert "H200 SXM&#x27;s fp32 peak" in lab.status.value
    lab.controls.sram.value = 24
    assert lab.message.value == ""
    assert "no run at M = 24 KiB" in str(lab.figure.spec)
    assert "reaches" not in lab.status.value
    lab.controls.apply(Settings(4096, 64, 32, "fp16", "a100-80gb"))
    assert "reaches" not in lab.status.value


def test_default_device_follows_gpu_then_run(recorded: Session, bare: Session) -> None:
    assert default_device(Session("cuda", "Tesla T4")) == "t4"
    assert default_device(recorded) == "h200"
    assert default_device(bare) == "h200"


def test_settings_are_checked_in_words() -> None:
    assert checked_settings(512.0, 64, 32, "float16", "t4", "log").dtype == "fp16"


def stops_of_all_knobs() -> Iterator[tuple[str, int, int, int, str]]:
    """(device, N, d, M in KiB, dtype). On the recorded device both ends of N and one between,
    elsewhere one N, another for each stop of the other knobs: all in a few seconds."""
    dims = (16, 32, 64, 96, 128, 256)
    assert set(dims) <= set(HEAD_DIMS)
    for slug in list_devices():
        ends = {SEQLENS[0], SEQLENS[-1]} if slug == "h200" else set()
        stops = itertools.product(SRAM_KIB, dims, ("float16", "float32"))
        for i, (kib, d, dtype) in enumerate(stops):
            for n in {SEQLENS[(i // 2) % len(SEQLENS)], *ends}:
                yield slug, n, d, kib, dtype


def test_every_stop_of_every_knob_draws_or_is_refused() -> None:
    """Brute force on the run that ships: at most stops of M it holds no row of ours."""
    runs = {"h200": RecordedRun(load_run("20261129-h200-grid"))}
    drawn, refusals = 0, []
    for i, (slug, n, d, kib, dtype) in enumerate(stops_of_all_knobs()):
        try:
            point = Point.of(n, d, kib, dtype, device(slug))
        except ValueError as refusal:
            refusals.append(str(refusal))
            continue
        spec = explorer_spec(point, runs.get(slug), log=i % 3 > 0)
        assert {"xaxis", "xaxis2", "xaxis3", "xaxis4"} <= spec["layout"].keys()
        assert sentence(point)
        drawn += 1
    assert drawn > 900
    assert len(refusals) > 100
    assert [text for text in refusals if not re.search(r": (lower|raise|use) .*\.$", text)] == []


# -- Run -------------------------------------------------------------------------------------------


class FakeBackend:
    """Yields the given rows, then raises if it has an error."""

    def __init__(self, rows: list[Row], error: Exception | None = None) -> None:
        self.rows, self.error = rows, error

    def measure(self, point: Point, on_progress: Any, cancelled: Any) -> Iterator[Row]:
        for i, one in enumerate(self.rows):
            on_progress(i / len(self.rows), "measuring")
            yield one
        if self.error is not None:
            raise self.error


def rows_at(lab: Explorer) -> list[Row]:
    point = lab.point
    return [
        row(point.problem, "fa_kernels", name, point.tiling, "latency_ms", 10.0 + i)
        for i, name in enumerate(("standard_tiled", "flash_q_outer"))
    ]


def live_lab(recorded: Session, error: Exception | None = None) -> Explorer:
    session = Session("cuda", "NVIDIA H200", recorded.run)
    backend = FakeBackend([], error)
    lab = Explorer(START, session, backend)
    backend.rows = rows_at(lab)
    return lab


def test_live_rows_are_drawn_and_listed(recorded: Session) -> None:
    lab = live_lab(recorded)
    lab.run_panel.run.click()
    lab.run_panel.background.join(10)
    assert "live on NVIDIA H200" in lab.run_panel.results.value
    assert "done" in lab.run_panel.note.value
    assert [t["y"] for t in lab.figure.spec["data"] if t["name"] == "live"] == [[10.0, 11.0]]
    lab.controls.sram.value = 64
    assert not [t for t in lab.figure.spec["data"] if t["name"] == "live"], "another M"
    lab.controls.apply(Settings(4096, 64, 64, "fp16", "a100-80gb"))
    assert not [t for t in lab.figure.spec["data"] if t["name"] == "live"], "another device"


def test_an_error_keeps_the_rows(recorded: Session) -> None:
    lab = live_lab(recorded, RuntimeError("lost <GPU>"))
    lab.run_panel.start()
    lab.run_panel.background.join(10)
    assert len(lab.run_panel.rows) == 2
    assert "RuntimeError: lost &lt;GPU&gt;" in lab.run_panel.note.value
    assert lab.run_panel.cancel.disabled


def test_run_refuses_what_cannot_be_launched(lab: Explorer) -> None:
    lab.controls.sram.value = 256
    lab.run_panel.start()
    assert "lower M to" in lab.run_panel.note.value
    assert not lab.run_panel.background.running


def test_numpy_run_end_to_end(recorded: Session) -> None:
    lab = Explorer(Settings(128, 16, 16, "fp32", "h200"), recorded)
    assert "NumPy" in lab.run_panel.run.description
    lab.run_panel.start()
    lab.run_panel.background.join(30)
    assert lab.run_panel.results.value.count(">1.0000<") == 2
    assert "counted in NumPy" in lab.run_panel.results.value

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
from fa_kernels.figures.point import COMPARED, Point
from fa_kernels.figures.recorded import RecordedRun
from fa_kernels.figures.sentence import sentence
from fa_kernels.figures.sparse import CHOICES
from fa_kernels.measure.records import Row, load_run
from fa_kernels.session import Session, session
from fa_kernels.variants import ALGORITHMS
from fa_kernels.widgets.checks import check_traffic
from fa_kernels.widgets.controls import HEAD_DIMS, SRAM_KIB, Settings, checked_settings
from fa_kernels.widgets.explorer import Explorer, explorer
from fa_kernels.widgets.explorer_point import default_device
from fa_kernels.widgets.presets import PRESETS
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
    assert "On the A100" in lab.sentence.value
    assert "recorded" not in lab.status.value


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
    assert (lab.point.seqlen, lab.point.problem.head_dim) == PRESETS[name].sizes


def test_reset_goes_back_to_the_start(lab: Explorer) -> None:
    lab.controls.head_dim.type("999")
    lab.controls.apply(Settings(300, 20, 64, "fp32", "t4", "linear"))
    lab.reset()
    assert lab.controls.settings == START
    assert lab.controls.head_dim.error == ""


def test_the_call_opens_the_same_view(lab: Explorer) -> None:
    lab.controls.seqlen.value = 2048
    call = lab.controls.settings.call()
    assert call.startswith("fa.explorer(N=2048, d=64, M_kib=192, ")
    again = eval(call, {"fa": type("fa", (), {"explorer": staticmethod(explorer)})})
    assert again.controls.settings == lab.controls.settings


def test_the_pattern_is_part_of_the_call(lab: Explorer) -> None:
    lab.controls.apply(replace(START, pattern="butterfly", density=0.3))
    call = lab.controls.settings.call()
    assert call.endswith(', pattern="butterfly", density=0.3)')
    again = eval(call, {"fa": type("fa", (), {"explorer": staticmethod(explorer)})})
    assert again.controls.settings == lab.controls.settings
    assert again.figure.spec == lab.figure.spec
    assert "density" not in START.call(), "it means nothing where all is dense"


def test_pattern_and_density_move_everything(lab: Explorer) -> None:
    seen = changed(lab)
    assert lab.controls.density.disabled
    lab.controls.pattern.value = "local"
    assert not lab.controls.density.disabled
    lab.theta.opened = True
    assert [t["name"] for t in seen[-1]["data"]].count("kept blocks") == 1
    assert "with local blocks at s = 0.273, dense standard moves" in lab.sentence.value
    assert "the others stay dense" in lab.status.value
    assert "s<sup>" in lab.theta.value
    lab.controls.density.value = 1 / 8
    assert "s = 1/11 = 0.0909, asked 0.125" in lab.status.value
    assert len(seen) == 2
    lab.controls.pattern.value = "dense"
    assert lab.controls.density.disabled
    assert "blocks" not in lab.sentence.value


def test_presets_keep_the_pattern_and_reset_drops_it(lab: Explorer) -> None:
    lab.controls.apply(replace(START, pattern="random", density=1 / 16))
    lab.controls.apply_preset("BERT-large 512")
    assert lab.point.pattern == "random"
    assert lab.controls.density.value == 1 / 16
    lab.reset()
    assert lab.controls.settings == START
    assert lab.point.pattern == "dense"


def test_a_density_between_the_stops_is_kept(bare: Session) -> None:
    lab = explorer(pattern="local", density=0.3, session=bare)
    assert lab.controls.density.value == 0.3
    assert lab.point.density == 0.3


def test_a_mask_of_too_many_blocks_is_refused_and_the_figure_stays(lab: Explorer) -> None:
    lab.controls.apply(replace(START, M_kib=3, pattern="local"))
    seen = changed(lab)
    lab.controls.seqlen.value = 65536
    assert seen == []
    assert "has more than 67108864" in lab.message.value
    assert "raise M" in lab.message.value


def test_bf16_is_offered(lab: Explorer) -> None:
    assert lab.controls.dtype.texts == ["fp16", "bf16", "fp32"]
    lab.controls.dtype.value = "bf16"
    assert "bf16" in lab.status.value
    assert "no run in bf16; recorded: fp16, fp32" in str(lab.figure.spec).replace("<br>", " ")


def test_the_theta_laws_follow_while_they_are_unfolded(lab: Explorer) -> None:
    lab.controls.head_dim.value = 96
    assert lab.theta.value == "", "nobody sees it: it is not worth the time"
    lab.theta.opened = True
    assert "N<sup>2.00</sup>" in lab.theta.value
    before = lab.theta.value
    lab.controls.head_dim.value = 128
    assert lab.theta.value != before
    lab.theta.opened = False
    kept = lab.theta.value
    lab.controls.head_dim.value = 64
    assert lab.theta.value == kept


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
        ({"pattern": "plaid"}, "pattern = 'plaid' is not known: use one of dense, local"),
        ({"pattern": "local", "density": 0}, "density = 0 is out of range"),
        ({"density": 1.5}, "density = 1.5 is out of range"),
        ({"density": True}, "density = True is out of range"),
        ({"N": 2**17, "M_kib": 1, "pattern": "local"}, "has more than 67108864. Use larger"),
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
    found = re.search(r"recorded here: .* reaches .*", lab.status.value)
    assert found
    assert re.search(r"standard.* \d+ %.* and flash \d+ % of", found[0])
    assert "H200 SXM&#x27;s fp32 peak" in lab.status.value
    lab.controls.sram.value = 24
    assert lab.message.value == ""
    assert "no run at M = 24 KiB" in str(lab.figure.spec)
    # The naive kernel has no tiles: its rows hold at every M.
    assert not re.search(r"flash \d+ %", lab.status.value)
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
            # On one device: a mask that is new takes its time.
            choice = i % len(CHOICES) if slug == "h200" and kib >= 32 and d >= 64 else 0
            sparse = (CHOICES[choice], 1 / 2 ** (i % 5 + 1))
            point = Point.of(n, d, kib, dtype, device(slug), *sparse)
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
        for i, name in enumerate(COMPARED)
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


def test_a_refusal_of_a_run_is_a_sentence_without_its_class(recorded: Session) -> None:
    lab = live_lab(recorded, ModuleNotFoundError("bfloat16 needs ml_dtypes: install it."))
    lab.run_panel.start()
    lab.run_panel.background.join(10)
    assert ">bfloat16 needs ml_dtypes: install it.<" in lab.run_panel.note.value


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
    assert lab.run_panel.results.value.count(">1.0000<") == len(ALGORITHMS)
    assert "counted in NumPy" in lab.run_panel.results.value

"""The story in one figure: bytes above, time below, large words."""

from __future__ import annotations

from fa_kernels.device import Device
from fa_kernels.figures.point import Point
from fa_kernels.figures.recorded import RecordedRun
from fa_kernels.figures.story import story_figure, story_sentence, story_spec
from tests.figures.synthetic import RUN_ID
from tests.figures.test_explorer import sizes, words


def test_recorded_times_and_their_source(h200: Device, run: RecordedRun) -> None:
    point = Point.of(4096, 64, 192, "float16", h200)
    story_figure(point, run)
    spec = story_spec(point, run)
    assert f"recorded {RUN_ID} · B = 4, H = 32, N = 4096" in words(spec)
    assert "Time: standard / flash = " in words(spec)
    assert min(sizes(spec)) >= 16
    assert "Recorded: standard" in story_sentence(point, run)


def test_without_a_run_it_says_model(h200: Device) -> None:
    point = Point.of(4096, 64, 192, "float16", h200)
    spec = story_spec(point)
    assert "model, not measured: no run on NVIDIA H200 SXM" in words(spec)
    (bars,) = (t for t in spec["data"] if t["name"] == "latency")
    assert bars["marker"]["pattern"]["shape"] == "/"
    assert "Lower bound of the model: standard, lower bound" in story_sentence(point)
    story_figure(point)

"""The row under every figure of the suite: Reset, Copy call, Pin, each for every control."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import plotly.graph_objects as go
import pytest

import fa_kernels as fa
from fa_kernels.figures.ghost import NAME, has_ghost
from fa_kernels.figures.provenance import Provenance
from fa_kernels.session import Session
from fa_kernels.widgets.controls import Settings
from fa_kernels.widgets.knob import Knob
from fa_kernels.widgets.speed import Speed
from fa_kernels.widgets.suite import FIGURES, SuiteFigure, live_figures

#: One of each call: a figure that stands there with other arguments has the same controls.
EACH = list({one.function: one for one in FIGURES}.values())
STILL = {"story", "softmax_failures", "o_drift"}


@pytest.fixture(scope="module", params=EACH, ids=lambda one: one.name)
def opened(request: pytest.FixtureRequest) -> tuple[SuiteFigure, Any, Any]:
    fa.session("numpy")
    widget = request.param.widget()
    (live,) = live_figures(widget)
    return request.param, widget, live


def others(control: Any) -> Iterator[Any]:
    """A value or two that a control does not have now."""
    values = control.values if isinstance(control, Knob) else [v for _, v in control.options]
    for value in dict.fromkeys((values[0], values[-1])):
        if value != control.value:
            yield value


def moved(widget: Any) -> Iterator[tuple[Any, Any]]:
    """The widget with each control moved by itself, and the control."""
    for control in widget.controls_shown:
        widget.reset()
        if getattr(control, "disabled", False):
            continue
        for value in others(control):
            widget.reset()
            control.value = value
            yield control, value


def state(widget: Any) -> tuple[Any, list[Any]]:
    return widget.setting, [control.value for control in widget.controls_shown]


def press(live: Any, action: str) -> None:
    """As the page does."""
    live._handle_custom_msg({"row": action}, [])
    assert live.row_said == ""


def test_a_figure_without_controls_has_the_export_alone(opened: Any) -> None:
    one, widget, live = opened
    assert (live.actions == []) == (one.function in STILL)
    if one.function not in STILL:
        assert live.actions[-1] == "copy"
        assert ("reset" in live.actions) == widget.moves
        assert ("pin" in live.actions) == (widget.moves and widget.pins and has_ghost(live.spec))


def test_the_call_opens_the_widget_as_every_control_stands(opened: Any) -> None:
    one, widget, live = opened
    if one.function in STILL:
        return
    assert state(eval(live.call, {"fa": fa})) == state(widget)
    assert live.call.startswith(f"fa.{one.function}(")
    for control, value in moved(widget):
        if widget.message.value:
            continue  # refused: the figure, and the call with it, is the one before
        again = eval(live.call, {"fa": fa})
        assert state(again) == state(widget), (control.label, value, live.call)
    widget.reset()


def test_reset_goes_back_in_one_redraw_and_clears_errors(opened: Any) -> None:
    _, widget, live = opened
    if "reset" not in live.actions:
        return
    start, call = state(widget), live.call
    drawn: Any = []
    show = type(live).show
    for control, value in moved(widget):
        for knob in (c for c in widget.controls_shown if isinstance(c, Knob)):
            knob.type("none at all")
            assert knob.error
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(live), "show", lambda *args: drawn.append(args) or show(*args))
            press(live, "reset")
        assert len(drawn) == 1, (control.label, value)
        assert state(widget) == start and live.call == call and widget.message.value == ""
        assert not live.stale and not any(getattr(c, "error", "") for c in widget.controls_shown)
        drawn.clear()


def test_pin_keeps_the_figure_behind_those_to_come(opened: Any) -> None:
    one, widget, live = opened
    if "pin" not in live.actions:
        return
    plain, call = live.spec, live.call
    press(live, "pin")
    assert live.pinned and live.spec == plain, "nothing to compare yet"
    assert live.pinned_said["line"].startswith("Pinned: the figure as it is now.")
    behind = 0
    for control, _ in moved(widget):
        if widget.message.value or live.spec == plain:
            continue
        said, spec = live.pinned_said, live.spec
        assert control.label in said["line"] and said["call"] == call
        assert live.pinned and said["line"] in live.alt
        ghosts = [trace for trace in spec["data"] if trace["name"] == NAME]
        behind += bool(ghosts)
        if one.function != "explorer":  # its words and its axes are one
            own = [trace for trace in spec["data"] if trace["name"] != NAME]
            assert [t["name"] for t in own] == [t["name"] for t in live.row._plain[0]["data"]]
        assert bool(said["caption"]) == bool(ghosts)
        inside(spec, ghosts)
        go.Figure(spec)
    assert behind, "no control moves a ghost apart"
    widget.reset()
    press(live, "unpin")
    assert not live.pinned and live.spec == plain and live.pinned_said == {}


def inside(spec: Any, ghosts: list[Any]) -> None:
    """No point of a ghost that stood on the page lies outside the axes."""
    for ghost in ghosts:
        for way in "xy":
            axis = spec["layout"][f"{way}axis{ghost.get(f'{way}axis', way)[1:]}"]
            if "range" not in axis:
                continue
            low, high = sorted(axis["range"])
            log, slack = axis.get("type") == "log", 0.35 * (high - low)
            found = [v for v in ghost[way] if isinstance(v, int | float) and (v > 0 or not log)]
            at = [math.log10(v) if log else v for v in found]
            assert not at or (min(at) <= high and max(at) >= low), "nothing of it can be seen"
            assert not at or max(at) <= high + slack


def test_the_headline_is_of_what_is_drawn(opened: Any) -> None:
    _, widget, live = opened
    if "pin" not in live.actions:
        return
    first = dict(widget.headline())
    assert all(isinstance(unit, str) for _, unit in first.values())
    if not first:
        return
    differ = 0
    for _ in moved(widget):
        now = dict(widget.headline())
        differ += now != first
        assert all(v is None or v == v for v, _ in now.values())
    assert differ, "no control changes any of its numbers"
    widget.reset()
    assert dict(widget.headline()) == first


# -- one figure, in detail -------------------------------------------------------------------------


@pytest.fixture
def speed() -> Any:
    return fa.speed(64, device="h200", session=fa.session("numpy"))


def test_every_number_is_told_beside_the_pinned_one(speed: Speed) -> None:
    press(speed.figure, "pin")
    before = dict(speed.headline())
    speed.head_dim.value = 128
    numbers = dict(map(tuple, speed.figure.pinned_said["numbers"]))
    now = dict(speed.headline())
    assert now.keys() == before.keys() and numbers
    for name, value in now.items():
        ratio = (value[0] or 0) / (before[name][0] or 1)
        assert numbers[name].endswith(f"×\N{NO-BREAK SPACE}{ratio:.2f}")


def test_the_export_says_what_is_pinned_only_while_it_is(speed: Speed) -> None:
    live = speed.figure
    plain = Provenance.of(live.export.shown())
    assert "pinned" not in plain.parameters
    press(live, "pin")
    speed.head_dim.value = 128
    told = Provenance.of(live.export.shown())
    assert told.caption.endswith("Dotted or faint: pinned at d = 64.")
    assert told.parameters["pinned"].startswith("fa.speed(d=64, ") and told.parameters["d"] == 128
    assert told.run_ids == plain.run_ids
    assert [t for t in live.export.shown().spec["data"] if t["name"] == NAME]
    json.dumps(live.pinned_said)
    press(live, "unpin")
    told = Provenance.of(live.export.shown())
    assert "pinned" not in told.parameters and "pinned" not in told.caption


def test_a_refused_setting_pins_what_is_still_shown(bare: Session) -> None:
    lab = fa.explorer(M_kib=192, device="h200", session=bare)
    lab.controls.sram.value = 256
    assert lab.message.value and lab.figure.stale
    press(lab.figure, "pin")
    assert lab.figure.call == lab.figure.row.pin.call
    assert "M_kib=192" in lab.figure.row.pin.call
    lab.controls.sram.value = 128
    assert lab.figure.pinned_said["line"].startswith("Pinned: M = 192 KiB (now 128 KiB). ")


def test_the_explorer_compares_bytes_work_time_and_memory_and_draws_words_once(
    recorded: Session,
) -> None:
    lab = fa.explorer(4096, 64, 192, device="h200", session=recorded)
    press(lab.figure, "pin")
    lab.controls.apply(Settings(16384, 64, 192, "fp16", "h200"))
    numbers = dict(map(tuple, lab.figure.pinned_said["numbers"]))
    told = {name.partition(", ")[2] for name in numbers}
    assert told >= {"HBM", "arithmetic", "extra memory"}
    assert numbers["flash, arithmetic"].endswith("×\N{NO-BREAK SPACE}4.00")
    words = [trace for trace in lab.figure.spec["data"] if trace["name"] == "words"]
    assert len(words) == 1
    # The axis of bytes was widened before the words were placed on it.
    assert lab.figure.spec["layout"]["xaxis2"]["range"][1] > 30


def test_a_cut_bar_of_the_explorer_has_no_ghost(recorded: Session) -> None:
    lab = fa.explorer(4096, 64, 64, device="h200", session=recorded)
    (traffic,) = [t for t in lab.figure.spec["data"] if t["name"] == "HBM traffic"]
    assert any(traffic["meta"]["cut"]), "the naive variant's"
    press(lab.figure, "pin")
    lab.controls.seqlen.value = 8192
    cut = max(traffic["y"])
    ghosts = [t for t in lab.figure.spec["data"] if t["name"] == NAME and t["yaxis"] == "y2"]
    drawn = [y for t in ghosts for x, y in zip(t["x"], t["y"], strict=True) if x is not None]
    assert drawn and max(drawn) < cut


def test_an_error_of_the_row_is_said_in_place(
    speed: Speed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Speed) -> Any:
        raise KeyError("odd")

    monkeypatch.setattr(Speed, "headline", broken)
    speed.figure._handle_custom_msg({"row": "pin"}, [])
    assert "KeyError" in speed.figure.row_said and not speed.figure.pinned
    speed.figure._handle_custom_msg({"row": "reset"}, [])
    assert speed.figure.row_said == ""


def test_noise_of_a_page_changes_nothing(speed: Speed) -> None:
    before = speed.figure.spec
    for noise in ("explode", 1, ["pin"], {"pin": True}):
        press(speed.figure, noise)  # type: ignore[arg-type]
    assert speed.figure.spec is before and not speed.figure.pinned
    (still,) = live_figures(fa.story(session=fa.session("numpy")))
    press(still, "pin")
    assert still.actions == [] and not still.pinned


@pytest.mark.parametrize("given", ["8", (1,), (1, 2, 3), (0, 16), (1.5, 2), 3])
def test_a_bad_batch_and_heads_is_refused(given: Any, bare: Session) -> None:
    with pytest.raises(ValueError, match=r"batch"):
        fa.traffic_ways(batch_heads=given, session=bare)


def test_a_recorded_shape_is_part_of_call_words_and_reset() -> None:
    view = fa.traffic_ways(session=fa.session("numpy"))
    shapes = [setting for _, setting in view.preset.options if setting and setting.batch_heads]
    if not shapes:
        pytest.skip("no run has counters of another batch")
    view.preset.value = shapes[0]
    assert re.search(r"batch_heads=\(\d+, \d+\)", view.figure.call)
    assert eval(view.figure.call, {"fa": fa}).setting == shapes[0]
    assert "batch × heads" in view.said()
    view.reset()
    assert view.setting.batch_heads is None and view.preset.value is None
    assert "batch_heads" not in view.figure.call


def test_random_numbers_and_the_playing_story_go_back_too() -> None:
    check = fa.gradient_check(seed=7)
    check.again()
    assert "seed=8" in check.figure.call
    check.reset()
    assert "seed=7" in check.figure.call
    story = fa.fragmentation(256, step=30)
    story.page_size.value, story.step.value = 16, 3
    story.play.playing = True
    story.reset()
    assert (story.page_size.value, story.step.value, story.play.playing) == (256, 30, False)

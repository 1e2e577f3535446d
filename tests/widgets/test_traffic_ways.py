"""The widget of the five ways: table, sentence, presets and what happens to a bad value."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import fa_kernels as fa
from fa_kernels.figures.traffic_ways import DRAM, L2, LAUNCHED, Ways, all_ways, shown_at
from fa_kernels.session import Session, session
from fa_kernels.units import traffic
from fa_kernels.variants import VARIANTS
from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.explorer_point import recorded_on
from fa_kernels.widgets.setting import Setting
from fa_kernels.widgets.text import labels
from fa_kernels.widgets.traffic_ways import TrafficWays, caption, takeaway, traffic_ways
from tests.figures.synthetic import RUN_ID, write_run
from tests.figures.synthetic_counters import COUNTERS_ID, SHAPES, write_counters

TEXT = labels("traffic_ways")


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Session:
    root: Path = tmp_path_factory.mktemp("both")
    write_run(root, head_dims=(64,), dtypes=("float16",), seqlens=(1024, 4096))
    write_counters(root)
    return session("numpy", root=root)


def shown(widget: TrafficWays) -> str:
    return widget.table.value.replace("\u202f", "")


def test_it_is_reached_by_one_call(bare: Session) -> None:
    assert isinstance(fa.traffic_ways(session=bare), TrafficWays)


def test_the_table_holds_every_byte_and_every_source(counted: Session) -> None:
    widget = traffic_ways(4096, 64, 64, session=counted)
    point = widget.point
    for variant in (VARIANTS[name] for name in shown_at(point)):
        assert variant.label in shown(widget)
        for model in (variant.paper, variant.launched):
            assert f">{model(point.problem, point.tiling).total_bytes}<" in shown(widget)
    assert RUN_ID in shown(widget) and COUNTERS_ID in shown(widget)
    assert TEXT["not_recorded"] not in shown(widget)


def test_without_records_the_columns_say_so(bare: Session) -> None:
    widget = traffic_ways(session=bare)
    assert shown(widget).count(f">{TEXT['not_recorded']}<") == 3 * len(shown_at(widget.point))
    assert TEXT["missing_counted"] in shown(widget) and TEXT["missing_l2"] in shown(widget)
    assert TEXT["missing_dram"] in shown(widget)
    assert "was not recorded at this point" in widget.sentence.value
    assert widget.preset.disabled and widget.preset.texts == [TEXT["presets_none"]]


def test_the_sentence_says_what_the_l2_answers(counted: Session) -> None:
    widget = traffic_ways(4096, 64, 64, session=counted)
    assert "each of its 64 tiles of Q" in widget.sentence.value
    assert "The L2 cache answers" in widget.sentence.value
    assert widget.sentence.value.split(">")[1].split("<")[0] in widget.figure.alt


def test_presets_are_the_shapes_with_counters(counted: Session) -> None:
    widget = traffic_ways(session=counted)
    settings = [value for _, value in widget.preset.options if isinstance(value, Setting)]
    assert len(settings) == len(SHAPES)
    other = next(s for s in settings if s.batch_heads)
    assert (other.N, other.batch_heads) == (1024, (64, 16))
    widget.preset.value = other
    assert widget.point.problem == SHAPES[1] and COUNTERS_ID in shown(widget)
    widget.sram.value = 128  # still that batch, but a budget without counters
    assert widget.point.problem.batch == 64 and not isinstance(widget.preset.value, Setting)
    widget.seqlen.value = 2048  # another N: the grid's batch again
    assert widget.point.problem.batch == 8


def test_a_bad_value_keeps_the_figure(counted: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    widget = traffic_ways(session=counted)
    before = widget.figure.spec
    widget.seqlen.type("0")
    assert "out of range" in widget.seqlen.error and widget.figure.spec is before

    def refuse(self: Setting, device: str) -> None:
        raise ValueError("no such tiles: lower M.")

    monkeypatch.setattr(Setting, "point", refuse)
    widget.sram.value = 96
    assert "no such tiles" in widget.message.value and widget.figure.stale
    monkeypatch.undo()
    widget.sram.value = 64
    assert widget.message.value == "" and not widget.figure.stale


def test_what_a_device_cannot_launch_is_named(bare: Session) -> None:
    widget = traffic_ways(4096, 64, 256, device="t4", session=bare)
    assert "cannot be launched" in widget.table.value and "lower M to" in widget.table.value
    assert "cannot be launched" not in traffic_ways(4096, 64, 32, session=bare).table.value


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"N": 0}, "N = 0"), ({"d": 1000}, "d = 1000"), ({"dtype": "fp8"}, "dtype = fp8")],
)
def test_bad_arguments_are_refused_in_words(
    arguments: dict[str, object], words: str, bare: Session
) -> None:
    with pytest.raises(ValueError, match=words):
        traffic_ways(**arguments, session=bare)  # type: ignore[arg-type]


def without_l2(ways: Ways, dram: float | None) -> Ways:
    runs = {way: run for way, run in ways.runs.items() if way != L2}
    return replace(ways, bytes={**ways.bytes, L2: None, DRAM: dram}, reads=None, runs=runs)


def test_dram_alone_says_how_much_of_the_request_reached_it(counted: Session) -> None:
    """L2 is recorded for some calls only; what DRAM moved is the lesson of the page."""
    point = traffic_ways(4096, 64, 64, session=counted).point
    rows = all_ways(point, recorded_on(point.device.slug, counted)[1])
    launched = rows[-1].bytes[LAUNCHED]
    assert launched is not None
    said = takeaway(point, [without_l2(row, launched / 32) for row in rows])
    assert f"DRAM moved {traffic(launched / 32)} of the {traffic(launched)} that flash asks" in said
    assert ", 3 %: caches answer the rest." in said and "not recorded" not in said
    assert "0.3 %" in takeaway(point, [without_l2(row, launched / 320) for row in rows])
    whole = takeaway(point, [without_l2(row, 1.1 * launched) for row in rows])
    assert "110 % of what flash asks for: no cache saves any of it" in whole
    assert "was not recorded" in takeaway(point, [without_l2(row, None) for row in rows])


def test_the_recorded_headline_has_what_its_table_has() -> None:
    widget = traffic_ways(4096, 64, 64, device="h200", session=session("numpy"))
    said = widget.sentence.value
    assert "flash asks for 8.73 GB" in said
    assert "answers 97 % of what the SMs read: DRAM delivers 202 MB" in said
    assert "Q, K and V, and moves 271 MB with what is written." in said


def test_l2_and_dram_name_their_own_sources(counted: Session) -> None:
    point = traffic_ways(4096, 64, 64, session=counted).point
    rows = all_ways(point, recorded_on(point.device.slug, counted)[1])
    all_said = caption(point, rows)
    assert f"L2, hardware counters: {COUNTERS_ID}; DRAM" in all_said
    assert TEXT["source_some"] not in all_said
    none_said = caption(point, [without_l2(row, row.bytes[DRAM]) for row in rows])
    assert TEXT["missing_l2"] in none_said and TEXT["missing_dram"] not in none_said
    assert f"DRAM, hardware counters: {COUNTERS_ID}" in none_said
    some_said = caption(point, [rows[0], *(without_l2(row, row.bytes[DRAM]) for row in rows[1:])])
    assert f"L2, hardware counters: {COUNTERS_ID}, {TEXT['source_some']};" in some_said


def test_its_list_boxes_keep_their_keys(counted: Session) -> None:
    widget = traffic_ways(session=counted)
    assert isinstance(widget.dtype, Choice) and isinstance(widget.preset, Choice)
    widget.preset.index = 1  # as the page does
    assert widget.setting == widget.preset.value
    widget.dtype.index = widget.dtype.texts.index("fp32")
    assert widget.preset.value is None and widget.point.problem.dtype == "float32"

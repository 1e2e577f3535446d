"""The widget of the five ways: table, sentence, presets and what happens to a bad value."""

from __future__ import annotations

from pathlib import Path

import pytest

import fa_kernels as fa
from fa_kernels.session import Session, session
from fa_kernels.variants import VARIANTS
from fa_kernels.widgets.text import labels
from fa_kernels.widgets.traffic_ways import Setting, TrafficWays, traffic_ways
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
    for variant in VARIANTS.values():
        assert variant.label in shown(widget)
        for model in (variant.paper, variant.launched):
            assert f">{model(point.problem, point.tiling).total_bytes}<" in shown(widget)
    assert RUN_ID in shown(widget) and COUNTERS_ID in shown(widget)
    assert TEXT["not_recorded"] not in shown(widget)


def test_without_records_the_columns_say_so(bare: Session) -> None:
    widget = traffic_ways(session=bare)
    assert shown(widget).count(f">{TEXT['not_recorded']}<") == 3 * len(VARIANTS)
    assert TEXT["missing_counted"] in shown(widget) and TEXT["missing_hardware"] in shown(widget)
    assert "was not recorded at this point" in widget.sentence.value
    assert widget.preset.disabled and widget.preset.label == TEXT["presets_none"]


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
    assert "cannot be launched" in widget.table.value
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

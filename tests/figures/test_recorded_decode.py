"""Recorded decode steps: the line through them, and what stands there without any."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fa_kernels.device import Device, device
from fa_kernels.figures.recorded_decode import (
    KERNEL,
    DecodeLine,
    RecordedDecode,
    line_through,
    points_of,
)
from fa_kernels.measure.decode_points import LAYERS, Ours
from tests.figures.synthetic_decode import (
    DECODE_ID,
    FIXED_MS,
    GB_S,
    SHAPES,
    decode_rows,
    write_decode_run,
)


def test_the_line_finds_what_the_times_were_made_of() -> None:
    line = line_through(points_of(decode_rows()), "run")
    assert line is not None and (line.run_id, line.points) == ("run", len(SHAPES))
    assert line.fixed_ms == pytest.approx(FIXED_MS) and line.gb_s == pytest.approx(GB_S)
    assert line.worst < 1e-6 and line.ms(4e9) == pytest.approx(FIXED_MS + 1.0)


def test_a_line_below_zero_goes_through_the_origin() -> None:
    line = line_through(points_of(decode_rows(fixed_ms=-0.0005)), "run")
    assert line is not None and line.fixed_ms == 0.0 and line.gb_s > GB_S and line.worst > 0


def test_only_the_kernel_as_it_is_counts_and_no_peer() -> None:
    rows = list(decode_rows())
    for name in ("splits8", "page64", "window4096", "graph"):
        rows += [replace(row, variant=f"{KERNEL}_{name}") for row in decode_rows(1.0)]
    points = points_of(rows)
    assert len(points) == len(SHAPES) and {p.row.variant for p in points} == {KERNEL}
    assert points == points_of(decode_rows()) == points_of(rows, graphs=True)
    assert not points_of(replace(row, pass_="fwd") for row in rows)
    assert not points_of(
        replace(row, status="failed", p20=None, median=None, p80=None) for row in rows
    )


def test_a_step_in_a_graph_stands_for_its_shape(h200: Device) -> None:
    rows = list(decode_rows())
    graph = replace(rows[0], variant=f"{KERNEL}_graph32", p20=0.004, median=0.004, p80=0.004)
    for order in ([*rows, graph], [graph, *rows]):
        times = [point.ms for point in points_of(order, graphs=True)]
        assert min(times) == 0.004 and len(times) == len(SHAPES)
    run = RecordedDecode("run", points_of(rows), points_of([*rows, graph], graphs=True))
    assert run.line(h200).fixed_ms < FIXED_MS


def test_too_few_points_make_no_line() -> None:
    points = points_of(decode_rows())
    assert line_through(points[:2], "run") is None
    assert line_through([points[0]] * 4, "run") is None


def test_without_a_run_the_data_sheet_speaks(tmp_path: Path, h200: Device) -> None:
    found = RecordedDecode.on(h200, tmp_path)
    assert found == RecordedDecode() and found.line(h200) == DecodeLine(0.0, 4800.0)
    run = RecordedDecode("run", points_of(decode_rows()))
    assert run.line(h200).gb_s == pytest.approx(GB_S)


def test_the_newest_run_of_the_device_is_read(tmp_path: Path, h200: Device) -> None:
    write_decode_run(tmp_path)
    found = RecordedDecode.on(h200, tmp_path)
    assert found.run_id == DECODE_ID and len(found.points) == len(SHAPES)
    assert found.line(h200).gb_s == pytest.approx(GB_S, rel=1e-4)
    assert RecordedDecode.on(device("t4"), tmp_path) == RecordedDecode()


def test_rows_are_named_as_a_run_names_them() -> None:
    names = [one.name(None) for one in (Ours(), Ours(layers=LAYERS), Ours(layers=1), Ours(64))]
    rows = [replace(next(decode_rows()), variant=name) for name in names]
    assert [len(points_of([row])) for row in rows] == [1, 0, 0, 0]
    assert [len(points_of([row], graphs=True)) for row in rows] == [1, 1, 0, 0]


def test_flop_and_bytes_of_a_point() -> None:
    point = points_of(decode_rows())[0]
    assert point.cache_bytes == 2 * 8 * 1024 * 128 * 2 and point.group == 4
    assert point.flops == 4 * 32 * 1024 * 128
    assert point.least_bytes == point.cache_bytes + 2 * 32 * 128 * 2
    assert point.tflops == pytest.approx(point.flops / point.ms / 1e9)

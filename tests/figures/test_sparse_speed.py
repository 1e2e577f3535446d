"""Time against density: every recorded number is drawn where it belongs, under its name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from fa_kernels.device import Device
from fa_kernels.figures.recorded_sparse import RecordedSparse
from fa_kernels.figures.sparse_speed import Shown, sparse_speed_spec
from fa_kernels.measure.sparse_run import DENSITIES, PASSES, dense_problem
from fa_kernels.widgets.text import labels
from tests.figures.synthetic_sparse import SPARSE_ID, write_sparse_run

TEXT = labels("sparse_speed")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("sparse")
    write_sparse_run(folder)
    return folder


def spec_of(recorded: RecordedSparse, n: int = 8192) -> dict[str, Any]:
    problem = dense_problem(n, 128)
    panels = [Shown(name, recorded.curves(problem, name), 0.01) for name in PASSES]
    return sparse_speed_spec(panels, recorded.run_id, TEXT)


def test_every_number_stands_at_its_density(root: Path, h200: Device) -> None:
    recorded = RecordedSparse.on(h200, root=root)
    spec = spec_of(recorded)
    for number, pass_ in enumerate(PASSES):
        curves = recorded.curves(dense_problem(8192, 128), pass_)
        mine = [line for line in spec["data"] if line["xaxis"] == ("x2" if number else "x")]
        names = [TEXT["floors"][pass_], TEXT["ideal"], TEXT["cudnn"], "flex", "flash, tensor cores"]
        assert [line["name"] for line in mine] == names
        by_name = {line["name"]: line for line in mine}
        ours = by_name["flash, tensor cores"]
        assert [2**x for x in ours["x"]] == pytest.approx(list(DENSITIES))
        assert [10**y for y in ours["y"]] == pytest.approx([t.ms for t in curves.ours.values()])
        ideal = by_name[TEXT["ideal"]]
        assert curves.dense
        dense = curves.dense.ms
        assert [10**y for y in ideal["y"]] == pytest.approx([s * dense for s in DENSITIES])
        flat = by_name[TEXT["floors"][pass_]]
        assert flat["y"] == [math.log10(0.01)] * 2
        low, high = spec["layout"]["yaxis2" if number else "yaxis"]["range"]
        assert all(low < y < high for line in mine for y in line["y"])
        assert SPARSE_ID in spec["layout"]["annotations"][number]["text"]


def test_a_legend_names_what_is_drawn_alone(root: Path, h200: Device) -> None:
    far = spec_of(RecordedSparse.on(h200, root=root), 65536)
    names = {line["name"] for line in far["data"] if line["xaxis"] == "x"}
    heading = far["layout"]["annotations"][0]["text"]
    assert "flex" in names and "flex" in heading
    empty = spec_of(RecordedSparse())
    assert empty["data"] == []
    assert TEXT["not_recorded"] in empty["layout"]["annotations"][0]["text"]
    assert "flex" not in empty["layout"]["annotations"][0]["text"]

"""The ladder launch by launch: resources and instructions as figures, from the compiled code."""

from __future__ import annotations

import re

import plotly.graph_objects as go
import pytest

from fa_kernels.cuda.compiled import Build, CompiledLaunch
from fa_kernels.cuda.sass import CLASSES, InstructionMix
from fa_kernels.figures import theme
from fa_kernels.figures.instruction_mix import (
    EVERYTHING,
    LOOPS,
    PARTS,
    counts_of,
    mix_rows,
    mix_spec,
)
from fa_kernels.figures.resources import resources_spec
from fa_kernels.figures.rungs import (
    Rung,
    in_rung_order,
    launches,
    outdated,
    row_heights,
    row_labels,
    rungs,
    sources,
)
from fa_kernels.measure.compiled_run import ARCHS, DTYPES, HEAD_DIMS
from fa_kernels.variants import RUNGS, VARIANTS
from fa_kernels.widgets.text import labels
from tests.figures.test_explorer import sizes

RESOURCES, MIX = labels("resources"), labels("instruction_mix")
every_build = pytest.mark.parametrize("arch", ARCHS)


def launch(entry: str, registers: int = 128, mix: InstructionMix | None = None) -> CompiledLaunch:
    return CompiledLaunch(entry, 128, registers, 0, 0, 16384, mix)


def rung(variant: str, *made: CompiledLaunch) -> Rung:
    build = Build(variant, 90, "float16", 64, (64, 128), made, "recorded, NVRTC 13.0")
    return Rung(VARIANTS[variant], build)


TWO = [
    rung("standard_tiled", launch("standard_tiled_scores"), launch("standard_tiled_output", 32)),
    rung("flash_q_outer", launch("flash_q_outer", 255)),
]


def test_rungs_in_the_order_of_their_files() -> None:
    assert [v.kernel for v in in_rung_order()] == sorted(v.kernel for v in RUNGS.values())
    names = [rung.name for rung in TWO]
    assert names == ["02 standard", "04 flash"] and TWO[1].said == "rung 04"
    assert TWO[0].tiles == "64 × 128" and rung("standard_naive").tiles == ""
    assert Rung(VARIANTS["flash_q_outer"], None).tiles == ""


@every_build
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_rung_is_there(arch: int, dtype: str, head_dim: int) -> None:
    found = rungs(dtype, head_dim, arch)
    assert [rung.variant for rung in found] == in_rung_order()
    for one in found:
        able = dtype in one.variant.dtypes and one.variant.runs_on(arch)
        assert (one.build is not None) == able
    assert len(sources(found)) >= 1


def test_rows_name_rungs_and_launches() -> None:
    rows = launches(TWO)
    assert [re.sub("<.*?>|&nbsp;", "", text) for text in row_labels(rows)] == [
        "02 standard, scores", "output", "04 flash",
    ]  # fmt: skip
    heights = row_heights(rows)
    assert heights[-1] == 0 and heights[0] - heights[1] == 1
    assert heights[1] - heights[2] > 1  # rungs stand apart
    assert row_heights([]) == [] and outdated(TWO) == [] and launches([]) == []


def test_an_old_record_is_named() -> None:
    build = Build("flash_q_outer", 90, "float16", 64, (64, 64), (), "x", current=False)
    assert outdated([Rung(VARIANTS["flash_q_outer"], build)]) == ["04 flash"]


# -- resources -------------------------------------------------------------------------------


def test_bars_are_shares_of_an_sm() -> None:
    rows = launches(TWO)
    spec = resources_spec(rows, 90, RESOURCES)
    registers = next(t for t in spec["data"] if t["name"] == "registers")
    found = [one.occupancy(90) for _, one in rows]
    # Of every row: what is in use, then one block more.
    for i, at in enumerate(found):
        assert registers["x"][2 * i] == pytest.approx(at.blocks * at.shares["registers"])
        assert registers["base"][2 * i + 1] == registers["x"][2 * i]
    assert registers["marker"]["pattern"]["shape"][-1] == "/"  # 255 registers limit rung 04
    words = next(t for t in spec["data"] if t["name"] == "words")["text"]
    assert "limited by <b>registers</b>" in words[-1] and f"of {found[0].max_warps}" in words[-1]


@every_build
@pytest.mark.parametrize("dtype", DTYPES)
def test_plotly_takes_the_resources(arch: int, dtype: str) -> None:
    spec = resources_spec(launches(rungs(dtype, 64, arch)), arch, RESOURCES)
    go.Figure(spec)
    assert min(sizes(spec)) >= 12
    go.Figure(resources_spec([], arch, RESOURCES))


# -- instructions ----------------------------------------------------------------------------

MULTIPLIES = InstructionMix({"fp32": 30, "integer": 70}, {"fp32": 8, "shared": 2}, {}, 512)
STRAIGHT = InstructionMix({"fp32": 1, "other": 3}, {})


def test_only_what_has_a_loop_is_in_the_loops() -> None:
    rows = launches([rung("flash_q_outer", launch("flash_q_outer", mix=MULTIPLIES)),
                     rung("standard_naive", launch("a", mix=STRAIGHT), launch("b"))])  # fmt: skip
    assert [one.entry for _, one in mix_rows(rows, LOOPS)] == ["flash_q_outer"]
    assert [one.entry for _, one in mix_rows(rows, EVERYTHING)] == ["flash_q_outer", "a"]
    assert counts_of(None, LOOPS) == {} and counts_of(MULTIPLIES, LOOPS) == MULTIPLIES.loops
    bars = mix_spec(rows, LOOPS, MIX)["data"][0]
    assert bars["x"] == [80, 20] and bars["base"] == [0, 80]
    assert "8 of 10, 80 %" in bars["hovertext"][0]
    words = mix_spec(rows, LOOPS, MIX)["data"][1]["text"]
    assert words == ["&nbsp;10 · 51 FLOP each"]


@pytest.mark.parametrize("part", PARTS)
@every_build
def test_plotly_takes_the_mix(part: str, arch: int) -> None:
    spec = mix_spec(launches(rungs("float16", 64, arch)), part, MIX)
    go.Figure(spec)
    assert min(sizes(spec)) >= 12
    bars = spec["data"][0]
    ends: dict[float, float] = {}
    for y, base, length in zip(bars["y"], bars["base"], bars["x"], strict=True):
        assert base == pytest.approx(ends.get(y, 0.0))  # no gap, no overlap
        ends[y] = base + length
    assert all(end == pytest.approx(100) for end in ends.values())
    go.Figure(mix_spec([], part, MIX))


def test_every_class_has_a_colour_and_words() -> None:
    assert set(theme.INSTRUCTION_COLOURS) == set(CLASSES)
    assert set(MIX["classes"]) == set(MIX["short"]) == set(CLASSES)
    assert len(set(theme.INSTRUCTION_COLOURS.values())) == len(CLASSES)
    # A page swaps colours one by one: these stay, and so do the words on them.
    fixed = {*theme.INSTRUCTION_COLOURS.values(), *theme.RESOURCE_COLOURS.values()}
    assert not (fixed | {theme.ON_LIGHT, theme.ON_DARK}) & theme.DARK.keys()


def luminance(colour: str) -> float:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("name", CLASSES)
def test_words_on_bars_can_be_read(name: str) -> None:
    ink = theme.ON_DARK if name in theme.DEEP else theme.ON_LIGHT
    light, dark = sorted(map(luminance, (ink, theme.INSTRUCTION_COLOURS[name])), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 4.5

"""Sizes of what attention works on, beside what the memories of a device hold."""

from __future__ import annotations

import plotly.graph_objects as go
import pytest

from fa_kernels.device import Device, device, list_devices
from fa_kernels.figures.what_fits import (
    Item,
    fits_spec,
    items_of,
    largest_seqlen,
    last_rung,
    place_for,
    places_of,
    rung_of,
)
from fa_kernels.problem import AttentionProblem
from fa_kernels.units import KIB, MIB
from fa_kernels.widgets.text import labels
from fa_kernels.widgets.what_fits import item_words
from tests.figures.test_explorer import sizes

TEXT = labels("what_fits")


@pytest.mark.parametrize("slug", list_devices())
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_shipped_tile_fits_into_a_block(slug: str, dtype: str) -> None:
    gpu, problem = device(slug), AttentionProblem.of_tokens(4096, 64, dtype)
    tile = items_of(problem, gpu)[0]
    place = place_for(tile, places_of(gpu))
    assert tile.key == "tile" and place is not None and place.key == "block"


def test_sizes_are_those_of_the_problem(h200: Device) -> None:
    problem = AttentionProblem.of_tokens(4096, 64, "float16")
    found = {item.key: item.nbytes for item in items_of(problem, h200)}
    assert found["s"] == 4096 * 4096 * 2 and found["sp_all"] == 2 * problem.heads * found["s"]
    assert found["kv"] == 2 * 4096 * 64 * 2 and found["qkvo"] == 2 * found["kv"]
    assert found["qkvo_all"] == problem.heads * found["qkvo"]
    assert list(found) == list(TEXT["items"])


def test_the_tile_is_that_of_the_last_rung_which_runs_there(h200: Device) -> None:
    half, single = (AttentionProblem.of_tokens(4096, 64, d) for d in ("float16", "float32"))
    assert rung_of(half, h200) == "06" and rung_of(half, device("t4")) == "04"
    assert rung_of(half, device("a100-80gb")) == "05", "it has no warpgroups"
    assert rung_of(single, h200) == "04" and last_rung("float16", h200).name == "flash_wgmma"


def test_a_tile_is_no_longer_than_the_sequence(h200: Device) -> None:
    problem = AttentionProblem.of_tokens(17, 64, "float16")
    assert items_of(problem, h200)[0].nbytes == 2 * 17 * 64 * 2
    assert "(17 rows)" in item_words(problem, h200)["tile"]


def test_the_smallest_memory_that_holds_it(h200: Device) -> None:
    places = places_of(h200)
    assert [place.key for place in places] == ["block", "sms", "l2", "hbm"]
    wanted = {227 * KIB: "block", 227 * KIB + 1: "sms", 40 * MIB: "l2", 61 * MIB: "hbm"}
    for nbytes, key in wanted.items():
        place = place_for(Item("s", "s", nbytes), places)
        assert place is not None and place.key == key
    assert place_for(Item("s", "s", 142 * 1024**3), places) is None


@pytest.mark.parametrize("slug", list_devices())
def test_memories_are_in_order_of_size(slug: str) -> None:
    held = [place.nbytes for place in places_of(device(slug))]
    assert held == sorted(held)
    assert {place.key for place in places_of(device(slug))} == set(TEXT["places"])


@pytest.mark.parametrize("itemsize", [2, 4])
def test_the_longest_sequence_whose_scores_fit(itemsize: int) -> None:
    n = largest_seqlen(227 * KIB, itemsize)
    assert n * n * itemsize <= 227 * KIB < (n + 1) ** 2 * itemsize


@pytest.mark.parametrize("slug", list_devices())
@pytest.mark.parametrize("n", [1, 128, 4096, 1 << 20])
def test_plotly_takes_every_size(slug: str, n: int) -> None:
    gpu, problem = device(slug), AttentionProblem.of_tokens(n, 64, "float16")
    items, places = items_of(problem, gpu), places_of(gpu)
    spec = fits_spec(items, places, item_words(problem, gpu), TEXT)
    go.Figure(spec)
    assert min(sizes(spec)) >= 12
    (bars,) = spec["data"]
    high = 10.0 ** spec["layout"]["xaxis"]["range"][1]
    assert all(0 <= x <= high for x in bars["x"])
    assert len(spec["layout"]["shapes"]) == len(places)

"""Attention on disk: what is not as it was written is refused in words; maps are the formula."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fa_kernels.measure import maps
from fa_kernels.measure.maps import MapsError, causal_probabilities, list_maps, load_maps
from tests.measure.synthetic_maps import ABOUT, NAME, write


@pytest.fixture
def written(tmp_path: Path) -> Path:
    write(tmp_path)
    load_maps.cache_clear()
    return tmp_path


def change_about(folder: Path, **changed: Any) -> None:
    path = folder / f"{NAME}.json"
    about = json.loads(path.read_text()) | changed
    path.write_text(json.dumps({k: v for k, v in about.items() if v is not None}))


def test_probabilities_are_causal_and_add_up(written: Path) -> None:
    found = load_maps(NAME, written)
    p = found.probabilities
    np.testing.assert_allclose(p.sum(axis=-1), 1.0)
    assert not np.triu(p, 1).any() and p.shape == (len(found.q), found.seqlen, found.seqlen)
    row = np.exp(found.q[0, 2].astype(float) @ found.k[0, :3].T / np.sqrt(found.q.shape[-1]))
    np.testing.assert_allclose(p[0, 2, :3], row / row.sum(), rtol=1e-6)
    assert (causal_probabilities(found.q, found.k) == p).all()


def test_the_newest_comes_first(written: Path) -> None:
    write(written, "20270101-h200-maps")
    assert list_maps(written) == ["20270101-h200-maps", NAME]
    assert list_maps(written / "nothing") == []


def test_a_changed_file_is_refused(written: Path) -> None:
    path = written / f"{NAME}.npz"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(MapsError, match=r"changed after it was written\): restore it with `git"):
        load_maps(NAME, written)


@pytest.mark.parametrize("key", [key for key in maps.ABOUT_KEYS if key in ABOUT])
def test_a_file_that_does_not_say_where_it_is_from_is_refused(written: Path, key: str) -> None:
    change_about(written, **{key: None})
    with pytest.raises(MapsError, match=rf"\({key} is missing\)"):
        load_maps(NAME, written)


def test_others_are_refused_in_words(written: Path) -> None:
    change_about(written, schema=2)
    with pytest.raises(MapsError, match="schema 2 is not 1"):
        load_maps(NAME, written)
    with pytest.raises(MapsError, match="20300101-none.npz cannot be read"):
        load_maps("20300101-none", written)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"k": np.zeros((2, 63, 8))}, "shapes"),
        ({"layers": [0]}, "of 1 heads"),
        ({"tokens": b"x"}, "heads or tokens do not belong to q"),
        ({"v": np.full((2, 64, 8), np.inf)}, "a value that is not finite"),
    ],
)
def test_wrong_contents_are_refused(tmp_path: Path, changed: dict[str, Any], sentence: str) -> None:
    write(tmp_path, **changed)
    load_maps.cache_clear()
    with pytest.raises(MapsError, match=sentence):
        load_maps(NAME, tmp_path)


@pytest.mark.parametrize("name", list_maps())
def test_what_is_recorded_is_valid_and_small(name: str) -> None:
    found = load_maps(name)
    assert found.seqlen == found.about["model"]["seqlen"]
    assert (maps.MAPS_DIR / f"{name}.npz").stat().st_size < 2.5e6
    assert found.about["commit"] != "unknown"
    assert not found.about["dirty"] or found.about["notes"], "changed, and nobody says how"

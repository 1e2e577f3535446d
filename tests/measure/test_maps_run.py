"""A model of two layers, trained on the CPU for a moment: what is kept of it, and read again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fa_kernels import __main__ as cli
from fa_kernels.cuda import launch
from fa_kernels.measure import maps_run
from fa_kernels.measure.about import describe_numpy_run
from fa_kernels.measure.maps import MAPS_DIR, list_maps, load_maps
from fa_kernels.measure.maps_run import Recipe, record_maps, split, spread_heads, text_of_python

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

TINY = Recipe(
    layers=2, heads=4, width=32, seqlen=48, batch=4, warm_up=2, look_every=2, patience=2,
    kept_heads=3,
)  # fmt: skip


def trainer(recipe: Recipe = TINY) -> Any:
    return maps_run._Trainer(recipe, text_of_python(), "cpu", "sdpa")


def test_a_recording_is_read_again(tmp_path: Path) -> None:
    said: list[str] = []
    path, whole = record_maps(
        tmp_path, "maps", "a command", None, "abc", 0.4, said.append, recipe=TINY, device="cpu",
        implementation="sdpa", describe=describe_numpy_run,
    )  # fmt: skip
    assert whole and list_maps(tmp_path) == [path.stem] and path.stem.endswith("-cpu-maps")
    maps = load_maps(path.stem, tmp_path)
    assert maps.q.shape == maps.k.shape == maps.v.shape == (3, 48, 8)
    assert len(set(zip(maps.layers, maps.heads, strict=True))) == 3
    assert maps.tokens == split(text_of_python())[1][:48]
    about = json.loads(path.with_suffix(".json").read_text())
    assert about["commit"] == "abc" and about["command"] == "a command"
    assert about["training"]["steps"] % 2 == 0 and said
    assert 0 < about["training"]["held_out_loss"] < 6
    with pytest.raises(FileExistsError, match="is not overwritten: choose another --label"):
        record_maps(
            tmp_path, "maps", "", seconds=0.0, recipe=TINY, device="cpu", implementation="sdpa",
            describe=describe_numpy_run,
        )  # fmt: skip


def test_it_is_the_attention_of_the_model() -> None:
    """Maps from the kept q and k are what the model itself gives."""
    one = trainer()
    q, k, v = one.inputs_of_attention()
    same = maps_run._model(TINY, "cpu", "eager")
    same.load_state_dict(one.model.state_dict())
    tokens = one.texts[1][None, : TINY.seqlen]
    with torch.no_grad():
        theirs = same.eval()(input_ids=tokens, output_attentions=True).attentions
    theirs = torch.cat(theirs).flatten(0, 1).numpy()
    ours = maps_run.causal_probabilities(q, k)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert q.shape == k.shape == v.shape == (8, 48, 8)


def test_training_lowers_the_loss_and_keeps_the_best_weights() -> None:
    one = trainer(replace(TINY, learning_rate=3e-3, look_every=10))
    before = one.held_out_loss()
    best = maps_run.train(one, 1.0, lambda text: None)
    assert best.held_out_loss < before - 0.3
    assert one.held_out_loss() == pytest.approx(best.held_out_loss, abs=1e-4)


def test_it_stops_where_nothing_is_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    one, losses = trainer(), iter([3.0, 2.0, 2.5, 2.6, 1.0])
    monkeypatch.setattr(one, "step", lambda number: 1.0)
    monkeypatch.setattr(one, "held_out_loss", lambda: next(losses))
    best = maps_run.train(one, 1e9, lambda text: None)
    assert (best.held_out_loss, best.steps) == (2.0, 4), "patience is two looks"


def test_heads_are_spread_by_how_far_they_look() -> None:
    n, d = 16, 4
    q, k = np.zeros((4, n, d)), np.zeros((4, n, d))
    places = np.linspace(-1, 1, n)
    for head, slope in enumerate((0.0, 80.0, -80.0, 20.0)):  # 80: the last key; -80: the first
        q[head, :, 0], k[head, :, 0] = 1.0, slope * places
    # By distance 1, 3, 0, 2: of two the nearest and the third.
    assert spread_heads(q, k, 2) == [0, 1]
    assert spread_heads(q, k, 4) == [0, 1, 2, 3] == spread_heads(q, k, 9)


def test_the_end_of_the_text_is_held_out() -> None:
    text = text_of_python()
    seen, held_out = split(text)
    assert seen + held_out == text and 0.09 < len(held_out) / len(text) < 0.11
    assert len(held_out) > 64 * Recipe().seqlen


def test_the_command_writes_beside_the_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: list[Any] = []

    def record(*arguments: Any) -> tuple[Path, bool]:
        given.append(arguments)
        return tmp_path, True

    monkeypatch.setattr(launch, "available", lambda: True)
    monkeypatch.setattr(maps_run, "record_maps", record)
    assert cli.main(["measure", "--maps", "--minutes", "0.5"]) == 0
    ((root, label, command, resume, commit, seconds),) = given
    assert (root, label, resume, commit, seconds) == (MAPS_DIR, "maps", None, None, 30.0)
    assert command.startswith("python -m fa_kernels")
    with pytest.raises(SystemExit, match="--maps takes no resume"):
        cli.main(["measure", "--maps", "--resume", "x"])

"""The stepper's Python side: presets, refusals, the check, and the code lines it shows."""

from __future__ import annotations

import inspect
import math
import re
from typing import Any

import numpy as np
import pytest
import traitlets
from hypothesis import given
from hypothesis import strategies as st

from fa_kernels.reference.online_softmax import OnlineSoftmax
from fa_kernels.widgets.live_figure import STATIC
from fa_kernels.widgets.stepper import (
    BLOCK_SIZES,
    CODE,
    MAX_KEYS,
    MAX_SCORE,
    PRESETS,
    SCRIPTS,
    check_steps,
    stepper,
    to_cell,
)
from fa_kernels.widgets.text import labels
from fa_kernels.widgets.whole_row import LIMIT, softmax_output

SCORES = st.one_of(st.floats(-MAX_SCORE, MAX_SCORE), st.just(-math.inf))


@pytest.mark.parametrize("block_n", BLOCK_SIZES)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_prefix_of_every_preset_is_the_softmax(preset: str, block_n: int) -> None:
    check = stepper(preset, block_n=block_n).check()
    assert check.ok
    assert len(check.keys) == 8 // block_n
    assert "softmax of the keys seen" in str(check)
    assert 'data-fa-table="steps"' in check._repr_html_()


@given(st.lists(SCORES, min_size=1, max_size=MAX_KEYS), st.sampled_from(BLOCK_SIZES))
def test_any_scores_a_reader_can_type(scores: list[float], block_n: int) -> None:
    assert stepper(scores=scores, block_n=block_n).check().difference.max() <= LIMIT


def test_alpha_is_what_the_presets_promise() -> None:
    assert (stepper("growing").check().alpha[1:] < 1).all()
    assert (stepper("falling").check().alpha[1:] == 1).all()
    masked = stepper("masked_block").check()
    assert masked.m[0] == -math.inf and masked.l[0] == 0 and masked.l[-1] > 0
    assert stepper("masked_row").check().out.tolist() == [[0.0, 0.0]] * 4
    with np.errstate(over="ignore"):
        assert np.isinf(np.exp(np.array(PRESETS["overflow"], np.float16))).any()


def test_a_difference_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets_alpha(self: OnlineSoftmax, s: np.ndarray, v: np.ndarray) -> np.ndarray:
        m = np.maximum(self.m_i, s.max(axis=-1))
        p = np.exp(s - m[..., None])
        self.m_i, self.l_i, self.acc = m, self.l_i + p.sum(axis=-1), self.acc + p @ v
        return np.ones(1)

    monkeypatch.setattr(OnlineSoftmax, "update", forgets_alpha)
    check = stepper("growing").check()
    assert not check.ok
    assert "report it" in check.caption()


def test_the_code_on_screen_is_the_algorithm() -> None:
    """Run the shown lines as Python, and hold them against `OnlineSoftmax`."""
    source = "\n".join(line for _, line in CODE)
    for name in ("m_new", "m_safe", "alpha", "p ", "l_i", "acc"):
        assert name in source and name in inspect.getsource(OnlineSoftmax.update)
    for scores in PRESETS.values():
        s, v = np.array(scores), np.array(stepper(scores=scores).values)
        blocks = [(s[i : i + 2], v[i : i + 2]) for i in range(0, len(s), 2)]
        # m_i is a NumPy scalar from the start: -inf - 0 stays -inf without a warning.
        names: dict[str, Any] = {"inf": np.inf, "exp": np.exp, "blocks": blocks}
        exec(source, names)
        assert names["out"] == pytest.approx(softmax_output(s, v), abs=LIMIT)
        assert names["l_i"] == pytest.approx(check_steps(s, v, 2).l[-1])


def test_each_line_belongs_to_a_step() -> None:
    steps = re.search(r"const OPS = \[(.*?)\]", (STATIC / SCRIPTS[0]).read_text(encoding="utf-8"))
    assert steps is not None
    operations = set(re.findall(r'"(\w+)"', steps[1]))
    assert {op for op, _ in CODE} == operations | {"start", "out", ""}


def test_scores_survive_the_way_to_the_page_and_back() -> None:
    scores = [0.1, -1 / 3, 1e-300, -math.inf, 1000.0, 5e-324]
    assert stepper(scores=scores).scores.tolist() == scores
    assert [to_cell(x) for x in (2.0, -math.inf, 0.5)] == ["2", "-inf", "0.5"]


def test_own_scores_get_the_presets_of_their_length() -> None:
    assert [p["name"] for p in stepper().presets] == list(PRESETS)
    assert stepper(scores=[1.0, 2.0, 3.0]).presets == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"preset": [1, 2, 3]}, "preset = [1, 2, 3] is not a preset: pass scores=[1, 2, 3]."),
        ({"preset": np.ones(2)}, "preset = [1.0, 1.0] is not a preset: pass scores=[1.0, 1.0]."),
        ({"preset": None}, "preset = None is not known: use one of 'growing'"),
        ({"preset": "none"}, "preset = 'none' is not known: use one of 'growing'"),
        ({"block_n": 3}, "block_n = 3 is not offered: use one of 1, 2, 4"),
        ({"scores": []}, "0 scores: give between 1 and 12"),
        ({"scores": [0.0] * 13}, "13 scores: give between 1 and 12"),
        ({"scores": [1.0, math.nan]}, "score 2 = nan is no number or out of range"),
        (
            {"scores": [math.inf]},
            "score 1 = inf is no number or out of range: choose between -1000 and 1000",
        ),
        ({"scores": [1001.0]}, "or -inf for a masked key"),
        ({"scores": ["x"]}, "score 1 = x is no number or out of range"),
        ({"scores": [1.0, None]}, "score 2 = None is no number or out of range"),
        ({"scores": ["1"]}, "score 1 = 1 is no number"),
        ({"scores": 5}, "scores = 5 is not a list: give 1 to 12 numbers"),
        ({"scores": "12"}, "scores = '12' is not a list"),
        ({"values": [[0.0, 0.0]]}, "give 8 pairs"),
        ({"values": [[1.0], [1.0, 0.0]]}, "values = [[1.0], [1.0, 0.0]] are not pairs of numbers"),
        ({"block_n": "2"}, "block_n = 2 is not offered"),
        ({"block_n": 0}, "block_n = 0 is not offered"),
        ({"scores": [1.0], "values": [[2.0, 0.0]]}, "between -1 and 1"),
    ],
)
def test_refusals_name_value_limit_and_remedy(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        stepper(**arguments)


def test_the_page_asks_for_every_text_and_every_text_is_there() -> None:
    script = "".join((STATIC / name).read_text(encoding="utf-8") for name in SCRIPTS[2:])
    page = labels("stepper")["page"]
    asked = set(re.findall(r"text\.([a-z0-9_]+)", script))
    named = set(re.findall(r'"([a-z0-9_]+)"', script))
    rows = {f"row_{row}" for row in ("m", "alpha", "l", "acc", "out")}
    said = {f"say_{op}" for op in ("start", "l", "acc")}
    assert asked <= set(page)
    assert set(page) <= asked | named | rows | said
    assert set(labels("stepper")["presets"]) == set(PRESETS)


@pytest.mark.parametrize(
    ("trait", "value", "words"),
    [
        ("block_n", 0, "block_n = 0 is not offered: use one of 1, 2, 4"),
        ("block_n", -1, "block_n = -1"),
        ("cells", ["1"] * 7, "7 scores for 8 values: give as many scores as values"),
        ("cells", ["x"] * 8, "score 1 = x is no number"),
        ("cells", ["1001"] * 8, "score 1 = 1001.0 is no number or out of range"),
        ("values", [[0.0, 0.0]], "give 8 pairs"),
        ("values", [[0.0]] * 8, "give 8 pairs"),
    ],
)
def test_a_page_or_a_cell_cannot_set_what_would_break_the_page(
    trait: str, value: Any, words: str
) -> None:
    """A block of 0 keys kept the page's loop over blocks from ever ending."""
    widget = stepper()
    before = getattr(widget, trait)
    with pytest.raises(traitlets.TraitError, match=re.escape(words)):
        setattr(widget, trait, value)
    assert getattr(widget, trait) == before
    assert widget.check().ok


def test_the_page_may_set_every_offered_block_and_score() -> None:
    widget = stepper()
    for block_n in BLOCK_SIZES:
        widget.block_n = block_n
    widget.cells = ["-inf", *["2.5"] * 7]
    assert widget.scores[0] == -math.inf and len(widget.check().keys) == 2


def test_a_page_without_a_kernel_has_every_trait_that_the_script_reads() -> None:
    script = str(stepper()._esm)
    read = set(re.findall(r"""model\.get\("(\w+)"\)""", script))
    assert read and read <= stepper().page_state().keys()

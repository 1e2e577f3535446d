"""The split-KV softmax of one row: parts that know nothing of each other, and their merge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ipywidgets
import numpy as np

from fa_kernels.decode_problem import checked_splits
from fa_kernels.figures.split_kv import SplitRow, random_row, split_spec
from fa_kernels.problem import checked_int
from fa_kernels.widgets.drawn_view import DrawnView
from fa_kernels.widgets.knob import Knob
from fa_kernels.widgets.seed import checked_seed
from fa_kernels.widgets.text import html_table, labels, scientific
from fa_kernels.widgets.whole_row import LIMIT, softmax_output

MAX_KEYS = 1024
_KEYS = (16, 32, 48, 64, 96, 120, 160, 256, 512, 1024)
_SPLITS = tuple(range(1, 17))
_SEEDS = tuple(range(1, 13))


@dataclass(frozen=True)
class Split:
    """What the controls show: parts, keys of the row, seed of its numbers."""

    num_splits: int
    keys: int
    seed: int


def checked_keys(value: object) -> int:
    """Keys of the row as an int, or a ValueError that says what it must be."""
    return checked_int("keys", value, 1, MAX_KEYS, "Choose a length in that range.")


def difference(setting: Split, row: SplitRow) -> float:
    """The largest difference between the merged row and the softmax of all keys at once."""
    scores, values = random_row(setting.keys, setting.seed)
    most = scores.max()
    lse = most + np.log(np.exp(scores - most).sum())
    of_out = float(np.abs(row.out - softmax_output(scores, values)).max())
    return max(of_out, abs(row.lse - float(lse)))


def takeaway(setting: Split, row: SplitRow) -> str:
    """How many parts, what they weigh, and whether the merge is the whole row's softmax."""
    text, found = labels("split_kv"), difference(setting, row)
    empty = sum(part.first == part.stop for part in row.parts)
    heaviest = int(np.argmax(row.weights))
    said = text["said"].format(
        keys=setting.keys, parts=setting.num_splits, heaviest=heaviest + 1,
        weight=f"{row.weights[heaviest]:.3f}", difference=scientific(found),
    )  # fmt: skip
    if empty:
        said += " " + text["said_empty"].format(empty=empty)
    verdict = text["holds" if found <= LIMIT else "fails"].format(limit=LIMIT)
    return f"{said} {verdict}"


def parts_table(setting: Split, row: SplitRow) -> str:
    """(m, l, lse), weight and out of every part, then of the merge and of the whole row; HTML."""
    text = labels("split_kv")
    names = (
        "column_part",
        "column_keys",
        "column_m",
        "column_l",
        "column_lse",
        "column_weight",
        "column_out",
    )
    body = []
    for i, (part, weight) in enumerate(zip(row.parts, row.weights, strict=True)):
        keys = f"{part.first + 1} … {part.stop}" if part.first < part.stop else text["none"]
        numbers = (_number(x) for x in (part.m, part.l, part.lse, weight))
        body.append([str(i + 1), keys, *numbers, _vector(part.out)])
    whole = SplitRow.of(*random_row(setting.keys, setting.seed), 1).parts[0]
    merged = ["", "", _number(row.lse), _number(float(row.weights.sum())), _vector(row.out)]
    unsplit = [_number(whole.m), _number(whole.l), _number(whole.lse), "1", _vector(whole.out)]
    all_keys = f"1 … {setting.keys}"
    body += [[text["merged"], all_keys, *merged], [text["whole"], all_keys, *unsplit]]
    caption = text["caption"].format(**vars(setting))
    head = [text[name] for name in names]
    return html_table("split-kv", caption, head, body)


def _number(x: float) -> str:
    return "−∞" if x == -np.inf else f"{x:.5g}"


def _vector(out: np.ndarray) -> str:
    return "(" + ", ".join(f"{x:+.4f}" for x in out) + ")"


#: As large as the equations of a notebook's text.
_LARGE = 'displaystyle="true" style="font-size: 1.25em; padding: 0.5em 0"'


def _mathml() -> str:
    """The merge as native MathML: lse of all keys, and out as the weighted sum of the parts'."""
    lse_s = "<msub><mi>lse</mi><mi>s</mi></msub>"
    total = f"<munder><mo>∑</mo><mi>s</mi></munder><msup><mi>e</mi>{lse_s}</msup>"
    weight = f"<msup><mi>e</mi><mrow>{lse_s}<mo>−</mo><mi>lse</mi></mrow></msup>"
    out_s = "<msub><mi>out</mi><mi>s</mi></msub>"
    lines = (
        f"<mi>lse</mi><mo>=</mo><mi>log</mi>{total}",
        f"<mi>out</mi><mo>=</mo><munder><mo>∑</mo><mi>s</mi></munder>{weight}<mo>·</mo>{out_s}",
    )
    one = "".join(f'<mrow>{line}</mrow><mspace width="3em"/>' for line in lines)
    return f'<math display="block" {_LARGE} data-fa-equation="split-kv">{one}</math>'


class SplitKV(DrawnView):
    """One row, cut into parts; `row` is what is shown."""

    section = mark = "split_kv"
    pins = False  # a picture of one row's keys
    least_width = 700
    row: SplitRow

    def __init__(self, setting: Split) -> None:
        text = labels("split_kv")
        self.num_splits = Knob(
            check=checked_splits, label=text["num_splits"],
            description=text["num_splits_description"], values=list(_SPLITS),
            value=setting.num_splits,
        )  # fmt: skip
        self.length = Knob(
            check=checked_keys, label=text["keys"], description=text["keys_description"],
            values=list(_KEYS), value=setting.keys,
        )  # fmt: skip
        self.seed = Knob(
            check=checked_seed, label=text["seed"], description=text["seed_description"],
            values=list(_SEEDS), value=setting.seed,
        )  # fmt: skip
        super().__init__(setting, (self.num_splits, self.length, self.seed))
        box: Any = self  # ipywidgets has no types
        *above, table = box.children
        box.children = (*above, ipywidgets.HTML(_mathml()), table)

    @property
    def setting(self) -> Split:
        """What the controls show now."""
        return Split(self.num_splits.value, self.length.value, self.seed.value)

    def draw(self, setting: Split, stamp: float) -> None:
        """Compute and show a setting."""
        self.row = SplitRow.of(*random_row(setting.keys, setting.seed), setting.num_splits)
        said = takeaway(setting, self.row)
        alt = self.text["figure"].format(sentence=said)
        spec = split_spec(self.row, self.text)
        self.show(spec, alt, said, parts_table(setting, self.row), stamp)


def split_kv(num_splits: int = 4, keys: int = 120, *, seed: int = 1) -> SplitKV:
    """Cut the keys of one query row into parts and merge their softmaxes by lse, in float64.

    Args:
        num_splits: parts, 1 to 128, of whole tiles of 16 keys; the last ones may be empty.
        keys: of the row, at most 1024.
        seed: of scores and values.

    Raises:
        ValueError: a bad value; value, limit and remedy.
    """
    return SplitKV(Split(checked_splits(num_splits), checked_keys(keys), checked_seed(seed)))

"""What the comparison of two runs says: sentence, note, table, and what the runs say themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fa_kernels.figures.recorded_pairs import (
    Pair,
    Ratios,
    RecordedPairs,
    call_words,
    departures,
    unequal,
)
from fa_kernels.figures.run_comparison import in_series, ratio_words, value_words
from fa_kernels.figures.theme import style_of
from fa_kernels.measure.records import OURS, RUN_KEYS, Run
from fa_kernels.problem import SHORT_DTYPE
from fa_kernels.widgets.text import html_table, labels

#: Rows of the table; characters of a commit that tell it from others.
ROWS, _HASH = 10, 7
#: What the fold shows beside the keys that every run has; what is no difference between two runs.
_ALSO = ("cpu", "packages", "resumed", "notes")
_OF_ITS_OWN = {"schema", "run_id", "started", "command"}


def names_of(recorded: RecordedPairs) -> tuple[str, str]:
    """How the two runs are called: by id, and with the GPU where it is not the same."""
    runs = (recorded.first, recorded.second)
    if recorded.same_device:
        return runs[0].run_id, runs[1].run_id
    named = labels("run_comparison")["named"]
    first, second = (named.format(run_id=run.run_id, device=run.device) for run in runs)
    return first, second


def metric_words(metric: str) -> str:
    """A metric in words, by its own name if it has none."""
    return str(labels("run_comparison")["metrics"].get(metric, metric))


def takeaway(
    recorded: RecordedPairs, pairs: Sequence[Pair], metric: str, dtype: str, head_dim: int
) -> str:
    """How many calls both hold, the median ratio and its range, ours and peers apart; or why not.

    `pairs` are those shown, of `metric`, `dtype` and `head_dim`.
    """
    text, (first, second) = labels("run_comparison"), names_of(recorded)
    ratios = Ratios.of(pairs)
    if ratios is None and not recorded.metrics:
        return str(text["none_common"]).format(first=first, second=second)
    if ratios is None:
        shown = SHORT_DTYPE.get(dtype) or text["any_dtype"], head_dim or text["any_d"]
        return str(text["none_chosen"]).format(
            metric=metric_words(metric), dtype=shown[0], head_dim=shown[1]
        )
    words = metric_words(metric)
    said = text["said"].format(
        count=ratios.count, metric=words[0].upper() + words[1:], first=first, second=second,
        median=ratio_words(ratios.median),
        range=text["range_most" if ratios.leaves_out else "range_all"].format(
            low=ratio_words(ratios.low), high=ratio_words(ratios.high)
        ),
    )  # fmt: skip
    ours = Ratios.of([pair for pair in pairs if pair.first.provider == OURS])
    peers = Ratios.of([pair for pair in pairs if pair.first.provider != OURS])
    if ours and peers:
        said += " " + text["said_split"].format(
            ours=_ratios(ours), peers=_ratios(peers), ours_code=_code(recorded, "commit"),
            peers_code=_code(recorded, "torch"),
        )  # fmt: skip
    return str(said)


def _ratios(ratios: Ratios) -> str:
    low, median, high = map(ratio_words, (ratios.low, ratios.median, ratios.high))
    return str(labels("run_comparison")["ratios"]).format(median=median, low=low, high=high)


def _code(recorded: RecordedPairs, key: str) -> str:
    """ "torch 2.11.0 in both", "commits 9d1e7e0 and 8f97e57"."""
    text = labels("run_comparison")
    first, second = (_short(run, key) for run in (recorded.first, recorded.second))
    if first == second:
        return str(text["in_both"]).format(name=key, value=first)
    return str(text["commits" if key == "commit" else "torches"]).format(first=first, second=second)


def _short(run: Run, key: str) -> str:
    value = str(run.about[key])
    return value[:_HASH] if key == "commit" else value


def notes_of(recorded: RecordedPairs, pairs: Sequence[Pair], alone: tuple[int, int]) -> list[str]:
    """Sentences below the figure: overlap, largest departures, equal bytes, what one run lacks."""
    text, said = labels("run_comparison"), []
    if any(pair.own_spread != (1.0, 1.0) for pair in pairs):
        overlap = sum(pair.overlaps for pair in pairs)
        said.append(text["said_overlap"].format(overlap=overlap, count=len(pairs)))
    if calls := _farthest(pairs):
        said.append(text["said_far"].format(calls=calls))
    said += _equal(recorded)
    if zero := sum(pair.ratio is None for pair in pairs):
        said.append(text["said_no_ratio"].format(count=zero))
    if any(alone):
        said.append(text["said_alone"].format(first=alone[0], second=alone[1]))
    return said


def _farthest(pairs: Sequence[Pair]) -> str:
    """The farthest call from the median ratio, and the farthest one on the other side of it."""
    ratios, far = Ratios.of(pairs), departures(pairs)
    if ratios is None or not far:
        return ""
    above = (far[0].ratio or 1.0) > ratios.median
    other = next((p for p in far if ((p.ratio or 1.0) > ratios.median) != above), None)
    joint = labels("run_comparison")["and_far"]
    return str(joint).join(_far(pair) for pair in (far[0], other) if pair)


def _far(pair: Pair) -> str:
    first, second = (value_words(pair.first.metric, value) for value in pair.values)
    return str(labels("run_comparison")["far"]).format(
        name=style_of(pair.first.series).label, call=call_words(pair.first), first=first,
        second=second, ratio=ratio_words(pair.ratio) if pair.ratio else "",
    )  # fmt: skip


def _equal(recorded: RecordedPairs) -> list[str]:
    """Whether bytes are equal to the byte, of every call that both runs hold; if not, where."""
    text, said = labels("run_comparison"), []
    counted, memory = unequal(recorded.counted), unequal(recorded.memory)
    if recorded.counted and not counted:
        also = text["and_memory"].format(count=len(recorded.memory))
        also = also if recorded.memory and not memory else ""
        said.append(text["said_equal"].format(count=len(recorded.counted), memory=also))
    first, second = (_short(run, "commit") for run in (recorded.first, recorded.second))
    for what, wrong, of in (
        ("counted", counted, recorded.counted), ("memory", memory, recorded.memory)
    ):  # fmt: skip
        if wrong:
            said.append(
                text["said_unequal"].format(
                    what=text[what], unequal=len(wrong), count=len(of), calls=_where(wrong),
                    first=first, second=second,
                )
            )  # fmt: skip
    if peers := unequal(recorded.peer_memory):
        said.append(
            text["said_peer_memory"].format(
                unequal=len(peers), count=len(recorded.peer_memory),
                names=", ".join(style_of(name).label for name in in_series(peers)),
            )
        )  # fmt: skip
    return said


def _where(wrong: Sequence[Pair]) -> str:
    """Whose numbers differ and in how many, with one call of each."""
    series = in_series(wrong).values()
    return "; ".join(f"{len(own)} × {_far(own[0])}" for own in series)


def departures_table(recorded: RecordedPairs, metric: str, pairs: Sequence[Pair]) -> str:
    """The largest departures from the median ratio and where both runs come from, as HTML."""
    text = labels("run_comparison")
    runs, far = (recorded.first, recorded.second), departures(pairs)[:ROWS]
    head = [text["column_series"], text["column_call"]]
    head += [text["column_value"].format(run_id=run.run_id) for run in runs]
    body = []
    for pair in far:
        values = [value_words(metric, value) for value in pair.values]
        label = style_of(pair.first.series).label
        body.append([label, call_words(pair.first), *values, ratio_words(pair.ratio or 1.0)])
    first, second = (_about_run(run) for run in runs)
    names = [key for key in _said_keys(runs) if _said(runs[0], key) != _said(runs[1], key)]
    differ = [name for name in names if name not in (*_OF_ITS_OWN, "notes", "resumed")]
    words = text["differ"].format(names=", ".join(differ)) if differ else text["differ_not"]
    what = text["caption_far" if far else "caption_none"].format(
        metric=metric_words(metric), count=len(far)
    )
    caption = text["caption"].format(what=what, first=first, second=second, differ=words)
    head.append(text["column_ratio"])
    return html_table("run-comparison", caption, head, body, "falab-table falab-dense")


def _about_run(run: Run) -> str:
    text, about = labels("run_comparison"), run.about
    dirty = {True: text["dirty"], False: text["clean"]}.get(about["dirty"], text["dirty_unknown"])
    return str(text["about_run"]).format(
        run_id=run.run_id, device=run.device, driver=about["driver"], cuda=about["cuda"],
        commit=_short(run, "commit"), dirty=dirty,
    )  # fmt: skip


def about_table(recorded: RecordedPairs) -> str:
    """What the two runs say about themselves, key by key, as HTML."""
    text, runs = labels("run_comparison"), (recorded.first, recorded.second)
    body = [[key, *(_said(run, key) for run in runs)] for key in _said_keys(runs)]
    head = ["", *(run.run_id for run in runs)]
    css = "falab-table falab-dense falab-words"
    return html_table("runs-said", text["about_caption"], head, body, css)


def _said_keys(runs: Sequence[Run]) -> list[str]:
    also = [key for key in _ALSO if any(key in run.about for run in runs)]
    return [key for key in RUN_KEYS if key != "schema"] + also


def _said(run: Run, key: str) -> str:
    value: Any = run.about.get(key)
    if value is None:
        return str(labels("run_comparison")["no_notes" if key == "notes" else "not_said"])
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(one)}" for name, one in value.items())
    return " ".join(map(_plain, value)) if isinstance(value, list) else _plain(value)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)

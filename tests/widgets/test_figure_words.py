"""What every figure says in words: its message above it, which is its alt text, and its units."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest

from fa_kernels.variants import VARIANTS
from fa_kernels.widgets.suite import FIGURES, SuiteFigure, live_figures

#: Characters of a message: two lines and a half above a figure.
LONGEST = 320
#: Our kernels' names are in lower case wherever they stand.
LABELS = tuple(variant.label for variant in VARIANTS.values())
UNIT = r"(?:[KMGT]iB|[KMGT]?B|[KMGT]B/s|n?µ?m?s|%|tokens|keys|elements|FLOP/B|[GT]FLOP/s|×)"
#: Quantities without a unit: counts of a thing that the title names, ratios, places, errors of
#: numbers that have no unit themselves.
BARE = re.compile(
    r"score|error|rounding units|passes over|elements|before / after|first run / second run|^key"
    r"|^row$|^queries$|^part$|^weight$|fraction|kept p|share of|tokens per second|new tokens|"
    r"requests, in order|^%"
)


def axes(spec: dict[str, Any]) -> dict[str, tuple[str, list[str]]]:
    """Axis -> its title and the words at its ticks; axes without a title only place things."""
    found = {}
    for name, axis in spec["layout"].items():
        title = axis.get("title") if re.fullmatch(r"[xy]axis\d*", name) else None
        text = title.get("text", "") if isinstance(title, dict) else title or ""
        ticks = [str(tick) for tick in axis.get("ticktext", ())] if title else []
        if text:
            found[name] = (re.sub("<[^>]+>", " ", text), [tick for tick in ticks if tick.strip()])
    return found


def faults(spec: dict[str, Any]) -> list[str]:
    complaints = []
    for name, (title, ticks) in axes(spec).items():
        at_ticks = bool(ticks) and all(re.search(rf"\d\s?{UNIT}$", t) or t == "0" for t in ticks)
        if not (re.search(rf"\({UNIT}\)$|^{UNIT}$", title) or at_ticks or BARE.search(title)):
            complaints.append(f"{name}: no unit in {title!r} or at {ticks}")
        words = " ".join([title, *ticks])
        if re.search(r"[KMGT]iB\b", words) and re.search(r"\b\d*\s?[KMGT]B\b", words):
            complaints.append(f"{name}: {title!r} mixes powers of two and of ten at {ticks}")
    return complaints


def messages(widget: Any) -> list[str]:
    """The texts above the figures of a widget, as HTML."""
    if "falab-sentence" in (html := str(getattr(widget, "value", ""))):
        return [html]
    return [said for child in getattr(widget, "children", ()) for said in messages(child)]


@pytest.mark.parametrize("one", FIGURES, ids=lambda one: one.name)
def test_it_says_its_message_and_its_units(one: SuiteFigure) -> None:
    shown = one.widget()
    (live,), (html,) = live_figures(shown), messages(shown)
    html = re.sub("<sub>(.)</sub>", r"_\1", html)
    message = unescape(re.sub("<[^>]+>", "", html.partition("<span")[0])).strip()
    assert live.alt.startswith(unescape(re.sub("<[^>]+>", "", html)))
    assert message.startswith(LABELS) or message[0] == message[0].upper(), message
    assert message.endswith((".", ".)")), message
    assert len(message) <= LONGEST, f"{len(message)} characters: {message}"
    assert faults(live.spec) == []


@pytest.mark.parametrize(
    ("axis", "complains"),
    [
        ({"title": {"text": "latency (ms)"}}, False),
        ({"title": {"text": "latency"}}, True),
        ({"title": {"text": "size"}, "ticktext": ["1 KiB", "1 GiB"]}, False),
        ({"title": {"text": "size"}, "ticktext": ["1 KiB", "1024"]}, True),
        ({"title": {"text": "size"}, "ticktext": ["1 MB", "1 GiB"]}, True),
        ({"title": {"text": "memory (GiB)"}, "ticktext": ["1 GB"]}, True),
        ({"title": {"text": "largest error of O"}}, False),
    ],
)
def test_a_bad_axis_is_seen(axis: dict[str, Any], complains: bool) -> None:
    assert bool(faults({"layout": {"xaxis": axis}})) is complains

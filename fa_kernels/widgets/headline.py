"""The numbers a figure is about, now and as pinned, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fa_kernels.units import capacity, duration, flops, significant, traffic
from fa_kernels.widgets.text import labels

#: Units of a headline that have a formatter of their own; any other is written as it is.
MOVED, HELD, WORK, TIME = "bytes moved", "bytes held", "FLOP", "ms"

#: Name -> (value, unit); None where there is no such number at this setting.
Headline = Mapping[str, tuple[float | None, str]]

_SHOW: dict[str, Callable[[float], str]] = {
    MOVED: traffic,
    HELD: capacity,
    WORK: flops,
    TIME: duration,
}


def differences(now: Headline, pinned: Headline) -> list[list[str]]:
    """[name, words] of every quantity of either, in the order of now's, then pinned's."""
    text = labels("row")
    found = []
    for name in dict.fromkeys((*now, *pinned)):
        value, unit = now.get(name, (None, ""))
        before, unit_before = pinned.get(name, (None, ""))
        shown, other = _words(value, unit), _words(before, unit_before)
        if value is None and before is None:
            continue
        key = "equal" if value == before else "ratio" if value and before else "one"
        ratio = ratio_words(value / before) if value and before else ""
        found.append([name, text[key].format(now=shown, pinned=other, ratio=ratio)])
    return found


def ratio_words(ratio: float) -> str:
    """Three digits and a cross: "× 4.00", "× 0.0123", "× 128"."""
    if 0.1 <= ratio < 99.95:
        return f"× {ratio:.{1 if ratio >= 9.995 else 2}f}"
    return f"× {significant(ratio)}"


def _words(value: float | None, unit: str) -> str:
    if value is None:
        return str(labels("row")["nothing"])
    show = _SHOW.get(unit)
    return show(value) if show else f"{significant(value)} {unit}".strip()

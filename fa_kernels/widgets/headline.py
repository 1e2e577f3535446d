"""The numbers a figure is about, now and as pinned, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fa_kernels.units import capacity, duration, flops, significant, traffic
from fa_kernels.widgets.text import labels, scientific

#: Units of a headline that have a formatter of their own; any other is written as it is.
MOVED, HELD, WORK, TIME, ERROR = "bytes moved", "bytes held", "FLOP", "ms", "absolute error"

#: A number stays on the line of its unit.
_NBSP = "\N{NO-BREAK SPACE}"

#: Name -> (value, unit); None where there is no such number at this setting.
Headline = Mapping[str, tuple[float | None, str]]

_SHOW: dict[str, Callable[[float], str]] = {
    MOVED: traffic,
    HELD: capacity,
    WORK: flops,
    TIME: duration,
    ERROR: scientific,
}


def differences(now: Headline, pinned: Headline) -> tuple[list[list[str]], list[list[str]]]:
    """[name, words] of what changed, in the order of now's, then pinned's; and of the rest.

    The rest are quantities that read as they were, and those that only one of both has: their names
    are told together.
    """
    text = labels("row")
    changed: list[list[str]] = []
    rest: dict[str, list[str]] = {"equal": [], "only_pinned": [], "only_now": []}
    for name in dict.fromkeys((*now, *pinned)):
        value, unit = now.get(name, (None, ""))
        before, unit_before = pinned.get(name, (None, ""))
        shown, other = _words(value, unit), _words(before, unit_before)
        if value is None or before is None:
            if value is not before:
                rest["only_pinned" if value is None else "only_now"].append(name)
        elif shown == other:
            rest["equal"].append(name)
        else:
            words = {"now": shown, "pinned": other}
            ratio = f", {ratio_words(value / before)}" if value and before else ""
            changed.append([name, text["changed"].format(**words).replace(" ", _NBSP) + ratio])
    return changed, [[text[key], "; ".join(names)] for key, names in rest.items() if names]


def ratio_words(ratio: float) -> str:
    """Three digits and a cross: "× 4.00", "× 0.0123", "× 128"."""
    if 0.1 <= ratio < 99.95:
        return f"×{_NBSP}{ratio:.{1 if ratio >= 9.995 else 2}f}"
    return f"×{_NBSP}{significant(ratio)}"


def _words(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    show = _SHOW.get(unit)
    return show(value) if show else f"{significant(value)} {unit}".strip()

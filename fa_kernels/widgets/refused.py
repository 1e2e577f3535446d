"""In words: which variants a device cannot launch at a point, and why."""

from __future__ import annotations

from fa_kernels.figures.point import Point, device_words
from fa_kernels.variants import VARIANTS
from fa_kernels.widgets.text import labels


def refused(point: Point) -> dict[str, str]:
    """Label of a variant that the point's device cannot launch with these tiles -> why."""
    dtype = point.problem.dtype
    found = {v.label: point.refusal(v) for v in VARIANTS.values() if dtype in v.dtypes}
    return {label: why for label, why in found.items() if why}


def limit_words(point: Point) -> str:
    """The same as a note: who, and every reason once; "" where all can be launched."""
    found = refused(point)
    if not found:
        return ""
    return str(labels("traffic_ways")["device_limit"]).format(
        device=device_words(point.device), names="; ".join(found),
        why=" ".join(dict.fromkeys(found.values())),
    )  # fmt: skip

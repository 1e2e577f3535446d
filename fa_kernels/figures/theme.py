"""Colours, markers, dashes and sizes of every figure. One meaning per colour, on light and dark.

Hues are Okabe-Ito's, safe for colour-blind readers, given out by family: blue goes into the chip
(Q, K, V), yellow and orange are scores (S, P), purple comes out (O, lse); vermillion and green are
our standard and flash algorithms; greys are other people's. Inside a family shade, marker and dash
differ: the family's last algorithm has the pure hue. A gradient is a darker shade of its tensor's
hue, and is hatched where bars show both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fa_kernels.measure.baselines import BASELINES
from fa_kernels.variants import VARIANTS, Variant

#: Nothing on screen is smaller than SMALL px.
SMALL, FONT, TITLE = 12, 13, 15
FONT_FAMILY = "'Liberation Sans', Arial, Helvetica, sans-serif"

INK, MUTED, GRID = "#1A1A1A", "#5F5F5E", "#E3E3E3"
PAPER = "#FFFFFF"

#: Tensors in the names of the traffic models.
TENSOR_COLOURS = {
    "q": "#0072B2",
    "k": "#56B4E9",
    "v": "#A9D9F5",
    "s": "#E69F00",
    "p": "#F0E442",
    "out": "#CC79A7",
    "lse": "#E8C4D8",
    "mask": "#A8957A",
    "d_out": "#9B4F7C",
    "dq": "#1C4E80",
    "dk": "#2F83B5",
    "dv": "#7CB0CE",
    "delta": "#B9A3D0",
    "dp": "#C9B832",
    "ds": "#B07800",
}
TENSOR_LABELS = {
    "q": "Q", "k": "K", "v": "V", "s": "S", "p": "P", "out": "O", "lse": "lse",
    "mask": "block mask", "d_out": "dO", "dq": "dQ", "dk": "dK", "dv": "dV", "delta": "δ",
    "dp": "dP", "ds": "dS",
}  # fmt: skip
#: Instructions by class (`cuda.sass`): violet computes, brown moves data, grey is the cost of both;
#: spills are an alarm.
INSTRUCTION_COLOURS = {
    "tensor": "#5B3794",
    "fp32": "#A68AD6",
    "mufu": "#CDB8EE",
    "convert": "#E6DAF7",
    "shared": "#8C6D31",
    "global": "#D9BC7A",
    "local": "#C62828",
    "integer": "#B3B3B3",
    "barrier": "#565656",
    "other": "#DEDEDE",
}
#: Words on a coloured bar, which keeps its colour on a dark page: so do they.
ON_LIGHT, ON_DARK = "#101010", "#FDFDFD"
#: Bars that are dark on either page.
DEEP = ("tensor", "shared", "local", "barrier")
#: What an SM has to share out among its blocks (`cuda.occupancy`).
RESOURCE_COLOURS = {
    "registers": "#4B5D78",
    "shared memory": INSTRUCTION_COLOURS["shared"],
    "threads": INSTRUCTION_COLOURS["integer"],
    "blocks": INSTRUCTION_COLOURS["other"],
}
#: Levels of memory, from the arithmetic outwards: shared memory keeps its colour.
LEVEL_COLOURS = {
    "registers": RESOURCE_COLOURS["registers"],
    "shared": RESOURCE_COLOURS["shared memory"],
    "l2": "#7F8FA6",
    "hbm": "#B7A98C",
}
#: What dropout dropped: dark beside P's yellow on either page, so the page must not swap it.
DROPPED = "#3B3B3C"
#: Gradients, which bars hatch.
GRADIENTS = ("d_out", "dq", "dk", "dv", "dp", "ds")
#: Parts of a kernel's shared memory, as `SmemLayout.parts` names them -> tensor.
PART_TENSORS = {
    "Q": "q", "K": "k", "V": "v", "S": "s", "P": "p", "m, l, α": "lse", "block mask": "mask",
}  # fmt: skip


@dataclass(frozen=True)
class _Look:
    """Line and marker on white and on dark, words on white and on dark, dash, marker."""

    line: str
    dark_line: str
    text: str
    dark_text: str
    dash: str
    marker: str


#: First word of a variant's name -> looks: the algorithms' from the last one back, then those of
#: the controls, then, from the first one on, those of the same algorithms on other units: a new
#: rung changes the look of none before it. "dot" is left out: it is the dash
#: of model bounds. "x" is left out: it marks what does not fit.
_FAMILIES = {
    "standard": (
        _Look("#D55E00", "#D55E00", "#B04D00", "#F08A3C", "dash", "square"),
        _Look("#8F3F12", "#FFB48A", "#8A3A0E", "#FFB890", "longdash", "cross"),
    ),
    "flash": (
        _Look("#009E73", "#009E73", "#00775A", "#2FC79A", "solid", "circle"),
        _Look("#00563F", "#8FE8CC", "#004F3A", "#9AEBD1", "longdash", "diamond"),
        _Look("#5E9B34", "#8CCB5E", "#47791F", "#96D36A", "dashdot", "hexagon"),
        _Look("#2F8F9D", "#5CC3D1", "#1F7582", "#6ACBD8", "dash", "star-square"),
        _Look("#8A9A1A", "#B9CC45", "#66730A", "#C3D658", "longdashdot", "pentagon"),
        _Look("#0F4C5C", "#9FDDF0", "#0B4250", "#A9E1F2", "solid", "triangle-ne"),
    ),
}
#: (on white, on dark), dash and marker of the peers in their order; those after the third have a
#: tint, so that no two are alike.
_PEER_GREYS = (
    ("#6E6E6E", "#9C9C9C"), ("#4A4A4A", "#C6C6C6"), ("#000000", "#FFFFFF"),
    ("#75674F", "#B5A88C"), ("#546675", "#9FB3C4"), ("#68587A", "#B7A6CB"),
    ("#7A4A52", "#CFA3AA"), ("#2B3648", "#D3DCEB"),
)  # fmt: skip
_PEER_DASHES = (
    "dashdot", "longdash", "longdashdot", "dash", "longdash", "dashdot", "longdashdot", "solid",
)  # fmt: skip
_PEER_MARKERS = (
    "triangle-up", "triangle-down", "star-diamond", "triangle-left", "triangle-right", "bowtie",
    "hexagram", "star",
)  # fmt: skip

_GLYPHS = {
    "square": "■", "circle": "●", "diamond": "◆", "hexagon": "⬢", "cross": "✚", "star-square": "✦",
    "pentagon": "⬟", "triangle-ne": "◥",
    "triangle-up": "▲", "triangle-down": "▼", "star-diamond": "✧", "triangle-left": "◄",
    "triangle-right": "►", "bowtie": "⧓", "hexagram": "✡", "star": "★",
}  # fmt: skip

#: Colour on white -> colour on a dark page; the page's script swaps them, colour by colour.
DARK: dict[str, str] = {
    "#0072B2": "#3D9BD9",
    TENSOR_COLOURS["dq"]: "#2C6CA8",
    TENSOR_COLOURS["d_out"]: "#B5658F",
    INK: "#ECECEC",
    MUTED: "#B4B4B4",
    GRID: "#3A3A3A",
    PAPER: "#111111",
    **{look.line: look.dark_line for family in _FAMILIES.values() for look in family},
    **{look.text: look.dark_text for family in _FAMILIES.values() for look in family},
    **dict(_PEER_GREYS),
}


@dataclass(frozen=True)
class Style:
    """How one variant or peer looks everywhere. `text_colour` is its colour for words."""

    label: str
    colour: str
    text_colour: str
    dash: str
    marker: str

    @property
    def named(self) -> str:
        """The label with its marker in front, for words beside a line: "● flash"."""
        return f"{_GLYPHS[self.marker]} {self.label}"

    @property
    def modelled(self) -> str:
        """The same beside the dotted line of a model's bound, which has no markers."""
        return f"┄ {self.label}"


def _our_style(variant: Variant) -> Style:
    family = variant.name.split("_")[0]
    looks = _FAMILIES.get(family, _FAMILIES["flash"])
    kin = [v for v in VARIANTS.values() if v.name.split("_")[0] == family]
    on_other_units = [v for v in kin if v.same_algorithm is not None]
    kin = [v for v in reversed(kin) if v.same_algorithm is None]
    kin.sort(key=lambda v: v.control_for is not None)
    kin += on_other_units
    look = looks[kin.index(variant) % len(looks)]
    return Style(variant.label, look.line, look.text, look.dash, look.marker)


def _peer_style(index: int, provider: str) -> Style:
    i = index % len(_PEER_GREYS)
    grey = _PEER_GREYS[i][0]
    label = provider.replace("_", " ").replace("cudnn", "cuDNN")
    return Style(label, grey, grey, _PEER_DASHES[i], _PEER_MARKERS[i])


#: Styles of our variants by variant name, and of peers by provider name.
STYLES: dict[str, Style] = {
    **{name: _our_style(variant) for name, variant in VARIANTS.items()},
    **{name: _peer_style(i, name) for i, name in enumerate(BASELINES)},
}


def style_of(name: str) -> Style:
    """The style of a variant or provider; one that is not known gets a grey of its own place."""
    return STYLES.get(name) or _peer_style(sum(map(ord, name)), name)


def font(size: int = FONT, colour: str = INK) -> dict[str, Any]:
    """A plotly font."""
    return {"size": max(size, SMALL), "color": colour}


def axis_title(quantity: str, unit: str = "") -> dict[str, Any]:
    """A plotly axis title that names its unit: "latency (ms)"."""
    text = f"{quantity} ({unit})" if unit else quantity
    return {"text": text, "standoff": 6, "font": font()}


def base_layout(height: int) -> dict[str, Any]:
    """What all figures share: fonts, background, no legend, no drag box, height in px."""
    return {
        "height": height,
        "font": {"family": FONT_FAMILY, **font()},
        "paper_bgcolor": PAPER,
        # Clear, so that the overlay that carries the words does not cover the panels.
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": False,
        "dragmode": False,
        "hovermode": "closest",
        "margin": {"l": 58, "r": 14, "t": 8, "b": 46},
    }


def axis(**options: Any) -> dict[str, Any]:
    """A plotly axis with our grid and ticks; `options` go on top."""
    return {
        "gridcolor": GRID,
        "zeroline": False,
        "tickfont": font(SMALL),
        "fixedrange": True,
        "automargin": False,
        # Else plotly measures every tick label against its neighbours: a tenth of a redraw.
        "ticklabeloverflow": "allow",
        **options,
    }


def hatched(
    colours: Sequence[str], shapes: Sequence[str], ink: str, size: int, solidity: float
) -> dict[str, Any]:
    """Colour and pattern of a bar trace's marker: hatched in `ink` where a shape is not "".

    Behind the hatching stands the bar's own colour; `bgcolor` is never seen. Without it plotly.js
    asks for the contrast of `colours`, which as a list it does not understand, and writes a warning
    to the console at every redraw.
    """
    pattern = {
        "shape": list(shapes), "fgcolor": ink, "size": size, "solidity": solidity,
        "fillmode": "overlay", "bgcolor": PAPER,
    }  # fmt: skip
    return {"color": list(colours), "pattern": pattern}


def swatch(colour: str, label: str) -> str:
    """A coloured square and a word, for a legend in running text."""
    return f'<span style="color:{colour}">■</span> {label}'

"""What a block mask loses: on recorded attention maps of a small trained language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fa_kernels.figures.map_quality import (
    ASKED,
    BEST,
    NAMES,
    Compared,
    Quality,
    curves,
    mask_for,
    share_of_blocks,
)
from fa_kernels.figures.sparse_quality import Picture, asked_words, sparse_quality_spec
from fa_kernels.measure.maps import AttentionMaps, MapsError, list_maps, load_maps
from fa_kernels.units import significant
from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.drawn_view import DrawnView
from fa_kernels.widgets.headline import Headline
from fa_kernels.widgets.text import html_table, labels


@dataclass(frozen=True)
class Shown:
    """What the controls show: a head by its place among those recorded, a mask, a density asked."""

    head: int
    pattern: str
    density: float


def head_words(maps: AttentionMaps, head: int) -> str:
    """ "layer 2, head 1", counted from 1."""
    text = labels("sparse_quality")
    return str(text["head_of"]).format(layer=maps.layers[head] + 1, head=maps.heads[head] + 1)


def takeaway(maps: AttentionMaps, shown: Shown, found: dict[str, tuple[Compared, ...]]) -> str:
    """What the chosen mask keeps and loses, and the mask that knows the map beside it."""
    text, place = labels("sparse_quality"), ASKED.index(shown.density)
    said = text["said"].format(
        head=head_words(maps, shown.head).capitalize(), name=text["masks"][shown.pattern],
        **_words(found[shown.pattern][place].own),
    )  # fmt: skip
    if shown.pattern != BEST:
        said += " " + text["said_best"].format(**_words(found[shown.pattern][place].best))
    return str(said)


def _words(one: Quality) -> dict[str, str]:
    return {
        "density": significant(one.density, 2), "mass": f"{100 * one.mass:.1f}",
        "error": significant(one.error, 2) if one.error > 1e-9 else "0",
    }  # fmt: skip


def quality_table(
    maps: AttentionMaps, shown: Shown, of_heads: Sequence[dict[str, tuple[Compared, ...]]]
) -> str:
    """Every mask at the density asked for, on this head and as a mean over all heads, as HTML."""
    text, place = labels("sparse_quality"), ASKED.index(shown.density)
    rows = []
    for name in NAMES:
        mine, all_ = of_heads[shown.head][name][place], [one[name][place] for one in of_heads]
        own, best = _words(mine.own), _words(mine.best)
        rows.append(
            [text["masks"][name], own["density"], f"{own['mass']} %", f"{best['mass']} %",
             own["error"], best["error"],
             f"{100 * sum(q.own.mass for q in all_) / len(all_):.1f} %",
             significant(sum(q.own.error for q in all_) / len(all_), 2)]
        )  # fmt: skip
    head = [text[name] for name in _COLUMNS]
    about = maps.about
    caption = text["caption"].format(
        name=maps.name, device=about["device"], text=about["text"]["source"], N=maps.seqlen,
        steps=about["training"]["steps"], loss=significant(about["training"]["held_out_loss"]),
        asked=asked_words(shown.density), heads=len(maps.q),
    )  # fmt: skip
    return html_table("sparse-quality", caption, head, rows, "falab-table falab-dense")


_COLUMNS = (
    "column_mask", "column_density", "column_mass", "column_mass_best", "column_error",
    "column_error_best", "column_mass_all", "column_error_all",
)  # fmt: skip


class SparseQuality(DrawnView):
    """Kept probability and error of every mask; `qualities` are those of the head shown."""

    section, mark = "sparse_quality", "sparse-quality"
    qualities: dict[str, tuple[Compared, ...]]
    drawn: Shown

    def __init__(
        self, shown: Shown, maps: AttentionMaps | None, folder: Path | None, why: str
    ) -> None:
        """`folder`: of the maps; `why`: what to say where there are none."""
        self.maps, self._folder, self._why, text = maps, folder, why, labels(self.section)
        count = len(maps.q) if maps else 1
        heads = [(head_words(maps, h) if maps else text["no_head"], h) for h in range(count)]
        self.head = Choice(text["head"], heads, shown.head)
        masks = [(text["masks"][name], name) for name in NAMES]
        self.pattern = Choice(text["mask"], masks, shown.pattern)
        asked = [(asked_words(s), s) for s in ASKED]
        self.density = Choice(text["density"], asked, shown.density)
        for control in (self.head, self.pattern, self.density):
            control.disabled = maps is None
        super().__init__(shown, (self.head, self.pattern, self.density))

    @property
    def setting(self) -> Shown:
        """What the controls show now."""
        return Shown(self.head.value, self.pattern.value, self.density.value)

    def headline(self) -> Headline:
        """Kept blocks, kept probability and error of the mask that is drawn."""
        if not self.qualities:
            return {}
        own = self.qualities[self.drawn.pattern][ASKED.index(self.drawn.density)].own
        return {
            self.text["axis_density"]: (100 * own.density, "%"),
            self.text["axis_mass"]: (100 * own.mass, "%"),
            self.text["axis_error"]: (100 * own.error if own.error > 1e-9 else 0.0, "%"),
        }

    def draw(self, setting: Shown, stamp: float) -> None:
        """Compute and show a setting."""
        maps, text = self.maps, self.text
        self.drawn = setting
        if maps is None:
            self.qualities = {}
            self.show(sparse_quality_spec({}, None, text), self._why, self._why, "", stamp)
            return
        of_heads = [curves(maps.name, self._folder, head) for head in range(len(maps.q))]
        found = self.qualities = of_heads[setting.head]
        p = maps.probabilities[setting.head]
        keep = mask_for(setting.pattern, p, setting.density)
        mask = f"{text['masks'][setting.pattern]}, {asked_words(setting.density)}"
        picture = Picture(head_words(maps, setting.head), mask, share_of_blocks(p), keep)
        said = takeaway(maps, setting, found)
        alt = text["figure"].format(sentence=said)
        table = quality_table(maps, setting, of_heads)
        self.show(sparse_quality_spec(found, picture, text), alt, said, table, stamp)


def sparse_quality(
    head: int = 0, pattern: str = "local", density: float = 0.25, *, folder: Path | None = None
) -> SparseQuality:
    """What every pattern keeps of recorded attention maps, and how wrong out becomes.

    Eight heads of a small language model over 512 bytes of text that it was not trained on; blocks
    of 16 × 16, causal. The best mask knows the map: no other keeps more with as many blocks per
    row.

    Args:
        head: which of the recorded heads, from 0.
        pattern: a pattern, or "best".
        density: that is asked of a pattern: one of the stops of the control.
        folder: of the maps; default: data/maps.

    Raises:
        ValueError: a bad value; value, limit and remedy.
    """
    maps, why = _newest(folder)
    count = len(maps.q) if maps else 1
    for name, value, known in (
        ("head", head, tuple(range(count))), ("pattern", pattern, NAMES),
        ("density", density, ASKED),
    ):  # fmt: skip
        if value not in known:
            offered = ", ".join(map(str, known))
            raise ValueError(f"{name} = {value!r} is not offered here: use one of {offered}.")
    return SparseQuality(Shown(head, pattern, density), maps, folder, why)


def _newest(folder: Path | None) -> tuple[AttentionMaps | None, str]:
    """The newest maps that can be read, or why there are none."""
    why = str(labels("sparse_quality")["said_nothing"])
    for name in list_maps(folder):
        try:
            return load_maps(name, folder), ""
        except MapsError as error:
            why = str(error)
    return None, why

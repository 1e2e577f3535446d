"""What an exported figure says about itself: caption, parameters, recorded runs, papers.

Figures carry this in `layout.meta` ({"caption", "parameters", "run_ids", "papers"}), or the caller
says it. What neither says is read off the figure: off the sentence, the setting and the table of
the widget it stands in, off its own words. `read_from` tells which; nothing is guessed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import html
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fa_kernels.figures.papers import PAPERS, checked_papers, papers_shown
from fa_kernels.figures.recorded import read_run
from fa_kernels.measure.about import describe_checkout
from fa_kernels.measure.maps import MapsError, list_maps, load_maps
from fa_kernels.measure.records import Run

_SAID, _META = "the call", "layout.meta"
#: A run's id among other words.
_RUN_ID = re.compile(r"(?<![\w-])\d{8}-[a-z0-9]+(?:-[a-z0-9]+)+(?![\w-])")


@dataclass(frozen=True)
class Shown:
    """A figure to be exported, and what stands beside it where it is a widget.

    `spec` is {"data", "layout"}; `sentence` the takeaway, `alt` the text alternative, `setting`
    what the controls show, `beside` the words of table and status; empty for a bare figure.
    `pinned` is what a reader pinned behind it: {"caption", "call"}.
    """

    spec: dict[str, Any]
    sentence: str = ""
    alt: str = ""
    setting: Any = None
    beside: str = ""
    least_width: int | None = None
    pinned: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, figure: Any) -> Shown:
        """A plotly figure, its spec as a dict, or a widget of this package that shows one.

        One that is a `Shown` already is left as it is.

        Raises:
            TypeError: none of these. ValueError: a widget whose figure belongs to an earlier
                setting, or whose figure is empty.
        """
        if isinstance(figure, cls):
            return figure
        if isinstance(figure, dict) and "data" in figure:
            return cls(figure)
        if hasattr(figure, "to_plotly_json"):
            return cls(figure.to_plotly_json())
        live = figure if hasattr(figure, "spec") else getattr(figure, "figure", None)
        inside = [one for one in getattr(figure, "children", ()) if hasattr(one, "spec")]
        if live is None and len(inside) == 1:
            return cls.of(inside[0])  # a box of a figure and its words, as fa.o_drift() returns
        spec = getattr(live, "spec", None)
        if not isinstance(spec, dict):
            raise TypeError(
                f"fig is a {type(figure).__name__}, which holds no figure: give a plotly figure, "
                "its dict, or a widget such as fa.ladder() returns."
            )
        if getattr(live, "stale", False):
            raise ValueError(
                "The figure still shows an earlier setting, because the controls' cannot be "
                "computed: choose one that can, then export."
            )
        controls = getattr(figure, "controls", None)
        setting = getattr(figure, "setting", None) or getattr(controls, "settings", None)
        beside = " ".join(_words_of(getattr(figure, name, None)) for name in ("table", "status"))
        sentence = _words_of(getattr(figure, "sentence", None))
        alt, least = str(getattr(live, "alt", "")), getattr(live, "least_width", None)
        pinned = getattr(live, "pinned_said", {})
        return cls(spec, sentence, alt, setting, beside, least, pinned)

    @property
    def meta(self) -> Mapping[str, Any]:
        """What the figure says about itself."""
        meta = self.spec.get("layout", {}).get("meta")
        return meta if isinstance(meta, Mapping) else {}

    @property
    def words(self) -> list[str]:
        """Every text in the figure, without its markup."""
        found = (plain(text) for text in _texts(self.spec))
        return list(dict.fromkeys(text for text in found if text))

    @property
    def series(self) -> list[str]:
        """The names of its traces."""
        return [str(trace.get("name") or "") for trace in self.spec["data"]]


@dataclass(frozen=True)
class Provenance:
    """What the sidecar says of a figure, and in `read_from` where each part was found."""

    caption: str
    alt: str
    parameters: dict[str, Any]
    run_ids: list[str]
    papers: list[str]
    read_from: dict[str, str]
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        shown: Shown,
        caption: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        run_ids: Sequence[str] | None = None,
        papers: Sequence[str] | None = None,
    ) -> Provenance:
        """What the caller said, else what the figure says, else what can be read off it.

        Raises:
            ValueError: a paper that is not known.
        """
        meta = shown.meta
        caption, by_caption = _first(
            (caption, _SAID),
            (meta.get("caption"), _META),
            (shown.sentence, "the sentence above the figure"),
            (shown.alt, "the figure's text alternative"),
            (_title(shown.spec), "the figure's title"),
        )
        parameters, by_parameters = _first(
            (parameters, _SAID),
            (meta.get("parameters"), _META),
            (_as_dict(shown.setting), "the widget's controls"),
        )
        beside = _RUN_ID.findall(f"{shown.sentence} {shown.alt} {shown.beside}")
        if words := shown.pinned.get("caption"):
            caption = f"{caption} {words}"
            parameters = {**(parameters or {}), "pinned": shown.pinned["call"]}
        run_ids, by_runs = _first(
            (run_ids, _SAID),
            (meta.get("run_ids"), _META),
            ([*_RUN_ID.findall("\n".join(shown.words)), *beside], "run ids in the words"),
        )
        papers, by_papers = _first(
            (papers, _SAID),
            (meta.get("papers"), _META),
            (papers_shown(shown.series, shown.words), "the algorithms that the figure names"),
        )
        notes = []
        if not caption:
            notes.append("The figure has no sentence, text alternative or title: no caption.")
        if not parameters:
            notes.append("The figure does not say its parameters.")
        if not run_ids:
            notes.append(
                "The figure names no recorded run: what it shows is modelled, counted, live or "
                "somebody else's; its words say which, if anything does."
            )
        found = {
            "caption": by_caption, "parameters": by_parameters, "sources": by_runs,
            "papers": by_papers,
        }  # fmt: skip
        return cls(
            str(caption or ""), shown.alt, dict(parameters or {}),
            list(dict.fromkeys(run_ids or ())), checked_papers(papers or ()), found, notes,
        )  # fmt: skip

    def sources(self, root: Path | None = None) -> list[dict[str, Any]]:
        """What each run says about itself, all of it; of one that cannot be read, why."""
        found = []
        for run_id in self.run_ids:
            run = read_run(run_id, root)
            about = dict(run.about) if isinstance(run, Run) else {"run_id": run_id, "missing": run}
            if run_id in list_maps():  # q, k and v of a model: not rows, but recorded like them
                with contextlib.suppress(MapsError):
                    about = {"run_id": run_id, **load_maps(run_id).about}
            found.append(about)
        return found

    @property
    def bibtex(self) -> dict[str, str]:
        """Name -> entry of the papers."""
        return {name: PAPERS[name] for name in self.papers}


def package() -> dict[str, Any]:
    """Version and commit of the code that draws, and how to cite it."""
    return {
        "name": "fa_kernels",
        "version": version(),
        **describe_checkout(),
        "bibtex": suite_bibtex(),
    }


def version() -> str:
    """The package's version."""
    # By name, because the package itself stands above this layer.
    return str(sys.modules["fa_kernels"].__version__)


def suite_bibtex() -> str:
    """How to cite the suite: the entry of CITATION.cff, which a test compares."""
    return (
        "@software{flashattentionlab,\n"
        "  title = {{FlashAttention Lab}},\n"
        "  author = {{FlashAttention Lab contributors}},\n"
        f"  version = {{{version()}}},\n"
        "  license = {BSD-3-Clause}\n"
        "}"
    )


def plain(markup: str) -> str:
    """Words without tags and entities, on one line."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", markup)).split())


def _words_of(widget: Any) -> str:
    value = getattr(widget, "value", "")
    return plain(value) if isinstance(value, str) else ""


def _texts(node: Any, key: str = "") -> Iterator[str]:
    """Strings under the keys that hold words: text, ticktext, and titles given as words alone."""
    if isinstance(node, str):
        if key in ("text", "ticktext", "title"):
            yield node
    elif isinstance(node, Mapping):
        for name, value in node.items():
            if name not in ("meta", "template"):
                yield from _texts(value, name)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _texts(value, key)


def _title(spec: Mapping[str, Any]) -> str:
    title = spec.get("layout", {}).get("title")
    text = title.get("text") if isinstance(title, Mapping) else title
    return plain(str(text or ""))


def _as_dict(setting: Any) -> dict[str, Any]:
    if isinstance(setting, str) and setting:
        return {"setting": setting}
    if isinstance(setting, Mapping):
        return dict(setting)
    if dataclasses.is_dataclass(setting) and not isinstance(setting, type):
        return {f.name: getattr(setting, f.name) for f in dataclasses.fields(setting)}
    return {}


def _first(*found: tuple[Any, str]) -> tuple[Any, str]:
    """The first that is there, and where it was; what the caller says counts even if empty."""
    for value, where in found:
        if value or (value is not None and where == _SAID):
            return value, where
    return None, "nowhere"

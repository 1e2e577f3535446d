"""A rung of the ladder to read: what it changes, where that stands, and its whole source."""

from __future__ import annotations

from collections.abc import Collection
from html import escape
from typing import Any

import ipywidgets

from fa_kernels.cuda.kernel_file import KernelFile, files_of, read_kernel
from fa_kernels.figures.rungs import in_rung_order, name_of, number_of
from fa_kernels.variants import Variant, find_variant
from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.fold import Fold
from fa_kernels.widgets.rung_ideas import ideas_of, place_of
from fa_kernels.widgets.text import labels, takeaway_html

#: Lines shown before and after the marked ones.
_AROUND = 2


class RungReader(ipywidgets.VBox):
    """Header, marked lines and source of one rung; its headers can be read, too.

    Where lines of its backward are marked, `pass_` chooses that.

    `sentence` says what the rung is, `about` what it changes; `excerpts` are the lines in which
    that stands; `source` holds the chosen file in full.
    """

    def __init__(self, variant: Variant, pass_: str = "fwd") -> None:
        self.text = labels("rung_reader")
        rungs = [(name_of(one), one.name) for one in in_rung_order()]
        self.rung = Choice(self.text["rung"], rungs, variant.name)
        names = kernels_of(variant)
        passes = [(self.text["passes"][name], name) for name in names]
        self.pass_ = Choice(self.text["pass"], passes, pass_)
        self.pass_.disabled = len(names) == 1
        first = f"{names[pass_]}.cu"
        self.file = Choice(self.text["file"], [(first, first)], first)
        self.sentence, self.about = ipywidgets.HTML(), ipywidgets.HTML()
        self.excerpts = ipywidgets.HTML(layout=ipywidgets.Layout(width="calc(100% - 4px)"))
        self.excerpts.add_class("falab-excerpts")
        self.source = Fold(opened=False)
        self._show_rung()
        self.rung.observe(lambda change: self._offer_passes(), "value")
        self.pass_.observe(lambda change: self._show_rung(), "value")
        self.file.observe(lambda change: self._show_file(), "value")
        row = ipywidgets.Layout(flex_flow="row wrap", width="100%")
        controls = ipywidgets.HBox([self.rung, self.pass_, self.file], layout=row)
        super().__init__([self.sentence, controls, self.about, self.excerpts, self.source])

    @property
    def variant(self) -> Variant:
        """The algorithm whose rung is shown."""
        return find_variant(self.rung.value)

    def _offer_passes(self) -> None:
        names = kernels_of(self.variant)
        chosen = self.pass_.value if self.pass_.value in names else "fwd"
        passes = [(self.text["passes"][name], name) for name in names]
        self.pass_.offer(passes, chosen)
        self.pass_.disabled = len(names) == 1
        self._show_rung()

    def _show_rung(self) -> None:
        variant = self.variant
        shown = kernels_of(variant)[self.pass_.value]
        files = files_of(shown)
        kernel = files[0]
        before, _ = kernel.changed_from
        name = "said" if before.isdigit() else "said_first"
        if shown != variant.kernel:
            name = "said_backward"
        said = self.text[name].format(
            number=number_of(variant), what=kernel.said(""), before=before
        )
        self.sentence.value = takeaway_html("rung", escape(said))
        self.about.value = self._about(kernel)
        marked, self._marked = [], {}
        for idea in ideas_of(shown):
            place = place_of(idea, files)
            if place is not None:
                self._marked.setdefault(place[0].name, set()).update(place[1])
                marked.append(self._excerpt(self.text["ideas"][idea.key], *place))
        self.excerpts.value = "".join(marked) or f"<p>{escape(self.text['nothing_marked'])}</p>"
        self.file.offer([(file.name, file.name) for file in files], kernel.name)
        self._show_file()

    #: Marked lines by file.
    _marked: dict[str, set[int]]

    def _about(self, kernel: KernelFile) -> str:
        """What the header says of the change and of its limits."""
        before, change = kernel.changed_from
        parts = []
        if before.isdigit():
            parts.append((self.text["changed"].format(before=before), change))
        if verdict := kernel.said("Limits and verdict"):
            parts.append((self.text["verdict"], verdict))
        lines = "".join(f"<dt>{escape(head)}</dt><dd>{escape(said)}</dd>" for head, said in parts)
        return f'<dl class="falab-note falab-about">{lines}</dl>'

    def _excerpt(self, words: str, file: KernelFile, lines: range) -> str:
        shown = range(max(0, lines.start - _AROUND), min(len(file.lines), lines.stop + _AROUND))
        head = f"{escape(words)} <code>{file.name}:{lines.start + 1}</code>"
        return f'<div class="falab-idea"><p>{head}</p>{source_html(file, shown, lines)}</div>'

    def _show_file(self) -> None:
        file = read_kernel(self.file.value)
        marked = self._marked.get(file.name, set())
        self.source.summary = self.text["whole"].format(
            name=file.name, lines=len(file.lines), marked=len(marked)
        )
        self.source.value = source_html(file, range(len(file.lines)), marked)


def kernels_of(variant: Variant) -> dict[str, str]:
    """Kernels by pass: the forward's, and the backward's if lines of it are marked."""
    backward = variant.backward
    found = {"fwd": variant.kernel}
    if backward is not None and ideas_of(backward.kernel):
        found["bwd"] = backward.kernel
    return found


def source_html(file: KernelFile, shown: range, marked: Collection[int]) -> str:
    """Lines of a file with their numbers, the marked ones highlighted, as HTML."""
    rows = []
    for i in shown:
        css = "falab-line falab-marked" if i in marked else "falab-line"
        number = f'<span class="falab-line-number">{i + 1:4} </span>'
        rows.append(f'<span class="{css}">{number}{escape(file.lines[i]) or " "}</span>')
    return f'<pre class="falab-source" data-fa-source="{file.name}">{"".join(rows)}</pre>'


def rung_reader(variant: str = "flash_q_outer", *, pass_: str = "fwd") -> RungReader:
    """Read a rung: what its header says it changes, the lines in which that stands, its source.

    Args:
        variant: the rung shown first, by the name of its algorithm.
        pass_: "fwd", or "bwd" where lines of its backward are marked.

    Raises:
        ValueError: no such variant or pass, or a variant that shares its kernel with another, as a
            control.
    """
    chosen: Any = find_variant(variant)
    if chosen.control_for is not None:
        raise ValueError(
            f"variant = {variant!r} has no rung of its own: use {chosen.control_for!r}, whose "
            "kernel it is built from."
        )
    if pass_ not in kernels_of(chosen):
        offered = ", ".join(kernels_of(chosen))
        raise ValueError(f"pass_ = {pass_!r} of {variant!r} has no marked lines: use {offered}.")
    return RungReader(chosen, pass_)

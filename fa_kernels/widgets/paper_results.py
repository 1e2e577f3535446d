"""The papers' tables and figures: printed beside this GPU's, with a verdict in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from fa_kernels.device import Device
from fa_kernels.device import device as find_device
from fa_kernels.figures.paper_recorded import devices_with_numbers, paper_numbers
from fa_kernels.figures.paper_results import dot_name, line_name, name_of_series, paper_spec
from fa_kernels.measure.paper_bytes import BY_HARDWARE, LEVELS
from fa_kernels.measure.paper_figures import PASS_WORDS
from fa_kernels.measure.paper_results import (
    RESULTS,
    Dot,
    Line,
    Result,
    all_verdicts,
    result,
    version_words,
)
from fa_kernels.measure.verdict import Verdict
from fa_kernels.session import Session, in_use
from fa_kernels.units import significant
from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.drawn_view import DrawnView
from fa_kernels.widgets.explorer_point import default_device
from fa_kernels.widgets.text import html_table, labels, text_table


@dataclass(frozen=True)
class Shown:
    """Which table or figure, and the GPU beside it."""

    result: str
    device: str


#: Letters from which on a table of many verdicts shows the first part of a sentence alone.
FOLDED_FROM = 200


def about_words(verdict: Verdict) -> str:
    """ "FlashAttention, fig. 2 left, version 2022-06": without the number at arXiv."""
    about, _, version = verdict.about.partition(", version ")
    paper, _, rest = about.partition(" (arXiv")
    words = paper + rest.partition(")")[2]
    return f"{words}, {version_words(version)}" if version else words


def takeaway(verdicts: Sequence[Verdict]) -> str:
    """The first verdict with the first thing that it says; of the others the word alone."""
    first, *others = verdicts
    said = [f"{_of(first)}: {first.word}. {_capital(first.why.partition(';')[0].rstrip('.'))}."]
    said += [f"{_of(other)}: {other.word}." for other in others]
    return " ".join(dict.fromkeys(said))


def _of(verdict: Verdict) -> str:
    version = verdict.about.partition(", version ")[2]
    # Every table of the appendix is of one version.
    dated = f", {version_words(version)}" if "fig." in verdict.about and version else ""
    return _capital(f"{verdict.quantity}{dated}")


def _capital(text: str) -> str:
    return "HBM" + text[3:] if text.startswith("hbm") else text[:1].upper() + text[1:]


def verdict_table(name: str, caption: str, verdicts: Sequence[Verdict]) -> str:
    """Verdicts with their whole sentences, as HTML."""
    head, *body = verdict_cells(verdicts)
    return html_table(name, caption, head, body, "falab-table falab-dense falab-words")


def verdict_cells(verdicts: Sequence[Verdict]) -> list[list[str]]:
    """A row of heads, then one row per verdict."""
    text = labels("paper_results")
    rows = [[text[name] for name in ("column_about", "quantity", "verdict", "why")]]
    return rows + [[about_words(v), v.quantity, v.word, v.why] for v in verdicts]


def result_table(found: Result, device: Device) -> str:
    """Printed, this GPU's and their ratio, and under them the verdicts, as HTML."""
    text = labels("paper_results")
    verdicts = verdict_table("paper-sentences", text["sentences"], found.verdicts)
    if not (found.dots or found.lines):
        return verdicts
    several = [dots_cells(found.dots)] if found.dots else [lines_cells(found), beside_cells(found)]
    if found.lines and found.moved:
        several = []  # the table of bytes has them all
    runs = text["recorded"].format(runs=", ".join(found.runs)) if found.runs else text["no_run"]
    caption = text["caption"].format(
        title=found.title, unit=found.unit, device=device.name, source=runs,
        printed=text["printed_on"].format(gpu=found.gpu) if found.gpu else text["no_print"],
    )  # fmt: skip
    tables: list[str] = []
    for head, body in (cells for cells in several if cells[0]):
        about = text["beside"] if tables else caption
        tables.append(
            html_table("paper-result", about, head, body, "falab-table falab-dense falab-below")
        )
    if found.moved:
        head, body = moved_cells(found)
        style = "falab-table falab-dense falab-below"
        tables.append(
            html_table(
                "paper-bytes",
                text["moved"].format(device=device.name, source=runs),
                head,
                body,
                style,
            )
        )
    return "".join([*tables, verdicts])


def moved_cells(found: Result) -> tuple[list[str], list[list[str]]]:
    """Heads, and a row per call and pass: its bytes in GB, each under its own name."""
    text = labels("paper_results")
    over_density = found.axis == "s"
    head = [text["what"], text["axis_density"] if over_density else text["pass"]]
    body = []
    for one in found.moved:
        where = f"{one.kept:.3g}" if over_density else PASS_WORDS[one.pass_]
        cells = [name_of_series(one.series), where]
        for level in LEVELS:
            absent = text["not_read"] if level in BY_HARDWARE else ""
            value = one.by_level.get(level)
            cells.append(absent if value is None else significant(value / 1e9))
        body.append(cells)
    return [*head, *LEVELS.values()], body


def lines_cells(found: Result) -> tuple[list[str], list[list[str]]]:
    """Heads, and a row per N: each algorithm as printed, as computed here, and their ratio."""
    text = labels("paper_results")
    columns: list[tuple[str, Line, Line | None]] = []  # head, and what it is held against
    for printed in (line for line in found.lines if line.published):
        columns.append((text["column_printed"].format(name=printed.algorithm), printed, None))
        for mine in found.lines:
            if mine.algorithm == printed.algorithm and not mine.published:
                head = text["column_ours"].format(name=line_name(mine))
                columns += [(head, mine, None), (text["ratio"], mine, printed)]
    return _over(found, columns)


def beside_cells(found: Result) -> tuple[list[str], list[list[str]]]:
    """Heads, and a row per N or density: what was measured beside the published algorithms."""
    ours = [line for line in found.lines if not line.published and not line.algorithm]
    name = labels("paper_results")["column_ours"]
    return _over(found, [(name.format(name=line_name(line)), line, None) for line in ours])


def _over(
    found: Result, columns: Sequence[tuple[str, Line, Line | None]]
) -> tuple[list[str], list[list[str]]]:
    if not columns:
        return [], []
    text = labels("paper_results")
    head = [text["axis_seqlen"] if found.axis == "N" else text["axis_density"]]
    shown = [line for _, line, _ in columns]
    xs = sorted({x for line in shown for x in (*line.by_x, *dict(line.absent))})
    body = []
    for x in xs:
        cells = [f"{x:.3g}" if found.axis == "s" else f"{x:.0f}"]
        for _, line, against in columns:
            value, absent = line.by_x.get(x), dict(line.absent).get(x, "")
            if against is None:
                cells.append(absent if value is None else significant(value))
                continue
            theirs = against.by_x.get(x)
            cells.append(significant(value / theirs) if value and theirs else "")
        body.append(cells)
    return [*head, *(name for name, _, _ in columns)], body


def dots_cells(dots: Sequence[Dot]) -> tuple[list[str], list[list[str]]]:
    """Heads, and a row per number."""
    text = labels("paper_results")
    head = [text[name] for name in ("what", "printed", "ours", "by", "ratio")]
    body = []
    for dot in dots:
        ratio = significant(dot.ours / dot.printed) if dot.ours and dot.printed else ""
        by = name_of_series(dot.series) if dot.ours else ""
        cells = [dot_name(dot), _number(dot.printed), _number(dot.ours), by, ratio]
        body.append(cells)
    return head, body


def _number(value: float | None) -> str:
    return "" if value is None else significant(value)


class PaperResults(DrawnView):
    """One table or figure; `result` is what is shown."""

    section, mark = "paper_results", "paper"
    pins = False  # another table is another figure
    result: Result

    def __init__(self, shown: Shown, offered: Sequence[Device], root: Path | None) -> None:
        """`offered`: GPUs to choose from; `root` holds the runs."""
        self.root, text = root, labels(self.section)
        self.choice = Choice(text["result"], [(key, key) for key in RESULTS], shown.result)
        gpus = [(sheet.name, sheet.slug) for sheet in offered]
        self.gpu = Choice(text["gpu"], gpus, shown.device)
        self.gpu.disabled = len(gpus) < 2
        super().__init__(shown, (self.choice, self.gpu))

    @property
    def setting(self) -> Shown:
        """What the controls show now."""
        return Shown(self.choice.value, self.gpu.value)

    def draw(self, setting: Shown, stamp: float) -> None:
        """Compute and show a setting."""
        sheet = find_device(setting.device)
        found = result(setting.result, paper_numbers(sheet, self.root), sheet)
        said = takeaway(found.verdicts)
        alt = self.text["figure"].format(sentence=said)
        spec = paper_spec(found, sheet.name, self.text)
        self.show(spec, alt, said, result_table(found, sheet), stamp)
        self.result = found


def paper_results(
    result: str = "table 9", *, device: str | None = None, session: Session | None = None
) -> PaperResults:
    """A published table or figure beside recorded runs of one GPU, with a verdict in words.

    Printed numbers are hollow and joined by no line, this GPU's are filled. Where no run holds a
    number, its place stays empty.

    Args:
        result: "table 9" ... "table 21", "fig. 2 left", "fig. 2 left, bytes", "fig. 2 right",
            "fig. 2 right, bytes", "FA2 figs. 4-7", "FA3 figs. 5-7".
        device: slug of the GPU whose runs are shown; default: the session's.
        session: what `fa.session` returned; default: the current one.

    Raises:
        ValueError: no such table, figure or device; TypeError: `session` is not one.
    """
    if result not in RESULTS:
        raise ValueError(f"result = {result!r} is not known: use one of {', '.join(RESULTS)}.")
    used = in_use(session)
    sheet = find_device(default_device(used) if device is None else device)
    offered = {one.slug: one for one in (*devices_with_numbers(used.root), sheet)}
    return PaperResults(Shown(result, sheet.slug), list(offered.values()), used.root)


@dataclass(frozen=True)
class PaperVerdicts:
    """Every verdict, shown as a table."""

    verdicts: Sequence[Verdict]
    device: Device

    def cells(self) -> list[list[str]]:
        """The table as text: a row of heads, then one row per verdict."""
        return verdict_cells(self.verdicts)

    def caption(self) -> str:
        """How many verdicts there are of each kind, the GPU and the runs."""
        text = labels("paper_results")
        counts: dict[str, int] = {}
        for one in self.verdicts:
            counts[one.word] = counts.get(one.word, 0) + 1
        runs = tuple(dict.fromkeys(run for one in self.verdicts for run in one.runs))
        source = text["recorded"].format(runs=", ".join(runs)) if runs else text["no_run"]
        counted = ", ".join(f"{count} × {word}" for word, count in counts.items())
        return str(text["verdicts"]).format(counted=counted, device=self.device.name, source=source)

    def __str__(self) -> str:
        return text_table(self.caption(), self.cells())

    def _repr_html_(self) -> str:
        shown = verdict_table("paper-verdicts", self.caption(), self.verdicts)
        for why in {one.why for one in self.verdicts if len(one.why) > FOLDED_FROM}:
            shown = shown.replace(f">{escape(why)}<", f">{_folded(why)}<")
        return shown


def _folded(why: str) -> str:
    """A long sentence by its first part, the rest to be opened."""
    first, _, rest = why.partition("; ")
    if not rest:
        return escape(why)
    head = f"<summary>{escape(first)} …</summary>"
    return f'<details class="falab-fold">{head}{escape(rest)}</details>'


def paper_verdicts(
    about: str = "", *, device: str | None = None, session: Session | None = None
) -> PaperVerdicts:
    """Every table and figure of the papers that we hold numbers of, with its verdict.

    Args:
        about: only what is said of this, e.g. "block-sparse".
        others: as `paper_results`, errors too.

    Raises:
        ValueError: no verdict says anything of `about`.
    """
    used = in_use(session)
    sheet = find_device(default_device(used) if device is None else device)
    verdicts = all_verdicts(paper_numbers(sheet, used.root), sheet)
    return PaperVerdicts(_saying(about, verdicts) if about else verdicts, sheet)


def _saying(about: str, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Verdicts with this in their quantity, and of others the parts of their sentence that have it.

    Raises:
        ValueError: there is none.
    """
    found = []
    for one in verdicts:
        parts = [part for part in one.why.rstrip(".").split("; ") if about in part]
        if about in one.quantity:
            found.append(one)
        elif parts:
            found.append(replace(one, why="; ".join(parts) + "."))
    if not found:
        raise ValueError(f"no verdict says anything of {about!r}: try 'block-sparse', or leave it.")
    return found

"""Every claim of the two documents that the suite began with, and what is found of it here."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any
from urllib.parse import quote

import ipywidgets

from fa_kernels.device import Device
from fa_kernels.device import device as find_device
from fa_kernels.measure.claim_tests.evidence import Evidence
from fa_kernels.measure.claim_tests.judged import FAILS, HOLDS, LIMITED, MEANINGS, UNTESTED
from fa_kernels.measure.claim_tests.registry import Answer, answers
from fa_kernels.measure.claims import SEEDS, Claim
from fa_kernels.session import Session, in_use
from fa_kernels.widgets.choice import Choice
from fa_kernels.widgets.explorer_point import default_device
from fa_kernels.widgets.fold import Fold
from fa_kernels.widgets.text import labels, takeaway_html

#: No filter, and claims that no notebook tests.
ALL, NO_NOTEBOOK = "all", "none"
#: Beside each word, so that a verdict is seen at a glance and not by its colour alone.
SIGNS = {HOLDS: "✓", LIMITED: "◐", FAILS: "✗", UNTESTED: "–"}
_ACRONYMS = {"hbm", "sram", "kv"}
_CSS = {HOLDS: "holds", LIMITED: "limited", FAILS: "fails", UNTESTED: "untested"}


def _notebook_of(claim: Claim) -> str:
    return claim.notebook or NO_NOTEBOOK


class Claims(ipywidgets.VBox):
    """A table of claims, filtered by document, verdict and notebook.

    `shown` are the answers in the table; `sentence` counts them.
    """

    shown: Sequence[Answer]

    def __init__(
        self, found: Sequence[Answer], device: Device, notebook: str, verdict: str, seed: str
    ) -> None:
        self.text, self.answers, self.device = labels("claims"), tuple(found), device
        names = self.text["seeds"]
        seeds = [(names[ALL], ALL), *((names[name], name) for name in SEEDS)]
        words = [(self.text["all"], ALL), *((word, word) for word in MEANINGS)]
        self.seed = Choice(self.text["seed"], seeds, seed)
        self.verdict = Choice(self.text["verdict"], words, verdict)
        self.notebook = Choice(self.text["notebook"], _notebooks(found, self.text), notebook)
        controls = (self.seed, self.verdict, self.notebook)
        for control in controls:
            control.observe(lambda change: self.draw(), "value")
        self.sentence, self.table = ipywidgets.HTML(), ipywidgets.HTML()
        self.table.add_class("falab-claims-place")
        meanings = "".join(
            f"<dt>{_sign(word)} {escape(word)}</dt><dd>{escape(meaning)}</dd>"
            for word, meaning in MEANINGS.items()
        )
        note = f'<dl class="falab-note falab-about">{meanings}</dl>'
        self.meanings = Fold(summary=self.text["meanings"], value=note)
        self.draw()
        row = ipywidgets.Layout(flex_flow="row wrap", width="100%")
        shown = ipywidgets.HBox(list(controls), layout=row)
        super().__init__([self.sentence, shown, self.table, self.meanings])

    def draw(self) -> None:
        """Show the claims that the controls ask for."""
        self.shown = [answer for answer in self.answers if self._is_wanted(answer)]
        said = escape(counted(self.shown))
        self.sentence.value = takeaway_html("claims", said)
        self.table.value = table_html(self.shown, self.device)

    def _is_wanted(self, answer: Answer) -> bool:
        return (
            self.seed.value in (ALL, *answer.claim.seeds)
            and self.verdict.value in (ALL, answer.judged.word)
            and self.notebook.value in (ALL, _notebook_of(answer.claim))
        )


def _notebooks(found: Sequence[Answer], text: dict[str, Any]) -> list[tuple[str, str]]:
    names = sorted({_notebook_of(answer.claim) for answer in found} - {NO_NOTEBOOK})
    said = [(_title(name), name) for name in names]
    return [(text["all"], ALL), *said, (text["no_notebook"], NO_NOTEBOOK)]


def _title(notebook: str) -> str:
    """ "04 HBM traffic" of "04_hbm_traffic"."""
    words = notebook.split("_")
    return " ".join(word.upper() if word in _ACRONYMS else word for word in words)


def counted(shown: Sequence[Answer]) -> str:
    """How many of these claims have which verdict, in one sentence."""
    text = labels("claims")
    if not shown:
        return str(text["said_none"])
    parts = []
    for word in MEANINGS:
        if count := sum(answer.judged.word == word for answer in shown):
            words = text["counts_one" if count == 1 else "counts"]
            parts.append(f"{count} {words[_CSS[word]]}")
    name = "said_one" if len(shown) == 1 else "said"
    return str(text[name]).format(count=len(shown), parts=", ".join(parts))


def _sign(word: str) -> str:
    return f'<span class="falab-verdict-{_CSS[word]}" aria-hidden="true">{SIGNS[word]}</span>'


def table_html(shown: Sequence[Answer], device: Device) -> str:
    """The claims as an HTML table that scrolls in itself, by keys too."""
    text = labels("claims")
    heads = "".join(
        f'<th scope="col">{escape(text[name])}</th>'
        for name in ("column_verdict", "column_claim", "column_found")
    )
    rows = "".join(map(_row, shown))
    caption = escape(text["caption"].format(device=device.name))
    # Lab's command mode would take the arrow keys, and go to the next cell.
    return (
        f'<div class="falab-claims" role="region" tabindex="0" aria-label="{caption}" '
        f'data-lm-suppress-shortcuts="true"><table class="falab-table" data-fa-table="claims">'
        f"<caption>{caption}</caption><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody>"
        "</table></div>"
    )


def _row(answer: Answer) -> str:
    claim, judged = answer.claim, answer.judged
    text = labels("claims")
    seed = escape(text["seeds"][claim.seed])
    said = (
        f'<th scope="row">{escape(claim.claim)}<span class="falab-claim-said">'
        f'<q lang="ja">{escape(claim.claim_ja)}</q> ({seed})</span></th>'
    )
    where = _where(claim)
    source = escape(text["source"].format(source=judged.source)) if judged.source else ""
    below = " · ".join(part for part in (where, source) if part)
    found = f'<td>{escape(judged.why)}<span class="falab-claim-said">{below}</span></td>'
    verdict = f"<td>{_sign(judged.word)} {escape(judged.word)}</td>"
    return f'<tr data-fa-claim="{claim.id}">{verdict}{said}{found}</tr>'


def _where(claim: Claim) -> str:
    """A link to the notebook and the heading of the cell that tests a claim."""
    text = labels("claims")
    if not claim.notebook:
        return ""
    if not claim.cell:
        return escape(text["to_come"].format(notebook=_title(claim.notebook)))
    # Lab's own form of a heading's address.
    place = f"{claim.notebook}.ipynb#{quote(claim.cell.replace(' ', '-'))}"
    words = text["where"].format(notebook=_title(claim.notebook), cell=claim.cell)
    return f'<a href="{escape(place)}" target="_blank">{escape(words)}</a>'


def _checked(name: str, value: object, known: Sequence[str]) -> str:
    if value not in known:
        raise ValueError(f"{name} = {value!r} is not known: use one of {', '.join(known)}.")
    return str(value)


def claims(
    notebook: str = ALL,
    verdict: str = ALL,
    seed: str = ALL,
    *,
    device: str | None = None,
    session: Session | None = None,
) -> Claims:
    """The claims of the two documents, each with a verdict and the numbers it follows from.

    A verdict counts comparisons with recorded runs of one GPU, with the models, with what NumPy
    executes and with data sheets (data/paper/claims.csv, `fa_kernels.measure.claim_tests`).

    Args:
        notebook: only claims that this notebook tests, "04_hbm_traffic"; "none": that none does.
        verdict: only these: "holds", "holds with a limit", "does not hold as stated" or
            "not tested here".
        seed: only those of one document, "explainer" or "paper notes".
        device: slug of the GPU whose runs are used; default: the session's.
        session: what `fa.session` returned; default: the current one.

    Raises:
        ValueError: a bad value, or a list of claims that cannot be read; value and remedy.
        TypeError: `session` is not one.
    """
    used = in_use(session)
    sheet = find_device(default_device(used) if device is None else device)
    found = answers(Evidence.on(sheet, used.root))
    notebooks = [name for _, name in _notebooks(found, labels("claims"))]
    return Claims(
        found,
        sheet,
        _checked("notebook", notebook, notebooks),
        _checked("verdict", verdict, (ALL, *MEANINGS)),
        _checked("seed", seed, (ALL, *SEEDS)),
    )

"""Markdown to HTML, with formulas as MathML: browsers draw it without a script or a network."""

from __future__ import annotations

import html
import re
from functools import cache
from typing import Any

import mistune
from latex2mathml.converter import convert

#: x_r and x^1.99 in the sentences of figures, which are plain text.
_SUB, _SUP = re.compile(r"\b([A-Za-z])_([a-z])\b"), re.compile(r"\b([A-Za-z])\^(-?[0-9.]+[0-9])")

_BETWEEN = re.compile(r"(?:(?<=[.?])|(?<=[.?]\)))\s+(?=[A-Z(]|[a-z]+:)")
#: A number and its unit stay on one line.
_UNIT = re.compile(r"(?<=\d) (?=(?:%|[KMGTµm]i?[Bs]\b|TFLOP|GFLOP|FLOP|ms\b|times\b))")


_UNITS = {
    "KiB": "kibibytes", "MiB": "mebibytes", "GiB": "gibibytes", "TB": "terabytes",
    "GB": "gigabytes", "MB": "megabytes", "ms": "milliseconds", "µs": "microseconds",
}  # fmt: skip
#: What a speaker says of a figure's sentence: no asides in parentheses, and signs as words.
_ASIDE = re.compile(r"\s\((?:[^()]|\([^()]*\))*\)")
_SAID = (
    (re.compile(r"(?<=\d)×"), " times"),
    (re.compile(r" × "), " by "),
    (re.compile(r" %"), " percent"),
    (re.compile(r"(?<=\d )(?:TB|GB|MB)/s"), lambda m: f"{_UNITS[m[0][:2]]} a second"),
    (re.compile(r"(?<=\d )(?:[KMG]iB|[TGM]B|ms|µs)\b"), lambda m: _UNITS[m[0]]),
)  # fmt: skip


def aloud(sentence: str) -> str:
    """What a figure says of itself, as one says it: "3.2 times", "64 kibibytes", no asides."""
    text = _ASIDE.sub("", sentence)
    for sign, words in _SAID:
        text = sign.sub(words, text)
    return text


def mathml(latex: str, block: bool = False) -> str:
    """A formula as a <math> element; the LaTeX goes along as its text alternative."""
    made = convert(latex.strip(), display="block" if block else "inline")
    return made.replace("<math ", f'<math alttext="{html.escape(latex.strip())}" ', 1)


class _Renderer(mistune.HTMLRenderer):
    """mistune's, with MathML where its own plug-in leaves LaTeX for a script."""

    def inline_math(self, text: str) -> str:
        return mathml(text)

    def block_math(self, text: str) -> str:
        return f'<div class="fa-formula">{mathml(text, block=True)}</div>\n'


@cache
def _markdown() -> Any:
    return mistune.create_markdown(renderer=_Renderer(escape=True), plugins=["math", "table"])


def to_html(markdown: str) -> str:
    """Blocks of Markdown, $...$ and $$ on lines of their own included."""
    return str(_markdown()(markdown))


def inline_html(markdown: str) -> str:
    """One line of Markdown, without the paragraph around it."""
    return to_html(markdown).strip().removeprefix("<p>").removesuffix("</p>")


def sentence_html(sentence: str) -> str:
    """A figure's sentence, escaped, with its indices and powers set as such."""
    text = _SUB.sub(r"\1<sub>\2</sub>", html.escape(sentence))
    return _UNIT.sub("\N{NO-BREAK SPACE}", _SUP.sub(r"\1<sup>\2</sup>", text))


def message_html(said: str) -> str:
    """Sentences of a figure over it on a slide: the first is the message, the others stand back."""
    first, *more = sentences(said) or [""]
    rest = f' <span class="fa-more">{sentence_html(" ".join(more))}</span>' if more else ""
    return f"{sentence_html(first)}{rest}"


def as_markdown(sentence: str) -> str:
    """The same for a text in Markdown: indices and powers become formulas."""
    return _SUP.sub(r"$\1^{\2}$", _SUB.sub(r"$\1_\2$", sentence))


def sentences(text: str) -> list[str]:
    """A text cut behind full stops and question marks, brackets closed, where another begins."""
    return [part for part in _BETWEEN.split(text.strip()) if part]


def chosen(text: str, which: str) -> str:
    """The first sentences ("1"), a range ("2-3") or single ones ("1 3"), joined.

    Raises:
        ValueError: one that the text does not have.
    """
    parts, found = sentences(text), []
    for word in which.split():
        low, _, high = word.partition("-")
        if not word.replace("-", "").isdigit() or not 1 <= int(low) <= int(high or low):
            raise ValueError(f"sentence {which!r} is not like `1`, `1-2` or `1 3`.")
        if int(high or low) > len(parts):
            raise ValueError(f"sentence {which!r}: there are only {len(parts)}: {text!r}")
        found += parts[int(low) - 1 : int(high or low)]
    return " ".join(found)

"""Split-KV of one row as a widget, and decode held against attention."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fa_kernels as fa
from fa_kernels.figures.provenance import Provenance, Shown
from fa_kernels.session import Session
from fa_kernels.widgets import decode_check, split_kv


def plain(text: str) -> str:
    return html.unescape(re.sub("<[^>]*>", "", text))


def test_the_sentence_follows_the_number_of_parts() -> None:
    widget = fa.split_kv()
    assert plain(widget.sentence.value).startswith("120 keys in 4 parts: part 1 weighs most")
    assert "The merge is exact" in plain(widget.sentence.value)
    widget.num_splits.value = 12
    said = plain(widget.sentence.value)
    assert "in 12 parts" in said and "Without a single key: 4 of them" in said
    assert widget.table.value.count("<tr>") == 1 + 12 + 2
    widget.length.type("16")
    assert plain(widget.sentence.value).startswith("16 keys in 12 parts")


def test_the_last_two_rows_of_the_table_are_equal() -> None:
    rows = re.findall("<tr>(.*?)</tr>", fa.split_kv(7, 200, seed=3).table.value)
    merged, whole = (re.findall("<td[^>]*>(.*?)</td>", row) for row in rows[-2:])
    assert merged[0] == "merged" and whole[0] == "unsplit"
    assert (merged[4], merged[5], merged[6]) == (whole[4], whole[5], whole[6])


def test_a_wrong_merge_is_not_called_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    real = split_kv.SplitRow.of

    def wrong(*arguments: Any) -> Any:
        row = real(*arguments)
        return replace(row, out=row.out + 1e-6)

    monkeypatch.setattr(split_kv.SplitRow, "of", wrong)
    said = plain(fa.split_kv().sentence.value)
    assert "more than the limit" in said and "exact" not in said


def test_the_equation_is_native_mathml() -> None:
    found = [child for child in fa.split_kv().children if "data-fa-equation" in str(
        getattr(child, "value", ""))]  # fmt: skip
    (equation,) = found
    assert equation.value.startswith("<math") and "<munder>" in equation.value


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_splits": 0}, "num_splits = 0"),
        ({"keys": 2000}, "keys = 2000"),
        ({"seed": -1}, "seed"),
    ],
)
def test_what_cannot_be_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fa.split_kv(**changed)
    with pytest.raises(ValueError, match="tokens = 3"):
        fa.check_decode(3)


def test_an_exported_figure_says_its_parameters() -> None:
    found = Provenance.of(Shown.of(fa.split_kv(3, 64, seed=2)))
    assert found.parameters == {"num_splits": 3, "keys": 64, "seed": 2}


@pytest.mark.parametrize("tokens", [4, 16, 17, 300])
def test_decode_is_the_last_row_of_attention(bare: Session, tokens: int) -> None:
    check = fa.check_decode(tokens, session=bare)
    assert check.ok and [line.name for line in check.lines] == [
        "plain", "splits", "paged", "appended"
    ]  # fmt: skip
    assert {line.backend for line in check.lines} == {"numpy"}
    assert all(0 <= line.difference <= line.limit for line in check.lines)
    assert "All are equal" in str(check) and 'data-fa-table="decode-check"' in check._repr_html_()


def test_on_a_gpu_half_precision_is_checked_too(
    bare: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = decode_check.decode

    def on_the_cpu(*arguments: Any, backend: str, **options: Any) -> Any:
        return real(*arguments, backend="numpy", **options)

    monkeypatch.setattr(decode_check, "decode", on_the_cpu)
    check = fa.check_decode(session=replace(bare, backend="cuda"))
    assert check.ok and [line.backend for line in check.lines] == ["numpy"] * 4 + ["cuda"] * 4
    assert all(line.limit > 1e-5 for line in check.lines[4:])

    def refused(*arguments: Any, backend: str, **options: Any) -> Any:
        if backend == "cuda":
            raise NotImplementedError("not verified")
        return real(*arguments, backend=backend, **options)

    monkeypatch.setattr(decode_check, "decode", refused)
    check = fa.check_decode(session=replace(bare, backend="cuda"))
    assert check.ok and "not verified" in str(check)


def test_a_wrong_step_is_seen(bare: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    real = decode_check.decode
    monkeypatch.setattr(decode_check, "decode", lambda *a, **o: np.asarray(real(*a, **o)) * 1.001)
    check = fa.check_decode(session=bare)
    assert not check.ok and "Not all are equal" in check.caption()

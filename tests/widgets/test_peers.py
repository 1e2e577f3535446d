"""Any peers: the sentence follows from the runs, and what was not timed is said in words."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

import fa_kernels as fa
from fa_kernels.session import Session, session
from fa_kernels.widgets.text import labels
from tests.figures.synthetic_peers import (
    FLEX_ID,
    NO_FP16,
    PEERS_ID,
    write_flex_run,
    write_peers_run,
)

TEXT = labels("peers")


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Session:
    root: Path = tmp_path_factory.mktemp("peers")
    write_peers_run(root)
    write_flex_run(root)
    return session("numpy", root=root)


def plain(html: str) -> str:
    return unescape(re.sub("<[^>]*>", "", html))


def test_the_sentence_is_computed_run_by_run(timed: Session) -> None:
    widget = fa.peers(64, session=timed)
    said = plain(widget.sentence.value)
    assert said.startswith(f"In run {PEERS_ID} rung 05 is faster at 3 of 3 N than torch flash")
    assert "No such run has rung 06." in said
    assert "torch flash (1.25× to 1.25×)" in said
    assert "slower at 3 of 3 N than torch cuDNN (0.75× to 0.75×)" in said
    assert "faster at 0, slower at 0, level at 3 of 3 N beside fa3 (1.00× to 1.00×)" in said
    assert f"In run {FLEX_ID} rung 05 is slower at 1 of 1 N than flex (0.97× to 0.97×)" in said
    assert "Not timed" not in said and widget.figure.alt.startswith(said)


def test_the_table_has_every_number_its_run_and_its_kernel(timed: Session) -> None:
    table = fa.peers(64, session=timed).table.value
    assert table.count("<tr>") == 1 + 3 * 4 + 2
    assert table.count("<td>…peers</td>") == 12 and table.count("<td>…flex</td>") == 2
    assert "flash_fwd_kernel, and 1 more" in table and "<td>FwdSm90</td>" in table
    assert "05_flash_mma, tiles 128 × 128" in table and f"<td>{TEXT['unknown']}</td>" in table
    words = plain(table)
    assert "FLOP: 4 N² d per head" in words and f"recorded {PEERS_ID} and {FLEX_ID}" in words
    # In full, below the table: what the cell above has shortened.
    _, _, below = table.partition("</table>")
    assert "pytorch_flash::flash_fwd_kernel&lt;Traits&lt;64, 128&gt;" in below
    assert "FlashAttention-3" in below


def test_controls_move_figure_sentence_and_convention(timed: Session) -> None:
    widget = fa.peers(64, session=timed)
    spec = widget.figure.spec
    widget.head_dim.value = 128
    assert "d = 128, bf16, no mask" in widget.table.value
    widget.causal.value = True
    assert "N (N + 1) / 2 of N²" in plain(widget.table.value) and widget.figure.spec != spec
    assert widget.curve("fa3").rates[0].row.causal == "bottom_right"
    assert widget.curve("flash_mma", FLEX_ID).rates[0].row.seqlen_q == 4096
    assert widget.curve("flex").rates == () and len(widget.curve("flex", FLEX_ID).rates) == 1


def test_a_refusal_is_said_and_stands_in_the_table(timed: Session) -> None:
    widget = fa.peers(64, dtype="fp16", session=timed)
    said = plain(widget.sentence.value)
    assert f"Not timed: fa3 (refused: {NO_FP16}; N = 2048, 4096, 16384)." in said
    assert widget.table.value.count("<td>refused</td>") == 3
    assert widget.table.value.count(f">{NO_FP16}</td>") == 3
    assert widget.curve("fa3").rates == ()


def test_without_a_run_it_says_which_command_makes_one(bare: Session) -> None:
    widget = fa.peers(session=bare)
    said = plain(widget.sentence.value)
    assert "No run of kind peers on this device" in said
    assert 'make measure ARGS="--speed --pass fwd --peers' in said
    assert "not recorded" in widget.table.value and widget.figure.spec["data"] == []
    assert widget.curve("flash_mma").rates == () and "<details" not in widget.table.value


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"d": 256}, "d = 256 was not recorded beside any peers: use 64, 128"),
        ({"causal": "top_left"}, "causal = 'top_left' was not recorded .* use False, True"),
        ({"dtype": "fp32"}, "dtype = 'fp32' was not recorded beside any peers: use fp16, bf16"),
    ],
)
def test_what_was_not_recorded_is_refused(
    timed: Session, arguments: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        fa.peers(**{"d": 64, **arguments}, session=timed)


def test_what_notebook_05_says_of_the_recorded_runs() -> None:
    """The runs of this checkout: Hopper's own kernels lead at long N, and names say so."""
    used = session("numpy")
    for d in (64, 128):
        for causal in (False, True):
            shown = fa.peers(d, causal, session=used)
            rung, flash = shown.curve("flash_mma"), shown.curve("torch_flash")
            for name in ("torch_cudnn", "fa3"):
                for rate in (rate for rate in shown.curve(name).rates if rate.seqlen >= 4096):
                    below = [curve.at(rate.seqlen) for curve in (rung, flash)]
                    assert all(one and one.tflops < rate.tflops for one in below)
            details = {
                name: shown.curve(name).rates[-1].row.detail
                for name in ("torch_cudnn", "fa3", "torch_math")
            }
            assert "wgmma" in details["torch_cudnn"] and "Sm90" in details["fa3"]
            assert "ffma" in details["torch_math"] and "f32f32" in details["torch_math"]
    assert "Not timed: fa3 (refused" in fa.peers(dtype="fp16", session=used).sentence.value


def test_flexattention_loses_its_lead_with_a_causal_mask() -> None:
    """As notebook 05 says, at the d that it shows."""
    plain_run, causal = (
        next(r for r in fa.peers(128, mask, session=session("numpy")).runs if "flex" in r.run_id)
        .standings(head_dim=128, causal="bottom_right" if mask else None, dtype="bfloat16")
        for mask in (False, True)
    )  # fmt: skip
    (lead,), (gone,) = ([s for s in found if s.peer == "flex"] for found in (plain_run, causal))
    assert lead.slower == len(lead.ratios) and gone.slower == 0

"""Table 21 to the cell, and each verdict: what it says of the papers, and of other numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fa_kernels.measure.paper import PRINTED, PublishedRow, load_paper, select
from fa_kernels.measure.verdict import (
    CLOSE,
    DIFFERS,
    FACTOR,
    NOT_COMPARED,
    REPRODUCES,
    TREND,
    Compared,
    Verdict,
    call_flops,
    call_traffic,
    fit_exponent,
    flash_memory_bytes,
    judge,
    left_flops,
    left_hbm,
    middle_hbm,
    pytorch_memory_bytes,
    table_21,
    verdicts,
)
from fa_kernels.problem import AttentionProblem
from fa_kernels.units import MIB

#: FlashAttention, table 21 (no dropout, no mask; B = 16, H = 8, d = 64, fp16), as printed, in MB.
PYTORCH_MB = (36, 104, 336, 1184, 4416, 17024)
FLASH_MB = (22, 44, 104, 209, 418, 836, 1672, 3344, 6688, 13376)


def problem(seqlen: int) -> AttentionProblem:
    return AttentionProblem(16, 8, seqlen, seqlen, 64, "float16")


def of(where: str, metric: str, version: str | None = None) -> tuple[PublishedRow, ...]:
    rows = select(load_paper(), where=where, metric=metric)
    return rows if version is None else select(rows, version=version)


def scaled(rows: Sequence[PublishedRow], *factors: float) -> tuple[PublishedRow, ...]:
    return tuple(
        replace(row, value=(row.value or 0) * factor)
        for row, factor in zip(rows, factors, strict=True)
    )


@pytest.mark.parametrize(
    ("seqlen", "megabytes"), [(128 * 2**i, mb) for i, mb in enumerate(PYTORCH_MB)]
)
def test_table_21_pytorch(seqlen: int, megabytes: int) -> None:
    assert pytorch_memory_bytes(problem(seqlen)) // MIB == megabytes
    row, megatron = (
        select(of("table 21", "memory"), algorithm=name, seqlen=seqlen)
        for name in ("PyTorch", "Megatron")
    )
    assert [r.value for r in row] == [megabytes]
    # What Megatron prints is the same, as far as it goes.
    assert [r.value for r in megatron] in ([megabytes], [])


@pytest.mark.parametrize(
    ("seqlen", "megabytes"), [(128 * 2**i, mb) for i, mb in enumerate(FLASH_MB)]
)
def test_table_21_flashattention(seqlen: int, megabytes: int) -> None:
    assert flash_memory_bytes(problem(seqlen)) // MIB == megabytes
    rows = select(of("table 21", "memory"), algorithm="FlashAttention", seqlen=seqlen)
    assert [r.value for r in rows] == [megabytes]


@pytest.mark.parametrize(
    "other",
    [
        AttentionProblem(1, 2, 128, 256, 64),
        AttentionProblem(1, 2, 128, 128, 64, "float32"),
        AttentionProblem(1, 2, 128, 128, 64, nheads_kv=1),
    ],
)
def test_table_21_is_of_one_kind_of_call(other: AttentionProblem) -> None:
    for form in (pytorch_memory_bytes, flash_memory_bytes):
        with pytest.raises(ValueError, match="table 21 is of 16-bit q, k and v .* Use float16"):
            form(other)


def test_the_verdict_on_table_21() -> None:
    verdict = table_21(load_paper())
    assert verdict.word == REPRODUCES
    assert len(verdict.points) == len(PYTORCH_MB) + len(FLASH_MB) == 16
    assert "equal 16 of 16 cells" in verdict.why


@pytest.mark.parametrize(("value", "word"), [(105.0, TREND), (1040.0, DIFFERS)])
def test_one_other_cell_changes_the_verdict_on_table_21(value: float, word: str) -> None:
    cell = select(of("table 21", "memory"), algorithm="FlashAttention", seqlen=512)[0]
    verdict = table_21([replace(r, value=value) if r == cell else r for r in load_paper()])
    assert verdict.word == word
    first = f"the first that differs is FlashAttention, N = 512: 104 MiB, printed {value:.0f};"
    assert f"equal 15 of 16 cells; {first}" in verdict.why


def test_the_flops_of_fig_2_left() -> None:
    """Matrix products of the captioned shape: 825 and 962 GFLOP, where 66.6 and 75.2 is printed."""
    rows = of("fig. 2 left", "flops")
    pairs = 64 * 16 * 1024 * 1024
    assert [call_flops(row) for row in rows] == [6 * 2 * 64 * pairs, 7 * 2 * 64 * pairs]
    verdict = left_flops(rows)
    assert verdict.word == DIFFERS
    assert "825 GFLOP for standard (printed 66.6, ratio 12.4)" in verdict.why
    assert "962 GFLOP for FlashAttention (printed 75.2, ratio 12.8)" in verdict.why
    assert "FlashAttention over standard is 1.17, printed 1.13" in verdict.why
    # A batch of 5 would have reproduced: 64 is what the caption says.
    assert left_flops([replace(row, batch=5) for row in rows]).word == REPRODUCES


@pytest.mark.parametrize(("passes", "products"), [("fwd", (2, 2)), ("bwd", (4, 5))])
def test_products_of_one_pass(passes: str, products: tuple[int, int]) -> None:
    rows = [replace(row, pass_=passes) for row in of("fig. 2 left", "flops")]
    each = 2 * 64 * 64 * 16 * 1024 * 1024
    assert [call_flops(row) // each for row in rows] == list(products)


@pytest.mark.parametrize(
    ("version", "ratios", "passes"),
    [
        (
            "2022-06",
            (0.626, 0.932),
            "as large as 7 passes over an N x N matrix (unfused scale, mask and dropout ",
        ),
        (
            "another",
            (0.715, 0.932),
            "as large as 4.7 passes over an N x N matrix (unfused scale and mask w",
        ),
    ],
)
def test_the_bytes_of_fig_2_left(version: str, ratios: tuple[float, float], passes: str) -> None:
    verdict = left_hbm(of("fig. 2 left", "hbm", version))
    assert verdict.about.endswith(f"fig. 2 left, version {version}")
    assert [p.ours for p in verdict.points] == [
        pytest.approx(25.2, abs=0.05),
        pytest.approx(4.10, abs=0.005),
    ]
    assert [p.ratio for p in verdict.points] == [pytest.approx(r, abs=0.001) for r in ratios]
    assert verdict.word == TREND
    assert passes in verdict.why
    assert left_hbm(scaled([p.row for p in verdict.points], 0.65, 1.0)).word != DIFFERS
    assert left_hbm(scaled([p.row for p in verdict.points], 3.0, 1.0)).word == DIFFERS


def test_the_bytes_of_fig_2_middle() -> None:
    verdict = middle_hbm(load_paper())
    wanted = [6.98, 3.62, 1.95, 1.11]
    assert [p.ours for p in verdict.points] == [pytest.approx(gb, abs=0.005) for gb in wanted]
    assert [p.ratio for p in verdict.points] == [None] * 4
    assert verdict.word == NOT_COMPARED
    assert "falls as B_c^-0.89" in verdict.why and "were not transcribed" in verdict.why


@pytest.mark.parametrize(
    ("factors", "word"),
    [((1, 1, 1, 1), REPRODUCES), ((1.5, 1.5, 1.5, 1.5), TREND), ((1, 1, 1, 3), DIFFERS)],
)
def test_values_of_fig_2_middle_would_be_judged(factors: Sequence[float], word: str) -> None:
    points = middle_hbm(load_paper()).points
    rows = [
        replace(p.row, value=factor * p.ours, how=PRINTED)
        for p, factor in zip(points, factors, strict=True)
    ]
    verdict = middle_hbm(rows)
    assert verdict.word == word and "transcribed" not in verdict.why


def test_all_verdicts_in_order() -> None:
    found = verdicts()
    assert [(v.quantity, v.word) for v in found] == [
        ("memory", REPRODUCES),
        ("flops", DIFFERS),
        ("hbm", TREND),
        ("hbm", TREND),
        ("hbm", NOT_COMPARED),
    ]
    for verdict in found:
        assert isinstance(verdict, Verdict) and verdict.points
        assert verdict.why.endswith(".") and ". " not in verdict.why  # one sentence
        assert {p.row.source for p in verdict.points} == {verdict.about}


@pytest.mark.parametrize("metric", ["memory", "flops", "hbm"])
def test_missing_rows_are_named(metric: str) -> None:
    rows = [row for row in load_paper() if row.metric != metric]
    with pytest.raises(ValueError, match="there are no published rows of (table 21|fig. 2 left)"):
        verdicts(rows)


def test_what_has_no_model_is_named() -> None:
    row = of("fig. 2 left", "hbm")[0]
    for of_call in (call_flops, call_traffic):
        with pytest.raises(ValueError, match="there is no model of 'Megatron'; choose one of"):
            of_call(replace(row, algorithm="Megatron"))
        with pytest.raises(ValueError, match="does not say which pass it is of"):
            of_call(replace(row, pass_=""))


# -- rules -----------------------------------------------------------------------------------------


def compared(*pairs: tuple[float, float]) -> list[Compared]:
    row = of("fig. 2 left", "hbm")[0]
    return [Compared(replace(row, value=value), ours) for ours, value in pairs]


@pytest.mark.parametrize(
    ("pairs", "word"),
    [
        (((1.0, 1.0), (2.0, 2.0)), REPRODUCES),
        (((1.0 + 0.99 * CLOSE, 1.0), (2.0, 2.0)), REPRODUCES),
        (((1.0 + 1.01 * CLOSE, 1.0), (2.0, 2.0)), TREND),
        (((0.99 * FACTOR, 1.0), (4.0, 2.1)), TREND),
        (((1.01 * FACTOR, 1.0), (4.0, 2.1)), DIFFERS),
        (((1.0, 1.01 * FACTOR), (4.0, 4.1)), DIFFERS),
        (((1.5, 1.0), (1.4, 1.2)), DIFFERS),  # near, but the other one is smaller
    ],
)
def test_the_rule(pairs: Sequence[tuple[float, float]], word: str) -> None:
    assert judge(compared(*pairs)) == word


def test_nothing_is_judged_without_numbers() -> None:
    row = replace(of("fig. 2 left", "hbm")[0], value=None)
    for points in ([], [Compared(row, 1.0)], [*compared((1.0, 1.0)), Compared(row, 1.0)]):
        with pytest.raises(ValueError, match="no ratio to judge"):
            judge(points)


@pytest.mark.parametrize("exponent", [-1.0, 0.0, 0.5, 2.0])
def test_fit_exponent_finds_a_power(exponent: float) -> None:
    points = [(x, 3.0 * x**exponent) for x in (64.0, 128.0, 256.0, 1000.0)]
    assert fit_exponent(points) == pytest.approx(exponent, abs=1e-12)


def test_fit_exponent_of_the_printed_memory() -> None:
    """Table 21: standard attention on its way to N², FlashAttention linear."""
    rows = [row for row in of("table 21", "memory") if (row.seqlen or 0) >= 1024]
    slopes = {
        name: fit_exponent((r.seqlen or 0, r.value or 0) for r in select(rows, algorithm=name))
        for name in ("PyTorch", "FlashAttention")
    }
    assert slopes["PyTorch"] == pytest.approx(1.92, abs=0.01)
    assert slopes["FlashAttention"] == pytest.approx(1.0, abs=0.001)


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ([], "fewer than two different x"),
        ([(1.0, 2.0), (1.0, 3.0)], "fewer than two different x"),
        ([(1.0, 2.0), (2.0, 0.0)], "not above 0"),
        ([(-1.0, 2.0), (2.0, 1.0)], "not above 0"),
    ],
)
def test_fit_exponent_refuses(points: list[tuple[float, float]], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        fit_exponent(points)

"""One formatter for every number on screen: binary capacities, decimal traffic, no exponents."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_kernels import units
from tests.reference.problems import bounded


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (1, "1"), (4.567, "4.57"), (12.34, "12.3"), (0.01234, "0.0123"),
        (1234.4, "1234"), (65536, "65536"), (-2.5, "-2.5"), (0.00001234, "0.0000123"),
        (1e-12, "0.000000000001"), (3.14159e-13, "0.000000000000314"), (999.7, "1000"),
    ],
)  # fmt: skip
def test_significant(value: float, text: str) -> None:
    assert units.significant(value) == text


@given(st.floats(1e-15, 1e15), st.integers(2, 6))
@bounded
def test_significant_keeps_its_digits_and_never_an_exponent(value: float, digits: int) -> None:
    text = units.significant(value, digits)
    assert "e" not in text
    assert float(text) == pytest.approx(value, rel=0.51 * 10.0 ** (1 - digits))


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"), (1, "1 B"), (1023, "1023 B"), (1024, "1 KiB"), (48 * 1024, "48 KiB"),
        (227 * 1024, "227 KiB"), (1023 * 1024, "1023 KiB"), (1023.9 * 1024, "1 MiB"),
        (1536, "1.5 KiB"), (80 * 1024**3, "80 GiB"), (4096 * 1024**3, "4096 GiB"),
    ],
)  # fmt: skip
def test_capacity(nbytes: float, text: str) -> None:
    assert units.capacity(nbytes) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(12, "12 B"), (999, "999 B"), (999.6, "1 kB"), (1500, "1.5 kB"), (4.1e9, "4.1 GB"),
     (999.9e6, "1 GB"), (6.98e9, "6.98 GB"), (2.5e12, "2.5 TB")],
)  # fmt: skip
def test_traffic(nbytes: float, text: str) -> None:
    assert units.traffic(nbytes) == text


def test_flops() -> None:
    assert units.flops(6.9e10) == "69 GFLOP"
    assert units.flops(825e9) == "825 GFLOP"
    assert units.flops(1.1e15) == "1.1 PFLOP"
    assert units.flops(512) == "512 FLOP"


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0 µs"), (0.0123, "12.3 µs"), (0.1, "0.1 ms"), (1.5, "1.5 ms"), (999.4, "999 ms"),
     (999.6, "1 s"), (3000.0, "3 s")],
)  # fmt: skip
def test_duration(milliseconds: float, text: str) -> None:
    assert units.duration(milliseconds) == text

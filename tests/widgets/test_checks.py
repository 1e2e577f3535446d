"""Claim, then check: predicted, counted in NumPy and counted in the kernel, side by side."""

from __future__ import annotations

from typing import Any

import pytest

from fa_kernels.patterns import EVEN_PATTERNS
from fa_kernels.session import Session
from fa_kernels.variants import ALGORITHMS, VARIANTS
from fa_kernels.widgets.checks import check_traffic
from fa_kernels.widgets.story import story
from fa_kernels.widgets.suite import live_figures
from tests.figures.synthetic import RUN_ID


def test_recorded_point(recorded: Session) -> None:
    check = check_traffic(256, 64, 32, session=recorded)
    assert check.ok
    assert list(check.lines) == list(ALGORITHMS)
    assert {line.ratio for line in check.lines.values()} == {1.0}
    assert {line.kernel_ratio for line in check.lines.values()} == {1.0}
    assert RUN_ID in str(check)
    assert RUN_ID in check._repr_html_()


def test_point_that_was_not_recorded(recorded: Session) -> None:
    check = check_traffic(113, 20, 16, dtype="fp32", session=recorded)
    assert check.ok
    assert "not recorded at this point" in str(check)


@pytest.mark.parametrize("pattern", EVEN_PATTERNS)
def test_block_masks_are_counted_too(bare: Session, pattern: str) -> None:
    dense = check_traffic(500, 20, 8, session=bare)
    check = check_traffic(500, 20, 8, pattern=pattern, density=1 / 4, session=bare)
    assert check.ok
    for name, line in check.lines.items():
        fewer = line.counted_bytes < dense.lines[name].counted_bytes
        assert fewer == VARIANTS[name].block_sparse, name
    assert f"{pattern} blocks 20 × " in str(check)
    assert "block-sparse flash" in str(check)
    assert "dense standard" in str(check)


def test_recorded_masks_are_found(recorded: Session) -> None:
    check = check_traffic(1024, 64, 64, pattern="local", density=1 / 2, session=recorded)
    assert check.ok
    assert {line.kernel_ratio for line in check.lines.values()} == {1.0}


def test_without_a_run(bare: Session) -> None:
    check = check_traffic(64, 16, 16, session=bare)
    assert check.ok
    assert "no recorded run" in str(check)
    assert str(check).splitlines()[0].startswith("HBM bytes of one forward pass: B = 256, H = 128")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"N": 65536}, "N = 65536 would keep NumPy busy"),
        ({"d": 0}, "d = 0 is out of range"),
        ({"pattern": "plaid"}, "pattern = 'plaid' is not known: use one of dense, local"),
        ({"pattern": "local", "density": 2}, "density = 2 is out of range"),
    ],
)
def test_bad_values(bare: Session, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_traffic(session=bare, **options)


def test_story_shows_the_run(recorded: Session, bare: Session) -> None:
    assert "Recorded: standard" in live_figures(story(session=recorded))[0].alt
    assert "Lower bound of the model" in live_figures(story(session=bare))[0].alt
    assert "M" not in live_figures(story(M_kib=32, session=bare))[0].spec["layout"]

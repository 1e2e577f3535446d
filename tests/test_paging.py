"""Memory shared out among sequences: nothing is lost, nothing is given twice."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_kernels import paging
from fa_kernels.paging import (
    PAGE_SIZES,
    POLICIES,
    PagedPool,
    Stretches,
    Visit,
    occupancies,
    visits,
)

SLOTS, LONGEST = 2048, 512


def test_a_table_has_the_pages_in_order_and_only_the_last_is_partly_empty() -> None:
    pool = PagedPool(8, 16)
    assert pool.grow("A", 20) and pool.grow("B", 16) and pool.grow("A", 40)
    assert pool.tables == {"A": [0, 1, 3], "B": [2]} and pool.used_pages == 4
    assert pool.wasted_slots == 8 and pool.lacks("A", 49) == 1 and pool.lacks("A", 48) == 0
    assert [extent.filled for extent in pool.extents()] == [16, 16, 8, 16]
    pool.release("A")
    assert pool.tables == {"B": [2]} and pool.tokens == 16
    assert pool.grow("C", 1) and pool.tables["C"] == [0]  # freed pages are taken again


def test_too_few_pages_change_nothing() -> None:
    pool = PagedPool(2, 16)
    assert pool.grow("A", 17) and not pool.grow("B", 1) and not pool.grow("A", 33)
    assert pool.tables == {"A": [0, 1]} and pool.lengths == {"A": 17}
    with pytest.raises(ValueError, match="A has 17 tokens, not fewer than 3"):
        pool.grow("A", 3)
    with pytest.raises(ValueError, match="page_size = 0"):
        PagedPool(2, 0)


def test_first_fit_takes_the_first_hole_that_is_large_enough() -> None:
    memory = Stretches(100)
    for name, length in {"A": 30, "B": 20, "C": 40}.items():
        assert memory.reserve(name, length)
    memory.release("B")
    assert memory.holes() == [(30, 20), (90, 10)]
    assert not memory.reserve("D", 25)  # 30 are free, in two pieces
    assert memory.reserve("E", 15) and memory.held["E"] == (30, 15)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.sampled_from(POLICIES), st.sampled_from(PAGE_SIZES))
def test_every_sequence_is_served_and_no_slot_belongs_to_two(
    seed: int, policy: str, page_size: int
) -> None:
    guests = visits(seed, 10, LONGEST)
    found = occupancies(guests, policy, SLOTS, LONGEST, page_size)
    assert sorted(found[-1].finished) == [guest.name for guest in guests]
    for one in found:
        spans = sorted((extent.start, extent.start + extent.length) for extent in one.extents)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
        assert one.taken + one.free == SLOTS and one.internal_waste >= 0
        assert all(0 <= extent.filled <= extent.length for extent in one.extents)
        if policy == "paged":
            assert one.internal_waste < page_size * max(1, len(one.tables))
            assert not one.external_waste
    kinds = {one.policy for one in found}
    assert kinds == {policy}


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_reserving_the_longest_never_scatters(page_size: int) -> None:
    """Equal pieces leave no hole that is too small: their waste is inside."""
    found = occupancies(visits(2, 20, LONGEST), "reserved", SLOTS, LONGEST, page_size)
    assert not any(one.external_waste for one in found)
    assert max(len(one.extents) for one in found) == SLOTS // LONGEST


def test_what_the_picture_shows_happens_in_it() -> None:
    """The sequences that the widget opens with: holes too small, and one sent back."""
    guests = visits(2, 20, LONGEST)
    found = {p: occupancies(guests, p, SLOTS, LONGEST, 16) for p in POLICIES}
    assert len(found["paged"]) < len(found["exact"]) < len(found["reserved"])
    assert any(one.external_waste for one in found["exact"])
    assert [name for one in found["paged"] for name in one.sent_back] == ["I"]


def test_who_is_sent_back_is_the_newest_and_keeps_its_tokens() -> None:
    guests = [Visit("A", 0, 16, 64), Visit("B", 0, 16, 64)]
    found = occupancies(guests, "paged", 80, 80, 16)
    (step,) = (i for i, one in enumerate(found) if one.sent_back)
    assert found[step].sent_back == ("B",) == found[step].waiting
    entered = next(one for one in found[step + 1 :] if "B" in one.tables)
    assert found[step - 1].tables["B"] and len(entered.tables["B"]) == 2
    assert found[-1].finished == ("A", "B")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"policy": "best"}, "policy = 'best'"),
        ({"page_size": 100}, "page_size = 100 does not divide the 2048"),
        ({"longest": 4096}, "longest = 4096 is more than the 2048 slots"),
        ({"guests": [Visit("A", 0, 9, 8)]}, "A has 9 of 8 tokens"),
    ],
)
def test_what_cannot_be_is_refused(changed: dict[str, object], said: str) -> None:
    call: dict[str, object] = {
        "guests": visits(0, 2, LONGEST), "policy": "paged", "slots": SLOTS, "longest": LONGEST,
        "page_size": 16,
    }  # fmt: skip
    with pytest.raises(ValueError, match=said):
        occupancies(**(call | changed))  # type: ignore[arg-type]


def test_who_cannot_grow_sends_the_newest_back_and_in_the_end_itself() -> None:
    """Four pages for three sequences: the last two go, the newest first."""
    running, free, gone = ["A", "B", "C"], [1], list[str]()

    def grow(name: str) -> bool:
        if free[0] < {"A": 1, "B": 3, "C": 1}[name]:
            return False
        free[0] -= {"A": 1, "B": 3, "C": 1}[name]
        return True

    def send_back(name: str) -> None:
        gone.append(name)
        free[0] += 1

    assert paging.grow_oldest_first(running, grow, send_back) == ["B", "C"]
    assert running == ["A"] and gone == ["C", "B"]

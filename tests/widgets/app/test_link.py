"""The app's state and its link: what is told comes back, what is bad is said and not taken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fa_kernels.session import Session, session
from fa_kernels.widgets.app.link import SIZES, State, checked_state, opened, query_of_page


@pytest.fixture(scope="module")
def here() -> Session:
    return session(backend="numpy")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"view": "stepper", "N": 16384, "d": 128, "M_kib": 96, "dtype": "bf16", "device": "h200"},
        {"pattern": "butterfly", "density": 0.125, "scale": "linear", "view": "story"},
        {"scores": ("1.5", "-inf", "2"), "block_n": 1, "step": 4, "theme": "dark", "size": 130},
    ],
)
def test_a_link_opens_the_state_that_it_was_made_of(here: Session, changes: dict) -> None:
    state = checked_state(replace(State(), **changes), here)
    assert opened(state.query(), State(), here) == (state, [])


@pytest.mark.parametrize("device", ["t4", "rtx-4090", "a100-40gb"])
def test_a_link_opens_where_the_app_would_start_on_a_smaller_gpu(
    here: Session, device: str
) -> None:
    """Its M does not fit there, and the query names M before its own device."""
    state = checked_state(State(M_kib=192, d=128, device="h200"), here)
    small = State(device=device)
    assert opened(state.query(), small, here) == (state, [])
    taken, (note,) = opened(f"{state.query()}&size=huge", small, here)
    assert taken == state and "size" in note


def test_a_link_says_what_is_explored_even_where_it_is_the_default(here: Session) -> None:
    query = checked_state(State(), here).query()
    for part in ("view=explorer", "N=4096", "d=64", "M_kib=64", "dtype=fp16", "device=h200"):
        assert part in query.split("&")
    assert not [part for part in ("scores", "theme", "size", "density") if part in query]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("N=many", "N = 'many'"),
        ("N=0", "N = 0"),
        ("device=abacus", "abacus"),
        ("view=poem", "view = 'poem' is not known"),
        ("theme=pink", "theme = 'pink'"),
        ("size=9999", f"between {SIZES[0]} and {SIZES[-1]}"),
        ("step=-1", "step = -1"),
        ("block_n=3", "block_n = 3"),
        ("scores=1,oops", "oops"),
        ("density=2", "density = 2"),
        ("device=t4&M_kib=256", "M"),
    ],
)
def test_a_bad_value_of_a_link_is_said_and_the_rest_is_taken(
    here: Session, query: str, said: str
) -> None:
    state, notes = opened(f"d=128&{query}&token=secret", State(), here)
    assert state.d == 128
    assert len(notes) == 1
    assert said in notes[0]
    assert "secret" not in notes[0]


def test_only_voila_tells_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUERY_STRING", "N=512")
    monkeypatch.delenv("SERVER_SOFTWARE", raising=False)
    assert query_of_page() == ""
    monkeypatch.setenv("SERVER_SOFTWARE", "voila/0.5.13")
    assert query_of_page() == "N=512"

"""The simulated server: no request is lost, no memory is invented, and waiting has its price."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_kernels.serving import (
    MAX_BATCH,
    POLICIES,
    Request,
    StepTimes,
    request_trace,
    serve,
)

TIMES = StepTimes(weights_ms=3.0, product_ms=0.02, token_ms=1e-5, fixed_ms=0.1)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 10**6), st.integers(1, 30), st.sampled_from([1, 20, 500]),
    st.sampled_from([512, 640, 2048]), st.sampled_from([16, 64, 256]), st.sampled_from(POLICIES),
)  # fmt: skip
def test_every_request_is_answered_in_full_and_memory_never_overflows(
    seed: int, count: int, per_s: int, slots: int, page_size: int, policy: str
) -> None:
    requests = request_trace(seed, count, per_s, 256)
    found = serve(requests, policy, TIMES, slots, page_size)
    assert [service.request for service in found.services] == list(requests)
    for service in found.services:
        assert service.output == service.request.output and service.time_to_first_token_ms > 0
        assert service.first_token_ms <= service.done_ms <= found.makespan_ms
        assert len(service.spans) == service.sent_back + 1
        assert service.spans[0][0] >= service.request.arrival_ms
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(service.spans))
    for step in found.steps:
        assert 0 < step.tokens <= step.taken <= slots and 1 <= step.batch <= MAX_BATCH
    assert all(a.end_ms <= b.start_ms for a, b in itertools.pairwise(found.steps))
    given_tokens = sum(step.batch for step in found.steps)
    assert given_tokens == sum(request.output for request in requests)


def test_the_same_seed_gives_the_same_trace_and_the_same_answer() -> None:
    assert request_trace(3) == request_trace(3) != request_trace(4)
    first, second = (serve(request_trace(3), "continuous", TIMES, 8192) for _ in range(2))
    assert first.steps == second.steps


def test_lengths_stay_within_the_longest_and_vary() -> None:
    found = request_trace(1, 200, 20, 2048)
    assert max(request.tokens for request in found) <= 2048
    assert np.std([request.output for request in found]) > 100
    arrivals = [request.arrival_ms for request in found]
    assert arrivals == sorted(arrivals) and 5e3 < arrivals[-1] < 2e4


@pytest.mark.parametrize("policy", POLICIES)
def test_a_single_request_takes_a_prefill_and_its_steps(policy: str) -> None:
    request = Request("0", 5.0, 100, 4)
    found = serve([request], policy, TIMES, 1024)
    prefill = TIMES.prefill_ms(100)
    steps = sum(TIMES.decode_ms(1, 101 + i) for i in range(3))
    assert found.makespan_ms == pytest.approx(5.0 + prefill + steps)
    assert found.services[0].time_to_first_token_ms == pytest.approx(prefill)
    assert [step.kind for step in found.steps] == ["prefill", *["decode"] * 3]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("slots", [8192, 16384, 65536])
def test_continuous_batching_is_never_the_slower_one_here(seed: int, slots: int) -> None:
    requests = request_trace(seed, 48, 40)
    static, continuous = (serve(requests, policy, TIMES, slots) for policy in POLICIES)
    assert continuous.tokens_per_s >= static.tokens_per_s
    assert continuous.filled > static.filled
    assert np.median(continuous.first_token_ms) < np.median(static.first_token_ms)


def test_a_static_batch_keeps_its_slots_until_all_are_done() -> None:
    requests = [Request("a", 0.0, 10, 2), Request("b", 0.0, 10, 50), Request("c", 1.0, 10, 2)]
    found = serve(requests, "static", TIMES, 128)
    a, b, c = found.services
    assert a.done_ms < b.done_ms <= c.spans[0][0]
    assert {step.taken for step in found.steps if step.end_ms <= b.done_ms} == {120}
    after = [step for step in found.steps if a.done_ms < step.end_ms <= b.done_ms]
    assert {step.batch for step in after} == {1} and len(after) == 48
    inside = serve(requests, "continuous", TIMES, 128, 16)
    assert inside.services[2].done_ms < inside.services[1].done_ms


def test_the_newest_makes_room_and_its_tokens_are_computed_again() -> None:
    requests = [Request("old", 0.0, 30, 60), Request("new", 0.0, 30, 60)]
    found = serve(requests, "continuous", TIMES, 128, 16)
    old, new = found.services
    assert (old.sent_back, new.sent_back) == (0, 1) and found.sent_back == 1
    assert old.done_ms <= new.spans[1][0] and new.output == 60
    assert [step.kind for step in found.steps].count("prefill") == 2


def test_the_larger_of_reading_and_multiplying_binds() -> None:
    assert TIMES.decode_ms(1, 0) == pytest.approx(3.1)
    assert TIMES.decode_ms(200, 1000) == pytest.approx(4.0 + 0.1 + 0.01)
    assert TIMES.prefill_ms(10) == 3.0 and TIMES.prefill_ms(1000) == pytest.approx(20.0)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="policy = 'best' is not known: use one of static"):
        serve([], "best", TIMES, 100)
    with pytest.raises(ValueError, match="a request of 150 tokens never fits into 128 slots"):
        serve([Request("a", 0.0, 100, 50)], "continuous", TIMES, 159, 64)

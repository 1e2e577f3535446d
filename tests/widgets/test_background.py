"""Background jobs: the latest request wins, cancel keeps what is there, errors are told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fa_kernels.widgets.background import Background, Job, Listener

SECONDS = 10


class Heard:
    """Everything a listener is told."""

    def __init__(self) -> None:
        self.results: list[Any] = []
        self.ends: list[tuple[BaseException | None, bool]] = []
        self.progress: list[tuple[float, str]] = []

    def listener(self) -> Listener:
        return Listener(
            lambda fraction, text: self.progress.append((fraction, text)),
            self.results.append,
            lambda error, cancelled: self.ends.append((error, cancelled)),
        )


@pytest.fixture
def heard() -> Heard:
    return Heard()


def numbers(count: int, name: str = "") -> Job:
    def job(on_progress: Any, cancelled: Any) -> Iterator[str]:
        for i in range(count):
            on_progress(i / count, name)
            yield f"{name}{i}"

    return job


def test_results_in_order(heard: Heard) -> None:
    background = Background(heard.listener())
    background.start(numbers(3))
    background.join(SECONDS)
    assert heard.results == ["0", "1", "2"]
    assert heard.ends == [(None, False)]
    assert not background.running


def waiting(started: threading.Event, first: str = "first") -> Job:
    def job(on_progress: Any, cancelled: Any) -> Iterator[str]:
        yield first
        started.set()
        while not cancelled():
            threading.Event().wait(0.005)
        yield from ()

    return job


def test_cancel_keeps_partial_results(heard: Heard) -> None:
    background, started = Background(heard.listener()), threading.Event()
    background.start(waiting(started))
    assert started.wait(SECONDS)
    background.cancel()
    background.join(SECONDS)
    assert heard.results == ["first"]
    assert heard.ends == [(None, True)]


def test_the_latest_request_wins(heard: Heard) -> None:
    background, started = Background(heard.listener()), threading.Event()
    background.start(waiting(started, "old"))
    assert started.wait(SECONDS)
    background.start(numbers(2, "new"))
    background.join(SECONDS)
    assert heard.results == ["old", "new0", "new1"]
    assert heard.ends == [(None, False)], "a job that was overtaken does not report its end"


def test_three_quick_requests_run_the_last(heard: Heard) -> None:
    background, started = Background(heard.listener()), threading.Event()
    background.start(waiting(started, "a"))
    assert started.wait(SECONDS)
    background.start(waiting(threading.Event(), "b"))
    background.start(numbers(1, "c"))
    background.join(SECONDS)
    assert heard.results[-1] == "c0"
    assert len(heard.ends) == 1


def test_errors_are_told_and_results_stay(heard: Heard) -> None:
    def job(on_progress: Any, cancelled: Any) -> Iterator[str]:
        yield "kept"
        raise RuntimeError("out of luck")

    background = Background(heard.listener())
    background.start(job)
    background.join(SECONDS)
    assert heard.results == ["kept"]
    error, cancelled = heard.ends[0]
    assert str(error) == "out of luck"
    assert not cancelled


def test_cancel_without_a_job_is_harmless(heard: Heard) -> None:
    Background(heard.listener()).cancel()

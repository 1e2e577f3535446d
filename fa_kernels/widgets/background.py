"""One background job at a time: the latest request wins, progress and results come as they are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

#: `job(on_progress, cancelled)` yields results; `on_progress(fraction, text)`.
Job = Callable[[Callable[[float, str], None], Callable[[], bool]], Iterator[Any]]


@dataclass
class Listener:
    """What to call, from the job's thread, while a job runs. `on_end` gets an error or None."""

    on_progress: Callable[[float, str], None]
    on_result: Callable[[Any], None]
    on_end: Callable[[BaseException | None, bool], None]


@dataclass
class Background:
    """Runs jobs in a thread. A job that was overtaken or cancelled is heard no more."""

    listener: Listener
    _stop: threading.Event | None = field(default=None, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    @property
    def running(self) -> bool:
        """True while a job that was not cancelled runs."""
        return self._stop is not None

    def start(self, job: Job) -> None:
        """Start `job`; one that is running is told to stop first, and this one waits for it.

        Two jobs must not share a GPU: their timings would disturb each other.
        """
        with self._lock:
            before, self._stop = self._stop, threading.Event()
            if before is not None:
                before.set()
            args = (job, self._stop, self._thread)
            self._thread = threading.Thread(target=self._work, args=args, daemon=True)
            self._thread.start()

    def cancel(self) -> None:
        """Tell the running job to stop; the listener hears `on_end(None, True)` when it has."""
        if self._stop is not None:
            self._stop.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the last job (for tests)."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _work(self, job: Job, stop: threading.Event, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        error: BaseException | None = None
        try:
            if not stop.is_set():
                for result in job(self._heard(stop), stop.is_set):
                    if self._stop is not stop:
                        return
                    self.listener.on_result(result)
        except Exception as caught:
            error = caught
        with self._lock:
            if self._stop is not stop:
                return  # overtaken: the newer job owns the widget now
            self._stop = None
        self.listener.on_end(error, stop.is_set())

    def _heard(self, stop: threading.Event) -> Callable[[float, str], None]:
        def on_progress(fraction: float, text: str) -> None:
            if self._stop is stop and not stop.is_set():
                self.listener.on_progress(fraction, text)

        return on_progress

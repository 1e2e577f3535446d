"""A server of a language model as a simulation: requests, batches, and the memory of the KV cache.

Time passes only in prefills and decode steps, whose durations a `StepTimes` gives; nothing is
random but the trace of requests, and that has a seed.

Sources: Yu et al., Orca (OSDI 2022), for batching step by step; Kwon et al., PagedAttention
(arXiv 2309.06180), for pages and for sending the newest back when none is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fa_kernels.paging import PagedPool, grow_oldest_first

#: Ways to batch.
POLICIES = ("static", "continuous")
#: No server computes more sequences in one step, whatever its memory holds.
MAX_BATCH = 256


@dataclass(frozen=True)
class Request:
    """One that comes at `arrival_ms` with `prompt` tokens and is answered with `output` tokens."""

    name: str
    arrival_ms: float
    prompt: int
    output: int

    @property
    def tokens(self) -> int:
        """Of prompt and output together."""
        return self.prompt + self.output


@dataclass(frozen=True)
class StepTimes:
    """How long the steps of a model take.

    A decode step reads all weights once (`weights_ms`), and the keys and values of all tokens in
    the cache (`token_ms` each), after `fixed_ms` that attention takes at least. The products with
    the weights take `product_ms` for each token that goes through them, and bind where that is more
    than reading the weights. Attention within a prompt is left out of a prefill.
    """

    weights_ms: float
    product_ms: float
    token_ms: float
    fixed_ms: float

    def decode_ms(self, batch: int, tokens: int) -> float:
        """One more token for each of `batch` sequences, which have `tokens` in the cache."""
        return (
            max(self.weights_ms, batch * self.product_ms) + self.fixed_ms + tokens * self.token_ms
        )

    def prefill_ms(self, tokens: int) -> float:
        """So many tokens of prompts at one time."""
        return max(self.weights_ms, tokens * self.product_ms)


@dataclass
class Service:
    """What became of a request: when it was inside, (from, to) in ms, and when it had what."""

    request: Request
    spans: list[tuple[float, float]] = field(default_factory=list)
    first_token_ms: float = 0.0
    done_ms: float = 0.0
    #: Tokens of output that it has, and how often it was sent back to wait.
    output: int = 0
    sent_back: int = 0
    _since: float = 0.0

    @property
    def time_to_first_token_ms(self) -> float:
        """From its arrival."""
        return self.first_token_ms - self.request.arrival_ms

    def enter(self, now: float) -> None:
        self._since = now

    def leave(self, now: float) -> None:
        self.spans.append((self._since, now))

    def give_token(self, now: float) -> bool:
        """One more token of output; True: it was the last."""
        self.output += 1
        if self.output == 1:
            self.first_token_ms = now
        if self.output == self.request.output:
            self.done_ms = now
        return self.output == self.request.output


@dataclass(frozen=True)
class Step:
    """A prefill or a decode step: when, of how many sequences, and the slots of the cache in it.

    `tokens` slots hold a token, `taken` belong to a sequence.
    """

    kind: str
    start_ms: float
    end_ms: float
    batch: int
    tokens: int
    taken: int


@dataclass(frozen=True)
class Served:
    """All requests of a trace, served under one policy with `slots` slots of cache."""

    policy: str
    slots: int
    services: tuple[Service, ...]
    steps: tuple[Step, ...]

    @property
    def makespan_ms(self) -> float:
        """Until the last request was answered."""
        return self.steps[-1].end_ms if self.steps else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Tokens of output a second, from the first arrival to the last answer."""
        output = sum(service.output for service in self.services)
        since = min(service.request.arrival_ms for service in self.services)
        return output / (self.makespan_ms - since) * 1e3

    @property
    def first_token_ms(self) -> np.ndarray:
        """Times to the first token, sorted."""
        return np.sort([service.time_to_first_token_ms for service in self.services])

    @property
    def mean_batch(self) -> float:
        """Sequences in a decode step, over the decode steps."""
        found = [step.batch for step in self.steps if step.kind == "decode"]
        return float(np.mean(found)) if found else 0.0

    @property
    def filled(self) -> float:
        """Part of the taken slots that held tokens, over the time of all steps."""
        times = [step.end_ms - step.start_ms for step in self.steps]
        tokens = sum(t * s.tokens for t, s in zip(times, self.steps, strict=True))
        return tokens / sum(t * s.taken for t, s in zip(times, self.steps, strict=True))

    @property
    def sent_back(self) -> int:
        """How often a request had to make room."""
        return sum(service.sent_back for service in self.services)


def request_trace(
    seed: int = 0, count: int = 48, per_s: float = 20.0, longest: int = 2048
) -> tuple[Request, ...]:
    """Requests at random times, with lengths of which a few are much longer than most.

    Gaps are exponential, prompts and outputs log-normal (medians of an eighth of `longest`, cut at
    half of it each): the same for the same seed.

    Args:
        seed: of the random numbers.
        count: how many requests.
        per_s: how many of them come in a second, in the mean.
        longest: tokens that prompt and output together never exceed.
    """
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1e3 / per_s, count))
    middle, most = longest / 8, longest // 2
    lengths = middle * np.exp(rng.normal(0.0, 0.8, (2, count)))
    prompts, outputs = np.clip(np.rint(lengths), 8, most).astype(int)
    return tuple(
        Request(str(i), float(arrivals[i]), int(prompts[i]), int(outputs[i])) for i in range(count)
    )


def serve(
    requests: Sequence[Request], policy: str, times: StepTimes, slots: int, page_size: int = 64
) -> Served:
    """Serve a trace.

    "static" takes as many of those that wait as there is room for, each with the slots of the
    longest request, and takes no other before all of them are done; one that is done costs no time
    any more, but keeps its slots. "continuous" looks between any two steps: whoever is done leaves,
    and those that wait come in while the pages of their prompts are free, first come, first served.
    Where a sequence finds no page, the newest is sent back to wait, its pages are freed, and its
    tokens go through a prefill again. A prefill gives the first token.

    Args:
        slots: of the cache, of one token each; whole pages of them are used.
        page_size: slots of a page ("continuous").

    Raises:
        ValueError: a policy that is not known, or a request that the cache could never hold.
    """
    if policy not in POLICIES:
        raise ValueError(f"policy = {policy!r} is not known: use one of {', '.join(POLICIES)}.")
    longest = max((request.tokens for request in requests), default=0)
    room = slots if policy == "static" else slots // page_size * page_size
    if longest > room:
        raise ValueError(
            f"a request of {longest} tokens never fits into {room} slots: give the cache more "
            "memory, or shorten the requests."
        )
    server = _Static(slots, longest) if policy == "static" else _Continuous(slots, page_size)
    waiting = sorted(requests, key=lambda request: request.arrival_ms)
    services = {request.name: Service(request) for request in waiting}
    queue, steps, now = [services[request.name] for request in waiting], list[Step](), 0.0
    while queue or server.running:
        here = [service for service in queue if service.request.arrival_ms <= now]
        if entering := server.admit(here):
            queue = [service for service in queue if service not in entering]
            start, now = now, now + times.prefill_ms(sum(map(_cached, entering)))
            for service in entering:
                service.enter(start)
            steps.append(Step("prefill", start, now, len(entering), *server.occupied()))
            server.give_tokens(entering, now)
        elif server.running:
            queue = server.make_room(now) + queue
            batch = [*server.running]
            start, (tokens, taken) = now, server.occupied()
            now += times.decode_ms(len(batch), server.read_tokens())
            steps.append(Step("decode", start, now, len(batch), tokens, taken))
            server.give_tokens(batch, now)
        else:
            now = queue[0].request.arrival_ms
    return Served(policy, slots, tuple(services[r.name] for r in requests), tuple(steps))


def _cached(service: Service) -> int:
    """Tokens of a request that a prefill puts into the cache: also what it was sent back with."""
    return service.request.prompt + service.output


class _Static:
    """One batch after the other, each sequence with the slots of the longest."""

    def __init__(self, slots: int, longest: int) -> None:
        self._longest, self._most = longest, min(MAX_BATCH, slots // max(1, longest))
        self.running: list[Service] = []
        self._lengths: dict[str, int] = {}

    def admit(self, here: Sequence[Service]) -> list[Service]:
        """Those of a new batch; none while one is at work."""
        if self.running:
            return []
        self.running = list(here[: self._most])
        self._lengths = {service.request.name: _cached(service) for service in self.running}
        return list(self.running)

    def make_room(self, now: float) -> list[Service]:
        """One more token for each; there is room."""
        for service in self.running:
            self._lengths[service.request.name] += 1
        return []

    def occupied(self) -> tuple[int, int]:
        """Slots that hold a token of one that is not done, and slots that are taken."""
        return self.read_tokens(), self._longest * len(self._lengths)

    def read_tokens(self) -> int:
        """Tokens whose keys and values the next step reads."""
        return sum(self._lengths[service.request.name] for service in self.running)

    def give_tokens(self, batch: Sequence[Service], now: float) -> None:
        """A token for each of them; those that are done leave, and their slots stay taken."""
        for service in batch:
            if service.give_token(now):
                service.leave(now)
                self.running.remove(service)


class _Continuous:
    """Between any two steps sequences leave and come, and grow page by page."""

    def __init__(self, slots: int, page_size: int) -> None:
        self._pool = PagedPool(slots // page_size, page_size)
        self.running: list[Service] = []

    def admit(self, here: Sequence[Service]) -> list[Service]:
        """Those whose tokens' pages are free, in their order, and a page to grow for each."""
        found: list[Service] = []
        for service in here:
            # One page more for each inside: else whoever comes in is the next to be sent back.
            spare = len(self.running) if self.running else 0
            needed = self._pool.lacks(service.request.name, _cached(service) + 1)
            if len(self.running) == MAX_BATCH or needed + spare > len(self._pool.free):
                break
            self._pool.grow(service.request.name, _cached(service))
            self.running.append(service)
            found.append(service)
        return found

    def make_room(self, now: float) -> list[Service]:
        """One more token for each, the oldest first; those that were sent back for it."""

        def grow(service: Service) -> bool:
            name = service.request.name
            return self._pool.grow(name, self._pool.lengths[name] + 1)

        def send_back(service: Service) -> None:
            self._pool.release(service.request.name)
            service.leave(now)
            service.sent_back += 1

        return grow_oldest_first(self.running, grow, send_back)

    def occupied(self) -> tuple[int, int]:
        """Slots that hold a token, and slots of taken pages."""
        return self._pool.tokens, self._pool.used_pages * self._pool.page_size

    def read_tokens(self) -> int:
        """Tokens whose keys and values the next step reads."""
        return self._pool.tokens

    def give_tokens(self, batch: Sequence[Service], now: float) -> None:
        """A token for each of them; those that are done give their pages back."""
        for service in batch:
            if service.give_token(now):
                service.leave(now)
                self._pool.release(service.request.name)
                self.running.remove(service)

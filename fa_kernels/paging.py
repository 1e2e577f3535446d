"""Memory of a KV cache shared out among sequences: reserved whole, in one piece, or in pages.

Source: Kwon et al., Efficient Memory Management for Large Language Model Serving with
PagedAttention (arXiv 2309.06180), sections 3 and 4. The unit is a slot: K and V of one token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from fa_kernels.problem import checked_int

T = TypeVar("T")

#: Ways to share out the memory, from the simplest on.
POLICIES = ("reserved", "exact", "paged")
PAGE_SIZES = (16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Extent:
    """`length` slots from `start` on that belong to a sequence; the first `filled` hold tokens."""

    sequence: str
    start: int
    length: int
    filled: int


class PagedPool:
    """Pages of one size, and for each sequence the table of its pages, in order.

    `tables` maps a sequence to page numbers, what a kernel gets as its row of block_table;
    `lengths` to the tokens that it has.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        """Raises ValueError: a number of pages or a page size that is not positive."""
        remedy = "Choose a size in that range."
        self.num_pages = checked_int("num_pages", num_pages, 1, 1 << 31, remedy)
        self.page_size = checked_int("page_size", page_size, 1, 1 << 20, remedy)
        # The last one freed is the next one taken: pages of a sequence are soon out of order.
        self.free = list(range(self.num_pages - 1, -1, -1))
        self.tables: dict[str, list[int]] = {}
        self.lengths: dict[str, int] = {}

    def pages_for(self, tokens: int) -> int:
        """How many pages so many tokens of one sequence take."""
        return -(-tokens // self.page_size)

    @property
    def used_pages(self) -> int:
        """Pages that belong to a sequence."""
        return self.num_pages - len(self.free)

    @property
    def tokens(self) -> int:
        """Tokens of all sequences."""
        return sum(self.lengths.values())

    @property
    def wasted_slots(self) -> int:
        """Slots of used pages without a token: the ends of last pages."""
        return self.used_pages * self.page_size - self.tokens

    def lacks(self, sequence: str, tokens: int) -> int:
        """How many pages more than it has a sequence of so many tokens needs; at least 0."""
        return max(0, self.pages_for(tokens) - len(self.tables.get(sequence, ())))

    def grow(self, sequence: str, tokens: int) -> bool:
        """Let a sequence have `tokens` tokens, new or more than before; False: too few free pages.

        Nothing changes then.
        """
        if tokens < self.lengths.get(sequence, 0):
            raise ValueError(
                f"{sequence} has {self.lengths[sequence]} tokens, not fewer than {tokens}: "
                "release it first."
            )
        needed = self.lacks(sequence, tokens)
        if needed > len(self.free):
            return False
        table = self.tables.setdefault(sequence, [])
        table += [self.free.pop() for _ in range(needed)]
        self.lengths[sequence] = tokens
        return True

    def release(self, sequence: str) -> None:
        """Give a sequence's pages back."""
        self.free += reversed(self.tables.pop(sequence))
        del self.lengths[sequence]

    def extents(self) -> Iterator[Extent]:
        """The pages of all sequences, as stretches of slots."""
        for sequence, table in self.tables.items():
            left = self.lengths[sequence]
            for page in table:
                filled = min(left, self.page_size)
                left -= filled
                yield Extent(sequence, page * self.page_size, self.page_size, filled)


@dataclass
class Stretches:
    """Contiguous pieces of `slots` slots, the first hole that is large enough (first fit)."""

    slots: int
    held: dict[str, tuple[int, int]] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)

    def holes(self) -> list[tuple[int, int]]:
        """(start, length) of what is free, from the first slot on."""
        found, at = [], 0
        for start, length in sorted(self.held.values()):
            if start > at:
                found.append((at, start - at))
            at = start + length
        return found + ([(at, self.slots - at)] if at < self.slots else [])

    def reserve(self, sequence: str, length: int) -> bool:
        """Give a sequence `length` slots in one piece; False: no hole is that large."""
        for start, size in self.holes():
            if size >= length:
                self.held[sequence], self.lengths[sequence] = (start, length), 0
                return True
        return False

    def release(self, sequence: str) -> None:
        """Give a sequence's slots back."""
        del self.held[sequence], self.lengths[sequence]

    def extents(self) -> Iterator[Extent]:
        """One per sequence."""
        for sequence, (start, length) in self.held.items():
            yield Extent(sequence, start, length, self.lengths[sequence])


@dataclass(frozen=True)
class Visit:
    """A sequence that comes at a step with a prompt and leaves when it has `tokens`."""

    name: str
    arrives: int
    prompt: int
    tokens: int


@dataclass(frozen=True)
class Occupancy:
    """The memory under one policy at one step.

    `waiting` found no room, in order; `sent_back` are those of them that had to make room in this
    step; `tables` are the block tables (of pages only).
    """

    policy: str
    slots: int
    extents: tuple[Extent, ...]
    waiting: tuple[str, ...]
    finished: tuple[str, ...]
    sent_back: tuple[str, ...]
    tables: dict[str, tuple[int, ...]]
    #: Free slots, and the most of them in one piece.
    free: int
    largest_free: int
    #: Slots that the first of those who wait asks for; 0: nobody waits.
    asked: int

    @property
    def tokens(self) -> int:
        """Slots that hold a token."""
        return sum(extent.filled for extent in self.extents)

    @property
    def taken(self) -> int:
        """Slots that belong to a sequence."""
        return sum(extent.length for extent in self.extents)

    @property
    def internal_waste(self) -> int:
        """Slots that belong to a sequence and hold nothing."""
        return self.taken - self.tokens

    @property
    def external_waste(self) -> int:
        """Free slots that are enough for the one who waits, and in pieces that are too small."""
        stuck = self.asked and self.free >= self.asked > self.largest_free
        return self.free if stuck else 0

    @property
    def used(self) -> float:
        """Part of the taken slots that holds tokens; 1 of nothing."""
        return self.tokens / self.taken if self.taken else 1.0


def visits(seed: int, count: int, longest: int, step_tokens: int = 16) -> tuple[Visit, ...]:
    """Sequences of random lengths (16 to `longest`) that come one after the other.

    Args:
        seed: of the random numbers: equal ones give equal sequences.
        count: at most 26, named A to Z.
        longest: tokens of the longest that may come.
        step_tokens: how far a sequence grows in a step.
    """
    rng = np.random.default_rng(seed)
    found, at = [], 0
    for i in range(count):
        tokens = int(rng.integers(16, longest + 1))
        prompt = max(1, int(tokens * rng.uniform(0.1, 0.7)))
        found.append(Visit(chr(ord("A") + i), at, prompt, tokens))
        at += int(rng.integers(0, max(2, longest // (6 * step_tokens))))
    return tuple(found)


def occupancies(
    guests: Sequence[Visit], policy: str, slots: int, longest: int, page_size: int,
    step_tokens: int = 16,
) -> list[Occupancy]:  # fmt: skip
    """The memory step by step, until all sequences have come and gone.

    In a step those that are done leave, all others grow by `step_tokens`, and those that wait come
    in, first come, first served, as far as there is room. "reserved" gives each the `longest`
    sequence's slots in one piece, "exact" what it will need in the end, which no server knows,
    and "paged" one page after the other. Where no page is free for one that grows, the newest is
    sent back to wait, and its prompt and output so far are computed once more when it comes in.

    Raises:
        ValueError: a policy that is not known, a page size that does not divide the slots, or a
            sequence that does not fit.
    """
    _check(guests, policy, slots, longest, page_size)
    memory = _MEMORIES[policy](slots, longest, page_size)
    waiting, running, finished = list(guests), dict[str, Visit](), list[str]()
    found: list[Occupancy] = []
    while waiting or running:
        for name in [n for n, guest in running.items() if memory.length(n) >= guest.tokens]:
            memory.leave(name)
            finished.append(name)
            del running[name]
        back = _grow(memory, running, step_tokens)
        waiting = [*back, *waiting]
        here = [guest for guest in waiting if guest.arrives <= len(found)]
        # Who was sent back just now stays out: it would take the pages that it made free.
        while here and not back and memory.enter(here[0]):
            guest = here.pop(0)
            waiting.remove(guest)
            running[guest.name] = guest
        found.append(memory.picture(policy, here, finished, [guest.name for guest in back]))
    return found


def _grow(memory: _Pieces | _Pages, running: dict[str, Visit], step_tokens: int) -> list[Visit]:
    """Let all grow, the oldest first; those that were sent back for it, the oldest first."""
    seen: dict[str, int] = {}

    def grow(name: str) -> bool:
        now = memory.length(name)
        return memory.write(name, min(running[name].tokens, now + step_tokens))

    def send_back(name: str) -> None:
        seen[name] = memory.length(name)
        memory.leave(name)

    back = grow_oldest_first(list(running), grow, send_back)
    return [replace(running.pop(name), prompt=seen[name]) for name in back]


def grow_oldest_first(
    running: list[T], grow: Callable[[T], bool], send_back: Callable[[T], None]
) -> list[T]:
    """Let all grow, the oldest first; where one cannot, the newest is sent back, be it itself.

    Args:
        running: the oldest first; those that are sent back are taken out.
        grow: give one more room; False: there is none.
        send_back: take away what one has.

    Returns:
        Those that were sent back, the oldest first.
    """
    back: list[T] = []
    for one in list(running):
        while one in running and not grow(one):
            newest = running.pop()
            send_back(newest)
            back.insert(0, newest)
    return back


def _check(guests: Sequence[Visit], policy: str, slots: int, longest: int, page_size: int) -> None:
    if policy not in POLICIES:
        raise ValueError(f"policy = {policy!r} is not known: use one of {', '.join(POLICIES)}.")
    if slots % page_size:
        raise ValueError(f"page_size = {page_size} does not divide the {slots} slots.")
    if longest > slots:
        raise ValueError(f"longest = {longest} is more than the {slots} slots: choose fewer.")
    for guest in guests:
        if not 1 <= guest.prompt <= guest.tokens <= longest:
            raise ValueError(
                f"{guest.name} has {guest.prompt} of {guest.tokens} tokens: it must be between 1 "
                f"and {longest}."
            )


class _Pieces:
    """The policies in one piece; `whole` says whether each gets as much as the longest."""

    whole = True

    def __init__(self, slots: int, longest: int, page_size: int) -> None:
        self._memory, self._longest = Stretches(slots), longest

    def _asks(self, guest: Visit) -> int:
        return self._longest if self.whole else guest.tokens

    def enter(self, guest: Visit) -> bool:
        found = self._memory.reserve(guest.name, self._asks(guest))
        if found:
            self.write(guest.name, guest.prompt)
        return found

    def length(self, name: str) -> int:
        return self._memory.lengths[name]

    def write(self, name: str, tokens: int) -> bool:
        self._memory.lengths[name] = tokens
        return True

    def leave(self, name: str) -> None:
        self._memory.release(name)

    def picture(
        self, policy: str, here: Sequence[Visit], finished: Sequence[str], back: Sequence[str]
    ) -> Occupancy:
        holes = [length for _, length in self._memory.holes()]
        return Occupancy(
            policy, self._memory.slots, tuple(self._memory.extents()),
            tuple(guest.name for guest in here), tuple(finished), tuple(back), {}, sum(holes),
            max(holes, default=0), self._asks(here[0]) if here else 0,
        )  # fmt: skip


class _ExactPieces(_Pieces):
    whole = False


class _Pages:
    """One page after the other, as the sequence grows."""

    def __init__(self, slots: int, longest: int, page_size: int) -> None:
        self._pool = PagedPool(slots // page_size, page_size)

    def enter(self, guest: Visit) -> bool:
        return self._pool.grow(guest.name, guest.prompt)

    def length(self, name: str) -> int:
        return self._pool.lengths[name]

    def write(self, name: str, tokens: int) -> bool:
        return self._pool.grow(name, tokens)

    def leave(self, name: str) -> None:
        self._pool.release(name)

    def picture(
        self, policy: str, here: Sequence[Visit], finished: Sequence[str], back: Sequence[str]
    ) -> Occupancy:
        pool = self._pool
        free = len(pool.free) * pool.page_size
        asked = pool.pages_for(here[0].prompt) * pool.page_size if here else 0
        return Occupancy(
            policy, pool.num_pages * pool.page_size, tuple(pool.extents()),
            tuple(guest.name for guest in here), tuple(finished), tuple(back),
            {name: tuple(table) for name, table in pool.tables.items()},
            # Pages need not be neighbours: all that is free counts as one piece.
            free, free, asked,
        )  # fmt: skip


_MEMORIES: dict[str, type[_Pieces] | type[_Pages]] = {
    "reserved": _Pieces,
    "exact": _ExactPieces,
    "paged": _Pages,
}

"""Races by brute force, to hold races.c against: full vector clocks, every access kept, every pair compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy
import numpy.typing
from tests.ptx.races_driver import Kind, Order, Scope

Clock = numpy.typing.NDArray[numpy.int64]
WARP = 32


@dataclass(frozen=True, eq=False)
class Access:
    thread: int  # over all blocks
    step: int
    known: Clock
    instr: int
    shared_of: int | None  # block, for shared memory
    first_byte: int
    size: int
    kind: Kind
    strong: bool
    cta_scope: bool
    volatile: bool
    guess: bool
    value: bytes


@dataclass
class Location:
    """Releases that a reader of this word would observe."""

    gpu: Clock
    cta: dict[int, Clock]  # by block
    last_release: dict[int, tuple[int, Clock]] = field(default_factory=dict)  # by level: by .release op of that thread


class Oracle:
    def __init__(self, blocks: int, threads: int) -> None:
        self.threads = threads
        count = blocks * threads
        self.known = numpy.zeros((count, count), numpy.int64)
        self.fenced = numpy.zeros((2, count, count), numpy.int64)
        self.pending = numpy.zeros((2, count, count), numpy.int64)
        self.live = numpy.ones(count, bool)
        self.accesses: list[Access] = []
        self.words: dict[tuple[int | None, int], Location] = {}
        self.arrivals: dict[tuple[int, int], list[tuple[Clock, Clock]]] = {}

    def _thread(self, block: int, warp: int, lane: int) -> int:
        return block * self.threads + warp * WARP + lane

    def _lanes(self, block: int, warp: int, mask: int) -> list[int]:
        found = [self._thread(block, warp, lane) for lane in range(WARP) if mask >> lane & 1]
        return [thread for thread in found if self.live[thread]]

    def _step(self, thread: int) -> int:
        self.known[thread, thread] += 1
        return int(self.known[thread, thread])

    # -- ordering --

    def exit(self, block: int, warp: int, mask: int) -> None:
        self.live[self._lanes(block, warp, mask)] = False

    def fence(self, block: int, warp: int, mask: int, scope: Scope) -> None:
        level = 0 if scope is Scope.CTA else 1
        for thread in self._lanes(block, warp, mask):
            for below in range(level + 1):
                self.known[thread] = numpy.maximum(self.known[thread], self.pending[below, thread])
                self.pending[below, thread] = 0
                self.fenced[below, thread] = 0
            for below in range(level + 1):
                self.fenced[below, thread] = self.known[thread]

    def syncwarp(self, block: int, warp: int, mask: int) -> None:
        lanes = self._lanes(block, warp, mask)
        if len(lanes) < 2:
            return
        self.known[lanes] = self.known[lanes].max(axis=0)
        for level in range(2):
            self.fenced[level][lanes] = self.fenced[level][lanes].max(axis=0)
            self.pending[level][lanes] = self.pending[level][lanes].max(axis=0)

    def arrive(self, block: int, number: int, warp: int, mask: int) -> None:
        lanes = self._lanes(block, warp, mask)
        if lanes:
            entry = (self.known[lanes].max(axis=0), self.fenced[:, lanes].max(axis=1))
            self.arrivals.setdefault((block, number), []).append(entry)

    def barrier(self, block: int, number: int, masks: Sequence[int]) -> None:
        lanes = [thread for warp, mask in enumerate(masks) for thread in self._lanes(block, warp, mask)]
        arrived = self.arrivals.pop((block, number), [])
        everyone = range(block * self.threads, (block + 1) * self.threads)
        if not arrived and len(lanes) == self.live[everyone].sum():
            lanes = list(everyone)  # those that ended count as arrived
        if not lanes:
            return
        self.known[lanes] = numpy.maximum(self.known[lanes], self.pending[:, lanes].max(axis=0))
        self.pending[:, lanes] = 0
        self.known[lanes] = numpy.max([self.known[lanes].max(axis=0), *(known for known, _ in arrived)], axis=0)
        fenced = numpy.max([self.fenced[:, lanes].max(axis=1), *(fenced for _, fenced in arrived)], axis=0)
        for level in range(2):
            self.fenced[level][lanes] = fenced[level]

    def publish(self, block: int, warp: int, mask: int, so_far: Clock | None) -> Clock | None:
        lanes = self._lanes(block, warp, mask)
        told = self.known[lanes].max(axis=0) if lanes else None
        return told if so_far is None else so_far if told is None else numpy.maximum(told, so_far)

    def learn(self, block: int, warp: int, mask: int, told: Clock | None) -> None:
        if told is not None:
            for thread in self._lanes(block, warp, mask):
                self.known[thread] = numpy.maximum(self.known[thread], told)

    # -- accesses --

    def access(
        self,
        kind: Kind,
        block: int,
        warp: int,
        lanes: Mapping[int, int],
        *,
        instr: int,
        shared: bool,
        size: int,
        order: Order,
        scope: Scope,
        values: Mapping[int, bytes] | None,
    ) -> None:
        strong = order is not Order.WEAK or kind is Kind.ATOMIC
        for lane, address in sorted(lanes.items()):
            thread = self._thread(block, warp, lane)
            step = self._step(thread)
            value = values[lane] if values is not None else b""
            entry = Access(
                thread, step, self.known[thread].copy(), instr, block if shared else None, address, size, kind, strong,
                scope is Scope.CTA, order is Order.VOLATILE, order is Order.GUESS, value,
            )  # fmt: skip
            self.accesses.append(entry)
            if strong and not entry.guess:
                for word in range(address // 4, max(address // 4 + 1, (address + size) // 4)):
                    self._synchronise(entry, block, thread, (entry.shared_of, word), order, scope, size)

    def _synchronise(
        self, entry: Access, block: int, thread: int, key: tuple[int | None, int], order: Order, scope: Scope, size: int
    ) -> None:
        nothing = numpy.zeros_like(self.known[0])
        place = self.words.setdefault(key, Location(nothing, {}))
        level = 0 if scope is Scope.CTA else 1
        if entry.kind is not Kind.WRITE:
            pulled = [place.cta.get(block, nothing), place.gpu if level else nothing]
            for below in range(2):
                if order in (Order.ACQUIRE, Order.ACQ_REL):
                    self.known[thread] = numpy.maximum(self.known[thread], pulled[below])
                else:
                    self.pending[below, thread] = numpy.maximum(self.pending[below, thread], pulled[below])
        if entry.kind is Kind.READ:
            return
        releasing = order in (Order.RELEASE, Order.ACQ_REL)
        keeps = entry.kind is Kind.ATOMIC or size < 4
        for below in range(2):
            old = place.gpu if below else place.cta.get(block, nothing)
            released = self.fenced[below, thread] if below <= level else nothing
            if releasing and below <= level:
                released = self.known[thread].copy()
            if not keeps:
                owner, own = place.last_release.get(below, (-1, nothing))
                old = own if owner == thread else nothing
                if owner != thread:
                    place.last_release.pop(below, None)
            if released.any():
                place.last_release[below] = (thread if releasing else -1, released)
            joined = numpy.maximum(old, released)
            if below:
                place.gpu = joined
            else:
                place.cta = {block: joined}

    # -- the verdict --

    def races(self) -> list[tuple[int, int]]:
        """Indices into `accesses`, earlier first, of every pair that races."""
        found = []
        for j, later in enumerate(self.accesses):
            for i in range(j):
                if self._races(self.accesses[i], later):
                    found.append((i, j))
        return found

    def _races(self, a: Access, b: Access) -> bool:
        low, high = max(a.first_byte, b.first_byte), min(a.first_byte + a.size, b.first_byte + b.size)
        if a.thread == b.thread or a.shared_of != b.shared_of or low >= high:
            return False
        if a.kind is Kind.READ and b.kind is Kind.READ:
            return False
        if a.strong and b.strong and self._morally_strong(a, b):
            return False
        if b.known[a.thread] >= a.step:
            return False
        low_high = self._unobserved(a, b, low, high)
        if low_high is None:
            return False
        low, high = low_high
        plain_stores = a.kind is Kind.WRITE and b.kind is Kind.WRITE and not a.strong and not b.strong
        if plain_stores and a.value and b.value:
            here = slice(low - a.first_byte, high - a.first_byte), slice(low - b.first_byte, high - b.first_byte)
            return a.value[here[0]] != b.value[here[1]]
        return True

    def _unobserved(self, a: Access, b: Access, low: int, high: int) -> tuple[int, int] | None:
        """The bytes of a strong write that no strong read in between saw which comes before b."""
        if not a.strong or a.kind is Kind.READ:
            return low, high
        open_bytes = set(range(low, high))
        start = self.accesses.index(a) + 1
        for z in self.accesses[start : self.accesses.index(b)]:
            reads = z.strong and not z.guess and z.kind is not Kind.WRITE and z.shared_of == a.shared_of
            if reads and b.known[z.thread] >= z.step and (z.thread == a.thread or self._morally_strong(a, z)):
                open_bytes -= set(range(z.first_byte, z.first_byte + z.size))
        return (min(open_bytes), max(open_bytes) + 1) if open_bytes else None

    def _morally_strong(self, a: Access, b: Access) -> bool:
        if (a.cta_scope or b.cta_scope) and a.thread // self.threads != b.thread // self.threads:
            return False
        in_step = a.shared_of is not None and (a.volatile or b.volatile) and a.thread // WARP == b.thread // WARP
        return not in_step or (a.kind is not Kind.READ and b.kind is not Kind.READ)

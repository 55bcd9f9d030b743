"""The race detector against brute force, on random programs: the same first race, and never a race that is none."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy
import pytest
from tests.ptx.races_driver import Block, Kind, Launch, Missed, Order, Report, Scope
from tests.ptx.races_oracle import Clock, Oracle

THREADS = 64
BLOCKS = 3
LANES = (0, 1, 2, 31)
GLOBAL = 0x10_0000_0000
LONG = 3000


@dataclass
class Side:
    """One program told to both, event by event."""

    launch: Launch
    blocks: list[Block]
    oracle: Oracle
    instr: int = 0

    def access(self, kind: Kind, block: int, warp: int, lanes: dict[int, int], shared: bool, size: int, order: Order,
               scope: Scope, values: dict[int, bytes] | None) -> Report:  # fmt: skip
        self.instr += 1
        self.oracle.access(kind, block, warp, lanes, instr=self.instr, shared=shared, size=size, order=order,
                           scope=scope, values=values)  # fmt: skip
        return self.blocks[block].access(kind, warp, lanes, instr=self.instr, shared=shared, size=size, order=order,
                                         scope=scope, values=values)  # fmt: skip


Step = Callable[[random.Random, Side], "Report | None"]


def place(rng: random.Random) -> tuple[bool, int]:
    return rng.choice([(True, 0), (False, GLOBAL)])


def some_lanes(rng: random.Random) -> list[int]:
    return rng.choice([[rng.choice(LANES)], [rng.choice(LANES)], list(LANES), LANES[:2]])


def plain(rng: random.Random, side: Side, loose: bool) -> Report:
    shared, base = place(rng)
    size = rng.choice([1, 2, 4, 4, 4, 8, 16])
    kind = rng.choice([Kind.READ, Kind.READ, Kind.WRITE])
    start = rng.choice([0, 16, 32, 0, 16, 32, 64]) + rng.randrange(16 // size) * size
    together = rng.random() < 0.5 and kind is Kind.READ
    lanes = {lane: base + start + (0 if together else i * size) for i, lane in enumerate(some_lanes(rng))}
    values = None
    if kind is Kind.WRITE and loose:
        values = {lane: bytes([rng.choice([7, 7, 7, 8])]) * size for lane in lanes}
    block, warp = rng.randrange(BLOCKS), rng.randrange(THREADS // 32)
    return side.access(kind, block, warp, lanes, shared, size, Order.WEAK, Scope.GPU, values)


def strong(rng: random.Random, side: Side, loose: bool) -> Report:
    shared, base = place(rng)
    kind = rng.choice([Kind.READ, Kind.READ, Kind.WRITE, Kind.ATOMIC, Kind.ATOMIC])
    orders = {
        Kind.READ: (Order.VOLATILE, Order.RELAXED, Order.RELAXED, Order.ACQUIRE, Order.GUESS),
        Kind.WRITE: (Order.VOLATILE, Order.RELAXED, Order.RELAXED, Order.RELEASE),
        Kind.ATOMIC: (Order.RELAXED, Order.RELAXED, Order.ACQUIRE, Order.RELEASE, Order.ACQ_REL),
    }
    size = rng.choice([4, 4, 4, 8, 2])
    flag = base + (64 if rng.random() < 0.9 else 0) + rng.randrange(16 // size) * size
    lanes = dict.fromkeys(rng.choice([[rng.choice(LANES)], [0], [0], list(LANES)]), flag)
    scope = Scope.CTA if rng.random() < 0.15 and (shared or loose) else Scope.GPU
    order = rng.choice(orders[kind])
    if order is Order.VOLATILE and shared and not loose:
        order = Order.RELAXED
    block, warp = rng.randrange(BLOCKS), rng.randrange(THREADS // 32)
    return side.access(kind, block, warp, lanes, shared, size, order, scope, None)


def synchronise(rng: random.Random, side: Side) -> None:
    block, warp = rng.randrange(BLOCKS), rng.randrange(THREADS // 32)
    mask = rng.choice([0xFFFFFFFF, 0xFFFFFFFF, 0x3, 0x80000005, 1, 2])
    what = rng.randrange(10)
    if what < 3:
        scope = Scope.CTA if rng.random() < 0.3 else Scope.GPU
        side.blocks[block].fence(warp, mask, scope)
        side.oracle.fence(block, warp, mask, scope)
    elif what < 5:
        side.blocks[block].syncwarp(warp, mask)
        side.oracle.syncwarp(block, warp, mask)
    elif what < 7:
        side.blocks[block].barrier()
        side.oracle.barrier(block, 0, [0xFFFFFFFF] * (THREADS // 32))
    elif what < 9:
        masks = [rng.choice([0, mask, 0xFFFFFFFF]) for _ in range(THREADS // 32)]
        side.blocks[block].barrier(masks, 1)
        side.oracle.barrier(block, 1, masks)
    else:
        side.blocks[block].arrive(1, warp, mask)
        side.oracle.arrive(block, 1, warp, mask)


@dataclass
class Held:
    """What an mbarrier holds, as the detector and as brute force have it: of the phase now, and of those that ended."""

    arriving: tuple[int | None, Clock | None] = (None, None)
    completed: tuple[int | None, Clock | None] = (None, None)


def hand_over(rng: random.Random, side: Side, objects: list[Held]) -> None:
    block, warp, held = rng.randrange(BLOCKS), rng.randrange(THREADS // 32), rng.choice(objects)
    mask = rng.choice([0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 1, 2, 0x80000005])
    what = rng.randrange(4)
    if what == 0:
        past, clock = held.arriving
        told = side.blocks[block].publish(warp, mask, past), side.oracle.publish(block, warp, mask, clock)
        held.arriving = told
    elif what == 1:
        (new, new_clock), (old, old_clock) = held.arriving, held.completed
        clocks = [clock for clock in (new_clock, old_clock) if clock is not None]
        both = side.blocks[block].join(new, old), numpy.max(clocks, axis=0) if clocks else None
        held.arriving, held.completed = (None, None), both
    else:
        side.blocks[block].learn(warp, mask, held.completed[0])
        side.oracle.learn(block, warp, mask, held.completed[1])


@pytest.mark.parametrize("seed", [5, 7, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 100))])
def test_objects_order_as_brute_force_says(seed: int) -> None:
    """Long enough that a walk through what happened before forgets where it has been."""
    rng = random.Random(seed)
    with Launch() as launch:
        blocks = [launch.block(index, THREADS) for index in range(BLOCKS)]
        side, objects, reports = Side(launch, blocks, Oracle(BLOCKS, THREADS)), [Held() for _ in range(5)], []
        for event in range(LONG):
            if rng.random() < (0.01 if event < LONG - 100 else 0.2):
                reports.append(plain(rng, side, loose=False))
            elif rng.random() < 0.02:
                synchronise(rng, side)
            else:
                hand_over(rng, side, objects)
        assert launch.missed is Missed.NOTHING
        accesses, pairs = side.oracle.accesses, side.oracle.races()
        named = {tuple(n for k in pair for n in (accesses[k].instr, accesses[k].thread)) for pair in pairs}
    assert_true_races(reports, named, seed)
    told = min((report.instr for report in reports if report.conflicts), default=None)
    assert told == min((instr for _, _, instr, _ in named), default=None), f"seed {seed}"


def run(seed: int, events: int, loose: bool) -> tuple[list[Report], set[tuple[int, int, int, int]]]:
    """`loose`: also equal stores, volatile in shared memory and narrow scopes, where the detector may stay silent."""
    rng = random.Random(seed)
    # Mostly synchronisation, or nearly every program would race in its first steps.
    plains, strongs = rng.choice([(0.15, 0.3), (0.3, 0.2), (0.1, 0.6)])
    with Launch() as launch:
        blocks = [launch.block(index, THREADS) for index in range(BLOCKS)]
        side = Side(launch, blocks, Oracle(BLOCKS, THREADS))
        reports = []
        for _ in range(events):
            draw = rng.random()
            if draw < plains:
                reports.append(plain(rng, side, loose))
            elif draw < plains + strongs:
                reports.append(strong(rng, side, loose))
            else:
                synchronise(rng, side)
        assert launch.missed is Missed.NOTHING
        accesses = side.oracle.accesses
        pairs = {
            (accesses[i].instr, accesses[i].thread, accesses[j].instr, accesses[j].thread)
            for i, j in side.oracle.races()
        }
        return reports, pairs


def assert_true_races(reports: list[Report], pairs: set[tuple[int, int, int, int]], seed: int) -> None:
    for report in reports:
        if report.conflicts:
            assert report.kind, f"seed {seed}: {report} has no pair"
            other = report.other[0] * THREADS + report.other[1]
            here = report.here[0] * THREADS + report.here[1]
            assert (report.other_instr, other, report.instr, here) in pairs, f"seed {seed}: {report} is no race"


@pytest.mark.parametrize("chunk", [*range(3), *(pytest.param(chunk, marks=pytest.mark.slow) for chunk in range(3, 10))])
def test_the_first_race_is_the_one_brute_force_finds(chunk: int) -> None:
    racy = 0
    for seed in range(chunk * 100, chunk * 100 + 100):
        reports, pairs = run(seed, events=60, loose=False)
        assert_true_races(reports, pairs, seed)
        told = min((report.instr for report in reports if report.conflicts), default=None)
        true = min((instr for _, _, instr, _ in pairs), default=None)
        assert told == true, f"seed {seed}"
        racy += told is not None
    assert racy > 10


@pytest.mark.parametrize("chunk", [0, *(pytest.param(chunk, marks=pytest.mark.slow) for chunk in range(1, 3))])
def test_no_program_is_wronged(chunk: int) -> None:
    racy = 0
    for seed in range(5000 + chunk * 100, 5100 + chunk * 100):
        reports, pairs = run(seed, events=60, loose=True)
        assert_true_races(reports, pairs, seed)
        racy += any(report.conflicts for report in reports)
    assert racy > 10

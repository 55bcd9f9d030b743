"""The race detector, one rule at a time."""

from __future__ import annotations

import random
import threading

import pytest
from tests.ptx.races_driver import LANES, Block, Kind, Launch, Missed, Order, Race, Report, Scope

ROW = {lane: lane * 4 for lane in range(LANES)}
GLOBAL = 0x20_0000_0000
FLAG = {0: GLOBAL + 0x100000}
ALL = 0xFFFFFFFF


def row(start: int, size: int = 4) -> dict[int, int]:
    return {lane: start + lane * size for lane in range(LANES)}


def quiet(*reports: Report) -> None:
    assert [report for report in reports if report.conflicts] == []


# -- shared memory and barriers --


def test_a_read_of_another_warps_write_needs_a_barrier() -> None:
    with Launch() as launch:
        block = launch.block(index=7)
        quiet(block.write(0, ROW, instr=1))
        found = block.read(1, ROW, instr=2)
        assert (found.conflicts, found.kind, found.shared, found.address) == (32, Race.READ_AFTER_WRITE, True, 0)
        assert (found.here, found.instr, found.other, found.other_instr) == ((7, 32), 2, (7, 0), 1)
        again = block.read(1, ROW, instr=2)
        assert (again.conflicts, again.kind) == (32, Race.NONE), "a pair of instructions is told once"
        block.barrier()
        quiet(block.read(1, ROW, instr=3))


def test_a_write_over_what_others_read_needs_a_barrier() -> None:
    with Launch() as launch:
        block = launch.block(threads=128)
        quiet(block.write(0, {3: 40}, instr=1))
        block.barrier()
        quiet(*(block.read(warp, dict.fromkeys(range(LANES), 40), instr=2) for warp in range(4)))
        found = block.write(0, {3: 40}, instr=3)
        assert (found.kind, found.other_instr, found.address) == (Race.WRITE_AFTER_READ, 2, 40)
        block.barrier()
        quiet(block.write(0, {3: 40}, instr=4))


def test_lanes_of_a_warp_need_syncwarp_between_them() -> None:
    shifted = {lane: (lane * 4 + 4) % 128 for lane in range(LANES)}
    with Launch() as launch:
        block = launch.block()
        quiet(block.write(0, ROW, instr=1))
        quiet(block.read(0, ROW, instr=2))
        found = block.read(0, shifted, instr=3)
        assert (found.conflicts, found.kind, found.here, found.other) == (32, Race.READ_AFTER_WRITE, (0, 0), (0, 1))
        block.syncwarp(0)
        quiet(block.write(0, ROW, instr=4))
        block.syncwarp(0)
        quiet(block.read(0, shifted, instr=5))
        # The other warp takes no part in that.
        assert block.read(1, shifted, instr=6).kind is Race.READ_AFTER_WRITE


def test_half_a_warp_synchronises_only_itself() -> None:
    low, high = 0x0000FFFF, 0xFFFF0000
    with Launch() as launch:
        block = launch.block()
        quiet(block.write(0, ROW, instr=1))
        block.syncwarp(0, low)
        block.syncwarp(0, high)
        quiet(block.read(0, {3: 4 * 9, 20: 4 * 30}, instr=2))
        found = block.read(0, {2: 4 * 20}, instr=3)
        assert (found.here, found.other) == ((0, 2), (0, 20))
        # What lane 15 learns it passes on: 16 to 15, then 15 to 0.
        quiet(block.write(0, {16: 256}, instr=4))
        block.syncwarp(0, 1 << 16 | 1 << 15)
        block.syncwarp(0, 1 << 15 | 1)
        quiet(block.read(0, {0: 256}, instr=5))
        assert block.read(0, {1: 256}, instr=6).kind is Race.READ_AFTER_WRITE


def test_lanes_of_one_instruction_may_store_the_same_but_not_different_values() -> None:
    with Launch() as launch:
        block = launch.block()
        place = dict.fromkeys(range(LANES), 16)
        quiet(block.write(0, place, instr=1, values=dict.fromkeys(range(LANES), b"abcd")))
        quiet(block.write(1, place, instr=2, values=dict.fromkeys(range(LANES), b"abcd")))
        values = {lane: b"abcd" if lane != 9 else b"abce" for lane in range(LANES)}
        found = block.write(1, place, instr=3, values=values)
        assert (found.kind, found.address) == (Race.WRITE_AFTER_WRITE, 16)
        assert {found.here[1], found.other[1]} & {32 + 9}
        # A read in conflict with an equal store is still a race.
        assert block.read(0, {0: 16}, instr=4).kind is Race.READ_AFTER_WRITE


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_neighbours_of_any_width_do_not_disturb_each_other(size: int) -> None:
    with Launch() as launch:
        block = launch.block()
        for width in (16, 8, 4, 2, 1):
            quiet(block.write(0, row(1024, width), instr=width, size=width))
            quiet(block.read(0, row(1024, width), instr=20 + width, size=width))
            block.barrier()
        quiet(block.write(0, {0: 0}, instr=40, size=size))
        quiet(block.write(1, {0: size}, instr=41, size=size))
        found = block.read(1, {5: size - 1}, instr=42, size=1)
        assert (found.kind, found.address, found.other_instr) == (Race.READ_AFTER_WRITE, size - 1, 40)
        found = block.write(0, {5: 2 * size - 1}, instr=43, size=1)
        assert (found.kind, found.address, found.other_instr) == (Race.WRITE_AFTER_WRITE, 2 * size - 1, 41)


def test_odd_sizes_and_places_are_seen_to_the_byte() -> None:
    with Launch() as launch:
        block = launch.block()
        quiet(block.write(0, {0: 1021}, instr=1, size=7))  # misaligned, over the end of a page
        quiet(block.write(1, {0: 1028}, instr=2, size=4), block.write(1, {0: 1020}, instr=3, size=1))
        assert block.read(1, {0: 1027}, instr=4, size=1).other_instr == 1
        assert block.read(1, {0: 1021}, instr=5, size=1).other_instr == 1
        quiet(block.write(0, {0: 4096}, instr=6), block.write(1, {0: 2**32 - 2}, instr=7))  # outside: not looked at


def test_named_barriers_order_those_who_take_part() -> None:
    with Launch() as launch:
        block = launch.block(threads=128)
        quiet(*(block.write(warp, row(warp * 128), instr=warp) for warp in range(4)))
        block.barrier([ALL, ALL, 0, 0], number=1)
        quiet(block.read(0, row(128), instr=10), block.read(1, row(0), instr=11))
        assert block.read(1, row(256), instr=12).other == (0, 64)
        assert block.read(2, row(0), instr=13).kind is Race.READ_AFTER_WRITE
        block.barrier([0, ALL, ALL, 0], number=2)
        quiet(block.write(2, row(0), instr=14))  # warp 1 knew of warp 0
        assert block.write(3, row(0), instr=15).kind is Race.WRITE_AFTER_WRITE


def test_arrival_releases_but_does_not_acquire() -> None:
    with Launch() as launch:
        block = launch.block()
        quiet(block.write(0, row(0), instr=1), block.write(1, row(128), instr=2))
        block.arrive(1, 0)
        quiet(block.write(0, row(256), instr=3))  # after its arrival
        block.barrier([0, ALL], number=1)
        quiet(block.read(1, row(0), instr=4))
        assert block.read(1, row(256), instr=5).other_instr == 3
        assert block.read(0, row(128), instr=6).other_instr == 2


def test_threads_that_ended_do_not_hold_up_a_barrier() -> None:
    with Launch() as launch:
        block = launch.block(threads=96)
        quiet(block.write(2, {0: 0}, instr=1), block.exit(2), block.exit(1, 0xFFFF0000))
        block.barrier([ALL, 0x0000FFFF, 0])
        quiet(block.read(1, {3: 0}, instr=2))


def test_a_block_begins_with_nothing_behind_it() -> None:
    with Launch() as launch:
        block = launch.block()
        quiet(block.write(0, ROW, instr=1), block.copy(1, {0: 512}, instr=2))
        block.begin(1, 64)
        quiet(block.read(1, ROW, instr=3), block.write(0, {0: 512}, instr=4), block.read(0, {0: 516}, instr=5))


# -- atomics, volatile --


def test_atomics_race_with_plain_accesses_only() -> None:
    with Launch() as launch:
        block = launch.block()
        quiet(block.atomic(0, {0: 8}, instr=1), block.atomic(1, {0: 8}, instr=2))
        found = block.read(0, {1: 8}, instr=3)
        assert (found.kind, found.atomic) == (Race.READ_AFTER_WRITE, (False, True))
        block.barrier()
        quiet(block.read(0, {1: 8}, instr=4))
        found = block.atomic(1, {0: 8}, instr=5)
        assert (found.kind, found.atomic) == (Race.WRITE_AFTER_READ, (True, False))


def test_the_last_atomic_stands_for_those_before_it() -> None:
    with Launch() as launch:
        block = launch.block(threads=256)
        quiet(*(block.atomic(warp, dict.fromkeys(range(LANES), 8), instr=1) for warp in range(8)))
        found = block.read(3, {0: 8}, instr=2)
        assert (found.kind, found.other) == (Race.READ_AFTER_WRITE, (0, 255))
        block.begin(1, 256)
        quiet(*(block.atomic(warp, dict.fromkeys(range(LANES), 8), instr=1) for warp in range(8)))
        quiet(block.write(7, {31: 8}, instr=3))  # it saw all the others


def test_who_saw_a_strong_write_may_follow_it_with_a_plain_one() -> None:
    """The last block to count resets the counter, and a thread that polled a flag clears it; no fence is needed."""
    options = {"shared": False}
    with Launch() as launch:
        blocks = [launch.block(i) for i in range(5)]
        quiet(*(block.atomic(0, FLAG, instr=1, **options) for block in blocks))
        blocks[4].barrier()
        quiet(blocks[4].write(1, {7: FLAG[0]}, instr=2, **options))
        assert blocks[3].read(0, FLAG, instr=3, **options).other == (4, 39)
    with Launch() as launch:
        one, two = launch.block(0), launch.block(1)
        quiet(one.write(0, FLAG, instr=1, order=Order.VOLATILE, **options))
        for _ in range(3):
            quiet(two.read(0, FLAG, instr=2, order=Order.VOLATILE, **options))
        two.barrier()
        quiet(two.read(0, FLAG, instr=3, order=Order.VOLATILE, **options))
        quiet(two.read(1, FLAG, instr=4, **options))
        two.barrier()
        quiet(two.write(1, FLAG, instr=5, **options))
    with Launch() as launch:
        one, two = launch.block(0), launch.block(1)
        quiet(two.read(0, FLAG, instr=2, order=Order.VOLATILE, **options))  # before the write: saw nothing
        quiet(one.write(0, FLAG, instr=1, order=Order.VOLATILE, **options))
        assert two.write(0, FLAG, instr=3, **options).other_instr == 1


def test_volatile_is_atomic_between_warps_but_not_inside_one() -> None:
    with Launch() as launch:
        block = launch.block()
        quiet(
            block.write(0, {0: 0}, instr=1, order=Order.VOLATILE), block.read(1, {0: 0}, instr=2, order=Order.VOLATILE)
        )
        assert block.read(0, {1: 0}, instr=3, order=Order.VOLATILE).kind is Race.READ_AFTER_WRITE
        place = {0: GLOBAL}
        options = {"shared": False, "order": Order.VOLATILE}
        quiet(block.write(0, place, instr=4, **options), block.read(0, {1: GLOBAL}, instr=5, **options))


def test_the_scope_of_an_atomic_must_hold_both_threads() -> None:
    with Launch() as launch:
        one, two = launch.block(0), launch.block(1)
        for block in (one, two):
            quiet(block.atomic(0, FLAG, instr=1, shared=False, scope=Scope.GPU))
        quiet(one.atomic(1, {0: GLOBAL}, instr=2, shared=False, scope=Scope.CTA))
        quiet(one.atomic(0, {0: GLOBAL}, instr=3, shared=False, scope=Scope.CTA))
        assert two.atomic(0, {0: GLOBAL}, instr=4, shared=False).kind is Race.WRITE_AFTER_WRITE


# -- between blocks --


def test_blocks_race_on_global_memory() -> None:
    with Launch() as launch:
        one, two = launch.block(3), launch.block(5)
        quiet(one.write(1, row(GLOBAL), instr=1, shared=False))
        one.barrier()
        two.barrier()
        found = two.read(0, {4: GLOBAL + 16}, instr=2, shared=False)
        assert (found.kind, found.address, found.here, found.other) == (
            Race.READ_AFTER_WRITE, GLOBAL + 16, (5, 4), (3, 36),
        )  # fmt: skip
        one.begin(8, 64)  # the same object, another block
        assert one.write(1, {4: GLOBAL + 16}, instr=3, shared=False).other == (3, 36)


def last_block_sum(blocks: list[Block], fence_before: bool, fence_by: str = "all") -> list[Report]:
    """Each block writes partials, counts itself done, and the last reads them all; no fence after the counting."""
    reports = []
    for number, block in enumerate(blocks):
        reports.append(block.write(1, row(GLOBAL + number * 128), instr=1, shared=False))
        if fence_before and fence_by == "all":
            block.fence(0)
            block.fence(1)
        block.barrier()
        if fence_before and fence_by == "one":
            block.fence(0, 1)
        reports.append(block.atomic(0, FLAG, instr=2, shared=False))
        block.barrier()
    partials = [row(GLOBAL + number * 128) for number in range(len(blocks))]
    return [*reports, *(blocks[-1].read(0, partial, instr=3, shared=False) for partial in partials)]


@pytest.mark.parametrize("count", [2, 40])
def test_the_last_block_may_read_what_was_fenced(count: int) -> None:
    with Launch() as launch:
        quiet(*last_block_sum([launch.block(i) for i in range(count)], fence_before=True))
    with Launch() as launch:
        quiet(*last_block_sum([launch.block(i) for i in range(count)], fence_before=True, fence_by="one"))
    with Launch() as launch:
        reports = last_block_sum([launch.block(i) for i in range(count)], fence_before=False)
        found = next(report for report in reports if report.conflicts)
        assert (found.kind, found.instr, found.other_instr) == (Race.READ_AFTER_WRITE, 3, 1)


def test_a_fence_before_the_write_does_not_help() -> None:
    with Launch() as launch:
        one, two = launch.block(0), launch.block(1)
        one.fence(0)
        quiet(one.write(0, {0: GLOBAL}, instr=1, shared=False), one.atomic(0, FLAG, instr=2, shared=False))
        quiet(two.atomic(0, FLAG, instr=3, shared=False))
        two.fence(0)
        assert two.read(0, {0: GLOBAL}, instr=4, shared=False).kind is Race.READ_AFTER_WRITE


def test_a_reader_must_fence_too_and_must_have_observed() -> None:
    for fenced, observed in ((True, True), (True, False), (False, True)):
        with Launch() as launch:
            one, two = launch.block(0), launch.block(1)
            quiet(one.write(0, {0: GLOBAL}, instr=1, shared=False))
            one.fence(0, 1)
            quiet(one.write(0, FLAG, instr=2, shared=False, order=Order.VOLATILE))
            if observed:
                quiet(two.read(0, FLAG, instr=3, shared=False, order=Order.VOLATILE))
            if fenced:
                two.fence(0, 1)
            found = two.read(0, {0: GLOBAL}, instr=4, shared=False)
            assert bool(found.conflicts) is not (fenced and observed)
            # Only the thread that looked knows.
            assert two.read(0, {1: GLOBAL}, instr=5, shared=False).conflicts == 1


def test_a_fence_of_the_blocks_scope_does_not_reach_other_blocks() -> None:
    for scope, clean in ((Scope.CTA, False), (Scope.GPU, True)):
        with Launch() as launch:
            one, two = launch.block(0), launch.block(1)
            quiet(one.write(0, {0: GLOBAL}, instr=1, shared=False))
            one.fence(0, 1, scope)
            quiet(one.atomic(0, FLAG, instr=2, shared=False))
            quiet(one.atomic(1, FLAG, instr=3, shared=False))
            one.fence(1, 1, Scope.CTA)
            quiet(one.read(1, {0: GLOBAL}, instr=4, shared=False))  # inside the block it does
            quiet(two.atomic(0, FLAG, instr=5, shared=False))
            two.fence(0, 1)
            assert (two.read(0, {0: GLOBAL}, instr=6, shared=False).conflicts == 0) is clean


def test_release_and_acquire_need_no_fences() -> None:
    with Launch() as launch:
        one, two, three = (launch.block(i) for i in range(3))
        quiet(one.write(0, {0: GLOBAL}, instr=1, shared=False))
        quiet(one.write(0, FLAG, instr=2, shared=False, order=Order.RELEASE))
        quiet(one.write(0, {0: GLOBAL + 4}, instr=3, shared=False))  # after the release
        quiet(two.atomic(0, FLAG, instr=4, shared=False))  # a relaxed atomic in between carries it on
        quiet(three.read(0, FLAG, instr=5, shared=False, order=Order.ACQUIRE))
        quiet(three.read(0, {0: GLOBAL}, instr=6, shared=False))
        assert three.read(0, {0: GLOBAL + 4}, instr=7, shared=False).other_instr == 3
        # A relaxed store by someone else ends it.
        quiet(two.write(0, FLAG, instr=8, shared=False, order=Order.RELAXED))
        quiet(two.read(0, FLAG, instr=9, shared=False, order=Order.ACQUIRE))
        assert two.read(0, {0: GLOBAL}, instr=10, shared=False).other_instr == 1


def test_a_grid_barrier_orders_all_blocks_every_time() -> None:
    with Launch() as launch:
        blocks = [launch.block(i, threads=128) for i in range(6)]
        for turn in range(5):
            for number, block in enumerate(blocks):
                for warp in range(4):
                    place = row(GLOBAL + (turn % 2 * 6 + number) * 512 + warp * 128)
                    quiet(block.write(warp, place, instr=turn * 10, shared=False))
                block.barrier()
                block.fence(0, 1)
                quiet(block.atomic(0, FLAG, instr=turn * 10 + 1, shared=False))
            for block in blocks:
                quiet(block.read(0, FLAG, instr=turn * 10 + 2, shared=False, order=Order.VOLATILE))
                block.fence(0, 1)
                block.barrier()
            for number, block in enumerate(blocks):
                for warp in range(4):
                    source = (number + warp + 1) % 6
                    place = row(GLOBAL + (turn % 2 * 6 + source) * 512 + (3 - warp) * 128)
                    quiet(block.read(warp, place, instr=turn * 10 + 3, shared=False))


def test_decoupled_look_back_is_clean() -> None:
    """Each block publishes a prefix behind a flag and the next one, which polls the flag, reads it."""
    with Launch() as launch:
        blocks = [launch.block(i) for i in range(300)]
        for number, block in enumerate(blocks):
            if number:
                before = {0: GLOBAL + 65536 + (number - 1) * 4}
                for _ in range(3):
                    quiet(block.read(0, before, instr=1, shared=False, order=Order.RELAXED))
                block.fence(0)
                block.syncwarp(0)
                quiet(block.read(0, dict.fromkeys(range(LANES), GLOBAL + (number - 1) * 4), instr=2, shared=False))
                # All before it, too, through the chain.
                quiet(block.read(0, {0: GLOBAL + number // 2 * 4}, instr=3, shared=False)) if number > 2 else None
            block.barrier()
            quiet(block.write(1, {0: GLOBAL + number * 4}, instr=4, shared=False))
            block.fence(1)
            block.barrier()
            quiet(block.write(0, {0: GLOBAL + 65536 + number * 4}, instr=5, shared=False, order=Order.RELAXED))


def test_a_spin_lock_orders_its_holders() -> None:
    lock, data = {0: 0}, {0: 64}
    with Launch() as launch:
        block = launch.block(threads=1024)
        for warp in (3, 31, 0, 3, 17):
            quiet(block.atomic(warp, lock, instr=1))
            block.fence(warp, 1, Scope.CTA)
            quiet(block.read(warp, data, instr=2), block.write(warp, data, instr=3))
            block.fence(warp, 1, Scope.CTA)
            quiet(block.atomic(warp, lock, instr=4))
        assert block.read(5, data, instr=5).other == (0, 17 * 32)


# -- cp.async --


def test_a_copy_must_be_waited_for_and_then_shared_by_a_barrier() -> None:
    where = row(0, 16)
    with Launch() as launch:
        block = launch.block()
        quiet(block.copy(0, where, instr=1))
        early = block.read(0, {0: 4}, instr=2)
        assert (early.kind, early.other_instr, early.is_async) == (Race.ASYNC_NOT_WAITED, 1, (False, True))
        block.barrier()  # a barrier is no wait
        assert block.read(1, {0: 512 - 4}, instr=3).kind is Race.ASYNC_NOT_WAITED
        block.copied(0, where)
        quiet(block.read(0, {0: 4}, instr=4))
        unshared = block.read(1, {0: 4}, instr=5)
        assert (unshared.kind, unshared.other_instr, unshared.is_async) == (Race.READ_AFTER_WRITE, 1, (False, True))
        block.barrier()
        quiet(block.read(1, {0: 20}, instr=6), block.exit(0), block.exit(1))


def test_a_copy_may_not_land_on_what_others_still_read_or_copy() -> None:
    with Launch() as launch:
        block = launch.block()
        quiet(block.read(1, {0: 16}, instr=1))
        over = block.copy(0, {0: 16}, instr=2)
        assert (over.kind, over.other_instr, over.is_async) == (Race.WRITE_AFTER_READ, 1, (True, False))
        again = block.copy(0, {0: 16}, instr=3)
        assert (again.kind, again.other_instr) == (Race.ASYNC_OVERWRITTEN, 2)
        assert block.write(0, {0: 20}, instr=4).kind is Race.ASYNC_OVERWRITTEN


def test_a_copy_left_behind_is_told_at_the_end() -> None:
    with Launch() as launch:
        block = launch.block(index=2)
        quiet(block.copy(1, {4: 64, 5: 80}, instr=9), block.copy(1, {4: 96}, instr=10))
        block.copied(1, {4: 64})
        left = block.exit(1)
        assert (left.conflicts, left.kind, left.instr, left.address) == (2, Race.ASYNC_NOT_CONSUMED, 9, 64)
        assert left.here == (2, 36)


# -- bounds --


def test_a_small_budget_is_said_and_nothing_is_invented() -> None:
    with Launch(budget_bytes=1 << 16) as launch:
        one, two = launch.block(0), launch.block(1)
        for number in range(200):
            one.write(0, row(GLOBAL + number * 1024), instr=1, shared=False)
            one.fence(0)
            one.atomic(0, {0: GLOBAL - 4096 * number}, instr=2, shared=False)
        assert launch.missed is Missed.GLOBAL
        two.atomic(0, {0: GLOBAL}, instr=3, shared=False)
        two.fence(0)
        quiet(two.read(0, row(GLOBAL + 1024 * 150), instr=4, shared=False))


def test_shared_places_that_are_not_watched_are_said() -> None:
    with Launch(budget_bytes=1 << 16) as launch:
        block = launch.block(shared_bytes=64 << 10)
        quiet(block.write(0, {lane: lane for lane in range(LANES)}, size=1, instr=1))
        assert launch.missed is Missed.NOTHING
        quiet(
            *(
                block.write(0, {lane: 1024 * page + lane for lane in range(LANES)}, size=1, instr=2)
                for page in range(60)
            )
        )
        assert launch.missed is Missed.SHARED


def test_an_order_that_is_lost_is_said_when_it_matters() -> None:
    with Launch(budget_bytes=1 << 18) as launch:
        one, two = launch.block(0), launch.block(1)
        quiet(two.write(0, {0: GLOBAL}, instr=1, shared=False))
        for _ in range(5000):
            one.fence(0)
            one.atomic(0, FLAG, instr=2, shared=False)
        assert launch.missed is Missed.NOTHING
        quiet(one.read(0, {0: GLOBAL}, instr=3, shared=False))
        assert launch.missed is Missed.ORDER


def test_any_events_in_any_order_are_survived() -> None:
    rng = random.Random(11)
    with Launch(budget_bytes=4 << 20) as launch:
        blocks = [launch.block(i, threads=rng.choice([1, 33, 1024]), shared_bytes=3000) for i in range(4)]
        for step in range(6000):
            block, warp, mask = rng.choice(blocks), rng.randrange(-1, 34), rng.getrandbits(32)
            lanes = {lane: rng.randrange(3100) for lane in range(LANES) if mask >> lane & 1}
            far = {lane: rng.choice([address, 2**64 - 1 - address]) for lane, address in lanes.items()}
            size = rng.choice([0, 1, 2, 3, 4, 8, 12, 16, 32, 64, 65])
            match rng.randrange(10):
                case 0 | 1 | 2:
                    shared = rng.random() < 0.7
                    options = {"shared": shared, "order": rng.choice(list(Order)), "scope": rng.choice(list(Scope))}
                    touched = lanes if shared else far
                    block.access(rng.choice(list(Kind)), warp, touched, instr=step, size=size, **options)
                case 3:
                    block.barrier([rng.getrandbits(32) for _ in range(rng.randrange(34))], rng.randrange(-1, 17))
                case 4:
                    block.arrive(rng.randrange(-1, 17), warp, mask)
                case 5:
                    block.syncwarp(warp, mask)
                case 6:
                    block.fence(warp, mask, rng.choice(list(Scope)))
                case 7:
                    block.copy(max(0, min(warp, 31)), lanes, instr=step, size=size)
                case 8:
                    block.copied(max(0, min(warp, 31)), lanes, size=size)
                case _:
                    block.exit(warp, mask & mask >> 3) if rng.random() < 0.2 else block.observe(warp, far)
            if rng.random() < 0.002:
                block.begin(step, rng.choice([0, 1, 64, 1024, 5000]))


def test_blocks_on_several_threads_of_the_host() -> None:
    """ctypes drops the lock of Python, so these really run at once: private rows, one counter, a few shared places."""
    conflicts: list[int] = []
    with Launch(workers=4) as launch:
        blocks = [launch.block(i) for i in range(4)]

        def work(number: int) -> None:
            block, seen = blocks[number], 0
            for turn in range(400):
                place = GLOBAL + 0x10000 + (turn * 4 + number) * 128
                seen += block.write(0, row(place), instr=1, shared=False).conflicts
                seen += block.atomic(0, dict.fromkeys(range(LANES), GLOBAL), instr=2, shared=False).conflicts
                block.fence(0, 1)
                seen += block.atomic(0, FLAG, instr=3, shared=False).conflicts
                block.observe(0, FLAG)
                block.fence(0, 1)
                block.barrier()
                seen += block.read(0, row(place), instr=4, shared=False).conflicts
            conflicts.append(seen)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert conflicts == [0, 0, 0, 0]
        # One of the two did not make the last atomic.
        late = [block.write(0, {0: GLOBAL}, instr=9, shared=False) for block in blocks[:2]]
        assert any(report.kind is Race.WRITE_AFTER_WRITE for report in late)


# -- guesses of compare-and-swap loops --


@pytest.mark.parametrize("shared", [True, False])
def test_a_guess_goes_with_atomics_and_not_with_plain_writes(shared: bool) -> None:
    at = {0: 64} if shared else {0: GLOBAL}
    with Launch() as launch:
        block = launch.block()
        quiet(
            block.read(0, at, instr=1, order=Order.GUESS, shared=shared),
            block.atomic(1, at, instr=2, shared=shared),
            block.read(0, at, instr=3, order=Order.GUESS, shared=shared),
            block.atomic(0, at, instr=4, shared=shared),
        )
        found = block.read(1, at, instr=5, shared=shared)
        assert (found.kind, found.other_instr) == (Race.READ_AFTER_WRITE, 4), "a plain read is still a race"
        quiet(block.write(0, {0: at[0] + 4}, instr=6, shared=shared))
        found = block.read(1, {0: at[0] + 4}, instr=7, order=Order.GUESS, shared=shared)
        assert (found.kind, found.other_instr) == (Race.READ_AFTER_WRITE, 6)
        quiet(block.read(1, {0: at[0] + 8}, instr=8, order=Order.GUESS, shared=shared))
        found = block.write(0, {0: at[0] + 8}, instr=9, shared=shared)
        assert (found.kind, found.other_instr) == (Race.WRITE_AFTER_READ, 8)


def test_a_guess_acquires_nothing() -> None:
    with Launch() as launch:
        one, two = launch.block(0), launch.block(1)
        quiet(one.write(0, {0: GLOBAL}, instr=1, shared=False))
        one.fence(0)
        quiet(one.atomic(0, FLAG, instr=2, shared=False))
        quiet(two.read(0, FLAG, instr=3, order=Order.GUESS, shared=False))
        two.fence(0)
        assert two.read(0, {0: GLOBAL}, instr=4, shared=False).kind is Race.READ_AFTER_WRITE


def test_a_guess_has_the_scope_of_its_swap() -> None:
    with Launch() as launch:
        one, two = launch.block(0), launch.block(1)
        quiet(one.read(0, FLAG, instr=1, order=Order.GUESS, scope=Scope.CTA, shared=False))
        assert two.atomic(0, FLAG, instr=2, shared=False).kind is Race.WRITE_AFTER_READ

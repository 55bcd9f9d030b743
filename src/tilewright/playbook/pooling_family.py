"""Pooling: maxima and means of windows, in one to three dimensions, with pointwise work before and after."""

from __future__ import annotations

from functools import partial

from tilewright.playbook.catalogue import Way
from tilewright.playbook.families import Family, Schedules, Structure, TracedTask
from tilewright.playbook.file_text import file_of
from tilewright.playbook.pooling.apart import apart, lies_apart
from tilewright.playbook.pooling.bulk import bulk, can_copy
from tilewright.playbook.pooling.program import POOLS, PoolProgram, pool_program
from tilewright.playbook.pooling.strips import strips

_HOPPER = 90  # compute capability from which there are bulk copies


def pool_ways(program: PoolProgram) -> tuple[Way, ...]:
    """The most promising first."""
    rows = program.placed.as_rows()
    summary = "strips of the result: columns combined in registers, then rows through shared memory"
    found = [Way(rows, "pool-strips", summary, partial(strips, program))]
    if lies_apart(program):
        summary = "windows that do not overlap: a thread loads whole windows, and needs no neighbour"
        found.insert(0, Way(rows, "pool-apart", summary, partial(apart, program)))
    return tuple(found)


def _matches(traced: TracedTask) -> Schedules | None:
    if not traced.targets & POOLS:
        return None
    program = pool_program(traced)
    ways = pool_ways(program)
    if traced.task.profile.cc >= _HOPPER and can_copy(program):
        summary = "strips of planes copied to shared memory and results back, a thread goes down a column"
        ways = (Way(program.placed.as_rows(), "pool-bulk", summary, partial(bulk, program)), *ways)
    return Schedules(tuple(Structure(one.id, one.summary, partial(file_of, one.fragment)) for one in ways))


POOLING_FAMILY = Family("pooling", POOLS, _matches)

"""Pooling: maxima and means of windows, in one to three dimensions, with pointwise work before and after."""

from __future__ import annotations

from functools import partial

from tilewright.playbook.catalogue import Way
from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import Answer, Family, Structure, TracedTask
from tilewright.playbook.file_text import file_of
from tilewright.playbook.pooling.apart import apart, lies_apart
from tilewright.playbook.pooling.bulk import bulk, can_copy
from tilewright.playbook.pooling.draft import draft
from tilewright.playbook.pooling.program import POOLS, PoolProgram, pool_program
from tilewright.playbook.pooling.strips import strips

_REFUSED_NAMES = """
_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d
fractional_max_pool3d max_unpool2d max_unpool3d
"""
_REFUSED = frozenset(_REFUSED_NAMES.split())
_HOPPER = 90  # compute capability from which there are bulk copies


def pool_ways(program: PoolProgram) -> tuple[Way, ...]:
    """After the first version, the most promising first."""
    rows = program.placed.as_rows()
    summary = "strips of the result: columns combined in registers, then rows through shared memory"
    found = [Way(rows, "pool-strips", summary, partial(strips, program))]
    if lies_apart(program):
        summary = "windows that do not overlap: a thread loads whole windows, and needs no neighbour"
        found.insert(0, Way(rows, "pool-apart", summary, partial(apart, program)))
    return tuple(found)


def _answer(traced: TracedTask) -> Answer:
    for name in sorted(traced.targets & _REFUSED):
        raise NotSupported(
            f"the playbook does not support the operation {name.strip('_')}; it writes max and average pooling with a "
            "window of given sizes"
        )
    program = pool_program(traced)
    first = Structure(
        "draft-pool", "first version: one thread goes through one window", partial(file_of, partial(draft, program))
    )
    ways = pool_ways(program)
    if traced.task.profile.cc >= _HOPPER and can_copy(program):
        summary = "strips of planes copied to shared memory and results back, a thread goes down a column"
        ways = (Way(program.placed.as_rows(), "pool-bulk", summary, partial(bulk, program)), *ways)
    later = tuple(Structure(one.id, one.summary, partial(file_of, one.fragment)) for one in ways)
    return Answer(first, later, (first, *later))


POOLING_FAMILY = Family("pooling", POOLS | _REFUSED, lambda traced: bool(traced.targets & (POOLS | _REFUSED)), _answer)

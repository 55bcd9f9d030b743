"""Stages that are neither sums nor rows: windows that are pooled, and elements that change places."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

from tilewright.playbook.catalogue import Way
from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import TracedTask
from tilewright.playbook.moves import draft as draft_moves
from tilewright.playbook.moves import moved, vectors
from tilewright.playbook.places.program import PlacedProgram
from tilewright.playbook.pooling.program import POOLS, PoolProgram, pool_program
from tilewright.playbook.pooling_family import pool_ways


@dataclass(frozen=True)
class PoolStage:
    """Windows of a tensor in memory, with pointwise work before and after."""

    program: PoolProgram

    @property
    def best(self) -> Way:
        return pool_ways(self.program)[0]

    @property
    def simple(self) -> Way:
        return pool_ways(self.program)[0]

    @property
    def elements(self) -> int:
        """That are read at the task's own sizes, about."""
        taps = math.prod(one.stride for one in self.program.windows)
        return _elements(self.program.placed) * taps


@dataclass(frozen=True)
class MoveStage:
    """Results whose elements read a few places each."""

    program: PlacedProgram

    @property
    def simple(self) -> Way:
        summary = "first version: one thread per element, which finds its places"
        return Way(self.program.as_rows(), "draft-places", summary, partial(draft_moves, (self.program,)))

    @property
    def best(self) -> Way:
        if not self.program.variables:
            return self.simple
        summary = "16-byte vectors of the result, each read from where its elements lie"
        return Way(self.program.as_rows(), "place-vectors", summary, partial(vectors, (self.program,)))

    @property
    def elements(self) -> int:
        return _elements(self.program)


def placed_stage(traced: TracedTask) -> PoolStage | MoveStage:
    """A part of a graph as one such stage. Raises `NotSupported` where it is none."""
    outputs = tuple(replace(one, shape=shape) for one, shape in zip(traced.task.outputs, _shapes(traced), strict=True))
    traced = replace(traced, task=replace(traced.task, outputs=outputs))
    if traced.targets & POOLS:
        return PoolStage(pool_program(traced))
    programs = moved(traced)
    if len(programs) > 1:
        raise NotSupported("the playbook moves elements to results of one shape at a time beside products")
    return MoveStage(programs[0])


def _shapes(traced: TracedTask) -> list[tuple[int, ...]]:
    """Of the results, as numbers: their names may be those of sizes that this part of the graph does not see."""
    return [traced.traces[0].nodes[one].result.shape for one in traced.traces[0].outputs]


def _elements(program: PlacedProgram) -> int:
    return math.prod(one.size.own for one in program.variables)

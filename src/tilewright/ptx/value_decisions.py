"""Which decisions of a kernel depend on the values that it computes, for slices that assume how these go.

Values: what floating-point and matrix instructions compute, where asked also what is loaded from global memory, and
what comes from either, also by way of shared memory. Results of atomic operations are none of them: tickets decide
which tile is whose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tilewright.ptx.syntax import Instruction

_FLOATS = frozenset(("f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64", "tf32"))
_MATRICES = ("mma", "wmma", "wgmma")
_MOVES = ("mov", "selp", "st", "shfl", "atom", "red")


@dataclass(frozen=True)
class Assumed:
    holds: bool  # what every comparison of values is taken to find; loops that values end run once
    loads: bool  # whether what is loaded from global memory counts as a value


@dataclass(frozen=True)
class Memory:
    """What an instruction does to shared memory, or loads."""

    loads_global: bool
    reads: bool  # shared memory
    writes: bool
    copies: bool  # from global memory
    variables: frozenset[str] | None  # shared variables that it may touch; None: any


def computes_products(one: Instruction) -> bool:
    return one.opcode in _MATRICES


def decided_by_values(
    body: Sequence[Instruction],
    written: Callable[[Instruction], Iterable[str]],
    used: Callable[[Instruction], Iterable[str]],
    memory: Callable[[int], Memory],
) -> frozenset[str]:
    """The registers that hold values, or what was found by comparing them."""
    places = [memory(index) for index in range(len(body))]
    values: set[str] = set()
    shared: set[str] = set()
    everywhere = False
    grown = True
    while grown:
        before = (len(values), len(shared), everywhere)
        for index, one in enumerate(body):
            place = places[index]
            of_values = any(name in values for name in used(one))
            if place.writes and (of_values or place.copies):
                everywhere |= place.variables is None
                shared |= place.variables or set()
            if one.opcode in ("atom", "red"):
                continue
            held = place.reads and (everywhere or place.variables is None or bool(place.variables & shared))
            if of_values or held or place.loads_global or _is_computed(one):
                values.update(written(one))
        grown = before != (len(values), len(shared), everywhere)
    return frozenset(values)


def _is_computed(one: Instruction) -> bool:
    floating = one.opcode not in _MOVES and one.opcode not in ("ld", "ldu") and not _FLOATS.isdisjoint(one.modifiers)
    return floating or one.opcode in _MATRICES


def leaving_branches(
    successors: Sequence[Sequence[int]], meetings: Sequence[int | None], block: int
) -> tuple[int, ...]:
    """Of a block that ends in a branch, the successors from which it is reached again before its ways meet: those that
    stay in a loop."""
    staying = []
    for first in successors[block]:
        seen, waiting = {first}, [first] if first != meetings[block] else []
        while waiting:
            at = waiting.pop()
            if at == block:
                staying.append(first)
                break
            for following in successors[at]:
                if following not in seen and following != meetings[block]:
                    seen.add(following)
                    waiting.append(following)
    return tuple(staying)

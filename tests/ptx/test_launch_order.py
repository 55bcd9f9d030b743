"""Chains of programmatic launches: an access collides with every earlier launch that nothing says has ended."""

from __future__ import annotations

import itertools
import struct

import pytest
from tests.ptx.cuda_kernels import program_of

from tilewright.ptx.global_memory import GlobalMemory
from tilewright.ptx.launching import LaunchOptions, LaunchRequest
from tilewright.records import FindingKind

NOTHING, FIRST, LAST, ONLY_WAITS = "lets the next start", "waits first", "waits last", "waits and lets nobody start"
HOW = (NOTHING, FIRST, LAST, ONLY_WAITS)
SOURCE = """
extern "C" __global__ void step(float* p, int how, int read, int write, int late) {
  bool waits_first = how == 1 || how == 3;
  if (waits_first) asm volatile("griddepcontrol.wait;" ::: "memory");
  if (how != 3) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  volatile float* q = p;
  if (!late && write) q[threadIdx.x] = 1.0f;
  if (!late && read) q[32 + threadIdx.x] = q[threadIdx.x];
  if (how == 2) asm volatile("griddepcontrol.wait;" ::: "memory");
  if (late && write) q[threadIdx.x] = 1.0f;
  if (late && read) q[32 + threadIdx.x] = q[threadIdx.x];
}
"""
OPTIONS = LaunchOptions(workers=1, instruction_budget=1_000_000)
Step = tuple[str, bool, bool, bool]  # how it waits, reads, writes, late


def found(steps: list[Step], others: dict[int, bool] | None = None) -> list[bool]:
    """Whether each launch of a chain collides with an earlier one. `others`: launches that are not programmatic."""
    program = program_of(SOURCE, "sm_90")
    memory = GlobalMemory()
    tensors = [memory.add(f"p{number}", 256, element_bytes=4) for number in range(len(steps))]
    memory.remember_touches()
    collided = []
    for number, (how, read, write, late) in enumerate(steps):
        parameters = struct.pack("<Qiiii", tensors[0], HOW.index(how), read, write, late)
        overlaps = number > 0 and not (others or {}).get(number, False)
        request = LaunchRequest("step", (2, 1, 1), (32, 1, 1), 0, parameters, overlaps=overlaps, options=OPTIONS)
        kinds = {one.kind for one in program.launch(memory, request).findings} - {FindingKind.RACE_GLOBAL}
        assert kinds <= {FindingKind.NOT_AWAITED}
        collided.append(bool(kinds))
    return collided


def may_run_beside(chain: tuple[str, ...], last: str, *, late: bool) -> set[int]:
    """The launches of the chain that may still run at the access of one more launch, by reachability of events."""
    after: dict[tuple[int, str], set[tuple[int, str]]] = {}

    def orders(first: tuple[int, str], second: tuple[int, str]) -> None:
        after.setdefault(first, set()).add(second)

    every = (*chain, last)
    for number, how in enumerate(every):
        orders((number, "start"), (number, "lets"))
        orders((number, "lets"), (number, "end"))
        if how != NOTHING and number:
            orders((number - 1, "end"), (number, "waited"))
            orders((number, "waited"), (number, "end"))
            if how in (FIRST, ONLY_WAITS):
                orders((number, "waited"), (number, "lets"))
        if number + 1 < len(every):
            orders((number, "lets"), (number + 1, "start"))
        orders((number, "start"), (number, "waited"))
    place = (len(chain), "start")
    if last in (FIRST, ONLY_WAITS) or (last == LAST and late):
        place = (len(chain), "waited")

    def reaches(start: tuple[int, str]) -> bool:
        seen, pending = set[tuple[int, str]](), [start]
        while pending:
            at = pending.pop()
            if at == place:
                return True
            pending += after.get(at, set()) - seen
            seen |= after.get(at, set())
        return False

    return {number for number in range(len(chain)) if not reaches((number, "end"))}


@pytest.mark.parametrize("length", [2, 3, 4, 5])
@pytest.mark.parametrize("reads", [(False, True), (True, False), (False, False)], ids=["raw", "war", "waw"])
def test_every_pattern_of_waits(length: int, reads: tuple[bool, bool]) -> None:
    """The last launch touches what one earlier launch touched: `reads` says which of the two reads it."""
    chains = list(itertools.product(HOW[: 4 if length < 4 else 3], repeat=length - 1))
    for chain, late in itertools.product(chains, (False, True) if length < 5 else (True,)):
        beside = may_run_beside((NOTHING, *chain[:-1]), chain[-1], late=late)
        for owner in {0, length - 2}:
            steps: list[Step] = [(how, False, False, late) for how in (NOTHING, *chain)]
            steps[owner] = (steps[owner][0], reads[0], not reads[0], late)
            steps[-1] = (chain[-1], reads[1], not reads[1], late)
            assert found(steps)[-1] == (owner in beside), (chain, late, owner)


def test_a_launch_that_is_not_programmatic_ends_the_chain() -> None:
    writes, idles, reads = (NOTHING, False, True, False), (NOTHING, False, False, False), (NOTHING, True, False, False)
    assert found([writes, idles, reads]) == [False, False, True]
    assert found([writes, idles, reads], {2: True}) == [False, False, False]
    assert found([writes, idles, idles, reads], {2: True}) == [False, False, False, False]


def test_chains_longer_than_the_launches_that_are_told_apart() -> None:
    waits, idles = (FIRST, False, False, True), (NOTHING, False, False, True)
    writes, reads = (NOTHING, False, True, True), (FIRST, True, False, True)
    assert found([writes, *[waits] * 12, reads])[-1] is False
    assert found([writes, *[idles] * 12, reads])[-1] is True

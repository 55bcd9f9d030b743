"""How many loads a warp has in flight before it must wait, read off the machine code.

The code is followed in the order it stands in: loads gather until an instruction needs the register of one of them, or
a barrier comes. Jumps are not followed, so this is an estimate.
"""

from __future__ import annotations

import re
from functools import lru_cache

from tilewright.records import Build
from tilewright.toolchain import SassInstruction, ToolchainError, disassemble

_REGISTER = re.compile(r"\bR(\d+)\b(\.64)?")
_WAIT = re.compile(r"DEPBAR\.LE SB0, (0x[0-9a-f]+)")
_LOADS = ("LDG", "LD")
_ENDS = ("BAR", "EXIT", "RET", "SYNCS")
UNKNOWN = 2.0  # loads, where there is no disassembler


@lru_cache(maxsize=64)
def loads_in_flight(build: Build) -> dict[str, float]:
    """For each kernel expression, the loads in flight of a warp when it waits: the mean over its loads, at least 1."""
    try:
        listings = disassemble(build)
    except ToolchainError:
        return {kernel.expression: UNKNOWN for kernel in build.kernels}
    return {listing.kernel: mean_in_flight(listing.instructions) for listing in listings}


def mean_in_flight(instructions: tuple[SassInstruction, ...]) -> float:
    """A batch of n loads counts n times with n: most loads stand in the large batches."""
    batches = [*_batches(instructions), *_async_batches(instructions)]
    loads = sum(batches)
    return sum(size * size for size in batches) / loads if loads else 1.0


def _batches(instructions: tuple[SassInstruction, ...]) -> list[int]:
    batches: list[int] = []
    waiting: set[int] = set()
    open_loads = 0
    for instruction in instructions:
        name, *forms = instruction.opcode.split(".")
        is_load = name in _LOADS
        used = _registers(instruction.text)
        needed = used[1:] if is_load else used  # the first is where a load goes
        if open_loads and (name in _ENDS or not waiting.isdisjoint(needed)):
            batches.append(open_loads)
            open_loads, waiting = 0, set()
        if is_load and used:
            open_loads += 1
            words = 4 if "128" in forms else 2 if "64" in forms else 1
            waiting |= set(range(used[0], used[0] + words))
    return [*batches, open_loads] if open_loads else batches


def _async_batches(instructions: tuple[SassInstruction, ...]) -> list[int]:
    """Copies to shared memory that do not pass through registers: as many groups of them as the code leaves pending."""
    copies = sum(1 for one in instructions if one.opcode.split(".")[0] == "LDGSTS")
    pending = [int(found.group(1), 16) for one in instructions if (found := _WAIT.search(one.text))]
    groups = sum(1 for one in instructions if "LDGDEPBAR" in one.text)
    if not copies:
        return []
    in_group = max(1, round(copies / max(groups, 1)))
    return [in_group * (max(pending, default=0) + 1)] * max(groups, 1)


def _registers(text: str) -> list[int]:
    found: list[int] = []
    for number, wide in _REGISTER.findall(text):
        found += [int(number), int(number) + 1] if wide else [int(number)]
    return found

"""Rules on what the compiler made of a kernel: spilled registers, arrays in local memory, occupancy just missed."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator

from tilewright.lint.catalogue import found
from tilewright.ptx.syntax import Function, Space
from tilewright.records import (
    Build,
    GpuProfile,
    Limiter,
    LintFinding,
    LintRule,
    Occupancy,
    PackedLaunch,
    Resources,
    occupancy,
)
from tilewright.records.emulation import kernel_line
from tilewright.toolchain import ToolchainError, disassemble

_LEAST_SPILL = 32  # bytes: a register or two is kept aside for an address, and nobody notices
_TRIM = 16  # a cliff is near where a sixteenth less of the resource avoids it
_WORTH = 1.25  # so many times the warps
_ANGLE_FUNCTION = re.compile(r"\b(?:sin|cos|tan|sincos)f?\s*\(")
_ANGLE_BYTES = 28  # seven words of 2 / pi, which reduce a large angle
_TENSOR_OPCODES = frozenset(("mma", "wmma", "wgmma", "tcgen05"))


def spills(build: Build, launch: PackedLaunch) -> Iterator[LintFinding]:
    resources = build.kernel(launch.kernel).resources
    if resources.spill_bytes < _LEAST_SPILL:
        return
    line, share = _spilling_line(build, launch.symbol)
    at = f", {share} of the instructions for it at this line" if line is not None else ""
    evidence = (
        f"{resources.spill_store_bytes} bytes of registers stored and {resources.spill_load_bytes} loaded again, "
        f"at {resources.registers} registers a thread{at}"
    )
    yield found(LintRule.SPILL, launch.kernel, line, evidence)


def _spilling_line(build: Build, symbol: str) -> tuple[int | None, str]:
    """The line with the most local loads and stores in the machine code."""
    try:
        listings = disassemble(build)
    except ToolchainError:
        return None, ""  # no disassembler: the amount is still worth saying
    lines = Counter(
        instruction.line
        for listing in listings
        if listing.symbol == symbol
        for instruction in listing.instructions
        if instruction.opcode.startswith(("LDL", "STL")) and instruction.line is not None
    )
    if not lines:
        return None, ""
    line, count = lines.most_common(1)[0]
    return line, f"{count} of {lines.total()}"


def local_arrays(build: Build, function: Function, launch: PackedLaunch, source: str) -> Iterator[LintFinding]:
    """Arrays that the compiler could not keep in registers, and the line that reads most of them."""
    resources = build.kernel(launch.kernel).resources
    size = sum(variable.size_bytes for variable in function.variables if variable.space is Space.LOCAL)
    lines = Counter(
        kernel_line(instruction.places)
        for instruction in function.body
        if instruction.opcode == "ld" and "local" in instruction.modifiers
    )
    if _ANGLE_FUNCTION.search(source) and size % _ANGLE_BYTES == 0:
        return  # the function's own, for angles so large that nobody comes there
    if size and lines and resources.stack_bytes:
        evidence = f"{size} bytes a thread in local memory, read here"
        yield found(LintRule.LOCAL_ARRAY, launch.kernel, lines.most_common(1)[0][0], evidence)


def occupancy_cliffs(build: Build, function: Function, launch: PackedLaunch, gpu: GpuProfile) -> Iterator[LintFinding]:
    """One block more would fit with a little less. Kernels on tensor cores live on registers, not on warps."""
    if any(instruction.opcode in _TENSOR_OPCODES for instruction in function.body):
        return
    resources = build.kernel(launch.kernel).resources
    threads = math.prod(launch.block)
    smem = launch.dynamic_smem_bytes + resources.static_smem_bytes
    now = occupancy(gpu, resources.registers, threads, smem, resources.barriers)
    if math.prod(launch.grid) <= now.blocks_per_sm * gpu.sms or now.fraction > 0.5:
        return
    nearer = _nearest(now, resources, threads, smem, gpu)
    if nearer is not None:
        less, then = nearer
        evidence = (
            f"{now.blocks_per_sm} blocks of {threads} threads fit on a multiprocessor ({now.fraction:.0%} of its "
            "warps); "
            f"with {less} it would be {then.blocks_per_sm} ({then.fraction:.0%})"
        )
        yield found(LintRule.OCCUPANCY_CLIFF, launch.kernel, launch.line, evidence)


def _nearest(
    now: Occupancy, resources: Resources, threads: int, smem: int, gpu: GpuProfile
) -> tuple[str, Occupancy] | None:
    if now.limiter is Limiter.REGISTERS:
        for registers in range(resources.registers - 1, resources.registers - resources.registers // _TRIM - 1, -1):
            then = occupancy(gpu, registers, threads, smem, resources.barriers)
            if then.fraction >= _WORTH * now.fraction:
                return f"{registers} registers in place of {resources.registers}", then
    elif now.limiter is Limiter.SHARED_MEMORY:
        then = occupancy(gpu, resources.registers, threads, smem - smem // _TRIM, resources.barriers)
        if then.fraction >= _WORTH * now.fraction:
            return f"{smem - smem // _TRIM} bytes of shared memory in place of {smem}", then
    return None

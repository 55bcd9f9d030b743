"""`lint_plan`: apply every rule to a built plan without running it: to the build, and to the first and last block."""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tilewright.kernel_file import ArgumentValue, DoesNotApply, KernelFileError
from tilewright.lint import memory_rules
from tilewright.lint.catalogue import found
from tilewright.lint.kernel_reading import BlockAnalysis, read_kernel
from tilewright.lint.register_values import registers_of, written_registers
from tilewright.lint.thread_values import Origin
from tilewright.ptx.parser import parse_ptx
from tilewright.ptx.syntax import Address, Function, Instruction, Module, PtxError, Space
from tilewright.records import (
    Build,
    BuildFailure,
    DType,
    GpuProfile,
    Limiter,
    LintFinding,
    LintRule,
    Occupancy,
    PackedLaunch,
    Resources,
    Severity,
    TensorSpec,
    occupancy,
)
from tilewright.records.emulation import kernel_line
from tilewright.toolchain import BuiltPlan, ToolchainError, build_plan, disassemble

# -- rules on the build --

_LEAST_SPILL = 32  # bytes: one or two spilled registers do not matter
_TRIM = 16  # a cliff is near if 1/16 less of the resource avoids it
_WORTH = 1.25  # times the warps
_ANGLE_FUNCTION = re.compile(r"\b(?:sin|cos|tan|sincos)f?\s*\(")
_ANGLE_BYTES = 28  # seven words of 2 / pi, for the argument reduction of large angles
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
    try:
        listings = disassemble(build)
    except ToolchainError:
        return None, ""  # no disassembler: report only the amount
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
    """Arrays that are not in registers, and the line that reads most of them."""
    resources = build.kernel(launch.kernel).resources
    size = sum(variable.size_bytes for variable in function.variables if variable.space is Space.LOCAL)
    lines = Counter(
        kernel_line(instruction.places)
        for instruction in function.body
        if instruction.opcode == "ld" and "local" in instruction.modifiers
    )
    if _ANGLE_FUNCTION.search(source) and size % _ANGLE_BYTES == 0:
        return  # the math library's, for angles that do not occur
    if size and lines and resources.stack_bytes:
        evidence = f"{size} bytes a thread in local memory, read here"
        yield found(LintRule.LOCAL_ARRAY, launch.kernel, lines.most_common(1)[0][0], evidence)


def occupancy_cliffs(build: Build, function: Function, launch: PackedLaunch, gpu: GpuProfile) -> Iterator[LintFinding]:
    """One more block would fit with slightly less of a resource. Tensor core kernels need registers, not warps."""
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


# -- rules on arithmetic --

_DOUBLE_WORDS = re.compile(r"\b(?:double\d?|float64_t|__d(?:add|mul|fma|div|sqrt)_r[nzud]|acc_t|accscalar_t)\b")
_DOUBLE_LITERAL = re.compile(r"(?<![\w.])(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?(?![\w.])")
_COMMENT = re.compile(r"//[^\n]*|/\*[\s\S]*?\*/")
_FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32")
_SHARED = "shared memory"


def doubles(reading: BlockAnalysis, source: str) -> Iterator[LintFinding]:
    """Lines that convert an f32 number to f64, in code that never mentions double."""
    if _DOUBLE_WORDS.search(_COMMENT.sub("", source)) or any(s.dtype is DType.F64 for s in reading.tensors.values()):
        return
    lines = source.splitlines()
    promoted: dict[int, int] = {}
    for instruction in reading.function.body:
        line = kernel_line(instruction.places)
        if line is not None and instruction.opcode == "cvt" and instruction.modifiers[-2:] == ("f64", "f32"):
            promoted[line] = promoted.get(line, 0) + 1
    for line, count in promoted.items():
        text = lines[line - 1] if line <= len(lines) else ""
        literal = _DOUBLE_LITERAL.search(_COMMENT.sub("", text))
        because = (
            f"`{literal.group()}` is a double" if literal is not None else "a constant or function here is a double"
        )
        evidence = f"an f32 value is converted to f64 here ({count} in the code): {because}"
        yield found(LintRule.ACCIDENTAL_DOUBLE, reading.kernel, line, evidence)


# -- rules on NaN --


def swallowed_nans(reading: BlockAnalysis) -> Iterator[LintFinding]:
    """Maxima and minima on every path from a tensor's values to the results."""
    function = reading.function
    loads: dict[Origin, set[str]] = {}
    for access in reading.accesses:
        spec = reading.tensors.get(access.origin.name) if access.origin is not None else None
        if access.instruction.opcode == "ld" and access.origin is not None and spec is not None and spec.dtype.is_float:
            loads.setdefault(access.origin, set()).update(written_registers(access.instruction))
    stored = _stored(reading)
    if not any(_drops_nan(instruction) for instruction in function.body) or not stored:
        return
    for origin, registers in loads.items():
        if not stored & _reached(function, registers, through_dropping=True):
            continue
        carried = _reached(function, registers, through_dropping=False)
        if stored & carried or any(_asks_for_nan(one, carried) for one in function.body):
            continue
        for instruction in function.body:
            if _drops_nan(instruction) and carried.intersection(registers_of(instruction.operands[1:])):
                evidence = f"a NaN in {origin.name} does not reach the results: {instruction.opcode} drops it"
                yield found(LintRule.SWALLOWED_NAN, reading.kernel, kernel_line(instruction.places), evidence)


def _drops_nan(instruction: Instruction) -> bool:
    words = instruction.modifiers
    return instruction.opcode in ("max", "min") and words[-1] in _FLOATS and "NaN" not in words


def _asks_for_nan(instruction: Instruction, carried: set[str]) -> bool:
    """`x != x` and similar: the kernel handles NaN itself."""
    if instruction.opcode != "setp" or not carried.intersection(registers_of(instruction.operands[1:])):
        return False
    compared = list(registers_of(instruction.operands[1:3]))
    same = len(compared) > 1 and len(set(compared)) == 1
    return same or "nan" in instruction.modifiers or "num" in instruction.modifiers


def _stored(reading: BlockAnalysis) -> set[str]:
    """The registers stored to float tensors; none where a store's tensor is unknown."""
    known = {access.index: access for access in reading.accesses}
    registers: set[str] = set()
    for index, instruction in enumerate(reading.function.body):
        if instruction.opcode not in ("st", "red", "atom") or "shared" in instruction.modifiers:
            continue
        if "local" in instruction.modifiers or "param" in instruction.modifiers:
            return set()
        access = known.get(index)
        spec = reading.tensors.get(access.origin.name) if access is not None and access.origin is not None else None
        if spec is None:
            return set()
        if spec.dtype.is_float:
            registers.update(registers_of(instruction.operands[1:]))
    return registers


def _reached(function: Function, start: Iterable[str], *, through_dropping: bool) -> set[str]:
    """Registers that a NaN propagates to. Shared memory counts as one place; predicates carry none."""
    reached, before = set(start), -1
    while len(reached) > before:
        before = len(reached)
        for instruction in function.body:
            if instruction.opcode == "setp" or (not through_dropping and _drops_nan(instruction)):
                continue
            shared = "shared" in [word.partition("::")[0] for word in instruction.modifiers]
            sources = set(registers_of(instruction.operands[1:]))
            if instruction.opcode in ("st", "atom", "red") and shared and sources & reached:
                reached.add(_SHARED)
            if instruction.opcode in ("ld", "ldmatrix", "atom") and shared:
                reads = _SHARED in reached
            else:  # the address of a load is not in its result
                is_load = instruction.opcode == "ld" and isinstance(instruction.operands[1], Address)
                reads = bool(sources & reached) and not is_load
            if reads:
                reached.update(written_registers(instruction))
    return reached


_ORDER = tuple(Severity)
_MOST_LINES = 3  # of one rule in one kernel, shown in full
_MOST_SINGLE = 1  # sizes reduced one at a time
_MOST_INSTRUCTIONS = 60_000  # more take seconds; CuTe's largest kernels have fewer

Rule = Callable[[BlockAnalysis], Iterator[LintFinding]]
# Faults show at sizes that do not divide evenly; performance is judged at the given sizes.
_FAULTS: tuple[Rule, ...] = (
    memory_rules.barriers,
    memory_rules.bounds,
    memory_rules.overflow,
    memory_rules.alignment,
)
_COSTS: tuple[Rule, ...] = (
    memory_rules.copies,
    memory_rules.coalescing,
    memory_rules.banks,
    memory_rules.atomics,
    memory_rules.narrow_loads,
    memory_rules.tensor_cores,
    memory_rules.restrict,
    swallowed_nans,
)


def lint_plan(
    built: BuiltPlan, arguments: Mapping[str, ArgumentValue], *, other_sizes: bool = True
) -> tuple[tuple[LintFinding, ...], tuple[str, ...]]:
    """Findings, the most severe first, and a sentence for everything that could not be checked.

    With `other_sizes` the plan is also built and checked for faults at sizes that divide less evenly.
    """
    findings: list[LintFinding] = []
    unread: list[str] = []
    modules: dict[str, Module] = {}
    for number, plan in enumerate((built, *(_other_sizes(built, arguments) if other_sizes else ()))):
        if plan.build is None:
            continue
        try:
            module = modules.setdefault(plan.build.key, modules.get(plan.build.key) or parse_ptx(plan.build.ptx))
        except PtxError as error:
            unread.append(f"the compiled code cannot be read: {error}")
            continue
        for launch in {launch.symbol: launch for launch in plan.plan.launches}.values():
            findings += _launch(plan, plan.build, module, launch, unread, faults_only=number > 0)
    return _ordered(findings), tuple(dict.fromkeys(unread))


def _launch(
    plan: BuiltPlan, build: Build, module: Module, launch: PackedLaunch, unread: list[str], *, faults_only: bool
) -> Iterator[LintFinding]:
    function = module.functions.get(launch.symbol)
    if function is None:
        return
    if not faults_only:
        yield from spills(build, launch)
        yield from local_arrays(build, function, launch, plan.evaluation.file.text)
        yield from occupancy_cliffs(build, function, launch, plan.evaluation.gpu)
    if len(function.body) > _MOST_INSTRUCTIONS:
        unread.append(f"{launch.kernel} has {len(function.body):,} instructions; its accesses were not looked at")
        return
    tensors = dict(plan.evaluation.tensors) | {buffer.name: buffer.spec for buffer in plan.plan.buffers}
    last = (launch.grid[0] - 1, launch.grid[1] - 1, launch.grid[2] - 1)
    for index in dict.fromkeys((last,) if faults_only else ((0, 0, 0), last)):
        reading = read_kernel(module, launch, tensors, index)
        if reading is None:
            unread.append(f"{launch.kernel} takes its parameters in a way that is not known here")
            return
        for rule in (*_FAULTS, *(() if faults_only or index != (0, 0, 0) else _COSTS)):
            yield from rule(reading)
        if not faults_only and index == (0, 0, 0):
            yield from doubles(reading, plan.evaluation.file.text)


def _other_sizes(built: BuiltPlan, arguments: Mapping[str, ArgumentValue]) -> Iterator[BuiltPlan]:
    """The plan with sizes reduced by one, in all tensors and numbers alike, where it accepts them."""
    file, gpu = built.evaluation.file, built.evaluation.gpu
    specs = {name: value for name, value in arguments.items() if isinstance(value, TensorSpec)}
    sizes = sorted({size for spec in specs.values() for size in spec.shape if size > 2}, reverse=True)
    for smaller in (tuple(sizes), *((size,) for size in sizes[:_MOST_SINGLE] if len(sizes) > 1)):
        changed: dict[str, ArgumentValue] = {name: _resized(spec, smaller) for name, spec in specs.items()}
        # Numbers that are sizes change too: launchers with pointers get all sizes as numbers.
        numbers = {name: n - 1 for name, n in arguments.items() if isinstance(n, int) and n in smaller}
        with contextlib.suppress(DoesNotApply, KernelFileError):
            other = build_plan(file, {**arguments, **changed, **numbers}, gpu)
            if not isinstance(other, BuildFailure):
                yield other


def _resized(spec: TensorSpec, smaller: tuple[int, ...]) -> TensorSpec:
    shape = tuple(extent - 1 if extent in smaller else extent for extent in spec.shape)
    return spec if shape == spec.shape or not spec.is_contiguous else TensorSpec.contiguous(spec.dtype, shape)


def _ordered(findings: Sequence[LintFinding]) -> tuple[LintFinding, ...]:
    """One finding per rule and line, the first few lines of each kernel; by severity, then by line."""
    lines: dict[tuple[LintRule, str], dict[int | None, LintFinding]] = {}
    for finding in sorted(findings, key=lambda one: one.line or 0):
        lines.setdefault((finding.rule, finding.kernel), {}).setdefault(finding.line, finding)
    kept: list[LintFinding] = []
    for group in lines.values():
        shown = list(group.values())[:_MOST_LINES]
        left = [str(line) for line in group if line is not None][_MOST_LINES:]
        if left:
            shown[-1] = replace(shown[-1], evidence=f"{shown[-1].evidence}; so do lines {', '.join(left)}")
        kept += shown
    return tuple(sorted(kept, key=lambda one: (_ORDER.index(one.severity), one.line or 0, one.rule.value)))

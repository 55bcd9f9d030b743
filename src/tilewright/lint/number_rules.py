"""Rules on arithmetic: f64 nobody asked for, and NaNs that a maximum or minimum drops."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tilewright.lint.catalogue import found
from tilewright.lint.kernel_reading import KernelReading
from tilewright.lint.register_values import registers_of, written_registers
from tilewright.lint.thread_numbers import Origin
from tilewright.ptx.syntax import Address, Function, Instruction
from tilewright.records import DType, LintFinding, LintRule
from tilewright.records.emulation import kernel_line

_DOUBLE_WORDS = re.compile(r"\b(?:double\d?|float64_t|__d(?:add|mul|fma|div|sqrt)_r[nzud]|acc_t|accscalar_t)\b")
_DOUBLE_LITERAL = re.compile(r"(?<![\w.])(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?(?![\w.])")
_COMMENT = re.compile(r"//[^\n]*|/\*[\s\S]*?\*/")
_FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32")
_SHARED = "shared memory"


# -- f64 by accident --


def doubles(reading: KernelReading, source: str) -> Iterator[LintFinding]:
    """Lines that turn an f32 number into an f64 one, in code that never says double."""
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


# -- NaNs --


def swallowed_nans(reading: KernelReading) -> Iterator[LintFinding]:
    """Maxima and minima that stand in every way from a tensor's values to the results."""
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
    """`x != x` and its kin: the kernel deals with NaNs itself."""
    if instruction.opcode != "setp" or not carried.intersection(registers_of(instruction.operands[1:])):
        return False
    same = (
        len(set(registers_of(instruction.operands[1:3]))) == 1
        and len(list(registers_of(instruction.operands[1:3]))) > 1
    )
    return same or "nan" in instruction.modifiers or "num" in instruction.modifiers


def _stored(reading: KernelReading) -> set[str]:
    """The registers whose values go to float tensors; nothing where a store's tensor is unknown."""
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
    """Registers that a NaN in the first ones gets to. Shared memory counts as one place, and conditions carry none."""
    reached = set(start)
    changed = True
    while changed:
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
            else:
                reads = bool(sources & reached) and not _is_address_only(instruction)
            if reads:
                reached.update(written_registers(instruction))
        changed = len(reached) > before
    return reached


def _is_address_only(instruction: Instruction) -> bool:
    """A load: what its address is made of is no number it carries."""
    return instruction.opcode == "ld" and isinstance(instruction.operands[1], Address)

"""Lowering of branches, calls, exits and the functions a kernel may call on the device's side."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ptx.classes import InstructionClass
from tilewright.ptx.control_flow import branch_targets
from tilewright.ptx.lower_builder import CONTROL, FrameVariable, FunctionBuilder, opcodes
from tilewright.ptx.operands import Modifiers, only_flags, unsupported
from tilewright.ptx.syntax import Instruction, Label, Operand, ParameterDeclaration, Register, SymbolOperand, Tuple_

_TARGET_FIELD, _MEET_FIELD = 8, 40  # offsets in the encoded instruction: o[0] and imm
_PRINTF, _ASSERT = "vprintf", "__assertfail"


@dataclass(frozen=True)
class Parameters:
    """Where a function's parameters or results lie in one block of bytes."""

    offsets: tuple[int, ...]
    total_bytes: int

    @staticmethod
    def of_kernel(declarations: tuple[ParameterDeclaration, ...]) -> Parameters:
        """As the driver lays them out: each at its own alignment."""
        at, offsets = 0, []
        for parameter in declarations:
            at = -(-at // parameter.align) * parameter.align
            offsets.append(at)
            at += parameter.size_bytes
        return Parameters(tuple(offsets), at)

    @staticmethod
    def of_function(sizes: tuple[int, ...]) -> Parameters:
        """Of a function, where only we look: by size alone, so that a prototype tells as much as a declaration."""
        at, offsets = 0, []
        for size in sizes:
            offsets.append(at)
            at += -(-size // 16) * 16
        return Parameters(tuple(offsets), at)

    @property
    def stride(self) -> int:
        return -(-self.total_bytes // 16) * 16


def bra(b: FunctionBuilder, i: Instruction) -> None:
    only_flags(i, "uni")
    position = b.emit("bra", flags=CONTROL, imm=-1)
    b.fixups.targets.append((position, _TARGET_FIELD, branch_targets(b.function, i)[0]))
    _meet(b, position)


def _meet(b: FunctionBuilder, position: int) -> None:
    meeting = b.flow.reconvergence.get(b.index)
    if meeting is not None:
        b.fixups.targets.append((position, _MEET_FIELD, meeting))


def brx(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    modifiers.need("idx")
    modifiers.flag("uni")
    modifiers.finish()
    table = i.operands[-1]
    names = b.function.branch_targets.get(table.name, ()) if isinstance(table, (SymbolOperand, Label)) else ()
    indices = tuple(b.function.labels[name] for name in names)
    start = len(b.code.extra)
    position = b.emit("brx", (0, b.source(i.operands[0], 4)), flags=CONTROL, imm=-1, extra=(len(indices), *indices))
    b.fixups.tables.append((start + 1, indices))
    _meet(b, position)


def leave(b: FunctionBuilder, i: Instruction) -> None:
    only_flags(i, "uni")
    b.emit(i.opcode, flags=CONTROL)


def stop(b: FunctionBuilder, i: Instruction) -> None:
    only_flags(i)
    b.emit(i.opcode)


def nanosleep(b: FunctionBuilder, i: Instruction) -> None:
    b.emit("nanosleep")


def griddepcontrol(b: FunctionBuilder, i: Instruction) -> None:
    modifiers = Modifiers.of(i)
    modifiers.need("wait", "launch_dependents")
    modifiers.finish()
    b.emit("nop")


# -- calls --


def call(b: FunctionBuilder, i: Instruction) -> None:
    only_flags(i, "uni")
    operands = list(i.operands)
    results: tuple[Operand, ...] = ()
    if operands and isinstance(operands[0], Tuple_):
        results = operands[0].items
        del operands[0]
    if not operands:
        raise b.wrong("a call without a function")
    callee = operands.pop(0)
    arguments: tuple[Operand, ...] = ()
    if operands and isinstance(operands[0], Tuple_):
        arguments = operands[0].items
        del operands[0]
    given = [_frame_variable(b, operand) for operand in arguments]
    returned = [_frame_variable(b, operand) for operand in results]
    if isinstance(callee, SymbolOperand) and callee.name in (_PRINTF, _ASSERT) and callee.name in b.module.externals:
        _system(b, i, callee.name, given, returned)
    elif isinstance(callee, SymbolOperand) and callee.name in b.module.functions:
        _direct(b, i, callee.name, given, returned)
    elif isinstance(callee, Register):
        _indirect(b, i, callee, operands, given, returned)
    else:
        name = callee.name if isinstance(callee, SymbolOperand) else "this"
        raise unsupported(i, f"calling `{name}`, which is not defined in the module")


def _frame_variable(b: FunctionBuilder, operand: Operand) -> FrameVariable:
    placed = b.place_symbol(operand.name) if isinstance(operand, SymbolOperand) else None
    if placed is None or placed.frame is None:
        raise unsupported(b.instruction, "arguments that are not .param variables")
    return placed.frame


def _argument_list(given: list[FrameVariable], returned: list[FrameVariable], layout: Parameters) -> tuple[int, ...]:
    extra = [len(given)]
    for variable, offset in zip(given, layout.offsets, strict=True):
        extra += [variable.at, variable.stride, variable.size_bytes, offset]
    extra += [len(returned)]
    for variable in returned:
        extra += [variable.at, variable.stride]
    return tuple(extra)


def _direct(
    b: FunctionBuilder, i: Instruction, name: str, given: list[FrameVariable], returned: list[FrameVariable]
) -> None:
    function = b.module.functions[name]
    sizes = [parameter.size_bytes for parameter in function.parameters]
    if [variable.size_bytes for variable in given] != sizes or len(returned) > 1:
        raise b.wrong(f"the arguments do not fit `{name}`")
    layout = Parameters.of_function(tuple(sizes))
    position = b.emit("call", flags=CONTROL, extra=_argument_list(given, returned, layout))
    b.fixups.calls.append((position, name))


def _indirect(
    b: FunctionBuilder,
    i: Instruction,
    callee: Register,
    rest: list[Operand],
    given: list[FrameVariable],
    returned: list[FrameVariable],
) -> None:
    prototype = rest[-1] if rest else None
    sizes = b.function.prototypes.get(prototype.name) if isinstance(prototype, (SymbolOperand, Label)) else None
    if sizes is None:
        raise unsupported(i, "an indirect call without a prototype")
    if [variable.size_bytes for variable in given] != list(sizes) or len(returned) > 1:
        raise b.wrong("the arguments do not fit the prototype")
    layout = Parameters.of_function(sizes)
    extra = _argument_list(given, returned, layout)
    b.emit("call_indirect", (0, b.source(callee, 8)), flags=CONTROL, imm=layout.total_bytes, extra=extra)
    b.emit("join", flags=CONTROL, guarded=False)


def _system(
    b: FunctionBuilder, i: Instruction, name: str, given: list[FrameVariable], returned: list[FrameVariable]
) -> None:
    wanted = 2 if name == _PRINTF else 5
    if len(given) != wanted:
        raise b.wrong(f"{name} takes {wanted} arguments")
    places = [number for variable in given[:4] for number in (variable.at + variable.offset, variable.stride)]
    if name == _PRINTF:
        result = (returned[0].at, returned[0].stride) if returned else (-1, 0)
        b.emit("printf", (*places, *result))
    else:
        b.emit("assertfail", tuple(places))


OPCODES = opcodes(
    InstructionClass.CONTROL,
    {
        "bra": bra,
        "brx": brx,
        "call": call,
        "ret": leave,
        "exit": leave,
        "trap": stop,
        "brkpt": stop,
        "nanosleep": nanosleep,
        "griddepcontrol": griddepcontrol,
    },
    writes=False,
)

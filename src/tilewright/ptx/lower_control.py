"""Lowering of branches, calls, exits and the functions a kernel may call on the device's side."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ptx.classes import InstructionClass
from tilewright.ptx.control_flow import branch_targets
from tilewright.ptx.lower_builder import CONTROL, FrameVariable, FunctionBuilder, opcodes
from tilewright.ptx.operands import Modifiers, only_flags, unsupported
from tilewright.ptx.syntax import Instruction, Label, Operand, ParameterDeclaration, Register, SymbolOperand, Tuple_

_TARGET_FIELD, MEET_FIELD = 8, 40  # offsets in the encoded instruction: o[0] and imm
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
        b.fixups.targets.append((position, MEET_FIELD, meeting))


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
    what = modifiers.need("wait", "launch_dependents")
    modifiers.finish()
    b.emit("griddep_wait" if what == "wait" else "nop")


# -- calls --


Variables = list[FrameVariable]


def call(b: FunctionBuilder, i: Instruction) -> None:
    """`call (result), function, (arguments), prototype`, of which only the function must be there."""
    only_flags(i, "uni")
    operands = list(i.operands)
    returned = _listed(b, operands)
    if not operands:
        raise b.wrong("a call without a function")
    callee = operands.pop(0)
    given = _listed(b, operands)
    name = callee.name if isinstance(callee, SymbolOperand) else "this"
    if isinstance(callee, Register):
        _indirect(b, i, callee, operands[-1] if operands else None, given, returned)
    elif name in (_PRINTF, _ASSERT) and name in b.module.externals:
        _system(b, name, given, returned)
    elif name in b.module.functions:
        sizes = tuple(parameter.size_bytes for parameter in b.module.functions[name].parameters)
        extra, _ = _argument_list(b, given, returned, sizes, f"`{name}`")
        b.fixups.calls.append((b.emit("call", flags=CONTROL, extra=extra), name))
    else:
        raise unsupported(i, f"calling `{name}`, which is not defined in the module")


def _listed(b: FunctionBuilder, operands: list[Operand]) -> Variables:
    """The variables in parentheses at the front, taken away; none where there are no parentheses."""
    first = operands[0] if operands else None
    if not isinstance(first, Tuple_):
        return []
    del operands[0]
    return [_frame_variable(b, operand) for operand in first.items]


def _frame_variable(b: FunctionBuilder, operand: Operand) -> FrameVariable:
    placed = b.place_symbol(operand.name) if isinstance(operand, SymbolOperand) else None
    if placed is None or placed.frame is None:
        raise unsupported(b.instruction, "arguments that are not .param variables")
    return placed.frame


def _argument_list(
    b: FunctionBuilder, given: Variables, returned: Variables, sizes: tuple[int, ...], callee: str
) -> tuple[tuple[int, ...], int]:
    """Where the core finds arguments and results, and how many bytes the arguments take."""
    if tuple(variable.size_bytes for variable in given) != sizes or len(returned) > 1:
        raise b.wrong(f"the arguments do not fit {callee}")
    layout = Parameters.of_function(sizes)
    extra = [len(given)]
    for variable, offset in zip(given, layout.offsets, strict=True):
        extra += [variable.at, variable.stride, variable.size_bytes, offset]
    extra += [len(returned)]
    for variable in returned:
        extra += [variable.at, variable.stride]
    return tuple(extra), layout.total_bytes


def _indirect(
    b: FunctionBuilder,
    i: Instruction,
    callee: Register,
    prototype: Operand | None,
    given: Variables,
    returned: Variables,
) -> None:
    sizes = b.function.prototypes.get(prototype.name) if isinstance(prototype, (SymbolOperand, Label)) else None
    if sizes is None:
        raise unsupported(i, "an indirect call without a prototype")
    extra, size = _argument_list(b, given, returned, sizes, "the prototype")
    b.emit("call_indirect", (0, b.source(callee, 8)), flags=CONTROL, imm=size, extra=extra)
    b.emit("join", flags=CONTROL, guarded=False)


def _system(b: FunctionBuilder, name: str, given: Variables, returned: Variables) -> None:
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

"""Parses operands such as `[%rd1+8]`, `{%r1, %r2}`, `%r1|%p2`, `0f3F800000`, `(a, b)`, and resolves names by scope.

Nested blocks, as calls and inline assembly produce them, may redeclare names. Names are made unique per function: later
declarations get a suffix `#2`, `#3`..., which no PTX name can contain.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tilewright.ptx import syntax
from tilewright.ptx.declarations import RegisterDeclaration
from tilewright.ptx.lexer import IDENTIFIER
from tilewright.ptx.literals import expression_value, literal
from tilewright.ptx.syntax import Operand, Register, SymbolOperand, Vector

NamedOperand = Register | syntax.Special | SymbolOperand | syntax.Label | Vector

_COMPONENTS = "xyzwstuv"
_VECTOR_SPECIALS = ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
_SCALAR_SPECIALS = (
    *("laneid", "warpid", "nwarpid", "smid", "nsmid", "gridid"),
    *("is_explicit_cluster", "cluster_ctarank", "cluster_nctarank"),
    *("lanemask_eq", "lanemask_le", "lanemask_lt", "lanemask_ge", "lanemask_gt"),
    *("clock", "clock_hi", "clock64", "globaltimer", "globaltimer_lo", "globaltimer_hi"),
    *("reserved_smem_offset_begin", "reserved_smem_offset_end", "reserved_smem_offset_cap"),
    *("total_smem_size", "aggr_smem_size", "dynamic_smem_size", "current_graph_exec"),
)
_NUMBERED_SPECIAL = re.compile(r"%(?:envreg(?:[12]?\d|3[01])|pm[0-7](?:_64)?|reserved_smem_offset_\d)", re.ASCII)
SPECIALS: dict[str, syntax.Special] = {
    name: syntax.Special(name)
    for name in (
        *(f"%{name}" for name in _SCALAR_SPECIALS),
        *(f"%{name}" for name in _VECTOR_SPECIALS),
        *(f"%{name}.{component}" for name in _VECTOR_SPECIALS for component in "xyzw"),
    )
}
_DIGITS = "0123456789"


@dataclass
class FunctionNames:
    """The unique names of one function, and the registers that its body uses."""

    module_symbols: set[str] = field(default_factory=set)  # set after the whole module is parsed
    registers: dict[str, str] = field(default_factory=dict)
    _times: dict[str, int] = field(default_factory=dict)
    _of_register: dict[tuple[int, str], str] = field(default_factory=dict)

    def use_register(self, declaration: RegisterDeclaration, name: str) -> str:
        """The unique name of a register; unused registers are never created."""
        key = (id(declaration), name)
        unique = self._of_register.get(key)
        if unique is None:
            unique = self._of_register[key] = self.unique(name)
            self.registers[unique] = declaration.type
        return unique

    def unique(self, name: str) -> str:
        times = self._times.get(name, 0) + 1
        self._times[name] = times
        return name if times == 1 else f"{name}#{times}"


class NameScope:
    """The names of one block, complete after the first pass over the function."""

    def __init__(self, function: FunctionNames, parent: NameScope | None) -> None:
        self.function = function
        self.parent = parent
        self.labels: dict[str, str] = {}
        self.operands: dict[str, Operand] = {}  # cache by text
        self._symbols: dict[str, str] = {}
        self._registers: dict[str, RegisterDeclaration] = {}
        self._ranges: dict[str, RegisterDeclaration] = {}

    @property
    def declares_nothing(self) -> bool:
        return not (self.labels or self._symbols or self._registers or self._ranges)

    def declare_register(self, declaration: RegisterDeclaration) -> bool:
        """Returns False if the block already has that name."""
        table = self._registers if declaration.count is None else self._ranges
        if declaration.name in table:
            return False
        table[declaration.name] = declaration
        return True

    def declare_symbol(self, name: str) -> str | None:
        """The unique name of a variable; None if the block already has that name."""
        if name in self._symbols:
            return None
        self._symbols[name] = self.function.unique(name)
        return self._symbols[name]

    def declare_label(self, name: str) -> str | None:
        if name in self.labels:
            return None
        self.labels[name] = self.function.unique(name)
        return self.labels[name]

    def lookup(self, name: str) -> NamedOperand | None:
        scope: NameScope | None = self
        while scope is not None:
            found = scope._lookup_here(name)
            if found is not None:
                return found
            scope = scope.parent
        if name in self.function.module_symbols:
            return SymbolOperand(name)
        special = SPECIALS.get(name)
        if special is None and name.startswith("%") and _NUMBERED_SPECIAL.fullmatch(name) is not None:
            return syntax.Special(name)
        return special

    def _lookup_here(self, name: str) -> NamedOperand | None:
        single = self._registers.get(name)
        if single is not None:
            return self._used(single, name)
        if self._ranges:
            # `%r1<5>` is `%r10` to `%r14`, so any of the last digits may belong to the prefix.
            for begin in range(len(name.rstrip(_DIGITS)), len(name)):
                declaration, number = self._ranges.get(name[:begin]), name[begin:]
                if declaration is None or declaration.count is None:
                    continue
                if len(number) < 10 and int(number) < declaration.count and (number[0] != "0" or number == "0"):
                    return self._used(declaration, name)
        if name in self._symbols:
            return SymbolOperand(self._symbols[name])
        if name in self.labels:
            return syntax.Label(self.labels[name])
        if name[-2:-1] == ".":
            return self._component(name[:-2], name[-1])
        return None

    def _used(self, declaration: RegisterDeclaration, name: str) -> NamedOperand:
        if declaration.lanes == 1:
            return Register(self.function.use_register(declaration, name))
        names = [f"{name}.{component}" for component in _COMPONENTS[: declaration.lanes]]
        return Vector(tuple(Register(self.function.use_register(declaration, item)) for item in names))

    def _component(self, name: str, component: str) -> NamedOperand | None:
        """`v.x` of a vector register."""
        whole = self._registers.get(name)
        if whole is None or whole.lanes == 1:
            return None
        index = "xyzw".find(component) if component in "xyzw" else "rgba".find(component)
        if not 0 <= index < whole.lanes:
            return None
        vector = self._used(whole, name)
        item = vector.items[index] if isinstance(vector, Vector) else None
        return item if isinstance(item, Register) else None


# -- operands --


class OperandError(Exception):
    """An invalid operand."""


class UnknownOperand(OperandError):
    """A valid operand that is not supported."""


_NAME = re.compile(rf"{IDENTIFIER}(?:\.[xyzwrgba])?", re.ASCII)
_NAME_AND_OFFSET = re.compile(rf"({IDENTIFIER}(?:\.[xyzwrgba])?)\s*([+-])\s*(.+)", re.ASCII | re.DOTALL)
_SELECTOR = re.compile(rf"{IDENTIFIER}\.[bh][0-3]+", re.ASCII)
_CLOSING = {"{": "}", "[": "]", "(": ")"}
_MOST_OPERANDS = 512


def split_operands(text: str) -> list[str]:
    """The pieces between top-level commas, stripped."""
    if "{" not in text and "[" not in text and "(" not in text:
        return [piece.strip() for piece in text.split(",")]
    pieces: list[str] = []
    closing: list[str] = []
    begin = 0
    for position, character in enumerate(text):
        if character in _CLOSING:
            closing.append(_CLOSING[character])
        elif character in "}])":
            if not closing or closing.pop() != character:
                raise OperandError(f"`{character}` closes nothing")
        elif character == "," and not closing:
            pieces.append(text[begin:position].strip())
            begin = position + 1
    if closing:
        raise OperandError(f"no closing `{closing[-1]}`")
    pieces.append(text[begin:].strip())
    return pieces


def read_operand(text: str, names: NameScope) -> Operand:
    """Parse one operand; raises `OperandError` for invalid text and undeclared names."""
    first = text[:1]
    if first == "[":
        return _address(text, names)
    if first == "{":
        return _vector(text, names)
    if first == "(" and text.endswith(")"):
        number = literal(text)
        return number if number is not None else _tuple(text, names)
    if text == "_":
        return syntax.Sink()
    if _NAME.fullmatch(text) is not None:
        found = names.lookup(text)
        if found is not None:
            return found
        if text != "WARP_SZ":
            raise OperandError(f"`{text}` is not declared")
    if first == "!":
        register = names.lookup(text[1:].strip())
        if isinstance(register, Register):
            return syntax.Negated(register)
    number = literal(text)
    if number is not None:
        return number
    if "|" in text:
        return _pair(text, names)
    return _symbol_and_offset(text, names)


def _pair(text: str, names: NameScope) -> syntax.Pair:
    pieces = [piece.strip() for piece in text.split("|")]
    if len(pieces) != 2:
        raise OperandError(f"`{text}` is no pair of destinations")
    items = [None if piece == "_" else names.lookup(piece) for piece in pieces]
    for piece, item in zip(pieces, items, strict=True):
        if piece != "_" and not isinstance(item, Register):
            raise OperandError(f"`{piece}` is no declared register")
    return syntax.Pair(items[0], items[1])


def _vector(text: str, names: NameScope) -> Vector:
    if not text.endswith("}"):
        raise OperandError(f"`{text}` has no closing brace")
    inner = text[1:-1].strip()
    if "{" in inner or "[" in inner:
        raise OperandError("a vector inside a vector")
    pieces = split_operands(inner)
    if len(pieces) > _MOST_OPERANDS:
        raise OperandError(f"a vector of more than {_MOST_OPERANDS} items")
    return Vector(tuple(None if piece == "_" else read_operand(piece, names) for piece in pieces))


def _tuple(text: str, names: NameScope) -> syntax.Tuple_:
    inner = text[1:-1].strip()
    if not inner:
        return syntax.Tuple_(())
    if "(" in inner or "[" in inner or "{" in inner:
        raise OperandError("brackets inside a list of arguments")
    return syntax.Tuple_(tuple(read_operand(piece, names) for piece in split_operands(inner)))


def _address(text: str, names: NameScope) -> syntax.Address:
    if not text.endswith("]"):
        raise OperandError(f"`{text}` has no closing bracket")
    pieces = split_operands(text[1:-1])
    base, offset = _base_and_offset(pieces[0], names)
    if len(pieces) == 1:
        return syntax.Address(base, offset)
    if any(piece.startswith("[") for piece in pieces[1:]):
        raise OperandError("an address inside an address")
    return syntax.Address(base, offset, tuple(read_operand(piece, names) for piece in pieces[1:]))


def _base_and_offset(
    text: str, names: NameScope
) -> tuple[Register | syntax.Special | SymbolOperand | syntax.Immediate, int]:
    found = names.lookup(text)
    offset = 0
    if found is None:
        parts = _NAME_AND_OFFSET.fullmatch(text)
        if parts is None:
            value = expression_value(text)
            if value is None:
                raise OperandError(
                    f"`{text}` is no address" if _NAME.fullmatch(text) is None else f"`{text}` is not declared"
                )
            return syntax.Immediate(value), 0
        found = names.lookup(parts[1])
        if found is None:
            raise OperandError(f"`{parts[1]}` is not declared")
        offset = _offset(parts[2], parts[3])
    if isinstance(found, syntax.Label | Vector):
        raise OperandError(f"`{text}` is no address")
    return found, offset


def _symbol_and_offset(text: str, names: NameScope) -> SymbolOperand:
    parts = _NAME_AND_OFFSET.fullmatch(text)
    if parts is None:
        if _SELECTOR.fullmatch(text) is not None:
            raise UnknownOperand(f"`{text}`: parts of a register are not supported")
        raise OperandError(f"`{text}` is no operand")
    found = names.lookup(parts[1])
    if found is None:
        raise OperandError(f"`{parts[1]}` is not declared")
    if not isinstance(found, SymbolOperand):
        raise OperandError(f"`{text}`: only the address of a variable can carry an offset")
    return SymbolOperand(found.name, _offset(parts[2], parts[3]))


def _offset(sign: str, text: str) -> int:
    value = expression_value(text)
    if value is None:
        raise OperandError(f"the offset `{text}` is no constant")
    return -value if sign == "-" else value

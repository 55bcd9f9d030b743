"""The parsed form of a PTX module. The parser makes it; control flow analysis and lowering read it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tilewright.records import SourcePlace


class Space(str, Enum):
    PARAM = "param"
    CONST = "const"
    GLOBAL = "global"
    SHARED = "shared"
    LOCAL = "local"


# -- operands --


@dataclass(frozen=True)
class Register:
    name: str  # "%r12"


@dataclass(frozen=True)
class Special:
    name: str  # "%tid.x", "%laneid", "%envreg3"


@dataclass(frozen=True)
class Immediate:
    """An integer, or the bits of a float. `width` is 32 for 0f..., 64 for 0d..., 0 for an integer."""

    bits: int
    width: int = 0


@dataclass(frozen=True)
class SymbolOperand:
    """The address of a variable or function, or a parameter."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Address:
    """`[base + offset]`; of a tensor or texture `[base, {c0, c1}]`, with what follows the base in `coordinates`."""

    base: Register | Special | SymbolOperand | Immediate
    offset: int = 0
    coordinates: tuple[Operand, ...] = ()


@dataclass(frozen=True)
class Vector:
    """`{a, b}`; None is the sink `_`."""

    items: tuple[Operand | None, ...]


@dataclass(frozen=True)
class Label:
    name: str


@dataclass(frozen=True)
class Pair:
    """`p|q`, two destinations; None is the sink `_`."""

    first: Operand | None
    second: Operand | None


@dataclass(frozen=True)
class Negated:
    """`!p` among the operands."""

    register: Register


@dataclass(frozen=True)
class Tuple_:
    """`(a, b)`, the arguments or results of a call."""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Sink:
    """A lone `_`."""


Operand = Register | Special | Immediate | SymbolOperand | Address | Vector | Label | Pair | Negated | Tuple_ | Sink


@dataclass(frozen=True)
class Instruction:
    opcode: str  # "ld", "mma", "bar"
    modifiers: tuple[str, ...]  # ("global", "nc", "v4", "f32")
    operands: tuple[Operand, ...]
    guard: Register | None  # @%p1
    guard_negated: bool  # @!%p1
    places: tuple[SourcePlace, ...]  # innermost first, then where it was inlined
    ptx_line: int  # 1-based
    text: str  # as written, without the label


@dataclass(frozen=True)
class Relocation:
    """An initialiser that holds an address: `size` bytes at `offset` are the address of `symbol` plus `addend`."""

    offset: int
    size: int
    symbol: str
    addend: int
    generic: bool  # written as generic(symbol)


@dataclass(frozen=True)
class Variable:
    space: Space
    name: str
    type: str  # "b8", "f32"
    size_bytes: int  # 0 for `extern .shared x[]`
    align: int
    initial: bytes | None  # `size_bytes` of them
    relocations: tuple[Relocation, ...]
    external: bool


@dataclass(frozen=True)
class ParameterDeclaration:
    name: str
    type: str  # "u64", "b8" for arrays
    size_bytes: int
    align: int


@dataclass(frozen=True)
class Function:
    """A kernel (`.entry`) or a function (`.func`)."""

    name: str
    is_entry: bool
    parameters: tuple[ParameterDeclaration, ...]
    results: tuple[ParameterDeclaration, ...]
    registers: dict[str, str]  # "%r1" -> "b32"; those the body uses
    variables: tuple[Variable, ...]  # declared inside: shared, local, param temporaries
    body: tuple[Instruction, ...]
    labels: dict[str, int]  # -> index into body; len(body) for a label at the end
    branch_targets: dict[str, tuple[str, ...]]  # .branchtargets tables
    prototypes: dict[str, tuple[int, ...]]  # .callprototype name -> sizes of its parameters
    max_threads: tuple[int, ...] | None  # .maxntid or .reqntid
    cluster: tuple[int, ...] | None  # .reqnctapercluster


@dataclass(frozen=True)
class Module:
    version: tuple[int, int]
    target: str  # "sm_80"
    functions: dict[str, Function]  # defined here
    externals: tuple[str, ...]  # functions only declared: vprintf, __assertfail, malloc
    variables: tuple[Variable, ...]  # at module scope

    @property
    def compute_capability(self) -> int:
        return int("".join(filter(str.isdigit, self.target)))


class PtxError(ValueError):
    """PTX that cannot be read, or that uses what is not supported; says which line and what stands there."""

    def __init__(self, message: str, ptx_line: int = 0, text: str = "") -> None:
        self.ptx_line = ptx_line
        self.text = text
        place = f"PTX line {ptx_line}: " if ptx_line else ""
        super().__init__(f"{place}{message}" + (f": {text.strip()}" if text else ""))


class UnsupportedPtx(PtxError):
    """Valid PTX that the interpreter does not know, named; never a wrong answer."""

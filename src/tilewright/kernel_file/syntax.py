"""The parsed form of a launch plan: expressions and directives, each with the place it stands at."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from tilewright.records import BufferRole, Clearing, DType, ScalarType


class Place(NamedTuple):
    """1-based line and column in the file, and how many characters are meant."""

    line: int
    column: int
    length: int = 1


# -- expressions --


@dataclass(frozen=True)
class Literal:
    value: int | float | bool | DType | None  # None is `none`
    at: Place


@dataclass(frozen=True)
class Name:
    id: str
    at: Place


@dataclass(frozen=True)
class Attribute:
    base: Expr
    name: str
    at: Place


@dataclass(frozen=True)
class Index:
    base: Expr
    index: Expr
    at: Place


@dataclass(frozen=True)
class Slice:
    base: Expr
    low: Expr | None
    high: Expr | None
    at: Place


@dataclass(frozen=True)
class ListOf:
    items: tuple[Expr, ...]
    at: Place


@dataclass(frozen=True)
class Call:
    function: str
    arguments: tuple[Expr, ...]
    at: Place


@dataclass(frozen=True)
class Unary:
    operator: str  # "-" or "not"
    operand: Expr
    at: Place


@dataclass(frozen=True)
class Binary:
    operator: str  # + - * / // %
    left: Expr
    right: Expr
    at: Place


@dataclass(frozen=True)
class Compare:
    operator: str  # == != < <= > >= in
    left: Expr
    right: Expr
    at: Place


@dataclass(frozen=True)
class Logical:
    operator: str  # "and" or "or"
    left: Expr
    right: Expr
    at: Place


@dataclass(frozen=True)
class Conditional:
    condition: Expr
    then: Expr
    otherwise: Expr
    at: Place


Expr = Literal | Name | Attribute | Index | Slice | ListOf | Call | Unary | Binary | Compare | Logical | Conditional


# -- directives --


@dataclass(frozen=True)
class Parameter:
    """A parameter of the op: a tensor where `scalar` is None, else a number or a list of numbers."""

    name: str
    scalar: ScalarType | None
    at: Place
    in_place: bool = False  # `x!`
    optional: bool = False  # `x?`, `scale: float?`
    is_list: bool = False  # `int[]`, `int[2]`
    length: int | None = None  # the 2 of `int[2]`
    has_default: bool = False
    default: int | float | bool | tuple[int, ...] | tuple[float, ...] | tuple[bool, ...] | None = None


@dataclass(frozen=True)
class Op:
    name: str
    parameters: tuple[Parameter, ...]
    results: tuple[str, ...]
    at: Place


@dataclass(frozen=True)
class BufferDirective:
    """`out`, `save` or `scratch`."""

    name: str
    role: BufferRole
    dtype: Expr  # a DTYPE literal, a name, or name.dtype
    sizes: tuple[Expr, ...]
    stride: tuple[Expr, ...] | None  # `out` only
    clearing: Clearing
    at: Place


@dataclass(frozen=True)
class Let:
    name: str
    value: Expr
    at: Place


@dataclass(frozen=True)
class Const:
    name: str
    value: Expr
    at: Place


@dataclass(frozen=True)
class Need:
    condition: Expr
    text: str  # as written, for messages
    at: Place


@dataclass(frozen=True)
class Tune:
    name: str
    choices: tuple[int, ...] | tuple[bool, ...]
    at: Place


@dataclass(frozen=True)
class Accept:
    name: str
    strided: bool
    unaligned: bool
    at: Place


@dataclass(frozen=True)
class MapDirective:
    name: str
    tensor: str
    options: tuple[tuple[str, Expr], ...]  # in written order; keys box shape stride step swizzle fill l2
    at: Place


@dataclass(frozen=True)
class Library:
    target: str
    function: str  # "aten.mm"
    arguments: tuple[Expr, ...]
    at: Place


@dataclass(frozen=True)
class LaunchDirective:
    kernel: str  # "ns::name", without template arguments
    template: tuple[Expr, ...] | None
    grid: tuple[Expr, ...]  # 1 to 3
    block: tuple[Expr, ...]
    smem: Expr | None
    arguments: tuple[Expr, ...]
    cluster: tuple[Expr, ...] | None
    cooperative: bool
    pdl: bool
    when: Expr | None
    at: Place


Directive = BufferDirective | Let | Const | Need | Tune | Accept | MapDirective | Library | LaunchDirective


@dataclass(frozen=True)
class Plan:
    """A whole plan: the op line and the directives below it, in written order (`let a = 1, b = 2` is two)."""

    op: Op
    directives: tuple[Directive, ...]


@dataclass(frozen=True)
class KernelFile:
    """A parsed and checked kernel file. Its identity is the hash of its bytes."""

    text: str
    plan: Plan
    name: str = field(default="kernel.cu", compare=False)  # what messages call it

    @cached_property
    def identity(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        return {parameter.name: parameter for parameter in self.plan.op.parameters}

"""The syntax tree of a launch plan: expressions and directives with their source spans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tilewright.records import BufferRole, Clearing, DType, ScalarType


class Span(NamedTuple):
    """1-based line and column, and length in characters."""

    line: int
    column: int
    length: int = 1


# -- expressions --


class Literal(NamedTuple):
    """`3`, `0.5`, `true`, `bf16`, `none`."""

    value: int | float | bool | DType | None  # None is `none`
    at: Span


class Name(NamedTuple):
    """`rows`, `x`, `device`."""

    id: str
    at: Span


class Attribute(NamedTuple):
    """`x.shape`, `device.sms`."""

    base: Expr
    name: str
    at: Span


class Index(NamedTuple):
    """`x.shape[-1]`."""

    base: Expr
    position: Expr
    at: Span


class Slice(NamedTuple):
    """`x.shape[1:]`."""

    base: Expr
    low: Expr | None
    high: Expr | None
    at: Span


class ListOf(NamedTuple):
    """`[rows, 2]`."""

    items: tuple[Expr, ...]
    at: Span


class Call(NamedTuple):
    """`ceil_div(n, 4)`."""

    function: str
    arguments: tuple[Expr, ...]
    at: Span


class Unary(NamedTuple):
    """`-n`, `not flag`."""

    operator: str
    operand: Expr
    at: Span


class Infix(NamedTuple):
    """An operator between two expressions."""

    operator: str
    left: Expr
    right: Expr
    at: Span


class Binary(Infix):
    """`+ - * / // %`."""


class Compare(Infix):
    """`== != < <= > >= in`."""


class Logical(Infix):
    """`and or`, which evaluate only what they need."""


class Conditional(NamedTuple):
    """`a if condition else b`."""

    condition: Expr
    then: Expr
    otherwise: Expr
    at: Span


Expr = Literal | Name | Attribute | Index | Slice | ListOf | Call | Unary | Binary | Compare | Logical | Conditional


def children(node: Expr) -> tuple[Expr, ...]:
    """The direct subexpressions, left to right."""
    match node:
        case Attribute(base=base):
            return (base,)
        case Index(base=base, position=position):
            return (base, position)
        case Slice(base=base, low=low, high=high):
            return (base, *(end for end in (low, high) if end is not None))
        case ListOf(items=items) | Call(arguments=items):
            return items
        case Unary(operand=operand):
            return (operand,)
        case Binary(left=left, right=right) | Compare(left=left, right=right) | Logical(left=left, right=right):
            return (left, right)
        case Conditional(condition=condition, then=then, otherwise=otherwise):
            return (then, condition, otherwise)
    return ()


def walk(node: Expr) -> Iterator[Expr]:
    """The expression and all its subexpressions, left to right."""
    pending = [node]
    while pending:
        current = pending.pop()
        yield current
        pending.extend(reversed(children(current)))


def start(node: Expr) -> Span:
    """The span of the first character of an expression."""
    return min((inner.at for inner in walk(node)), key=lambda span: (span.line, span.column))


def conjuncts(node: Expr) -> Iterator[Expr]:
    """The conjuncts of `a and b and c`, left to right."""
    if isinstance(node, Logical) and node.operator == "and":
        yield from conjuncts(node.left)
        yield from conjuncts(node.right)
    else:
        yield node


# -- directives --


@dataclass(frozen=True)
class Parameter:
    """A parameter of the op: a tensor where `scalar` is None, else a number or a list of numbers."""

    name: str
    scalar: ScalarType | None
    at: Span
    in_place: bool = False  # `x!`
    optional: bool = False  # `x?`, `scale: float?`
    is_list: bool = False  # `int[]`, `int[2]`
    length: int | None = None  # the 2 of `int[2]`
    has_default: bool = False
    default: int | float | bool | tuple[int, ...] | tuple[float, ...] | tuple[bool, ...] | None = None


@dataclass(frozen=True)
class Op:
    """`op f(x, eps: float) -> y`."""

    name: str
    parameters: tuple[Parameter, ...]
    results: tuple[str, ...]
    at: Span

    @property
    def tensors(self) -> tuple[Parameter, ...]:
        return tuple(one for one in self.parameters if one.scalar is None)

    @property
    def numbers(self) -> tuple[Parameter, ...]:
        return tuple(one for one in self.parameters if one.scalar is not None)


@dataclass(frozen=True)
class BufferDirective:
    """`out` or `scratch`."""

    name: str
    role: BufferRole
    dtype: Expr  # a DTYPE literal, a name, or name.dtype
    sizes: tuple[Expr, ...]
    stride: tuple[Expr, ...] | None  # `out` only
    clearing: Clearing
    at: Span


@dataclass(frozen=True)
class Definition:
    """A name for an expression."""

    name: str
    value: Expr
    at: Span


class Let(Definition):
    """`let rows = x.numel / cols`."""


class Const(Definition):
    """`const COLS = cols`, which the C++ sees too."""


@dataclass(frozen=True)
class Need:
    """`need cols % 8 == 0`."""

    condition: Expr
    at: Span


@dataclass(frozen=True)
class Tune:
    """`tune WARPS = 8 | 4`."""

    name: str
    choices: tuple[int, ...] | tuple[bool, ...]
    at: Span


@dataclass(frozen=True)
class Accept:
    """`accept x: strided, unaligned`."""

    name: str
    strided: bool
    unaligned: bool
    at: Span


@dataclass(frozen=True)
class Lead:
    """`lead x: 2, scale: 1`."""

    ranks: tuple[tuple[str, int], ...]  # a tensor, and how many dimensions the plan sees of it
    at: Span


@dataclass(frozen=True)
class MapDirective:
    """`map t = tiled(x, box=[64, 64])`."""

    name: str
    tensor: str
    options: tuple[tuple[str, Expr], ...]  # in written order; keys box shape stride step swizzle fill l2
    at: Span


@dataclass(frozen=True)
class LibraryDirective:
    """`library t = aten.mm(a, b)`."""

    target: str
    function: str  # "aten.mm"
    arguments: tuple[Expr, ...]
    at: Span


@dataclass(frozen=True)
class LaunchDirective:
    """`launch k<T><<<grid, block, smem>>>(arguments) attributes`."""

    kernel: str  # "ns::name", without template arguments
    template: tuple[Expr, ...] | None
    grid: tuple[Expr, ...]  # 1 to 3
    block: tuple[Expr, ...]
    smem: Expr | None
    arguments: tuple[Expr, ...]
    at: Span
    cluster: tuple[Expr, ...] | None = None
    cooperative: bool = False
    pdl: bool = False
    when: Expr | None = None


Directive = (
    BufferDirective | Let | Const | Need | Tune | Accept | Lead | MapDirective | LibraryDirective | LaunchDirective
)


@dataclass(frozen=True)
class Plan:
    """A whole plan: the op line and the directives below it, in written order (`let a = 1, b = 2` is two)."""

    op: Op
    directives: tuple[Directive, ...]

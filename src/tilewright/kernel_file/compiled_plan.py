"""A plan prepared for evaluation, once per file: every expression a closure, every line with what it depends on.

Here is decided which scalar parameters decide something (a need, a constant, a size, a launch shape) and which are
only passed on to kernels: the latter never enter a cache key, and what is made of them is computed at every call.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.kernel_file.calls import Signature
from tilewright.kernel_file.closures import Compiled, Scope, compile_expression
from tilewright.kernel_file.explain import start
from tilewright.kernel_file.problems import KernelFileError
from tilewright.kernel_file.syntax import (
    Accept,
    BufferDirective,
    Const,
    Expr,
    KernelFile,
    LaunchDirective,
    Let,
    Library,
    ListOf,
    Logical,
    MapDirective,
    Name,
    Need,
    Place,
    Tune,
)
from tilewright.records import BufferRole


@dataclass(frozen=True)
class LetLine:
    directive: Let
    value: Compiled
    tunes: int  # bit set of the `tune` lines it depends on, in written order
    origins: frozenset[str]  # parameters, tunes and `device` it depends on, through other lines


@dataclass(frozen=True)
class ConstLine:
    directive: Const
    value: Compiled
    tunes: int
    origins: frozenset[str]


@dataclass(frozen=True)
class NeedLine:
    directive: Need
    parts: tuple[Compiled, ...]  # of `a and b and c` each on its own: the first false one is the one to report
    tunes: int
    origins: frozenset[str]


@dataclass(frozen=True)
class TuneLine:
    directive: Tune
    position: int  # among the tunes


@dataclass(frozen=True)
class BufferLine:
    directive: BufferDirective
    dtype: Compiled
    sizes: tuple[Compiled, ...]
    stride: tuple[Compiled, ...] | None
    tunes: int
    origins: frozenset[str]


Line = LetLine | ConstLine | NeedLine | TuneLine | BufferLine


@dataclass(frozen=True)
class MapLine:
    directive: MapDirective
    options: tuple[tuple[str, Compiled], ...]


@dataclass(frozen=True)
class ArgumentLine:
    """One argument of a launch as written; lists written out are taken apart already."""

    value: Compiled
    place: Place
    origins: frozenset[str]
    may_be_late: bool  # a number, or the name of a list parameter


@dataclass(frozen=True)
class LaunchLine:
    directive: LaunchDirective
    template: tuple[Compiled, ...] | None
    grid: tuple[Compiled, ...]
    block: tuple[Compiled, ...]
    smem: Compiled | None
    cluster: tuple[Compiled, ...] | None
    when: Compiled | None
    arguments: tuple[ArgumentLine, ...]


@dataclass(frozen=True)
class LibraryLine:
    directive: Library
    arguments: tuple[Compiled, ...]


@dataclass(frozen=True)
class CompiledPlan:
    signature: Signature
    lines: tuple[Line, ...]
    steps: tuple[LaunchLine | LibraryLine, ...]
    maps: dict[str, MapLine]
    accepts: dict[str, Accept]
    deciding: frozenset[str]  # scalar parameters whose value decides something
    late: frozenset[str]  # the other scalar parameters
    late_lets: tuple[LetLine, ...]  # lets that depend on them

    @property
    def tunes(self) -> tuple[Tune, ...]:
        return tuple(line.directive for line in self.lines if isinstance(line, TuneLine))


_PLANS: dict[int, tuple[weakref.ref[KernelFile], CompiledPlan]] = {}


def compiled_plan(file: KernelFile) -> CompiledPlan:
    """The file's plan, compiled at the first call for as long as the file lives."""
    # By identity: the hash of a whole syntax tree would cost more than it saves.
    key = id(file)
    known = _PLANS.get(key)
    if known is not None and known[0]() is file:
        return known[1]
    try:
        plan = _Compiler(file).compile()
    except KernelFileError as error:
        raise KernelFileError(error.problems, file.name) from None
    _PLANS[key] = (weakref.ref(file, lambda _: _PLANS.pop(key, None)), plan)
    return plan


class _Compiler:
    def __init__(self, file: KernelFile) -> None:
        self.file = file
        self.scope = Scope()
        self.origins: dict[str, frozenset[str]] = {"device": frozenset({"device"})}
        self.tune_bits: dict[str, int] = {}
        self.deciding: set[str] = set()
        for parameter in file.plan.op.parameters:
            self.origins[parameter.name] = frozenset({parameter.name})
            if parameter.optional:
                self.scope.optional.add(parameter.name)
            if parameter.scalar is None:
                self.scope.opaque.add(parameter.name)
            elif parameter.is_list:
                self.scope.lists.add(parameter.name)

    def compile(self) -> CompiledPlan:
        lines: list[Line] = []
        steps: list[LaunchLine | LibraryLine] = []
        maps: dict[str, MapLine] = {}
        accepts: dict[str, Accept] = {}
        for directive in self.file.plan.directives:
            match directive:
                case LaunchDirective():
                    steps.append(self._launch(directive))
                case Library():
                    steps.append(self._library(directive))
                case MapDirective():
                    maps[directive.name] = self._map(directive)
                case Accept():
                    accepts[directive.name] = directive
                case _:
                    lines.append(self._line(directive))
        scalars = {p.name for p in self.file.plan.op.parameters if p.scalar is not None}
        late = frozenset(scalars - self.deciding)
        late_lets = tuple(line for line in lines if isinstance(line, LetLine) and line.origins & late)
        return CompiledPlan(
            signature=Signature(self.file.plan.op),
            lines=tuple(lines),
            steps=tuple(steps),
            maps=maps,
            accepts=accepts,
            deciding=frozenset(scalars & self.deciding),
            late=late,
            late_lets=late_lets,
        )

    # -- lines --

    def _line(self, directive: Let | Const | Need | Tune | BufferDirective) -> Line:
        match directive:
            case Let(name=name, value=expression):
                value = self._compile(expression)
                origins = self._define(name, value)
                return LetLine(directive, value, self._tunes(origins), origins)
            case Const(name=name, value=expression):
                value = self._compile(expression)
                origins = self._define(name, value)
                self.deciding |= origins
                return ConstLine(directive, value, self._tunes(origins), origins)
            case Need(condition=condition):
                parts = self._compile_all(_conjuncts(condition))
                origins = self._decide(parts)
                return NeedLine(directive, parts, self._tunes(origins), origins)
            case Tune(name=name):
                position = len(self.tune_bits)
                self.tune_bits[name] = 1 << position
                self.origins[name] = frozenset({name})
                return TuneLine(directive, position)
            case BufferDirective():
                return self._buffer(directive)

    def _buffer(self, directive: BufferDirective) -> BufferLine:
        dtype = self._compile(directive.dtype)
        sizes = self._compile_all(directive.sizes)
        stride = None if directive.stride is None else self._compile_all(directive.stride)
        origins = self._decide((dtype, *sizes, *(stride or ())))
        self.origins[directive.name] = origins
        self.scope.opaque.add(directive.name)
        return BufferLine(directive, dtype, sizes, stride, self._tunes(origins), origins)

    def _map(self, directive: MapDirective) -> MapLine:
        options = tuple((key, self._compile(expression)) for key, expression in directive.options)
        self._decide(value for _, value in options)
        self.origins[directive.name] = frozenset()
        self.scope.opaque.add(directive.name)
        return MapLine(directive, options)

    # -- steps --

    def _launch(self, directive: LaunchDirective) -> LaunchLine:
        template = None if directive.template is None else self._compile_all(directive.template)
        grid = self._compile_all(directive.grid)
        block = self._compile_all(directive.block)
        smem = None if directive.smem is None else self._compile(directive.smem)
        cluster = None if directive.cluster is None else self._compile_all(directive.cluster)
        when = None if directive.when is None else self._compile(directive.when)
        self._decide((*(template or ()), *grid, *block, *(cluster or ())))
        self._decide(value for value in (smem, when) if value is not None)
        arguments = tuple(self._argument(expression) for expression in _flattened(directive.arguments))
        self._decide(argument.value for argument in arguments if not argument.may_be_late)
        return LaunchLine(directive, template, grid, block, smem, cluster, when, arguments)

    def _argument(self, expression: Expr) -> ArgumentLine:
        value = compile_expression(expression, self.scope, allow_absent=True)
        origins = self._origins(value)
        # How many values a computed list has may hang on the numbers in it, so those are looked at beforehand.
        names_list_parameter = isinstance(expression, Name) and expression.id in self.file.parameters
        may_be_late = not value.is_opaque and (not value.is_list or names_list_parameter)
        return ArgumentLine(value, start(expression), origins, may_be_late)

    def _library(self, directive: Library) -> LibraryLine:
        arguments = tuple(compile_expression(e, self.scope, allow_absent=True) for e in directive.arguments)
        self._decide(arguments)
        return LibraryLine(directive, arguments)

    # -- dependencies --

    def _compile(self, expression: Expr) -> Compiled:
        return compile_expression(expression, self.scope)

    def _compile_all(self, expressions: Iterable[Expr]) -> tuple[Compiled, ...]:
        return tuple(self._compile(expression) for expression in expressions)

    def _origins(self, value: Compiled) -> frozenset[str]:
        return frozenset().union(*(self.origins.get(name, frozenset()) for name in value.names))

    def _define(self, name: str, value: Compiled) -> frozenset[str]:
        origins = self._origins(value)
        self.origins[name] = origins
        self.scope.define(name, value)
        return origins

    def _decide(self, values: Iterable[Compiled]) -> frozenset[str]:
        origins: frozenset[str] = frozenset().union(*(self._origins(value) for value in values))
        self.deciding |= origins
        return origins

    def _tunes(self, origins: frozenset[str]) -> int:
        return sum(bit for name, bit in self.tune_bits.items() if name in origins)


def _flattened(expressions: Iterable[Expr]) -> Iterable[Expr]:
    """Arguments with lists that are written out taken apart: `[a, b]` is two arguments."""
    for expression in expressions:
        if isinstance(expression, ListOf):
            yield from _flattened(expression.items)
        else:
            yield expression


def _conjuncts(expression: Expr) -> tuple[Expr, ...]:
    parts: list[Expr] = []
    pending = [expression]
    while pending:
        current = pending.pop()
        if isinstance(current, Logical) and current.operator == "and":
            pending += (current.right, current.left)
        else:
            parts.append(current)
    return tuple(parts)


def out_lines(plan: CompiledPlan) -> tuple[BufferLine, ...]:
    """The `out` lines, in written order."""
    return tuple(line for line in plan.lines if isinstance(line, BufferLine) and line.directive.role is BufferRole.OUT)

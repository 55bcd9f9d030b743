"""A kernel file with its plan ready for evaluation: every line with its analysed expressions and what it depends on.

`static_checks` makes these in the one pass in which it checks the plan.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from tilewright.kernel_file import syntax, words
from tilewright.kernel_file.calls import Signature
from tilewright.kernel_file.expression_analysis import Analysed, Analysis, DefinedName, NameTable
from tilewright.kernel_file.expression_values import Type, TypeKind
from tilewright.kernel_file.problems import Autofix, Code, Problem
from tilewright.kernel_file.syntax import (
    Accept,
    BufferDirective,
    Const,
    Expr,
    LaunchDirective,
    Lead,
    Let,
    LibraryDirective,
    MapDirective,
    Need,
    Op,
    Parameter,
    Plan,
    Span,
    Tune,
)
from tilewright.records import BufferRole


@dataclass(frozen=True)
class DefinitionLine:
    """A `let` or `const`."""

    directive: Let | Const
    value: Analysed
    tunes: int  # bit set of the `tune` lines it depends on, in written order
    origins: frozenset[str]  # parameters, tunes and `device` it depends on, through other lines


@dataclass(frozen=True)
class NeedLine:
    directive: Need
    parts: tuple[Analysed, ...]  # of `a and b and c` each on its own: the first false one is the one to report
    tunes: int
    origins: frozenset[str]


@dataclass(frozen=True)
class TuneLine:
    directive: Tune
    position: int  # among the tunes


@dataclass(frozen=True)
class BufferLine:
    directive: BufferDirective
    dtype: Analysed
    sizes: tuple[Analysed, ...]
    stride: tuple[Analysed, ...] | None
    tunes: int
    origins: frozenset[str]


Line = DefinitionLine | NeedLine | TuneLine | BufferLine


@dataclass(frozen=True)
class MapLine:
    directive: MapDirective
    options: tuple[tuple[str, Analysed], ...]


@dataclass(frozen=True)
class LaunchLine:
    directive: LaunchDirective
    template: tuple[Analysed, ...] | None
    grid: tuple[Analysed, ...]
    block: tuple[Analysed, ...]
    smem: Analysed | None
    cluster: tuple[Analysed, ...] | None
    when: Analysed | None
    arguments: tuple[Analysed, ...]  # lists written out are taken apart already


@dataclass(frozen=True)
class LibraryLine:
    directive: LibraryDirective
    arguments: tuple[Analysed, ...]


@dataclass(frozen=True)
class CompiledPlan:
    """The lines and steps of a plan.

    A scalar parameter decides something (a need, a constant, a size, a launch shape) or is late, that is only passed on
    to kernels: late ones never enter a cache key, and what is made of them is computed at every call.
    """

    lines: tuple[Line, ...] = ()
    steps: tuple[LaunchLine | LibraryLine, ...] = ()
    maps: dict[str, MapLine] = field(default_factory=dict)
    accepts: dict[str, Accept] = field(default_factory=dict)
    lead: Lead | None = None
    deciding: frozenset[str] = frozenset()
    late: frozenset[str] = frozenset()

    @cached_property
    def tunes(self) -> tuple[Tune, ...]:
        return tuple(line.directive for line in self.lines if isinstance(line, TuneLine))

    @cached_property
    def outs(self) -> tuple[BufferLine, ...]:
        """The `out` lines, in written order."""
        lines = (line for line in self.lines if isinstance(line, BufferLine))
        return tuple(line for line in lines if line.directive.role is BufferRole.OUT)

    @cached_property
    def unconditional_lines(self) -> tuple[DefinitionLine | NeedLine | BufferLine, ...]:
        """The lines that hang on neither a tune nor the device."""
        unknown = {"device", *(tune.name for tune in self.tunes)}
        lines = (line for line in self.lines if not isinstance(line, TuneLine))
        return tuple(line for line in lines if not line.origins & unknown)

    @cached_property
    def out_lines(self) -> tuple[DefinitionLine | BufferLine, ...]:
        """The lines that the results hang on, and no other."""
        read: set[str] = set()
        found: list[DefinitionLine | BufferLine] = []
        for line in reversed(self.unconditional_lines):
            if isinstance(line, BufferLine) and (line.directive.role is BufferRole.OUT or line.directive.name in read):
                parts: tuple[Analysed, ...] = (line.dtype, *line.sizes, *(line.stride or ()))
            elif isinstance(line, DefinitionLine) and line.directive.name in read:
                parts = (line.value,)
            else:
                continue
            read = read.union(*(part.names for part in parts))
            found.append(line)
        return tuple(reversed(found))

    @cached_property
    def late_lets(self) -> tuple[DefinitionLine, ...]:
        return tuple(line for line in self.lines if isinstance(line, DefinitionLine) and line.origins & self.late)


@dataclass(frozen=True)
class KernelFile:
    """A parsed and checked kernel file. Its identity is the hash of its bytes."""

    text: str
    plan: Plan
    name: str = field(default="kernel.cu", compare=False)  # what messages call it
    compiled: CompiledPlan = field(default_factory=CompiledPlan, compare=False, repr=False)

    @cached_property
    def identity(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def signature(self) -> Signature:
        return Signature(self.plan.op)

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        return {parameter.name: parameter for parameter in self.plan.op.parameters}


# -- what the static rules of a plan work with: --


@dataclass(frozen=True)
class SourceSummary:
    """What the C++ text tells the plan's rules."""

    identifiers: frozenset[str] = frozenset()
    kernels: tuple[str, ...] = ()  # names declared `__global__`
    incomplete: bool = False  # there may be names that no token shows: `##`, or text that could not be read


@dataclass(frozen=True)
class Unparsed:
    """What could not be read, so that its absence is not reported again."""

    names: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()


@dataclass
class _Uses:
    """Which definitions must be used, and which have been."""

    required: dict[str, tuple[str, Span]] = field(default_factory=dict)  # name -> (directive, place)
    named: set[str] = field(default_factory=set)  # in any expression
    passed: set[str] = field(default_factory=set)  # to a step or a map


class PlanScope:
    """The state of one pass over a plan."""

    def __init__(self, op: Op | None, code: SourceSummary, lost: Unparsed, allow_library: bool) -> None:
        self.op = op
        self.code = code
        self.lost = lost
        self.allow_library = allow_library
        self.problems: list[Problem] = []
        self.names = NameTable(lost=lost.names, is_open=op is None)
        self.analysis = Analysis(self.names, self.problems)
        self.uses = _Uses()
        self.deciding: set[str] = set()
        self.tunes: dict[str, int] = {}  # bits, in written order
        self.float_parameters: set[str] = set()
        self.buffers: dict[str, BufferDirective] = {}
        self.combinations = 1
        self.lines: list[Line] = []
        self.steps: list[LaunchLine | LibraryLine] = []
        self.maps: dict[str, MapLine] = {}
        self.accepts: dict[str, syntax.Accept] = {}
        self.lead: syntax.Lead | None = None

    def _problem(self, code: Code, at: Span, found: str, remedy: str, autofix: Autofix | None = None) -> None:
        self.analysis.problem(code, at, found, remedy, autofix)

    # -- expressions --

    def _value(self, expression: Expr, what: str, *kinds: TypeKind) -> Analysed:
        """A single value of one of these kinds."""
        result = self.analysis.require(expression, what, *kinds)
        self.uses.named |= result.names
        return result

    def _any(self, expression: Expr, *, may_be_absent: bool = False) -> Analysed:
        result = self.analysis.analyse(expression, may_be_absent=may_be_absent)
        self.uses.named |= result.names
        return result

    def _integers(self, expressions: Iterable[Expr], what: str, *, lists: bool = False) -> tuple[Analysed, ...]:
        values = tuple(self._any(expression) for expression in expressions)
        for value in values:
            type_ = value.type
            if not type_.is_unknown and (type_.kind is not TypeKind.INT or (type_.is_list and not lists)):
                remedy = f"{what} is an int" + (" or a list of int" if lists else "")
                self._problem(Code.TYPE, value.expression.at, f"{type_} for {what}", remedy)
        return values

    def _decide(self, values: Iterable[Analysed]) -> frozenset[str]:
        """What these values depend on, which thereby decides something."""
        origins: frozenset[str] = frozenset().union(*(value.origins for value in values))
        self.deciding |= origins
        return origins

    def _tunes_of(self, origins: frozenset[str]) -> int:
        return sum(bit for name, bit in self.tunes.items() if name in origins)

    # -- names --

    def _is_result(self, name: str) -> bool:
        return self.op is not None and name in self.op.results

    def _define(
        self, name: str, type_: Type, at: Span, origins: frozenset[str], *, line: int = 0, is_buffer: bool = False
    ) -> None:
        known = self.names.known.get(name)
        if known is not None:
            remedy = "choose another name; a name is defined once"
            self._problem(Code.NAME_TAKEN, at, f"`{name}` is defined on line {known.line} already", remedy)
            return
        if name in words.TAKEN:
            self._problem(Code.NAME_TAKEN, at, f"`{name}` is a word of the plan", "choose another name")
        elif self._is_result(name) and not is_buffer:
            self._problem(Code.NAME_TAKEN, at, f"`{name}` is a result of the op", "choose another name")
        self.names.known[name] = DefinedName(type_, line or at.line, origins)

"""What the static rules of a plan work with: the names that are known, what depends on what, what was found wrong.

`static_checks` has the rules of each directive.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tilewright.kernel_file import compiled_plan, syntax, words
from tilewright.kernel_file.expression_analysis import Analysed, Analysis, KnownName, NameTable
from tilewright.kernel_file.expression_values import Type, TypeKind
from tilewright.kernel_file.problems import Autofix, Code, Problem
from tilewright.kernel_file.syntax import BufferDirective, Expr, Op, Span


@dataclass(frozen=True)
class CodeFacts:
    """What the C++ text tells the plan's rules."""

    identifiers: frozenset[str] = frozenset()
    kernels: tuple[str, ...] = ()  # names declared `__global__`
    incomplete: bool = False  # there may be names that no token shows: `##`, or text that could not be read


@dataclass(frozen=True)
class Lost:
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

    def __init__(self, op: Op | None, code: CodeFacts, lost: Lost, allow_library: bool) -> None:
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
        self.lines: list[compiled_plan.Line] = []
        self.steps: list[compiled_plan.LaunchLine | compiled_plan.LibraryLine] = []
        self.maps: dict[str, compiled_plan.MapLine] = {}
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
        self.names.known[name] = KnownName(type_, line or at.line, origins)

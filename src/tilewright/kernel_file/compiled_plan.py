"""`KernelFile` and its compiled plan: lines with analysed expressions and dependencies, made by `static_checks`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

from tilewright.kernel_file.calls import Signature
from tilewright.kernel_file.expression_analysis import Analysed
from tilewright.kernel_file.syntax import (
    Accept,
    BufferDirective,
    Const,
    LaunchDirective,
    Lead,
    Let,
    LibraryDirective,
    MapDirective,
    Need,
    Parameter,
    Plan,
    Tune,
)
from tilewright.records import BufferRole


@dataclass(frozen=True)
class DefinitionLine:
    """A `let` or `const`."""

    directive: Let | Const
    value: Analysed
    tunes: int  # bit set of the `tune` lines it depends on
    origins: frozenset[str]  # parameters, tunes and `device` it depends on, transitively


@dataclass(frozen=True)
class NeedLine:
    directive: Need
    parts: tuple[Analysed, ...]  # the conjuncts; the first false one is reported
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
    arguments: tuple[Analysed, ...]  # list literals are already flattened


@dataclass(frozen=True)
class LibraryLine:
    directive: LibraryDirective
    arguments: tuple[Analysed, ...]


@dataclass(frozen=True)
class CompiledPlan:
    """The lines and steps of a plan.

    A scalar parameter is deciding if a need, constant, size or launch shape depends on it. Otherwise it is late: it is
    only passed to kernels, is not part of cache keys, and is evaluated at every call.
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
        """The lines that depend on neither a tune nor the device."""
        unknown = {"device", *(tune.name for tune in self.tunes)}
        lines = (line for line in self.lines if not isinstance(line, TuneLine))
        return tuple(line for line in lines if not line.origins & unknown)

    @cached_property
    def out_lines(self) -> tuple[DefinitionLine | BufferLine, ...]:
        """The lines that the results depend on."""
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
    name: str = field(default="kernel.cu", compare=False)  # in messages
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


# -- input of the static checks --


@dataclass(frozen=True)
class SourceSummary:
    """What the static checks need to know of the C++ text."""

    identifiers: frozenset[str] = frozenset()
    kernels: tuple[str, ...] = ()  # names declared `__global__`
    incomplete: bool = False  # may define names that are no tokens, by `##` or in unreadable text


@dataclass(frozen=True)
class Unparsed:
    """Names and directives that could not be parsed, so that their absence is not reported."""

    names: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()

"""A kernel file with its plan ready for evaluation: every line with its analysed expressions and what it depends on.

`static_checks` makes these in the one pass in which it checks the plan.
"""

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
    def sure_lines(self) -> tuple[DefinitionLine | NeedLine | BufferLine, ...]:
        """The lines that hang on neither a tune nor the device."""
        unknown = {"device", *(tune.name for tune in self.tunes)}
        lines = (line for line in self.lines if not isinstance(line, TuneLine))
        return tuple(line for line in lines if not line.origins & unknown)

    @cached_property
    def out_lines(self) -> tuple[DefinitionLine | BufferLine, ...]:
        """The lines that the results hang on, and no other."""
        read: set[str] = set()
        found: list[DefinitionLine | BufferLine] = []
        for line in reversed(self.sure_lines):
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

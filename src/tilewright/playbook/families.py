"""The seam between understanding and writing: families match a traced task, each with schedules for one kind of work.

Every graph has a baseline in loops. What a family has beside it is faster, and tried first where there is a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.playbook.tracing import ProbeSet, Trace
from tilewright.records import Task


@dataclass(frozen=True)
class TracedTask:
    """A task and its graph at every probe; the graphs differ in sizes and numbers alone."""

    task: Task
    traces: tuple[Trace, ...]
    probes: ProbeSet

    @property
    def targets(self) -> frozenset[str]:
        """The operations of the graph, by ATen's names without the overload."""
        return frozenset(node.target for node in self.traces[0].nodes)


@dataclass(frozen=True)
class Structure:
    """A way to write a kernel: the line that describes it, the file, and what to try where it fails or pays.

    Runs know what was tried by `id`, so an id is never changed or given to something else.
    """

    id: str
    summary: str
    write: Callable[[str], str]  # from the op line to the text of the file
    safer: Structure | None = None  # the same with exact functions in place of quick ones
    polished: Structure | None = None  # the same with hints to the cache
    resort: bool = False  # known to lose at the task's sizes: tried only where nothing before it passes
    notes: tuple[str, ...] = ()  # algebra that made work disappear, a sentence each, shown to the person

    def noted(self, notes: tuple[str, ...]) -> Structure:
        """The same, and its variants, with these notes."""
        safer, polished = (replace(one, notes=notes) if one else None for one in (self.safer, self.polished))
        return replace(self, notes=notes, safer=safer, polished=polished)


@dataclass(frozen=True)
class Schedules:
    """What a family has for a task."""

    structures: tuple[Structure, ...]  # the most promising at the task's sizes first
    others: tuple[Structure, ...] = ()  # that can be written, and do not pay there

    @property
    def every(self) -> tuple[Structure, ...]:
        return (*self.structures, *self.others)


@dataclass(frozen=True)
class Answer:
    """What the playbook writes for a task."""

    draft: Structure  # the baseline: simple, right at any size
    structures: tuple[Structure, ...]  # what comes after it, the most promising at the task's sizes first
    every: tuple[Structure, ...]  # all that can be written, whether it pays there or not


@dataclass(frozen=True)
class Family:
    name: str
    kept: frozenset[str]  # ATen operations that its reader takes whole; all others are decomposed by PyTorch's rules
    matches: Callable[[TracedTask], Schedules | None]  # None, or `NoMatch` raised, where the graph is not of its kind

"""The seam between understanding and writing: a family reads a traced task and answers with structures that compute it.

A family is for one kind of work: rows, products, scans. It claims a graph by the operations in it, so that the sentence
of a refusal comes from the family whose work it is. What no family claims, rows are tried on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Answer:
    """What a family makes of a task."""

    draft: Structure
    structures: tuple[Structure, ...]  # what comes after the draft, the most promising at the task's sizes first
    every: tuple[Structure, ...]  # all that can be written, whether it pays there or not
    notes: tuple[str, ...] = ()  # algebra that made work disappear, a sentence each, shown to the person


@dataclass(frozen=True)
class Family:
    name: str
    kept: frozenset[str]  # ATen operations that its reader takes whole; all others are decomposed by PyTorch's rules
    claims: Callable[[TracedTask], bool]
    answer: Callable[[TracedTask], Answer]  # raises `NotSupported` with the sentence for the person

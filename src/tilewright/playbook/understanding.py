"""From a task to an answer: trace the reference once, and write its graph in loops and in the schedules that match."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial

from tilewright.kernel_file import KernelFileError, parse
from tilewright.playbook.attention.schedules import ATTENTION
from tilewright.playbook.class_losses import CLASS_LOSSES
from tilewright.playbook.errors import NotSupported, OtherAtTheLeast
from tilewright.playbook.families import Answer, Family, Schedules, Structure, TracedTask
from tilewright.playbook.file_text import with_least_sizes
from tilewright.playbook.gemms.convolution_program import held_dimensions
from tilewright.playbook.gemms.schedules import PRODUCTS
from tilewright.playbook.loops.answers import KEPT, loops_answer
from tilewright.playbook.loops.numbers import with_whole_numbers
from tilewright.playbook.lowering import same_graph
from tilewright.playbook.moves import MOVES_FAMILY
from tilewright.playbook.pooling.schedules import POOLING_FAMILY
from tilewright.playbook.rows import ROWS
from tilewright.playbook.scans.schedules import SCANS_FAMILY
from tilewright.playbook.top_k import TOP_K
from tilewright.playbook.tracing import (
    MOST_PROBED,
    Probe,
    ProbeSet,
    Spread,
    Trace,
    TraceRequest,
    Traces,
    fixed_probe,
    probes_of,
)
from tilewright.records import Layout, Task
from tilewright.records.task import following
from tilewright.reference import Reference, ReferenceProblem
from tilewright.tasks import task_op_line

# In the order in which they are tried.
FAMILIES: tuple[Family, ...] = (
    ATTENTION,
    PRODUCTS,
    SCANS_FAMILY,
    POOLING_FAMILY,
    CLASS_LOSSES,
    TOP_K,
    MOVES_FAMILY,
    ROWS,
)

_TRACE_SECONDS = 120.0
_SMALL = (4, 16)  # sizes up to these are often filters, heads or groups, which a graph depends on

Ask = Callable[[TraceRequest], Traces]

_lock = threading.Lock()
_answers: dict[str, Answer | NotSupported] = {}  # of tasks seen in this process, by hash


def understand(task: Task) -> Answer:
    """What the playbook can write for the task. Raises `NotSupported` where it has no answer."""
    with _lock:
        found = _answers.get(task.hash)
        if found is None:
            try:
                with Reference(task.reference, task.function) as reference:
                    found = answer(task, lambda request: ask_reference(reference, request))
            except NotSupported as problem:
                found = problem
            _answers[task.hash] = found
    if isinstance(found, NotSupported):
        raise found
    return found


def answer(task: Task, ask: Ask) -> Answer:
    """The same with traces from whoever makes them: schedules that match the graph, and loops as the baseline."""
    found = _schedules(task, ask)
    if not found.structures:
        return any_graph(task, ask)
    try:
        sizes, loops = _in_loops(task, ask, found.held)
    except Exception:  # no rule for something that the schedules know, or a fault, which takes no schedule away
        return Answer(found.structures[0], found.structures[1:], found.every)
    draft = loops.draft
    if sizes >= found.sizes:
        return Answer(draft, found.structures, (draft, *found.every))
    return Answer(found.structures[0], (*found.structures[1:], draft), (*found.every, draft))


def check_supported(task: Task, ask: Ask) -> None:
    """Raises `NotSupported` where there is no answer."""
    if not _schedules(task, ask).structures:
        any_graph(task, ask)


@dataclass(frozen=True)
class _Found(Schedules):
    sizes: int = 0  # dimensions that may vary
    held: frozenset[str] = frozenset()  # those that may not, though the task lets them


def _schedules(task: Task, ask: Ask) -> _Found:
    """Of the first family that matches; empty where none does, or its file would be too long."""
    try:
        traced = traced_task(task, ask)
        for family in FAMILIES:
            if (found := _matched(family, traced)) is not None and found.structures:
                parse(found.structures[0].write(task_op_line(task)))
                free = {one.name for one in task.free if one.varies} - {
                    one.name for one in traced.task.free if one.varies
                }
                return _Found(found.structures, found.others, _varying(traced), frozenset(free))
    except (NotSupported, KernelFileError):
        pass
    return _Found(())


def _matched(family: Family, traced: TracedTask) -> Schedules | None:
    try:
        return family.matches(traced)
    except NotSupported:
        return None


def _varying(traced: TracedTask) -> int:
    return 0 if traced.probes.fixed else sum(one.varies for one in traced.task.free)


def any_graph(task: Task, ask: Ask) -> Answer:
    """A baseline of whatever operations have rules: for all sizes where the graph stays the same, else for fewer."""
    return _in_loops(task, ask)[1]


def _in_loops(task: Task, ask: Ask, held: frozenset[str] = frozenset()) -> tuple[int, Answer]:
    """The same with how many dimensions may vary; `held`: those that schedules hold, which is tried early."""
    for held_task, probes in _attempts(task, held):
        try:
            *traces, own = ask(TraceRequest(held_task, (*probes.probes, Probe(task.sizes, {})), KEPT)).traces
            if same_graph(tuple(traces)):
                alike = same_graph((traces[0], own))  # small sizes may be read otherwise, by another name for a view
                least = _at_the_least(held_task, probes, ask)
                least = least if least and same_graph((traces[0], least)) else None
                traced = TracedTask(held_task, tuple(traces), probes)
                try:
                    return _varying(traced), loops_answer(traced, own if alike else None, least)
                except OtherAtTheLeast:
                    two = _from_two(held_task)
                    found = loops_answer(replace(traced, task=two), own if alike else None)
                    draft = replace(found.draft, write=partial(_with_least_sizes, found.draft, two))
                    return _varying(traced), replace(found, draft=draft, every=(draft,))
        except (ReferenceProblem, NotSupported):
            pass  # what follows from nothing known; anything else comes again at the own sizes
    traced = _fixed(task, ask, KEPT)
    return _varying(traced), loops_answer(traced)


def _at_the_least(task: Task, probes: ProbeSet, ask: Ask) -> Trace | None:
    """The graph where every size is the least that the task takes; None where the function has none there."""
    sizes = {one.name: one.permitted(1) if one.varies else one.size for one in task.free}
    try:
        return ask(TraceRequest(task, (Probe(task.complete(sizes), probes.probes[0].numbers),), KEPT)).traces[0]
    except (ReferenceProblem, NotSupported):
        return None


def _from_two(task: Task) -> Task:
    """The task without sizes of 1."""
    dimensions = (replace(one, at_least=max(2, one.at_least)) if one.varies else one for one in task.dimensions)
    return replace(task, dimensions=following(tuple(dimensions)))


def _with_least_sizes(draft: Structure, task: Task, op_line: str) -> str:
    return with_least_sizes(draft.write(op_line), task)


def _attempts(task: Task, known: frozenset[str]) -> Iterator[tuple[Task, ProbeSet]]:
    """Varied sizes and numbers; then with what a graph may depend on held: numbers, small sizes, all but one."""
    varied = [one for one in task.free if one.varies]
    dependent = [one for one in varied if one.name in known]
    kept = [
        varied[MOST_PROBED:],
        dependent,
        *([one for one in varied if one.size <= most] for most in _SMALL),
        varied[1:],
    ]
    for names in dict.fromkeys(tuple(one.name for one in some) for some in kept):
        held = _holding(task, names)
        for spread in Spread:
            probes = _with_neighbours(held, probes_of(held, spread))
            if (whole := with_whole_numbers(task, probes)) is not None:
                yield held, whole
            yield held, probes
            if probes.probes[0].numbers:
                yield held, replace(probes, probes=tuple(Probe(one.sizes, {}) for one in probes.probes))


def _with_neighbours(task: Task, probes: ProbeSet) -> ProbeSet:
    """Two more calls, one and two sizes further: half of a size, rounded, fits several formulas in three calls."""
    more = []
    for further, probe in zip((1, 2), probes.probes, strict=False):
        given = probe.sizes
        sizes = {one.name: one.permitted(given[one.name] + further) if one.varies else one.size for one in task.free}
        more.append(Probe(task.complete(sizes), probe.numbers))
    return replace(probes, probes=(*probes.probes, *more))


def traced_task(task: Task, ask: Ask) -> TracedTask:
    """Traces at varied sizes where the graph stays the same; else one at the task's own."""
    for one in task.tensors:
        row_major = one.memory_order in ((), tuple(range(len(one.dimensions))))
        if not row_major or one.layout not in (Layout.DENSE, Layout.UNALIGNED):
            raise NotSupported(f"the playbook reads row-major tensors only, and {one.name} is not")
    varied = [one.name for one in task.free if one.varies]
    task = _holding(task, varied[MOST_PROBED:])
    traced = _varied(task, ask) or _fixed(task, ask)
    while held := held_dimensions(traced):
        task = _holding(task, held)
        traced = _varied(task, ask) or replace(traced, task=task)
        if traced.probes.fixed:
            break
    return traced


def _holding(task: Task, held: Collection[str]) -> Task:
    """The task with these dimensions at their own sizes alone."""
    if not held:
        return task
    dimensions = tuple(replace(one, varies=one.varies and one.name not in held) for one in task.dimensions)
    return replace(task, dimensions=following(dimensions))


def _fixed(task: Task, ask: Ask, kept: tuple[str, ...] = ()) -> TracedTask:
    """One call as the task has it."""
    probes = fixed_probe(task)
    try:
        return TracedTask(task, ask(TraceRequest(task, probes.probes, kept)).traces, probes)
    except ReferenceProblem as problem:
        raise NotSupported(f"the playbook cannot follow the reference: {problem}") from problem


def _varied(task: Task, ask: Ask) -> TracedTask | None:
    """Traces at sizes that differ; None where the reference does not take them, or does other things there."""
    for spread in (Spread.SMALL, Spread.LARGE):
        probes = probes_of(task, spread)
        try:
            traces = ask(TraceRequest(task, probes.probes))
            if same_graph(traces.traces):
                return TracedTask(task, traces.traces, probes)
        except ReferenceProblem:
            pass  # it needs the content of its tensors too: the next call tells
    return None


def ask_reference(reference: Reference, request: TraceRequest) -> Traces:
    try:
        traces: Traces = reference.call("tilewright.playbook.tracing:trace", request, Traces, _TRACE_SECONDS)
    except RuntimeError as error:
        last = str(error).strip().splitlines()[-1]
        raise NotSupported(f"the playbook cannot follow the reference: {last}") from error
    return traces

"""From a task to an answer: trace the reference once, and give the graph to the family whose work it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from tilewright.kernel_file import KernelFileError, parse
from tilewright.playbook.attention_family import ATTENTION
from tilewright.playbook.chains import ROWS
from tilewright.playbook.class_losses.structures import CLASS_LOSSES
from tilewright.playbook.convolutions.reading import held_dimensions
from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import Answer, Family, TracedTask
from tilewright.playbook.loops.answers import KEPT, loops_answer
from tilewright.playbook.loops.numbers import with_whole_numbers
from tilewright.playbook.lowering import same_graph
from tilewright.playbook.moves import MOVES_FAMILY
from tilewright.playbook.pooling_family import POOLING_FAMILY
from tilewright.playbook.products.catalogue import PRODUCTS
from tilewright.playbook.scans_family import SCANS_FAMILY
from tilewright.playbook.top_k import TOP_K
from tilewright.playbook.tracing import MOST_PROBED, Probe, ProbeSet, TraceRequest, Traces, fixed_probe, probes_of
from tilewright.records import Task
from tilewright.records.task import following
from tilewright.reference import Reference, ReferenceProblem
from tilewright.tasks import task_op_line

# In the order in which they are asked; the last takes what nobody claims.
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
    """The same with traces from whoever makes them: the family whose work it is, or loops where that has no file."""
    try:
        traced = traced_task(task, ask)
        family = next((one for one in FAMILIES if one.claims(traced)), FAMILIES[-1])
        found = family.answer(traced)
        parse(found.draft.write(task_op_line(task)))
    except (NotSupported, KernelFileError):
        return any_graph(task, ask)
    return found


def any_graph(task: Task, ask: Ask) -> Answer:
    """A baseline of whatever operations have rules: for all sizes where the graph stays the same, else for fewer."""
    for held, probes in _attempts(task):
        try:
            *traces, own = ask(TraceRequest(held, (*probes.probes, Probe(task.sizes, {})), KEPT)).traces
            if same_graph(tuple(traces)):
                alike = same_graph((traces[0], own))  # small sizes may be read otherwise, by another name for a view
                return loops_answer(TracedTask(held, tuple(traces), probes), own if alike else None)
        except (ReferenceProblem, NotSupported):
            pass  # what follows from nothing known; anything else comes again at the own sizes
    return loops_answer(_fixed(task, ask, KEPT))


def _attempts(task: Task) -> Iterator[tuple[Task, ProbeSet]]:
    """Varied sizes and numbers; then with what a graph may depend on held: numbers, small sizes, all but one."""
    varied = [one for one in task.free if one.varies]
    kept = [varied[MOST_PROBED:], *([one for one in varied if one.size <= most] for most in _SMALL), varied[1:]]
    for names in dict.fromkeys(tuple(one.name for one in some) for some in kept):
        held = _holding(task, names)
        for larger in (False, True):
            probes = _with_neighbours(held, probes_of(held, larger))
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
        if one.memory_order not in ((), tuple(range(len(one.dimensions)))):
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
    for larger in (False, True):
        probes = probes_of(task, larger)
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

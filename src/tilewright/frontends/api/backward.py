"""Forward and backward kernels for one request: two tasks, and two runs of the same loop, one after the other.

Whether a function has gradients, and whether they are right, is found out before an author is asked for anything. The
backward is a task like any other: judged, measured, resumable, and found again in the library. It knows its forward;
that a forward has a backward is looked up, so an entry of the library is never changed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from tilewright import tasks
from tilewright.frontends.api import choices
from tilewright.frontends.api.choices import ChosenDevice
from tilewright.frontends.api.reporter import Reporter
from tilewright.frontends.api.requests import resolved
from tilewright.frontends.api.running import Addition, KernelFound, MakeResult, resume, run_request
from tilewright.records import BACKWARD, Origin, Settings, Task
from tilewright.reference import Reference, ReferenceProblem
from tilewright.store import LibraryKernel, Request, RunFolder, Store
from tilewright.tasks import RefusedRequest, TaskError


@dataclass(frozen=True)
class Both:
    """What came of a request for forward and backward."""

    forward: MakeResult
    backward: MakeResult | None  # None where it was not begun, or nobody could write it
    problem: str = ""  # why there is no backward kernel; "" where there is one

    @property
    def backward_kernel(self) -> LibraryKernel | None:
        return self.backward.kernel if self.backward is not None else None


def run_both(
    request: Request, settings: Settings, device: ChosenDevice, reporter: Reporter, *, fresh: bool = False
) -> Both:
    """Have both made, or found. A function without right gradients is refused before anything is spent."""
    planned: dict[str, Task] = {}

    def prepare(task: Task) -> None:
        if fresh or Store().library.backward_of(task.hash) is None:
            planned[task.hash] = backward_of(task, request, reporter)

    forward = run_request(request, replace(settings, backward=True), device, reporter, fresh=fresh, prepare=prepare)
    return _followed(forward, request, settings, device, reporter, fresh, planned)


def resume_both(folder: RunFolder, addition: Addition, output: str, reporter: Reporter) -> MakeResult | Both:
    """Go on with a run and, where it was begun for both, with the backward after it."""
    settings = folder.header().settings
    forward = resume(folder, addition, output, reporter)
    request = folder.request() if folder.path.exists() else None
    if not settings.backward or request is None:
        return forward
    settings = replace(settings, output=output)
    device = choices.same_device(folder.header().environment, request.gpu, settings.spool)
    return _followed(forward, request, settings, device, reporter, False, {})


def backward_of(task: Task, request: Request, reporter: Reporter) -> Task:
    """The task of a function's gradients, which are right. Raises `TaskError`."""
    from tilewright.verify.gradient_check import gradient_problem  # needs torch, which takes seconds to import

    tasks.refuse_without_gradients(task)
    with reporter.live("looking at the gradients"):
        with Reference(task.reference, task.function) as reference:
            try:
                problem = gradient_problem(task, reference)
            except ReferenceProblem as error:
                raise TaskError(f"the gradients of {task.name} cannot be checked: {error}") from error
        if problem:
            raise TaskError(f"{task.name}: {problem}; correct its backward, or leave the gradients to the function")
        return tasks.backward_task(task, tasks.TaskOptions(allow_degenerate=request.allow_degenerate))


def backward_output(output: str) -> str:
    """Where the backward's kernel goes beside the forward's: `norm.cu` and `norm_backward.cu`."""
    stem, extension = os.path.splitext(output)
    return f"{stem}{BACKWARD}{extension}" if output else ""


def _followed(
    forward: MakeResult,
    request: Request,
    settings: Settings,
    device: ChosenDevice,
    reporter: Reporter,
    fresh: bool,
    planned: dict[str, Task],
) -> Both:
    """The backward after its forward."""
    if forward.kernel is None:
        return Both(forward, None, "the forward has no kernel, so none was made for its gradients")
    task = forward.kernel.task()
    store = Store()
    found = None if fresh else store.library.backward_of(task.hash)
    if found is not None:
        return Both(forward, KernelFound(found, task.origin is Origin.WORDS, settings.licence))
    reporter.say(f"{task.name}{BACKWARD}: the gradients of {task.name}, a run of its own", "next")
    # A file to begin with and a function to be compared with are those of the forward.
    settings = replace(settings, start="", against="", output=backward_output(settings.output), backward=False)
    try:
        made = planned.get(task.hash) or backward_of(task, request, reporter)
        asked = replace(resolved(request), backward=True)
        backward = run_request(asked, settings, device, reporter, fresh=fresh, given=made)
    except RefusedRequest as error:
        notes = "; ".join(getattr(error, "__notes__", ()))
        return Both(forward, None, f"{error}{f' ({notes})' if notes else ''}")
    problem = "" if backward.kernel is not None else "no attempt at the backward passed"
    return Both(forward, backward, problem)


def both_words(both: Both) -> str:
    """What runs where in a call that needs gradients."""
    if both.problem:
        return f"gradients are computed by the function's own autograd, not by a kernel: {both.problem}"
    kernel = both.backward_kernel
    derivative = kernel.task().derivative if kernel is not None else None
    kept = ", ".join(one.name for one in derivative.saved) if derivative else ""
    return f"gradients are computed by the backward kernel, from {kept or 'nothing kept'}"

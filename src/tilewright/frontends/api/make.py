"""The Python API: `make` turns a request into a callable, `kernel` a function into one that uses its finished kernels.

Nothing here spends anything at import or in a call: only `make` does, and it says first who writes, for how much.
It prints plain lines on stderr and needs no terminal packages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.frontends.api.backward import both_words, run_both
from tilewright.frontends.api.bound_kernel import BoundKernel, TaskReference
from tilewright.frontends.api.choices import author_name, checked_baselines, choose_device, with_checked
from tilewright.frontends.api.objects import ObjectRequest, object_request, parts_hint
from tilewright.frontends.api.reporter import NotAcceptedYet, PlainReporter, Reporter, in_keywords
from tilewright.frontends.api.requests import installed_name, is_named_object, named_object
from tilewright.frontends.api.running import KernelFound, run_request
from tilewright.frontends.report.finished import answer_blocks, finished, made_before, made_html
from tilewright.frontends.report.rendering import plain_text
from tilewright.frontends.report.runs import addition_words, found_words
from tilewright.playbook.errors import NotSupported
from tilewright.records import USUAL_BASELINES, Budget, Carried, Goal, Precision, Run, Settings, Task, TensorSpec
from tilewright.runtime import LoadError, Operation
from tilewright.runtime.backward import Backward
from tilewright.runtime.files import read_files, read_tuned
from tilewright.store import LibraryEntry, LibraryKernel, Request
from tilewright.tasks import RefusedRequest
from tilewright.tasks.errors import BadArgument

__all__ = ["Made", "NoKernelMade", "NotAcceptedYet", "make"]

Function = Callable[..., Any]
_BUDGET = Budget()


class NoKernelMade(Carried, RuntimeError):
    """The run ended, and no attempt passed; `run` says what was tried."""

    def __init__(self, run: Run) -> None:
        self.run = run
        super().__init__(
            f"no attempt of run {run.id} passed ({run.ending_words or 'it may go on'}); "
            f"see `tilewright show {run.id}`, and go on with `tilewright resume {run.id} {addition_words(run)}`"
        )


class Made:
    """A finished kernel as a function. `kernel` is its file, `task` what it computes, `entry` where it comes from.

    `run` is None where the kernel was found in the library; `backward` is what was made for its gradients, or None.
    Where the kernel does not take a call, the reference runs
    and a warning says so once; a reference that a model wrote for words is never run in this process: such a call
    raises `NoKernelApplies`.
    """

    def __init__(self, kernel: LibraryKernel, run: Run | None, *, own_reference: bool) -> None:
        """`own_reference`: the reference is the caller's code, so it may run in the caller's process."""
        self._from = (kernel, own_reference)
        self.kernel: Path = kernel.path
        self.entry: LibraryEntry = kernel.entry
        self.task: Task = kernel.task()
        self.run = run
        reference = TaskReference(self.task) if own_reference else None
        files = read_files([kernel.path], self.task.allow_library)
        form = reference.form() if reference is not None else None
        found = kernel.backward()
        self.backward: Made | None = Made(found, None, own_reference=own_reference) if found is not None else None
        backward = self.backward.as_backward(self.task) if self.backward is not None else None
        self.operation = Operation(files, read_tuned([kernel.path]), reference, returned=form, backward=backward)
        self.__name__ = self.task.name
        self.__doc__ = self.operation.__doc__

    def as_backward(self, forward: Task) -> Backward | None:
        """Itself as what makes the gradients of a forward; None where it is no backward."""
        derivative = self.task.derivative
        if derivative is None:
            return None
        gradients = dict(zip(derivative.results, derivative.gradients, strict=True))
        ranks = {one.name: len(one.dimensions) for one in forward.tensors}
        ranks |= {one.name: len(one.shape) for one in forward.outputs}
        leading = frozenset(name for name, _ in forward.leading)
        return Backward(self.operation, gradients, derivative.by, ranks, leading)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.operation(*args, **kwargs)

    def __deepcopy__(self, memo: object) -> Made:
        """Itself: nothing of it changes."""
        return self

    def __copy__(self) -> Made:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """By its place in the library, from where it is taken again; of the run that made it nothing is kept."""
        return _taken_again, (*self._from, self.operation.files[0].identity)

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Which file takes such a call and with what launches, or why none does; builds, and runs nothing."""
        return str(self.operation.explain(*args, **kwargs))

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Build ahead what calls like this one need."""
        self.operation.prepare(*args, **kwargs)

    def _repr_html_(self) -> str:
        return made_html(self.record, self.run, self.entry.author)

    @property
    def record(self) -> Any:
        """What the answers to people's questions are made from: `report.finished.finished` makes them."""
        kernel, own_reference = self._from
        backward = (self.backward.task, self.backward.kernel) if self.backward is not None else None
        return replace(made_before(kernel, self.kernel), backward=backward, own_reference=own_reference)

    def __repr__(self) -> str:
        return f"<Made {self.operation.signature}; {self.kernel}>"


def backward_of(kernel: LibraryKernel) -> Backward | None:
    """What makes the gradients of a kernel's calls; None where no kernel was made for them."""
    found = kernel.backward()
    return None if found is None else Made(found, None, own_reference=True).as_backward(kernel.task())


def _taken_again(kernel: LibraryKernel, own_reference: bool, identity: str) -> Made:
    """What was pickled."""
    made = Made(kernel, None, own_reference=own_reference)
    if made.operation.files[0].identity != identity:
        raise LoadError(f"{kernel.path} is not the file it was when this was pickled; make it anew")
    return made


def make(
    request: Any,
    *,
    shapes: Mapping[str, Any] | None = None,
    model: str | None = None,
    author: str | None = None,
    base_url: str = "",
    gpu: str | None = None,
    spool: str = "",
    attempts: int = _BUDGET.attempts,
    tokens: int = _BUDGET.tokens,
    dollars: float = _BUDGET.dollars,
    seconds: float = _BUDGET.seconds,
    candidates: int = 1,
    enough: float = Settings.good_enough,
    precision: Precision | str | None = None,
    goal: Goal | str = Goal.THROUGHPUT,
    allow_library: bool = False,
    allow_degenerate: bool = False,
    fixed: tuple[str, ...] = (),
    values: Mapping[str, str] | None = None,
    start: str = "",
    against: str = "",
    baselines: tuple[str, ...] = USUAL_BASELINES,
    license: str = "",
    backward: bool = False,
    yes: bool = False,
    fresh: bool = False,
    quiet: bool = False,
    **arguments: Any,
) -> Made | BoundKernel:
    """A callable for a request: words, `"file.py:function"`, a task folder, `"package.module:Name(64)"`, or an object.

    An object is a Python function, a lambda, a closure, a `functools.partial`, an nn.Module or a method of one. What is
    made of a module, or of a function with tensors from around it, is called as they are and follows their tensors.

    Every further keyword is an argument of the operation: a tensor as text (`x="1024x4096:f16"`) or as a tensor, or a
    number; `shapes` takes the same as a dictionary. A kernel made before is found in the library, free. Otherwise an
    author writes one, with at most so many `attempts`, `tokens`, `dollars` and `seconds`: the model named, else one
    whose key is set, else the built-in playbook; `candidates` are those of each step, and a kernel at the fraction
    `enough` of the roofline ends it. `values` says what tensors hold, such as `{"x": "uniform:-1:1"}`.
    `yes` accepts a specification of words unseen; a script needs it, since nobody is there to be asked. `start` is
    the text of a kernel file to improve, so nothing is then taken from the library. `license` is an SPDX expression
    that is kept in the record of the kernel's provenance. With `backward` a kernel for the gradients is made too, in a
    run of its own with the same budget; without one, or where none could be made, calls that need gradients run the
    function's autograd. `precision` is what kernel and `baselines` are held to alike; left out, what PyTorch computes
    by default on the GPU at hand.
    """
    writer = author_name(model, author, os.environ)
    budget = Budget(attempts, tokens, dollars, seconds)
    settings = Settings(author=writer, budget=budget, candidates=candidates, good_enough=enough, start=start)
    settings = with_checked(settings, base_url=base_url, spool=spool, against=against, licence=license)
    settings = replace(settings, baselines=checked_baselines(baselines), backward=backward)
    found = _request(request, {**(shapes or {}), **arguments}, values or {}, tuple(fixed))
    asked = replace(found.request, precision=Precision(precision) if precision else None, goal=Goal(goal))
    asked = replace(asked, allow_library=allow_library, allow_degenerate=allow_degenerate)
    try:
        made = _made(asked, settings, gpu, fresh, PlainReporter(yes, quiet), wanted=writer if model or author else "")
    except NotSupported as problem:
        if found.original is not None and found.original.module is not None:
            problem.args = (f"{problem}{parts_hint(found.original.module)}",)
        raise
    return made if found.original is None else BoundKernel(made, found.original)


def _request(
    request: Any, arguments: Mapping[str, Any], values: Mapping[str, str], fixed: tuple[str, ...]
) -> ObjectRequest:
    if isinstance(request, ObjectRequest):
        return replace(request, request=replace(request.request, fixed=fixed))
    tensors, numbers = read_arguments(arguments)
    if isinstance(request, str) and is_named_object(named := installed_name(request)):
        request = named_object(named)
    if isinstance(request, str):
        return ObjectRequest(Request(request, tensors, numbers, dict(values), fixed=fixed), None)
    found = object_request(request, tensors, numbers, values)
    return replace(found, request=replace(found.request, fixed=fixed))


def _made(request: Request, settings: Settings, gpu: str | None, fresh: bool, reporter: Reporter, wanted: str) -> Made:
    """What is made or found for a request; `wanted` is the author named for it, if any."""
    device = choose_device(gpu, settings.spool)
    try:
        request = replace(request, gpu=device.gpu)
        if settings.backward:
            both = run_both(request, settings, device, reporter, fresh=fresh)
            reporter.say(both_words(both))
            result = both.forward
        else:
            result = run_request(request, settings, device, reporter, fresh=fresh)
    except RefusedRequest as error:
        error.args = (in_keywords(error),)
        raise
    if isinstance(result, KernelFound):
        _say_ignored(result, wanted, reporter)
        return Made(result.kernel, None, own_reference=not result.from_words)
    if result.kernel is None:
        raise NoKernelMade(result.run)
    made = Made(result.kernel, result.run, own_reference=not result.from_words)
    reporter.say(plain_text(answer_blocks(finished(made.record), call=False)))
    return made


def _say_ignored(found: KernelFound, wanted: str, reporter: Reporter) -> None:
    """Say which options a kernel of the library leaves without effect; without such, nothing."""
    if wanted and wanted != found.kernel.entry.author:
        reporter.say(found_words(found.kernel.entry, wanted, "fresh=True"))
    if found.licence:
        reporter.say(
            f"license={found.licence!r} is kept with a kernel that is made anew (fresh=True), not with this one"
        )


def read_arguments(arguments: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Keyword arguments as the texts a request holds: tensors and numbers."""
    tensors: dict[str, str] = {}
    numbers: dict[str, str] = {}
    for name, value in arguments.items():
        if isinstance(value, str):
            tensors[name] = value
        elif isinstance(value, (bool, int, float)):
            numbers[name] = repr(value)
        elif isinstance(value, TensorSpec) or hasattr(value, "dtype"):
            tensors[name] = _tensor_text(name, value)
        elif isinstance(value, (tuple, list)):
            numbers[name] = repr(tuple(value))
        else:
            raise BadArgument(
                f'{name}: found {type(value).__name__}; give a tensor, text like "4096x1024:bf16", or a number'
            )
    return tensors, numbers


def _tensor_text(name: str, value: Any) -> str:
    from tilewright.runtime.specs import read_spec

    spec = read_spec("make", name, value)
    assert spec is not None
    return f"{'x'.join(map(str, spec.shape))}:{spec.dtype.value}"

"""`tilewright.make` in Python: a request in, a callable out. It prints plain lines on stderr; only `make` spends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tilewright.devices.inputs import TORCH_DTYPE
from tilewright.frontends.api.choices import author_name, choose_device, settings_of
from tilewright.frontends.api.kernel_arguments import spec_text
from tilewright.frontends.api.objects import BoundKernel, ObjectRequest, object_request, parts_hint
from tilewright.frontends.api.reporter import NotAcceptedYet, PlainReporter, Reporter, in_keywords
from tilewright.frontends.api.requests import installed_name, is_named_object, named_object
from tilewright.frontends.api.running import KernelFound, MakeResult, run_request, run_with_backward
from tilewright.frontends.report.finished import answer_blocks, finished, is_catalogued, made_before
from tilewright.frontends.report.rendering import plain_text
from tilewright.frontends.report.runs import addition_words, found_words
from tilewright.playbook.errors import NotSupported
from tilewright.records import USUAL_BASELINES, Budget, Carried, Goal, Precision, Run, Settings, Task, TensorSpec
from tilewright.runtime import LoadError, Operation
from tilewright.runtime.backward import Backward
from tilewright.runtime.fallback import TextReference
from tilewright.runtime.files import read_files, read_tuned
from tilewright.runtime.returned import OutputSpec, output_spec_of
from tilewright.store import LibraryEntry, LibraryKernel, Request
from tilewright.tasks import RefusedRequest
from tilewright.tasks.errors import BadArgument

__all__ = ["Made", "NoKernelMade", "NotAcceptedYet", "make"]

Function = Callable[..., Any]
_BUDGET = Budget()


class NoKernelMade(Carried, RuntimeError):
    """The run ended, and no attempt passed. `run` has the attempts and why each was rejected."""

    def __init__(self, run: Run) -> None:
        self.run = run
        super().__init__(
            f"no attempt of run {run.id} passed ({run.ending_words or 'it may go on'}); "
            f"see `tilewright show {run.id}`, and go on with `tilewright resume {run.id} {addition_words(run)}`"
        )


class Made:
    """A finished kernel as a function. `kernel` is its file, `task` what it computes, `entry` its origin.

    `run` is None where the kernel was found in the library; `backward` is the kernel for its gradients, or None.
    Where the kernel does not take a call, the reference runs, with one warning: the caller's own code, or what the
    catalogue has for words. One that a model wrote for words never runs in this process: such a call raises
    `NoKernelApplies`.
    """

    def __init__(self, kernel: LibraryKernel, run: Run | None, *, own_reference: bool) -> None:
        """`own_reference`: the reference is the caller's code, so it may run in the caller's process."""
        self._from = (kernel, own_reference)
        self.kernel: Path = kernel.path
        self.entry: LibraryEntry = kernel.entry
        self.task: Task = kernel.task()
        self.run = run
        reference = task_reference(self.task) if own_reference else None
        files = read_files([kernel.path], self.task.allow_library)
        form = returned_form(_by_name(reference), self.task, {}) if reference is not None else None
        found = kernel.backward()
        self.backward: Made | None = Made(found, None, own_reference=own_reference) if found is not None else None
        backward = self.backward.as_backward(self.task) if self.backward is not None else None
        self.operation = Operation(files, read_tuned([kernel.path]), reference, returned=form, backward=backward)
        self.__name__ = self.task.name
        self.__doc__ = self.operation.__doc__

    def as_backward(self, forward: Task) -> Backward | None:
        """This kernel as the one for the gradients of `forward`; None if it is no backward kernel."""
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

    def __deepcopy__(self, memo: object = None) -> Made:
        """Itself: it is immutable."""
        return self

    __copy__ = __deepcopy__

    def __reduce__(self) -> tuple[Any, ...]:
        """By its place in the library; `run` is not kept."""
        return _unpickled, (*self._from, self.operation.files[0].identity)

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Which file takes such a call and with what launches, or why none does. It builds, and runs nothing."""
        return str(self.operation.explain(*args, **kwargs))

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Build in advance what calls like this one need."""
        self.operation.prepare(*args, **kwargs)

    @property
    def record(self) -> Any:
        """What the answers to people's questions are made from: `report.finished.finished` makes them."""
        kernel, own_reference = self._from
        backward = (self.backward.task, self.backward.kernel) if self.backward is not None else None
        return replace(made_before(kernel, self.kernel), backward=backward, own_reference=own_reference)

    def __repr__(self) -> str:
        return f"<Made {self.operation.signature}; {self.kernel}>"


def backward_of(kernel: LibraryKernel) -> Backward | None:
    """The kernel for the gradients of a kernel's calls; None if there is none."""
    found = kernel.backward()
    return None if found is None else Made(found, None, own_reference=True).as_backward(kernel.task())


def _unpickled(kernel: LibraryKernel, own_reference: bool, identity: str) -> Made:
    made = Made(kernel, None, own_reference=own_reference)
    if made.operation.files[0].identity != identity:
        raise LoadError(f"{kernel.path} has changed since this was pickled; make it anew")
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
    """Make a callable for a request, or find it in the library.

    `request` is words, `"file.py:function"`, a task folder, `"package.module:Name(64)"`, or a Python object: a
    function, a lambda, a closure over numbers, an nn.Module or a method of one. The result for a module is called as it
    is, and uses its tensors.

    Every further keyword is an argument of the operation: a tensor as text (`x="1024x4096:f16"`) or as a tensor, or a
    number. `shapes` takes the same as a dictionary, and `values` says what tensors hold, such as
    `{"x": "uniform:-1:1"}`.

    A kernel that was made before is found in the library, at no cost. Otherwise an author writes one: the model named,
    else one whose key is set, else the built-in playbook. `attempts`, `tokens`, `dollars` and `seconds` are limits;
    `candidates` is the number of attempts for each step; a kernel that reaches the fraction `enough` of the roofline
    ends the run. `fresh` makes a new kernel in any case, and `start` is the text of a kernel file to improve. `yes`
    accepts the specification of words without asking, which a script needs.

    `precision` applies to the kernel and to the `baselines`; the default is what PyTorch uses on the GPU at hand. With
    `backward` a kernel for the gradients is made too, in a run of its own with the same budget. Without one, calls that
    need gradients use the function's autograd. `license` is an SPDX expression for the kernel's provenance record.
    """
    writer = author_name(model, author, os.environ)
    budget = Budget(attempts, tokens, dollars, seconds)
    settings = settings_of(writer, budget, base_url, spool, baselines, against, license)
    settings = replace(settings, candidates=candidates, good_enough=enough, start=start, backward=backward)
    found = _request(request, {**(shapes or {}), **arguments}, values or {})
    asked = replace(
        found.request,
        fixed=tuple(fixed),
        precision=Precision(precision) if precision else None,
        goal=Goal(goal),
        allow_library=allow_library,
        allow_degenerate=allow_degenerate,
    )
    try:
        made = _made(asked, settings, gpu, fresh, PlainReporter(yes, quiet), wanted=writer if model or author else "")
    except NotSupported as problem:
        if found.original is not None and found.original.module is not None:
            problem.args = (f"{problem}{parts_hint(found.original.module)}",)
        raise
    return made if found.original is None else BoundKernel(made, found.original)


def _request(request: Any, arguments: Mapping[str, Any], values: Mapping[str, str]) -> ObjectRequest:
    if isinstance(request, ObjectRequest):
        return request
    tensors, numbers = read_arguments(arguments)
    if isinstance(request, str) and is_named_object(named := installed_name(request)):
        request = named_object(named)
    if isinstance(request, str):
        return ObjectRequest(Request(request, tensors, numbers, dict(values)), None)
    return object_request(request, tensors, numbers, values)


def _made(request: Request, settings: Settings, gpu: str | None, fresh: bool, reporter: Reporter, wanted: str) -> Made:
    """`wanted` is the author named for the request, if any."""
    device = choose_device(gpu, settings.spool)
    try:
        request = replace(request, gpu=device.gpu)
        if settings.backward:
            both = run_with_backward(request, settings, device, reporter, fresh=fresh)
            reporter.say(both.words)
            result = both.forward
        else:
            result = run_request(request, settings, device, reporter, fresh=fresh)
    except RefusedRequest as error:
        error.args = (in_keywords(error),)
        raise
    if isinstance(result, KernelFound):
        reporter.say(found_words(result.kernel.entry, wanted, "fresh=True"), "library")
        if result.licence:
            kept = f"license={result.licence!r} is kept with a kernel that is made anew (fresh=True), not with this one"
            reporter.say(kept)
        return Made(result.kernel, None, own_reference=_may_run(result))
    if result.kernel is None:
        raise NoKernelMade(result.run)
    made = Made(result.kernel, result.run, own_reference=_may_run(result))
    reporter.say(plain_text(answer_blocks(finished(made.record), call=False)))
    return made


def _may_run(result: MakeResult) -> bool:
    """Whether the reference may run in this process: the person's own code, or the catalogue's for words."""
    kernel = result.kernel
    return not result.from_words or (kernel is not None and is_catalogued(kernel.task(), kernel.request()))


def read_arguments(arguments: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Keyword arguments as the texts of a request: tensors and numbers."""
    tensors: dict[str, str] = {}
    numbers: dict[str, str] = {}
    for name, value in arguments.items():
        if isinstance(value, str):
            tensors[name] = value
        elif isinstance(value, (bool, int, float)):
            numbers[name] = repr(value)
        elif isinstance(value, TensorSpec) or hasattr(value, "dtype"):
            from tilewright.runtime.specs import read_spec

            spec = read_spec("make", name, value)
            assert spec is not None
            tensors[name] = spec_text(spec)
        elif isinstance(value, (tuple, list)):
            numbers[name] = repr(tuple(value))
        else:
            raise BadArgument(
                f'{name}: found {type(value).__name__}; give a tensor, text like "64x64:bf16", or a number'
            )
    return tensors, numbers


# -- the reference of a finished kernel --


def task_reference(task: Task) -> TextReference:
    return TextReference(task.reference, task.function, tuple(one.name for one in task.inputs))


def _by_name(reference: TextReference) -> Function:
    return lambda **arguments: reference(*(arguments[name] for name in reference.names))


@dataclass(frozen=True, eq=False)
class FunctionReference:
    """A caller's own function, with the arguments that are no inputs of the kernel."""

    function: Function
    names: tuple[str, ...]
    others: Mapping[str, Any]
    identity: str

    def __call__(self, *values: Any) -> Any:
        return self.function(**dict(zip(self.names, values, strict=True)), **self.others)


def returned_form(function: Function, task: Task, others: Mapping[str, Any]) -> OutputSpec | None:
    """The form of what a function returns for a task's inputs, by a call on the meta device, else with fake tensors.

    A function that reads values is called with ones; None where no call succeeds.
    """
    in_place = [one.name for one in task.tensors if one.in_place]
    for device, mode in (("meta", contextlib.nullcontext), ("cpu", _fake_mode), ("cpu", contextlib.nullcontext)):
        with contextlib.suppress(Exception), mode(), torch.no_grad():
            arguments: dict[str, Any] = dict.fromkeys(one.name for one in task.inputs)
            arguments |= {one.name: one.value for one in task.numbers}
            for name, spec in task.specs().items():
                empty = torch.empty_strided(spec.shape, spec.stride, dtype=TORCH_DTYPE[spec.dtype], device=device)
                arguments[name] = empty.fill_(1)
            return output_spec_of(function(**arguments, **others), arguments, in_place)
    return None


def _fake_mode() -> contextlib.AbstractContextManager[Any]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode: contextlib.AbstractContextManager[Any] = FakeTensorMode(allow_non_fake_inputs=True)
    return mode

"""The Python API: `make` turns a request into a callable, `kernel` a function into one that uses its finished kernels.

Nothing here spends anything at import or in a call: only `make` does, and it says first who writes, for how much.
It prints plain lines on stderr and needs no terminal packages.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tilewright.frontends.arguments import BadArgument, checked_licence
from tilewright.frontends.author_choice import author_name, checked_url, open_author
from tilewright.frontends.found_words import found_words
from tilewright.frontends.function_source import function_source
from tilewright.frontends.making import (
    Finished,
    accept,
    announcement,
    carry,
    opened_run,
    same_request,
    specify,
    task_of,
    way_on,
)
from tilewright.frontends.place_choice import Place, choose_place
from tilewright.frontends.plain_progress import PlainProgress, say
from tilewright.frontends.remedies import in_keywords
from tilewright.frontends.task_words import task_words
from tilewright.playbook.errors import PlaybookProblem
from tilewright.records import Budget, Goal, Precision, Run, Settings, Specification, Task, TensorSpec
from tilewright.runtime import Operation, load
from tilewright.store import LibraryEntry, LibraryKernel, Request, RunFolder, Store
from tilewright.tasks import TaskError

Function = Callable[..., Any]
_BUDGET = Budget()


class NoKernelMade(RuntimeError):
    """The run ended, and no attempt passed; `run` says what was tried."""

    def __init__(self, run: Run) -> None:
        self.run = run
        super().__init__(
            f"no attempt of run {run.id} passed ({run.ending.words if run.ending else 'it may go on'}); "
            f"see `tilewright show {run.id}`, and go on with `tilewright resume {run.id} --hint ...`"
        )


class NotAcceptedYet(RuntimeError):
    """A request in words was specified, and nobody has accepted the specification; it is here to be read."""

    def __init__(self, run: str, specification: Specification, shown: bool = False) -> None:
        """`shown`: whether it was printed before, so that the message need not hold it."""
        self.run = run
        self.specification = specification
        text = "" if shown else f"\n\n{specification_text(specification)}"
        super().__init__(
            f"the specification of run {run} waits to be accepted: read it, then call make again with yes=True "
            f"(it is not paid for again), or `tilewright resume {run} --yes`{text}"
        )


class Made:
    """A finished kernel as a function. `kernel` is its file, `task` what it computes, `entry` where it comes from.

    `run` is None where the kernel was found in the library. Where the kernel does not take a call, the reference runs
    and a warning says so once; a reference that a model wrote for words is never run in this process: such a call
    raises `NoKernelApplies`.
    """

    def __init__(self, kernel: LibraryKernel, run: Run | None, *, own_reference: bool) -> None:
        """`own_reference`: the reference is the caller's code, so it may run in the caller's process."""
        self.kernel: Path = kernel.path
        self.entry: LibraryEntry = kernel.entry
        self.task: Task = kernel.task()
        self.run = run
        reference = fallback_of(self.task) if own_reference else None
        self.operation: Operation = load(kernel.path, reference=reference, allow_library=self.task.allow_library)
        self.__name__ = self.task.name
        self.__doc__ = self.operation.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.operation(*args, **kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Which file takes such a call and with what launches, or why none does; builds, and runs nothing."""
        return str(self.operation.explain(*args, **kwargs))

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Build ahead what calls like this one need."""
        self.operation.prepare(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Made {self.operation.signature}; {self.kernel}>"


def make(
    request: str | Function,
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
    precision: Precision | str = Precision.DTYPE,
    goal: Goal | str = Goal.THROUGHPUT,
    allow_library: bool = False,
    allow_degenerate: bool = False,
    fixed: tuple[str, ...] = (),
    values: Mapping[str, str] | None = None,
    start: str = "",
    against: str = "",
    license: str = "",
    yes: bool = False,
    fresh: bool = False,
    quiet: bool = False,
    **arguments: Any,
) -> Made:
    """A callable for a request: words, `"file.py:function"`, a task folder, or a Python function.

    Every further keyword is an argument of the operation: a tensor as text (`x="1024x4096:f16"`) or as a tensor, or a
    number; `shapes` takes the same as a dictionary. A kernel made before is found in the library, free. Otherwise an
    author writes one, with at most so many `attempts`, `tokens`, `dollars` and `seconds`: the model named, else one
    whose key is set, else the built-in playbook; `candidates` are those of each step, and a kernel at the fraction
    `enough` of the roofline ends it. `values` says what tensors hold, such as `{"x": "uniform:-1:1"}`.
    `yes` accepts a specification of words unseen; a script needs it, since nobody is there to be asked. `start` is
    the text of a kernel file to improve, so nothing is then taken from the library. `license` is an SPDX expression
    that is kept in the record of the kernel's provenance.
    """
    if isinstance(request, torch.nn.Module):
        raise BadArgument(_module_words(request))
    tensors, numbers = read_arguments({**(shapes or {}), **arguments})
    place = choose_place(gpu, spool)
    asked = Request(
        text=request if isinstance(request, str) else function_source(inspect.unwrap(request)),
        shapes=tensors,
        numbers=numbers,
        values=dict(values or {}),
        gpu=place.gpu,
        precision=Precision(precision),
        goal=Goal(goal),
        allow_library=allow_library,
        fixed=tuple(fixed),
        allow_degenerate=allow_degenerate,
        function="" if isinstance(request, str) else inspect.unwrap(request).__name__,
    )
    writer = author_name(model, author, os.environ)
    settings = Settings(
        author=writer,
        budget=Budget(attempts, tokens, dollars, seconds),
        candidates=candidates,
        good_enough=enough,
        against=against,
        start=start,
        base_url=checked_url(base_url, writer),
        spool=str(Path(spool).resolve()) if spool else "",
        licence=checked_licence(license),
    )
    store, progress = Store(), PlainProgress(quiet)
    anew = fresh or bool(start)
    found = same_request(store, asked) if asked.function and not anew else None
    task = _task_of(asked) if found is None else found.task()
    if found is None and not anew:
        found = same_request(store, asked) if task is None else store.library_find(task.hash)
    if found is not None:
        _say_found(found.entry, writer if model or author else "", settings.licence, progress)
        return Made(found, None, own_reference=task is not None)
    done = _Making(store, asked, task, settings, place, fresh, yes, progress).carried()
    if done.kernel is None:
        raise NoKernelMade(done.run)
    return Made(done.kernel, done.run, own_reference=task is not None)


def _module_words(module: torch.nn.Module) -> str:
    """What to write where a module was given: it is made anew from its class, so the text must name that."""
    kind = type(module)
    try:
        path = os.path.relpath(inspect.getfile(kind))
    except (TypeError, OSError):
        path = "FILE.py"
    return f'{kind.__name__}: give a module as text, with the arguments that make it: "{path}:{kind.__name__}(...)"'


def _say_found(entry: LibraryEntry, wanted: str, licence: str, progress: PlainProgress) -> None:
    """Say which options a kernel of the library leaves without effect; without such, nothing."""
    if wanted and wanted != entry.author:
        progress.line(found_words(entry, wanted, "fresh=True"))
    if licence:
        progress.line(f"license={licence!r} is kept with a kernel that is made anew (fresh=True), not with this one")


def _task_of(request: Request) -> Task | None:
    try:
        return task_of(request)
    except TaskError as error:
        error.args = (in_keywords(error),)
        raise


@dataclass(frozen=True)
class _Making:
    """A kernel that is nowhere to be found, in the making."""

    store: Store
    request: Request
    task: Task | None  # None where the request is words
    settings: Settings
    place: Place
    fresh: bool
    yes: bool
    progress: PlainProgress

    def carried(self) -> Finished:
        """The run from its first word to its end: who writes for how much is said first."""
        progress = self.progress
        with open_author(self.settings.author, self.settings.base_url, say, self.settings.budget.seconds) as opened:
            for title, text in announcement(opened, self.settings.budget, self.place):
                progress.line(f"{title}  {text}")
            chosen = progress.following(opened)
            folder, new = opened_run(self.store, self.request, self.task, self.settings, self.place, self.fresh)
            progress.line(f"run {folder.id}")
            with folder.lock(), _resumable(folder, new):
                if self.task is None:
                    _agree(folder, self.request, specify(folder, self.request, chosen, progress), self.yes)
                for line in task_words(folder.load().task):
                    progress.line(f"task    {line}")
                return carry(self.store, folder, chosen, self.place, progress)


@contextmanager
def _resumable(folder: RunFolder, new: bool) -> Iterator[None]:
    """Whatever ends the block early says how to go on; see `way_on`."""
    try:
        yield
    except NotAcceptedYet:
        raise
    except BaseException as error:
        if isinstance(error, PlaybookProblem):
            error.args = (in_keywords(error),)
        error.add_note(way_on(folder, error, new=new))
        raise


def _agree(folder: RunFolder, request: Request, specification: Specification, yes: bool) -> None:
    if not yes and not sys.stdin.isatty():
        raise NotAcceptedYet(folder.id, specification)
    if not yes:
        say(specification_text(specification))
        if input("Is this what is meant? [y/N] ").strip().lower() not in ("y", "yes"):
            raise NotAcceptedYet(folder.id, specification, shown=True)
    accept(folder, request, specification)


def specification_text(specification: Specification) -> str:
    """The reference, its inputs, and what was assumed beyond what they say."""
    unsaid = [one for one in specification.assumptions if one not in specification.description]
    parts = [specification.reference.strip(), "", specification.description.strip()]
    return "\n".join([*parts, *(f"assumed: {one}" for one in unsaid)])


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


def fallback_of(task: Task) -> Function:
    """The reference that a caller gave as a function, for calls that no kernel takes; loaded when first needed."""
    loaded: list[Function] = []

    def reference(*values: Any) -> Any:
        if not loaded:
            namespace: dict[str, Any] = {"__name__": f"tilewright_reference_{task.name}"}
            exec(compile(task.reference, f"<the reference of {task.name}>", "exec"), namespace)
            loaded.append(namespace[task.function])
        return loaded[0](**{one.name: value for one, value in zip(task.inputs, values, strict=True)})

    return reference

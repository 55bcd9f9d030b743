"""From a request to a finished kernel: what the command line and the Python API share. It knows no terminal.

A request that is a function, a module, a problem file or a folder becomes a task at once. Words become a run first, so
that the specification an author writes for them is on record before anybody is asked to accept it.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import json
import platform
from dataclasses import dataclass, replace
from typing import Protocol

from tilewright import __version__
from tilewright.frontends.arguments import BadArgument
from tilewright.frontends.author_choice import PLAYBOOK, ChosenAuthor
from tilewright.frontends.place_choice import Place, gpu_reference, open_devices
from tilewright.frontends.run_rows import dollars_words, seconds_words
from tilewright.kernel_file import TunedChoices, parse
from tilewright.measure import Stopwatch
from tilewright.models import BadModelName, MissingPackage, ModelRejected, NoRecordedReply
from tilewright.playbook.errors import PlaybookProblem
from tilewright.records import (
    MEASURED_NOISE,
    MODELLED_NOISE,
    Budget,
    Environment,
    Origin,
    Question,
    Reply,
    Run,
    Settings,
    Specification,
    Task,
    to_json,
)
from tilewright.reference import Reference, ReferenceLimits
from tilewright.refine import Watcher, Workshop, refine
from tilewright.store import LibraryKernel, Request, RunFolder, Store, StoreError
from tilewright.tasks import (
    TaskError,
    TaskOptions,
    fit_specification,
    open_task,
    task_from_source,
    task_from_specification,
)
from tilewright.toolchain import find_toolkit
from tilewright.verify import Referee

# What is refused once is refused again, whether the request was bad or the author.
_REFUSALS = (TaskError, PlaybookProblem, BadModelName, MissingPackage, ModelRejected, NoRecordedReply)

EVERY_DIMENSION = "all"  # among the fixed ones


class Listener(Protocol):
    """Somebody who is told what happens before a run has a task."""

    def text(self, text: str) -> None: ...

    def working(self, what: str) -> None: ...


@dataclass(frozen=True)
class Finished:
    """A run at its end, and its best kernel as the library keeps it: None where none passed."""

    run: Run
    folder: RunFolder
    kernel: LibraryKernel | None


def task_options(request: Request) -> TaskOptions:
    return TaskOptions(
        gpu=request.gpu,
        precision=request.precision,
        goal=request.goal,
        allow_library=request.allow_library,
        fixed=tuple(name for name in request.fixed if name != EVERY_DIMENSION),
        fixed_all=EVERY_DIMENSION in request.fixed,
        allow_degenerate=request.allow_degenerate,
    )


def task_of(request: Request) -> Task | None:
    """The task, where the request is code; None where it is words. Runs the reference in a limited child process."""
    options = task_options(request)
    if request.function:
        task = task_from_source(
            request.text, request.function, request.shapes, request.numbers, options, request.values
        )
        closed = (node for node in ast.parse(request.text).body if isinstance(node, ast.Assign))
        return replace(task, assumptions=(*task.assumptions, *(f"always {ast.unparse(node)}" for node in closed)))
    return open_task(request.text, request.shapes, request.numbers, request.values, options)


def environment_at(place: Place) -> Environment:
    return Environment(
        tilewright=__version__,
        python=platform.python_version(),
        torch=importlib.metadata.version("torch"),
        compiler=find_toolkit().compiler,
        device=place.label,
        platform=f"{platform.system()} {platform.machine()}",
        emulated=place.is_emulated,
    )


def settings_at(place: Place, settings: Settings) -> Settings:
    """The settings for runs there: measured times scatter, modelled ones do not."""
    return replace(settings, noise=MODELLED_NOISE if place.is_emulated else MEASURED_NOISE)


# -- words --


def specify(folder: RunFolder, request: Request, chosen: ChosenAuthor, listener: Listener) -> Specification:
    """What the author takes the words to mean. Its replies are on record, so asking again costs nothing.

    The person's own shapes, numbers and values stand in it; raises `TaskError` where it has no place for one of them.
    """
    place = folder.attempt(0)
    asked = 0

    def ask(question: Question) -> Reply:
        nonlocal asked
        asked += 1
        number = asked

        def heard(text: str) -> None:
            place.stream(number, text)
            listener.text(text)

        return place.reply_to(number, question, lambda one: chosen.complete(one, heard))

    listener.working(f"waiting for {chosen.name} to write a specification")
    specification = chosen.author.specify(request.text, request.shapes, request.gpu, ask)
    return fit_specification(specification, request.shapes, request.numbers, request.values)


def accept(folder: RunFolder, request: Request, specification: Specification) -> Task:
    """Make the specification the run's task. Only now is its reference run, in a limited child process."""
    task = task_from_specification(specification, task_options(request))
    task = replace(task, words=request.text, origin=Origin.WORDS)
    folder.accept(task)
    return task


def opened_run(
    store: Store, request: Request, task: Task | None, settings: Settings, place: Place, fresh: bool
) -> tuple[RunFolder, bool]:
    """The folder of the run for a request, and whether it is new; `task` is None where the request is words."""
    where, settings = environment_at(place), settings_at(place, settings)
    if task is not None:
        return store.create_run(task, settings, where, request), True
    if fresh:
        return store.create_request(request, settings, where), True
    return run_of_words(store, request, settings, where)


def run_of_words(store: Store, request: Request, settings: Settings, where: Environment) -> tuple[RunFolder, bool]:
    """A run that waits with the very same words, so that their specification is not paid for twice; else a new one.

    And whether it is new.
    """
    waiting = next((one for one in store.runs().waiting if one.request == request), None)
    if waiting is None:
        return store.create_request(request, settings, where), True
    folder = store.open_run(waiting.id)
    with folder.lock():
        folder.reopen(settings)
    return folder, False


def way_on(folder: RunFolder, error: BaseException, *, new: bool) -> str:
    """How to go on after an error that ended the work on a run; whoever calls it holds the run's lock.

    A `new` run whose request was refused before anything was done is deleted: it could only be refused again.
    """
    if isinstance(error, _REFUSALS) and new and folder.untouched:
        folder.discard()
        return "nothing was done, so no run is kept"
    if isinstance(error, PlaybookProblem):
        return f"go on with: tilewright resume {folder.id} --model PROVIDER:NAME"
    if isinstance(error, TaskError):
        return f"what was asked and answered is kept in run {folder.id}; ask again in other words or with other options"
    return f"what was done is kept; resume with: tilewright resume {folder.id}"


def same_request(store: Store, request: Request) -> LibraryKernel | None:
    """A finished kernel for the very same words, shapes and options: their specification was accepted before."""
    for kernel in store.library.all():
        with contextlib.suppress(StoreError):
            if kernel.request() == request:
                return kernel
    return None


# -- what is said before anything is spent --


def announcement(chosen: ChosenAuthor, budget: Budget, place: Place) -> tuple[tuple[str, str], ...]:
    """Who writes at what price, the most it may cost, and where kernels run: titles and texts."""
    paid = chosen.price is None or chosen.price.input > 0 or chosen.price.output > 0
    if paid and chosen.price and not budget.dollars:
        raise BadArgument(
            f"a budget of $0.00 allows no reply of {chosen.name}; raise --dollars, or use --author playbook"
        )
    limits = [f"{budget.attempts} attempt{'s' if budget.attempts != 1 else ''}", seconds_words(budget.seconds)]
    if chosen.name != PLAYBOOK and paid:
        limits += [f"{budget.tokens:,} tokens", *([dollars_words(budget.dollars)] if chosen.price else [])]
    return (
        ("author", f"{chosen.name}: {chosen.price_words}"),
        ("budget", f"at most {', '.join(limits)}"),
        ("device", place.words),
    )


# -- the run --


def carry(store: Store, folder: RunFolder, chosen: ChosenAuthor, place: Place, watch: Watcher) -> Finished:
    """Carry a run that has a task to its end, from wherever it stands, and put its best kernel into the library."""
    run = folder.load()
    task, against = run.task, run.settings.against
    # Inputs too large to carry are drawn where the kernel runs, and judged there.
    limits = ReferenceLimits.on_gpu() if place.index is not None else None
    say = watch.working
    with (
        Reference(task.reference, task.function, limits=limits) as reference,
        open_devices(place) as (emulator, gpu),
    ):
        far = gpu_reference(place, task, gpu)
        with (
            Referee(task, reference, emulator=emulator, gpu=gpu, gpu_reference=far, say=say) as referee,
            Stopwatch(
                task, reference, emulator=emulator, gpu=gpu, gpu_reference=far, against=against, say=say
            ) as stopwatch,
        ):
            run = refine(folder, Workshop(chosen.author, chosen.complete, referee, stopwatch, watch))
    return finished(store, folder, run)


def finished(store: Store, folder: RunFolder, run: Run) -> Finished:
    """A run that has ended, its best kernel put into the library if it is not there yet."""
    kernel = None if run.best is None else store.library_add(folder, tuned_text(folder, run))
    return Finished(run, folder, kernel)


def tuned_text(folder: RunFolder, run: Run) -> str | None:
    """The tuner's choice of the best attempt, as it lies beside a kernel file; None where it had no choice."""
    best = run.best
    if best is None or best.tune is None or not best.tune.choice:
        return None
    file = parse(folder.attempt(best.number).text("kernel.cu"), run.task.name, allow_library=run.task.allow_library)
    tuned = TunedChoices()
    for gpu in sorted({run.task.gpu, best.measurement.gpu if best.measurement else run.task.gpu}):
        tuned = tuned.with_choice(file, gpu, run.task.arguments(), best.tune.choice)
    return json.dumps(to_json(tuned), indent=1)


# -- more of a run --


@dataclass(frozen=True)
class Addition:
    """What a person adds to a run to have it go on: so much beyond what is spent, a hint, another author."""

    attempts: int | None = None
    tokens: int | None = None
    dollars: float | None = None
    seconds: float | None = None
    hint: str = ""
    author: str = ""
    base_url: str = ""
    spool: str = ""


def continued(settings: Settings, addition: Addition, run: Run | None) -> Settings:
    """The settings to go on with; `run` is None where there is no task yet, and so nothing but the settings."""
    budget = settings.budget
    made = len(run.attempts) if run else 0
    tokens = run.usage.all_input_tokens + run.usage.output_tokens if run else 0
    hint = (made, addition.hint)
    return replace(
        settings,
        budget=Budget(
            budget.attempts if addition.attempts is None else made + addition.attempts,
            budget.tokens if addition.tokens is None else tokens + addition.tokens,
            budget.dollars if addition.dollars is None else ((run.dollars if run else 0.0) or 0.0) + addition.dollars,
            budget.seconds if addition.seconds is None else (run.seconds if run else 0.0) + addition.seconds,
        ),
        hints=(*settings.hints, hint) if addition.hint and hint not in settings.hints else settings.hints,
        author=addition.author or settings.author,
        base_url=addition.base_url or settings.base_url,
        spool=addition.spool or settings.spool,
    )

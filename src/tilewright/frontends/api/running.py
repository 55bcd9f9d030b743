"""From a request to a finished kernel, for the command line and for Python. It knows no terminal.

`run_request` finds the kernel in the library or has it made; `resume` goes on with a run. A function, a module, a
problem file or a folder becomes a task at once. Words become a run first, so that the specification an author writes
for them is on record before anybody is asked to accept it.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from tilewright import records, tasks
from tilewright.frontends.api import choices
from tilewright.frontends.api.choices import ChosenAuthor, ChosenDevice
from tilewright.frontends.api.judges import OpenJudges, judges, settling_on
from tilewright.frontends.api.reporter import NotAcceptedYet, Reporter
from tilewright.frontends.api.requests import WantedRun, environment_of, loaded, resolved
from tilewright.frontends.report.runs import dollars_words, seconds_words, task_words
from tilewright.kernel_file import TunedChoices, parse
from tilewright.models import BadModelName, MissingPackage, ModelRejected, NoRecordedReply
from tilewright.playbook.errors import NotSupported, PlaybookProblem
from tilewright.playbook.foresight import foresee
from tilewright.records import Budget, Ending, Origin, Run, Settings, Specification, Task
from tilewright.reference import ReferenceLimits, start_ahead
from tilewright.refine import RunContext, next_step, refine
from tilewright.store import LibraryKernel, Request, RunFolder, Store, StoreError
from tilewright.tasks.errors import BadArgument

# What is refused once is refused again, whether the request was bad or the author.
_REFUSALS = (tasks.TaskError, PlaybookProblem, BadModelName, MissingPackage, ModelRejected, NoRecordedReply)

EVERY_DIMENSION = "all"  # among the fixed ones

# Opens an author by its name, the address of its server, where notices go, and how long it may be asked again.
OpenAuthor = Callable[[str, str, Callable[[str], None], float], AbstractContextManager[ChosenAuthor]]


@dataclass(frozen=True)
class KernelFound:
    """A kernel that the library had, so nobody was asked to write one."""

    kernel: LibraryKernel
    from_words: bool  # the reference is not the person's own code
    licence: str  # stated with the request


@dataclass(frozen=True)
class RunEnded:
    """A run at its end, and its best kernel as the library keeps it: None where none passed."""

    run: Run
    folder: RunFolder
    kernel: LibraryKernel | None
    licence: str  # stated with the request, or before where the run was resumed
    before: bool = False  # it had ended before anybody asked to go on with it

    @property
    def from_words(self) -> bool:
        return self.run.task.origin is Origin.WORDS


MakeResult = KernelFound | RunEnded
Prepare = Callable[[Task], None]


def _nothing(task: Task) -> None: ...


def run_request(
    request: Request,
    settings: Settings,
    device: ChosenDevice,
    reporter: Reporter,
    *,
    fresh: bool = False,
    alone: bool = False,
    given: Task | None = None,
    prepare: Prepare = _nothing,
    opened: OpenAuthor = choices.open_author,
    judged: OpenJudges = judges,
) -> MakeResult:
    """A kernel for a request: found in the library unless it is wanted `fresh` or is to improve a file, else made.

    `alone`: its run is shared with nobody who asks for the same at the same time. `given`: its task, where that was
    made before. `prepare` is called with the task before an author is asked for a kernel, and may refuse it.
    """
    store = Store()
    request = resolved(request)
    anew = fresh or bool(settings.start)
    known = None if anew or given is not None else _same_request(store, request, device)
    if known is None:
        choices.check_key(settings.author, settings.base_url, os.environ)
    elif request.function:  # its text is all there is to it; a path may have other code behind it by now
        return KernelFound(known, False, settings.licence)
    with reporter.live("reading the request"):
        task = given if given is not None else read_task(store, request, settings, device, anew)
    if task is not None:
        known = None if anew else store.library.find(task.hash)
    if known is not None:
        return KernelFound(known, task is None, settings.licence)
    if task is not None:
        prepare(task)
    noise = records.MODELLED_NOISE if device.is_emulated else records.MEASURED_NOISE
    wanted = WantedRun(store, request, task, replace(settings, noise=noise), environment_of(device), fresh or alone)
    with opened(settings.author, settings.base_url, reporter.say, settings.budget.seconds) as chosen:
        _announce(reporter, chosen, settings.budget, device)
        with wanted.opened(reporter) as (folder, new):
            result = _go_on(store, folder, new, chosen, device, reporter, judged, look=not anew, prepare=prepare)
    return replace(result, licence=settings.licence)  # a run that is shared may have stated another


def read_task(store: Store, request: Request, settings: Settings, device: ChosenDevice, anew: bool) -> Task | None:
    """The task of a request; the children that are needed once there is one import torch while it is read."""
    kinds = [ReferenceLimits()]  # a file is described in one child, and then probed in another
    kinds += [ReferenceLimits()] if settings.author == choices.PLAYBOOK else []  # it traces the reference
    kinds += [ReferenceLimits()] if device.index is None else [ReferenceLimits.on_gpu(device.index)]
    start_ahead(*kinds)
    return task_of(request, _foresight(store, settings, anew), settling_on(device))


def task_of(
    request: Request,
    foresee: tasks.Precheck | None = None,
    resolve_precision: tasks.ResolvePrecision = tasks.precision_from_channels,
) -> Task | None:
    """The task, where the request is code; None where it is words. Runs the reference in a limited child process.

    `foresee` sees its source before that, and may refuse it; `resolve_precision` finds a precision that was not given.
    """
    options = _task_options(request, resolve_precision)
    options = replace(options, precheck=foresee) if foresee else options
    if request.module:
        from tilewright.tasks.lifting.module_source import held_fields  # needs torch, which takes seconds to import

        task = tasks.task_from_module_source(
            request.text, request.function, request.module, request.shapes, options, request.numbers, request.values
        )
        held = (f"always {one}" for one in held_fields(request.text))
        return replace(task, assumptions=(*task.assumptions, *held))
    if request.function:
        task = tasks.task_from_source(
            request.text, request.function, request.shapes, request.numbers, options, request.values
        )
        closed = (node for node in ast.parse(request.text).body if isinstance(node, ast.Assign))
        return replace(task, assumptions=(*task.assumptions, *(f"always {ast.unparse(node)}" for node in closed)))
    return tasks.open_task(request.text, request.shapes, request.numbers, request.values, options)


def _foresight(store: Store, settings: Settings, anew: bool) -> tasks.Precheck | None:
    """Whether the built-in author can do it, by the source alone; what the library has needs no author."""
    if settings.author != choices.PLAYBOOK:
        return None

    def look(source: str, function: str) -> None:
        try:
            foresee(source, function)
        except NotSupported:
            if anew or all(source.strip() not in one.task().reference for one in store.library.all()):
                raise

    return look


def _task_options(request: Request, resolve_precision: tasks.ResolvePrecision) -> tasks.TaskOptions:
    return tasks.TaskOptions(
        gpu=request.gpu,
        precision=request.precision,
        goal=request.goal,
        allow_library=request.allow_library,
        fixed=tuple(name for name in request.fixed if name != EVERY_DIMENSION),
        fixed_all=EVERY_DIMENSION in request.fixed,
        allow_degenerate=request.allow_degenerate,
        resolve_precision=resolve_precision,
    )


def _same_request(store: Store, request: Request, device: ChosenDevice) -> LibraryKernel | None:
    """A finished kernel for the very same words, shapes and options: their specification was accepted before."""
    wordings = (request, replace(request, precision=request.precision or records.Precision.DTYPE))
    for kernel in store.library.all():
        with contextlib.suppress(StoreError):
            if kernel.request() in wordings and _is_settled(kernel, request, device):
                return kernel
    return None


def _is_settled(kernel: LibraryKernel, request: Request, device: ChosenDevice) -> bool:
    """Whether its convolutions are as exact as PyTorch's: a request without a precision once meant TF32 in all, and
    without a GPU it means what a rule says."""
    if not tasks.may_convolve(kernel.task()):
        return True
    return kernel.request() == request and (request.precision is not None or device.is_emulated)


def _announce(reporter: Reporter, chosen: ChosenAuthor, budget: Budget, device: ChosenDevice) -> None:
    """Say who writes at what price, the most it may cost, and where kernels run, before anything is spent."""
    paid = chosen.price is None or chosen.price.input > 0 or chosen.price.output > 0
    if paid and chosen.price and not budget.dollars:
        raise BadArgument(
            f"a budget of $0.00 allows no reply of {chosen.name}; raise --dollars, or use --author playbook"
        )
    limits = [f"{budget.attempts} attempt{'s' if budget.attempts != 1 else ''}", seconds_words(budget.seconds)]
    if chosen.name != choices.PLAYBOOK and paid:
        limits += [f"{budget.tokens:,} tokens", *([dollars_words(budget.dollars)] if chosen.price else [])]
    reporter.say(f"{chosen.name}: {chosen.price_words}", "author")
    reporter.say(f"at most {', '.join(limits)}", "budget")
    reporter.say(device.words, "device")


# -- from wherever a run stands to its end --


def _go_on(
    store: Store,
    folder: RunFolder,
    new: bool,
    chosen: ChosenAuthor,
    device: ChosenDevice,
    reporter: Reporter,
    judged: OpenJudges,
    *,
    look: bool,
    prepare: Prepare = _nothing,
) -> MakeResult:
    """Bring a run, whose lock is held, to its end: from words to a task, if it began so, and on to a kernel.

    `look`: its task is first looked for in the library, as words may turn out to mean what was made before.
    """
    reporter.say(folder.id, "run")
    run = loaded(folder)
    if run is not None and run.ending is not None:  # whoever was waited for has made it
        return _ended(store, folder, run)
    with _resumable(folder, new):
        author = reporter.following(chosen)
        task = run.task if run else _agree(folder, author, device, reporter)
        found = store.library.find(task.hash) if look else None
        if found is not None:
            licence = folder.header().settings.licence
            if folder.untouched:
                folder.discard()
            return KernelFound(found, task.origin is Origin.WORDS, licence)
        if run is None:
            prepare(task)
        for number, line in enumerate(task_words(task)):
            reporter.say(line, "task" if number == 0 else " ")
        with reporter.live():
            return _ended(store, folder, _refined(folder, author, device, reporter, judged))


@contextlib.contextmanager
def _resumable(folder: RunFolder, new: bool) -> Iterator[None]:
    """Whatever ends the block early says how to go on."""
    try:
        yield
    except NotAcceptedYet:
        raise
    except BaseException as error:
        error.add_note(how_to_go_on(folder, error, new=new))
        raise


def how_to_go_on(folder: RunFolder, error: BaseException, *, new: bool) -> str:
    """What to do after an error that ended the work on a run; whoever calls it holds the run's lock.

    A `new` run whose request was refused before anything was done is deleted: it could only be refused again.
    """
    if isinstance(error, _REFUSALS) and new and folder.untouched:
        folder.discard()
        return "nothing was done, so no run is kept"
    if isinstance(error, PlaybookProblem):
        return f"go on with: tilewright resume {folder.id} --model PROVIDER:NAME"
    if isinstance(error, tasks.TaskError):
        return f"what was asked and answered is kept in run {folder.id}; ask again in other words or with other options"
    kept = "" if isinstance(error, KeyboardInterrupt) else "what was done is kept; "
    return f"{kept}resume with: tilewright resume {folder.id}"


def _agree(folder: RunFolder, chosen: ChosenAuthor, device: ChosenDevice, reporter: Reporter) -> Task:
    """Have the words of a run specified and, once a person has accepted that, make it the run's task.

    Only then is the reference run, in a limited child process.
    """
    request = folder.request()
    assert request is not None  # a run without a task has one
    with reporter.live(f"waiting for {chosen.name} to write a specification"):
        specification = _specify(folder, request, chosen, reporter)
    reporter.accept(folder, specification)
    with reporter.live("running the reference"):
        task = tasks.task_from_specification(specification, _task_options(request, settling_on(device)))
    task = replace(task, words=request.text, origin=Origin.WORDS)
    folder.accept(task)
    return task


def _specify(folder: RunFolder, request: Request, chosen: ChosenAuthor, reporter: Reporter) -> Specification:
    """What the author takes the words to mean. Its replies are on record, so asking again costs nothing.

    The person's own shapes, numbers and values stand in it; raises `TaskError` where it has no place for one of them.
    """
    place = folder.attempt(0)
    asked = 0

    def ask(question: records.Question) -> records.Reply:
        nonlocal asked
        asked += 1
        number = asked

        def heard(text: str) -> None:
            place.stream(number, text)
            reporter.text(text)

        return place.reply_to(number, question, lambda one: chosen.complete(one, heard))

    specification = chosen.author.specify(request.text, request.shapes, request.gpu, ask)
    return tasks.fit_specification(specification, request.shapes, request.numbers, request.values)


def _refined(
    folder: RunFolder, chosen: ChosenAuthor, device: ChosenDevice, reporter: Reporter, judged: OpenJudges
) -> Run:
    """A run that has a task, after its last attempt."""
    run = folder.load()
    with judged(run.task, run.settings, device, reporter.working) as (referee, stopwatch):
        return refine(folder, RunContext(chosen.author, chosen.complete, referee, stopwatch, reporter))


def _ended(store: Store, folder: RunFolder, run: Run, before: bool = False) -> RunEnded:
    """A run that has ended, its best kernel put into the library if it is not there yet."""
    return RunEnded(run, folder, kept_kernel(store, folder, run), run.settings.licence, before)


def kept_kernel(store: Store, folder: RunFolder, run: Run) -> LibraryKernel | None:
    """The best kernel of a run as the library keeps it, whether the run has ended or not; None where none passed."""
    return None if run.best is None else store.library.add(folder, _tuned_text(folder, run))


def _tuned_text(folder: RunFolder, run: Run) -> str | None:
    """The autotuner's choice of the best attempt, as it lies beside a kernel file; None where it had no choice."""
    best = run.best
    if best is None or best.tune is None or not best.tune.choice:
        return None
    file = parse(folder.attempt(best.number).text("kernel.cu"), run.task.name, allow_library=run.task.allow_library)
    tuned = TunedChoices().with_winner_of(file, run.task, best)
    return json.dumps(records.to_json(tuned), indent=1)


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


def resume(
    folder: RunFolder,
    addition: Addition,
    output: str,
    reporter: Reporter,
    *,
    opened: OpenAuthor = choices.open_author,
    judged: OpenJudges = judges,
) -> MakeResult:
    """Go on with a run, wherever it stopped; `output` is where its kernel is wanted now."""
    store = Store()
    with folder.lock():
        settings = _reopened(folder, addition, output)
        run, request = loaded(folder), folder.request()
        if settings is None:
            assert run is not None
            assert run.ending is not None
            reporter.say(f"run {run.id} has ended: {run.ending_words}; {_remedy(run.ending, run.settings.author)}")
            return _ended(store, folder, run, before=True)
        if addition.hint and settings.author == choices.PLAYBOOK:
            reporter.say("the playbook reads no hints; --model PROVIDER:NAME has a model read it")
        gpu = run.task.gpu if run else request.gpu if request else "H200"
        device = choices.same_device(folder.header().environment, gpu, settings.spool)
        left = settings.budget.seconds - (run.seconds if run else 0.0)
        with opened(settings.author, settings.base_url, reporter.say, left) as chosen:
            _announce(reporter, chosen, settings.budget, device)
            look = run is None and not settings.start
            return _go_on(store, folder, False, chosen, device, reporter, judged, look=look)


def _reopened(folder: RunFolder, addition: Addition, output: str) -> Settings | None:
    """The settings to go on with; None where the run has ended and nothing was added."""
    run, before = loaded(folder), folder.header().settings
    settings = replace(_continued(before, addition, run), output=output)
    if run is not None and run.ending is not None:
        if addition == Addition():
            return None
        at_once = next_step(replace(run, settings=settings, ending=None))
        if isinstance(at_once, Ending):
            raise BadArgument(
                f"run {run.id} would end at once, because {at_once.words}; {_remedy(at_once, settings.author)}"
            )
        folder.reopen(settings)
    elif settings != before:
        folder.reopen(settings)
    return settings


def _remedy(ending: Ending, author: str) -> str:
    """What makes a run that ended so go on. The playbook reads no hints."""
    options = {
        Ending.ATTEMPTS: "--attempts N",
        Ending.TOKENS: "--tokens N",
        Ending.DOLLARS: "--dollars X",
        Ending.SECONDS: "--seconds S",
    }
    if ending in options:
        return f"add more with {options[ending]}"
    if author == choices.PLAYBOOK:
        return "go on with a model: --model PROVIDER:NAME"
    return "add a hint with --hint TEXT"


def _continued(settings: Settings, addition: Addition, run: Run | None) -> Settings:
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

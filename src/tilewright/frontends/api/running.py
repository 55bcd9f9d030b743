"""From a request to a finished kernel, for the command line and for Python: a run is found, made or resumed.

Words become a run before they are specified, so that the specification is on record before a person accepts it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from tilewright import records, tasks
from tilewright.frontends.api import choices, requests
from tilewright.frontends.api.choices import ChosenAuthor, ChosenDevice
from tilewright.frontends.api.judges import OpenJudges, judges, precision_settler
from tilewright.frontends.api.reporter import NotAcceptedYet, Reporter
from tilewright.frontends.report.runs import dollars_words, seconds_words, task_words
from tilewright.kernel_file import TunedChoices, parse
from tilewright.models import BadModelName, MissingPackage, ModelRejected, NoRecordedReply
from tilewright.playbook.errors import PlaybookProblem
from tilewright.records import BACKWARD, Budget, Ending, Origin, Run, Settings, Specification, Task
from tilewright.refine import RunContext, next_step, refine
from tilewright.store import LibraryKernel, Request, RunFolder, Store, StoreError
from tilewright.tasks.errors import BadArgument

# Errors that come again however often the run is resumed: the request was bad, or the author.
_LASTING = (tasks.TaskError, PlaybookProblem, BadModelName, MissingPackage, ModelRejected, NoRecordedReply)

# Opens an author by its name, the address of its server, where notices go, and how long it may be asked again.
OpenAuthor = Callable[[str, str, Callable[[str], None], float], AbstractContextManager[ChosenAuthor]]


@dataclass(frozen=True)
class KernelFound:
    """A kernel that the library had, so no author was asked."""

    kernel: LibraryKernel
    from_words: bool  # the reference is not the person's own code
    licence: str  # given with the request


@dataclass(frozen=True)
class RunEnded:
    """A run that has ended, and its best kernel from the library: None where no attempt passed."""

    run: Run
    folder: RunFolder
    kernel: LibraryKernel | None
    licence: str  # given with the request, or before where the run was resumed
    before: bool = False  # it had ended before it was resumed

    @property
    def from_words(self) -> bool:
        return self.run.task.origin is Origin.WORDS


MakeResult = KernelFound | RunEnded


@dataclass(frozen=True)
class WithBackward:
    forward: MakeResult
    backward: MakeResult | None  # None where it was not begun, or no author could write it
    problem: str = ""  # why there is no backward kernel; "" where there is one

    @property
    def backward_kernel(self) -> LibraryKernel | None:
        return self.backward.kernel if self.backward is not None else None

    @property
    def words(self) -> str:
        """What computes the gradients, for a person."""
        if self.problem:
            return f"gradients are computed by the function's own autograd, not by a kernel: {self.problem}"
        derivative = self.backward_kernel.task().derivative if self.backward_kernel is not None else None
        saved = ", ".join(one.name for one in derivative.saved) if derivative else ""
        return f"gradients are computed by the backward kernel, from {saved or 'no saved tensors'}"


Prepare = Callable[[Task], None]


def run_request(
    request: Request,
    settings: Settings,
    device: ChosenDevice,
    reporter: Reporter,
    *,
    fresh: bool = False,
    given: Task | None = None,
    prepare: Prepare | None = None,
    opened: OpenAuthor = choices.open_author,
    judged: OpenJudges = judges,
) -> MakeResult:
    """A kernel from the library, or made; `prepare` may refuse the task."""
    store = Store()
    request = requests.resolved(request)
    anew = fresh or bool(settings.start)
    known = None if anew or given is not None else _same_request(store, request, device)
    if known is None:
        choices.check_key(settings.author, settings.base_url, os.environ)
    elif request.function:  # the text is the whole request; a path may lead to other code by now
        return KernelFound(known, False, settings.licence)
    with reporter.live("reading the request"):
        task = given if given is not None else requests.read_task(store, request, settings, device, anew)
    if task is not None:
        known = None if anew else store.library.find(task.hash)
    if known is not None:
        return KernelFound(known, task is None, settings.licence)
    if task is not None and prepare is not None:
        prepare(task)
    noise = records.MODELLED_NOISE if device.is_emulated else records.MEASURED_NOISE
    noted = replace(settings, noise=noise)
    with opened(settings.author, settings.base_url, reporter.say, settings.budget.seconds) as chosen:
        _announce(reporter, chosen, settings.budget, device)
        with requests.begun_run(store, request, task, noted, device, fresh) as (folder, new):
            result = _finish(store, folder, new, chosen, device, reporter, judged, look=not anew, prepare=prepare)
    return replace(result, licence=settings.licence)


def run_with_backward(
    request: Request, settings: Settings, device: ChosenDevice, reporter: Reporter, *, fresh: bool = False
) -> WithBackward:
    """Kernels for a function and for its gradients, in two runs; wrong gradients are refused before the first."""
    planned: dict[str, Task] = {}

    def prepare(task: Task) -> None:
        if fresh or Store().library.backward_of(task.hash) is None:
            planned[task.hash] = requests.gradient_task(task, request, reporter)

    forward = run_request(request, replace(settings, backward=True), device, reporter, fresh=fresh, prepare=prepare)
    return _run_backward(forward, request, settings, device, reporter, fresh, planned)


def resume_with_backward(
    folder: RunFolder, addition: Addition, output: str, reporter: Reporter
) -> MakeResult | WithBackward:
    """Continue a run and, if a backward kernel was asked for with it, the run of that."""
    settings = folder.header().settings
    forward = resume(folder, addition, output, reporter)
    request = folder.request() if folder.path.exists() else None
    if not settings.backward or request is None:
        return forward
    settings = replace(settings, output=output)
    device = choices.same_device(folder.header().environment, request.gpu, settings.spool)
    return _run_backward(forward, request, settings, device, reporter, False, {})


def backward_output(output: str) -> str:
    """The path of the backward kernel beside the forward's: `norm.cu` and `norm_backward.cu`."""
    stem, extension = os.path.splitext(output)
    return f"{stem}{BACKWARD}{extension}" if output else ""


def _run_backward(
    forward: MakeResult,
    request: Request,
    settings: Settings,
    device: ChosenDevice,
    reporter: Reporter,
    fresh: bool,
    planned: dict[str, Task],
) -> WithBackward:
    """`planned`: backward tasks that were made before the forward ran, by the hash of the forward's task."""
    if forward.kernel is None:
        return WithBackward(forward, None, "the forward has no kernel, so none was made for its gradients")
    task = forward.kernel.task()
    found = None if fresh else Store().library.backward_of(task.hash)
    if found is not None:
        return WithBackward(forward, KernelFound(found, task.origin is Origin.WORDS, settings.licence))
    reporter.say(f"{task.name}{BACKWARD}: the gradients of {task.name}, a run of its own", "next")
    # The file to start from and the function to compare with are those of the forward.
    settings = replace(settings, start="", against="", output=backward_output(settings.output), backward=False)
    try:
        made = planned.get(task.hash) or requests.gradient_task(task, request, reporter)
        asked = replace(requests.resolved(request), backward=True)
        backward = run_request(asked, settings, device, reporter, fresh=fresh, given=made)
    except tasks.RefusedRequest as error:
        notes = "; ".join(getattr(error, "__notes__", ()))
        return WithBackward(forward, None, f"{error}{f' ({notes})' if notes else ''}")
    return WithBackward(forward, backward, "" if backward.kernel else "no attempt at the backward passed")


def _same_request(store: Store, request: Request, device: ChosenDevice) -> LibraryKernel | None:
    """A finished kernel for the very same words, shapes and options: their specification was accepted before.

    Earlier versions took TF32 for convolutions of every request without a precision, so that such a kernel is known to
    be as precise as PyTorch only where the request says it, or without a GPU, where a rule decides.
    """
    earlier = replace(request, precision=request.precision or records.Precision.DTYPE)
    is_settled = request.precision is not None or device.is_emulated
    for kernel in store.library.all():
        with contextlib.suppress(StoreError):
            is_same = (asked := kernel.request()) == request
            if (is_same or asked == earlier) and (not tasks.may_convolve(kernel.task()) or (is_same and is_settled)):
                return kernel
    return None


def _announce(reporter: Reporter, chosen: ChosenAuthor, budget: Budget, device: ChosenDevice) -> None:
    """Say who writes at what price, the budget, and where kernels run, before anything is spent."""
    paid = chosen.price is None or chosen.price.input > 0 or chosen.price.output > 0
    if paid and chosen.price and not budget.dollars:
        raise BadArgument(f"a budget of $0 allows no reply of {chosen.name}; raise --dollars, or use --author playbook")
    limits = [f"{budget.attempts} attempt{'s' if budget.attempts != 1 else ''}", seconds_words(budget.seconds)]
    if chosen.name != choices.PLAYBOOK and paid:
        limits += [f"{budget.tokens:,} tokens", *([dollars_words(budget.dollars)] if chosen.price else [])]
    reporter.say(f"{chosen.name}: {chosen.price_words}", "author")
    reporter.say(f"at most {', '.join(limits)}", "budget")
    reporter.say(device.words, "device")


# -- a run to its end --


def _finish(
    store: Store,
    folder: RunFolder,
    new: bool,
    chosen: ChosenAuthor,
    device: ChosenDevice,
    reporter: Reporter,
    judged: OpenJudges,
    *,
    look: bool,
    prepare: Prepare | None = None,
) -> MakeResult:
    """Carry a run whose lock is held to its end; `look` for the task of words in the library first."""
    reporter.say(folder.id, "run")
    run = folder.find_run()
    with _noting_how_to_resume(folder, new):
        author = reporter.following(chosen)
        task = run.task if run else _accepted_task(folder, author, device, reporter)
        found = store.library.find(task.hash) if look else None
        if found is not None:
            licence = folder.header().settings.licence
            if folder.untouched:
                folder.discard()
            return KernelFound(found, task.origin is Origin.WORDS, licence)
        if run is None and prepare is not None:
            prepare(task)
        for number, line in enumerate(task_words(task)):
            reporter.say(line, "task" if number == 0 else " ")
        with reporter.live():
            run = folder.load()
            with judged(run.task, run.settings, device, reporter.working) as (referee, stopwatch):
                context = RunContext(author.author, author.complete, referee, stopwatch, reporter)
                return _ended(store, folder, refine(folder, context))


@contextlib.contextmanager
def _noting_how_to_resume(folder: RunFolder, new: bool) -> Iterator[None]:
    """Add how to resume the run to an error; a `new` run that was refused before anything was done is deleted."""
    try:
        yield
    except NotAcceptedYet:
        raise
    except BaseException as error:
        if isinstance(error, _LASTING) and new and folder.untouched:
            folder.discard()
            note = "nothing was done, so no run is kept"
        elif isinstance(error, PlaybookProblem):
            note = f"go on with: tilewright resume {folder.id} --model PROVIDER:NAME"
        elif isinstance(error, tasks.TaskError):
            note = f"run {folder.id} keeps what was asked and answered; ask again in other words or with other options"
        else:
            kept = "" if isinstance(error, KeyboardInterrupt) else "what was done is kept; "
            note = f"{kept}resume with: tilewright resume {folder.id}"
        error.add_note(note)
        raise


def _accepted_task(folder: RunFolder, chosen: ChosenAuthor, device: ChosenDevice, reporter: Reporter) -> Task:
    """Have words specified and accepted by a person; only then does the reference run, in a limited child process."""
    request = folder.request()
    assert request is not None  # a run without a task has one
    with reporter.live(f"waiting for {chosen.name} to write a specification"):
        specification = _specify(folder, request, chosen, reporter)
    reporter.accept(folder, specification)
    with reporter.live("running the reference"):
        task = tasks.task_from_specification(specification, requests.task_options(request, precision_settler(device)))
    task = replace(task, words=request.text, origin=Origin.WORDS)
    folder.accept(task)
    return task


def _specify(folder: RunFolder, request: Request, chosen: ChosenAuthor, reporter: Reporter) -> Specification:
    """What the author takes the words to mean, with the shapes, numbers and values that the person gave."""
    place, numbers = folder.attempt(0), itertools.count(1)

    def ask(question: records.Question) -> records.Reply:
        number = next(numbers)

        def on_text(text: str) -> None:
            place.stream(number, text)
            reporter.text(text)

        return place.reply_to(number, question, lambda one: chosen.complete(one, on_text))

    specification = chosen.author.specify(request.text, request.shapes, request.gpu, ask)
    return tasks.fit_specification(specification, request.shapes, request.numbers, request.values)


def _ended(store: Store, folder: RunFolder, run: Run, before: bool = False) -> RunEnded:
    return RunEnded(run, folder, library_kernel(store, folder, run), run.settings.licence, before)


def library_kernel(store: Store, folder: RunFolder, run: Run) -> LibraryKernel | None:
    """The best kernel of a run, put into the library with the autotuner's choice; None where no attempt passed."""
    best, tuned = run.best, None
    if best is None:
        return None
    if best.tune is not None and best.tune.choice:
        text = folder.attempt(best.number).text("kernel.cu")
        file = parse(text, run.task.name, allow_library=run.task.allow_library)
        tuned = json.dumps(records.to_json(TunedChoices().with_winner_of(file, run.task, best)), indent=1)
    return store.library.add(folder, tuned)


# -- resuming a run --


@dataclass(frozen=True)
class Addition:
    """What a person adds to a run when it is resumed: more budget beyond what is spent, a hint, another author."""

    attempts: int | None = None
    tokens: int | None = None
    dollars: float | None = None
    seconds: float | None = None
    hint: str = ""
    author: str = ""
    base_url: str = ""
    spool: str = ""


class EndsAtOnce(BadArgument):
    """A run that would end again without a new attempt, whatever was added to it."""

    def __init__(self, run: Run, ending: Ending, author: str) -> None:
        self.reason, self.ending = f"run {run.id} would end at once, because {ending.words}", ending
        super().__init__(f"{self.reason}; {_remedy(ending, author)}")


def resume(
    folder: RunFolder,
    addition: Addition,
    output: str,
    reporter: Reporter,
    *,
    opened: OpenAuthor = choices.open_author,
    judged: OpenJudges = judges,
) -> MakeResult:
    """Continue a run from where it stopped; `output` is where its kernel is to be written now."""
    store = Store()
    with folder.lock():
        settings = _reopened(folder, addition, output)
        run, request = folder.find_run(), folder.request()
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
            return _finish(store, folder, False, chosen, device, reporter, judged, look=look)


def _reopened(folder: RunFolder, addition: Addition, output: str) -> Settings | None:
    """The settings to continue with; None where the run has ended and nothing was added."""
    run, before = folder.find_run(), folder.header().settings
    settings = replace(_with_addition(before, addition, run), output=output)
    ended = run is not None and run.ending is not None
    if run is not None and ended:
        if addition == Addition():
            return None
        step = next_step(replace(run, settings=settings, ending=None))
        if isinstance(step, Ending):
            raise EndsAtOnce(run, step, settings.author)
    if ended or settings != before:
        folder.reopen(settings)
    return settings


def _remedy(ending: Ending, author: str) -> str:
    """What lets a run continue that ended so. The playbook reads no hints."""
    limits = {Ending.ATTEMPTS: "attempts N", Ending.TOKENS: "tokens N", Ending.DOLLARS: "dollars X"}
    limits[Ending.SECONDS] = "seconds S"
    if ending in limits:
        return f"add more with --{limits[ending]}"
    if author == choices.PLAYBOOK:
        return "go on with a model: --model PROVIDER:NAME"
    return "add a hint with --hint TEXT"


def _with_addition(settings: Settings, addition: Addition, run: Run | None) -> Settings:
    """`run` is None where there is no task yet, so nothing is spent."""
    spent: dict[str, float] = {"attempts": 0, "tokens": 0, "dollars": 0.0, "seconds": 0.0}
    if run is not None:
        spent = {"attempts": len(run.attempts), "tokens": run.usage.tokens, "dollars": run.dollars or 0.0}
        spent["seconds"] = run.seconds
    more = {name: getattr(addition, name) for name in spent}
    hint = (int(spent["attempts"]), addition.hint)
    return replace(
        settings,
        budget=replace(settings.budget, **{name: spent[name] + one for name, one in more.items() if one is not None}),
        hints=(*settings.hints, hint) if addition.hint and hint not in settings.hints else settings.hints,
        author=addition.author or settings.author,
        base_url=addition.base_url or settings.base_url,
        spool=addition.spool or settings.spool,
    )

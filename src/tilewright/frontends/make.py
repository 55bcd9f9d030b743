"""`tilewright make` and `tilewright resume`: say who writes, where and for how much, then watch it being made.

Conversation and progress go to stderr, the result to stdout. Nothing is spent before the author, its price and the
budget have been said.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from tilewright.frontends.arguments import BadArgument
from tilewright.frontends.author_choice import ChosenAuthor, check_key, open_author
from tilewright.frontends.exits import FAULT, INTERRUPTED, NotDone
from tilewright.frontends.making import (
    Addition,
    Finished,
    accept,
    announcement,
    carry,
    continued,
    finished,
    opened_run,
    same_request,
    specify,
    task_of,
    way_on,
)
from tilewright.frontends.place_choice import Place, choose_place, same_place
from tilewright.frontends.progress_view import ProgressView
from tilewright.frontends.result_text import copy_kernel, show_finished, show_found
from tilewright.frontends.task_words import task_words
from tilewright.frontends.terminal import print_json, progress, stderr_console, stdout_console
from tilewright.kernel_file import tuned_path
from tilewright.records import Budget, Ending, Run, Settings, Specification, Task
from tilewright.refine import next_step
from tilewright.store import LibraryEntry, LibraryKernel, NotAccepted, Request, RunFolder, Store


@dataclass(frozen=True)
class Manner:
    """How a command behaves, whatever it makes."""

    yes: bool = False
    as_json: bool = False
    output: Path | None = None  # where the finished kernel is wanted too
    output_is_new: bool = True  # said now, rather than when the run was begun
    author: str = ""  # the one named now; "" where nobody was
    licence: str = ""  # stated now

    @property
    def stored_output(self) -> str:
        """The output as a run remembers it: it may be resumed from another folder."""
        return os.path.abspath(self.output) if self.output else ""


@dataclass(frozen=True)
class MakeReport:
    """What `--json` prints at the end of `make` and `resume`."""

    run: Run
    folder: str
    best: int | None  # the number of the best attempt
    kernel: str | None  # its path


@dataclass(frozen=True)
class FoundReport:
    """What `--json` prints where the library has the kernel already."""

    found: LibraryEntry
    kernel: str


@dataclass(frozen=True)
class SpecificationReport:
    """What `--json` prints where a specification waits to be accepted."""

    run: str
    folder: str
    specification: Specification


def make_run(request: Request, settings: Settings, gpu: str | None, fresh: bool, manner: Manner) -> None:
    """Make a kernel for a request, or find it in the library. `request.gpu` is filled in here."""
    check_output(manner.output)
    store, talk = Store(), stderr_console()
    settings = replace(settings, output=manner.stored_output)
    place = choose_place(gpu, settings.spool)
    request = replace(request, gpu=place.gpu)
    anew = fresh or bool(settings.start)  # a file to begin with is there to be improved
    if anew or same_request(store, request) is None:
        check_key(settings.author, settings.base_url, os.environ)
    with progress() as say:
        say("reading the request")
        task = task_of(request)
    found = None if anew else same_request(store, request) if task is None else store.library_find(task.hash)
    if found is not None:
        _report_found(found, manner)
        return
    with _author(settings, settings.budget.seconds, talk) as chosen:
        announce(talk, chosen, settings.budget, place)
        folder, new = opened_run(store, request, task, settings, place, fresh)
        with folder.lock(), _resumable(folder, new=new):
            _conduct(Making(store, folder, chosen, place, manner, talk), fresh)


def resume_run(name: str, addition: Addition, manner: Manner) -> None:
    """Go on with a run, wherever it stopped. The kernel goes where the run was told to put it, or now is."""
    store, talk = Store(), stderr_console()
    folder = store.open_run(name)
    if manner.output is None and (stored := folder.header().settings.output):
        manner = replace(manner, output=Path(stored), output_is_new=False)
    check_output(manner.output, "-o" if manner.output_is_new else "the run's own -o")
    with folder.lock():
        settings = _reopened(folder, addition, manner)
        if settings is None:
            _report_ended(store, folder, manner, talk)
            return
        run, request = _loaded(folder), folder.request()
    gpu = run.task.gpu if run else request.gpu if request else "H200"
    place = same_place(folder.header().environment, gpu, settings.spool)
    left = settings.budget.seconds - (run.seconds if run else 0.0)
    with _author(settings, left, talk) as chosen:
        announce(talk, chosen, settings.budget, place)
        with folder.lock(), _resumable(folder, new=False):
            _conduct(Making(store, folder, chosen, place, manner, talk), fresh=False)


def _author(settings: Settings, seconds: float, talk: Console) -> AbstractContextManager[ChosenAuthor]:
    """The author, whose service is asked again for as long as the budget has `seconds`."""
    return open_author(settings.author, settings.base_url, lambda text: talk.print(Text(text)), seconds)


def _report_ended(store: Store, folder: RunFolder, manner: Manner, talk: Console) -> None:
    """Say what an ended run came to. A file at the run's own output that is not its kernel may have been edited since:
    it is left alone."""
    ended = folder.load()
    assert ended.ending is not None
    talk.print(Text(f"run {ended.id} has ended: {ended.ending.words}; {_remedy(ended.ending)}", style="yellow"))
    done = finished(store, folder, ended)
    if done.kernel and manner.output and not manner.output_is_new and manner.output.exists():
        same = manner.output.read_bytes() == done.kernel.text().encode()
        manner = manner if same else replace(manner, output=None)
    _report(done, manner)


def _reopened(folder: RunFolder, addition: Addition, manner: Manner) -> Settings | None:
    """The settings to go on with; None where the run has ended and nothing was added."""
    run, before = _loaded(folder), folder.header().settings
    settings = replace(continued(before, addition, run), output=manner.stored_output)
    if run is not None and run.ending is not None:
        if addition == Addition():
            return None
        at_once = next_step(replace(run, settings=settings, ending=None))
        if isinstance(at_once, Ending):
            raise BadArgument(f"run {run.id} would end at once, because {at_once.value}; {_remedy(at_once)}")
        folder.reopen(settings)
    elif settings != before:
        folder.reopen(settings)
    return settings


def _remedy(ending: Ending) -> str:
    """What makes a run that ended so go on."""
    options = {
        Ending.ATTEMPTS: "--attempts N",
        Ending.TOKENS: "--tokens N",
        Ending.DOLLARS: "--dollars X",
        Ending.SECONDS: "--seconds S",
    }
    return f"add more with {options[ending]}" if ending in options else "add a hint with --hint TEXT"


def _loaded(folder: RunFolder) -> Run | None:
    try:
        return folder.load()
    except NotAccepted:
        return None


@dataclass(frozen=True)
class Making:
    """A run under way, and who and what takes part. All talk goes by one console, whose last line may be live."""

    store: Store
    folder: RunFolder
    chosen: ChosenAuthor
    place: Place
    manner: Manner
    talk: Console


def _conduct(making: Making, fresh: bool) -> None:
    """Carry a run from words to a task, if it began so, and from there to its end; report what came of it."""
    store, folder, talk = making.store, making.folder, making.talk
    talk.print(Text.assemble(("run     ", "bold"), folder.id))
    if _loaded(folder) is None:
        task_hash = _agree(making)
        settings = folder.header().settings
        found = None if fresh or settings.start else store.library_find(task_hash)
        if found is not None:
            _report_found(found, replace(making.manner, licence=settings.licence))
            if folder.untouched:
                folder.discard()
            return
    show_task_lines(talk, folder.load().task)
    with ProgressView(talk) as view:
        done = carry(store, folder, view.following(making.chosen), making.place, view)
    _report(done, making.manner)


@contextmanager
def _resumable(folder: RunFolder, *, new: bool) -> Iterator[None]:
    """Whatever ends the block early, it is said how to go on; see `way_on`."""
    try:
        yield
    except KeyboardInterrupt:  # as it is, the command line's own machinery would take it
        raise NotDone(f"interrupted; resume with: tilewright resume {folder.id}", INTERRUPTED) from None
    except Exception as error:
        if not isinstance(error, (NotDone, typer.Exit)):
            error.add_note(way_on(folder, error, new=new))
        raise


# -- words --


def _agree(making: Making) -> str:
    """Have the words specified, show the specification, and make it the task if it is accepted; the task's hash."""
    folder, manner = making.folder, making.manner
    request = folder.request()
    assert request is not None  # a run without a task has one
    with ProgressView(making.talk) as view:
        specification = specify(folder, request, view.following(making.chosen), view)
    show_specification(making.talk, specification)
    if not manner.yes and not _confirmed():
        if manner.as_json:
            print_json(SpecificationReport(folder.id, str(folder.path), specification))
        if sys.stdin.isatty():
            if folder.untouched:
                folder.discard()
            raise NotDone("the specification was not accepted; ask again in other words", 2)
        accepting = f"tilewright resume {folder.id} --yes"
        raise NotDone(f"the specification waits to be accepted with: {accepting}; or ask again in other words", 2)
    with progress() as say:
        say("running the reference")
        return accept(folder, request, specification).hash


def _confirmed() -> bool:
    try:
        return sys.stdin.isatty() and typer.confirm("Is this what is meant?", err=True)
    except typer.Abort:
        return False


def show_specification(console: Console, specification: Specification) -> None:
    """What the words are taken to mean: the reference that decides what is right, its inputs, what was assumed."""
    console.print(Text("\nthe reference, which decides what is right:", style="bold"))
    _show_code(console, specification.reference)
    console.print(Text("its inputs:", style="bold"))
    _show_code(console, specification.description)
    unsaid = [one for one in specification.assumptions if one not in specification.description]
    if unsaid:
        console.print(Text("assumed:", style="bold"))
        for assumption in unsaid:
            console.print(Text(f"  - {assumption}"))
        console.print()


def _show_code(console: Console, code: str) -> None:
    """Plain and whole: it is to be accepted, whatever the terminal's width and colours."""
    console.print(Text(code.strip()), soft_wrap=True)
    console.print()


# -- what is said --


def announce(console: Console, chosen: ChosenAuthor, budget: Budget, place: Place) -> None:
    for title, text in announcement(chosen, budget, place):
        console.print(Text.assemble((f"{title}  ", "bold"), text))


def show_task_lines(console: Console, task: Task) -> None:
    """What was understood, once there is a task: before anybody is paid to write a kernel for it."""
    for place, line in enumerate(task_words(task)):
        console.print(Text.assemble(("task    " if place == 0 else "        ", "bold"), line))


def _report(done: Finished, manner: Manner) -> None:
    path = _placed(done.kernel, manner)
    if manner.as_json:
        best = done.run.best.number if done.run.best else None
        print_json(MakeReport(done.run, str(done.folder.path), best, str(path) if path else None))
    else:
        show_finished(stdout_console(), done, path)
    if done.kernel is None:
        raise typer.Exit(1)


def _report_found(kernel: LibraryKernel, manner: Manner) -> None:
    path = _placed(kernel, manner)
    if manner.as_json:
        print_json(FoundReport(kernel.entry, str(path)))
    else:
        show_found(stdout_console(), kernel, path, wanted=manner.author)
        if manner.licence and manner.output is None:
            said = f"--license {manner.licence} is recorded beside a copy; have one written with -o FILE.cu"
            stdout_console().print(Text(said, style="yellow"))


def _placed(kernel: LibraryKernel | None, manner: Manner) -> Path | None:
    """Where the kernel is to be found: in the library, or where the person wants it."""
    if kernel is None or manner.output is None:
        return kernel.path if kernel else None
    try:
        copy_kernel(kernel, manner.output, manner.licence)
    except OSError as error:
        raise NotDone(
            f"-o {manner.output} cannot be written ({error.strerror}); the kernel is at {kernel.path}", FAULT
        ) from None
    return manner.output


def check_output(output: Path | None, said: str = "-o") -> None:
    """An output that cannot be written is refused before anything is made; `said`: what to call it."""
    if output is None:
        return
    if output.is_dir():
        raise BadArgument(f"{said} {output}: a folder; give the path of the kernel file to write")
    folder = output.resolve().parent
    if not folder.is_dir():
        raise BadArgument(f"{said} {output}: there is no folder {folder}; make it, or give another file with -o")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BadArgument(
            f"{said} {output}: nothing can be written in {folder} ({error.strerror}); give another file with -o"
        ) from None
    for path in (output, tuned_path(output)):
        if path.exists() and not os.access(path, os.W_OK):
            raise BadArgument(f"{said} {output}: {path} cannot be written; give another file with -o")

"""`tilewright make` and `tilewright resume`: say who writes, where and for how much, then watch it being made.

Conversation and progress go to stderr, the result to stdout. Nothing is spent before the author, its price and the
budget have been said.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import typer
from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from tilewright.frontends.arguments import BadArgument
from tilewright.frontends.author_choice import ChosenAuthor, check_key, open_author
from tilewright.frontends.exits import INTERRUPTED, NotDone
from tilewright.frontends.making import (
    Addition,
    Finished,
    accept,
    announcement,
    carry,
    continued,
    environment_at,
    finished,
    run_of_words,
    same_request,
    settings_at,
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
    output: Path | None = None


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
    place = choose_place(gpu, settings.spool)
    request = replace(request, gpu=place.gpu)
    if fresh or same_request(store, request) is None:
        check_key(settings.author, settings.base_url, os.environ)
    with progress() as say:
        say("reading the request")
        task = task_of(request)
    found = None if fresh else same_request(store, request) if task is None else store.library_find(task.hash)
    if found is not None:
        _report_found(found, manner)
        return
    with open_author(settings.author, settings.base_url, lambda text: talk.print(Text(text))) as chosen:
        announce(talk, chosen, settings.budget, place)
        where, settings, new = environment_at(place), settings_at(place, settings), True
        if task is not None:
            folder = store.create_run(task, settings, where, request)
        elif fresh:
            folder = store.create_request(request, settings, where)
        else:
            folder, new = run_of_words(store, request, settings, where)
        with folder.lock(), _resumable(folder, manner, new=new):
            _conduct(store, folder, chosen, place, manner, fresh)


def resume_run(name: str, addition: Addition, manner: Manner) -> None:
    """Go on with a run, wherever it stopped."""
    check_output(manner.output)
    store, talk = Store(), stderr_console()
    folder = store.open_run(name)
    with folder.lock():
        settings = _reopened(folder, addition)
        if settings is None:
            ended = folder.load()
            assert ended.ending is not None
            talk.print(Text(f"run {ended.id} has ended: {ended.ending.value}; {_remedy(ended.ending)}", style="yellow"))
            _report(finished(store, folder, ended), manner)
            return
        run, request = _loaded(folder), folder.request()
    gpu = run.task.gpu if run else request.gpu if request else "H200"
    place = same_place(folder.header().environment.device, gpu, settings.spool)
    with open_author(settings.author, settings.base_url, lambda text: talk.print(Text(text))) as chosen:
        announce(talk, chosen, settings.budget, place)
        with folder.lock(), _resumable(folder, manner, new=False):
            _conduct(store, folder, chosen, place, manner, fresh=False)


def _reopened(folder: RunFolder, addition: Addition) -> Settings | None:
    """The settings to go on with; None where the run has ended and nothing was added."""
    run, before = _loaded(folder), folder.header().settings
    settings = continued(before, addition, run)
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


def _conduct(store: Store, folder: RunFolder, chosen: ChosenAuthor, place: Place, manner: Manner, fresh: bool) -> None:
    """Carry a run from words to a task, if it began so, and from there to its end; report what came of it."""
    stderr_console().print(Text.assemble(("run     ", "bold"), folder.id))
    if _loaded(folder) is None:
        task_hash = _agree(folder, chosen, manner)
        found = None if fresh else store.library_find(task_hash)
        if found is not None:
            _report_found(found, manner)
            if folder.untouched:
                folder.discard()
            return
    show_task_lines(stderr_console(), folder.load().task)
    with ProgressView(stderr_console()) as view:
        done = carry(store, folder, chosen, place, view)
    _report(done, manner)


@contextmanager
def _resumable(folder: RunFolder, manner: Manner, *, new: bool) -> Iterator[None]:
    """Whatever ends the block early, it is said how to go on; see `way_on`."""
    options = f" -o {manner.output}" if manner.output else ""
    try:
        yield
    except KeyboardInterrupt:  # as it is, the command line's own machinery would take it
        raise NotDone(f"interrupted; resume with: tilewright resume {folder.id}{options}", INTERRUPTED) from None
    except Exception as error:
        if not isinstance(error, (NotDone, typer.Exit)):
            error.add_note(way_on(folder, error, new=new, options=options))
        raise


# -- words --


def _agree(folder: RunFolder, chosen: ChosenAuthor, manner: Manner) -> str:
    """Have the words specified, show the specification, and make it the task if it is accepted; the task's hash."""
    request = folder.request()
    assert request is not None  # a run without a task has one
    talk = stderr_console()
    with ProgressView(talk) as view:
        specification = specify(folder, request, chosen, view)
    show_specification(talk, specification)
    if not manner.yes and not _confirmed():
        if manner.as_json:
            print_json(SpecificationReport(folder.id, str(folder.path), specification))
        if sys.stdin.isatty():
            if folder.untouched:
                folder.discard()
            raise NotDone("the specification was not accepted; ask again in other words", 2)
        accepting = f"tilewright resume {folder.id} --yes{f' -o {manner.output}' if manner.output else ''}"
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
    _show_code(console, specification.reference, "python")
    console.print(Text("its inputs:", style="bold"))
    _show_code(console, specification.description, "toml")
    unsaid = [one for one in specification.assumptions if one not in specification.description]
    if unsaid:
        console.print(Text("assumed:", style="bold"))
        for assumption in unsaid:
            console.print(Text(f"  - {assumption}"))
        console.print()


def _show_code(console: Console, code: str, language: str) -> None:
    shown = Syntax(code.strip(), language, background_color="default") if console.is_terminal else Text(code.strip())
    console.print(shown)
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
        show_found(stdout_console(), kernel, path)


def _placed(kernel: LibraryKernel | None, manner: Manner) -> Path | None:
    """Where the kernel is to be found: in the library, or where the person wants it."""
    if kernel is None or manner.output is None:
        return kernel.path if kernel else None
    copy_kernel(kernel, manner.output)
    return manner.output


def check_output(output: Path | None) -> None:
    """An output that cannot be written is refused before anything is made."""
    if output is None:
        return
    if output.is_dir():
        raise BadArgument(f"-o {output}: a folder; give the path of the kernel file to write")
    if not output.resolve().parent.is_dir():
        raise BadArgument(f"-o {output}: there is no folder {output.resolve().parent}")
    for path in (output, tuned_path(output)):
        if path.exists() and not os.access(path, os.W_OK):
            raise BadArgument(f"-o {output}: {path} cannot be written")

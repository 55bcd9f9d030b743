"""Runs as pages. They are the same when served and when written as files: all links are relative.

A page's address names a run by a name that its folder lists, and an attempt by its number, never by a path: what is not
a run's own file cannot be asked for, and a run whose folder holds links is not read.

index.html                      the runs
suite.html                      the suite, where one is viewed
compare.html?left=RUN/N&right=  two attempts, or the best of two runs; served only
runs/RUN/index.html             a run; provenance.html: who wrote which line of its best kernel;
                                lesson.html: what `explain` writes of it, served only
runs/RUN/attempt-N.html         an attempt; change-N.html: beside the file its author was given;
                                counters-N.html: what each line of it does
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from tilewright.frontends.report import run_report, runs
from tilewright.frontends.report.document import Picture, Source
from tilewright.frontends.report.emulated import NotCountable, count_lines
from tilewright.frontends.report.lesson import lesson_of
from tilewright.frontends.report.pictures import roofline_picture, svg_plot
from tilewright.frontends.report.rendering import POLICY, render
from tilewright.frontends.report.runs import microseconds
from tilewright.frontends.report.suite import report_of, suite_report, task_cells
from tilewright.records import Attempt, Run
from tilewright.store import NoSuchRun, RunFolder, Store, StoreError, line_authors, provenance_of, run_folders
from tilewright.store.attempt_folder import KERNEL
from tilewright.store.run_folder import HEADER
from tilewright.suites import SuiteFolder
from tilewright.suites.suite_folder import HEADER as SUITE_HEADER
from tilewright.tasks.errors import BadArgument

# -- the runs that may be looked at --

_KEPT_RUNS = 16


class NotThere(BadArgument):
    """Nothing is at this address; the message says what is missing."""


@dataclass(frozen=True)
class Choice:
    """What is to be viewed: the folders that runs lie in, the suite they belong to if they do, and the run named."""

    places: tuple[Path, ...]
    suite: SuiteFolder | None = None
    run: str = ""
    alone: bool = False  # nothing but that run may be seen

    def folders(self) -> dict[str, RunFolder]:
        """The runs there are, by name."""
        if self.alone:
            return {self.run: RunFolder(self.places[0] / self.run)}
        found = {one.path.name: one for place in self.places for one in run_folders(place)}
        return (
            found
            if self.suite is None
            else {name: found[name] for name in suite_runs(self.suite).values() if name in found}
        )

    def find(self, name: str) -> RunFolder | None:
        """The run of this name, which must be one that a folder lists."""
        if (self.alone and name != self.run) or (
            self.suite is not None and name not in suite_runs(self.suite).values()
        ):
            return None
        listing = [place for place in self.places[::-1] if place.is_dir() and name in os.listdir(place)]
        return next((RunFolder(place / name) for place in listing if (place / name / HEADER).is_file()), None)


def suite_runs(suite: SuiteFolder) -> dict[str, str]:
    """By task, the run that its kernel was made in, or found to have been made in."""
    begun = {task.id: suite.run_of(task.id) for task in suite.suite().tasks}
    return {**begun, **{one.id: one.run for one in suite.records() if one.run}}


def chosen(what: str | None, store: Store) -> Choice:
    """Of nothing, all runs of this machine; of a suite's folder, the suite; of another folder, the runs in it."""
    if not what:
        return Choice((store.place,))
    place = Path(what)
    if (place / SUITE_HEADER).is_file():
        suite = SuiteFolder(place)
        suite.suite()  # refuses what it cannot read
        return Choice((store.place, place / "runs"), suite)
    if not (place / HEADER).is_file() and any((one.path / HEADER).is_file() for one in run_folders(place)):
        return Choice((place,))
    try:
        path = store.open_run(what).path.resolve()
    except NoSuchRun:
        if place.is_dir():
            raise BadArgument(f"{what}: neither a run, nor a suite, nor a folder of runs") from None
        raise
    return Choice((path.parent,), run=path.name, alone=path.parent != store.place.resolve())


class Opened(NamedTuple):
    """A run that pages are made of, by the name that its folder has."""

    name: str
    folder: RunFolder
    run: Run


class Shelf:
    """What was read of the chosen runs. It may be asked by several threads."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self._lines: dict[str, tuple[object, run_report.RunLine]] = {}
        self._runs: dict[str, tuple[object, Run]] = {}
        self._lock = threading.Lock()

    def folder(self, name: str) -> RunFolder:
        found = self.choice.find(name)
        if found is None:
            raise NotThere("there is no such run here")
        return found

    def run(self, name: str) -> Run:
        """Raises `NotThere` for one that cannot be read too, and says why."""
        folder = self.folder(name)
        stamp = folder.stamp
        with self._lock:
            known = self._runs.pop(name, None)
            run = known[1] if known and known[0] == stamp else _read(folder)
            self._runs[name] = (stamp, run)
            while len(self._runs) > _KEPT_RUNS:
                del self._runs[next(iter(self._runs))]
        return run

    def stamp(self, name: str) -> object:
        """Another as soon as the run, or who works on it, is."""
        folder = self.folder(name)
        return folder.stamp, folder.worker

    def lines(self, seconds: float) -> tuple[list[run_report.RunLine], int]:
        """Every run in a line, newest first, and how many are still to be read: reading anew ends after `seconds`."""
        deadline = time.monotonic() + seconds
        newest_first = sorted(self.choice.folders().items(), key=lambda one: _changed_at(one[1]), reverse=True)
        made, unread = [], 0
        with self._lock:
            for name, folder in newest_first:
                stamp = (folder.stamp, folder.worker)
                known = self._lines.get(name)
                if known is None or known[0] != stamp:
                    if time.monotonic() > deadline:
                        unread += 1
                        continue
                    known = self._lines[name] = (stamp, _line(name, folder))
                made.append(known[1])
        return sorted(made, key=lambda line: line.created, reverse=True), unread


def _changed_at(folder: RunFolder) -> float:
    try:
        return folder.path.stat().st_mtime
    except OSError:
        return 0.0


def _read(folder: RunFolder) -> Run:
    if not folder.is_plain:
        raise NotThere("this run's folder holds symbolic links or the like, which no run does; it is not read")
    with _readable():
        return folder.load()


def _line(name: str, folder: RunFolder) -> run_report.RunLine:
    try:
        return run_report.run_line(name, _read(folder), folder.worker)
    except NotThere as problem:
        return run_report.RunLine(name, problem=str(problem))
    except (ArithmeticError, ValueError) as problem:  # such as a measured time of 0
        return run_report.RunLine(name, problem=f"its numbers make no sense: {problem}")


# -- the pages --

_ATTEMPT_FILE = re.compile(r"(attempt|change|counters)-(\d{1,6})\.html", re.ASCII)
_READING_SECONDS = 1.0  # a list of runs is served after, though some are unread
_AT_ONCE_MS, _SOON_MS, _LATER_MS = 200, 1500, 6000


@dataclass(frozen=True)
class Side:
    """One of two kernels beside each other."""

    title: str
    address: str
    text: str
    run: Run
    attempt: Attempt


class Site:
    """`served`: pages are kept up to date and can be searched for two kernels; else they are files that stay."""

    def __init__(self, shelf: Shelf, *, served: bool, counts: bool) -> None:
        self._shelf = shelf
        self._served = served
        self._counts = counts
        self._slow: dict[object, str] = {}
        self._one_slow = threading.Lock()

    @property
    def home(self) -> str:
        """The page to begin with."""
        choice = self._shelf.choice
        return f"{run_address(choice.run)}/index.html" if choice.run else "suite.html" if choice.suite else "index.html"

    def stamp(self, address: str) -> object:
        """Another as soon as the page is."""
        parts = address.split("/")
        if parts[0] == "runs" and len(parts) == 3:
            return self._shelf.stamp(_name(parts[1]))
        suite = self._suite_stamp() if parts[0] == "suite.html" else ()
        lines, unread = self._shelf.lines(_READING_SECONDS)
        return tuple(lines), unread, suite

    def page(self, address: str, query: Mapping[str, str]) -> str:
        """The page as HTML. Raises `NotThere`."""
        parts = address.split("/")
        match parts:
            case ["index.html"]:
                return self._index()
            case ["suite.html"] if self._shelf.choice.suite is not None:
                return self._suite(self._shelf.choice.suite)
            case ["compare.html"] if self._served:
                return self._compare(query.get("left", ""), query.get("right", ""))
            case ["runs", name, file]:
                return self._run_page(_name(name), file)
        raise NotThere("there is no such page")

    def addresses(self) -> Iterator[str]:
        """Every page to be written as a file."""
        choice = self._shelf.choice
        if choice.suite is not None:
            yield "suite.html"
        lines, _ = self._shelf.lines(float("inf"))
        yield "index.html"
        for line in self._written(lines):
            if not line.problem:
                yield from self._run_addresses(line.name)

    def _written(self, lines: list[run_report.RunLine]) -> list[run_report.RunLine]:
        """Of files, only those of the run that was named, if one was."""
        named = self._shelf.choice.run
        return lines if self._served or not named else [line for line in lines if line.name == named]

    def _run_addresses(self, name: str) -> Iterator[str]:
        run, place = self._shelf.run(name), run_address(name)
        yield f"{place}/index.html"
        if run.best is not None:
            yield f"{place}/provenance.html"
        if run.specifying:
            yield f"{place}/attempt-0.html"
        for one in run.attempts:
            yield f"{place}/attempt-{one.number}.html"
            yield f"{place}/change-{one.number}.html"
            if self._counts:
                yield f"{place}/counters-{one.number}.html"

    # -- the list, and suites --

    def _index(self) -> str:
        lines, unread = self._shelf.lines(0.0 if self._served else float("inf"))  # as many as `stamp` has read
        lines = self._written(lines)
        return self._render("index", "Runs", _AT_ONCE_MS if unread else _LATER_MS, lines=lines, unread=unread)

    def _suite(self, folder: SuiteFolder) -> str:
        report = report_of(folder)
        suite, known = report.suite, self._shelf.choice.folders()
        runs_of = {task: run for task, run in suite_runs(folder).items() if run in known}
        heads, cells = task_cells(report)
        done = {one.id: (row[1:], one.reason) for one, row in zip(report.tasks, cells, strict=True)}
        waiting = (["waiting", *[""] * (len(heads) - 2)], "")
        rows = [(task.name, runs_of.get(task.id, ""), *done.get(task.id, waiting)) for task in suite.tasks]
        document = suite_report(report)
        return self._render(
            "suite",
            suite.title,
            _SOON_MS,
            figures=[one for one in document.sections[0].blocks if not isinstance(one, Picture)],
            pictures=document.pictures,
            heads=heads[2:],
            rows=rows,
            verdicts=sorted({row[2][0] for row in rows}),
        )

    def _suite_stamp(self) -> object:
        suite = self._shelf.choice.suite
        if suite is None:
            raise NotThere("there is no such page")
        return [path.stat().st_mtime_ns for path in (suite.path, suite.path / "tasks") if path.exists()]

    # -- one run --

    def _run_page(self, name: str, file: str) -> str:
        one = Opened(name, self._shelf.folder(name), self._shelf.run(name))
        if file == "index.html":
            return self._run(one)
        if file == "provenance.html":
            return self._provenance(one)
        if file == "lesson.html" and self._served and one.run.attempts:
            return self._lesson(one)
        asked = _ATTEMPT_FILE.fullmatch(file)
        if asked is None or (asked[1] == "counters" and not self._counts):
            raise NotThere("there is no such page")
        kind, number = asked[1], int(asked[2])
        if kind == "attempt":
            return self._attempt(one, number)
        attempt = runs.attempt_of(one.run, number)
        return self._change(one, attempt) if kind == "change" else self._counters(one, attempt)

    def _run(self, one: Opened) -> str:
        run, worker = one.run, one.folder.worker
        rows = runs.rows(run)
        measurement = run.best.measurement if run.best else None
        return self._render(
            "run",
            run.id,
            _SOON_MS if worker else _LATER_MS,
            **one._asdict(),
            head=list(run_report.run_head(run)),
            standing=[run_report.standing_words(run, worker)],
            rows=rows,
            longest=max((row.time_us or 0.0 for row in rows), default=0.0),
            begun=_begun(one.folder, run) if worker or not run.ending else None,
            plot=svg_plot(run) if rows else "",
            kind=runs.kind_words(runs.is_measured(run.attempts)),
            times=list(run_report.measurement_blocks(measurement)) if measurement else [],
        )

    def _attempt(self, one: Opened, number: int) -> str:
        run = one.run
        facts = run_report.attempt_facts(one.folder, run, number)
        attempt, numbers = facts["attempt"], [each.number for each in run.attempts]
        return self._render(
            "attempt",
            f"Attempt {number} of {run.id}" if number else f"The specification of {run.id}",
            None if attempt else _SOON_MS,
            **one._asdict(),
            **facts,
            words=runs.verdict_words(attempt.verdict) if attempt else "unfinished",
            outcome=list(run_report.attempt_blocks(attempt, facts["kernel"])) if attempt else [],
            previous=number - 1 if number - 1 in numbers else None,
            following=number + 1 if number + 1 in numbers else None,
        )

    def _provenance(self, one: Opened) -> str:
        best = runs.best_of(one.run)
        with _readable():
            made, authors = provenance_of(one.folder), line_authors(one.folder, one.run, best)
        source = run_report.source_lines(_kernel(one.folder, best), authors, best.verdict)
        standing, title = list(run_report.standing_blocks(made)), f"Where the kernel of {one.run.id} comes from"
        return self._render("provenance", title, **one._asdict(), made=made, standing=standing, source=source)

    def _counters(self, one: Opened, attempt: Attempt) -> str:
        text, run = _kernel(one.folder, attempt), one.run

        def made() -> str:
            counted, problem = None, ""
            try:
                counted = count_lines(run, attempt, text)
            except NotCountable as reason:
                problem = str(reason)
            return self._render(
                "counters",
                f"Counters of attempt {attempt.number} of {run.id}",
                **one._asdict(),
                attempt=attempt,
                counted=counted,
                problem=problem,
                picture=roofline_picture(counted.roofline) if counted and counted.roofline else "",
                source=run_report.source_lines(text, [], attempt.verdict),
            )

        choice = attempt.tune.choice if attempt.tune else ()
        return self._once((one.name, attempt.number, run.task.hash, attempt.kernel, choice), made)

    def _lesson(self, one: Opened) -> str:
        def made() -> str:
            with _readable():
                lesson = lesson_of(one.folder, one.run, one.run.id, lambda _: None)
            return self._render("lesson", lesson.title, **one._asdict(), lesson=lesson)

        return self._once(("lesson", one.name, one.folder.stamp), made)

    def _once(self, key: object, made: Callable[[], str]) -> str:
        """A page that takes long: made one at a time, and once for as long as what it is made of stays as it is."""
        if key not in self._slow:
            with self._one_slow:  # whoever reloads meanwhile waits for the same
                if key not in self._slow:
                    self._slow[key] = made()
        return self._slow[key]

    # -- two kernels --

    def _change(self, one: Opened, attempt: Attempt) -> str:
        """An attempt beside the file that its author was given."""
        parent = next((each for each in one.run.attempts if each.number == attempt.parent), None)
        return self._compared("change", _side(one, parent) if parent else None, _side(one, attempt), **one._asdict())

    def _compare(self, left: str, right: str) -> str:
        sides = [self._meant(text) if text else None for text in (left, right)]
        lines, _ = self._shelf.lines(0.0)
        names = [line.name for line in lines if not line.problem]
        return self._compared("compare", sides[0], sides[1], asked=(left, right), names=names)

    def _meant(self, text: str) -> Side:
        """`RUN/3`, or `RUN` for its best."""
        name, _, number = text.partition("/")
        one = Opened(name, self._shelf.folder(name), self._shelf.run(name))
        if number:
            return _side(one, runs.attempt_of(one.run, int(number) if number.isdecimal() else -1))
        return _side(one, runs.best_of(one.run, f"name one of its attempts, such as {name}/1"))

    def _compared(self, template: str, left: Side | None, right: Side | None, **values: object) -> str:
        name = left.title if left else "nothing"
        title = f"{name} beside {right.title}" if right else "Compare"
        diff = run_report.unified_diff(left.text if left else "", right.text, name, right.title) if right else ""
        return self._render(template, title, None, **values, left=left, right=right, changes=[Source(diff, "diff")])

    def _render(self, template: str, title: str, poll_ms: int | None = None, **values: object) -> str:
        return render(
            template,
            title=title,
            up="../../" if "run" in values else "",
            poll_ms=poll_ms if self._served else None,
            served=self._served,
            counts=self._counts,
            policy=POLICY,
            suite_viewed=self._shelf.choice.suite is not None,
            address=run_address,
            us=microseconds,
            say=runs,
            **values,
        )


@contextmanager
def _readable() -> Iterator[None]:
    """What cannot be read is not there, and says why."""
    try:
        yield
    except (StoreError, OSError) as error:
        raise NotThere(str(error)) from None


def run_address(name: str) -> str:
    return f"runs/{quote(os.fsencode(name), safe='')}"


def _name(quoted: str) -> str:
    return unquote(quoted, errors="surrogateescape")


def _begun(folder: RunFolder, run: Run) -> int | None:
    """The attempt that is under way."""
    number = max((one.number for one in run.attempts), default=0) + 1
    return number if folder.attempt(number).path.is_dir() else None


def _kernel(folder: RunFolder, attempt: Attempt) -> str:
    with _readable():
        return folder.attempt(attempt.number).find_text(KERNEL) or ""


def _side(one: Opened, attempt: Attempt) -> Side:
    address = f"{run_address(one.name)}/attempt-{attempt.number}.html"
    title = f"{one.run.id} attempt {attempt.number}"
    return Side(title, address, _kernel(one.folder, attempt), one.run, attempt)

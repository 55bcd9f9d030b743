"""The pages of `view`: each is a document made of the records of runs. All links are relative.

A page's address names a run by a name that its folder lists, and an attempt by its number, never by a path: what is not
a run's own file cannot be asked for, and a run whose folder holds links is not read.

index.html                      the runs
suite.html                      the suite, where one is viewed
compare.html?left=RUN/N&right=  two attempts, or the best of two runs
runs/RUN/index.html             a run; provenance.html: who wrote which line of its best kernel;
                                lesson.html: what `explain` writes of it
runs/RUN/attempt-N.html         an attempt; counters-N.html: what each line of it does
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from tilewright.frontends.report import document as doc
from tilewright.frontends.report import run_report, runs
from tilewright.frontends.report.emulated import NotCountable, count_lines
from tilewright.frontends.report.lesson import lesson_of
from tilewright.frontends.report.pictures import roofline_picture, svg_plot
from tilewright.frontends.report.rendering import POLICY, render
from tilewright.frontends.report.suite import report_of, suite_report
from tilewright.records import Attempt, Run
from tilewright.store import NoSuchRun, RunFolder, Store, StoreError, line_authors, provenance_of, run_folders
from tilewright.store.attempt_folder import KERNEL
from tilewright.store.run_folder import HEADER
from tilewright.suites import SuiteFolder
from tilewright.suites.suite_folder import HEADER as SUITE_HEADER
from tilewright.tasks.errors import BadArgument

# -- the runs that may be looked at --


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
        wanted = suite_runs(self.suite).values() if self.suite is not None else found
        return {name: found[name] for name in wanted if name in found}

    def find(self, name: str) -> RunFolder | None:
        """The run of this name, which must be one that a folder lists."""
        if (self.alone and name != self.run) or (self.suite and name not in suite_runs(self.suite).values()):
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

    def kernel(self, attempt: Attempt) -> str:
        with _readable():
            return self.folder.attempt(attempt.number).find_text(KERNEL) or ""


# -- the pages --

_ATTEMPT_FILE = re.compile(r"(attempt|counters)-(\d{1,6})\.html", re.ASCII)
_SOON_MS, _LATER_MS = 1500, 6000
_COLUMNS = ("run", "when", "op", "GPU", "author", "attempts", "best", "roofline", "cost", "state")


@dataclass(frozen=True)
class Page:
    """A document, what leads on from it, and how soon a browser looks again; None for one that stays as it is."""

    document: doc.Document
    poll_ms: int | None = None
    trail: tuple[doc.Link, ...] = ()
    asked: tuple[str, str] | None = None  # the names of two kernels, where two are compared
    names: tuple[str, ...] = ()  # to choose them from


class Site:
    """The pages of the chosen runs. It may be asked by several threads."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self._read: dict[str, tuple[object, Run]] = {}
        self._slow: dict[object, Page] = {}
        self._one_slow = threading.Lock()

    @property
    def home(self) -> str:
        """The page to begin with."""
        choice = self.choice
        return f"{run_address(choice.run)}/index.html" if choice.run else "suite.html" if choice.suite else "index.html"

    def html(self, address: str, query: Mapping[str, str]) -> str:
        """Raises `NotThere` where no page has the address."""
        menu = [("Suite", "suite.html")] if self.choice.suite is not None else []
        menu += [("Runs", "index.html"), ("Compare", "compare.html")]
        up = "../../" if address.startswith("runs/") else ""
        return render("page", page=self._page(address, query), up=up, menu=menu, policy=POLICY)

    def _page(self, address: str, query: Mapping[str, str]) -> Page:
        match address.split("/"):
            case ["index.html"]:
                return self._index()
            case ["suite.html"] if self.choice.suite is not None:
                return self._suite(self.choice.suite)
            case ["compare.html"]:
                return self._compare(query.get("left", ""), query.get("right", ""))
            case ["runs", name, file]:
                return self._run_page(self._opened(unquote(name, errors="surrogateescape")), file)
        raise NotThere("there is no such page")

    def _opened(self, name: str) -> Opened:
        """Raises `NotThere` for one that cannot be read too, and says why."""
        folder = self.choice.find(name)
        if folder is None:
            raise NotThere("there is no such run here")
        stamp, known = folder.stamp, self._read.get(name)
        if known is None or known[0] != stamp:
            if not folder.is_plain:
                raise NotThere("this run's folder holds symbolic links or the like, which no run does; it is not read")
            with _readable():
                known = self._read[name] = (stamp, folder.load())
        return Opened(name, folder, known[1])

    # -- the list, suites, two kernels --

    def _lines(self) -> list[run_report.RunLine]:
        made = []
        for name, folder in self.choice.folders().items():
            try:
                made.append(run_report.run_line(name, self._opened(name).run, folder.worker))
            except NotThere as problem:
                made.append(run_report.RunLine(name, problem=str(problem)))
            except (ArithmeticError, ValueError) as problem:  # such as a measured time of 0
                made.append(run_report.RunLine(name, problem=f"its numbers make no sense: {problem}"))
        return sorted(made, key=lambda line: line.created, reverse=True)

    def _index(self) -> Page:
        rows: list[tuple[doc.Cell, ...]] = []
        for one in self._lines():
            link: doc.Cell = one.name if one.problem else _to_run(one.name, one.name)
            fraction = "" if one.fraction is None else f"{one.fraction:.0%}"
            facts = one.when, one.op, one.gpu, one.author, str(one.attempts), one.best, fraction, one.cost
            rows.append((link, *facts, one.problem or one.state))
        table = doc.Table(_COLUMNS, tuple(rows), ("attempts", "best", "roofline", "cost"))
        none = doc.say('No runs yet; begin with: tilewright make "softmax over the last dimension"')
        return Page(_document("Runs", table if rows else none), _LATER_MS)

    def _suite(self, folder: SuiteFolder) -> Page:
        known = self.choice.folders()
        runs_of = {task: run for task, run in suite_runs(folder).items() if run in known}
        addresses = {task: f"{run_address(run)}/index.html" for task, run in runs_of.items()}
        return Page(suite_report(report_of(folder), addresses), _SOON_MS)

    def _compare(self, left: str, right: str) -> Page:
        """`RUN/3`, or `RUN` for its best, beside another."""
        names = tuple(line.name for line in self._lines() if not line.problem)
        blocks: list[doc.Block] = [doc.say("A run means its best kernel; RUN/3 means its attempt 3.")]
        if left and right:
            sides = [self._named(one) for one in (left, right)]
            titles = [f"{one.run.id} attempt {attempt.number}" for one, attempt in sides]
            diff = run_report.unified_diff(*(one.kernel(attempt) for one, attempt in sides), *titles)
            facts = zip(*(_facts(one, attempt) for one, attempt in sides), strict=True)
            blocks += [doc.Table(("", *titles), tuple((head, one, other) for (head, one), (_, other) in facts))]
            blocks += [doc.Source(diff, "diff") if diff else doc.say("The two files are the same.")]
        return Page(_document("Compare", *blocks), asked=(left, right), names=names)

    def _named(self, text: str) -> tuple[Opened, Attempt]:
        name, _, number = text.partition("/")
        one = self._opened(name)
        if number:
            return one, runs.attempt_of(one.run, int(number) if number.isdecimal() else -1)
        return one, runs.best_of(one.run, f"name one of its attempts, such as {name}/1")

    # -- one run --

    def _run_page(self, one: Opened, file: str) -> Page:
        back = (doc.Link(one.run.id, file="index.html"),)
        if file == "index.html":
            return self._run(one)
        if file == "provenance.html":
            best = runs.best_of(one.run)
            with _readable():
                made, authors = provenance_of(one.folder), line_authors(one.folder, one.run, best)
            blocks = run_report.provenance_report(made, authors, one.kernel(best))
            return Page(_document(f"Where the kernel of {one.run.id} comes from", *blocks), trail=back)
        if file == "lesson.html" and one.run.attempts:
            return self._once(("lesson", one.name, one.folder.stamp), lambda: _lesson(one, back))
        asked = _ATTEMPT_FILE.fullmatch(file)
        if asked is None:
            raise NotThere("there is no such page")
        number = int(asked[2])
        if asked[1] == "attempt":
            done = [each.number for each in one.run.attempts]
            beside = [doc.Link(f"attempt {n}", file=f"attempt-{n}.html") for n in (number - 1, number + 1) if n in done]
            shown = run_report.attempt_page(one.folder, one.run, number)
            return Page(shown, None if number in done else _SOON_MS, (*back, *beside))
        attempt = runs.attempt_of(one.run, number)
        choice = attempt.tune.choice if attempt.tune else ()
        key = (one.name, number, one.run.task.hash, attempt.kernel, choice)
        return self._once(key, lambda: _counters(one, attempt))

    def _run(self, one: Opened) -> Page:
        run, worker = one.run, one.folder.worker
        head = [*run_report.run_head(run), run_report.standing_words(run, worker)]
        begun = max((each.number for each in run.attempts), default=0) + 1
        if (worker or not run.ending) and one.folder.attempt(begun).path.is_dir():
            head.append(doc.say(doc.Link(f"Attempt {begun}", file=f"attempt-{begun}.html"), " is under way."))
        if run.specifying:
            head.append(doc.say(doc.Link("How the words became a task", file="attempt-0.html")))
        table: list[doc.Block] = [doc.Picture("progress", svg_plot(run), "")] if run.attempts else []
        sections = [doc.Section("", tuple(head))]
        sections += [doc.Section("Attempts", (*table, run_report.attempts_table(run, linked=True)))]
        if run.best is not None and run.best.measurement is not None:
            times = tuple(run_report.measurement_blocks(run.best.measurement))
            sections.append(doc.Section(f"The best: attempt {run.best.number}", times))
        made = run.environment
        where = f"tilewright {made.tilewright}, Python {made.python}, torch {made.torch}, {made.compiler}, "
        texts = {"The reference": run.task.reference, "The file it started from": run.settings.start}
        folds = (doc.Fold(title, (doc.Source(text),)) for title, text in texts.items() if text)
        sections.append(doc.Section("Where and how", (doc.say(where + made.platform), *folds)))
        trail = [doc.Link("Provenance", file="provenance.html")] if run.best is not None else []
        trail += [doc.Link("Lesson", file="lesson.html")] if run.attempts else []
        return Page(doc.Document(run.id, tuple(sections)), _SOON_MS if worker else _LATER_MS, tuple(trail))

    def _once(self, key: object, made: Callable[[], Page]) -> Page:
        """A page that takes long: made one at a time, and once for as long as what it is made of stays as it is."""
        with self._one_slow:  # whoever reloads meanwhile waits for the same
            if key not in self._slow:
                self._slow[key] = made()
            return self._slow[key]


def _lesson(one: Opened, back: tuple[doc.Link, ...]) -> Page:
    with _readable():
        return Page(lesson_of(one.folder, one.run, lambda _: None), trail=back)


def _counters(one: Opened, attempt: Attempt) -> Page:
    """What each line of an attempt did in the emulator, and its place under the roofline."""
    number = attempt.number
    trail = doc.Link(one.run.id, file="index.html"), doc.Link(f"attempt {number}", file=f"attempt-{number}.html")
    title = f"Counters of attempt {number} of {one.run.id}"
    try:
        counted = count_lines(one.run, attempt, one.kernel(attempt))
    except NotCountable as reason:
        return Page(_document(title, doc.say(f"Nothing could be counted: {reason}", tone=doc.Tone.BAD)), trail=trail)
    roofline: doc.Block = doc.say("The kernel does no arithmetic that counts, so it has no place under a roofline.")
    if counted.roofline is not None:
        roofline = doc.Picture("roofline", roofline_picture(counted.roofline), "")
    listings = (doc.Source(one.text) for one in counted.launches)
    seen = doc.say(f"Counted in the emulator: {counted.seen}.")
    return Page(_document(title, seen, roofline, *listings), trail=trail)


def _facts(one: Opened, attempt: Attempt) -> Iterator[tuple[str, doc.Cell]]:
    """One of two kernels that are compared."""
    link = doc.Link(f"attempt {attempt.number}", file=f"{run_address(one.name)}/attempt-{attempt.number}.html")
    yield "", (link,)
    yield "verdict", runs.verdict_words(attempt.verdict)
    yield "time", runs.time_words(attempt.measurement)
    yield "of the roofline", f"{attempt.measurement.fraction:.0%}" if attempt.measurement else ""
    yield "constants", runs.named_values(dict(attempt.tune.choice)) if attempt.tune else ""
    yield "op and author", f"{one.run.task.name} for {one.run.task.gpu}, by {one.run.settings.author}"
    yield "what it did", attempt.summary


def _document(title: str, *blocks: doc.Block) -> doc.Document:
    return doc.Document(title, (doc.Section("", blocks),))


def _to_run(name: str, text: str) -> doc.Cell:
    return (doc.Link(text, file=f"{run_address(name)}/index.html"),)


@contextmanager
def _readable() -> Iterator[None]:
    """What cannot be read is not there, and says why."""
    try:
        yield
    except (StoreError, OSError) as error:
        raise NotThere(str(error)) from None


def run_address(name: str) -> str:
    return f"runs/{quote(os.fsencode(name), safe='')}"

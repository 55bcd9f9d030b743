"""The pages, by address. They are the same when served and when written as files: all links are relative.

index.html                      the runs
suite.html                      the suite, where one is viewed
compare.html?left=RUN/N&right=  two attempts, or the best of two runs; served only
runs/RUN/index.html             a run; provenance.html: who wrote which line of its best kernel;
                                lesson.html: what `explain` writes of it, served only
runs/RUN/attempt-N.html         an attempt; change-N.html: beside the file its author was given;
                                counters-N.html: what each line of it does
"""

from __future__ import annotations

import difflib
import itertools
import os
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

from tilewright.frontends.report import runs
from tilewright.frontends.report.document import Block
from tilewright.frontends.report.facts import NotCountable, attempt_facts, count_lines, source_lines
from tilewright.frontends.report.pictures import roofline_picture, svg_plot
from tilewright.frontends.report.rendering import POLICY, render
from tilewright.frontends.report.run_report import RunLine, measurement_blocks, state_words, when
from tilewright.frontends.report.runs import microseconds
from tilewright.frontends.report.shelf import NotThere, Shelf, suite_runs
from tilewright.frontends.report.suite import (
    counts_words,
    fast_picture,
    report_of,
    speedup_picture,
    task_cells,
    verdict,
)
from tilewright.records import Attempt, Run
from tilewright.store import RunFolder, StoreError, line_authors, provenance_of
from tilewright.store.attempt_folder import KERNEL
from tilewright.suites import SuiteFolder

MOST_LINES = 4000  # of either text; beyond it a comparison takes too long
_AROUND = 4  # equal lines shown next to a change


@dataclass(frozen=True)
class Half:
    """One side of a row: a line's number and its text, of which `changed` is what the other side has not."""

    number: int
    before: str
    changed: str = ""
    after: str = ""


@dataclass(frozen=True)
class Stretch:
    """Rows that belong together. A folded one is equal on both sides and far from any change."""

    rows: tuple[tuple[Half | None, Half | None], ...]
    equal: bool
    folded: bool = False


def side_by_side(left: str, right: str) -> list[Stretch]:
    """Raises `ValueError` where a text is too long to compare."""
    old, new = left.splitlines(), right.splitlines()
    if max(len(old), len(new)) > MOST_LINES:
        raise ValueError(f"texts of more than {MOST_LINES:,} lines are not compared")
    made: list[Stretch] = []
    codes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    for position, (kind, a, b, c, d) in enumerate(codes):
        if kind == "equal":
            rows = tuple((Half(a + k + 1, old[a + k]), Half(c + k + 1, new[c + k])) for k in range(b - a))
            made += _folded(rows, position == 0, position == len(codes) - 1)
        else:
            made.append(Stretch(tuple(_changed(old, new, (a, b), (c, d))), equal=False))
    return made


def _folded(rows: tuple[tuple[Half, Half], ...], first: bool, last: bool) -> Iterator[Stretch]:
    """Equal lines in up to three stretches: those after a change, those far from any, those before the next."""
    start = 0 if first else _AROUND
    end = len(rows) if last else len(rows) - _AROUND
    if end - start <= 2:
        yield Stretch(rows, equal=True)
        return
    for part, folded in ((rows[:start], False), (rows[start:end], True), (rows[end:], False)):
        if part:
            yield Stretch(part, equal=True, folded=folded)


def _changed(
    old: list[str], new: list[str], left: tuple[int, int], right: tuple[int, int]
) -> Iterator[tuple[Half | None, Half | None]]:
    """Lines one by one beside each other; what is over on one side has nothing beside it."""
    for i, j in itertools.zip_longest(range(*left), range(*right)):
        if i is None or j is None:
            yield (
                Half(i + 1, "", old[i]) if i is not None else None,
                Half(j + 1, "", new[j]) if j is not None else None,
            )
            continue
        head = _shared(old[i], new[j])
        tail = _shared(old[i][head:][::-1], new[j][head:][::-1])
        yield _half(i, old[i], head, tail), _half(j, new[j], head, tail)


def _half(index: int, text: str, head: int, tail: int) -> Half:
    end = len(text) - tail
    return Half(index + 1, text[:head], text[head:end], text[end:])


def _shared(one: str, other: str) -> int:
    """How many characters both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


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


@dataclass(frozen=True)
class SuiteRow:
    name: str
    verdict: str
    reason: str
    cells: list[str]
    run: str  # "" where it cannot be looked at


class Site:
    """`served`: pages are kept up to date and can be searched for two kernels; else they are files that stay."""

    def __init__(self, shelf: Shelf, *, served: bool, counts: bool) -> None:
        self._shelf = shelf
        self._served = served
        self._counts = counts
        self._counted: dict[object, str] = {}
        self._one_lesson = threading.Lock()

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

    def _written(self, lines: list[RunLine]) -> list[RunLine]:
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
        return self._render("index", "Runs", 0, _AT_ONCE_MS if unread else _LATER_MS, lines=lines, unread=unread)

    def _suite(self, folder: SuiteFolder) -> str:
        report = report_of(folder)
        suite, known = report.suite, self._shelf.choice.folders()
        runs = {task: run for task, run in suite_runs(folder).items() if run in known}
        pictures = [picture(suite, report.tasks) for picture in (speedup_picture, fast_picture)]
        heads, cells = task_cells(report)
        done = {one.id: (one, row[2:]) for one, row in zip(report.tasks, cells, strict=True)}
        rows = []
        for task in suite.tasks:
            record, shown = done.get(task.id, (None, [""] * (len(heads) - 2)))
            said = (verdict(record), record.reason) if record else ("waiting", "")
            rows.append(SuiteRow(task.name, *said, shown, runs.get(task.id, "")))
        return self._render(
            "suite",
            suite.title,
            0,
            _SOON_MS,
            suite=suite,
            standing=counts_words(report.summary),
            against=report.summary.against,
            pictures=pictures if report.summary.against else [],
            heads=heads[2:],
            rows=rows,
            verdicts=sorted({row.verdict for row in rows}),
        )

    def _suite_stamp(self) -> object:
        suite = self._shelf.choice.suite
        if suite is None:
            raise NotThere("there is no such page")
        return [path.stat().st_mtime_ns for path in (suite.path, suite.path / "tasks") if path.exists()]

    # -- one run --

    def _run_page(self, name: str, file: str) -> str:
        folder, run = self._shelf.folder(name), self._shelf.run(name)
        if file == "index.html":
            return self._run(name, folder, run)
        if file == "provenance.html":
            return self._provenance(name, folder, run)
        if file == "lesson.html" and self._served and run.attempts:
            return self._lesson(name, folder, run)
        asked = _ATTEMPT_FILE.fullmatch(file)
        if asked is None:
            raise NotThere("there is no such page")
        kind, number = asked[1], int(asked[2])
        if kind == "attempt":
            return self._attempt(name, folder, run, number)
        attempt = _attempt(run, number)
        if kind == "change":
            return self._change(name, folder, run, attempt)
        return self._counters(name, folder, run, attempt)

    def _run(self, name: str, folder: RunFolder, run: Run) -> str:
        worker = folder.worker
        rows = runs.rows(run)
        begun = _begun(folder, run) if worker or not run.ending else None
        return self._render(
            "run",
            run.id,
            2,
            _SOON_MS if worker else _LATER_MS,
            name=name,
            run=run,
            when=when(run.created),
            words=runs.task_words(run.task, run.best),
            state=state_words(run, worker),
            spent=runs.spend_words(run),
            rows=rows,
            longest=max((row.time_us or 0.0 for row in rows), default=0.0),
            begun=begun,
            plot=svg_plot(run) if rows else "",
            kind="measured" if runs.is_measured(run.attempts) else "modelled",
            times=_times(run.best),
        )

    def _attempt(self, name: str, folder: RunFolder, run: Run, number: int) -> str:
        facts = attempt_facts(folder, run, number)
        if facts.attempt is None and not facts.texts:
            raise NotThere(f"this run has no attempt {number}")
        numbers = [one.number for one in run.attempts]
        return self._render(
            "attempt",
            f"Attempt {number} of {run.id}" if number else f"The specification of {run.id}",
            2,
            _SOON_MS if facts.attempt is None else None,
            name=name,
            run=run,
            facts=facts,
            attempt=facts.attempt,
            words=runs.verdict_words(facts.attempt.verdict) if facts.attempt else "unfinished",
            times=_times(facts.attempt),
            previous=number - 1 if number - 1 in numbers else None,
            following=number + 1 if number + 1 in numbers else None,
        )

    def _provenance(self, name: str, folder: RunFolder, run: Run) -> str:
        best = run.best
        if best is None:
            raise NotThere("no attempt of this run has passed, so it has no kernel")
        try:
            made, authors = provenance_of(folder), line_authors(folder, run, best)
            text = folder.attempt(best.number).text(KERNEL)
        except (StoreError, OSError) as error:
            raise NotThere(str(error)) from None
        source = source_lines(text, authors, best.verdict)
        return self._render(
            "provenance",
            f"Where the kernel of {run.id} comes from",
            2,
            None,
            name=name,
            run=run,
            made=made,
            source=source,
        )

    def _counters(self, name: str, folder: RunFolder, run: Run, attempt: Attempt) -> str:
        """Made once: what a finished attempt does never changes."""
        if not self._counts:
            raise NotThere("there is no such page")
        key = (run.task.hash, attempt.kernel, attempt.tune.choice if attempt.tune else ())
        text = _kernel(folder, attempt)
        found = self._counted.get((name, attempt.number, key))
        if found is None:
            try:
                counted, problem = count_lines(run, attempt, text), ""
            except NotCountable as reason:
                counted, problem = None, str(reason)
            found = self._counted[(name, attempt.number, key)] = self._render(
                "counters",
                f"Counters of attempt {attempt.number} of {run.id}",
                2,
                None,
                name=name,
                run=run,
                attempt=attempt,
                counted=counted,
                problem=problem,
                picture=roofline_picture(counted.roofline) if counted and counted.roofline else "",
                source=source_lines(text, [], attempt.verdict),
            )
        return found

    def _lesson(self, name: str, folder: RunFolder, run: Run) -> str:
        """Made once for as long as the run stays as it is: it takes longer than any other page."""
        from tilewright.frontends.report.lesson import lesson_of  # which pages that are quick need not wait for

        key = ("lesson", name, folder.stamp)
        with self._one_lesson:  # whoever reloads meanwhile waits for the same
            found = self._counted.get(key)
            if found is None:
                try:
                    lesson = lesson_of(folder, run, run.id, lambda _: None)
                except (StoreError, OSError) as error:
                    raise NotThere(str(error)) from None
                found = self._counted[key] = self._render("lesson", lesson.title, 2, None, name=name, lesson=lesson)
        return found

    # -- two kernels --

    def _change(self, name: str, folder: RunFolder, run: Run, attempt: Attempt) -> str:
        """An attempt beside the file that its author was given."""
        right = _side(name, folder, run, attempt)
        parent = next((one for one in run.attempts if one.number == attempt.parent), None)
        left = _side(name, folder, run, parent) if parent else None
        return self._compared("change", left, right, 2, name=name, run=run)

    def _compare(self, left: str, right: str) -> str:
        sides = [self._meant(text) if text else None for text in (left, right)]
        lines, _ = self._shelf.lines(0.0)
        names = [line.name for line in lines if not line.problem]
        return self._compared("compare", sides[0], sides[1], 0, asked=(left, right), names=names)

    def _meant(self, text: str) -> Side:
        """`RUN/3`, or `RUN` for its best."""
        name, _, number = text.partition("/")
        folder, run = self._shelf.folder(name), self._shelf.run(name)
        if number:
            return _side(name, folder, run, _attempt(run, int(number) if number.isdecimal() else -1))
        if run.best is None:
            raise NotThere(f"no attempt of {name} has passed; name one of its attempts, such as {name}/1")
        return _side(name, folder, run, run.best)

    def _compared(self, template: str, left: Side | None, right: Side | None, depth: int, **values: object) -> str:
        stretches, problem = [], ""
        try:
            if right is not None and (left is not None or template == "change"):
                stretches = side_by_side(left.text if left else "", right.text)
        except ValueError as error:
            problem = str(error)
        title = f"{left.title if left else 'nothing'} beside {right.title}" if right else "Compare"
        return self._render(
            template, title, depth, None, left=left, right=right, stretches=stretches, problem=problem, **values
        )

    def _render(self, template: str, title: str, depth: int, poll_ms: int | None, **values: object) -> str:
        return render(
            template,
            title=title,
            up="../" * depth,
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


def run_address(name: str) -> str:
    return f"runs/{quote(os.fsencode(name), safe='')}"


def _name(quoted: str) -> str:
    return unquote(quoted, errors="surrogateescape")


def _times(attempt: Attempt | None) -> tuple[Block, ...]:
    return tuple(measurement_blocks(attempt.measurement)) if attempt and attempt.measurement else ()


def _begun(folder: RunFolder, run: Run) -> int | None:
    """The attempt that is under way."""
    number = max((one.number for one in run.attempts), default=0) + 1
    return number if folder.attempt(number).path.is_dir() else None


def _attempt(run: Run, number: int) -> Attempt:
    found = next((one for one in run.attempts if one.number == number), None)
    if found is None:
        raise NotThere(f"run {run.id} has no such finished attempt; it has {len(run.attempts)}")
    return found


def _kernel(folder: RunFolder, attempt: Attempt) -> str:
    try:
        return folder.attempt(attempt.number).find_text(KERNEL) or ""
    except (StoreError, OSError) as error:
        raise NotThere(str(error)) from None


def _side(name: str, folder: RunFolder, run: Run, attempt: Attempt) -> Side:
    address = f"{run_address(name)}/attempt-{attempt.number}.html"
    return Side(f"{run.id} attempt {attempt.number}", address, _kernel(folder, attempt), run, attempt)

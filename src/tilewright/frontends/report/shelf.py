"""The runs that may be looked at, by name, each read once for as long as it stays as it is.

A page's address names a run by a name that its folder lists, and an attempt by its number, never by a path: what is not
a run's own file cannot be asked for, and a run whose folder holds links is not read.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tilewright.frontends.report.run_report import RunLine, run_line
from tilewright.records import Run
from tilewright.store import NoSuchRun, RunFolder, Store, StoreError, run_folders
from tilewright.store.run_folder import HEADER
from tilewright.suites import SuiteFolder
from tilewright.suites.suite_folder import HEADER as SUITE_HEADER
from tilewright.tasks.errors import BadArgument

_KEPT_RUNS = 16


class NotThere(Exception):
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


class Shelf:
    """What was read of the chosen runs. It may be asked by several threads."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self._lines: dict[str, tuple[object, RunLine]] = {}
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

    def lines(self, seconds: float) -> tuple[list[RunLine], int]:
        """Every run in a line, newest first, and how many are still to be read: reading anew ends after `seconds`."""
        deadline = time.monotonic() + seconds
        newest_first = sorted(self.choice.folders().items(), key=lambda one: _changed(one[1]), reverse=True)
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


def _changed(folder: RunFolder) -> float:
    try:
        return folder.path.stat().st_mtime
    except OSError:
        return 0.0


def _read(folder: RunFolder) -> Run:
    if not folder.is_plain:
        raise NotThere("this run's folder holds symbolic links or the like, which no run does; it is not read")
    try:
        return folder.load()
    except (StoreError, OSError) as error:
        raise NotThere(str(error)) from None


def _line(name: str, folder: RunFolder) -> RunLine:
    try:
        return run_line(name, _read(folder), folder.worker)
    except NotThere as problem:
        return RunLine(name, problem=str(problem))
    except (ArithmeticError, ValueError) as problem:  # such as a measured time of 0
        return RunLine(name, problem=f"its numbers make no sense: {problem}")

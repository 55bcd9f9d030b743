"""A run's folder: the truth about a run. Everything in it is whole, whenever its writer was killed.

run.json       id, when, where, settings, and how it ended
request.json   what the person asked for, where that is not the task itself
task.json      the task; missing while a specification in words waits to be accepted
attempts/      one folder each, see `attempt_folder`
lock           held by the one process that works on the run
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, TextIO

from tilewright.records import (
    Attempt,
    Changed,
    Ending,
    Environment,
    Goal,
    Precision,
    Run,
    Settings,
    Task,
    changed_since_verified,
    digest_of,
    not_as_judged,
)
from tilewright.store import durable
from tilewright.store.attempt_folder import KERNEL, AttemptFolder
from tilewright.store.durable import Damaged, NoSuchRun, NotAccepted, RunBusy

HEADER, REQUEST, TASK, ATTEMPTS, LOCK = "run.json", "request.json", "task.json", "attempts", "lock"
FORMAT = 1
_LOOKED_AT_SECONDS = 0.1  # far longer than `worker` holds the lock in order to look at it


@dataclass(frozen=True)
class Request:
    """What a person asked for, from which the task is made."""

    text: str  # words, a path, or Python source
    shapes: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    gpu: str = "H200"
    precision: Precision | None = None  # None: not given
    goal: Goal = Goal.THROUGHPUT
    allow_library: bool = False
    fixed: tuple[str, ...] = ()
    allow_degenerate: bool = False
    function: str = ""  # where the text is Python source: the function meant, or what to call the module
    module: str = ""  # where the text is Python source of a module: the expression in it that makes it
    backward: bool = False  # its gradients are meant, not the function itself


@dataclass(frozen=True)
class Header:
    """The facts of a run as a whole. The file is replaced as one, so a run is never half reopened."""

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("cut_short", "task")

    id: str
    created: str  # ISO 8601, UTC
    settings: Settings
    environment: Environment
    ending: Ending | None = None
    format: int = FORMAT
    cut_short: tuple[tuple[int, float], ...] = ()  # `Run.cut_short`
    task: str = ""  # SHA-256 of the task's file; older runs do not say


class RunFolder:
    """The folder of one run. Reading needs no lock; who writes holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def id(self) -> str:
        return self.header().id

    def header(self) -> Header:
        header: Header = durable.read_record(self.path / HEADER, Header)
        if header.format != FORMAT:
            raise Damaged(f"{self.path} is of format {header.format}, and this version of tilewright reads {FORMAT}")
        return header

    def load(self) -> Run:
        """The run with its finished attempts, in order."""
        header = self.header()
        if not (self.path / TASK).exists() and (self.path / REQUEST).exists() and not self.attempt(1).path.exists():
            raise NotAccepted(
                f"run {header.id} has no task yet, because its specification was not accepted; "
                f"go on with: tilewright resume {header.id}"
            )
        task: Task = durable.read_record(self.path / TASK, Task)
        return Run(
            id=header.id,
            created=header.created,
            task=task,
            settings=header.settings,
            environment=header.environment,
            attempts=self._attempts(header),
            ending=header.ending,
            specifying=self.attempt(0).replies(),
            cut_short=header.cut_short,
        )

    def find_run(self) -> Run | None:
        """The run; None while it has no task."""
        try:
            return self.load()
        except NotAccepted:
            return None

    def _attempts(self, header: Header) -> tuple[Attempt, ...]:
        another = not_as_judged(self.path / TASK, header.task, "the kernels of this run are not verified any more")
        with contextlib.suppress(FileNotFoundError):
            numbers = sorted(int(path.name) for path in (self.path / ATTEMPTS).iterdir() if path.name.isdecimal())
            found = (self.attempt(number).load() for number in numbers if number > 0)
            return tuple(self._as_it_is_now(one, header.id, another) for one in found if one is not None)
        return ()

    def _as_it_is_now(self, attempt: Attempt, run: str, another_task: str) -> Attempt:
        """An attempt that passed counts as passed only while its file and the task are those that did."""
        if not attempt.passed:
            return attempt
        file = self.attempt(attempt.number).path / KERNEL
        said = another_task or changed_since_verified(file, attempt.kernel, run)
        if not said:
            return attempt
        warnings.warn(said, stacklevel=4)
        return replace(attempt, verdict=Changed(said), measurement=None, tune=None)

    def attempt(self, number: int) -> AttemptFolder:
        """The folder of an attempt, begun or not; number 0 is that of the specification."""
        return AttemptFolder(self.path / ATTEMPTS / f"{number:04d}", number)

    @property
    def stamp(self) -> tuple[object, ...]:
        """A value that changes whenever the run does. Every file but an incoming reply is put in place by a rename,
        which changes its folder."""
        attempts = _marks(self.path / ATTEMPTS)
        last = _marks(self.path / ATTEMPTS / attempts[-1][0]) if attempts else []
        return (*_marks(self.path), *attempts, *last)

    @property
    def is_plain(self) -> bool:
        """Whether it has only files and folders: a link may lead anywhere."""
        modes = (path.lstat().st_mode for path in (self.path, *self.path.rglob("*")))
        return all(stat.S_ISREG(mode) or stat.S_ISDIR(mode) for mode in modes)

    def request(self) -> Request | None:
        """The person's request; None if only the task is known."""
        return durable.find_record(self.path / REQUEST, Request)

    def accept(self, task: Task) -> None:
        """Give a run that began as words its task."""
        durable.write_record(self.path / TASK, task)
        durable.write_record(self.path / HEADER, replace(self.header(), task=digest_of(self.path / TASK)))

    @property
    def untouched(self) -> bool:
        """Whether there is no reply and no attempt yet, so that deleting the run loses no work."""
        files = (path for path in (self.path / ATTEMPTS).rglob("*") if path.is_file())
        return all(path.name.startswith("question-") for path in files)

    def discard(self) -> None:
        """Delete a run in which nothing was done; who calls it holds the lock."""
        assert self.untouched
        durable.remove_folder(self.path)

    def end(self, ending: Ending) -> None:
        durable.write_record(self.path / HEADER, replace(self.header(), ending=ending))

    def cut_short(self, number: int, seconds: float) -> None:
        """Record that the budget ended an attempt after so many seconds. Its files are kept."""
        header = self.header()
        durable.write_record(self.path / HEADER, replace(header, cut_short=(*header.cut_short, (number, seconds))))

    def reopen(self, settings: Settings) -> None:
        """Let a run continue with other settings, such as more budget or a hint. Its ending is removed."""
        durable.write_record(self.path / HEADER, replace(self.header(), settings=settings, ending=None))

    @property
    def worker(self) -> str:
        """The process that works on the run, such as `process 4711`; "" if none."""
        try:
            with open(self.path / LOCK, encoding="utf-8") as stream:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return ""
        except BlockingIOError:
            return _holder(self.path / LOCK)
        return ""

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of the run, which ends with the process, even if that is killed.

        If another process holds it, this raises `RunBusy`; `NoSuchRun` if that process has deleted the run.
        """
        with self._lock_file() as stream:
            deadline = time.monotonic() + _LOOKED_AT_SECONDS
            while True:
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise RunBusy(
                            f"run {self.path.name} is being worked on by {_holder(self.path / LOCK)}; "
                            "wait for it to end or stop it"
                        ) from None
                    time.sleep(_LOOKED_AT_SECONDS / 5)
            if not (self.path / HEADER).exists():
                raise NoSuchRun(f"run {self.path.name} was deleted by the process that worked on it")
            stream.truncate(0)
            stream.write(str(os.getpid()))
            stream.flush()
            durable.sweep_unfinished(self.path)
            yield

    def _lock_file(self) -> TextIO:
        try:
            return open(self.path / LOCK, "a+", encoding="utf-8")
        except FileNotFoundError:
            raise NoSuchRun(f"run {self.path.name} was deleted by the process that worked on it") from None


def _marks(folder: Path) -> list[tuple[str, int, int]]:
    """Name, time of change and size of every entry of a folder."""
    marks = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as found:
        for entry in found:
            with contextlib.suppress(FileNotFoundError):
                known = entry.stat(follow_symlinks=False)
                marks.append((entry.name, known.st_mtime_ns, known.st_size))
    return sorted(marks)


def _holder(lock: Path) -> str:
    number = lock.read_text("utf-8").strip()
    return f"process {number}" if number.isdecimal() else "another process"

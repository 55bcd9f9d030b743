"""A suite on disk: its tasks, the result of each, and the folder that has them. Every file is whole or absent.

suite.json        the tasks, the author, the settings and the device
tasks/ID.json     the result of a task, written when it is done
tasks/ID.run      the run that makes a task's kernel, from its first step on
kernels/NAME.cu   the kernels
gpu.turns         every turn at the GPU of this machine: began, ended, alone or shared, and the process
lock              held by the one process that works on the suite"""

from __future__ import annotations

import contextlib
import fcntl
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from tilewright.records import Measured, Measurement, Settings, changed_beside_record
from tilewright.store import Request, StoreError, durable

FORMAT = 1


class Status(str, Enum):
    """The outcome of a task. The values are on record; `words` may change."""

    MADE = "made"
    NONE_PASSED = "none-passed"
    UNSUPPORTED = "unsupported"
    REFUSED = "refused"
    FAILED = "failed"

    @property
    def words(self) -> str:
        match self:
            case Status.MADE:
                return "kernel made"
            case Status.NONE_PASSED:
                return "no kernel passed"
            case Status.UNSUPPORTED:
                return "the author cannot write it"
            case Status.REFUSED:
                return "no task to be judged by"
            case Status.FAILED:
                return "a fault of the machine, of a service or of tilewright"


@dataclass(frozen=True)
class SuiteTask:
    """One task: `id` is unique in its suite, `name` is what people call it."""

    id: str
    name: str
    request: Request


@dataclass(frozen=True)
class Suite:
    """The tasks, author, settings and device of a suite."""

    title: str  # "KernelBench level 1"
    tasks: tuple[SuiteTask, ...]
    settings: Settings
    gpu: str  # a known GPU's name
    device: str  # as shown to people: "H200 (emulated)"
    emulated: bool
    created: str  # ISO 8601, UTC
    tilewright: str
    level: int | None = None  # of KernelBench
    fresh: bool = False  # kernels of the library are not taken
    format: int = FORMAT


@dataclass(frozen=True)
class TaskRecord:
    """The result of one task."""

    id: str
    name: str
    status: Status
    reason: str = ""  # one sentence, where no kernel was made
    seconds: float = 0.0
    run: str = ""
    attempts: int = 0
    summary: str = ""  # the author's line on the best attempt
    kernel: str = ""  # its file, below the suite's folder
    measurement: Measurement | None = None
    provisional: bool = False  # right wherever it was judged, which is not everywhere
    degenerate: str = ""  # why passing proves nothing
    from_library: bool = False
    tries: int = 1

    @property
    def measured(self) -> Measured | None:
        return self.measurement if isinstance(self.measurement, Measured) else None


HEADER, TASKS, KERNELS, LOCK, GPU_TURNS = "suite.json", "tasks", "kernels", "lock", "gpu.turns"


class OtherSuite(StoreError):
    """The folder belongs to another suite, or to something else."""


class SuiteFolder:
    """The folder of one suite. Every task's record is written by one process; reading needs no lock."""

    def __init__(self, path: Path) -> None:
        self.path = path

    # -- the suite --

    def begin(self, suite: Suite) -> Suite:
        """Record a suite, or continue the one in the folder, which may differ in its tasks and their budget.

        Raises `OtherSuite` if the folder has another.
        """
        before: Suite | None = durable.find_record(self.path / HEADER, Suite)
        if before is None:
            if self.path.is_dir() and any(self.path.iterdir()):
                raise OtherSuite(f"{self.path} is not empty and holds no suite; give another folder with --out")
            durable.make_folder(self.path / TASKS)
            durable.make_folder(self.path / KERNELS)
        else:
            other = _difference(before, suite)
            if other:
                raise OtherSuite(f"{self.path} holds a suite with {other}; give another folder with --out")
            suite = replace(suite, created=before.created)
        durable.write_record(self.path / HEADER, suite)
        return suite

    def suite(self) -> Suite:
        if not (self.path / HEADER).is_file():
            raise OtherSuite(f"{self.path} holds no suite; give the folder of one")
        suite: Suite = durable.read_record(self.path / HEADER, Suite)
        if suite.format != FORMAT:
            raise OtherSuite(f"{self.path} is of format {suite.format}, and this version of tilewright reads {FORMAT}")
        return suite

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of the suite, which ends with the process, even if that is killed."""
        with open(self.path / LOCK, "a", encoding="utf-8") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreError(f"another process works on the suite in {self.path}; wait for it") from None
            durable.sweep_unfinished(self.path)
            yield

    # -- its tasks --

    def record(self, record: TaskRecord) -> None:
        durable.write_record(self._task(record.id, "json"), record)

    def find(self, id: str) -> TaskRecord | None:
        """The record of a task; one whose kernel was changed since has none, and is made again."""
        found: TaskRecord | None = durable.find_record(self._task(id, "json"), TaskRecord)
        said = changed_beside_record(self.path / found.kernel) if found is not None and found.kernel else ""
        if found is None or not said:
            return found
        return replace(found, status=Status.FAILED, reason=said, measurement=None, kernel="")

    def records(self) -> tuple[TaskRecord, ...]:
        """Of the tasks that are done, in the suite's order."""
        found = (self.find(task.id) for task in self.suite().tasks)
        return tuple(one for one in found if one is not None)

    def waiting(self) -> tuple[SuiteTask, ...]:
        """The tasks that are not done, or that failed because of a fault."""
        done = {one.id for one in self.records() if one.status is not Status.FAILED}
        return tuple(task for task in self.suite().tasks if task.id not in done)

    def note_run(self, id: str, run: str) -> None:
        durable.write_text(self._task(id, "run"), run)

    def run_of(self, id: str) -> str:
        """The run that was begun for a task; "" if none."""
        return durable.read_text(self._task(id, "run")) or ""

    def kernel_path(self, task: SuiteTask) -> Path:
        return self.path / KERNELS / f"{_file(task.name)}.cu"

    @property
    def gpu_turns(self) -> Path:
        return self.path / GPU_TURNS

    def _task(self, id: str, suffix: str) -> Path:
        return self.path / TASKS / f"{_file(id)}.{suffix}"


def _file(name: str) -> str:
    return re.sub(r"[^\w.-]", "_", name)


def _difference(before: Suite, now: Suite) -> str:
    """How the suite on record differs from `now`, except in tasks and budget; "" if it does not."""
    same_budget = replace(before.settings, budget=now.settings.budget)
    parts = (
        (before.title, now.title, before.title),
        (before.settings.author, now.settings.author, f"the author {before.settings.author}"),
        (before.gpu, now.gpu, f"the GPU {before.gpu}"),
        (before.emulated, now.emulated, f"the device {before.device}"),
        (same_budget, now.settings, "other baselines, another spool or another wanted fraction of the roofline"),
        (before.fresh, now.fresh, "kernels made anew" if before.fresh else "kernels of the library"),
    )
    return next((words for one, other, words in parts if one != other), "")

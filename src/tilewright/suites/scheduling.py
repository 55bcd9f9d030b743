"""Tasks side by side: so many at a time, each on record as soon as it is done, each lost one tried once more.

Where a task runs is a pool's business: processes of this machine, or a Ray cluster.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from typing import Protocol

from tilewright.suites.suite_folder import SuiteFolder
from tilewright.suites.suite_records import Status, SuiteTask, TaskRecord

TRIES = 2


class Lost(Exception):
    """The process or the machine that worked on a task is gone, and nothing came back; the message says how."""


class Pool(Protocol):
    """Somewhere that tasks run."""

    @property
    def size(self) -> int:
        """How many at a time."""
        ...

    def submit(self, task: SuiteTask) -> Future[TaskRecord]:
        """Begin a task. Its future raises `Lost` where whoever worked on it is gone."""
        ...

    def close(self) -> None:
        """End whatever still runs; what was done of it is kept."""
        ...


class SuiteWatcher(Protocol):
    """Somebody who is told how a suite goes."""

    def begun(self, task: SuiteTask) -> None: ...

    def lost(self, task: SuiteTask, why: str) -> None:
        """It is tried once more."""

    def done(self, record: TaskRecord) -> None: ...


def carry_out(folder: SuiteFolder, pool: Pool, watch: SuiteWatcher) -> None:
    """Bring every task of a suite that is not done to its end. What is done is on record before the next begins."""
    waiting = deque((task, 1) for task in folder.waiting())
    running: dict[Future[TaskRecord], tuple[SuiteTask, int]] = {}
    while waiting or running:
        while waiting and len(running) < pool.size:
            task, tries = waiting.popleft()
            watch.begun(task)
            running[pool.submit(task)] = (task, tries)
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            task, tries = running.pop(future)
            try:
                record = replace(future.result(), tries=tries)
            except Lost as lost:
                if tries < TRIES:
                    watch.lost(task, str(lost))
                    waiting.appendleft((task, tries + 1))
                    continue
                record = TaskRecord(task.id, task.name, Status.FAILED, f"lost {TRIES} times: {lost}", tries=tries)
            folder.record(record)
            watch.done(record)

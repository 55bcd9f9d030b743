"""Tasks side by side: a number of them at a time, each recorded as soon as it is done, each lost one tried once more.

A pool runs the tasks: processes of this machine here, a Ray cluster in `ray_cluster`. The process of a task gets the
suite's folder and the task's id as its last arguments, prints lines about its progress, writes the task's record into
the folder, and ends when its standard input is closed, which happens when its parent ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Protocol

from tilewright.child.family import kill_below
from tilewright.suites.suite_folder import Status, SuiteFolder, SuiteTask, TaskRecord

TRIES = 2


class Lost(Exception):
    """The process or machine of a task is gone without a result; the message says how."""


class Pool(Protocol):
    """Somewhere that tasks run."""

    @property
    def size(self) -> int:
        """How many at a time."""
        ...

    def submit(self, task: SuiteTask) -> Future[TaskRecord]:
        """Begin a task. Its future raises `Lost` if its process or machine is gone."""
        ...

    def close(self) -> None:
        """End what still runs; its run is kept."""
        ...


class SuiteWatcher(Protocol):
    """Receives the progress of a suite."""

    def begun(self, task: SuiteTask) -> None: ...

    def lost(self, task: SuiteTask, why: str) -> None:
        """It is tried once more."""

    def done(self, record: TaskRecord) -> None: ...


def carry_out(folder: SuiteFolder, pool: Pool, watch: SuiteWatcher) -> None:
    """Carry out every task of a suite that is not done. Each is recorded before the next begins."""
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


_ERROR_TAIL = 2000  # characters of its standard error

Doing = Callable[[str, str], None]  # (id of a task, its progress)


class LocalPool:
    """Processes of this machine, `size` at a time; `doing` gets the lines that they print."""

    def __init__(
        self,
        folder: SuiteFolder,
        program: Sequence[str],
        size: int,
        doing: Doing = lambda id, what: None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self._program = tuple(program)
        self._size = size
        self._doing = doing
        self._environment = {**os.environ, **(environment or {})}
        self._threads = ThreadPoolExecutor(max_workers=size, thread_name_prefix="task")
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def size(self) -> int:
        return self._size

    def submit(self, task: SuiteTask) -> Future[TaskRecord]:
        return self._threads.submit(self._run, task)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            running = tuple(self._running)
        for process in running:
            end_process(process)
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _run(self, task: SuiteTask) -> TaskRecord:
        before = self._folder.find(task.id)  # of a failed try
        with self._lock:
            if self._closed:
                raise Lost("the suite was ended")
            process = start_task(self._program, self._folder, task, self._environment)
            self._running.add(process)
        try:
            words = wait_for(process, lambda line: self._doing(task.id, line))
        finally:
            with self._lock:
                self._running.discard(process)
        record = self._folder.find(task.id)
        if record is None or (record == before and process.returncode != 0):
            raise Lost(ending_words(process.returncode, words))
        return record


def start_task(
    program: Sequence[str], folder: SuiteFolder, task: SuiteTask, environment: Mapping[str, str]
) -> subprocess.Popen[str]:
    """The process of one task, in its own session: Ctrl-C reaches only the parent, which then ends it."""
    return subprocess.Popen(
        [*program, str(folder.path), task.id],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=dict(environment),
        start_new_session=True,
    )


def wait_for(process: subprocess.Popen[str], say: Callable[[str], None]) -> str:
    """Wait for a process and pass on the lines that it prints; returns the end of its standard error."""
    assert process.stdout is not None
    assert process.stderr is not None
    errors = process.stderr
    words: list[str] = []

    def listen() -> None:
        for line in errors:
            words.append(line)
            del words[:-40]

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    for line in process.stdout:
        say(line.strip())
    process.wait()
    listener.join(timeout=5.0)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.close()
    return "".join(words)[-_ERROR_TAIL:].strip()


def end_process(process: subprocess.Popen[str]) -> None:
    """End a task's process and all that it started; its run is kept."""
    kill_below(process.pid)
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)


def ending_words(status: int | None, words: str) -> str:
    how = f"ended with status {status}" if status is None or status >= 0 else f"was killed by signal {-status}"
    last = words.splitlines()[-1].strip() if words else ""
    return f"the task's process {how}" + (f"; its last words: {last[:300]}" if last else "")

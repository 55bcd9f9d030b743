"""Tasks in processes of this machine, one process a task: what kills one costs that task alone.

The process is the program it is given with the suite's folder and the task's id behind it. It says what it does in
lines on its standard output, puts the task's record into the folder, and ends with its parent, whose end it notices by
its standard input.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from tilewright.child.family import kill_below
from tilewright.suites.scheduling import Lost
from tilewright.suites.suite_folder import SuiteFolder
from tilewright.suites.suite_records import SuiteTask, TaskRecord

_LAST_WORDS = 2000  # characters of its standard error

Doing = Callable[[str, str], None]  # (id of a task, what is done of it)


class LocalPool:
    """So many processes at a time; `doing` hears what they say."""

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
        before = self._folder.find(task.id)  # a fault's, which is tried again
        with self._lock:
            if self._closed:
                raise Lost("the suite was ended")
            process = start_task(self._program, self._folder, task, self._environment)
            self._running.add(process)
        try:
            words = hear(process, lambda line: self._doing(task.id, line))
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
    """The process of one task, in a session of its own: Ctrl-C reaches the parent alone, which then ends it."""
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


def hear(process: subprocess.Popen[str], say: Callable[[str], None]) -> str:
    """Wait for a process, telling what it says; returns the end of its standard error."""
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
    return "".join(words)[-_LAST_WORDS:].strip()


def end_process(process: subprocess.Popen[str]) -> None:
    """End a task's process and all that it started; its run stays as it stands."""
    kill_below(process.pid)
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)


def ending_words(status: int | None, words: str) -> str:
    how = f"ended with status {status}" if status is None or status >= 0 else f"was killed by signal {-status}"
    last = words.splitlines()[-1].strip() if words else ""
    return f"the task's process {how}" + (f"; its last words: {last[:300]}" if last else "")

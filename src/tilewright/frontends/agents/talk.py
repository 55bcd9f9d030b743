"""What an agent's front end hears while a kernel is made, and how the work is stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tilewright.frontends.talk import Talk
from tilewright.records import Attempt, Run, Situation, Specification
from tilewright.store import RunFolder

Progress = Callable[[str], None]


class Cancelled(RuntimeError):
    """The agent does not wait for the work any more. What was done is on record."""

    def __init__(self) -> None:
        super().__init__("cancelled; what was submitted is on record, and is judged with the next call for this run")


class AgentTalk(Talk):
    """Passes on what goes on, and stops the work at the next word once it is cancelled.

    Whoever calls a tool has accepted the specification, or the tool would not have been carried so far.
    """

    def __init__(self, progress: Progress = lambda _: None, cancelled: threading.Event | None = None) -> None:
        self._progress = progress
        self._cancelled = cancelled or threading.Event()
        self.run: Run | None = None  # as it stood when the work on it began

    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def check(self) -> None:
        """Raises `Cancelled` where nobody waits any more."""
        if self._cancelled.is_set():
            raise Cancelled

    def say(self, text: str, title: str = "") -> None:
        self.working(f"{title}: {text}" if title else text)

    def remind(self, text: str) -> None: ...

    def accept(self, folder: RunFolder, specification: Specification) -> None: ...

    @contextmanager
    def live(self, what: str = "") -> Iterator[None]:
        if what:
            self.working(what)
        yield

    def started(self, run: Run) -> None:
        self.run = run

    def asking(self, situation: Situation) -> None:
        self.check()

    def working(self, what: str) -> None:
        self.check()
        self._progress(what)

    def attempted(self, run: Run, attempt: Attempt) -> None:
        self._progress(f"attempt {attempt.number} is on record")

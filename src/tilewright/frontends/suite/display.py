"""How a suite goes, at a terminal: a line for each task that is done and, below, what is being done now.

Without a terminal there are the lines alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from tilewright.frontends.run_words import seconds_words, speedup_words, time_words
from tilewright.frontends.suite.report_text import verdict
from tilewright.suites import Status, SuiteTask, TaskRecord
from tilewright.suites.statistics import COMPILED, EAGER, speedup

_STYLES = {Status.MADE: "green", Status.UNSUPPORTED: "yellow", Status.REFUSED: "yellow"}


class SuiteDisplay:
    """A `SuiteWatcher` on stderr. `doing` may be called from any thread."""

    def __init__(self, console: Console, tasks: int, done: int) -> None:
        self._console = console
        self._tasks = tasks
        self._done = done
        self._began = time.monotonic()
        self._running: dict[str, tuple[SuiteTask, float]] = {}
        self._doing: dict[str, str] = {}

    @contextmanager
    def live(self) -> Iterator[None]:
        if not self._console.is_terminal:
            yield
            return
        with Live(get_renderable=self._status, console=self._console, refresh_per_second=4, transient=True):
            yield

    def begun(self, task: SuiteTask) -> None:
        self._running[task.id] = (task, time.monotonic())
        self._doing[task.id] = "starting"

    def doing(self, id: str, what: str) -> None:
        self._doing[id] = what

    def lost(self, task: SuiteTask, why: str) -> None:
        self._running.pop(task.id, None)
        self._console.print(Text(f"{task.name}: {why}; it is tried once more", style="yellow"), soft_wrap=True)

    def done(self, record: TaskRecord) -> None:
        self._running.pop(record.id, None)
        self._done += 1
        line = Text(f"{self._done:>3}/{self._tasks}  {record.name:<44.44}  ")
        line.append(f"{verdict(record):<12}", style=_STYLES.get(record.status, "red"))
        if record.status is Status.MADE:
            line.append(f"{time_words(record.measurement):>20}")
            for name in (EAGER, COMPILED):
                ratio = speedup(record, name)
                line.append(f"  {speedup_words(ratio)} {name}" if ratio is not None else "")
            line.append(f"  {seconds_words(record.seconds)}", style="dim")
        else:
            line.append(f"  {record.reason}")
        self._console.print(line, soft_wrap=True)

    def _status(self) -> Group:
        took = time.monotonic() - self._began
        head = f"{self._done} of {self._tasks} tasks done, {len(self._running)} at work, {seconds_words(took)}"
        lines = [Text(head, style="bold")]
        for id, (task, began) in list(self._running.items()):
            what = f"  {task.name:<40.40}  {seconds_words(time.monotonic() - began):>8}  {self._doing.get(id, '')}"
            lines.append(Text(what, style="dim", overflow="ellipsis", no_wrap=True))
        return Group(*lines)

"""Judges that stay at hand between the calls of an agent: the next kernel of a task is judged without a new start.

Importing torch takes seconds, and a referee remembers the truth of its cases. Who comes for a task whose judges are at
work, or for another task, gets judges of his own; the last few that were used wait for a while, then end.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tilewright.frontends.agents.author import Pending
from tilewright.frontends.api.choices import ChosenDevice
from tilewright.frontends.api.judges import Judges, Say, judges
from tilewright.records import Settings, Task

MOST_KEPT = 2  # each has torch in memory
KEPT_SECONDS = 600.0


class _Line:
    """Whom the judges speak to and hear at this moment."""

    def __init__(self) -> None:
        self.say: Say = lambda _: None
        self.stopped: Callable[[], bool] = lambda: False

    def speak(self, text: str) -> None:
        self.say(text)

    def is_stopped(self) -> bool:
        return self.stopped()


@dataclass(frozen=True)
class _Kept:
    judges: Judges
    line: _Line
    processes: ExitStack


class KeptJudges:
    """Judges by task and device; safe for several threads."""

    def __init__(self, seconds: float = KEPT_SECONDS) -> None:
        self._seconds = seconds
        self._waiting: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._closed = False

    @contextmanager
    def judged(
        self, task: Task, settings: Settings, device: ChosenDevice, say: Say, stopped: Callable[[], bool]
    ) -> Iterator[Judges]:
        """Judges for one call. They are kept where it ends well, or where the author is awaited."""
        key = (task.hash, device, settings.baselines, settings.against)
        with self._lock:
            taken = self._waiting.pop(key, None)
        kept = taken or _opened(task, settings, device)
        kept.line.say, kept.line.stopped = say, stopped
        try:
            yield kept.judges
        except Pending:
            self._keep(key, kept)
            raise
        except BaseException:
            kept.processes.close()
            raise
        self._keep(key, kept)

    def _keep(self, key: Hashable, kept: _Kept) -> None:
        kept.line.say, kept.line.stopped = lambda _: None, lambda: False
        with self._lock:
            over = [self._waiting.pop(key)] if key in self._waiting else []
            self._waiting[key] = kept
            keeps = 0 if self._closed else MOST_KEPT
            while len(self._waiting) > keeps:
                over.append(self._waiting.popitem(last=False)[1])
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(self._seconds, self._end_all)
            self._timer.daemon = True
            self._timer.start()
        for one in over:
            one.processes.close()

    def _end_all(self) -> None:
        with self._lock:
            over, self._waiting = list(self._waiting.values()), OrderedDict()
        for one in over:
            one.processes.close()

    def close(self) -> None:
        """End those that wait; those at work end when they come back."""
        with self._lock:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()
        self._end_all()


def _opened(task: Task, settings: Settings, device: ChosenDevice) -> _Kept:
    line, processes = _Line(), ExitStack()
    found = processes.enter_context(judges(task, settings, device, line.speak, line.is_stopped))
    return _Kept(found, line, processes)

"""Several processes of this machine, one GPU: it is used by one of them at a time, so that times stay honest.

A turn is a lock on a file. Whoever builds, emulates, traces or compiles needs none; a job takes one for itself, the
judging of a job's results goes with it, and a contest of times is one turn from its first round to its last.
"""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from tilewright.devices.protocol import Closing, Device
from tilewright.records import Execution, GpuProfile, Job
from tilewright.reference import AnyReference
from tilewright.verify.trial import JUDGE

T = TypeVar("T")


class GpuTurns:
    """Turns at the GPU that a lock file stands for. Within a turn of this process further ones are part of it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._depth = 0

    @contextmanager
    def turn(self) -> Iterator[None]:
        with self._lock:
            if self._depth:
                yield
                return
            with open(self._path, "ab") as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                self._depth = 1
                try:
                    yield
                finally:
                    self._depth = 0


class TurnedDevice(Closing):
    """A GPU whose every job takes a turn."""

    def __init__(self, device: Device, turns: GpuTurns) -> None:
        self._device = device
        self.turns = turns
        self.index: int = getattr(device, "index", 0)

    @property
    def profile(self) -> GpuProfile:
        return self._device.profile

    def execute(self, job: Job) -> Execution:
        with self.turns.turn():
            return self._device.execute(job)

    def close(self) -> None:
        self._device.close()


class TurnedReference:
    """A reference beside that GPU. It works there only where it judges, and then in the turn of the job it judges."""

    def __init__(self, reference: AnyReference, turns: GpuTurns) -> None:
        self._reference = reference
        self._turns = turns

    @property
    def sees_gpu(self) -> bool:
        return self._reference.sees_gpu

    def call(self, handler: str, request: Any, answer: type[T] | Any, seconds: float = 60.0) -> T:
        with self._turns.turn() if handler == JUDGE else nullcontext():
            made: T = self._reference.call(handler, request, answer, seconds)
            return made

    def call_on_run(
        self, device: Device, job: Job, handler: str, request: Any, answer: type[T] | Any, seconds: float = 60.0
    ) -> tuple[Execution, T | None]:
        if not isinstance(device, TurnedDevice):
            return self._reference.call_on_run(device, job, handler, request, answer, seconds)
        with self._turns.turn():
            return self._reference.call_on_run(device, job, handler, request, answer, seconds)

    def close(self) -> None:
        self._reference.close()

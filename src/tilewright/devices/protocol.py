"""The interface of all devices: a self-contained job in, an execution out."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, TypeVar

from tilewright.records import Execution, GpuProfile, Job

Own = TypeVar("Own", bound="Closing")


class Device(Protocol):
    """Runs jobs. A fault of the job is returned as `Faulted`; only a fault of the machine raises."""

    @property
    def profile(self) -> GpuProfile:
        """The GPU to evaluate and build for."""
        ...

    def execute(self, job: Job) -> Execution:
        """Run one job to its end or its limit."""
        ...

    def close(self) -> None:
        """Free processes and memory; the device cannot be used afterwards."""
        ...

    def __enter__(self) -> Device: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Closing:
    """A context manager that calls `close` at the end."""

    def close(self) -> None:
        """Does nothing by default."""

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class NotOpened(RuntimeError):
    """Memory of another process cannot be opened: the process is gone, or the driver lacks IPC."""


class DeviceError(RuntimeError):
    """A fault outside the job: no driver, no worker on the spool, a child that cannot be started."""

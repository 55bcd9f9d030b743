"""The one protocol every device speaks: a self-contained job in, an execution out."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, TypeVar

from tilewright.records import Execution, GpuProfile, Job

Own = TypeVar("Own", bound="Closing")


class Device(Protocol):
    """Something that runs jobs. A job's own fault is a `Faulted` value; only a fault of the machine raises."""

    @property
    def profile(self) -> GpuProfile:
        """The GPU that jobs are evaluated and built for."""
        ...

    def execute(self, job: Job) -> Execution:
        """Run one job to its end or its limit."""
        ...

    def close(self) -> None:
        """Give back processes and memory; the device is not used afterwards."""
        ...

    def __enter__(self) -> Device: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Closing:
    """Something that is given back at the end of a `with`."""

    def close(self) -> None:
        """Nothing to give back, unless it says so."""

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class NotOpened(RuntimeError):
    """Memory that another process lends cannot be looked at: the process is gone, or the driver does not share."""


class DeviceError(RuntimeError):
    """The machine's fault, or ours: no driver, no worker on the spool, a child that cannot be started."""

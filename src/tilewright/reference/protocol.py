"""What parts that ask a reference need of it, wherever it runs, and what can be wrong with one."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from tilewright.devices.protocol import Device
from tilewright.records import Execution, Job

T = TypeVar("T")


class ReferenceProblem(Exception):
    """The reference itself is at fault: it cannot be imported, raises, is too slow or too large, or died.

    The message is one sentence. Faults of this package or of the machine raise something else.
    """


class AnyReference(Protocol):
    """A reference in a child of this process, or one on another machine."""

    @property
    def sees_gpu(self) -> bool:
        """Whether it runs where the GPU is, and so draws what a kernel's inputs are drawn as there."""
        ...

    def call(self, handler: str, request: Any, answer: type[T] | Any, seconds: float = 60.0) -> T:
        """Run `handler`, "tilewright.part.module:name", beside the function and return its record.

        Raises `ReferenceProblem` where the reference is at fault.
        """
        ...

    def call_on_run(
        self, device: Device, job: Job, handler: str, request: Any, answer: type[T] | Any, seconds: float = 60.0
    ) -> tuple[Execution, T | None]:
        """Run a job, then the handler where its results are; None where the job did not get as far.

        The handler takes the results as its third argument: bytes, or, where the job shares them, memory of the GPU.
        """
        ...

    def close(self) -> None: ...

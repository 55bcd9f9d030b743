"""The interface of a reference, local or remote, its errors, and requests about its f32 convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tilewright.devices.protocol import Device
from tilewright.records import Execution, Job, Task

T = TypeVar("T")

LIST = "tilewright.reference.convolutions:list_convolutions"
WARM = "tilewright.verify.wide_convolution:warm"
MEASURE = "tilewright.verify.wide_convolution:measure"  # needs a GPU


@dataclass(frozen=True)
class ConvolutionRequest:
    task: Task


@dataclass(frozen=True)
class ListAnswer:
    # For each f32 convolution, whether PyTorch probably computes it in f32; None where they could not be observed.
    likely_f32: tuple[bool, ...] | None


@dataclass(frozen=True)
class PrecisionAnswer:
    f32: bool | None  # whether PyTorch computes all of them in f32; None where that is unknown, or there are none


class ReferenceProblem(Exception):
    """The reference is at fault: it cannot be imported, raises, is too slow or too large, or crashed.

    The message is one sentence. Faults of this package or of the machine raise something else.
    """


class AnyReference(Protocol):
    """A reference in a child process, or one on another machine."""

    @property
    def sees_gpu(self) -> bool:
        """Whether it runs on the GPU's machine, and so generates inputs as a kernel there gets them."""
        ...

    def call(self, handler: str, request: Any, answer: type[T] | Any, seconds: float = 60.0) -> T:
        """Run the handler "tilewright.part.module:name" with the function and return its answer.

        Raises `ReferenceProblem` where the reference is at fault.
        """
        ...

    def call_on_run(
        self, device: Device, job: Job, handler: str, request: Any, answer: type[T] | Any, seconds: float = 60.0
    ) -> tuple[Execution, T | None]:
        """Run a job, then the handler on its results; None where the job failed.

        The handler takes the results as its third argument: bytes, or shared GPU memory.
        """
        ...

    def close(self) -> None: ...

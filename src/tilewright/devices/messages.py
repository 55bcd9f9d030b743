"""What a runner child says to its parent, and in which envelope. The parent says one thing only: a job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tilewright.devices.envelope import (
    Envelope,
    EnvelopeError,
    Kind,
    attach_execution,
    detach_execution,
    seal,
)
from tilewright.records import Execution, GpuProfile, RecordError, from_json, to_json


class Stage(str, Enum):
    """What the child is about to do."""

    LOADING = "loading the module"
    INPUTS = "making the inputs"
    STEP = "running a step"
    WHOLE = "running all steps together"
    TIMING = "timing"
    RETURNING = "returning the outputs"


@dataclass(frozen=True)
class Ready:
    """The child has its device and waits for jobs."""

    profile: GpuProfile
    versions: tuple[tuple[str, str], ...]  # ("torch", "2.11.0"), ...


@dataclass(frozen=True)
class Unready:
    """The child cannot have its device, and ends."""

    reason: str


@dataclass(frozen=True)
class Progress:
    """Sent before the thing happens, so that a hang or a death has a name."""

    stage: Stage
    step: int | None = None  # from 0
    kernel: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        if self.kernel is None or self.step is None:
            return self.stage.value
        doing = "running" if self.stage is Stage.STEP else self.stage.value
        return f"{doing} step {self.step + 1}: {self.kernel} (line {self.line})"


@dataclass(frozen=True)
class Finished:
    """A job's end. A child that is not `fit` (its CUDA context is lost) ends and must be replaced."""

    execution: Execution
    fit: bool


Message = Ready | Unready | Progress | Finished


def seal_message(message: Message) -> bytes:
    if isinstance(message, Finished):
        record, blobs = detach_execution(message.execution)
        return seal(Kind.MESSAGE, {"is": "Finished", "execution": record, "fit": message.fit}, blobs)
    return seal(Kind.MESSAGE, to_json(message))


def open_message(envelope: Envelope) -> Message:
    """The message in an envelope; raises `EnvelopeError` where it holds something else."""
    record = envelope.record
    if envelope.header.kind is not Kind.MESSAGE or not isinstance(record, dict):
        raise EnvelopeError(f"it holds a {envelope.header.kind.value}, not a message")
    if record.get("is") == "Finished":
        return Finished(attach_execution(record.get("execution"), envelope.blobs), record.get("fit") is True)
    try:
        message: Ready | Unready | Progress = from_json(Ready | Unready | Progress, record)
    except RecordError as error:
        raise EnvelopeError(f"it is not a message of this version: {error}") from None
    return message

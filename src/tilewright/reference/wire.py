"""What travels between a `Reference` and its child. Requests and answers carry a record of the handler's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.child.envelope import Envelope, EnvelopeError, carried_in, message_in
from tilewright.records import Completed, Execution, ReturnedTensor, SharedTensor
from tilewright.reference.protocol import ReferenceProblem


@dataclass(frozen=True)
class ReferenceSetup:
    """The first thing a child is told."""

    source: str
    function: str
    folder: str  # of the file the source came from, where its neighbours can be imported; "" where it has none
    threads: int
    address_bytes: int | None  # beyond what torch itself takes; None: not bounded
    file_bytes: int
    environment: tuple[tuple[str, str], ...] = ()  # further variables of the process
    gpu: bool = False  # it will be asked to work on the GPU


@dataclass(frozen=True)
class HandlerRequest:
    handler: str  # "tilewright.part.module:function"
    results: tuple[ReturnedTensor | SharedTensor, ...] = ()  # of the job that the handler is asked about


def results_of(execution: Execution) -> tuple[ReturnedTensor | SharedTensor, ...]:
    """What a job made, for a handler to look at; nothing where it faulted, or where there are findings to report."""
    if isinstance(execution, Completed) and not execution.findings:
        return (*execution.outputs, *execution.shared)
    return ()


# -- what the child says --


@dataclass(frozen=True)
class TorchImported:
    """The reference's own code comes next."""


@dataclass(frozen=True)
class ReferenceLoaded:
    """The function was found; requests may come."""


@dataclass(frozen=True)
class Answered:
    """The handler's record comes with it."""


@dataclass(frozen=True)
class ReferenceFault:
    """The reference is at fault."""

    message: str


@dataclass(frozen=True)
class HandlerFault:
    """Code of this package failed in the child."""

    traceback: str


ReferenceReply = TorchImported | ReferenceLoaded | Answered | ReferenceFault | HandlerFault


def reply_in(envelope: Envelope) -> ReferenceReply:
    reply: ReferenceReply = message_in(envelope, ReferenceReply)
    return reply


def answer_in(envelope: Envelope, handler: str, wanted: Any) -> Any:
    """The record that a reply to `handler` carries.

    Raises `ReferenceProblem` where the reference is at fault, and `RuntimeError` where the handler is.
    """
    try:
        reply = reply_in(envelope)
        if isinstance(reply, Answered):
            return carried_in(envelope, wanted)
    except EnvelopeError as error:
        raise ReferenceProblem(f"the reference's process gave no answer that can be read: {error}") from None
    if isinstance(reply, ReferenceFault):
        raise ReferenceProblem(reply.message)
    detail = reply.traceback if isinstance(reply, HandlerFault) else f"it answered with {type(reply).__name__}"
    raise RuntimeError(f"{handler} failed in the reference's process: {detail}")

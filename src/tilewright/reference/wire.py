"""What travels between a `Reference` and its child: any record, its byte strings beside the JSON and not inside it."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass
from typing import Any

from tilewright.devices.envelope import Envelope, EnvelopeError, Kind, seal
from tilewright.records import RecordError, from_json, to_json
from tilewright.reference.problems import ReferenceProblem

_INDEX_BYTES = 8


@dataclass(frozen=True)
class Setup:
    """The first thing a child is told."""

    source: str
    function: str
    folder: str  # of the file the source came from, where its neighbours can be imported; "" where it has none
    threads: int
    address_bytes: int | None  # beyond what torch itself takes; None: not bounded
    file_bytes: int


@dataclass(frozen=True)
class Request:
    handler: str  # "tilewright.part.module:function"


# -- what the child says --


@dataclass(frozen=True)
class Started:
    """torch is imported; the reference's own code comes next."""


@dataclass(frozen=True)
class Loaded:
    """The function was found; requests may come."""


@dataclass(frozen=True)
class Answered:
    """The handler's record comes with it."""


@dataclass(frozen=True)
class Problem:
    """The reference is at fault."""

    message: str


@dataclass(frozen=True)
class Fault:
    """Code of this package failed in the child."""

    traceback: str


Reply = Started | Loaded | Answered | Problem | Fault
Message = Setup | Request | Reply


def seal_message(message: Message, carried: object = None) -> bytes:
    """A message, and a record that it carries."""
    blobs: list[bytes] = []
    bare = _detach(carried, blobs)
    return seal(Kind.MESSAGE, {"message": to_json(message), "carried": to_json(bare)}, tuple(blobs))


def open_message(envelope: Envelope) -> Message:
    """The message in an envelope; raises `EnvelopeError` where it holds something else."""
    try:
        message: Message = from_json(Message, envelope.record["message"])
    except (RecordError, KeyError, TypeError) as error:
        raise EnvelopeError(f"it is not a message of a reference: {error}") from None
    return message


def carried_record(envelope: Envelope, kind: Any) -> Any:
    """The record that came with a message; raises `EnvelopeError` where it is not of that kind."""
    try:
        return _attach(from_json(kind, envelope.record["carried"]), envelope.blobs)
    except (RecordError, KeyError, TypeError, IndexError) as error:
        raise EnvelopeError(f"what came is not {getattr(kind, '__name__', kind)}: {error}") from None


def answer_in(envelope: Envelope, handler: str, kind: Any) -> Any:
    """The record that a reply to `handler` carries.

    Raises `ReferenceProblem` where the reference is at fault, and `RuntimeError` where the handler is.
    """
    try:
        reply = open_message(envelope)
        if isinstance(reply, Answered):
            return carried_record(envelope, kind)
    except EnvelopeError as error:
        raise ReferenceProblem(f"the reference's process gave no answer that can be read: {error}") from None
    if isinstance(reply, Problem):
        raise ReferenceProblem(reply.message)
    detail = reply.traceback if isinstance(reply, Fault) else f"it answered with {type(reply).__name__}"
    raise RuntimeError(f"{handler} failed in the reference's process: {detail}")


def _detach(value: Any, blobs: list[bytes]) -> Any:
    """The value with every byte string replaced by its position in `blobs`."""
    if isinstance(value, bytes):
        blobs.append(value)
        return (len(blobs) - 1).to_bytes(_INDEX_BYTES, "little")
    if isinstance(value, (tuple, list)):
        return tuple(_detach(item, blobs) for item in value)
    if isinstance(value, dict):
        return {key: _detach(item, blobs) for key, item in value.items()}
    return _with_fields(value, lambda item: _detach(item, blobs))


def _attach(value: Any, blobs: tuple[bytes, ...]) -> Any:
    """The inverse of `_detach`."""
    if isinstance(value, bytes):
        return blobs[int.from_bytes(value, "little")]
    if isinstance(value, tuple):
        return tuple(_attach(item, blobs) for item in value)
    if isinstance(value, dict):
        return {key: _attach(item, blobs) for key, item in value.items()}
    return _with_fields(value, lambda item: _attach(item, blobs))


def _with_fields(value: Any, change: Any) -> Any:
    """A record with its fields changed; itself where nothing changed, so that most records are not copied."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    changed = {}
    for one in dataclasses.fields(value):
        old = getattr(value, one.name)
        new = change(old)
        if new is not old and new != old:
            changed[one.name] = new
    if not changed:
        return value
    # Not `replace`: a record's own rules hold for its content, not for the marks that stand for it meanwhile.
    copied = copy.copy(value)
    for name, new in changed.items():
        object.__setattr__(copied, name, new)
    return copied

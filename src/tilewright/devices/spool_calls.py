"""Calls on a spool: a function of somebody's Python source, to be asked something where the GPU is.

What is asked and what is answered are bytes that only the two ends understand; here they are carried.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

from tilewright.devices.envelope import Envelope, EnvelopeError, Kind, expect, seal
from tilewright.records import RecordError, from_json, to_json


@dataclass(frozen=True)
class Call:
    """One question to `function` of `source`; `handler` names who asks it there, as "tilewright.part.module:name"."""

    id: str
    arch: str
    source: str
    function: str
    handler: str
    seconds: float
    request: bytes

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"{self.seconds} seconds are no limit; give a positive number")

    @property
    def words(self) -> str:
        """What it is, for a line that a person reads."""
        return f"reference call: {self.handler.rpartition(':')[2]}"


@dataclass(frozen=True)
class Replied:
    """A call's end. What went wrong inside the function is part of the content."""

    job: str  # the call's id
    device: str
    content: bytes


class Answerer(Protocol):
    """Whoever answers calls for a worker, one at a time."""

    def answer(self, call: Call) -> bytes:
        """The reply's content. Raises `supervisor.Interrupted` where the worker has to stop."""
        ...

    def close(self) -> None: ...


def seal_call(call: Call, gpu: str = "") -> bytes:
    return seal(Kind.CALL, to_json(replace(call, request=b"")), (call.request,), gpu)


def open_call(envelope: Envelope) -> Call:
    """The call in an envelope; raises `EnvelopeError` where it holds something else."""
    expect(envelope, Kind.CALL)
    try:
        bare: Call = from_json(Call, envelope.record)
    except RecordError as error:
        raise EnvelopeError(f"it is not a call of this version: {error}") from None
    if len(envelope.blobs) != 1:
        raise EnvelopeError(f"it holds {len(envelope.blobs)} byte strings where a call has one")
    return replace(bare, request=envelope.blobs[0])

"""One container for everything that crosses a process border: job and result files, and messages on a pipe.

An envelope is a line of ASCII, a record in JSON, and the record's large byte strings one after another:

    tilewright 1 job 5120 16384 <sha256 of all that follows>\\n{...}<bytes>

The line says the format's version, what is inside, and how long both parts are, so a reader knows at once whether it
can read the file, and a truncated or damaged one is never taken for whole. It knows no directory and no process.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from tilewright.records import Completed, Data, Execution, Job, RecordError, ReturnedTensor, from_json, to_json

VERSION = 1
_WORD = b"tilewright"
_LONGEST_LINE = 200
_LARGEST_BODY = 1 << 37  # no device here returns more; a larger number is damage


class Kind(str, Enum):
    JOB = "job"
    CALL = "call"
    RESULT = "result"
    MESSAGE = "message"


_KINDS = frozenset(one.value for one in Kind)


class EnvelopeError(ValueError):
    """Bytes that are not a whole envelope this version can read; the message says why."""


@dataclass(frozen=True)
class Header:
    kind: Kind
    record_bytes: int
    blob_bytes: int
    digest: str  # of record and blobs: the identity of the content

    @property
    def body_bytes(self) -> int:
        return self.record_bytes + self.blob_bytes


@dataclass(frozen=True)
class Envelope:
    header: Header
    record: Any  # plain JSON values
    blobs: tuple[bytes, ...]


def seal(kind: Kind, record: Any, blobs: tuple[bytes, ...] = (), gpu: str = "") -> bytes:
    """The bytes of an envelope. `gpu` names the only GPU, by its driver's name, that what is inside is meant for."""
    outer = {"record": record, "blobs": [len(b) for b in blobs]} | ({"gpu": gpu} if gpu else {})
    text = json.dumps(outer, separators=(",", ":")).encode("ascii")
    body = b"".join((text, *blobs))
    digest = hashlib.sha256(body).hexdigest()
    line = f"tilewright {VERSION} {kind.value} {len(text)} {len(body) - len(text)} {digest}\n"
    return line.encode("ascii") + body


def read_header(line: bytes) -> Header:
    """The first line, without its line end."""
    words = line.split(b" ")
    if words[0] != _WORD or len(words) < 2 or not words[1].isdigit():
        raise EnvelopeError(f"it starts with {line[:40]!r}, not with 'tilewright <version>'")
    if int(words[1]) != VERSION:
        raise EnvelopeError(
            f"it is in format version {int(words[1])} and this side reads version {VERSION}: "
            "use the same tilewright release on both sides"
        )
    if len(words) > 2 and words[2].isalpha() and words[2].decode("ascii") not in _KINDS:
        raise EnvelopeError(
            f"it holds a {words[2].decode('ascii')!r}, which this release does not know: "
            "use the same tilewright release on both sides"
        )
    try:
        kind, record_bytes, blob_bytes, digest = words[2:]
        header = Header(Kind(kind.decode("ascii")), int(record_bytes), int(blob_bytes), digest.decode("ascii"))
    except ValueError:
        raise EnvelopeError(f"its first line is damaged: {line!r}") from None
    if header.record_bytes < 0 or header.blob_bytes < 0 or header.body_bytes > _LARGEST_BODY or len(digest) != 64:
        raise EnvelopeError(f"its first line is damaged: {line!r}")
    return header


def header_of(content: bytes) -> Header:
    """The header at the start of `content`, which need not hold the whole envelope."""
    end = content.find(b"\n", 0, _LONGEST_LINE)
    if end < 0:
        raise EnvelopeError("it is empty" if not content else f"it starts with {content[:40]!r} and has no first line")
    return read_header(content[:end])


def unseal(content: bytes) -> Envelope:
    """A whole envelope; raises `EnvelopeError` when anything is missing, damaged or left over."""
    header = header_of(content)
    start = content.index(b"\n") + 1
    if len(content) - start != header.body_bytes:
        raise EnvelopeError(f"it should hold {header.body_bytes} bytes and holds {len(content) - start}")
    return _open(header, memoryview(content)[start:])


def _open(header: Header, body: memoryview) -> Envelope:
    if hashlib.sha256(body).hexdigest() != header.digest:
        raise EnvelopeError("its content does not match its checksum")
    try:
        outer = json.loads(bytes(body[: header.record_bytes]))
        record, lengths = outer["record"], outer["blobs"]
        blobs = []
        at = header.record_bytes
        for length in lengths:
            if length < 0:
                raise ValueError(f"a byte string of {length} bytes")
            blobs.append(bytes(body[at : at + length]))
            at += length
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise EnvelopeError(f"its record cannot be read: {error}") from None
    if at != header.body_bytes:
        raise EnvelopeError(f"its byte strings take {at} bytes of {header.body_bytes}")
    return Envelope(header, record, tuple(blobs))


class Stream:
    """Envelopes out of a pipe: `feed` it whatever arrived, take the whole ones."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._header: Header | None = None

    def feed(self, received: bytes) -> Iterator[Envelope]:
        self._pending += received
        while True:
            if self._header is None:
                end = self._pending.find(b"\n", 0, _LONGEST_LINE)
                if end < 0:
                    self._refuse_garbage()
                    return
                self._header = read_header(bytes(self._pending[:end]))
                del self._pending[: end + 1]
            size = self._header.body_bytes
            if len(self._pending) < size:
                return
            with memoryview(self._pending) as view, view[:size] as body:
                envelope = _open(self._header, body)
            del self._pending[:size]
            self._header = None
            yield envelope

    def _refuse_garbage(self) -> None:
        start = bytes(self._pending[: len(_WORD)])
        if len(self._pending) >= _LONGEST_LINE or not _WORD.startswith(start):
            raise EnvelopeError(f"it starts with {bytes(self._pending[:40])!r}, not with 'tilewright <version>'")


# -- the two records that carry large byte strings --


def seal_job(job: Job, gpu: str = "") -> bytes:
    record, blobs = _detach_job(job)
    return seal(Kind.JOB, to_json(record), blobs, gpu)


def open_job(envelope: Envelope) -> Job:
    """The job in an envelope; raises `EnvelopeError` where it holds something else."""
    expect(envelope, Kind.JOB)
    try:
        bare: Job = from_json(Job, envelope.record)
        blobs = iter(envelope.blobs)
        cubin = next(blobs)
        inputs = tuple(
            replace(one, content=Data(next(blobs))) if isinstance(one.content, Data) else one for one in bare.inputs
        )
    except (RecordError, StopIteration) as error:
        raise EnvelopeError(f"it is not a job of this version: {error or 'byte strings are missing'}") from None
    return replace(bare, cubin=cubin, inputs=inputs)


def _detach_job(job: Job) -> tuple[Job, tuple[bytes, ...]]:
    data = tuple(one.content.content for one in job.inputs if isinstance(one.content, Data))
    inputs = tuple(replace(one, content=Data(b"")) if isinstance(one.content, Data) else one for one in job.inputs)
    return replace(job, cubin=b"", inputs=inputs), (job.cubin, *data)


def detach_execution(execution: Execution) -> tuple[Any, tuple[bytes, ...]]:
    """An execution's JSON without the outputs' content, and that content."""
    if not isinstance(execution, Completed):
        return to_json(execution), ()
    outputs = tuple(replace(one, content=b"") for one in execution.outputs)
    return to_json(replace(execution, outputs=outputs)), tuple(one.content for one in execution.outputs)


def attach_execution(record: Any, blobs: tuple[bytes, ...]) -> Execution:
    """The inverse of `detach_execution`."""
    try:
        execution: Execution = from_json(Execution, record)
    except RecordError as error:
        raise EnvelopeError(f"it is not an execution of this version: {error}") from None
    if not isinstance(execution, Completed):
        return execution
    if len(blobs) != len(execution.outputs):
        raise EnvelopeError(f"it names {len(execution.outputs)} outputs and holds {len(blobs)}")
    outputs: tuple[ReturnedTensor, ...] = tuple(
        replace(one, content=blob) for one, blob in zip(execution.outputs, blobs, strict=True)
    )
    return replace(execution, outputs=outputs)


def expect(envelope: Envelope, kind: Kind) -> None:
    if envelope.header.kind is not kind:
        raise EnvelopeError(f"it holds a {envelope.header.kind.value}, not a {kind.value}")

"""One container for everything that crosses a process border: job and result files, and messages on a pipe.

An envelope is a line of ASCII, a record in JSON, and the record's byte strings one after another:

    tilewright 2 job 5120 16384 <sha256 of all that follows>\\n{...}<bytes>

The line says the format's version, what is inside, and how long both parts are, so a reader knows at once whether it
can read the file, and a truncated or damaged one is never taken for whole. In the JSON a byte string is the number of
the one that stands for it behind. It knows no directory and no process.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

from tilewright.records import RecordError, from_json, to_json

VERSION = 2
_WORD = b"tilewright"
_LONGEST_LINE = 200
LARGEST_BODY = 1 << 37  # no device here returns more; a larger number is damage
_INDEX_BYTES = 8


class EnvelopeKind(str, Enum):
    JOB = "job"
    CALL = "call"
    RESULT = "result"
    MESSAGE = "message"


_KINDS = frozenset(one.value for one in EnvelopeKind)


class EnvelopeError(ValueError):
    """Bytes that are not a whole envelope this version can read; the message says why."""


class EnvelopeTooLarge(EnvelopeError):
    """More than its reader will take."""


@dataclass(frozen=True)
class EnvelopeHeader:
    kind: EnvelopeKind
    record_bytes: int
    blob_bytes: int
    digest: str  # of record and blobs: the identity of the content

    @property
    def body_bytes(self) -> int:
        return self.record_bytes + self.blob_bytes


@dataclass(frozen=True)
class Envelope:
    header: EnvelopeHeader
    outer: dict[str, Any]  # plain JSON values: the record, what it carries, the lengths of the byte strings
    blobs: tuple[bytes, ...]

    @property
    def record(self) -> Any:
        return self.outer["record"]

    def sealed(self) -> bytes:
        """It as bytes again, for the next who is to have it."""
        return _assembled(self.header.kind, self.outer, self.blobs)

    def sealed_with(self, record: object) -> bytes:
        """It as bytes, with another record in place of its own; what that carried stays."""
        blobs = list(self.blobs)
        outer = self.outer | {"record": to_json(_detach(record, blobs))}
        return _assembled(self.header.kind, outer | {"blobs": [len(one) for one in blobs]}, blobs)


def seal(kind: EnvelopeKind, record: object, *, carried: object = None, gpu: str = "") -> bytes:
    """The bytes of an envelope with a record in it, and a second one that the first carries.

    `gpu` names the only GPU, by its driver's name, that what is inside is meant for.
    """
    blobs: list[bytes] = []
    outer: dict[str, Any] = {"record": to_json(_detach(record, blobs))}
    if carried is not None:
        outer["carried"] = to_json(_detach(carried, blobs))
    if gpu:
        outer["gpu"] = gpu
    outer["blobs"] = [len(one) for one in blobs]
    return _assembled(kind, outer, blobs)


def _assembled(kind: EnvelopeKind, outer: dict[str, Any], blobs: Iterable[bytes]) -> bytes:
    text = json.dumps(outer, separators=(",", ":")).encode("ascii")
    body = b"".join((text, *blobs))
    digest = hashlib.sha256(body).hexdigest()
    line = f"tilewright {VERSION} {kind.value} {len(text)} {len(body) - len(text)} {digest}\n"
    return line.encode("ascii") + body


def message(record: object, carried: object = None) -> bytes:
    """An envelope for a pipe."""
    return seal(EnvelopeKind.MESSAGE, record, carried=carried)


def record_in(envelope: Envelope, kind: EnvelopeKind, wanted: Any) -> Any:
    """The record in an envelope; raises `EnvelopeError` where it holds another kind of thing, or another record."""
    if envelope.header.kind is not kind:
        raise EnvelopeError(f"it holds a {envelope.header.kind.value}, not a {kind.value}")
    return _read(envelope.record, envelope.blobs, wanted, f"it is not a {kind.value} of this version")


def message_in(envelope: Envelope, wanted: Any) -> Any:
    return record_in(envelope, EnvelopeKind.MESSAGE, wanted)


def carried_in(envelope: Envelope, wanted: Any) -> Any:
    """The record that came with another; raises `EnvelopeError` where it is not of that type."""
    name = getattr(wanted, "__name__", wanted)
    return _read(envelope.outer.get("carried"), envelope.blobs, wanted, f"what came is not {name}")


def _read(data: Any, blobs: tuple[bytes, ...], wanted: Any, problem: str) -> Any:
    try:
        return _attach(from_json(wanted, data), blobs)
    except (RecordError, TypeError, IndexError) as error:
        raise EnvelopeError(f"{problem}: {error}") from None


# -- from bytes --


def read_header(line: bytes) -> EnvelopeHeader:
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
        name = EnvelopeKind(kind.decode("ascii"))
        header = EnvelopeHeader(name, int(record_bytes), int(blob_bytes), digest.decode("ascii"))
    except ValueError:
        raise EnvelopeError(f"its first line is damaged: {line!r}") from None
    if header.record_bytes < 0 or header.blob_bytes < 0 or header.body_bytes > LARGEST_BODY or len(digest) != 64:
        raise EnvelopeError(f"its first line is damaged: {line!r}")
    return header


def header_of(content: bytes) -> EnvelopeHeader:
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


def _open(header: EnvelopeHeader, body: memoryview) -> Envelope:
    if hashlib.sha256(body).hexdigest() != header.digest:
        raise EnvelopeError("its content does not match its checksum")
    try:
        outer = json.loads(bytes(body[: header.record_bytes]))
        if not isinstance(outer, dict) or "record" not in outer:
            raise ValueError("it has no record")
        blobs = []
        at = header.record_bytes
        for length in outer["blobs"]:
            if length < 0:
                raise ValueError(f"a byte string of {length} bytes")
            blobs.append(bytes(body[at : at + length]))
            at += length
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise EnvelopeError(f"its record cannot be read: {error}") from None
    if at != header.body_bytes:
        raise EnvelopeError(f"its byte strings take {at} bytes of {header.body_bytes}")
    return Envelope(header, outer, tuple(blobs))


class EnvelopeStream:
    """Envelopes out of a pipe: `feed` it whatever arrived, take the whole ones."""

    def __init__(self, most_bytes: int = LARGEST_BODY) -> None:
        self._most_bytes = most_bytes
        self._pending = bytearray()
        self._header: EnvelopeHeader | None = None

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
            if size > self._most_bytes:
                raise EnvelopeTooLarge(f"it has {size >> 20} MiB and may have {self._most_bytes >> 20} MiB")
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


# -- byte strings beside the JSON and not inside it --


def _detach(value: Any, blobs: list[bytes]) -> Any:
    """The value with every byte string replaced by its position in `blobs`."""

    def number(content: bytes) -> bytes:
        blobs.append(content)
        return (len(blobs) - 1).to_bytes(_INDEX_BYTES, "little")

    return _with_bytes(value, number)


def _attach(value: Any, blobs: tuple[bytes, ...]) -> Any:
    """The inverse of `_detach`."""
    return _with_bytes(value, lambda mark: blobs[int.from_bytes(mark, "little")])


def _with_bytes(value: Any, change: Callable[[bytes], bytes]) -> Any:
    """A value with its byte strings changed, wherever they are in it."""
    if isinstance(value, bytes):
        return change(value)
    if isinstance(value, (tuple, list)):
        return tuple(_with_bytes(item, change) for item in value)
    if isinstance(value, dict):
        return {key: _with_bytes(item, change) for key, item in value.items()}
    kind: Any = type(value)
    names = _fields_with_bytes(kind)
    if not names:
        return value
    # Not `replace`: a record's own rules hold for its content, not for the marks that stand for it meanwhile.
    changed = copy.copy(value)
    for name in names:
        object.__setattr__(changed, name, _with_bytes(getattr(value, name), change))
    return changed


@cache
def _fields_with_bytes(kind: Any) -> tuple[str, ...]:
    """The fields of a record that can hold byte strings. Found once: an execution has thousands of records without."""
    if not dataclasses.is_dataclass(kind):
        return ()
    hints = typing.get_type_hints(kind)
    return tuple(one.name for one in dataclasses.fields(kind) if _can_hold_bytes(hints[one.name], frozenset((kind,))))


def _can_hold_bytes(hint: Any, within: frozenset[Any]) -> bool:
    if hint is bytes or hint is Any:
        return True
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        inner = [hints[one.name] for one in dataclasses.fields(hint)] if hint not in within else []
        return any(_can_hold_bytes(one, within | {hint}) for one in inner)
    return any(_can_hold_bytes(one, within) for one in typing.get_args(hint))

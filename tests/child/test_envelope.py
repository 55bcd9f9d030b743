"""The container of job files, result files and messages."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import pytest
from tests.devices.scripted_jobs import PROFILE, scripted_job

from tilewright.child.envelope import (
    EnvelopeError,
    EnvelopeKind,
    EnvelopeStream,
    EnvelopeTooLarge,
    carried_in,
    header_of,
    message,
    message_in,
    record_in,
    seal,
    unseal,
)
from tilewright.devices.runner import JobFinished, Progress, RunnerMessage, RunnerReady, RunnerUnready, RunStage
from tilewright.records import Completed, DType, Faulted, FaultKind, Job, ReturnedTensor, TensorSpec, to_json

JOB = scripted_job("job-1", "add", "sleep 1", numbers=(1.5, -2.0))
SPEC = TensorSpec.contiguous(DType.U8, (4,))
COMPLETED = Completed("job-1", "H200", (ReturnedTensor("y", SPEC, bytes((0, 255, 10, 13))),), (1.25, 2.5))
FAULTED = Faulted("job-1", "H200", FaultKind.TIME, "too long", "k<4>", 9)


def test_a_job_comes_back_as_it_went() -> None:
    assert record_in(unseal(seal(EnvelopeKind.JOB, JOB)), EnvelopeKind.JOB, Job) == JOB


def test_the_digest_identifies_the_content() -> None:
    jobs = [JOB, *(scripted_job("job-1", "add", "sleep 1", numbers=(1.5, number)) for number in (-2, -2.1))]
    first, again, other = (header_of(seal(EnvelopeKind.JOB, job)) for job in jobs)
    assert first == again
    assert first.digest != other.digest


MESSAGES: tuple[RunnerMessage, ...] = (
    RunnerReady(PROFILE, (("torch", "2.11"),)),
    RunnerUnready("no driver"),
    Progress(RunStage.LOADING),
    Progress(RunStage.STEP, 2, "k<4>", 9),
    JobFinished(COMPLETED, True),
    JobFinished(FAULTED, False),
)


@pytest.mark.parametrize("piece", [1, 7, 100000])
def test_messages_come_through_a_pipe_in_any_pieces(piece: int) -> None:
    sent = b"".join(message(one) for one in MESSAGES)
    stream = EnvelopeStream()
    received = []
    for at in range(0, len(sent), piece):
        received += [message_in(envelope, RunnerMessage) for envelope in stream.feed(sent[at : at + piece])]
    assert tuple(received) == MESSAGES


def test_every_truncation_is_noticed() -> None:
    whole = seal(EnvelopeKind.JOB, JOB)
    for length in range(len(whole)):
        with pytest.raises(EnvelopeError):
            unseal(whole[:length])
    with pytest.raises(EnvelopeError, match="should hold"):
        unseal(whole + b"x")


def test_every_changed_byte_is_noticed() -> None:
    whole = seal(EnvelopeKind.JOB, {"a": 1}, carried=b"blob")
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1
        with pytest.raises(EnvelopeError):
            unseal(bytes(changed))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"\x7fELF" + bytes(400), "has no first line"),
        (b"hello world\n", "not with 'tilewright <version>'"),
        (b"tilewright 3 job 5 5 future\n", "format version 3 and this side reads version 2: use the same tilewright"),
        (b"tilewright 2 letter 5 5 " + b"0" * 64 + b"\n", "a 'letter', which this release does not know: use the same"),
        (b"tilewright 2 job -5 5 " + b"0" * 64 + b"\n", "first line is damaged"),
    ],
)
def test_foreign_content_is_refused_with_the_reason(content: bytes, message: str) -> None:
    with pytest.raises(EnvelopeError, match=message):
        unseal(content)


def test_garbage_on_a_pipe_is_refused_at_once() -> None:
    with pytest.raises(EnvelopeError, match="Traceback"):
        list(EnvelopeStream().feed(b"Traceback (most"))
    assert list(EnvelopeStream().feed(b"tilewr")) == []


def test_what_is_larger_than_its_reader_takes_is_refused_at_its_header() -> None:
    sent = message(bytes(100))
    with pytest.raises(EnvelopeTooLarge):
        list(EnvelopeStream(most_bytes=50).feed(sent[:-90]))
    assert len(list(EnvelopeStream(most_bytes=200).feed(sent))) == 1


def test_a_record_that_is_no_job_is_refused() -> None:
    def opened(content: bytes) -> None:
        record_in(unseal(content), EnvelopeKind.JOB, Job)

    with pytest.raises(EnvelopeError, match="not a job of this version: Job: missing key"):
        opened(seal(EnvelopeKind.JOB, {"is": "Job"}))
    with pytest.raises(EnvelopeError, match="holds a message, not a job"):
        opened(message(RunnerUnready("x")))
    record = to_json(replace(JOB, cubin=b"", inputs=())) | {"limits": {"seconds": -1.0, "device_bytes": 1}}
    with pytest.raises(EnvelopeError, match="are no limits"):
        opened(seal(EnvelopeKind.JOB, record))
    with pytest.raises(EnvelopeError, match="not a job of this version"):
        opened(seal(EnvelopeKind.JOB, to_json(JOB)))  # its byte strings are not where they should be


@pytest.mark.parametrize("text", [b'{"record":1}', b'{"record":1,"blobs":[-5,5]}', b"[" * 100_000])
def test_a_body_that_is_no_record_is_refused(text: bytes) -> None:
    line = f"tilewright 2 job {len(text)} 0 {hashlib.sha256(text).hexdigest()}\n".encode()
    with pytest.raises(EnvelopeError, match="record cannot be read"):
        unseal(line + text)


# -- byte strings anywhere in a record --


@dataclass(frozen=True)
class Leaf:
    content: bytes
    name: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.content, bytes):
            raise ValueError("no bytes")


@dataclass(frozen=True)
class Tree:
    leaves: tuple[Leaf, ...]
    by_name: dict[str, Leaf]
    maybe: Leaf | None
    plain: int | str = 3


def test_bytes_travel_beside_the_record() -> None:
    large = bytes(range(256)) * 4096
    tree = Tree((Leaf(large, "a"), Leaf(b"")), {"b": Leaf(b"\0" * 8)}, Leaf((2).to_bytes(8, "little")), "text")
    sealed = message("a request", tree)
    assert len(sealed) < len(large) + 2000
    envelope = unseal(sealed)
    assert envelope.sealed() == sealed
    assert message_in(envelope, str) == "a request"
    assert carried_in(envelope, Tree) == tree


def test_what_is_no_record_of_that_kind_is_refused() -> None:
    envelope = unseal(message("an answer", Leaf(b"x")))
    with pytest.raises(EnvelopeError, match="what came is not Tree"):
        carried_in(envelope, Tree)
    forged = unseal(message("an answer", {"content": 5, "name": ""}))
    with pytest.raises(EnvelopeError, match="what came is not Leaf"):
        carried_in(forged, Leaf)

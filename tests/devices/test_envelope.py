"""The container of job files, result files and messages."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from tests.devices.scripted_jobs import PROFILE, scripted_job

from tilewright.devices.envelope import (
    EnvelopeError,
    Kind,
    Stream,
    attach_execution,
    detach_execution,
    header_of,
    open_job,
    seal,
    seal_job,
    unseal,
)
from tilewright.devices.messages import (
    Finished,
    Message,
    Progress,
    Ready,
    Stage,
    Unready,
    open_message,
    seal_message,
)
from tilewright.records import Completed, DType, Faulted, FaultKind, ReturnedTensor, TensorSpec, to_json

JOB = scripted_job("job-1", "add", "sleep 1", numbers=(1.5, -2.0))
SPEC = TensorSpec.contiguous(DType.U8, (4,))
COMPLETED = Completed("job-1", "H200", (ReturnedTensor("y", SPEC, bytes((0, 255, 10, 13))),), (1.25, 2.5))
FAULTED = Faulted("job-1", "H200", FaultKind.TIME, "too long", "k<4>", 9)


def test_a_job_comes_back_as_it_went() -> None:
    assert open_job(unseal(seal_job(JOB))) == JOB


def test_the_digest_identifies_the_content() -> None:
    first, again = (
        header_of(seal_job(JOB)),
        header_of(seal_job(scripted_job("job-1", "add", "sleep 1", numbers=(1.5, -2)))),
    )
    other = header_of(seal_job(scripted_job("job-1", "add", "sleep 1", numbers=(1.5, -2.1))))
    assert first == again
    assert first.digest != other.digest


@pytest.mark.parametrize("execution", [COMPLETED, FAULTED])
def test_an_execution_comes_back_as_it_went(execution: Completed | Faulted) -> None:
    assert attach_execution(*detach_execution(execution)) == execution


MESSAGES: tuple[Message, ...] = (
    Ready(PROFILE, (("torch", "2.11"),)),
    Unready("no driver"),
    Progress(Stage.LOADING),
    Progress(Stage.STEP, 2, "k<4>", 9),
    Finished(COMPLETED, True),
    Finished(FAULTED, False),
)


@pytest.mark.parametrize("piece", [1, 7, 100000])
def test_messages_come_through_a_pipe_in_any_pieces(piece: int) -> None:
    sent = b"".join(seal_message(message) for message in MESSAGES)
    stream = Stream()
    received = []
    for at in range(0, len(sent), piece):
        received += [open_message(envelope) for envelope in stream.feed(sent[at : at + piece])]
    assert tuple(received) == MESSAGES


def test_every_truncation_is_noticed() -> None:
    whole = seal_job(JOB)
    for length in range(len(whole)):
        with pytest.raises(EnvelopeError):
            unseal(whole[:length])
    with pytest.raises(EnvelopeError, match="should hold"):
        unseal(whole + b"x")


def test_every_changed_byte_is_noticed() -> None:
    whole = seal(Kind.JOB, {"a": 1}, (b"blob",))
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
        (b"tilewright 2 job 5 5 future\n", "format version 2 and this side reads version 1: use the same tilewright"),
        (b"tilewright 1 letter 5 5 " + b"0" * 64 + b"\n", "a 'letter', which this release does not know: use the same"),
        (b"tilewright 1 job -5 5 " + b"0" * 64 + b"\n", "first line is damaged"),
    ],
)
def test_foreign_content_is_refused_with_the_reason(content: bytes, message: str) -> None:
    with pytest.raises(EnvelopeError, match=message):
        unseal(content)


def test_garbage_on_a_pipe_is_refused_at_once() -> None:
    with pytest.raises(EnvelopeError, match="Traceback"):
        list(Stream().feed(b"Traceback (most"))
    assert list(Stream().feed(b"tilewr")) == []


def test_a_record_that_is_no_job_is_refused() -> None:
    with pytest.raises(EnvelopeError, match="not a job of this version: Job: missing key"):
        open_job(unseal(seal(Kind.JOB, {"is": "Job"}, (b"",))))
    with pytest.raises(EnvelopeError, match="holds a message, not a job"):
        open_job(unseal(seal_message(Unready("x"))))
    record = to_json(replace(JOB, cubin=b"", inputs=())) | {"limits": {"seconds": -1.0, "device_bytes": 1}}
    with pytest.raises(EnvelopeError, match="are no limits"):
        open_job(unseal(seal(Kind.JOB, record, (b"",))))


@pytest.mark.parametrize("text", [b'{"record":1}', b'{"record":1,"blobs":[-5,5]}', b"[" * 100_000])
def test_a_body_that_is_no_record_is_refused(text: bytes) -> None:
    line = f"tilewright 1 job {len(text)} 0 {hashlib.sha256(text).hexdigest()}\n".encode()
    with pytest.raises(EnvelopeError, match="record cannot be read"):
        unseal(line + text)

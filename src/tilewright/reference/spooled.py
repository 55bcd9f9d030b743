"""References on the machines of a spool's workers: `SpoolReference` asks, `References` answers in a worker."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tilewright.child.envelope import Envelope, EnvelopeError, EnvelopeKind, message, message_in, seal, unseal
from tilewright.devices.protocol import Closing, Device, DeviceError
from tilewright.devices.spool import SpoolQueue
from tilewright.devices.spool_files import Replied, SpoolCall
from tilewright.records import Execution, GpuProfile, Job
from tilewright.reference import loading
from tilewright.reference.protocol import ReferenceProblem
from tilewright.reference.reference import Reference, ReferenceLimits

T = TypeVar("T")

KEPT = 2  # references that a worker caches; each holds torch and a CUDA context
_OWN = "tilewright."


class SpoolReference(Closing):
    """A reference that a spool's workers run on the GPU `gpu`. `timeout` is that of `SpoolDevice`."""

    sees_gpu = True

    def __init__(
        self, directory: Path | str, source: str, function: str, *, gpu: GpuProfile, timeout: float = 600.0
    ) -> None:
        self._source = source
        self._function = function
        self._gpu = gpu
        self._queue = SpoolQueue(directory, timeout)

    def call(self, handler: str, request: Any, answer: type[T] | Any, seconds: float = 60.0) -> T:
        """Have a worker run `handler`; see `Reference.call`. Also raises `DeviceError` where no worker answers."""
        made: T = _answer_in(self._replied(handler, request, seconds, None), handler, answer)
        return made

    def call_on_run(
        self, device: Device, job: Job, handler: str, request: Any, answer: type[T] | Any, seconds: float = 60.0
    ) -> tuple[Execution, T | None]:
        """Have one worker run the job and then the handler, so that results stay on its machine."""
        replied = self._replied(handler, request, seconds, job)
        if replied.execution is None:
            raise DeviceError("the worker did not say what became of the job; use the same tilewright release there")
        if not replied.content:
            return replied.execution, None
        return replied.execution, _answer_in(replied, handler, answer)

    def _replied(self, handler: str, request: Any, seconds: float, job: Job | None) -> Replied:
        call = SpoolCall(
            id=f"call-{uuid.uuid4().hex}",
            arch=self._gpu.arch,
            source=self._source,
            function=self._function,
            handler=handler,
            seconds=seconds,
            request=message(loading.HandlerRequest(handler), request),
            job=job,
        )
        longest_s = seconds + (job.limits.seconds if job is not None else 0.0)
        outcome = self._queue.run(call.id, seal(EnvelopeKind.CALL, call, gpu=self._gpu.name), longest_s)
        if not isinstance(outcome, Replied):
            raise ReferenceProblem(f"it was not answered on the spool: {getattr(outcome, 'message', outcome)}")
        return outcome

    def close(self) -> None:
        """Nothing to release: the workers keep their references for the next caller."""


def _answer_in(replied: Replied, handler: str, answer: Any) -> Any:
    try:
        return loading.answer_in(unseal(replied.content), handler, answer)
    except EnvelopeError as error:
        raise ReferenceProblem(f"what the worker answered cannot be read: {error}") from None


class References:
    """A worker's references: a child per source on its GPU, the most recent of them cached."""

    def __init__(self, index: int, interrupt: Callable[[], bool]) -> None:
        self._limits = ReferenceLimits.on_gpu(index)
        self._interrupt = interrupt
        self._kept: dict[tuple[str, str], Reference] = {}  # the one used last at the end

    def answer(self, call: SpoolCall, ran: Execution | None) -> bytes:
        """The reply of the function's child, or one that reports its fault; empty if the job has no results.

        A child that failed is not used again.
        """
        key = (call.source, call.function)
        try:
            asked = _checked(call)
            request = call.request
            if ran is not None:
                results = loading.results_of(ran)
                if not results:
                    return b""
                request = asked.sealed_with(loading.HandlerRequest(call.handler, results))
            envelope = self._reference(key).exchange(request, call.seconds)
        except ReferenceProblem as problem:
            self._drop(key)
            return message(loading.ReferenceFault(str(problem)))
        except RuntimeError as error:  # a child that cannot start, say
            self._drop(key)
            return message(loading.HandlerFault(str(error)))
        except BaseException:
            self._drop(key)
            raise
        if not isinstance(loading.reply_in(envelope), loading.Answered):
            self._drop(key)  # a CUDA error is sticky
        return envelope.sealed()

    def close(self) -> None:
        for key in list(self._kept):
            self._drop(key)

    def _reference(self, key: tuple[str, str]) -> Reference:
        kept = self._kept.pop(key, None)
        while kept is None and len(self._kept) >= KEPT:
            self._drop(next(iter(self._kept)))
        self._kept[key] = kept or Reference(*key, limits=self._limits, interrupt=self._interrupt)
        return self._kept[key]

    def _drop(self, key: tuple[str, str]) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            kept.close()


def _checked(call: SpoolCall) -> Envelope:
    try:
        envelope = unseal(call.request)
        request = message_in(envelope, loading.HandlerRequest)
    except EnvelopeError as error:
        raise ReferenceProblem(f"the worker cannot read what it was asked: {error}") from None
    if request.handler != call.handler or not call.handler.startswith(_OWN):
        raise ReferenceProblem(f"the worker runs handlers of tilewright only, not {call.handler!r}")
    return envelope

"""`ChildDevice`: runs untrusted jobs in a child process and survives whatever they do to it.

It owns one resident runner process, replaces it after a job has damaged it, and reports for every failed job the cause
and the kernel. Subclasses choose the runner program: `CudaDevice` or `EmulatedDevice`. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Sequence

from tilewright.child.envelope import Envelope, EnvelopeError, EnvelopeKind, message_in, seal
from tilewright.child.process import Ended, EndedBy, SupervisedChild, uninterrupted
from tilewright.devices.profiler import profile_job
from tilewright.devices.protocol import Closing, DeviceError
from tilewright.devices.runner import JobFinished, Progress, RunnerMessage, RunnerReady, RunnerUnready
from tilewright.devices.sanitizer import sanitize_job
from tilewright.devices.vendor_tools import ToolUnavailable
from tilewright.records import Completed, Execution, Faulted, FaultKind, GpuProfile, Job, Watch, to_json

_STARTS = 3  # attempts to start a child that is killed from outside
# Signals that come from outside the process: an operator, a scheduler, the kernel when memory runs out.
_FROM_OUTSIDE = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")


class ChildDevice(Closing):
    """A runner program as a device.

    `start_seconds` limits the start of a child (torch's import, the CUDA context), which is not part of a job's time
    limit. `host_bytes` bounds the child's resident memory; each job bounds its device memory. `interrupt` is polled ten
    times a second; when it returns True, the running job is abandoned with `child.process.Interrupted`.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        start_seconds: float,
        host_bytes: int,
        interrupt: Callable[[], bool] = uninterrupted,
    ) -> None:
        self._start_seconds = start_seconds
        self._host_bytes = host_bytes
        self._command = tuple(command)
        self._interrupt = interrupt
        self._lock = threading.Lock()
        self._child: SupervisedChild | None = None
        self._ready: RunnerReady | None = None  # from the current child
        self._known: RunnerReady | None = None  # from any child: the profile outlives a child
        self._progress: Progress | None = None  # the last progress message of the current job
        self._closed = False

    @property
    def profile(self) -> GpuProfile:
        return self.ready().profile

    def warm(self) -> None:
        """Start the child in the background, unless there is one."""
        with self._lock, contextlib.suppress(DeviceError):  # the first job reports it
            if self._child is None and not self._closed:
                self._child = self._start()

    def ready(self) -> RunnerReady:
        """Start the child unless it runs, and return its first message."""
        if self._known is None:
            with self._lock:
                self._prepared_child()
        assert self._known is not None
        return self._known

    @property
    def runner_pid(self) -> int | None:
        """The process id of the child, if it is alive."""
        child = self._child
        return child.pid if child is not None and child.alive else None

    def execute(self, job: Job) -> Execution:
        """Run one job; retried once on a new child where the runner was killed from outside."""
        with self._lock:
            outcome = self._attempt(job)
            if isinstance(outcome, Ended) and _killed_from_outside(outcome):
                outcome = self._attempt(job)
            if isinstance(outcome, Ended):
                return self._fault(job, outcome)
            return outcome

    def _attempt(self, job: Job) -> Execution | Ended:
        child = self._prepared_child()
        self._progress = None
        try:
            outcome = child.converse(seal(EnvelopeKind.JOB, job), job.limits.seconds, self._finished)
        except BaseException:
            self._drop_child()
            raise
        if isinstance(outcome, Ended):
            self._replace_child()
            return outcome
        if outcome.execution.job != job.id:
            self._replace_child()
            raise DeviceError(f"the runner answered job {outcome.execution.job!r} when asked for {job.id!r}")
        if not outcome.fit:
            self._replace_child()
        return outcome.execution

    def _finished(self, envelope: Envelope) -> JobFinished | None:
        said: RunnerMessage = message_in(envelope, RunnerMessage)
        if isinstance(said, Progress):
            self._progress = said
            return None
        if isinstance(said, JobFinished):
            return said
        raise EnvelopeError(f"it answered a job with {type(said).__name__}")

    def _prepared_child(self) -> SupervisedChild:
        """A running child that has opened its device."""
        if self._closed:
            raise DeviceError(f"this device is closed; make a new {type(self).__name__}")
        if self._child is not None and not self._child.alive:
            self._drop_child()  # it died while idle: no job is lost
        killed = 0
        while True:
            if self._child is None:
                self._child = self._start()
            if self._ready is not None:
                return self._child
            try:
                answer: RunnerReady | RunnerUnready | Ended = self._child.converse(
                    b"", self._start_seconds, lambda envelope: message_in(envelope, RunnerReady | RunnerUnready)
                )
            except BaseException:
                self._drop_child()
                raise
            if isinstance(answer, RunnerReady):
                self._ready = self._known = answer
                return self._child
            self._drop_child()
            if isinstance(answer, RunnerUnready):
                raise DeviceError(answer.reason)
            killed += 1
            if not _killed_from_outside(answer) or killed == _STARTS:
                raise DeviceError(_no_start(answer))

    def _start(self) -> SupervisedChild:
        try:
            return SupervisedChild(self._command, resident_bytes=self._host_bytes, interrupt=self._interrupt)
        except OSError as error:
            message = f"the runner {self._command[0]!r} cannot be started: {error.strerror or error}"
            raise DeviceError(message) from error

    def _drop_child(self) -> None:
        child, self._child, self._ready = self._child, None, None
        if child is not None:
            child.end()

    def _replace_child(self) -> None:
        """End the child and start the next in the background."""
        self._drop_child()
        with contextlib.suppress(DeviceError):  # this job has its outcome; the next one reports it
            self._child = self._start()

    def _fault(self, job: Job, ended: Ended) -> Faulted:
        progress = self._progress
        doing = f"while {progress}" if progress is not None else "before it began the job"
        words = f"; it last wrote: {ended.last_words}" if ended.last_words else ""
        if ended.by is EndedBy.TIME:
            kind = FaultKind.TIME
            lingers = "" if ended.status is not None else f" but has not ended yet ({ended.detail})"
            message = f"not done after {job.limits.seconds:g} s, {doing}: the process was killed{lingers}"
        elif ended.by is EndedBy.MEMORY:
            kind, message = FaultKind.MEMORY, f"{doing}, {ended.detail}: the process was killed"
        elif ended.by is EndedBy.BABBLE:
            kind, message = FaultKind.DIED, f"{doing}, the runner sent garbage and was killed: {ended.detail}{words}"
        elif _killed_from_outside(ended):
            kind = FaultKind.DIED
            message = (
                f"{doing}, the runner was killed by {ended.signal_name} from outside, on two attempts "
                "(out of host memory? see `dmesg`)"
            )
        else:
            how = f"died of {ended.signal_name}" if ended.signal_name else f"ended: {ended.detail}"
            kind, message = FaultKind.DIED, f"{doing}, the runner {how}{words}"
        return Faulted(
            job=job.id,
            device=self._label(),
            kind=kind,
            message=message,
            kernel=progress.kernel if progress else None,
            line=progress.line if progress else None,
        )

    def _label(self) -> str:
        """The device name in execution records."""
        return self._known.profile.name if self._known else "unknown"

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._drop_child()


def _killed_from_outside(ended: Ended) -> bool:
    return ended.by is EndedBy.DEATH and ended.signal_name in _FROM_OUTSIDE


def _no_start(ended: Ended) -> str:
    found = "did not start" if ended.by is EndedBy.TIME else "ended before it was ready"
    how = f"killed by {ended.signal_name}" if ended.signal_name and ended.by is EndedBy.DEATH else ended.detail
    words = f"; it last wrote: {ended.last_words}" if ended.last_words else ""
    return f"the runner process {found}: {how}{words}"


# -- devices --

GIB = 1 << 30
RUNNER = (sys.executable, "-m", "tilewright.devices.runner_program", "cuda")


class CudaDevice(ChildDevice):
    """GPU `index` behind a child process; see `ChildDevice` for the rest."""

    def __init__(
        self,
        index: int = 0,
        *,
        start_seconds: float = 180.0,
        host_bytes: int = 64 * GIB,
        command: Sequence[str] = RUNNER,
        interrupt: Callable[[], bool] = uninterrupted,
    ) -> None:
        super().__init__(
            (*command, "--device", str(index)), start_seconds=start_seconds, host_bytes=host_bytes, interrupt=interrupt
        )
        self.index = index

    def execute(self, job: Job) -> Execution:
        """Run one job; with `job.watch` under ncu or compute-sanitizer, in a separate child."""
        if job.watch is Watch.NOTHING:
            return super().execute(job)
        name = self.profile.name
        try:
            with self._lock:
                if job.watch is Watch.COUNTERS:
                    return Completed(job.id, name, (), (), profiles=profile_job(job, self.index, self._interrupt))
                return Completed(job.id, name, (), (), faults=sanitize_job(job, self.index, self._interrupt))
        except ToolUnavailable as reason:
            return Completed(job.id, name, (), (), not_watched=str(reason))


EMULATED_RUNNER = (sys.executable, "-m", "tilewright.devices.runner_program", "emulated")


class EmulatedDevice(ChildDevice):
    """`profile` emulated in a child process.

    `host_bytes` bounds the child's address space and resident memory. Jobs carry PTX; see `Job.emulation`. Seeded
    inputs are drawn by numpy and differ from a GPU's; use `Data` for equal inputs.
    """

    def __init__(
        self,
        profile: GpuProfile,
        *,
        start_seconds: float = 60.0,
        host_bytes: int = 16 * GIB,
        interrupt: Callable[[], bool] = uninterrupted,
    ) -> None:
        command = (
            *EMULATED_RUNNER,
            "--profile",
            json.dumps(to_json(profile)),
            "--address-space",
            str(host_bytes),
        )
        super().__init__(command, start_seconds=start_seconds, host_bytes=host_bytes, interrupt=interrupt)
        self._profile = profile

    @property
    def profile(self) -> GpuProfile:
        return self._profile

    def _label(self) -> str:
        return f"{self._profile.name} (emulated)"

"""A worker of a spool: runs jobs and calls one at a time, writes results, and recovers the jobs of dead workers.

Jobs run on its device; calls go to its `CallHandler`. A job file is in exactly one place at any time, so nothing is
lost when this process is killed: another worker returns its current job to the queue. A job that two workers died with
is not tried again.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from tilewright.child.envelope import Envelope, EnvelopeError, EnvelopeKind, record_in, unseal
from tilewright.child.family import pid_space, process_start
from tilewright.child.process import Interrupted
from tilewright.devices.child_device import CudaDevice
from tilewright.devices.protocol import DeviceError
from tilewright.devices.spool_files import (
    ATTEMPTS,
    Announcement,
    Heartbeats,
    JobName,
    Replied,
    SpoolCall,
    SpoolFiles,
    SpoolResult,
    peek,
)
from tilewright.records import ARCHITECTURES, Completed, Execution, Faulted, FaultKind, Job, runs_on

BEAT_S = 2.0
SWEEP_S = 3600.0  # between two clean-ups
Say = Callable[[str], None]


class CallHandler(Protocol):
    """Makes calls for a worker, one at a time."""

    def answer(self, call: SpoolCall, ran: Execution | None) -> bytes:
        """The reply's content; `ran` is the outcome of the call's job. Raises `Interrupted` where the worker stops."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class WorkerTiming:
    """Poll interval, time until another worker counts as dead, and lifetime of results."""

    poll_s: float = 0.2
    stale_s: float = 30.0
    keep_results_s: float = 14 * 24 * 3600.0


@dataclass
class Worker:
    """One worker. Once `stopping` returns True no job is started; the device's interrupt ends the current one."""

    files: SpoolFiles
    device: CudaDevice
    answerer: CallHandler
    pace: WorkerTiming
    stopping: Callable[[], bool]
    say: Say
    current_job: JobName | None = field(default=None, init=False)
    _next_sweep: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._heartbeats = Heartbeats(self.files, self.pace.stale_s)
        self.announcement = _announcement(self.device)

    @property
    def id(self) -> str:
        return self.announcement.worker

    def serve(self, *, once: bool = False, drain: bool = False) -> int:
        """Run jobs until stopped, or until one has run (`once`) or none is left for it (`drain`); returns how many."""
        self.files.announce(self.announcement)
        beating = _Beat(self.files, self.announcement)
        done = 0
        try:
            while not self.stopping():
                self._recover()
                if self._run_next():
                    done += 1
                    if once:
                        break
                elif drain and all(map(self._leave_to_others, self.files.waiting())):
                    break
                else:
                    time.sleep(self.pace.poll_s)
        finally:
            beating.stop()
            self.files.withdraw(self.id)
            self.files.remove_claims_folder(self.id)
        return done

    # -- running --

    def _run_next(self) -> bool:
        """Run one waiting job; False when there was none."""
        for name in self.files.waiting():
            if self.stopping():
                return False
            if not self._leave_to_others(name) and self.files.claim(self.id, name):
                self._run(name)
                return True
        return False

    def _leave_to_others(self, name: JobName) -> bool:
        """Whether a job is for another GPU.

        A job that names its GPU waits for it: seeded inputs and times differ elsewhere. A job for another architecture
        waits while a worker with it is alive; without one it is run here, and fails with a clear fault.
        """
        try:
            peeked = peek(self.files.waiting_path(name))
            arch = peeked.record["arch"]
        except (EnvelopeError, OSError, KeyError, TypeError):
            return False  # gone or broken: the claim will show
        mine = self.announcement.profile
        if peeked.gpu:
            return peeked.gpu != mine.name
        if not isinstance(arch, str) or arch not in ARCHITECTURES or runs_on(arch, mine.cc):
            return False
        return any(runs_on(arch, other.profile.cc) for other in self._heartbeats.living().values())

    def _run(self, name: JobName) -> None:
        self.current_job = name
        started = time.monotonic()
        path = self.files.claim_path(self.id, name)
        try:
            envelope = unseal(path.read_bytes())
            work = _work_in(envelope)
            if work.id != name.id:
                raise EnvelopeError(f"the file is called {name.id!r} and holds job {work.id!r}")
        except FileNotFoundError:
            self.current_job = None
            return  # another worker took it for abandoned
        except EnvelopeError as error:
            self._refuse(name, error)
            return
        if self._is_done(name.id):
            self.files.drop_claim(self.id, name)
        else:
            outcome = self._perform(work, name)
            self._publish(name, outcome)
            self.say(f"{name.id}: {_in_words(work, outcome)} ({time.monotonic() - started:.2f} s)")
        self.current_job = None

    def _perform(self, work: Job | SpoolCall, name: JobName) -> Execution | Replied:
        try:
            if isinstance(work, Job):
                return self.device.execute(work)
            ran = self.device.execute(work.job) if work.job is not None else None
            content = self.answerer.answer(work, ran)
            # Its outputs stay here: the caller has the reply.
            bare = replace(ran, outputs=(), shared=()) if isinstance(ran, Completed) else ran
            return Replied(work.id, self.announcement.profile.name, content, bare)
        except (Interrupted, DeviceError):
            # Not the job's fault: return it to the queue.
            self.files.give_back(self.id, name, name.attempt)
            raise

    def _publish(self, name: JobName, outcome: Execution | Replied) -> None:
        if not self.files.claim_path(self.id, name).exists():
            self.say(f"{name.id}: result dropped; this worker was presumed dead and another has the job")
            return
        try:
            self.files.put_result(SpoolResult(outcome, self.id, name.attempt))
        except OSError:
            self.files.give_back(self.id, name, name.attempt)  # such as a full disk: not the job's fault
            raise
        self.files.drop_claim(self.id, name)

    def _refuse(self, name: JobName, error: EnvelopeError) -> None:
        self._put_fault(name, FaultKind.BROKEN_JOB, f"the job file {name.file_name} cannot be read: {error}")
        self.files.set_aside(self.id, name)
        self.current_job = None

    def _put_fault(self, name: JobName, kind: FaultKind, message: str) -> None:
        fault = Faulted(name.id, self.announcement.profile.name, kind, message)
        self.files.put_result(SpoolResult(fault, self.id, name.attempt))
        self.say(f"{name.id}: {message}")

    def _is_done(self, job_id: str) -> bool:
        try:
            return self.files.result(job_id) is not None
        except DeviceError:
            return False  # damaged: run it again

    # -- recovery --

    def _recover(self) -> None:
        """Return the jobs of dead workers to the queue; at intervals, remove old files."""
        claims: dict[str, list[JobName]] = {}
        for worker, name in self.files.claims():
            claims.setdefault(worker, []).append(name)
        for worker in self._heartbeats.dead(frozenset(claims)) - {self.id}:
            for name in claims.get(worker, ()):
                self._requeue(worker, name)
            self.files.withdraw(worker)
            self.files.remove_claims_folder(worker)
            self._heartbeats.forget(worker)
        if time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + SWEEP_S
            self.files.sweep(self.pace.keep_results_s)

    def _requeue(self, worker: str, name: JobName) -> None:
        if not self.files.claim_path(worker, name).exists():
            return
        if self._is_done(name.id):
            self.files.drop_claim(worker, name)  # it died after writing the result
        elif name.attempt < ATTEMPTS:
            if self.files.give_back(worker, name, name.attempt + 1):
                self.say(f"{name.id}: worker {worker} died while running it; it waits again")
        else:
            message = (
                f"{ATTEMPTS} worker processes died while running this job, the last one {worker}; it is not tried again"
            )
            self._put_fault(name, FaultKind.DIED, message)
            self.files.drop_claim(worker, name)


class _Beat:
    """Updates the heartbeat from a background thread."""

    def __init__(self, files: SpoolFiles, announcement: Announcement) -> None:
        self._files = files
        self._announcement = announcement
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            try:
                if not self._files.beat(self._announcement.worker):
                    self._files.announce(self._announcement)  # removed by a worker that presumed it dead
            except OSError:
                continue  # a transient error of the file server: retried at the next beat

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


def _announcement(device: CudaDevice) -> Announcement:
    ready = device.ready()
    host = socket.gethostname()
    short_host = "".join(c for c in host.split(".")[0] if c.isalnum() or c == "-") or "host"
    return Announcement(
        worker=f"{short_host}-{os.getpid()}-{uuid.uuid4().hex[:6]}",
        profile=ready.profile,
        versions=ready.versions,
        host=host,
        pid=os.getpid(),
        process_start=process_start(os.getpid()) or "",
        pid_space=pid_space(),
    )


def _work_in(envelope: Envelope) -> Job | SpoolCall:
    kind = EnvelopeKind.CALL if envelope.header.kind is EnvelopeKind.CALL else EnvelopeKind.JOB
    work: Job | SpoolCall = record_in(envelope, kind, SpoolCall if kind is EnvelopeKind.CALL else Job)
    return work


def _in_words(work: Job | SpoolCall, outcome: Execution | Replied) -> str:
    if isinstance(work, SpoolCall):
        return work.words
    if not isinstance(outcome, Faulted):
        return "completed"
    where = f" in {outcome.kernel} (line {outcome.line})" if outcome.kernel else ""
    return f"{outcome.kind.value}{where}"

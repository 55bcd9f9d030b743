"""`SpoolDevice`: GPUs on other machines, reached through a shared directory.

Jobs and calls are files in the spool, run by the workers that serve it (`python -m tilewright.worker DIR`). Jobs and
results survive this process: submitting the same content under the same id later finds the result.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.child.envelope import EnvelopeError, EnvelopeKind, header_of, seal
from tilewright.child.process import check_stop
from tilewright.devices.protocol import Closing, DeviceError
from tilewright.devices.spool_files import (
    Announcement,
    Heartbeats,
    Replied,
    SpoolFiles,
    checked_id,
    peek,
)
from tilewright.records import Execution, GpuProfile, Job

STALE_S = 30.0
POLL_S = 0.05


class SpoolDevice(Closing):
    """The workers of one spool as a device.

    `timeout` is the longest wait without any result arriving, in seconds; the jobs then stay on the spool. `arch`
    selects among workers with different GPUs; without it the first announced worker determines `profile`.

    Results are found by job id and content. With `fresh`, every `execute` runs its job again under a unique id, on
    exactly the GPU that `profile` names, and leaves nothing on the spool.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        timeout: float = 600.0,
        arch: str | None = None,
        fresh: bool = False,
        poll: float = POLL_S,
        stale: float = STALE_S,
    ) -> None:
        self.directory = Path(directory)
        self._arch = arch
        self._fresh = fresh
        self._queue = SpoolQueue(directory, timeout, poll, stale)
        self._profile: GpuProfile | None = None

    @property
    def profile(self) -> GpuProfile:
        """The GPU of a worker that serves this spool; waits for one to announce itself."""
        if self._profile is None:
            deadline = time.monotonic() + self._queue.timeout
            while not (suited := [w for w in self.workers() if self._arch in (None, w.profile.arch)]):
                if time.monotonic() > deadline:
                    wanted = "" if self._arch is None else f" for {self._arch}"
                    raise DeviceError(f"no worker{wanted} serves {self.directory}; {self._queue.how_to_start}")
                time.sleep(self._queue.poll)
            self._profile = suited[0].profile
        return self._profile

    def workers(self) -> tuple[Announcement, ...]:
        """The workers that serve this spool now."""
        return self._queue.workers()

    def submit(self, job: Job) -> str:
        """Put a job on the spool, unless it is there or done already; returns its id."""
        return self._submit(job).id

    def collect(self, job_id: str) -> Execution | None:
        """The outcome of a job, or None while it is not done. The result stays until `discard`."""
        outcome = self._queue.collect(job_id)
        return None if outcome is None else _execution(outcome)

    def discard(self, job_id: str) -> None:
        """Remove a job's result from the spool."""
        self._queue.discard(job_id)

    def execute(self, job: Job) -> Execution:
        """Submit a job and wait for its outcome."""
        if not self._fresh:
            return self.execute_many((job,))[0]
        own = replace(job, id=f"{job.id}-{uuid.uuid4().hex[:12]}")
        ticket = self._queue.submit(own.id, seal(EnvelopeKind.JOB, own, gpu=self.profile.name))
        return replace(_execution(self._queue.take(ticket, job.limits.seconds)), job=job.id)

    def execute_many(self, jobs: Iterable[Job]) -> tuple[Execution, ...]:
        """Submit jobs and wait for all of them; the executions are in the order of the jobs."""
        tickets = [self._submit(job) for job in jobs]
        if len({ticket.id for ticket in tickets}) != len(tickets):
            raise DeviceError("two of the jobs have the same id; give every job its own")
        try:
            done = dict(self._queue.arrivals({ticket.id: ticket for ticket in tickets}))
        except SpoolTimeout as error:
            raise DeviceError(f"{error}. The jobs stay there; collect them later by id") from error
        return tuple(_execution(done[ticket.id]) for ticket in tickets)

    def _submit(self, job: Job) -> Ticket:
        return self._queue.submit(job.id, seal(EnvelopeKind.JOB, job))

    def close(self) -> None:
        """Nothing to close: the spool belongs to its workers."""


def _execution(outcome: Execution | Replied) -> Execution:
    if isinstance(outcome, Replied):
        raise DeviceError(f"{outcome.job!r} was a call and not a job; give the job an id of its own")
    return outcome


# -- the queue of jobs and calls --


class SpoolTimeout(DeviceError):
    """No result came for too long."""


@dataclass(frozen=True)
class Ticket:
    """A submitted job and the digest that identifies its result."""

    id: str
    digest: str


class SpoolQueue:
    """The client's view of a spool. `timeout` is the longest wait without any result arriving, in seconds."""

    def __init__(self, directory: Path | str, timeout: float, poll: float = POLL_S, stale: float = STALE_S) -> None:
        self.directory = Path(directory)
        self.timeout = timeout
        self.poll = poll
        self._files = SpoolFiles(directory)
        self._files.create()
        self._heartbeats = Heartbeats(self._files, stale)

    def workers(self) -> tuple[Announcement, ...]:
        """The workers that serve this spool now."""
        return tuple(self._heartbeats.living().values())

    @property
    def how_to_start(self) -> str:
        return f"start `python -m tilewright.worker {self.directory}` on a machine with a GPU"

    def submit(self, job_id: str, content: bytes) -> Ticket:
        """Put a sealed job or call on the spool, unless it is there or done already."""
        checked_id(job_id)
        ticket = Ticket(job_id, header_of(content).digest)
        # In the order in which a job moves, so that one moving meanwhile is not missed.
        if self._waits(ticket) or self._runs(ticket) or self._is_done(ticket):
            return ticket
        self._files.put_job(job_id, content)
        return ticket

    def collect(self, job_id: str) -> Execution | Replied | None:
        """The outcome of a job, or None while it is not done. The result stays until `discard`."""
        result = self._files.result(checked_id(job_id))
        return result.outcome if result is not None else None

    def discard(self, job_id: str) -> None:
        """Remove a job's result from the spool."""
        self._files.discard_result(job_id)

    def take(self, ticket: Ticket, seconds: float = 0.0) -> Execution | Replied:
        """Wait for one outcome, up to `seconds` longer than `timeout`, and remove it from the spool."""
        try:
            ((_, outcome),) = self.arrivals({ticket.id: ticket}, seconds)
            return outcome
        finally:
            for name in self._files.waiting_named(ticket.id):
                self._files.withdraw_job(name)
            self._files.discard_result(ticket.id)

    def arrivals(self, wanted: Mapping[str, Ticket], seconds: float = 0.0) -> Iterator[tuple[str, Execution | Replied]]:
        """Outcomes as they arrive; raises `SpoolTimeout` after `timeout` + `seconds` without one."""
        missing = dict(wanted)
        last_arrival = time.monotonic()
        while missing:
            for job_id in sorted(self._files.result_ids() & missing.keys()):
                result = self._files.result(job_id)
                if result is not None and result.digest in (missing[job_id].digest, ""):
                    del missing[job_id]
                    last_arrival = time.monotonic()
                    yield job_id, result.outcome
            if not missing:
                return
            if time.monotonic() - last_arrival > self.timeout + seconds:
                raise SpoolTimeout(self._overdue(tuple(missing), self.timeout + seconds))
            check_stop()
            time.sleep(self.poll)

    def _waits(self, ticket: Ticket) -> bool:
        for name in self._files.waiting_named(ticket.id):
            if self._digest(self._files.waiting_path(name)) == ticket.digest:
                return True
            self._files.withdraw_job(name)  # the same id with other content: the newer job replaces it
        return False

    def _runs(self, ticket: Ticket) -> bool:
        for worker, name in self._files.claims():
            if name.id != ticket.id:
                continue
            digest = self._digest(self._files.claim_path(worker, name))
            if digest == ticket.digest:
                return True
            if digest is not None:
                raise DeviceError(
                    f"worker {worker} is running another job called {ticket.id!r}; give this one a new id"
                )
        return False

    def _is_done(self, ticket: Ticket) -> bool:
        try:
            result = self._files.result(ticket.id)
        except DeviceError:
            result = None  # damaged: run it again
        if result is not None and result.digest == ticket.digest:
            return True
        self._files.discard_result(ticket.id)
        return False

    @staticmethod
    def _digest(path: Path) -> str | None:
        try:
            return peek(path).header.digest
        except (EnvelopeError, FileNotFoundError):
            return None

    def _overdue(self, missing: tuple[str, ...], seconds: float) -> str:
        running = {name.id: worker for worker, name in self._files.claims()}
        first = missing[0]
        if first in running:
            where = f"worker {running[first]} is running it"
        elif self._files.waiting_named(first):
            where = "it still waits"
        else:
            where = "its job file has gone"
        living = self.workers()
        gpus = ", ".join(sorted({one.profile.name for one in living}))
        serving = (
            f"{len(living)} worker(s) serve the spool ({gpus})"
            if living
            else f"no worker serves it: {self.how_to_start}"
        )
        return (
            f"no result on {self.directory} for {seconds:g} s: {len(missing)} job(s) are not done, "
            f"{first!r} first ({where}); {serving}"
        )

"""`SpoolDevice`: GPUs on other machines, reached through a directory that both sides can see.

Jobs are written into the spool and run by whatever workers serve it (`python -m tilewright.worker DIR`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from tilewright.devices.envelope import seal_job
from tilewright.devices.protocol import DeviceError
from tilewright.devices.spool_calls import Replied
from tilewright.devices.spool_files import Announcement
from tilewright.devices.spool_queue import POLL_S, STALE_S, Overdue, SpoolQueue, Ticket
from tilewright.records import Execution, GpuProfile, Job


class SpoolDevice:
    """The workers of one spool as a device.

    `timeout` is the longest this side waits with no result arriving, in seconds; the jobs then stay on the spool.
    `arch` picks among workers with different GPUs; without it the first announced worker decides `profile`.

    A job's result is found again by its id and content. With `fresh`, every `execute` runs its job anew, under an id of
    its own and on the very GPU that `profile` names, and leaves nothing on the spool.
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
            while not (suited := self._suited()):
                if time.monotonic() > deadline:
                    wanted = "" if self._arch is None else f" for {self._arch}"
                    raise DeviceError(f"no worker{wanted} serves {self.directory}; {self._queue.how_to_start}")
                time.sleep(self._queue.poll)
            self._profile = suited[0].profile
        return self._profile

    def workers(self) -> tuple[Announcement, ...]:
        """The workers that serve this spool now."""
        return self._queue.workers()

    def _suited(self) -> tuple[Announcement, ...]:
        return tuple(w for w in self.workers() if self._arch is None or w.profile.arch == self._arch)

    # -- one job at a time --

    def submit(self, job: Job) -> str:
        """Put a job on the spool, unless it is there or done already; returns its id."""
        return self._submit(job).id

    def collect(self, job_id: str) -> Execution | None:
        """What became of a job, or None while it is not done. The result stays until `discard`."""
        outcome = self._queue.collect(job_id)
        return None if outcome is None else _execution(outcome)

    def discard(self, job_id: str) -> None:
        """Remove a job's result from the spool."""
        self._queue.discard(job_id)

    def execute(self, job: Job) -> Execution:
        """Submit a job and wait for what becomes of it."""
        if not self._fresh:
            return self.execute_many((job,))[0]
        own = replace(job, id=f"{job.id}-{uuid.uuid4().hex[:12]}")
        ticket = self._queue.submit(own.id, seal_job(own, self.profile.name))
        return replace(_execution(self._queue.take(ticket, job.limits.seconds)), job=job.id)

    def execute_many(self, jobs: Iterable[Job]) -> tuple[Execution, ...]:
        """Submit jobs and wait for all of them; the executions are in the order of the jobs."""
        tickets = [self._submit(job) for job in jobs]
        if len({ticket.id for ticket in tickets}) != len(tickets):
            raise DeviceError("two of the jobs have the same id; give every job its own")
        try:
            done = dict(self._queue.arrivals({ticket.id: ticket for ticket in tickets}))
        except Overdue as error:
            raise DeviceError(f"{error}. The jobs stay there; collect them later by id") from error
        return tuple(_execution(done[ticket.id]) for ticket in tickets)

    def _submit(self, job: Job) -> Ticket:
        return self._queue.submit(job.id, seal_job(job))

    def close(self) -> None:
        """Nothing to give back: the spool belongs to its workers and outlives this object."""

    def __enter__(self) -> SpoolDevice:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _execution(outcome: Execution | Replied) -> Execution:
    if isinstance(outcome, Replied):
        raise DeviceError(f"{outcome.job!r} was a call and not a job; give the job an id of its own")
    return outcome

"""`SpoolDevice`: GPUs on other machines, reached through a directory that both sides can see.

Jobs are written into the spool and run by whatever workers serve it (`python -m tilewright.worker DIR`). A job stays
there when this process dies, and so does its result: submitting the same job again, in any later process, finds it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tilewright.devices.envelope import EnvelopeError, header_of, seal_job
from tilewright.devices.liveness import Heartbeats
from tilewright.devices.protocol import DeviceError
from tilewright.devices.spool_files import Announcement, SpoolFiles, SpoolResult, checked_id, peek
from tilewright.records import Execution, GpuProfile, Job

STALE_S = 30.0


@dataclass(frozen=True)
class _Ticket:
    """A job on the spool and the digest by which its result is known."""

    id: str
    digest: str


class SpoolDevice:
    """The workers of one spool as a device.

    `timeout` is the longest this side waits with no result arriving, in seconds; the jobs then stay on the spool.
    `arch` picks among workers with different GPUs; without it the first announced worker decides `profile`.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        timeout: float = 600.0,
        arch: str | None = None,
        poll: float = 0.05,
        stale: float = STALE_S,
    ) -> None:
        self.directory = Path(directory)
        self._timeout = timeout
        self._arch = arch
        self._poll = poll
        self._files = SpoolFiles(directory)
        self._files.create()
        self._heartbeats = Heartbeats(self._files, stale)
        self._profile: GpuProfile | None = None

    @property
    def profile(self) -> GpuProfile:
        """The GPU of a worker that serves this spool; waits for one to announce itself."""
        if self._profile is None:
            deadline = time.monotonic() + self._timeout
            while not (suited := self._suited()):
                if time.monotonic() > deadline:
                    raise DeviceError(f"no worker{self._wanted()} serves {self.directory}; {self._how_to_start()}")
                time.sleep(self._poll)
            self._profile = suited[0].profile
        return self._profile

    def workers(self) -> tuple[Announcement, ...]:
        """The workers that serve this spool now."""
        return tuple(self._heartbeats.living().values())

    def _suited(self) -> tuple[Announcement, ...]:
        return tuple(w for w in self.workers() if self._arch is None or w.profile.arch == self._arch)

    def _wanted(self) -> str:
        return "" if self._arch is None else f" for {self._arch}"

    def _how_to_start(self) -> str:
        return f"start `python -m tilewright.worker {self.directory}` on a machine with a GPU"

    # -- one job at a time --

    def submit(self, job: Job) -> str:
        """Put a job on the spool, unless it is there or done already; returns its id."""
        return self._submit(job).id

    def collect(self, job_id: str) -> Execution | None:
        """What became of a job, or None while it is not done. The result stays until `discard`."""
        result = self._files.result(checked_id(job_id))
        return result.execution if result is not None else None

    def discard(self, job_id: str) -> None:
        """Remove a job's result from the spool."""
        self._files.discard_result(job_id)

    def execute(self, job: Job) -> Execution:
        """Submit a job and wait for what becomes of it."""
        return self.execute_many((job,))[0]

    def execute_many(self, jobs: Iterable[Job]) -> tuple[Execution, ...]:
        """Submit jobs and wait for all of them; the executions are in the order of the jobs."""
        tickets = [self._submit(job) for job in jobs]
        if len({ticket.id for ticket in tickets}) != len(tickets):
            raise DeviceError("two of the jobs have the same id; give every job its own")
        done = dict(self._arrivals({ticket.id: ticket for ticket in tickets}))
        return tuple(done[ticket.id] for ticket in tickets)

    # -- inside --

    def _submit(self, job: Job) -> _Ticket:
        checked_id(job.id)
        content = seal_job(job)
        ticket = _Ticket(job.id, header_of(content).digest)
        # Looked for in the order in which a job moves, so that one that moves meanwhile is not missed.
        if self._waits(ticket) or self._runs(ticket) or self._is_done(ticket):
            return ticket
        self._files.put_job(job.id, content)
        return ticket

    def _waits(self, ticket: _Ticket) -> bool:
        for name in self._files.waiting_named(ticket.id):
            if self._digest(self._files.waiting_path(name)) == ticket.digest:
                return True
            self._files.withdraw_job(name)  # the same id with other content: the newer job counts
        return False

    def _runs(self, ticket: _Ticket) -> bool:
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

    def _is_done(self, ticket: _Ticket) -> bool:
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
            return peek(path)[0].digest
        except (EnvelopeError, FileNotFoundError):
            return None

    def _arrivals(self, wanted: dict[str, _Ticket]) -> Iterator[tuple[str, Execution]]:
        """Executions as they arrive; raises `DeviceError` after `timeout` seconds with none."""
        wanted = dict(wanted)
        last_arrival = time.monotonic()
        while wanted:
            for job_id in sorted(self._files.result_ids() & wanted.keys()):
                result = self._files.result(job_id)
                if result is not None and _answers(result, wanted[job_id]):
                    del wanted[job_id]
                    last_arrival = time.monotonic()
                    yield job_id, result.execution
            if not wanted:
                return
            if time.monotonic() - last_arrival > self._timeout:
                raise DeviceError(self._overdue(tuple(wanted)))
            time.sleep(self._poll)

    def _overdue(self, missing: tuple[str, ...]) -> str:
        running = {name.id: worker for worker, name in self._files.claims()}
        first = missing[0]
        if first in running:
            where = f"worker {running[first]} has it in hand"
        elif self._files.waiting_named(first):
            where = "it still waits"
        else:
            where = "its job file has gone"
        living = self.workers()
        serving = (
            f"{len(living)} worker(s) serve the spool" if living else f"no worker serves it: {self._how_to_start()}"
        )
        return (
            f"no result on {self.directory} for {self._timeout:g} s: {len(missing)} job(s) are not done, "
            f"{first!r} first ({where}); {serving}. The jobs stay there; collect them later by id"
        )

    def close(self) -> None:
        """Nothing to give back: the spool belongs to its workers and outlives this object."""

    def __enter__(self) -> SpoolDevice:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _answers(result: SpoolResult, ticket: _Ticket) -> bool:
    return result.digest in (ticket.digest, "")  # no digest: the job file could not be read

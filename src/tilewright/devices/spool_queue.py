"""The client's side of a spool: sealed jobs and calls go out under an id, and what became of them is waited for.

A file stays on the spool when this process dies, and so does its result: submitting the same content again under the
same id, in any later process, finds it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tilewright.devices.envelope import EnvelopeError, header_of
from tilewright.devices.liveness import Heartbeats
from tilewright.devices.protocol import DeviceError
from tilewright.devices.spool_calls import Replied
from tilewright.devices.spool_files import Announcement, SpoolFiles, SpoolResult, checked_id, peek
from tilewright.records import Execution

STALE_S = 30.0
POLL_S = 0.05


class Overdue(DeviceError):
    """No result came for too long."""


@dataclass(frozen=True)
class Ticket:
    """A job on the spool and the digest by which its result is known."""

    id: str
    digest: str


class SpoolQueue:
    """One spool as a client sees it. `timeout` is the longest it waits with no result arriving, in seconds."""

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
        # Looked for in the order in which a job moves, so that one that moves meanwhile is not missed.
        if self._waits(ticket) or self._runs(ticket) or self._is_done(ticket):
            return ticket
        self._files.put_job(job_id, content)
        return ticket

    def collect(self, job_id: str) -> Execution | Replied | None:
        """What became of a job, or None while it is not done. The result stays until `discard`."""
        result = self._files.result(checked_id(job_id))
        return result.outcome if result is not None else None

    def discard(self, job_id: str) -> None:
        """Remove a job's result from the spool."""
        self._files.discard_result(job_id)

    def take(self, ticket: Ticket, seconds: float = 0.0) -> Execution | Replied:
        """Wait for one outcome, `seconds` longer than usual, and leave nothing of it on the spool."""
        try:
            ((_, outcome),) = self.arrivals({ticket.id: ticket}, seconds)
            return outcome
        finally:
            for name in self._files.waiting_named(ticket.id):
                self._files.withdraw_job(name)
            self._files.discard_result(ticket.id)

    def arrivals(self, wanted: Mapping[str, Ticket], seconds: float = 0.0) -> Iterator[tuple[str, Execution | Replied]]:
        """Outcomes as they arrive; raises `Overdue` after `timeout` and further `seconds` with none."""
        missing = dict(wanted)
        last_arrival = time.monotonic()
        while missing:
            for job_id in sorted(self._files.result_ids() & missing.keys()):
                result = self._files.result(job_id)
                if result is not None and _answers(result, missing[job_id]):
                    del missing[job_id]
                    last_arrival = time.monotonic()
                    yield job_id, result.outcome
            if not missing:
                return
            if time.monotonic() - last_arrival > self.timeout + seconds:
                raise Overdue(self._overdue(tuple(missing), self.timeout + seconds))
            time.sleep(self.poll)

    # -- inside --

    def _waits(self, ticket: Ticket) -> bool:
        for name in self._files.waiting_named(ticket.id):
            if self._digest(self._files.waiting_path(name)) == ticket.digest:
                return True
            self._files.withdraw_job(name)  # the same id with other content: the newer job counts
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
            where = f"worker {running[first]} has it in hand"
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


def _answers(result: SpoolResult, ticket: Ticket) -> bool:
    return result.digest in (ticket.digest, "")  # no digest: the job file could not be read

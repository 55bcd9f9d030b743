"""`SpoolDevice`: GPUs on other machines, reached through a shared directory.

Jobs and calls are files in the spool, run by the workers that serve it (`python -m tilewright.worker DIR`). Each is put
there under an id of its own and taken away again with its result.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from pathlib import Path

from tilewright.child.envelope import EnvelopeKind, seal
from tilewright.child.process import check_stop
from tilewright.devices.protocol import Closing, DeviceError
from tilewright.devices.spool_files import Announcement, Heartbeats, Replied, SpoolFiles
from tilewright.records import Execution, GpuProfile, Job

STALE_S = 30.0
POLL_S = 0.05


class SpoolDevice(Closing):
    """The workers of one spool as a device.

    `timeout` is the longest wait for a result beyond the job's own limit, in seconds. `arch` selects among workers with
    different GPUs; without it the first announced worker determines `profile`. Jobs run on exactly that GPU.
    """

    def __init__(self, directory: Path | str, *, timeout: float = 600.0, arch: str | None = None) -> None:
        self.directory = Path(directory)
        self._arch = arch
        self._queue = SpoolQueue(directory, timeout)
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
                time.sleep(POLL_S)
            self._profile = suited[0].profile
        return self._profile

    def workers(self) -> tuple[Announcement, ...]:
        """The workers that serve this spool now."""
        return self._queue.workers()

    def execute(self, job: Job) -> Execution:
        """Run a job under a unique id and wait for its outcome. May be called from several threads."""
        own = replace(job, id=f"{job.id}-{uuid.uuid4().hex[:12]}")
        content = seal(EnvelopeKind.JOB, own, gpu=self.profile.name)
        outcome = self._queue.run(own.id, content, job.limits.seconds)
        if isinstance(outcome, Replied):
            raise DeviceError(f"{outcome.job!r} was a call and not a job")
        return replace(outcome, job=job.id)

    def close(self) -> None:
        """Nothing to close: the spool belongs to its workers."""


class SpoolQueue:
    """The client's view of a spool. `timeout` is the longest wait for a result, in seconds."""

    def __init__(self, directory: Path | str, timeout: float) -> None:
        self.directory = Path(directory)
        self.timeout = timeout
        self._files = SpoolFiles(directory)
        self._files.create()
        self._heartbeats = Heartbeats(self._files, STALE_S)

    def workers(self) -> tuple[Announcement, ...]:
        """The workers that serve this spool now."""
        return tuple(self._heartbeats.living().values())

    @property
    def how_to_start(self) -> str:
        return f"start `python -m tilewright.worker {self.directory}` on a machine with a GPU"

    def run(self, job_id: str, content: bytes, seconds: float = 0.0) -> Execution | Replied:
        """Put a sealed job or call on the spool under an unused id, wait for its outcome up to `seconds` longer than
        `timeout`, and remove both."""
        self._files.put_job(job_id, content)
        deadline = time.monotonic() + self.timeout + seconds
        try:
            while (result := self._files.result(job_id) if job_id in self._files.result_ids() else None) is None:
                if time.monotonic() > deadline:
                    raise DeviceError(self._overdue(job_id, self.timeout + seconds))
                check_stop()
                time.sleep(POLL_S)
            return result.outcome
        finally:
            for name in self._files.waiting_named(job_id):
                self._files.withdraw_job(name)
            self._files.discard_result(job_id)

    def _overdue(self, job_id: str, seconds: float) -> str:
        running = {name.id: worker for worker, name in self._files.claims()}
        where = "its job file has gone"
        if job_id in running:
            where = f"worker {running[job_id]} is running it"
        elif self._files.waiting_named(job_id):
            where = "it still waits"
        living = self.workers()
        gpus = ", ".join(sorted({one.profile.name for one in living}))
        serving = f"no worker serves it: {self.how_to_start}"
        if living:
            serving = f"{len(living)} worker(s) serve the spool ({gpus})"
        return f"no result of {job_id!r} on {self.directory} for {seconds:g} s ({where}); {serving}"

"""Workers of a spool as processes, for tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.devices.scripted_jobs import WORKER
from tests.waiting import wait_until

from tilewright.child.envelope import EnvelopeKind, seal
from tilewright.devices.spool import SpoolDevice
from tilewright.devices.spool_files import SpoolFiles
from tilewright.records import Execution, Job


class Client(SpoolDevice):
    """Puts jobs on a spool under their own ids, and leaves the results there."""

    def submit(self, job: Job) -> None:
        SpoolFiles(self.directory).put_job(job.id, seal(EnvelopeKind.JOB, job))

    def collect(self, job_id: str) -> Execution | None:
        result = SpoolFiles(self.directory).result(job_id)
        assert result is None or isinstance(result.outcome, Execution)
        return result.outcome if result is not None else None

    def awaited(self, job_id: str) -> Execution:
        wait_until(lambda: self.collect(job_id) is not None)
        found = self.collect(job_id)
        assert found is not None
        return found

    def run_all(self, jobs: list[Job]) -> list[Execution]:
        for job in jobs:
            self.submit(job)
        return [self.awaited(job.id) for job in jobs]


class Workers:
    """Starts workers on a spool, in a given environment, and ends those that are left."""

    def __init__(self, spool: Path) -> None:
        self._spool = spool
        self._started: list[subprocess.Popen[str]] = []

    def __call__(self, *options: str, **environment: str) -> subprocess.Popen[str]:
        command = [*WORKER, str(self._spool), "--poll", "0.02", "--stale", "20", *options]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | environment)
        self._started.append(process)
        return process

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()


def is_running(spool: Path, job_id: str, attempt: int = 1) -> bool:
    return any((name.id, name.attempt) == (job_id, attempt) for _, name in SpoolFiles(spool).claims())


def children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []

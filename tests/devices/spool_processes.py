"""Workers of a spool as processes, for tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.devices.scripted_jobs import WORKER

from tilewright.devices.spool_files import SpoolFiles


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

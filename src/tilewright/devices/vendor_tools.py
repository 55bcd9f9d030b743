"""Runs a job under ncu or compute-sanitizer: finds the tool, starts it, and enforces the time limit."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.child import family
from tilewright.child.envelope import EnvelopeKind, seal
from tilewright.child.environment import child_environment
from tilewright.child.process import TICK_S, Interrupted, check_stop
from tilewright.records import Job


class ToolUnavailable(Exception):
    """The tool could not run the job; the message has cause and remedy."""


@dataclass(frozen=True)
class VendorTool:
    """An NVIDIA tool: executable, display name, and where it may be installed."""

    name: str
    title: str
    variable: str  # environment variable that overrides the search: a path, or empty to disable the tool
    places: tuple[str, ...]

    def find(self) -> str | None:
        chosen = os.environ.get(self.variable)
        if chosen is not None:
            return chosen or None
        found = (path for one in self.places for path in sorted(Path("/").glob(one.lstrip("/")), reverse=True))
        return shutil.which(self.name) or next((str(path) for path in found if os.access(path, os.X_OK)), None)

    def path(self) -> str:
        """Its path; raises `ToolUnavailable` where it is not installed."""
        found = self.find()
        if found is None:
            raise ToolUnavailable(f"{self.title} is not installed; install it, or name it in {self.variable}")
        return found


@contextlib.contextmanager
def job_folder(job: Job) -> Iterator[Path]:
    """A temporary folder with the job."""
    with tempfile.TemporaryDirectory(prefix="tilewright-watch-", ignore_cleanup_errors=True) as folder:
        (Path(folder) / "job").write_bytes(seal(EnvelopeKind.JOB, job))
        yield Path(folder)


def program(folder: Path, index: int) -> tuple[str, ...]:
    """The command that runs the job of a folder on GPU `index` and writes its tensors' addresses there."""
    return (sys.executable, "-m", "tilewright.devices.runner_program", "watched", str(folder), "--device", str(index))


def run_tool(
    command: Sequence[str],
    folder: Path,
    seconds: float,
    interrupt: Callable[[], bool],
    more: Mapping[str, str] | None = None,
) -> str:
    """The output of a command. On a timeout its process tree is killed and `ToolUnavailable` raised.

    Its standard input stays open while this process lives, so that its children can end with us.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=folder,
        env=child_environment(str(folder)) | dict(more or {}),
        start_new_session=True,
    )
    stdin, process.stdin = process.stdin, None  # else `communicate` closes it
    deadline = time.monotonic() + seconds
    try:
        while True:
            try:
                return process.communicate(timeout=TICK_S)[0]
            except subprocess.TimeoutExpired:
                check_stop()
                if interrupt():
                    raise Interrupted from None
                if time.monotonic() > deadline:
                    raise ToolUnavailable(f"{Path(command[0]).name} was not done after {seconds:g} s") from None
    finally:
        if process.poll() is None:
            family.kill_below(process.pid)
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        if stdin is not None:
            stdin.close()

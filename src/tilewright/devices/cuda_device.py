"""`CudaDevice`: a local GPU behind a child process.

Running kernels in the caller's own process is `devices.cuda`'s business; nothing here imports torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from tilewright.child.process import uninterrupted
from tilewright.devices.child_device import ChildDevice
from tilewright.devices.profiler import profile_job
from tilewright.devices.sanitizer import sanitize_job
from tilewright.devices.watching import NotWatched
from tilewright.records import Completed, Execution, Job, Watch

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
        """Run one job; one that is watched runs under a tool of the vendor's, in a child of its own."""
        if job.watch is Watch.NOTHING:
            return super().execute(job)
        name = self.profile.name
        try:
            with self._lock:
                if job.watch is Watch.COUNTERS:
                    return Completed(job.id, name, (), (), profiles=profile_job(job, self.index, self._interrupt))
                return Completed(job.id, name, (), (), faults=sanitize_job(job, self.index, self._interrupt))
        except NotWatched as reason:
            return Completed(job.id, name, (), (), not_watched=str(reason))

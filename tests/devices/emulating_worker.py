"""A worker, and its runner child, whose GPU is the emulator and whose clock is a pretence: the rest is real."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

from tilewright.devices.emulation.engine import EmulatorEngine
from tilewright.devices.runner import JobFinished, Progress, serve
from tilewright.records import PROFILES, Completed, Emulation, Job

WORKER = (sys.executable, __file__)


class PretendingEngine(EmulatorEngine):
    """Runs every job once; one that is to be timed answers with times that are not."""

    def run(self, job: Job, report: Callable[[Progress], None]) -> JobFinished:
        if job.timed_runs:
            times = tuple(100.0 + number for number in range(job.timed_runs))
            return JobFinished(Completed(job.id, self.profile.name, (), times), fit=True)
        finished = super().run(replace(job, emulation=Emulation(instruction_budget=10**10)), report)
        if isinstance(finished.execution, Completed):
            return JobFinished(replace(finished.execution, device=self.profile.name, emulated=None), fit=True)
        return finished


if __name__ == "__main__":
    if "--replies" in sys.argv:
        sys.exit(serve(sys.argv[1:], lambda own: PretendingEngine(PROFILES["H200"])))
    from tilewright.worker import main

    sys.exit(main(command=WORKER))

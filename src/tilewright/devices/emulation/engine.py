"""Runs jobs in the emulator of this process; used inside the emulating runner child."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tilewright import records
from tilewright.devices.contents import ContentError
from tilewright.devices.emulation.input_content import input_bytes
from tilewright.devices.emulation.plan_memory import Perturbation, PlanMemory, job_memory, written_parts
from tilewright.devices.emulation.plan_run import LaunchNotEmulable, LaunchRefused, LibraryRefused, PlanOutcome
from tilewright.devices.emulation.programs import program_of
from tilewright.devices.emulation.schedules import run_schedules
from tilewright.devices.runner import JobFault, JobFinished, Progress, RunStage, check_job, name_of
from tilewright.ptx.global_memory import Bytes
from tilewright.ptx.syntax import PtxError
from tilewright.records import FaultKind, FindingKind, GpuProfile, Job, LibraryCall, PackedLaunch

if TYPE_CHECKING:
    from tilewright.ptx.program import Program

Report = Callable[[Progress], None]
MIB = 1 << 20

_FAULT_OF = {
    FindingKind.TRAP: FaultKind.DEVICE_ASSERT,
    FindingKind.ASSERTION: FaultKind.DEVICE_ASSERT,
    FindingKind.BAD_CALL: FaultKind.ILLEGAL_ACCESS,
}


class EmulatorEngine:
    """The emulator as `profile`, one job at a time."""

    def __init__(self, profile: GpuProfile) -> None:
        self.profile = profile

    @property
    def versions(self) -> tuple[tuple[str, str], ...]:
        return (("python", platform.python_version()), ("numpy", np.__version__))

    def run(self, job: Job, report: Report) -> JobFinished:
        """Run one job; faults are returned."""
        execution: records.Execution
        try:
            execution = self._completed(job, report)
        except JobFault as fault:
            execution = fault.execution(job, label(self.profile))
        except MemoryError:
            message = "the job needs more memory than this process may use; use smaller shapes"
            execution = JobFault(FaultKind.MEMORY, message).execution(job, label(self.profile))
        return JobFinished(execution, fit=True)

    def _completed(self, job: Job, report: Report) -> records.Completed:
        check_job(job, self.profile)
        _check_emulable(job)
        report(Progress(RunStage.LOADING))
        program = self._program(job)
        report(Progress(RunStage.INPUTS))
        try:
            contents = {one.name: input_bytes(one) for one in job.inputs if one.name not in job.emulation.unknown}
        except ContentError as error:
            raise JobFault(FaultKind.BROKEN_JOB, str(error)) from error
        if job.emulation.addresses:
            return self._followed(job, program, contents)
        run = self._run(job, program, contents, report)
        report(Progress(RunStage.RETURNING))
        outputs, *others = (
            tuple(records.ReturnedTensor(n, memory.spec(n), memory.content(n).tobytes()) for n in job.returns)
            for memory in (run.memory, *run.others)
        )
        emulated = replace(run.emulated, written=written_parts(job, run.memory))
        return records.Completed(job.id, label(self.profile), outputs, (), emulated, other_outputs=tuple(others))

    def _followed(self, job: Job, program: Program | None, contents: dict[str, Bytes]) -> records.Completed:
        from tilewright.devices.emulation.address_run import follow_addresses  # needs the compiled core

        if program is None:
            raise JobFault(FaultKind.BROKEN_JOB, "no step launches a kernel, so there are no addresses to follow")
        found = follow_addresses(job, program, contents)
        return records.Completed(job.id, label(self.profile), (), (), addresses=found)

    def _run(self, job: Job, program: Program | None, contents: dict[str, Bytes], report: Report) -> PlanOutcome:
        def announce(number: int, step: PackedLaunch | LibraryCall) -> None:
            report(Progress(RunStage.STEP, number, name_of(step), step.line))

        def memory(circumstances: Perturbation) -> PlanMemory:
            return job_memory(job, contents, circumstances)

        try:
            run = run_schedules(program, job.plan, memory, job.emulation, job.returns, announce)
        except LaunchNotEmulable as error:
            message = f"{error.step.kernel} (line {error.step.line}) cannot be emulated: {error}"
            raise JobFault(FaultKind.UNSUITABLE, message, error.step) from error
        except LaunchRefused as error:
            raise JobFault(FaultKind.LAUNCH_REFUSED, str(error), error.step) from error
        except LibraryRefused as error:
            raise JobFault(FaultKind.OTHER, str(error), error.step) from error
        except KeyError as error:
            message = f"the plan uses {error}, which is neither an input nor a buffer of the job"
            raise JobFault(FaultKind.BROKEN_JOB, message) from error
        if run.stopped_by is not None:
            kind = _FAULT_OF.get(run.stopped_by.kind, FaultKind.STOPPED)
            raise JobFault(kind, str(run.stopped_by), run.stopped_at, run.emulated)
        if run.counter_left is not None:
            last = next(step for step in job.plan.steps if step.line == run.counter_left.launch_line)
            raise JobFault(FaultKind.STATE, str(run.counter_left), last, run.emulated)
        return run

    def _program(self, job: Job) -> Program | None:
        if not job.plan.launches:
            return None
        if job.ptx is None:
            raise JobFault(FaultKind.BROKEN_JOB, "the job has no PTX to emulate; give Job(ptx=build.ptx)")
        try:
            return program_of(hashlib.sha256(job.ptx.encode()).hexdigest(), job.ptx)
        except PtxError as error:
            raise JobFault(FaultKind.LOAD_REFUSED, f"the job's PTX cannot be read: {error}") from error


def label(profile: GpuProfile) -> str:
    """The device name in execution records, which marks emulated results."""
    return f"{profile.name} (emulated)"


def _check_emulable(job: Job) -> None:
    if job.timed_runs:
        raise JobFault(FaultKind.UNSUITABLE, "an emulator measures no time; ask for timed_runs=0, or run it on a GPU")
    specs = [*(one.spec for one in job.inputs), *(buffer.spec for buffer in job.plan.buffers)]
    needed = sum(spec.storage_bytes for spec in specs)
    if needed > job.limits.device_bytes:
        raise JobFault(
            FaultKind.MEMORY,
            f"inputs, outputs and scratch take {needed / MIB:.1f} MiB, the job's limit is "
            f"{job.limits.device_bytes / MIB:.1f} MiB; raise the limit or use smaller shapes",
        )

"""Runs jobs in the emulator of this process: the inside of the emulating runner child."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tilewright.devices.emulation.drawing import BadContent
from tilewright.devices.emulation.job_memory import input_bytes, job_memory
from tilewright.devices.emulation.library import LibraryRefused
from tilewright.devices.emulation.plan_memory import Bytes, PlanMemory
from tilewright.devices.emulation.plan_run import LaunchRefused, NotEmulable
from tilewright.devices.emulation.programs import program_of
from tilewright.devices.emulation.schedules import ScheduledRun, run_schedules
from tilewright.devices.runner import JobFinished, Progress, RunStage
from tilewright.ptx.syntax import PtxError
from tilewright.records import (
    ARCHITECTURES,
    Completed,
    EmulatedRun,
    Execution,
    Faulted,
    FaultKind,
    FindingKind,
    GpuProfile,
    Job,
    LibraryCall,
    PackedLaunch,
    ReturnedTensor,
    runs_on,
)

if TYPE_CHECKING:
    from tilewright.ptx.program import Program

Report = Callable[[Progress], None]
MIB = 1 << 20

_FAULT_OF = {
    FindingKind.TRAP: FaultKind.DEVICE_ASSERT,
    FindingKind.ASSERTION: FaultKind.DEVICE_ASSERT,
    FindingKind.BAD_CALL: FaultKind.ILLEGAL_ACCESS,
}


class _Fault(Exception):
    """A job's fault on its way out."""

    def __init__(
        self,
        kind: FaultKind,
        message: str,
        step: PackedLaunch | LibraryCall | None = None,
        emulated: EmulatedRun | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.step = step
        self.emulated = emulated


class EmulatorEngine:
    """The emulator as `profile`, one job at a time."""

    def __init__(self, profile: GpuProfile) -> None:
        self.profile = profile

    @property
    def versions(self) -> tuple[tuple[str, str], ...]:
        return (("python", platform.python_version()), ("numpy", np.__version__))

    def run(self, job: Job, report: Report) -> JobFinished:
        """One job to its end; a fault is a value."""
        execution: Execution
        try:
            execution = self._completed(job, report)
        except _Fault as fault:
            execution = self._faulted(job, fault)
        except MemoryError:
            execution = self._faulted(
                job,
                _Fault(FaultKind.MEMORY, "this process may not have the memory that the job needs; use smaller shapes"),
            )
        return JobFinished(execution, fit=True)

    def _faulted(self, job: Job, fault: _Fault) -> Faulted:
        step = fault.step
        name, line = (None, None) if step is None else (_name(step), step.line)
        return Faulted(job.id, label(self.profile), fault.kind, fault.message, name, line, fault.emulated)

    def _completed(self, job: Job, report: Report) -> Completed:
        check_job(job, self.profile)
        report(Progress(RunStage.LOADING))
        program = self._program(job)
        report(Progress(RunStage.INPUTS))
        try:
            contents = {one.name: input_bytes(one) for one in job.inputs}
        except BadContent as error:
            raise _Fault(FaultKind.BROKEN_JOB, str(error)) from error
        run = self._run(job, program, contents, report)
        report(Progress(RunStage.RETURNING))
        outputs = tuple(_returned(name, run.memory) for name in job.returns)
        return Completed(job.id, label(self.profile), outputs, (), run.emulated)

    def _run(self, job: Job, program: Program | None, contents: dict[str, Bytes], report: Report) -> ScheduledRun:
        def announce(number: int, step: PackedLaunch | LibraryCall) -> None:
            report(Progress(RunStage.STEP, number, _name(step), step.line))

        def memory() -> PlanMemory:
            return job_memory(job, contents)

        try:
            run = run_schedules(program, job.plan, memory, job.emulation, job.returns, announce)
        except NotEmulable as error:
            message = f"{error.step.kernel} (line {error.step.line}) cannot be emulated: {error}"
            raise _Fault(FaultKind.UNSUITABLE, message, error.step) from error
        except LaunchRefused as error:
            raise _Fault(FaultKind.LAUNCH_REFUSED, str(error), error.step) from error
        except LibraryRefused as error:
            raise _Fault(FaultKind.OTHER, str(error), error.call) from error
        except KeyError as error:
            message = f"the plan uses {error}, which is neither an input nor a buffer of the job"
            raise _Fault(FaultKind.BROKEN_JOB, message) from error
        if run.stopped_by is not None:
            kind = _FAULT_OF.get(run.stopped_by.kind, FaultKind.STOPPED)
            raise _Fault(kind, str(run.stopped_by), run.stopped_at, run.emulated)
        if run.counter_left is not None:
            last = next(step for step in job.plan.steps if step.line == run.counter_left.launch_line)
            raise _Fault(FaultKind.STATE, str(run.counter_left), last, run.emulated)
        return run

    def _program(self, job: Job) -> Program | None:
        if not any(isinstance(step, PackedLaunch) for step in job.plan.steps):
            return None
        if job.ptx is None:
            raise _Fault(FaultKind.BROKEN_JOB, "the job has no PTX, which is what is emulated; give Job(ptx=build.ptx)")
        try:
            return program_of(hashlib.sha256(job.ptx.encode()).hexdigest(), job.ptx)
        except PtxError as error:
            raise _Fault(FaultKind.LOAD_REFUSED, f"the job's PTX cannot be read: {error}") from error


def label(profile: GpuProfile) -> str:
    """What executions call the device: an emulated answer is never taken for a measured one."""
    return f"{profile.name} (emulated)"


def check_job(job: Job, profile: GpuProfile) -> None:
    if job.arch not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise _Fault(FaultKind.BROKEN_JOB, f"{job.arch!r} is no architecture known here; they are {known}")
    if not runs_on(job.arch, profile.cc):
        message = f"the job is built for {job.arch} and {profile.name} is emulated, {profile.arch}: build it for that"
        raise _Fault(FaultKind.UNSUITABLE, message)
    if job.timed_runs:
        raise _Fault(FaultKind.UNSUITABLE, "an emulator measures no time; ask for timed_runs=0, or run it on a GPU")
    names = (*(one.name for one in job.inputs), *(buffer.name for buffer in job.plan.buffers))
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise _Fault(FaultKind.BROKEN_JOB, f"the job gives {twice!r} twice; every tensor needs its own name")
    missing = next((name for name in job.returns if name not in names), None)
    if missing is not None:
        raise _Fault(FaultKind.BROKEN_JOB, f"the job returns {missing!r}, which is neither input nor output")
    launches = (step for step in job.plan.steps if isinstance(step, PackedLaunch))
    unsettled = next((launch for launch in launches if launch.late), None)
    if unsettled is not None:
        message = f"{unsettled.kernel} (line {unsettled.line}) lacks numbers of the call; settle the plan first"
        raise _Fault(FaultKind.BROKEN_JOB, message, unsettled)
    specs = [*(one.spec for one in job.inputs), *(buffer.spec for buffer in job.plan.buffers)]
    needed = sum(spec.storage_bytes for spec in specs)
    if needed > job.limits.device_bytes:
        raise _Fault(
            FaultKind.MEMORY,
            f"inputs, outputs and scratch take {needed / MIB:.1f} MiB, the job's limit is "
            f"{job.limits.device_bytes / MIB:.1f} MiB; raise the limit or use smaller shapes",
        )


def _returned(name: str, memory: PlanMemory) -> ReturnedTensor:
    return ReturnedTensor(name, memory.spec(name), memory.content(name).tobytes())


def _name(step: PackedLaunch | LibraryCall) -> str:
    return step.kernel if isinstance(step, PackedLaunch) else step.function

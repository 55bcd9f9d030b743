"""Runs jobs in the emulator of this process: the inside of the emulating runner child."""

from __future__ import annotations

import platform
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from tilewright.devices.emulation.job_memory import BadContent, input_bytes, job_memory
from tilewright.devices.emulation.library import LibraryRefused
from tilewright.devices.emulation.plan_memory import Bytes, PlanMemory
from tilewright.devices.emulation.plan_run import NotEmulable, PlanOutcome, last_user, run_plan, without_counters
from tilewright.devices.emulation.schedules import merged
from tilewright.devices.messages import Finished, Progress, Stage
from tilewright.ptx.program import Program, load_program
from tilewright.ptx.syntax import PtxError
from tilewright.records import (
    ARCHITECTURES,
    Completed,
    EmulatedRun,
    Execution,
    Faulted,
    FaultKind,
    FindingKind,
    FindingRecord,
    GpuProfile,
    Job,
    LibraryCall,
    PackedLaunch,
    ReturnedTensor,
    runs_on,
)

Report = Callable[[Progress], None]
MIB = 1 << 20
_MOST_PROGRAMS = 8

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
        self._programs: OrderedDict[str, Program] = OrderedDict()

    @property
    def versions(self) -> tuple[tuple[str, str], ...]:
        return (("python", platform.python_version()), ("numpy", np.__version__))

    def run(self, job: Job, report: Report) -> Finished:
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
        return Finished(execution, fit=True)

    def _faulted(self, job: Job, fault: _Fault) -> Faulted:
        step = fault.step
        name = None if step is None else step.kernel if isinstance(step, PackedLaunch) else step.function
        line = None if step is None else step.line
        return Faulted(job.id, label(self.profile), fault.kind, fault.message, name, line, fault.emulated)

    def _completed(self, job: Job, report: Report) -> Completed:
        check_job(job, self.profile)
        report(Progress(Stage.LOADING))
        program = self._program(job)
        report(Progress(Stage.INPUTS))
        try:
            contents = {one.name: input_bytes(one) for one in job.inputs}
        except BadContent as error:
            raise _Fault(FaultKind.BROKEN_JOB, str(error)) from error
        run = _JobSchedules(job, program, contents, report)
        run.all()
        report(Progress(Stage.RETURNING))
        return Completed(job.id, label(self.profile), run.outputs, (), run.emulated())

    def _program(self, job: Job) -> Program | None:
        if not any(isinstance(step, PackedLaunch) for step in job.plan.steps):
            return None
        if job.ptx is None:
            raise _Fault(FaultKind.BROKEN_JOB, "the job has no PTX, which is what is emulated; give Job(ptx=build.ptx)")
        known = self._programs.get(job.ptx)
        if known is None:
            try:
                known = self._programs[job.ptx] = load_program(job.ptx)
            except PtxError as error:
                raise _Fault(FaultKind.LOAD_REFUSED, f"the job's PTX cannot be read: {error}") from error
        self._programs.move_to_end(job.ptx)
        while len(self._programs) > _MOST_PROGRAMS:
            self._programs.popitem(last=False)
        return known


class _JobSchedules:
    """One job under each of its schedules; the outputs are those of the first."""

    def __init__(self, job: Job, program: Program | None, contents: dict[str, Bytes], report: Report) -> None:
        self._job = job
        self._program = program
        self._contents = contents
        self._report = report
        self._outcomes: list[PlanOutcome] = []
        self._varying: set[str] = set()
        self.outputs: tuple[ReturnedTensor, ...] = ()

    def all(self) -> None:
        job = self._job
        for number in range(job.emulation.schedules):
            memory = job_memory(job, self._contents)
            outcome = self._run(memory, number)
            self._outcomes.append(outcome)
            self._refuse(outcome)
            outputs = _outputs(job, memory)
            if number == 0:
                self.outputs = outputs
            self._varying |= {a.name for a, b in zip(self.outputs, outputs, strict=True) if a.content != b.content}

    def _run(self, memory: PlanMemory, number: int) -> PlanOutcome:
        job = self._job
        emulation = job.emulation if number == 0 else without_counters(job.emulation)

        def announce(index: int, step: PackedLaunch | LibraryCall) -> None:
            name = step.kernel if isinstance(step, PackedLaunch) else step.function
            self._report(Progress(Stage.STEP, index, name, step.line))

        try:
            return run_plan(self._program, job.plan, memory, emulation, job.emulation.schedule_seed(number), announce)
        except NotEmulable as error:
            message = f"{error.step.kernel} (line {error.step.line}) cannot be emulated: {error}"
            raise _Fault(FaultKind.UNSUITABLE, message, error.step) from error
        except LibraryRefused as error:
            raise _Fault(FaultKind.OTHER, str(error), error.call) from error
        except KeyError as error:
            message = f"the plan uses {error}, which is neither an input nor a buffer of the job"
            raise _Fault(FaultKind.BROKEN_JOB, message) from error

    def _refuse(self, outcome: PlanOutcome) -> None:
        stopped = outcome.stopped_by
        if stopped is not None:
            kind = _FAULT_OF.get(stopped.kind, FaultKind.STOPPED)
            raise _Fault(kind, describe(stopped), outcome.stopped_at, self.emulated())
        left = outcome.counter_left
        if left is not None:
            message = (
                f"the plan left counter {left.name}[{left.index}] at {left.value}; "
                "the last block that uses a counter must set it back to 0"
            )
            raise _Fault(FaultKind.STATE, message, last_user(self._job.plan, left.name), self.emulated())

    def emulated(self) -> EmulatedRun:
        outcomes = self._outcomes
        return EmulatedRun(
            findings=merged(outcome.findings for outcome in outcomes),
            counts=outcomes[0].counts,
            thread_instructions=outcomes[0].thread_instructions,
            schedules=len(outcomes),
            varying=tuple(sorted(self._varying)),
            printed=outcomes[0].printed,
            seconds=sum(outcome.seconds for outcome in outcomes),
        )


def label(profile: GpuProfile) -> str:
    """What executions call the device: an emulated answer is never taken for a measured one."""
    return f"{profile.name} (emulated)"


def describe(finding: FindingRecord) -> str:
    """One finding in one sentence."""
    at = f"line {finding.line}" if finding.line is not None else f"PTX line {finding.ptx_line}"
    thread = ""
    if finding.thread is not None:
        thread = f", block {finding.thread.block} thread {finding.thread.thread}"
    more = f" ({finding.count} times)" if finding.count > 1 else ""
    parts = [f"{finding.kernel}, {at}{thread}: {finding.kind.value}", finding.where, finding.detail]
    return ": ".join(part for part in parts if part) + more


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
    needed = sum(one.spec.storage_bytes for one in (*job.inputs, *job.plan.buffers))
    if needed > job.limits.device_bytes:
        raise _Fault(
            FaultKind.MEMORY,
            f"inputs, outputs and scratch take {needed / MIB:.1f} MiB, the job's limit is "
            f"{job.limits.device_bytes / MIB:.1f} MiB; raise the limit or use smaller shapes",
        )


def _outputs(job: Job, memory: PlanMemory) -> tuple[ReturnedTensor, ...]:
    return tuple(ReturnedTensor(name, memory.spec(name), bytes(memory.content(name).tobytes())) for name in job.returns)

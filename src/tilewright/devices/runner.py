"""The runner child's protocol: it runs the jobs it is sent and reports each stage before it starts.

An `Engine` runs the jobs, on a GPU or in the emulator; `runner_program` opens it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tilewright.child.envelope import EnvelopeError, EnvelopeKind, record_in
from tilewright.child.inside import open_channel
from tilewright.records import (
    ARCHITECTURES,
    EmulatedRun,
    Execution,
    Faulted,
    FaultKind,
    GpuProfile,
    Job,
    LibraryCall,
    PackedLaunch,
    runs_on,
)


class RunStage(str, Enum):
    """What the child is about to do."""

    LOADING = "loading the module"
    INPUTS = "making the inputs"
    STEP = "running a step"
    WHOLE = "running all steps together"
    TIMING = "timing"
    RETURNING = "returning the outputs"


@dataclass(frozen=True)
class RunnerReady:
    """The child has opened its device and waits for jobs."""

    profile: GpuProfile
    versions: tuple[tuple[str, str], ...]  # ("torch", "2.11.0"), ...


@dataclass(frozen=True)
class RunnerUnready:
    """The child could not open its device, and ends."""

    reason: str


@dataclass(frozen=True)
class Progress:
    """Sent before each stage, so that a hang or crash can be attributed."""

    stage: RunStage
    step: int | None = None  # from 0
    kernel: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        if self.kernel is None or self.step is None:
            return self.stage.value
        doing = "running" if self.stage is RunStage.STEP else self.stage.value
        return f"{doing} step {self.step + 1}: {self.kernel} (line {self.line})"


@dataclass(frozen=True)
class JobFinished:
    """A job's end. A child that is not `fit` (its CUDA context is lost) ends and must be replaced."""

    execution: Execution
    fit: bool


RunnerMessage = RunnerReady | RunnerUnready | Progress | JobFinished  # the parent sends only jobs


class Engine(Protocol):
    """Runs jobs in this process."""

    @property
    def profile(self) -> GpuProfile: ...

    @property
    def versions(self) -> tuple[tuple[str, str], ...]: ...

    def run(self, job: Job, report: Callable[[Progress], None]) -> JobFinished: ...


class JobFault(Exception):
    """A fault of a job, raised inside an engine."""

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

    def execution(self, job: Job, device: str) -> Faulted:
        """The fault as an execution record."""
        name, line = (None, None) if self.step is None else (name_of(self.step), self.step.line)
        return Faulted(job.id, device, self.kind, self.message, name, line, self.emulated)


def name_of(step: PackedLaunch | LibraryCall) -> str:
    return step.kernel if isinstance(step, PackedLaunch) else step.function


def check_job(job: Job, profile: GpuProfile) -> None:
    """Raises `JobFault` for a job that is invalid or does not fit this device."""
    if job.arch not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise JobFault(FaultKind.BROKEN_JOB, f"{job.arch!r} is no architecture known here; they are {known}")
    if not runs_on(job.arch, profile.cc):
        raise JobFault(
            FaultKind.UNSUITABLE,
            f"the job is built for {job.arch} and this device is {profile.name}, {profile.arch}: build it for that",
        )
    names = (*(one.name for one in job.inputs), *(buffer.name for buffer in job.plan.buffers))
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise JobFault(FaultKind.BROKEN_JOB, f"the job gives {twice!r} twice; every tensor needs its own name")
    missing = next((name for name in (*job.returns, *job.digests) if name not in names), None)
    if missing is not None:
        raise JobFault(FaultKind.BROKEN_JOB, f"the job returns {missing!r}, which is neither input nor output")
    unsettled = next((launch for launch in job.plan.launches if launch.late), None)
    if unsettled is not None:
        message = f"{unsettled.kernel} (line {unsettled.line}) lacks late numbers; call `settle` on the plan first"
        raise JobFault(FaultKind.BROKEN_JOB, message, unsettled)


class EngineRefused(Exception):
    """The engine cannot open its device; the message has cause and remedy."""


def serve(arguments: Sequence[str], open_engine: Callable[[list[str]], Engine]) -> int:
    """Serve jobs until the parent exits or the engine is no longer usable. Returns the exit status.

    `open_engine` gets the arguments that are not the supervisor's.
    """
    channel, own = open_channel(arguments)
    try:
        engine = open_engine(own)
        channel.say(RunnerReady(engine.profile, engine.versions))
    except EngineRefused as refused:
        channel.say(RunnerUnready(str(refused)))
        return 3
    while True:
        envelope = channel.next()
        try:
            finished = engine.run(record_in(envelope, EnvelopeKind.JOB, Job), channel.say)
        except EnvelopeError as error:
            job_id = envelope.record.get("id") if isinstance(envelope.record, dict) else None
            message = f"the runner cannot read the job: {error}"
            finished = JobFinished(Faulted(str(job_id), engine.profile.name, FaultKind.BROKEN_JOB, message), True)
        channel.say(finished)
        if not finished.fit:
            return 0

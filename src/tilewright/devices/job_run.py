"""One job's run, from checks to outputs.

A plan is first run step by step, with a synchronisation after each, so that every fault has a kernel and a line. A plan
of several steps is then run as a whole on fresh inputs and poisoned memory, because only then do its steps overlap as
they will in use; that run's outputs are returned. A checked job is called once more. All memory is allocated here
(`job_memory`): the executor gets outputs and scratch as inputs, so that they can be poisoned before and read after.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from tilewright.devices.cuda.driver import DriverError, ErrorPhase, explain_error
from tilewright.devices.cuda.library_steps import LibraryStepError
from tilewright.devices.inputs import COLD_L2, allocation_bytes, bitwise_equal, rotating_sets
from tilewright.devices.job_memory import IpcAllocator, JobMemory, JobTensors, digest_of
from tilewright.devices.runner import JobFault, Progress, RunStage, check_job, name_of
from tilewright.records import (
    BoundPlan,
    Buffer,
    Clearing,
    Completed,
    Digest,
    FaultKind,
    GpuConditions,
    GpuProfile,
    Job,
    LibraryCall,
    PackedLaunch,
    ReturnedTensor,
    SharedTensor,
)

Report = Callable[[Progress], None]
Results = tuple[torch.Tensor, ...]
MIB = 1 << 20
_CONCURRENT_CALLS = 4  # each on its own stream and memory
_MOST_CONCURRENT_BYTES = 32 * MIB


class Runnable(Protocol):
    """A prepared plan."""

    def run(self, tensors: Results, late: tuple[int | float | bool, ...]) -> Results: ...


class Executes(Protocol):
    """Prepares plans: `devices.cuda.executor.Executor`."""

    @property
    def profile(self) -> GpuProfile: ...

    def prepare(self, cubin: bytes, plan: BoundPlan, inputs: tuple[str, ...], results: tuple[str, ...]) -> Runnable: ...


class TimedStream(Protocol):
    """Synchronises and times work; raises `DriverError` for faults of kernels."""

    def wait(self) -> None: ...

    def warm_up(self) -> None: ...

    def elapsed_us(self, work: Callable[[], object]) -> float: ...

    def conditions(self) -> GpuConditions | None: ...

    def at_once(self, calls: Sequence[Callable[[], object]]) -> None:
        """Start each call on its own stream, then wait for all."""
        ...


@dataclass(frozen=True)
class _Timed:
    """The outcome of the timed runs."""

    run_us: tuple[float, ...] = ()
    digests: tuple[Digest, ...] = ()
    conditions: GpuConditions | None = None


class JobRun:
    """One job's run, from checks to outputs."""

    def __init__(
        self,
        job: Job,
        executor: Executes,
        stream: TimedStream,
        device: torch.device,
        report: Report,
        lender: IpcAllocator | None = None,
    ) -> None:
        self._job = job
        self._plan = job.plan
        self._executor = executor
        self._stream = stream
        self._device = device
        self._report = report
        self._input_names = tuple(one.name for one in job.inputs)
        self._memory = JobMemory(job, device, lender)
        self._tensors = JobTensors({}, {})

    def outcome(self) -> Completed:
        self._check()
        self._report(Progress(RunStage.INPUTS))
        self._tensors = self._memory.allocate(guarded=True)
        self._reset()
        self._run_by_steps()
        timed = _Timed()
        differing: tuple[str, ...] = ()
        if len(self._plan.steps) > 1 or self._job.timed_runs or self._job.checked:
            self._report(Progress(RunStage.LOADING))
            whole, names = self._prepare_whole()
            if len(self._plan.steps) > 1:
                self._run_whole(whole, names)
            if self._job.checked:
                differing = self._called_again(whole, names)
            returned, digests = self._returned(), self._digests()
            timed = self._timed(whole, names, digests)
        else:
            returned, digests = self._returned(), self._digests()
        self._memory.check_guards(self._tensors)
        bytes_of = tuple(one for one in returned if isinstance(one, ReturnedTensor))
        shared = tuple(one for one in returned if isinstance(one, SharedTensor))
        name = self._executor.profile.name
        return Completed(
            self._job.id,
            name,
            bytes_of,
            timed.run_us,
            shared=shared,
            differing=differing,
            digests=(*digests, *timed.digests),
            conditions=timed.conditions,
        )

    def run_under_tool(
        self, on_addresses: Callable[[dict[str, int]], object], profiled: Callable[[Callable[[], None]], None]
    ) -> None:
        """Run the plan once without and once inside `profiled`, on fresh inputs.

        `on_addresses` gets the address of every tensor before anything runs.
        """
        self._check()
        self._tensors = self._memory.allocate(guarded=False)  # the tool checks the memory around them
        on_addresses({name: one.storage.data_ptr() for name, one in self._tensors.all.items()})
        self._reset()
        self._run_by_steps()
        whole, names = self._prepare_whole()
        self._reset()

        def call() -> None:
            self._start(whole, names, None, "a profiled run")
            self._await(None, "a profiled run")

        profiled(call)

    # -- before anything runs --

    def _check(self) -> None:
        check_job(self._job, self._executor.profile)
        cubin = self._job.cubin  # the driver trusts a module's own length, so a truncated one must not reach it
        whole = cubin[:4] == b"\x7fELF" and len(cubin) >= 64
        if whole:
            (section_table,) = struct.unpack_from("<Q", cubin, 0x28)
            entry_bytes, entries = struct.unpack_from("<HH", cubin, 0x3A)
            whole = section_table + entry_bytes * entries <= len(cubin)
        if not whole:
            raise JobFault(
                FaultKind.LOAD_REFUSED, f"the job's {len(cubin)} bytes of code are no whole cubin; build it again"
            )
        limit = self._job.limits.device_bytes
        inputs = sum(allocation_bytes(one.spec) for one in self._job.inputs)
        buffers = sum(allocation_bytes(one.spec) for one in self._plan.buffers)
        if inputs + buffers > limit:
            raise JobFault(
                FaultKind.MEMORY,
                f"inputs take {inputs / MIB:.1f} MiB and outputs and scratch {buffers / MIB:.1f} MiB of device memory, "
                f"the job's limit is {limit / MIB:.1f} MiB; raise the limit or ask for less scratch",
            )

    def _reset(self) -> None:
        self._memory.reset(self._tensors.all, self._memory.old_byte)
        self._await(None, "the inputs were made")

    # -- running --

    def _run_by_steps(self) -> None:
        for index, step in enumerate(self._plan.steps):
            self._report(Progress(RunStage.LOADING))
            prepared, names = self._prepare_step(step)
            self._report(Progress(RunStage.STEP, index, name_of(step), step.line))
            where = f"step {index + 1} of {len(self._plan.steps)}, {name_of(step)} (line {step.line})"
            results = self._start(prepared, names, step, where)
            self._await(step, where)
            if isinstance(step, LibraryCall):
                self._tensors.buffers[step.target].tensor.copy_(results[0])
        self._memory.check_counters(self._tensors, "run step by step")

    def _run_whole(self, whole: Runnable, names: tuple[str, ...]) -> None:
        self._report(self._together(RunStage.WHOLE))
        self._reset()
        where = f"all {len(self._plan.steps)} steps run together, after each had run alone without fault"
        self._call_whole(whole, names, where, self._tensors)
        self._await(None, where)
        self._memory.check_counters(self._tensors, "run as a whole")

    # -- checks for changed inputs, leftover state and overlapping calls --

    def _called_again(self, whole: Runnable, names: tuple[str, ...]) -> tuple[str, ...]:
        """Call the plan again, with new results but the scratch and counters that the first call left.

        This call's results become the job's; returns the names of those that differ from the first call's.
        """
        results, where = self._job.returns, "called a second time"
        self._report(self._together(RunStage.WHOLE))
        self._memory.check_guards(self._tensors)
        first = {name: self._tensors.all[name] for name in results}
        self._tensors = self._tensors.with_fresh(self._memory.fresh(results, lent=True))
        self._call_whole(whole, names, where, self._tensors)
        self._await(None, where)
        self._memory.check_counters(self._tensors, where)
        differing = {name for name in results if not bitwise_equal(first[name], self._tensors.all[name])}
        first.clear()
        self._memory.check_inputs(self._tensors)
        differing |= self._differing_when_concurrent(whole, names)
        return tuple(name for name in results if name in differing)

    def _differing_when_concurrent(self, whole: Runnable, names: tuple[str, ...]) -> set[str]:
        """The results that differ when several calls run concurrently, each on its own stream and memory."""
        known = self._tensors.all
        size = _CONCURRENT_CALLS * sum(one.storage.numel() for one in known.values())
        if size > _MOST_CONCURRENT_BYTES or self._library_targets():
            return set()
        where = f"{_CONCURRENT_CALLS} calls at once, each on a stream of its own"
        own = (*self._job.returns, *(one.name for one in self._plan.buffers if one.name not in self._job.returns))
        each = [self._tensors.with_fresh(self._memory.fresh(own)) for _ in range(_CONCURRENT_CALLS)]
        self._await(None, where)
        try:
            calls = [functools.partial(self._call_whole, whole, names, where, tensors) for tensors in each]
            self._stream.at_once(calls)
        except DriverError as error:
            raise self._driver_fault(error, ErrorPhase.RUN, None, where) from error
        for tensors in each:
            self._memory.check_guards(tensors)
        return {name for name in self._job.returns for one in each if not bitwise_equal(known[name], one.all[name])}

    def _together(self, stage: RunStage) -> Progress:
        """The progress message while all steps run; names the step if there is only one."""
        if len(self._plan.steps) != 1:
            return Progress(stage)
        (step,) = self._plan.steps
        return Progress(stage, 0, name_of(step), step.line)

    def _prepare_step(self, step: PackedLaunch | LibraryCall) -> tuple[Runnable, tuple[str, ...]]:
        """A plan of this step alone. Only a library step's target is the executor's own memory."""
        if isinstance(step, LibraryCall):
            own = tuple(buffer for buffer in self._plan.buffers if buffer.name == step.target)
            return self._prepare(BoundPlan(own, (), (step,)), own, (step.target,), step)
        alone = replace(step, pdl=False)
        used = {field.map for field in step.maps}
        maps = tuple(one for one in self._plan.maps if one.name in used)
        return self._prepare(BoundPlan((), maps, (alone,)), (), (), step)

    def _prepare_whole(self) -> tuple[Runnable, tuple[str, ...]]:
        """The whole plan. Clearing is part of it, so zeroed buffers are the executor's own memory."""
        targets = self._library_targets()
        own = tuple(b for b in self._plan.buffers if b.clearing is Clearing.ZEROED or b.name in targets)
        return self._prepare(replace(self._plan, buffers=own), own, self._executors_results, None)

    @property
    def _executors_results(self) -> tuple[str, ...]:
        """The results in the executor's memory, to be copied to the job's tensors."""
        wanted = {*self._job.returns, *self._job.digests}
        zeroed = (b.name for b in self._plan.buffers if b.clearing is Clearing.ZEROED and b.name in wanted)
        return tuple(dict.fromkeys((*self._library_targets(), *zeroed)))

    def _library_targets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(step.target for step in self._plan.steps if isinstance(step, LibraryCall)))

    def _prepare(
        self,
        plan: BoundPlan,
        own: tuple[Buffer, ...],
        results: tuple[str, ...],
        step: PackedLaunch | LibraryCall | None,
    ) -> tuple[Runnable, tuple[str, ...]]:
        owned = {buffer.name for buffer in own}
        names = (*self._input_names, *(b.name for b in self._plan.buffers if b.name not in owned))
        try:
            return self._executor.prepare(self._job.cubin, plan, names, results), names
        except DriverError as error:
            raise self._driver_fault(error, ErrorPhase.LOAD, step, "") from error
        except LibraryStepError as error:
            raise JobFault(FaultKind.OTHER, str(error), step) from error
        except KeyError as error:
            message = f"the plan uses {error}, which is neither an input nor a buffer of the job"
            raise JobFault(FaultKind.BROKEN_JOB, message, step) from error

    def _start(
        self,
        prepared: Runnable,
        names: tuple[str, ...],
        step: PackedLaunch | LibraryCall | None,
        where: str,
        tensors: JobTensors | None = None,
    ) -> Results:
        try:
            return prepared.run((tensors or self._tensors).named(names), ())
        except DriverError as error:
            raise self._driver_fault(error, ErrorPhase.LAUNCH, step, where) from error
        except torch.OutOfMemoryError as error:
            raise JobFault(FaultKind.MEMORY, f"{where}: {error}", step) from error
        except RuntimeError as error:  # of a library step, or an earlier kernel's error noticed by torch
            self._await(step, where)
            raise JobFault(FaultKind.OTHER, f"{where}: {error}", step) from error

    def _call_whole(self, whole: Runnable, names: tuple[str, ...], where: str, tensors: JobTensors) -> None:
        """Start all steps on these tensors; does not synchronise."""
        self._keep(self._start(whole, names, None, where, tensors), tensors)

    def _keep(self, results: Results, tensors: JobTensors) -> None:
        for name, result in zip(self._executors_results, results, strict=True):
            tensors.buffers[name].tensor.copy_(result)

    def _await(self, step: PackedLaunch | LibraryCall | None, where: str) -> None:
        """Synchronise; faults of kernels are raised here."""
        try:
            self._stream.wait()
        except DriverError as error:
            raise self._driver_fault(error, ErrorPhase.RUN, step, where) from error

    def _driver_fault(
        self, error: DriverError, when: ErrorPhase, step: PackedLaunch | LibraryCall | None, where: str
    ) -> JobFault:
        kind, remedy = explain_error(error.name, when)
        at = step
        if at is None and error.line is not None:
            at = next((s for s in self._plan.steps if s.line == error.line), None)
        place = where or (f"{name_of(at)} (line {at.line})" if at is not None else "the module")
        return JobFault(kind, f"{place}: {error.name} {when.value} ({error.tried}): {remedy}", at)

    # -- timing and results --

    def _timed(self, whole: Runnable, names: tuple[str, ...], judged: tuple[Digest, ...]) -> _Timed:
        """Times of the whole plan, each on fresh inputs in another set of tensors, with a cold L2."""
        if not self._job.timed_runs:
            return _Timed()
        ring = self._ring()
        flush = torch.empty(COLD_L2 * self._executor.profile.l2, dtype=torch.uint8, device=self._device)
        run_us: list[float] = []
        digests: list[Digest] = []
        results: list[Results] = []
        self._stream.warm_up()
        begun = self._stream.conditions()
        for number in range(self._job.timed_runs):
            self._report(self._together(RunStage.TIMING))
            self._tensors = ring[number % len(ring)]
            self._reset()
            if number == 0:
                self._memory.keep_contents(self._tensors.inputs)
            flush.zero_()
            try:
                work = lambda: results.append(self._start(whole, names, None, "a timed run"))  # noqa: E731
                run_us.append(self._stream.elapsed_us(work))
            except DriverError as error:
                raise self._driver_fault(error, ErrorPhase.RUN, None, "a timed run") from error
            self._memory.check_counters(self._tensors, "in a timed run")
            self._keep(results.pop(), self._tensors)
            digests += self._digests(*judged)
        for tensors in ring:
            self._memory.check_guards(tensors)
        ended = self._stream.conditions()
        both = begun.with_later(ended) if begun is not None and ended is not None else None
        return _Timed(tuple(run_us), tuple(digests), both)

    def _ring(self) -> list[JobTensors]:
        """Sets of the job's tensors for timed runs to rotate over, within its memory limit."""
        size = sum(allocation_bytes(one.spec) for one in self._job.inputs)
        size = max(1, size + sum(allocation_bytes(one.spec) for one in self._plan.buffers))
        wanted = rotating_sets(size, self._executor.profile.l2, self._job.timed_runs)
        fitting = min(wanted, self._job.limits.device_bytes // size)
        return [self._tensors, *(self._memory.allocate(guarded=True) for _ in range(1, fitting))]

    def _digests(self, *beside: Digest) -> tuple[Digest, ...]:
        """The digest of the last run's results, where the job wants one."""
        if not self._job.digests:
            return ()
        return (digest_of(self._tensors.named(self._job.digests), *beside),)

    def _returned(self) -> tuple[ReturnedTensor | SharedTensor, ...]:
        self._report(Progress(RunStage.RETURNING))
        return self._memory.returned(self._tensors)

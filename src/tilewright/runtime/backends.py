"""An operation on one device, CUDA or emulated: file selection, builds, and prepared plans by cache key."""

from __future__ import annotations

import math
import os
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tilewright import toolchain
from tilewright.devices.cuda.executor import CaptureRefused, Executor
from tilewright.devices.cuda.prepared import PreparedPlan
from tilewright.devices.emulation.plan_memory import Perturbation, PlanMemory, add_buffers, storage_bytes, tensor_copy
from tilewright.devices.emulation.plan_run import (
    LaunchNotEmulable,
    LaunchRefused,
    LibraryRefused,
    PlanOutcome,
    refuse_unsupported,
)
from tilewright.devices.emulation.programs import core_problem, program_of
from tilewright.devices.emulation.schedules import run_schedules
from tilewright.kernel_file import Dispatcher, Evaluation, KernelFile, NoneApplies, Op, Selected, TunedChoices
from tilewright.records import (
    BoundPlan,
    Build,
    BuildFailure,
    BuildRequest,
    DType,
    EmulatedRun,
    Emulation,
    FindingKind,
    GpuProfile,
    TensorSpec,
)
from tilewright.runtime.call_devices import PROFILE_VARIABLE
from tilewright.runtime.errors import (
    BuildDuringCapture,
    BuildFailed,
    KernelFault,
    KernelNotEmulable,
    OperationError,
    TooLargeToEmulate,
)
from tilewright.toolchain import bind_plan

MOST_PREPARED = 2048


@dataclass(frozen=True)
class PreparedCall:
    """A selected file, bound to its build and loaded on the device."""

    selected: Selected
    plan: BoundPlan
    prepared: PreparedPlan


class Builds:
    """Builds by request, kept for the life of an operation, so that a new shape needs no disk access."""

    def __init__(self) -> None:
        self._known: dict[BuildRequest, Build] = {}

    def build(self, evaluation: Evaluation) -> Build | None:
        """The build from memory, the disk cache or the compiler; None where nothing is launched."""
        request = evaluation.build_request()
        if request is None:
            return None
        known = self._known.get(request)
        if known is None:
            outcome = toolchain.build(request, isolated=False)
            if isinstance(outcome, BuildFailure):
                raise BuildFailed(evaluation.file.name, outcome)
            known = self._known[request] = outcome
        return known


class CudaBackend:
    """The files of one op on one GPU of this process."""

    def __init__(self, files: Sequence[KernelFile], tuned: TunedChoices, executor: Executor, builds: Builds) -> None:
        op = files[0].plan.op
        self.executor = executor
        self.dispatcher = Dispatcher(files, executor.profile, tuned)
        self._builds = builds
        self._inputs = tuple(p.name for p in op.tensors)
        self._results = op.results
        self._ready: OrderedDict[Hashable, tuple[BoundPlan, PreparedPlan]] = OrderedDict()
        self._lock = threading.Lock()

    def prepare(self, arguments: Mapping[str, Any]) -> PreparedCall | NoneApplies:
        """Select a file for these arguments, build, bind and load it; all cached."""
        selected = self.dispatcher.select(arguments)
        if isinstance(selected, NoneApplies):
            return selected
        key = (self.dispatcher.key(arguments), selected.index, tuple(selected.evaluation.choice.items()))
        with self._lock:  # one build per key, however many threads need it
            known = self._ready.get(key)
            if known is None:
                known = self._ready[key] = self._make(selected.evaluation)
            self._ready.move_to_end(key)
            while len(self._ready) > MOST_PREPARED:
                self._ready.popitem(last=False)
        return PreparedCall(selected, *known)

    def _make(self, evaluation: Evaluation) -> tuple[BoundPlan, PreparedPlan]:
        op = evaluation.file.plan.op.name
        with self.executor.memory.here():
            if self.executor.memory.is_capturing():
                raise BuildDuringCapture(_CAPTURE.format(op=op, file=evaluation.file.name))
        build = self._builds.build(evaluation)
        plan = toolchain.bind_plan(evaluation, build)
        cubin = build.cubin if build is not None else b""
        try:
            return plan, self.executor.prepare(cubin, plan, self._inputs, self._results)
        except CaptureRefused as error:
            raise BuildDuringCapture(_CAPTURE.format(op=op, file=evaluation.file.name)) from error


_CAPTURE = (
    "{op}: {file} is not prepared for these shapes, and nothing is built or loaded while a CUDA graph is captured; "
    "call {op}.prepare(...) or run it once with the same shapes before the capture"
)


# -- the emulator: every access is checked, addresses are virtual, and a budget ends endless loops --

if TYPE_CHECKING:
    from tilewright.devices.emulation.programs import Program

BUDGET_VARIABLE = "TILEWRIGHT_EMULATE_BUDGET"
CALL_BUDGET = 2_000_000_000  # thread instructions: a few seconds
MOST_BYTES = 2 << 30  # of tensors in one emulated call; the checkers' own memory comes on top
_LEAST_INSTRUCTIONS = 16  # of a thread that does anything at all


def call_budget() -> int:
    """The instruction budget of a plain call, in thread instructions."""
    text = os.environ.get(BUDGET_VARIABLE, "").strip()
    if not text:
        return CALL_BUDGET
    try:
        budget = int(float(text))
    except (ValueError, OverflowError):
        budget = 0
    if budget < 1:
        raise OperationError(f"{BUDGET_VARIABLE} is {text!r}; write a number of thread instructions such as 2e9")
    return budget


@dataclass(frozen=True, kw_only=True)
class EmulatedCall(EmulatedRun):
    """Results, findings and counts of one emulated call.

    Elements that nothing wrote hold the poison. Where the run is not `complete` (blocks were sampled, or a finding
    stopped it) tensors changed in place keep their old values.
    """

    results: Any
    op: str
    file: str
    gpu: str
    complete: bool

    def __str__(self) -> str:
        ran = "all blocks" if self.complete else "some blocks"
        head = (
            f"{self.op} from {self.file} on an emulated {self.gpu}: {ran} under {self.schedules} "
            f"schedule{'s' if self.schedules != 1 else ''}, {self.thread_instructions:,} thread instructions, "
            f"{self.seconds:.3f} s"
        )
        lines = [f"  {finding}" for finding in self.findings] or ["  no findings"]
        lines += [f"  {name} differs from schedule to schedule" for name in self.varying]
        lines += [f"  not checked to the end: {sentence}" for sentence in self.incomplete]
        lines += [f"  {finding}; no result depends on it" for finding in self.harmless]
        return "\n".join([head, *lines])


@dataclass(frozen=True)
class EmulatedPlan:
    """A selected file, bound to its build, with its lowered PTX program."""

    selected: Selected
    plan: BoundPlan
    program: Program | None  # None where nothing is launched

    @property
    def file(self) -> str:
        return self.selected.evaluation.file.name


class EmulatorBackend:
    """The files of one op on one emulated GPU."""

    def __init__(self, files: Sequence[KernelFile], tuned: TunedChoices, gpu: GpuProfile, builds: Builds) -> None:
        self.gpu = gpu
        self.dispatcher = Dispatcher(files, gpu, tuned)
        self._op = files[0].plan.op
        self._builds = builds

    def prepare(self, arguments: Mapping[str, Any]) -> EmulatedPlan | NoneApplies:
        """Select a file for these arguments, build it and bind it with the call's late numbers."""
        selected = self.dispatcher.select(arguments)
        if isinstance(selected, NoneApplies):
            return selected
        return self._bound(selected)

    def why_not(self, selected: Selected) -> str | None:
        """Why the emulator cannot run a selected plan; None where it can. Runs nothing."""
        try:
            ready = self._bound(selected)
            if ready.program is not None:
                refuse_unsupported(ready.program, ready.plan)
        except LaunchNotEmulable as error:
            return f"{error.step.kernel} (line {error.step.line}) cannot be emulated: {error}"
        except KernelNotEmulable as error:
            return str(error)
        return None

    def _bound(self, selected: Selected) -> EmulatedPlan:
        problem = core_problem()
        if problem is not None:
            raise KernelNotEmulable(f"{self._op.name}: CPU tensors are emulated, and {problem}; or pass CUDA tensors")
        evaluation = selected.evaluation
        build = self._builds.build(evaluation)
        program = program_of(build.key, build.ptx) if build is not None else None
        return EmulatedPlan(selected, bind_plan(evaluation, build, selected.late), program)


@dataclass(frozen=True)
class CallTensors:
    """The tensors of one call, by the op's names."""

    op: Op
    specs: tuple[TensorSpec | None, ...]
    tensors: tuple[torch.Tensor | None, ...]

    def memory(self, plan: BoundPlan, sampled: bool, circumstances: Perturbation) -> PlanMemory:
        memory = PlanMemory(circumstances)
        for parameter, spec, tensor in zip(self.op.tensors, self.specs, self.tensors, strict=True):
            if tensor is not None and spec is not None:
                content = storage_bytes(tensor, spec.storage_bytes)
                memory.add_input(parameter.name, spec, content, writable=parameter.in_place)
        add_buffers(memory, plan.buffers, sampled=sampled)
        return memory

    def change_in_place(self, memory: PlanMemory) -> None:
        for parameter, tensor in zip(self.op.tensors, self.tensors, strict=True):
            if parameter.in_place and tensor is not None:
                with torch.no_grad():
                    tensor.copy_(tensor_copy(memory, parameter.name))

    def results(self, memory: PlanMemory) -> Any:
        made = tuple(tensor_copy(memory, name) for name in self.op.results)
        return made[0] if len(made) == 1 else made or None

    @property
    def integers(self) -> list[str]:
        """The tensors that may hold indices."""
        pairs = zip(self.op.tensors, self.specs, strict=True)
        return [one.name for one, spec in pairs if spec and not spec.dtype.is_float and spec.dtype is not DType.BOOL]

    @property
    def returned(self) -> tuple[str, ...]:
        return (*self.op.results, *(parameter.name for parameter in self.op.parameters if parameter.in_place))


def plain_call(ready: EmulatedPlan, call: CallTensors) -> Any:
    """Run without checkers and return the results; raises `KernelFault` for faults that a GPU would report."""
    budget = call_budget()
    threads = sum(math.prod(launch.grid) * math.prod(launch.block) for launch in ready.plan.launches)
    if threads * _LEAST_INSTRUCTIONS > budget:
        raise _too_large(ready, call, budget)
    run = _run(ready, call, Emulation(checks=(), instruction_budget=budget, workers=0))
    stopped = run.stopped_by
    if stopped is not None and stopped.kind is FindingKind.BUDGET:
        raise _too_large(ready, call, budget)
    findings = run.emulated.findings
    if findings:
        raise KernelFault(call.op.name, ready.file, findings, call.integers)
    call.change_in_place(run.memory)
    return call.results(run.memory)


def full_call(ready: EmulatedPlan, call: CallTensors, emulation: Emulation, gpu: str) -> EmulatedCall:
    """Run with checkers and counters."""
    run = _run(ready, call, emulation)
    most = emulation.sampled_blocks
    is_sampled = most is not None and any(math.prod(launch.grid) > most for launch in ready.plan.launches)
    complete = run.stopped_by is None and not is_sampled
    if complete:
        call.change_in_place(run.memory)
    results, record = call.results(run.memory), vars(run.emulated)
    return EmulatedCall(**record, results=results, op=call.op.name, file=ready.file, gpu=gpu, complete=complete)


def _run(ready: EmulatedPlan, call: CallTensors, emulation: Emulation) -> PlanOutcome:
    size = sum(spec.storage_bytes for spec in call.specs if spec is not None)
    size += sum(buffer.spec.storage_bytes for buffer in ready.plan.buffers)
    if size > MOST_BYTES:
        raise TooLargeToEmulate(
            f"{call.op.name}: its tensors take {size / 2**30:.1f} GiB and an emulated call may take "
            f"{MOST_BYTES / 2**30:.0f} GiB; use smaller shapes, or pass CUDA tensors"
        )
    sampled = emulation.sampled_blocks is not None

    def memory(circumstances: Perturbation) -> PlanMemory:
        return call.memory(ready.plan, sampled, circumstances)

    try:
        return run_schedules(ready.program, ready.plan, memory, emulation, call.returned)
    except LaunchNotEmulable as error:
        remedy = "pass CUDA tensors"
        if ready.selected.evaluation.gpu.cc >= 90:
            remedy += f", or emulate an earlier GPU, {PROFILE_VARIABLE}=A100, if a file of the op takes one"
        where = f"{call.op.name}: {ready.file}: {error.step.kernel} (line {error.step.line})"
        raise KernelNotEmulable(f"{where} cannot be emulated: {error}; {remedy}") from error
    except (LibraryRefused, LaunchRefused) as error:
        raise OperationError(f"{call.op.name}: {ready.file}: {error}") from error


def _too_large(ready: EmulatedPlan, call: CallTensors, budget: int) -> TooLargeToEmulate:
    launches = ", ".join(
        f"{launch.kernel}: {math.prod(launch.grid)} blocks of {math.prod(launch.block)} threads"
        for launch in ready.plan.launches
    )
    name = call.op.name
    return TooLargeToEmulate(
        f"{name}: this call takes more than {budget:,} thread instructions in the emulator ({launches}); if it is no "
        f"endless loop, use smaller shapes, look at some blocks with {name}.emulate(..., blocks=8), raise "
        f"{BUDGET_VARIABLE}, or pass CUDA tensors"
    )

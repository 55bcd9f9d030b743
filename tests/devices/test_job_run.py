"""How a job is run, on the CPU: kernels are Python functions on torch tensors, everything else is the real thing."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.devices.scripted_jobs import PROFILE

from tilewright.devices.cuda import DriverError
from tilewright.devices.cuda.driver import ErrorPhase, explain_error
from tilewright.devices.job_run import JobRun, Results
from tilewright.devices.runner import JobFault, Progress, RunStage
from tilewright.records import (
    BoundPlan,
    Buffer,
    BufferRole,
    Clearing,
    Completed,
    Data,
    DType,
    FaultKind,
    GpuConditions,
    GpuProfile,
    InputTensor,
    Job,
    LibraryCall,
    Limits,
    Normal,
    PackedLaunch,
    PointerField,
    TensorArgument,
    TensorSpec,
)

Kernel = Callable[..., None]
SPEC = TensorSpec.contiguous(DType.F32, (4,))
# The least that looks like a whole cubin: an ELF header whose section table is empty.
CUBIN = b"\x7fELF" + bytes(0x24) + struct.pack("<Q", 64) + bytes(10) + struct.pack("<HH", 64, 0) + bytes(2)


class CpuStream:
    """Work is done when it is started; `failing` is what the next wait finds."""

    failing: DriverError | None = None
    asked = 0

    def wait(self) -> None:
        if self.failing is not None:
            raise self.failing

    def warm_up(self) -> None:
        pass

    def elapsed_us(self, work: Callable[[], object]) -> float:
        start = time.perf_counter()
        work()
        self.wait()
        return 1e6 * (time.perf_counter() - start)

    def conditions(self) -> GpuConditions | None:
        self.asked += 1
        return GpuConditions(1980 - 100 * self.asked, 1980 - 100 * self.asked, 3201, 1980, 40 + self.asked, ("heat",))

    def at_once(self, calls: Sequence[Callable[[], object]]) -> None:
        for call in calls:
            call()


class CpuExecutor:
    """Executes plans by calling Python functions, with memory of its own for the plan's own buffers."""

    profile: GpuProfile = replace(PROFILE, l2=1024)

    def __init__(self, stream: CpuStream, **kernels: Kernel) -> None:
        self.stream = stream
        self.kernels = kernels
        self.runs: list[tuple[str, ...]] = []  # the steps of each plan that was run

    def prepare(self, cubin: bytes, plan: BoundPlan, inputs: tuple[str, ...], results: tuple[str, ...]) -> CpuPrepared:
        for step in plan.steps:
            if isinstance(step, PackedLaunch) and step.symbol == "unknown":
                raise DriverError("CUDA_ERROR_NOT_FOUND", 500, "find kernel", step.kernel, step.line)
            if isinstance(step, PackedLaunch) and step.dynamic_smem_bytes > 1 << 20:
                raise DriverError("CUDA_ERROR_INVALID_VALUE", 1, "allow shared memory", step.kernel, step.line)
            for field in step.pointers if isinstance(step, PackedLaunch) else ():
                if field.tensor not in inputs and field.tensor not in [b.name for b in plan.buffers]:
                    raise KeyError(field.tensor)
        return CpuPrepared(self, plan, inputs, results)


class CpuPrepared:
    def __init__(
        self, executor: CpuExecutor, plan: BoundPlan, inputs: tuple[str, ...], results: tuple[str, ...]
    ) -> None:
        self.executor, self.plan, self.inputs, self.results = executor, plan, inputs, results

    def run(self, tensors: Results, late: tuple[int | float | bool, ...]) -> Results:
        assert late == ()
        named = dict(zip(self.inputs, tensors, strict=True))
        for buffer in self.plan.buffers:
            zeroed = buffer.clearing is not Clearing.UNDEFINED
            named[buffer.name] = torch.full(buffer.spec.shape, 0.0 if zeroed else torch.nan)
        ran = []
        for step in self.plan.steps:
            if isinstance(step, LibraryCall):
                arguments = [named[a.name] for a in step.arguments if isinstance(a, TensorArgument)]
                named[step.target] = torch.add(*arguments)
                ran.append(step.function)
            else:
                self.executor.kernels[step.kernel](*(named[field.tensor] for field in step.pointers))
                ran.append(step.kernel + ("+pdl" if step.pdl else ""))
        self.executor.runs.append(tuple(ran))
        return tuple(named[name] for name in self.results)


def launch(
    kernel: str, *tensors: str, line: int = 1, pdl: bool = False, symbol: str = "s", smem: int = 0
) -> PackedLaunch:
    pointers = tuple(PointerField(8 * i, name) for i, name in enumerate(tensors))
    return PackedLaunch(symbol, kernel, (1, 1, 1), (1, 1, 1), smem, None, False, pdl, (), b"", pointers, (), (), line)


def out(
    name: str, role: BufferRole = BufferRole.OUT, clearing: Clearing = Clearing.UNDEFINED, **spec: object
) -> Buffer:
    return Buffer(name, role, replace(SPEC, **spec), clearing)  # type: ignore[arg-type]


def scratch(name: str, clearing: Clearing = Clearing.UNDEFINED, **spec: object) -> Buffer:
    return out(name, BufferRole.SCRATCH, clearing, **spec)


X = InputTensor("x", SPEC, Data(np.array([1, 2, 3, 4], np.float32).tobytes()))


def a_job(steps: tuple[PackedLaunch | LibraryCall, ...], buffers: tuple[Buffer, ...], **options: object) -> Job:
    job = Job("j", "sm_90a", CUBIN, BoundPlan(buffers, (), steps), (X,), ("y",))
    return replace(job, **options)  # type: ignore[arg-type]


class Ran:
    """A job that was run, with everything that could be seen."""

    def __init__(self, job: Job, **kernels: Kernel) -> None:
        self.stream = CpuStream()
        self.executor = CpuExecutor(self.stream, **kernels)
        self.said: list[Progress] = []
        self.completed: Completed | None = None
        self.fault: JobFault | None = None
        try:
            self.completed = JobRun(job, self.executor, self.stream, torch.device("cpu"), self.said.append).outcome()
        except JobFault as fault:
            self.fault = fault

    def numbers(self, name: str = "y") -> list[float]:
        assert self.completed is not None, self.fault
        (one,) = (one for one in self.completed.outputs if one.name == name)
        return [float(v) for v in np.frombuffer(one.content, np.float32)]

    def faulted(self, kind: FaultKind, message: str, line: int | None) -> None:
        assert self.fault is not None
        assert self.fault.kind is kind
        assert message in self.fault.message
        assert (self.fault.step.line if self.fault.step else None) == line


def double(x: torch.Tensor, y: torch.Tensor) -> None:
    y.copy_(2 * x)


def increment(y: torch.Tensor) -> None:
    y.add_(1)


def test_one_step_runs_once_and_comes_back() -> None:
    ran = Ran(a_job((launch("double", "x", "y", line=7),), (out("y"),)), double=double)
    assert ran.numbers() == [2, 4, 6, 8]
    assert ran.executor.runs == [("double",)]
    assert [p for p in ran.said if p.stage is RunStage.STEP] == [Progress(RunStage.STEP, 0, "double", 7)]
    assert [p.stage for p in ran.said] == [RunStage.INPUTS, RunStage.LOADING, RunStage.STEP, RunStage.RETURNING]


def test_several_steps_run_one_by_one_and_then_whole() -> None:
    steps = (launch("double", "x", "y"), launch("increment", "y", line=2, pdl=True), launch("increment", "x", line=3))
    job = a_job(steps, (out("y"),), returns=("y", "x"))
    ran = Ran(job, double=double, increment=increment)
    assert ran.executor.runs == [("double",), ("increment",), ("increment",), ("double", "increment+pdl", "increment")]
    assert ran.numbers() == [3, 5, 7, 9], "the second run began from fresh inputs"
    assert ran.numbers("x") == [2, 3, 4, 5], "changed once, not twice"


def test_what_a_kernel_leaves_unwritten_is_nan_in_either_run() -> None:
    def half(x: torch.Tensor, y: torch.Tensor) -> None:
        y[:2] = x[:2]

    for steps in ((launch("half", "x", "y"),), (launch("half", "x", "y"), launch("half", "x", "y"))):
        found = Ran(a_job(steps, (out("y"),)), half=half).numbers()
        assert found[:2] == [1, 2]
        assert np.isnan(found[2:]).all()


def test_scratch_is_poisoned_or_zeroed_as_declared() -> None:
    def show(raw: torch.Tensor, clean: torch.Tensor, y: torch.Tensor) -> None:
        assert bool(raw.isnan().all())
        y.copy_(clean)
        raw.zero_()
        clean.fill_(9)

    buffers = (out("y"), scratch("raw"), scratch("clean", Clearing.ZEROED))
    steps = (launch("show", "raw", "clean", "y"), launch("keep"))
    ran = Ran(a_job(steps, buffers, timed_runs=2), show=show, keep=lambda: None)
    assert ran.numbers() == [0, 0, 0, 0]
    assert len(ran.executor.runs) == 2 + 1 + 2


def test_a_library_step_fills_its_buffer() -> None:
    steps = (
        LibraryCall("t", "aten.add", (TensorArgument("x"), TensorArgument("x")), 5),
        launch("double", "t", "y", line=6),
    )
    ran = Ran(a_job(steps, (out("y"), scratch("t")), returns=("y", "t")), double=double)
    assert ran.numbers() == [4, 8, 12, 16]
    assert ran.numbers("t") == [2, 4, 6, 8]
    assert ran.executor.runs == [("aten.add",), ("double",), ("aten.add", "double")]


def test_a_counter_must_be_left_at_zero() -> None:
    def tick(counter: torch.Tensor) -> None:
        counter[2] += 3

    def reset(counter: torch.Tensor) -> None:
        counter.zero_()

    counter = scratch("c", Clearing.COUNTER, dtype=DType.I32)
    both = (launch("tick", "c", line=3), launch("reset", "c", line=4))
    assert Ran(a_job(both, (out("y"), counter)), tick=tick, reset=reset).completed is not None
    ran = Ran(
        a_job((launch("tick", "c", line=3), launch("keep", line=4)), (out("y"), counter)), tick=tick, keep=lambda: None
    )
    ran.faulted(FaultKind.STATE, "run step by step, the plan left counter c[2] at 3", 3)


def test_an_error_while_running_names_the_step_it_happened_in() -> None:
    stream_of: list[CpuStream] = []

    def wild(y: torch.Tensor) -> None:
        stream_of[0].failing = DriverError("CUDA_ERROR_ILLEGAL_ADDRESS", 700, "wait for the device")

    job = a_job((launch("double", "x", "y", line=3), launch("wild", "y", line=4)), (out("y"),))
    stream = CpuStream()
    stream_of.append(stream)
    executor = CpuExecutor(stream, double=double, wild=wild)
    with pytest.raises(JobFault) as caught:
        JobRun(job, executor, stream, torch.device("cpu"), lambda progress: None).outcome()
    assert caught.value.kind is FaultKind.ILLEGAL_ACCESS
    assert caught.value.step is not None
    assert caught.value.step.line == 4
    assert caught.value.message.startswith("step 2 of 2, wild (line 4): CUDA_ERROR_ILLEGAL_ADDRESS while it ran")


def test_refusals_before_the_launch_name_the_step() -> None:
    y = (out("y"),)
    Ran(a_job((launch("k", "y", line=3, symbol="unknown"),), y)).faulted(FaultKind.LOAD_REFUSED, "NOT_FOUND", 3)
    Ran(a_job((launch("k", "y", line=3, smem=1 << 21),), y)).faulted(FaultKind.LAUNCH_REFUSED, "INVALID_VALUE", 3)


def test_timed_runs_are_as_many_as_asked_and_each_fresh() -> None:
    def consume(x: torch.Tensor, y: torch.Tensor) -> None:
        y.copy_(x)
        x.fill_(-1)

    ran = Ran(a_job((launch("consume", "x", "y"),), (out("y"),), timed_runs=3), consume=consume)
    assert ran.completed is not None
    assert len(ran.completed.run_us) == 3
    assert all(us > 0 for us in ran.completed.run_us)
    assert ran.numbers() == [1, 2, 3, 4]
    assert [p for p in ran.said if p.stage is RunStage.TIMING] == [Progress(RunStage.TIMING, 0, "consume", 1)] * 3


def test_timed_runs_use_other_memory_each_until_it_is_more_than_any_cache() -> None:
    places: list[int] = []

    def note(x: torch.Tensor, y: torch.Tensor) -> None:
        places.append(x.data_ptr())
        y.copy_(x)

    Ran(a_job((launch("note", "x", "y"),), (out("y"),), timed_runs=5), note=note)
    assert len(set(places[1:])) == 4  # 3 caches of 1024 bytes, and 1024 bytes for a set of x and y
    assert places[5] == places[1] == places[0]
    places.clear()
    Ran(a_job((launch("note", "x", "y"),), (out("y"),), timed_runs=3, limits=Limits(device_bytes=2048)), note=note)
    assert len(set(places)) == 2, "a job keeps to its limit of memory"


def test_what_timed_runs_answer_is_digested() -> None:
    calls: list[float] = []

    def honest(x: torch.Tensor, y: torch.Tensor) -> None:
        y.copy_(2 * x)

    def weary(x: torch.Tensor, y: torch.Tensor) -> None:
        calls.append(1.0)
        y.copy_(2 * x if len(calls) != 3 else x)

    step = (launch("k", "x", "y"),)
    steady = Ran(a_job(step, (out("y"),), timed_runs=3, digests=("y",)), k=honest).completed
    assert steady is not None
    assert [one.bits for one in steady.digests] == [steady.digests[0].bits] * 4
    assert steady.digests[0].elements == (4,)
    changing = Ran(a_job(step, (out("y"),), timed_runs=3, digests=("y",)), k=weary).completed
    assert changing is not None
    first, *timed = (one.bits for one in changing.digests)
    assert [one == first for one in timed] == [True, False, True]
    assert not changing.digests[2].is_near(changing.digests[0], 0.1)
    untimed = Ran(a_job(step, (out("y"),), digests=("y",)), k=honest).completed
    assert untimed is not None
    assert untimed.digests == steady.digests[:1]
    assert Ran(PLAIN, double=double).completed == replace(untimed, digests=())


def test_the_results_of_library_steps_are_digested_in_timed_runs_too() -> None:
    steps = (LibraryCall("y", "aten.add", (TensorArgument("x"), TensorArgument("x")), 5),)
    ran = Ran(a_job(steps, (out("y"),), timed_runs=2, digests=("y",))).completed
    assert ran is not None
    assert len({one.bits for one in ran.digests}) == 1
    assert len(ran.digests) == 3
    assert ran.digests[0].elements == (4,)


def test_a_result_that_is_zeroed_is_digested_as_it_was_made() -> None:
    def add(x: torch.Tensor, y: torch.Tensor) -> None:
        y.add_(x)

    zeroed = out("y", clearing=Clearing.ZEROED)
    ran = Ran(a_job((launch("add", "x", "y"),), (zeroed,), timed_runs=2, digests=("y",)), add=add)
    assert ran.completed is not None
    assert len({one.bits for one in ran.completed.digests}) == 1
    assert ran.completed.digests[0].sizes[0] == pytest.approx(30**0.5)


@pytest.mark.parametrize("clearing", [Clearing.UNDEFINED, Clearing.ZEROED])
@pytest.mark.parametrize("content", [X.content, Normal(7)])
def test_a_judged_call_and_timed_ones_have_one_digest(clearing: Clearing, content: Data | Normal) -> None:
    def add(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> None:
        y.copy_(2 * x)
        x.add_(1)  # in place
        z.copy_(y + x)

    inputs = (InputTensor("x", SPEC, content),)
    steps, buffers = (launch("add", "x", "y", "z"),), (out("y"), out("z", clearing=clearing))
    job = a_job(steps, buffers, inputs=inputs, returns=("y", "z", "x"), digests=("y", "z", "x"))
    judged = Ran(replace(job, checked=True, id="judged"), add=add).completed
    timed = Ran(replace(job, returns=(), timed_runs=3, id="timed"), add=add).completed
    assert judged is not None
    assert timed is not None
    assert len(timed.digests) == 4
    assert {one.bits for one in timed.digests} == {one.bits for one in judged.digests}


def test_clocks_are_read_before_and_after_timed_runs() -> None:
    timed = Ran(replace(PLAIN, timed_runs=2), double=double).completed
    assert timed is not None
    assert timed.conditions == GpuConditions(1780, 1880, 3201, 1980, 42, ("heat",))
    plain = Ran(PLAIN, double=double).completed
    assert plain is not None
    assert plain.conditions is None


PLAIN = a_job((launch("double", "x", "y"),), (out("y"),))


@pytest.mark.parametrize(
    ("job", "kind", "message"),
    [
        (replace(PLAIN, arch="sm_80"), FaultKind.UNSUITABLE, "built for sm_80 and this device is Scripted GPU, sm_90a"),
        (replace(PLAIN, arch="hopper"), FaultKind.BROKEN_JOB, "'hopper' is no architecture known here"),
        (replace(PLAIN, returns=("z",)), FaultKind.BROKEN_JOB, "returns 'z'"),
        (replace(PLAIN, digests=("z",)), FaultKind.BROKEN_JOB, "returns 'z'"),
        (replace(PLAIN, inputs=(X, X)), FaultKind.BROKEN_JOB, "gives 'x' twice"),
        (replace(PLAIN, inputs=()), FaultKind.BROKEN_JOB, "uses 'x', which is neither"),
        (replace(PLAIN, inputs=(replace(X, content=Data(b"")),)), FaultKind.BROKEN_JOB, "input 'x': f32[4]"),
        (replace(PLAIN, cubin=b""), FaultKind.LOAD_REFUSED, "no whole cubin"),
        (replace(PLAIN, cubin=CUBIN[:40]), FaultKind.LOAD_REFUSED, "no whole cubin"),
        (replace(PLAIN, cubin=CUBIN[:0x3C] + b"\x01" + CUBIN[0x3D:]), FaultKind.LOAD_REFUSED, "no whole cubin"),
        (replace(PLAIN, limits=Limits(device_bytes=1000)), FaultKind.MEMORY, "the job's limit is 0.0 MiB"),
    ],
)
def test_jobs_that_cannot_be_run_are_refused_before_anything_is(job: Job, kind: FaultKind, message: str) -> None:
    ran = Ran(job, double=double)
    assert ran.fault is not None
    assert ran.fault.kind is kind
    assert message in ran.fault.message
    assert ran.executor.runs == []


def test_the_memory_limit_counts_inputs_and_buffers() -> None:
    big = InputTensor("big", TensorSpec.contiguous(DType.F32, (1 << 18,)), Normal(1))
    job = replace(PLAIN, inputs=(X, big))
    assert Ran(replace(job, limits=Limits(device_bytes=(1 << 20) + 1024)), double=double).completed is not None
    ran = Ran(replace(job, limits=Limits(device_bytes=1 << 20)), double=double)
    ran.faulted(FaultKind.MEMORY, "inputs take 1.0 MiB and outputs and scratch 0.0 MiB", None)


# -- jobs that are checked --


def checked(steps: tuple[PackedLaunch | LibraryCall, ...], buffers: tuple[Buffer, ...], **options: object) -> Job:
    return a_job(steps, buffers, checked=True, **options)


def beyond(tensor: torch.Tensor, elements: int) -> torch.Tensor:
    """So many elements behind a tensor, or before it where the number is below 0: memory that is not its own."""
    start = tensor.storage_offset() + (tensor.numel() if elements > 0 else elements)
    return tensor.as_strided((abs(elements),), (1,), start)


def test_a_checked_job_is_called_twice_and_then_several_times_at_once() -> None:
    ran = Ran(checked((launch("double", "x", "y"),), (out("y"),)), double=double)
    assert ran.numbers() == [2, 4, 6, 8]
    assert ran.completed is not None
    assert ran.completed.differing == ()
    assert ran.executor.runs == [("double",)] * 6


def test_what_a_call_leaves_in_scratch_shows_in_the_next() -> None:
    def remember(x: torch.Tensor, kept: torch.Tensor, y: torch.Tensor) -> None:
        y.copy_(2 * x + (kept[0] == 7))
        kept.fill_(7)

    job = checked((launch("remember", "x", "kept", "y"),), (out("y"), scratch("kept")))
    ran = Ran(job, remember=remember)
    assert ran.completed is not None
    assert ran.completed.differing == ("y",)
    assert ran.numbers() == [3, 5, 7, 9], "the call on used memory is the one that is judged"
    assert Ran(replace(job, checked=False), remember=remember).numbers() == [2, 4, 6, 8]


def test_results_that_depend_on_old_results_differ() -> None:
    def lazy(x: torch.Tensor, y: torch.Tensor) -> None:
        if bool(y.isnan().all()):  # "nobody has been here yet"
            y.copy_(2 * x)

    ran = Ran(checked((launch("lazy", "x", "y"),), (out("y"),)), lazy=lazy)
    assert ran.completed is not None
    assert ran.completed.differing == ("y",)


def test_old_bytes_vary_from_job_to_job() -> None:
    seen = set()

    def look(y: torch.Tensor) -> None:
        seen.add(bytes(y.view(torch.uint8)[:1].tolist()))
        y.fill_(1)

    for number in range(8):
        Ran(checked((launch("look", "y"),), (out("y"),), id=f"job {number}"), look=look)
    assert len(seen) > 3


def test_an_input_that_was_changed_is_a_fault_unless_it_is_a_result() -> None:
    def consume(x: torch.Tensor, y: torch.Tensor) -> None:
        y.copy_(x)
        x[2] = -1

    job = checked((launch("consume", "x", "y"),), (out("y"),))
    Ran(job, consume=consume).faulted(FaultKind.INPUT, "the plan changed its input x", None)
    ran = Ran(replace(job, returns=("x", "y")), consume=consume)
    assert ran.numbers("x") == [1, 2, -1, 4]
    assert ran.numbers("y") == [1, 2, 3, 4], "each call began from fresh inputs"


@pytest.mark.parametrize(("name", "elements"), [("y", 1), ("y", -2), ("x", 3), ("s", 1000)])
@pytest.mark.parametrize("is_checked", [False, True])
def test_writing_around_a_tensor_is_a_fault(name: str, elements: int, is_checked: bool) -> None:
    def wild(**tensors: torch.Tensor) -> None:
        tensors["y"].fill_(1)
        beyond(tensors[name], elements).fill_(5)

    job = a_job((launch("wild", "x", "y", "s"),), (out("y"), scratch("s")), checked=is_checked)
    ran = Ran(job, wild=lambda x, y, s: wild(x=x, y=y, s=s))
    where = "1 bytes before" if elements < 0 else "0 bytes after the end of"
    ran.faulted(FaultKind.OUTSIDE, f"a byte {where} {name} was written", None)


def test_a_zeroed_result_comes_back_from_whole_runs_too() -> None:
    def add(x: torch.Tensor, y: torch.Tensor) -> None:
        y += x

    zeroed = out("y", clearing=Clearing.ZEROED)
    for steps in ((launch("add", "x", "y"),), (launch("add", "x", "y"), launch("add", "x", "y"))):
        for is_checked in (False, True):
            ran = Ran(a_job(steps, (zeroed,), checked=is_checked), add=add)
            assert ran.numbers() == [len(steps) * one for one in (1, 2, 3, 4)]
            assert ran.completed is not None
            assert ran.completed.differing == ()


def test_a_library_plan_is_called_twice_but_not_side_by_side() -> None:
    steps = (LibraryCall("t", "aten.add", (TensorArgument("x"), TensorArgument("x")), 5), launch("double", "t", "y"))
    ran = Ran(checked(steps, (out("y"), scratch("t"))), double=double)
    assert ran.numbers() == [4, 8, 12, 16]
    assert ran.executor.runs.count(("aten.add", "double")) == 2


class Lent:
    """Memory of this process in place of a GPU's."""

    def __init__(self) -> None:
        self.taken: list[torch.Tensor] = []

    def allocate(self, size: int) -> torch.Tensor:
        self.taken.append(torch.empty(size, dtype=torch.uint8))
        return self.taken[-1]

    def handle(self, address: int) -> tuple[bytes, int]:
        number, start = max((n, one.data_ptr()) for n, one in enumerate(self.taken) if one.data_ptr() <= address)
        return b"%d" % number, address - start


@pytest.mark.parametrize("is_checked", [False, True])
def test_results_that_are_shared_stay_where_they_are(is_checked: bool) -> None:
    job = a_job((launch("double", "x", "y"),), (out("y"), scratch("s")), checked=is_checked, share=True)
    stream, lent = CpuStream(), Lent()
    executor = CpuExecutor(stream, double=double)
    done = JobRun(job, executor, stream, torch.device("cpu"), lambda progress: None, lent).outcome()
    assert done.outputs == ()
    (y,) = done.shared
    assert len(lent.taken) == 1, "nothing else is shown"
    memory = lent.taken[0][y.offset : y.offset + 16]
    assert memory.view(torch.float32).tolist() == [2, 4, 6, 8]


@pytest.mark.parametrize(
    ("name", "when", "kind"),
    [
        ("CUDA_ERROR_ILLEGAL_ADDRESS", ErrorPhase.RUN, FaultKind.ILLEGAL_ACCESS),
        ("CUDA_ERROR_ILLEGAL_ADDRESS", ErrorPhase.LAUNCH, FaultKind.ILLEGAL_ACCESS),
        ("CUDA_ERROR_MISALIGNED_ADDRESS", ErrorPhase.RUN, FaultKind.MISALIGNED),
        ("CUDA_ERROR_ASSERT", ErrorPhase.RUN, FaultKind.DEVICE_ASSERT),
        ("CUDA_ERROR_LAUNCH_FAILED", ErrorPhase.RUN, FaultKind.DEVICE_ASSERT),
        ("CUDA_ERROR_OUT_OF_MEMORY", ErrorPhase.LOAD, FaultKind.MEMORY),
        ("CUDA_ERROR_NO_BINARY_FOR_GPU", ErrorPhase.LOAD, FaultKind.UNSUITABLE),
        ("CUDA_ERROR_INVALID_IMAGE", ErrorPhase.LOAD, FaultKind.LOAD_REFUSED),
        ("CUDA_ERROR_INVALID_VALUE", ErrorPhase.LOAD, FaultKind.LAUNCH_REFUSED),
        ("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", ErrorPhase.LAUNCH, FaultKind.LAUNCH_REFUSED),
        ("CUDA_ERROR_ECC_UNCORRECTABLE", ErrorPhase.RUN, FaultKind.OTHER),
    ],
)
def test_driver_errors_have_their_meaning(name: str, when: ErrorPhase, kind: FaultKind) -> None:
    assert explain_error(name, when)[0] is kind

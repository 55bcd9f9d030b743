"""`EmulatedDevice`: the same protocol as a GPU's, in a child with limits; whatever a job does, the next one works."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.spool_cases import HALF_TOLERANCE, KERNELS, REFERENCES, TOLERANCE, Case, array_of, good_cases

from tilewright.devices.child_device import EmulatedDevice
from tilewright.devices.emulation.plan_run import sampled_blocks
from tilewright.devices.emulation.schedules import merged
from tilewright.kernel_file import parse
from tilewright.records import (
    PROFILES,
    BoundPlan,
    Check,
    Completed,
    Data,
    DType,
    Emulation,
    Execution,
    Faulted,
    FaultKind,
    FindingKind,
    FindingRecord,
    GpuProfile,
    InputTensor,
    Integers,
    Job,
    Limits,
    Normal,
    TensorSpec,
    ThreadRecord,
    from_json,
    to_json,
)
from tilewright.toolchain import BuiltPlan, build_plan

H200 = PROFILES["H200"]
PLAN = """
//! op      f(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32 and x.numel == 64
"""
X = TensorSpec.contiguous(DType.F32, (64,))
VALUES = np.arange(64, dtype=np.float32)


@pytest.fixture(scope="module")
def device() -> Iterator[EmulatedDevice]:
    with EmulatedDevice(H200) as device:
        yield device


def job_of(
    text: str, inputs: dict[str, InputTensor], gpu: GpuProfile = H200, scalars: dict[str, object] | None = None
) -> Job:
    """A job from a kernel file: built for real, with its PTX."""
    file = parse(text)
    op = file.plan.op
    given = {p.name: None if p.scalar is None else p.default for p in op.parameters}
    arguments = {**given, **{name: one.spec for name, one in inputs.items()}, **(scalars or {})}
    built = build_plan(file, arguments, gpu, isolated=False)  # type: ignore[arg-type]
    assert isinstance(built, BuiltPlan), built
    returns = (*op.results, *(p.name for p in op.parameters if p.in_place))
    return built.job("job", tuple(inputs.values()), returns=returns, limits=Limits(), emulation=Emulation())


def simple(body: str, **options: object) -> Job:
    """One kernel on 64 floats."""
    data = {"x": InputTensor("x", X, Data(VALUES.tobytes()))}
    return replace(job_of(PLAN + body, data), **options)  # type: ignore[arg-type]


TWICE = """//! launch  twice<<<1, 64>>>(x, y)
__global__ void twice(const float* x, float* y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }
"""


def numbers(execution: Execution, name: str = "y") -> np.ndarray:  # type: ignore[type-arg]
    assert isinstance(execution, Completed), execution
    one = next(output for output in execution.outputs if output.name == name)
    return array_of(one.content, one.spec)


def still_works(device: EmulatedDevice) -> bool:
    return bool((numbers(device.execute(simple(TWICE))) == 2 * VALUES).all())


SMALL = [case for case in good_cases() if sum(spec.numel for spec, _ in case.tensors.values()) < 100_000]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: str(case.id))
def test_jobs_of_every_kind_are_right(device: EmulatedDevice, case: Case) -> None:
    inputs = {name: InputTensor(name, spec, content) for name, (spec, content) in case.tensors.items()}
    job = job_of(KERNELS[case.kernel], inputs, scalars=dict(case.scalars))
    before = {name: numbers(device.execute(_copied(one)), "x") for name, one in inputs.items()}
    execution = device.execute(replace(job, emulation=Emulation(schedules=2)))
    assert isinstance(execution, Completed), execution
    assert execution.findings == ()
    (output,) = execution.outputs
    expected = REFERENCES[case.kernel](**before, **case.scalars)
    allowed = HALF_TOLERANCE.get(output.spec.dtype, TOLERANCE.get(case.kernel, 0.0))
    np.testing.assert_allclose(numbers(execution, output.name), expected, atol=allowed * np.abs(expected).max(), rtol=0)
    assert execution.device == "H200 (emulated)"
    assert execution.run_us == ()


def _copied(one: InputTensor) -> Job:
    """A job that does nothing and gives its input back: what the device made of its content."""
    plan = BoundPlan((), (), ())
    return Job("copy", H200.arch, b"", plan, (replace(one, name="x"),), ("x",))


def test_outputs_findings_and_counts_come_back(device: EmulatedDevice) -> None:
    execution = device.execute(simple(TWICE, emulation=Emulation(schedules=3, seed=7)))
    assert (numbers(execution) == 2 * VALUES).all()
    assert isinstance(execution, Completed)
    assert execution.emulated is not None
    assert execution.emulated.schedules == 3
    assert execution.emulated.incomplete == ()
    (counts,) = execution.emulated.counts
    assert (counts.kernel, counts.blocks) == ("twice", 1)
    assert execution.emulated.thread_instructions == counts.thread_instructions > 64 * 4
    assert from_json(Execution, to_json(execution)) == execution


FAR_APART = """//! scratch far: u8[40 * 1048576]
//! launch  far_apart<<<1280, 32>>>(x, far)
//! launch  twice<<<1, 64>>>(x, y)
__global__ void far_apart(const float* x, unsigned char* far) {
  far[(blockIdx.x * 32 + threadIdx.x) * 1024] = x[threadIdx.x];
}
__global__ void twice(const float* x, float* y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }
"""


def test_races_that_may_have_been_missed_are_said_once(device: EmulatedDevice) -> None:
    execution = device.execute(simple(FAR_APART, emulation=Emulation(schedules=2)))
    assert (numbers(execution) == 2 * VALUES).all()
    assert execution.emulated is not None
    (sentence,) = execution.emulated.incomplete
    assert sentence.startswith("far_apart: races in global memory: more accesses than the detector has memory for")
    assert execution.findings == ()
    assert from_json(Execution, to_json(execution)) == execution
    unwatched = device.execute(simple(FAR_APART, emulation=Emulation(checks=(Check.UNINITIALISED,))))
    assert unwatched.emulated is not None
    assert unwatched.emulated.incomplete == ()


def test_inputs_by_seed_are_the_same_every_time(device: EmulatedDevice) -> None:
    drawn = InputTensor("x", X, Normal(3, mean=10.0))
    first, again = (numbers(device.execute(replace(simple(TWICE), inputs=(one,)))) for one in (drawn, drawn))
    assert (first == again).all()
    assert 15 < first.mean() < 25
    other = numbers(device.execute(replace(simple(TWICE), inputs=(InputTensor("x", X, Integers(3, 0, 5)),))))
    assert set(other.tolist()) <= {0.0, 2.0, 4.0, 6.0, 8.0}


OVERRUN = """//! launch  over<<<1, 65>>>(x, y)
__global__ void over(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }
"""


def test_an_overrun_is_a_finding_with_tensor_and_line(device: EmulatedDevice) -> None:
    execution = device.execute(simple(OVERRUN))
    assert isinstance(execution, Completed)
    assert (numbers(execution) == VALUES).all()
    assert [finding.kind for finding in execution.findings] == [FindingKind.OUT_OF_BOUNDS_GLOBAL] * 2
    assert {finding.line for finding in execution.findings} == {6}
    assert {finding.launch_line for finding in execution.findings} == {5}
    wheres = " ".join(finding.where for finding in execution.findings)
    assert "x" in wheres
    assert "y" in wheres


FAULTS = {
    "trap": ("__trap();", FaultKind.DEVICE_ASSERT, "trap"),
    "endless": ("while (*(volatile const float*)x >= 0) y[0] += 1;", FaultKind.STOPPED, "instruction budget"),
    "deadlock": ('if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;" ::: "memory");', FaultKind.STOPPED, "deadlock"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_run_that_is_stopped_is_a_fault_with_its_finding(device: EmulatedDevice, name: str) -> None:
    body, kind, said = FAULTS[name]
    text = f"//! launch  bad<<<1, 64>>>(x, y)\n__global__ void bad(const float* x, float* y) {{\n  {body}\n}}\n"
    execution = device.execute(simple(text, emulation=Emulation(instruction_budget=1_000_000)))
    assert isinstance(execution, Faulted), execution
    assert (execution.kind, execution.kernel, execution.line) == (kind, "bad", 5)
    assert said in execution.message
    assert execution.findings
    assert still_works(device)


def test_counters_must_be_left_at_zero(device: EmulatedDevice) -> None:
    text = """//! scratch tick: i32[2] counter
//! launch  count<<<1, 64>>>(x, y, tick)
__global__ void count(const float* x, float* y, int* tick) {
  y[threadIdx.x] = x[threadIdx.x];
  atomicAdd(tick + 1, 1);
}
"""
    execution = device.execute(simple(text))
    assert isinstance(execution, Faulted)
    assert execution.kind is FaultKind.STATE
    assert "tick[1] is 64" in execution.message
    assert execution.line == 6


def test_scratch_is_poison_and_zeroed_scratch_is_zero(device: EmulatedDevice) -> None:
    text = """//! scratch old: f32[64]{}
//! launch  take<<<1, 64>>>(x, y, old)
__global__ void take(const float* x, float* y, float* old) {{
  y[threadIdx.x] = x[threadIdx.x] + old[threadIdx.x];
}}
"""
    stale = device.execute(simple(text.format("")))
    assert [finding.kind for finding in stale.findings] == [FindingKind.UNINITIALISED_GLOBAL]
    assert "old[0]" in stale.findings[0].where
    assert np.isnan(numbers(stale)).all()
    cleared = device.execute(simple(text.format(" zeroed")))
    assert cleared.findings == ()
    assert (numbers(cleared) == VALUES).all()


def test_results_that_hang_on_the_schedule_are_said_to(device: EmulatedDevice) -> None:
    text = """//! scratch sum: f32[1] zeroed
//! launch  add<<<64, 32>>>(x, sum)
//! launch  give<<<1, 64>>>(sum, y)
__global__ void add(const float* x, float* sum) { if (threadIdx.x == 0) atomicAdd(sum, 1.f / (1 + x[blockIdx.x])); }
__global__ void give(const float* sum, float* y) { y[threadIdx.x] = *sum; }
"""
    execution = device.execute(simple(text, emulation=Emulation(schedules=6)))
    assert isinstance(execution, Completed)
    assert execution.findings == ()
    assert execution.emulated is not None
    assert execution.emulated.varying == ("y",)


def test_what_the_emulator_refuses(device: EmulatedDevice) -> None:
    good = simple(TWICE)
    stacked = TWICE.replace("{ y", '{ asm volatile("{ .reg .u64 s; stacksave.u64 s; }" ::: "memory"); y')
    for job, kind, said in (
        (simple(stacked), FaultKind.UNSUITABLE, "stacksave"),
        (replace(good, ptx=None), FaultKind.BROKEN_JOB, "has no PTX"),
        (replace(good, ptx="not PTX"), FaultKind.LOAD_REFUSED, "PTX"),
        (replace(good, arch="sm_80"), FaultKind.UNSUITABLE, "build it for that"),
        (replace(good, timed_runs=3), FaultKind.UNSUITABLE, "measures no time"),
        (replace(good, returns=("z",)), FaultKind.BROKEN_JOB, "returns 'z'"),
        (replace(good, inputs=()), FaultKind.BROKEN_JOB, "'x'"),
        (replace(good, inputs=(InputTensor("x", X, Data(b"1234")),)), FaultKind.BROKEN_JOB, "takes 256 bytes"),
        (replace(good, limits=Limits(device_bytes=100)), FaultKind.MEMORY, "raise the limit"),
    ):
        execution = device.execute(job)
        assert isinstance(execution, Faulted), said
        assert execution.kind is kind, execution
        assert said in execution.message
    assert still_works(device)


def test_time_is_limited_and_the_next_job_works(device: EmulatedDevice) -> None:
    text = TWICE.replace("{ y", "{ while (*(volatile const float*)x >= 0) y[0] += 1; y")
    endless = simple(text, limits=Limits(seconds=2.0), emulation=Emulation(instruction_budget=10**15))
    execution = device.execute(endless)
    assert isinstance(execution, Faulted)
    assert (execution.kind, execution.kernel) == (FaultKind.TIME, "twice")
    assert still_works(device)


def test_a_killed_child_is_replaced(device: EmulatedDevice) -> None:
    assert still_works(device)
    pid = device.runner_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert still_works(device)
    assert device.runner_pid != pid


def test_memory_of_the_child_is_limited() -> None:
    spec = TensorSpec.contiguous(DType.F32, (1 << 30,))
    text = TWICE.replace("1, 64", "1, 32")
    plan = PLAN.replace("x.numel == 64", "x.numel > 0")
    job = job_of(plan + text, {"x": InputTensor("x", spec, Integers(0, 0, 2))})
    with EmulatedDevice(H200, host_bytes=3 << 30) as device:
        execution = device.execute(job)
        assert isinstance(execution, Faulted)
        assert execution.kind is FaultKind.MEMORY
        assert still_works(device)


def test_another_profile_is_what_the_plan_is_built_for() -> None:
    with EmulatedDevice(PROFILES["A100"]) as device:
        assert device.profile.name == "A100"
        assert device.runner_pid is None  # nothing is started before the first job
        job = job_of(PLAN + TWICE, {"x": InputTensor("x", X, Data(VALUES.tobytes()))}, PROFILES["A100"])
        execution = device.execute(job)
        assert (numbers(execution) == 2 * VALUES).all()
        assert execution.device == "A100 (emulated)"


# -- the pieces --


def test_sampled_blocks_are_spread_with_both_ends() -> None:
    assert sampled_blocks(10, None) is None
    assert sampled_blocks(10, 10) is None
    assert sampled_blocks(10, 1) == (0,)
    assert sampled_blocks(10, 2) == (0, 9)
    assert sampled_blocks(101, 5) == (0, 25, 50, 75, 100)
    fair = sampled_blocks(16384, 64, edges=False)
    assert fair is not None
    assert len(set(fair)) == 64
    assert 4 <= sum(block % 8 == 7 for block in fair) <= 12  # one in eight is such a block


def finding(line: int, other: int) -> FindingRecord:
    where = ThreadRecord((1, 0, 0), (5, 0, 0))
    return FindingRecord(FindingKind.RACE_SHARED, "f<1>", 3, line, 0, where, "x[1]", "", 4, other, where, 70)


def test_the_same_race_seen_from_either_side_is_one() -> None:
    runs = [[finding(17, 20)], [finding(20, 17), finding(17, 20)], [], [finding(17, 21)]]
    first, second = merged(runs)
    assert (first.line, first.other_line, first.schedules) == (17, 20, 2)
    assert (second.other_line, second.schedules) == (21, 1)

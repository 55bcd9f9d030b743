"""`CudaDevice` on a real GPU: right answers, every fault with its kernel, and a next job that works after each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from benchmarks.spool_cases import KERNELS, array_of, good_cases, make_job, tensor, with_shared_memory

from tilewright.devices.child_device import CudaDevice
from tilewright.records import (
    Completed,
    Data,
    DType,
    Execution,
    Faulted,
    FaultKind,
    Integers,
    Job,
    Limits,
    Normal,
    ReturnedTensor,
    TensorSpec,
    Uniform,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: torch.cuda.is_available() is false"),
]

X = tensor(DType.F32, (64,), 1, 0, 50)
PLAN = """
//! op      f(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32 and x.numel == 64
"""


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    with CudaDevice() as device:
        yield device


def job(device: CudaDevice, text: str, job_id: str = "job", **options: object) -> Job:
    built = make_job(job_id, text, {"x": X}, {}, device.profile)
    return replace(built, **options)  # type: ignore[arg-type]


def outputs(execution: Execution) -> dict[str, ReturnedTensor]:
    assert isinstance(execution, Completed), execution
    return {one.name: one for one in execution.outputs}


def numbers(execution: Execution, name: str = "y") -> np.ndarray:  # type: ignore[type-arg]
    one = outputs(execution)[name]
    return array_of(one.content, one.spec)


def faulted(execution: Execution, kind: FaultKind, kernel: str | None, line: int | None) -> Faulted:
    assert isinstance(execution, Faulted), execution
    assert (execution.kind, execution.kernel, execution.line) == (kind, kernel, line), execution
    return execution


REVERSE = """__global__ void reverse(const float* x, float* y) { y[threadIdx.x] = x[63 - threadIdx.x]; }"""


def still_works(device: CudaDevice) -> None:
    execution = device.execute(job(device, f"{PLAN}//! launch  reverse<<<1, 64>>>(x, y)\n{REVERSE}", "next"))
    assert isinstance(X[1], Data)
    assert numbers(execution).tolist() == np.frombuffer(X[1].content, np.float32)[::-1].tolist()


def test_the_profile_is_this_gpu(device: CudaDevice) -> None:
    major, minor = torch.cuda.get_device_capability(0)
    assert device.profile.cc == 10 * major + minor
    assert device.profile.name == torch.cuda.get_device_name(0)


@pytest.mark.parametrize("case", good_cases(), ids=lambda case: case.id)
def test_good_jobs_are_right(device: CudaDevice, case: object) -> None:
    from benchmarks.spool_cases import HALF_TOLERANCE, REFERENCES, TOLERANCE, Case

    assert isinstance(case, Case)
    execution = device.execute(make_job(case.id, KERNELS[case.kernel], case.tensors, case.scalars, device.profile))
    returned = outputs(execution)
    given = {n: array_of(c.content, s) for n, (s, c) in case.tensors.items() if isinstance(c, Data)}
    inputs = {n: given.get(n, array_of(returned[n].content, returned[n].spec)) for n in case.tensors}
    expected = REFERENCES[case.kernel](**inputs, **case.scalars).astype(np.float64)
    name = "sum" if case.kernel == "columns" else next(iter(returned))
    tolerance = HALF_TOLERANCE.get(returned[name].spec.dtype, TOLERANCE.get(case.kernel, 0.0))
    np.testing.assert_allclose(
        numbers(execution, name), expected, rtol=0, atol=tolerance * max(1, np.abs(expected).max())
    )


def test_a_wild_address_is_named(device: CudaDevice) -> None:
    before = device.runner_pid
    fault = faulted(device.execute(job(device, KERNELS["wild"])), FaultKind.ILLEGAL_ACCESS, "writes_wildly", 4)
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in fault.message
    assert device.runner_pid != before
    still_works(device)


def test_the_second_of_two_steps_is_blamed(device: CudaDevice) -> None:
    text = (
        f"{PLAN}//! launch  reverse<<<1, 64>>>(x, y)\n//! launch  wild<<<1, 1>>>(y)\n{REVERSE}\n"
        "__global__ void wild(float* y) { y[1ll << 40] = 1.f; }"
    )
    fault = faulted(device.execute(job(device, text)), FaultKind.ILLEGAL_ACCESS, "wild", 5)
    assert "step 2 of 2" in fault.message
    still_works(device)


def test_a_misaligned_access_is_named(device: CudaDevice) -> None:
    text = (
        f"{PLAN}//! launch  crooked<<<1, 1>>>(x, y)\n"
        "__global__ void crooked(const float* x, float* y) {\n"
        "  *(float4*)(y + 1 + (x[0] < 0.f)) = make_float4(1, 2, 3, 4); }"
    )
    faulted(device.execute(job(device, text)), FaultKind.MISALIGNED, "crooked", 4)
    still_works(device)


def test_a_trap_is_named(device: CudaDevice) -> None:
    text = (
        f"{PLAN}//! launch  traps<<<1, 64>>>(x, y)\n"
        "__global__ void traps(const float* x, float* y) {\n"
        "  y[threadIdx.x] = x[threadIdx.x]; if (x[0] >= 0.f) __trap(); }"
    )
    faulted(device.execute(job(device, text)), FaultKind.DEVICE_ASSERT, "traps", 4)
    still_works(device)


def test_a_hang_is_ended_and_named(device: CudaDevice) -> None:
    still_works(device)
    hang = job(device, KERNELS["hang"], limits=Limits(seconds=3.0))
    fault = faulted(device.execute(hang), FaultKind.TIME, "never_ends", 4)
    assert fault.message.startswith("not done after 3 s, while running step 1: never_ends (line 4)")
    still_works(device)


def test_too_much_shared_memory_is_refused_and_the_runner_kept(device: CudaDevice) -> None:
    still_works(device)
    before = device.runner_pid
    greedy = with_shared_memory(job(device, KERNELS["greedy"]), 512 << 10)
    faulted(device.execute(greedy), FaultKind.LAUNCH_REFUSED, "wants_too_much", 4)
    still_works(device)
    assert device.runner_pid == before


def test_too_many_threads_are_refused(device: CudaDevice) -> None:
    good = job(device, KERNELS["greedy"])
    steps = tuple(replace(step, block=(2048, 1, 1)) for step in good.plan.steps)  # type: ignore[call-arg]
    wide = replace(good, plan=replace(good.plan, steps=steps))
    faulted(device.execute(wide), FaultKind.LAUNCH_REFUSED, "wants_too_much", 4)
    still_works(device)


def test_a_counter_left_behind_is_found(device: CudaDevice) -> None:
    text = (
        f"{PLAN}//! scratch tick: i32[4] counter\n//! launch  careless<<<1, 64>>>(x, y, tick)\n"
        "__global__ void careless(const float* x, float* y, int* tick) {\n"
        "  y[threadIdx.x] = x[threadIdx.x]; atomicAdd(tick + 2, 1); }"
    )
    fault = faulted(device.execute(job(device, text)), FaultKind.STATE, "careless", 5)
    assert "counter tick[2] at 64" in fault.message
    still_works(device)


def test_memory_beyond_the_limit_is_refused_before_it_is_taken(device: CudaDevice) -> None:
    text = (
        f"{PLAN}//! scratch large: f32[1 << 3]\n".replace("1 << 3", "536870912")
        + "//! launch  reverse<<<1, 64>>>(x, y)\n//! launch  touch<<<1, 1>>>(large)\n"
        + f"{REVERSE}\n__global__ void touch(float* large) {{ large[0] = 1.f; }}"
    )
    fault = faulted(
        device.execute(job(device, text, limits=Limits(device_bytes=1 << 30))), FaultKind.MEMORY, None, None
    )
    assert "outputs and scratch 2048.0 MiB" in fault.message
    assert "limit is 1024.0 MiB" in fault.message
    assert isinstance(device.execute(job(device, text, limits=Limits(device_bytes=4 << 30))), Completed)
    still_works(device)


def test_more_memory_than_the_gpu_has_is_a_fault_not_a_crash(device: CudaDevice) -> None:
    good = job(device, f"{PLAN}//! launch  reverse<<<1, 64>>>(x, y)\n{REVERSE}")
    huge = TensorSpec.contiguous(DType.F32, (device.profile.memory_bytes,))
    inputs = (*good.inputs, replace(good.inputs[0], name="huge", spec=huge, content=Normal(1)))
    fault = faulted(
        device.execute(replace(good, inputs=inputs, limits=Limits(device_bytes=1 << 50))), FaultKind.MEMORY, None, None
    )
    assert "cannot hold" in fault.message
    still_works(device)


def test_what_is_not_written_stays_poisoned(device: CudaDevice) -> None:
    text = f"{PLAN}//! launch  reverse<<<1, 32>>>(x, y)\n{REVERSE}"
    found = numbers(device.execute(job(device, text)))
    assert np.isnan(found[32:]).all()
    assert not np.isnan(found[:32]).any()


def test_scratch_is_poisoned_and_zeroed_scratch_is_zero(device: CudaDevice) -> None:
    text = (
        f"{PLAN}//! scratch raw: f32[64]\n//! scratch clean: f32[64] zeroed\n"
        "//! launch  show<<<1, 64>>>(raw, clean, y)\n//! launch  show<<<1, 32>>>(clean, clean, y)\n"
        "__global__ void show(const float* raw, const float* clean, float* y) {\n"
        "  y[threadIdx.x] = isnan(raw[threadIdx.x]) ? clean[threadIdx.x] + 7.f : clean[threadIdx.x]; }"
    )
    assert numbers(device.execute(job(device, text))).tolist() == [0.0] * 32 + [7.0] * 32


def test_a_module_for_another_gpu_is_unsuitable_and_a_damaged_one_refused(device: CudaDevice) -> None:
    good = job(device, f"{PLAN}//! launch  reverse<<<1, 64>>>(x, y)\n{REVERSE}")
    other = "sm_80" if device.profile.cc >= 90 else "sm_90a"
    fault = faulted(device.execute(replace(good, arch=other)), FaultKind.UNSUITABLE, None, None)
    assert f"built for {other}" in fault.message
    for damaged in (good.cubin[: len(good.cubin) // 2], b"not a cubin at all", b""):
        fault = faulted(device.execute(replace(good, cubin=damaged)), FaultKind.LOAD_REFUSED, None, None)
        assert "no whole cubin" in fault.message
    hollow = good.cubin.replace(b"reverse", b"esrever")
    faulted(device.execute(replace(good, cubin=hollow)), FaultKind.LOAD_REFUSED, "reverse", 4)
    still_works(device)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"returns": ("q",)}, "returns 'q', which is neither input nor output"),
        ({"arch": "sm_1"}, "'sm_1' is no architecture known here"),
        ({"inputs": ()}, "uses 'x'"),
    ],
)
def test_jobs_that_contradict_themselves_are_broken(device: CudaDevice, change: dict[str, object], reason: str) -> None:
    good = job(device, f"{PLAN}//! launch  reverse<<<1, 64>>>(x, y)\n{REVERSE}")
    execution = device.execute(replace(good, **{"returns": ("y",), **change}))  # type: ignore[arg-type]
    assert isinstance(execution, Faulted)
    assert execution.kind is FaultKind.BROKEN_JOB
    assert reason in execution.message


def test_timed_runs_are_timed(device: CudaDevice) -> None:
    x = tensor(DType.I32, (32,), 1)
    slow = make_job(
        "slow", KERNELS["patient"], {"x": x}, {"a": 5, "c": 3, "times": 200_000}, device.profile, timed_runs=5
    )
    execution = device.execute(slow)
    assert isinstance(execution, Completed)
    assert len(execution.run_us) == 5
    # 200,000 dependent multiply-adds of 4 or 5 cycles at 1 to 3 GHz
    assert all(150.0 < us < 3000.0 for us in execution.run_us), execution.run_us


def test_seeds_are_reproducible_across_runners() -> None:
    """Two children make the same bytes from the same seeds, in every float type and with strides."""
    made = []
    for _ in range(2):
        with CudaDevice() as device:
            good = job(device, f"{PLAN}//! launch  reverse<<<1, 64>>>(x, y)\n{REVERSE}")
            extra = tuple(
                replace(
                    good.inputs[0],
                    name=f"{dtype.value}_{number}",
                    spec=TensorSpec(dtype, (3, 1000), (1, 4)),
                    content=content,
                )
                for dtype in DType
                for number, content in enumerate((Normal(3, 0.5, 2.0), Uniform(4, -1.0, 1.0), Integers(5, 0, 2)))
                if dtype.is_float or isinstance(content, Integers)
            )
            names = tuple(one.name for one in extra)
            execution = device.execute(replace(good, inputs=(*good.inputs, *extra), returns=names))
            made.append({name: one.content for name, one in outputs(execution).items()})
    assert made[0] == made[1]
    assert len(set(made[0].values())) == len(made[0]) - 2, "only i8, u8 and bool hold the same bytes"
    spec = TensorSpec(DType.F32, (3, 1000), (1, 4))
    wide, narrow = (array_of(made[0][f"f32_{number}"], spec) for number in (0, 1))
    assert abs(wide.mean() - 0.5) < 0.15
    assert abs(wide.std() - 2.0) < 0.15
    assert -1.0 <= narrow.min() < narrow.max() <= 1.0


def test_a_library_step_takes_part(device: CudaDevice) -> None:
    text = """
//! op      f(a, b) -> y
//! need    a.ndim == 2 and b.ndim == 2 and a.dtype == f32 and b.dtype == f32
//! let     m = a.shape[0], n = b.shape[1], count = m * n
//! out     y: f32[m, n]
//! scratch t: f32[m, n]
//! library t = aten.mm(a, b)
//! launch  twice<<<ceil_div(count, 128), 128>>>(t, y, count)
__global__ void twice(const float* t, float* y, int count) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < count) y[i] = 2.f * t[i];
}
"""
    a, b = tensor(DType.F32, (16, 8), 1), tensor(DType.F32, (8, 24), 2)
    execution = device.execute(make_job("library", text, {"a": a, "b": b}, {}, device.profile))
    left, right = (array_of(c.content, s) for s, c in (a, b) if isinstance(c, Data))
    np.testing.assert_allclose(numbers(execution), 2 * (left @ right), rtol=1e-5, atol=1e-3)

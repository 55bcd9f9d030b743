"""What a kernel may not depend on differs between schedules: order, addresses, what memory and registers held."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from tests.devices.test_emulated import H200, VALUES, numbers, simple

from tilewright.devices.child_device import EmulatedDevice
from tilewright.records import Completed, Emulation, FindingKind

THREE = Emulation(schedules=3)


@pytest.fixture(scope="module")
def device() -> Iterator[EmulatedDevice]:
    with EmulatedDevice(H200) as device:
        yield device


def run(device: EmulatedDevice, body: str) -> Completed:
    ran = device.execute(simple(body, emulation=THREE))
    assert isinstance(ran, Completed), ran
    return ran


def kinds(ran: Completed) -> set[FindingKind]:
    return {finding.kind for finding in ran.findings}


def of_shared(expression: str) -> str:
    """A kernel whose second half of shared memory nothing writes."""
    return f"""//! launch  f<<<1, 64>>>(x, y)
__global__ void f(const float* x, float* y) {{
  __shared__ float row[128];
  int i = threadIdx.x;
  row[i] = x[i];
  __syncthreads();
  float old = ((volatile float*)row)[64 + i];
  y[i] = {expression};
}}
"""


def test_reads_of_what_nothing_wrote_that_nothing_depends_on(device: EmulatedDevice) -> None:
    ran = run(device, of_shared("i < 64 ? row[i] : old"))
    assert ran.findings == ()
    assert ran.emulated is not None
    assert [one.kind for one in ran.emulated.harmless] == [FindingKind.UNINITIALISED_SHARED]
    assert (numbers(ran) == VALUES).all()


@pytest.mark.parametrize("expression", ["row[i] + old", "fmaxf(row[i], old)", "fminf(row[i], old)", "row[i] + 0 * old"])
def test_and_those_that_something_does(device: EmulatedDevice, expression: str) -> None:
    assert kinds(run(device, of_shared(expression))) == {FindingKind.UNINITIALISED_SHARED}


def test_a_bulk_store_that_its_block_ends_with_is_noted(device: EmulatedDevice) -> None:
    """On an H200 no byte of 40,000 blocks' stores was wrong though nobody waited; what it writes is there."""
    ran = run(
        device,
        """//! launch  f<<<1, 64>>>(x, y)
__global__ void f(const float* x, float* y) {
  __shared__ __align__(128) float row[64];
  row[threadIdx.x] = x[threadIdx.x];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  unsigned from = (unsigned)__cvta_generic_to_shared(row);
  if (threadIdx.x == 0)
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256;\\ncp.async.bulk.commit_group;"
                 ::"l"(y), "r"(from) : "memory");
}
""",
    )
    assert ran.findings == ()
    assert ran.emulated is not None
    assert [one.kind for one in ran.emulated.harmless] == [FindingKind.ASYNC_NOT_CONSUMED]
    assert (numbers(ran) == VALUES).all()


@pytest.mark.parametrize("step", ["held + x[i]", "fmaxf(held, x[i])"])
def test_a_register_nothing_wrote_is_no_zero(device: EmulatedDevice, step: str) -> None:
    ran = run(
        device,
        f"""//! launch  f<<<1, 64>>>(x, y)
__global__ void f(const float* x, float* y) {{
  int i = threadIdx.x;
  float held;
  asm volatile("{{ .reg .f32 none; mov.f32 %0, none; }}" : "=f"(held));
  y[i] = {step};
}}
""",
    )
    wrong = [numbers(ran), *(np.frombuffer(one[0].content, np.float32) for one in ran.other_outputs)]
    assert not all((values == VALUES).all() for values in wrong)
    assert ran.emulated is not None
    assert ran.emulated.varying == ("y",)


def test_addresses_differ_between_schedules(device: EmulatedDevice) -> None:
    ran = run(
        device,
        """//! launch  f<<<1, 64>>>(x, y)
__global__ void f(const float* x, float* y) {
  y[threadIdx.x] = (float)((unsigned long long)x >> 8 & 0xffff);
}
""",
    )
    assert len(ran.other_outputs) == 3  # of two schedules, and of the next call
    assert ran.findings == ()


def test_other_outputs_are_those_that_differ(device: EmulatedDevice) -> None:
    body = """//! scratch next: i32[1] zeroed
//! launch  f<<<32, 64>>>(x, y, next)
__global__ void f(const float* x, float* y, int* next) {{
  __shared__ int turn;
  if (threadIdx.x == 0) turn = atomicAdd(next, 1);
  __syncthreads();
  if ({condition}) y[threadIdx.x] = x[threadIdx.x] + blockIdx.x;
}}
"""
    last = run(device, body.format(condition="turn == 31"))
    assert last.emulated is not None
    assert last.emulated.varying == ("y",)
    assert all((np.frombuffer(one[0].content, np.float32) != numbers(last)).all() for one in last.other_outputs)
    assert run(device, body.format(condition="blockIdx.x == 31")).other_outputs == ()


def test_atomics_of_other_blocks_come_between(device: EmulatedDevice) -> None:
    """A sum that is read and put back by two atomics loses what others add meanwhile."""
    ran = run(
        device,
        """//! launch  clear<<<1, 64>>>(y)
//! launch  f<<<32, 64>>>(x, y)
__global__ void clear(float* y) { y[threadIdx.x] = 0; }
__global__ void f(const float* x, float* y) {
  float sum = atomicAdd(y + threadIdx.x, 0.f);
  atomicExch(y + threadIdx.x, sum + x[threadIdx.x]);
}
""",
    )
    assert (numbers(ran) == 32 * VALUES).all()
    assert ran.findings == ()
    assert all((np.frombuffer(one[0].content, np.float32) < 32 * VALUES).any() for one in ran.other_outputs)
    assert len(ran.other_outputs) == 2


def test_the_next_call_finds_what_the_last_one_left(device: EmulatedDevice) -> None:
    body = """//! scratch part: f32[64]{clearing}
//! launch  f<<<1, 64>>>(x, y, part)
__global__ void f(const float* x, float* y, float* part) {{
  int i = threadIdx.x;
  y[i] = part[i] == x[i] + 1 ? 7 : x[i];
  part[i] = x[i] + 1;
}}
"""
    how = Emulation(checks=(), schedules=2)  # of all checks one finds this in the first call
    ran = device.execute(simple(body.format(clearing=""), emulation=how))
    assert isinstance(ran, Completed)
    assert ran.emulated is not None
    assert (ran.emulated.varying, ran.emulated.schedules) == (("y",), 2)
    assert [set(np.frombuffer(one[0].content, np.float32)) for one in ran.other_outputs] == [{7.0}]
    cleared = device.execute(simple(body.format(clearing=" zeroed"), emulation=how))
    assert isinstance(cleared, Completed)
    assert cleared.other_outputs == ()


READ_BACK = """//! scratch part: f32[64]
//! launch  f<<<1, 64>>>(x, y, part)
__global__ void f(const float* x, float* y, float* part) {{
  int i = threadIdx.x;
  part[i] = x[i];
  __syncthreads();
  float value;
  asm volatile("ld.global{cache}.f32 %0, [%1];" : "=f"(value) : "l"({source} + (i ^ 1)) : "memory");
  y[i] = value;
}}
"""


def test_the_read_only_cache_does_not_see_the_writes_of_its_launch(device: EmulatedDevice) -> None:
    assert kinds(run(device, READ_BACK.format(cache=".nc", source="part"))) == {FindingKind.STALE_READ}
    assert kinds(run(device, READ_BACK.format(cache="", source="part"))) == set()
    assert kinds(run(device, READ_BACK.format(cache=".nc", source="x"))) == set()


DEPENDENT = """//! scratch part: f32[64]
//! launch  first<<<1, 64>>>(x, part)
//! launch  second<<<1, 64>>>(part, y) pdl
__global__ void first(const float* x, float* part) {{
  cudaTriggerProgrammaticLaunchCompletion();
  part[threadIdx.x] = x[threadIdx.x];
}}
__global__ void second(const float* part, float* y) {{
  {before}
  float value = ((const volatile float*)part)[threadIdx.x];
  {after}
  y[threadIdx.x] = value;
}}
"""
WAIT = "cudaGridDependencySynchronize();"


def test_a_dependent_launch_waits_before_it_reads(device: EmulatedDevice) -> None:
    assert kinds(run(device, DEPENDENT.format(before="", after=""))) == {FindingKind.NOT_AWAITED}
    assert kinds(run(device, DEPENDENT.format(before="", after=WAIT))) == {FindingKind.NOT_AWAITED}
    assert kinds(run(device, DEPENDENT.format(before=WAIT, after=""))) == set()
    by_one = f"if (threadIdx.x == 0) {WAIT} __syncthreads();"
    assert kinds(run(device, DEPENDENT.format(before=by_one, after=""))) == set()


ALL_MEET = """//! scratch came: i32[1] zeroed
//! launch  f<<<4, 64>>>(x, y, came){cooperative}
__global__ void f(const float* x, float* y, int* came) {{
  if (threadIdx.x == 0) {{
    int mine = atomicAdd(came, 1);
    while (atomicAdd(came, 0) < {wanted}) {{}}
  }}
  __syncthreads();
  if (blockIdx.x == 0) y[threadIdx.x] = x[threadIdx.x];
}}
"""


def test_blocks_that_wait_for_later_ones_need_a_cooperative_launch(device: EmulatedDevice) -> None:
    alone = run(device, ALL_MEET.format(cooperative="", wanted="gridDim.x"))
    assert kinds(alone) == {FindingKind.LATER_BLOCK}
    assert alone.findings[0].line == 10
    assert kinds(run(device, ALL_MEET.format(cooperative=" cooperative", wanted="gridDim.x"))) == set()
    assert kinds(run(device, ALL_MEET.format(cooperative="", wanted="mine"))) == set()


def test_whole_warps_may_leave_before_a_barrier(device: EmulatedDevice) -> None:
    body = """//! launch  f<<<1, 128>>>(x, y)
__global__ void f(const float* x, float* y) {{
  __shared__ float row[64];
  int i = threadIdx.x;
  if (i >= {last}) return;
  row[i] = i < 64 ? x[i] : 0;
  __syncthreads();
  y[i] = row[i ^ 32];
}}
"""
    assert kinds(run(device, body.format(last=64))) == set()
    assert FindingKind.BARRIER_DIVERGENCE in kinds(run(device, body.replace("i ^ 32", "i").format(last=48)))


def skipping(test: str, mark: str, held: str = "int") -> str:
    """A kernel that skips its work where shared memory that nothing wrote passes a test."""
    return f"""//! launch  f<<<2, 32>>>(x, y)
__global__ void f(const float* x, float* y) {{
  __shared__ {held} done[32];
  int i = blockIdx.x * 32 + threadIdx.x;
  volatile {held}* flag = &done[threadIdx.x];
  {held} old = *flag;
  if (!({test})) y[i] = x[i];
  {mark}
}}
"""


@pytest.mark.parametrize(
    ("test", "mark", "held"),
    [
        ("old == 1", "*flag = 1;", "int"),
        ("old == 1", "*flag = 1;", "unsigned char"),
        ("old == 1", "*flag = 1;", "long long"),
        ("old == 0x5eed1234", "", "int"),
        ("old == 0x5eed1234", "", "long long"),
        ("old == 0x5eed12345eedll", "", "long long"),
        ("old == 77", "", "unsigned short"),
        ("old == 1234.5f", "", "float"),
        ("old == 1234.5", "", "double"),
        ("(unsigned)old - 5000u < 3u", "", "int"),
        ("(old ^ 0x1234567) == 0", "", "int"),
        ("old == (int)blockIdx.x - 1", "*flag = blockIdx.x;", "int"),
        ("old == __float_as_int(x[i - 32 * blockIdx.x])", "*flag = __float_as_int(x[i - 32 * blockIdx.x]);", "int"),
        ("old == 3 * (int)threadIdx.x + 11", "*flag = 3 * threadIdx.x + 11;", "int"),
    ],
)
def test_work_skipped_for_what_another_block_left(device: EmulatedDevice, test: str, mark: str, held: str) -> None:
    assert FindingKind.UNINITIALISED_SHARED in kinds(run(device, skipping(test, mark, held)))


ACROSS = """//! scratch part: f32[64]
//! launch  f<<<2, 32>>>(x, part)
//! launch  g<<<2, 32>>>(x, part, y)
__global__ void f(const float* x, float* part) {
  __shared__ float row[64];
  int i = blockIdx.x * 32 + threadIdx.x;
  ((volatile float*)row)[threadIdx.x] = -x[i] * 7.0f;
  part[i] = x[i];
}
__global__ void g(const float* x, const float* part, float* y) {
  __shared__ float row[64];
  int i = blockIdx.x * 32 + threadIdx.x;
  float old = ((volatile float*)row)[threadIdx.x];
  y[i] = old == -x[i] * 7.0f ? 0.0f : part[i];
}
"""


def test_a_launch_finds_what_the_launch_before_left(device: EmulatedDevice) -> None:
    assert kinds(run(device, ACROSS)) == {FindingKind.UNINITIALISED_SHARED}


def test_local_memory_finds_what_another_block_left(device: EmulatedDevice) -> None:
    body = """//! launch  f<<<2, 32>>>(x, y)
__global__ void f(const float* x, float* y) {
  volatile int done[4];
  int i = blockIdx.x * 32 + threadIdx.x, at = x[i] > 1e30f;
  if (done[at] != 12345) y[i] = x[i];
  done[at] = 12345;
}
"""
    assert FindingKind.UNINITIALISED_LOCAL in kinds(run(device, body))


@pytest.mark.parametrize(
    "value",
    [
        "old * 0.0f == old * 0.0f ? row[i] : row[i]",
        "__int_as_float(__float_as_int(row[i]) ^ (__float_as_int(old) & 0))",
        "__shfl_xor_sync(~0u, i % 32 < 16 ? row[i] : old, 16) == 1e38f ? row[i] : row[i]",
    ],
)
def test_reads_that_nothing_depends_on_whatever_was_left(device: EmulatedDevice, value: str) -> None:
    ran = run(device, of_shared(value))
    assert ran.findings == ()
    assert (numbers(ran) == VALUES).all()

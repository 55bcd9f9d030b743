"""Limits before launch: value and limit in every message, exact at the edge."""

from __future__ import annotations

import pytest

from tilewright.kernel_file import Code, Problem
from tilewright.kernel_file.limits import (
    argument_block_problem,
    block_problem,
    buffer_problems,
    cluster_problem,
    compiled_problems,
    grid_problem,
    smem_problem,
)
from tilewright.kernel_file.syntax import Span
from tilewright.records import (
    PROFILES,
    Buffer,
    BufferRole,
    Clearing,
    CompiledKernel,
    Dim3,
    GpuProfile,
    Launch,
    Resources,
    TensorSpec,
    occupancy,
)

H200, T4 = PROFILES["H200"], PROFILES["T4"]
AT = Span(7, 12)


def check(problem: Problem | None, found: str) -> None:
    assert problem is not None
    assert (problem.code, problem.line, problem.column) == (Code.LIMIT, 7, 12)
    assert found in problem.found
    assert problem.remedy


def test_grid() -> None:
    assert grid_problem((2**31 - 1, 65535, 65535), AT) is None
    check(grid_problem((2**31, 1, 1), AT), "grid (2147483648, 1, 1): x is 2147483648, the limit is 2147483647")
    check(grid_problem((1, 65536, 1), AT), "y is 65536, the limit is 65535")
    check(grid_problem((1, 1, 65536), AT), "z is 65536, the limit is 65535")


def test_block() -> None:
    for good in ((1024, 1, 1), (1, 1024, 1), (16, 1, 64), (32, 32, 1)):
        assert block_problem(good, AT) is None
    check(block_problem((1025, 1, 1), AT), "x is 1025, it must be 1 to 1024")
    check(block_problem((1, 0, 1), AT), "y is 0, it must be 1 to 1024")
    check(block_problem((1, 1, 65), AT), "z is 65, it must be 1 to 64")
    check(block_problem((32, 33, 1), AT), "block (32, 33, 1) has 1056 threads, the limit is 1024")


def test_dynamic_shared_memory() -> None:
    assert smem_problem(227 * 1024, H200, AT) is None
    check(smem_problem(227 * 1024 + 1, H200, AT), "232449 bytes of dynamic shared memory, the limit on H200 is 232448")
    check(smem_problem(65537, T4, AT), "the limit on T4 is 65536")


def test_cluster() -> None:
    assert cluster_problem((2, 1, 1), (4, 1, 1), H200, AT) is None
    assert cluster_problem((16, 1, 1), (16, 3, 1), H200, AT) is None
    assert cluster_problem((1, 1, 1), (5, 1, 1), T4, AT) is None
    check(cluster_problem((2, 1, 1), (5, 1, 1), H200, AT), "cluster (2, 1, 1) does not divide grid (5, 1, 1)")
    check(cluster_problem((4, 8, 1), (4, 8, 1), H200, AT), "has 32 blocks, the limit on H200 is 16")
    check(cluster_problem((16, 1, 1), (16, 1, 1), PROFILES["RTX 5090"], AT), "the limit on RTX 5090 is 8")
    check(cluster_problem((2, 1, 1), (4, 1, 1), T4, AT), "a cluster, and T4 has none")
    check(cluster_problem((0, 1, 1), (4, 1, 1), H200, AT), "every size must be at least 1")


def scratch(name: str, spec: str, clearing: Clearing = Clearing.UNDEFINED) -> Buffer:
    return Buffer(name, BufferRole.SCRATCH, TensorSpec.parse(spec), clearing)


def test_scratch_in_total() -> None:
    half = scratch("a", f"{16 << 30}:u8")
    places = {"a": Span(1, 1), "b": AT, "c": AT, "y": AT}
    assert buffer_problems([half, scratch("b", f"{16 << 30}:u8")], places) == ()
    (problem,) = buffer_problems([half, scratch("b", f"{(16 << 30) + 1}:u8"), scratch("c", "9:u8")], places)
    check(problem, "brings scratch to 34359738369 bytes, the limit is 34359738368 (32 GiB)")
    (problem,) = buffer_problems([scratch("b", f"{10**12}:u8")], places)
    check(problem, "brings scratch to 1000000000000 bytes")
    result = Buffer("y", BufferRole.OUT, TensorSpec.parse(f"{10**12}:u8"))
    assert buffer_problems([result], places) == ()  # results are the caller's wish


def test_counters() -> None:
    def problems(spec: str) -> tuple[Problem, ...]:
        return buffer_problems([scratch("t", spec, Clearing.COUNTER)], {"t": AT})

    assert problems("16384:i32") == ()
    (problem,) = problems("16385:i32")
    check(problem, "counter t has 65540 bytes, the limit is 65536")
    (problem,) = problems("4:f32")
    check(problem, "counter t is f32")


def launch(
    grid: Dim3 = (4, 1, 1),
    block: Dim3 = (256, 1, 1),
    smem: int = 0,
    cluster: Dim3 | None = None,
    cooperative: bool = False,
) -> Launch:
    return Launch("k<1>", grid, block, smem, (), cluster, cooperative, False, 7, 12)


def kernel(
    registers: int = 32, static_smem: int = 0, max_threads: int | None = None, cluster: Dim3 | None = None
) -> CompiledKernel:
    resources = Resources(registers, 0, 0, 0, static_smem, 0, 1)
    return CompiledKernel("k<1>", "_Z1k", (), resources, max_threads, cluster)


def only(launched: Launch, compiled: CompiledKernel, gpu: GpuProfile = H200) -> Problem | None:
    problems = compiled_problems(launched, compiled, gpu)
    assert len(problems) <= 1
    return problems[0] if problems else None


def test_launch_bounds() -> None:
    assert only(launch(), kernel(max_threads=256)) is None
    check(only(launch(block=(32, 9, 1)), kernel(max_threads=256)), "288 threads, __launch_bounds__ of k<1> allows 256")


def test_static_and_dynamic_shared_memory_together() -> None:
    assert only(launch(smem=232448 - 1024), kernel(static_smem=1024)) is None
    found = "1024 static + 232448 dynamic bytes of shared memory are 233472, the limit on H200 is 232448"
    check(only(launch(smem=232448), kernel(static_smem=1024)), found)


def test_cluster_of_the_code() -> None:
    assert only(launch(cluster=(2, 1, 1)), kernel(cluster=(2, 1, 1))) is None
    assert only(launch(cluster=(2, 1, 1)), kernel()) is None
    problem = only(launch(), kernel(cluster=(2, 1, 1)))
    check(problem, "no cluster, __cluster_dims__ of k<1> is (2, 1, 1)")
    assert problem is not None
    assert problem.remedy == "write cluster(2, 1, 1)"
    check(only(launch(cluster=(4, 1, 1)), kernel(cluster=(2, 1, 1))), "cluster (4, 1, 1), __cluster_dims__")


def test_a_block_must_fit_a_multiprocessor() -> None:
    check(only(launch(block=(1024, 1, 1)), kernel(registers=128)), "does not fit a multiprocessor of H200")


@pytest.mark.parametrize("gpu", [H200, T4], ids=lambda gpu: gpu.name)
def test_cooperative_grids_are_co_resident(gpu: GpuProfile) -> None:
    resident = occupancy(gpu, 64, 256, 4096).blocks_per_sm * gpu.sms
    compiled = kernel(registers=64, static_smem=4096)
    assert only(launch(grid=(resident, 1, 1), cooperative=True), compiled, gpu) is None
    assert only(launch(grid=(resident + 1, 1, 1)), compiled, gpu) is None
    problem = only(launch(grid=(resident + 1, 1, 1), cooperative=True), compiled, gpu)
    check(problem, f"a cooperative grid of {resident + 1} blocks, {resident} are co-resident on {gpu.name}")
    assert problem is not None
    assert "device.sms * PER_SM" in problem.remedy


def test_argument_block() -> None:
    assert argument_block_problem(launch(), 4096) is None
    check(argument_block_problem(launch(), 4100), "take 4100 bytes, the limit is 4096")

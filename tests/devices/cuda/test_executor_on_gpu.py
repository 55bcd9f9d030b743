"""The executor on a real driver: profile, modules, refused launches, faults of running kernels."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from tilewright.devices.cuda import DriverError, driver_version, gpu_profile
from tilewright.devices.cuda.executor import CaptureRefused, Executor
from tilewright.records import (
    ALLOCATION_ALIGNMENT,
    BoundPlan,
    Buffer,
    BufferRole,
    Build,
    BuildRequest,
    DType,
    PackedLaunch,
    PointerField,
    TensorSpec,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

SOURCE = """\
__global__ void count(int* y) { y[blockIdx.x * blockDim.x + threadIdx.x] = blockIdx.x * blockDim.x + threadIdx.x; }
__global__ void wild(int* y) { *(volatile int*)0x10 = 1; y[0] = 1; }
"""


def build(kernels: tuple[str, ...] = ("count", "wild")) -> Build:
    from tilewright.toolchain import build as build_request

    built = build_request(BuildRequest(SOURCE, (), kernels, gpu_profile(0).arch), isolated=False)
    assert isinstance(built, Build), str(built)
    return built


def launch(built: Build, kernel: str, tensor: str, **changes: object) -> PackedLaunch:
    made = PackedLaunch(
        symbol=built.kernel(kernel).symbol, kernel=kernel, grid=(4, 1, 1), block=(32, 1, 1), dynamic_smem_bytes=0,
        cluster=None, cooperative=False, pdl=False, parameters=((0, 8),), block_template=bytes(8),
        pointers=(PointerField(0, tensor),), maps=(), late=(), line=6,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def out(name: str = "y", elements: int = 128) -> Buffer:
    return Buffer(name, BufferRole.OUT, TensorSpec.contiguous(DType.I32, (elements,)))


@pytest.fixture(scope="module")
def executor() -> Executor:
    return Executor(0)


def test_profile_agrees_with_torch(executor: Executor) -> None:
    known = torch.cuda.get_device_properties(0)
    profile = executor.profile
    assert profile.name == known.name
    assert profile.cc == 10 * known.major + known.minor
    assert profile.sms == known.multi_processor_count
    assert profile.memory_bytes >= known.total_memory
    assert profile.smem_block >= 48 * 1024
    assert profile.threads_sm == known.max_threads_per_multi_processor
    assert driver_version() >= (13, 0)
    if "H200" in profile.name:
        assert (profile.bandwidth_gbs, profile.max_cluster, profile.smem_block) == (4800.0, 16, 227 * 1024)


def test_results_are_aligned(executor: Executor) -> None:
    built = build()
    plan = BoundPlan((out(),), (), (launch(built, "count", "y"),))
    prepared = executor.prepare(built.cubin, plan, (), ("y",))
    for _ in range(3):
        (y,) = prepared.run((), ())
        assert y.data_ptr() % ALLOCATION_ALIGNMENT == 0
        assert torch.equal(y.cpu(), torch.arange(128, dtype=torch.int32))


def test_a_refused_launch_names_kernel_and_line(executor: Executor) -> None:
    built = build()
    for changes in ({"block": (2048, 1, 1)}, {"grid": (1, 70_000, 1)}):
        plan = BoundPlan((out(),), (), (launch(built, "count", "y", **changes),))
        prepared = executor.prepare(built.cubin, plan, (), ("y",))
        with pytest.raises(DriverError, match=r"CUDA_ERROR_INVALID_VALUE.*launch count<<<.*plan line 6") as caught:
            prepared.run((), ())
        assert (caught.value.kernel, caught.value.line) == ("count", 6)
    good = BoundPlan((out(),), (), (launch(built, "count", "y"),))
    (y,) = executor.prepare(built.cubin, good, (), ("y",)).run((), ())
    assert int(y[127]) == 127


def test_what_cannot_be_prepared_names_the_kernel(executor: Executor) -> None:
    built = build()
    too_much = launch(built, "count", "y", dynamic_smem_bytes=1 << 20)
    with pytest.raises(DriverError, match=r"1048576 bytes of dynamic shared memory, for count \(plan line 6\)"):
        executor.prepare(built.cubin, BoundPlan((out(),), (), (too_much,)), (), ("y",))
    with pytest.raises(DriverError, match="find kernel nowhere"):
        executor.prepare(built.cubin, BoundPlan((), (), (launch(built, "count", "y", symbol="nowhere"),)), ("y",), ())
    with pytest.raises(DriverError, match="load a module"):
        executor.prepare(b"not a cubin" * 100, BoundPlan((out(),), (), (launch(built, "count", "y"),)), (), ("y",))
    crowd = launch(built, "count", "y", cooperative=True, grid=(1 << 20, 1, 1))
    with pytest.raises(DriverError, match=r"COOPERATIVE_LAUNCH_TOO_LARGE.*device\.sms \* \d+ or fewer"):
        executor.prepare(built.cubin, BoundPlan((out(),), (), (crowd,)), (), ("y",))


def test_loading_in_a_capture_is_refused(executor: Executor) -> None:
    built = build()
    plan = BoundPlan((out(),), (), (launch(built, "count", "y"),))
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(CaptureRefused, match="prepare"), torch.cuda.graph(graph):
        executor.prepare(built.cubin, plan, (), ("y",))


def test_a_closed_executor_has_no_modules(executor: Executor) -> None:
    built = build()
    other = Executor(0)
    plan = BoundPlan((out(),), (), (launch(built, "count", "y"),))
    other.prepare(built.cubin, plan, (), ("y",)).run((), ())
    torch.cuda.synchronize()
    other.close()
    (y,) = other.prepare(built.cubin, plan, (), ("y",)).run((), ())
    assert int(y[5]) == 5


_FAULT = """
import sys
sys.path.insert(0, {root!r})
import torch
from tests.devices.cuda.test_executor_on_gpu import BoundPlan, DriverError, Executor, build, launch, out
built = build()
executor = Executor(0)
wild, good = (
    executor.prepare(built.cubin, BoundPlan((), (), (launch(built, name, "y"),)), ("y",), ())
    for name in ("wild", "count")
)
y = torch.zeros(128, dtype=torch.int32, device="cuda")
wild.run((y,), ())
try:
    torch.cuda.synchronize()
except RuntimeError as error:
    print("torch:", "illegal memory access" in str(error))
try:
    good.run((y,), ())
except DriverError as error:
    print("ours:", error.name, error.kernel, "launched before" in str(error))
"""


def test_a_fault_of_a_running_kernel_is_named_as_such() -> None:
    """In a process of its own: an illegal access takes the context with it."""
    from pathlib import Path

    root = str(Path(__file__).parents[3])
    done = subprocess.run([sys.executable, "-c", _FAULT.format(root=root)], capture_output=True, text=True, timeout=120)
    assert "torch: True" in done.stdout, done.stdout + done.stderr
    assert "ours: CUDA_ERROR_ILLEGAL_ADDRESS count True" in done.stdout, done.stdout + done.stderr

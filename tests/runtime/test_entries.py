"""From a kernel file to the driver's arguments on a machine without a GPU.

Everything is real - parsing, NVRTC, binding, layout, launcher - but the driver, which is the null driver: memory is
host memory, and what runs in the place of a kernel is a Python function on the parameters it was launched with.
"""

from __future__ import annotations

import ctypes
import itertools
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.devices.cuda.null_driver import CONTEXT, HostMemory, NullDriver
from tests.runtime import plans
from tests.runtime.conftest import Make

from tilewright import toolchain
from tilewright.devices.cuda.launcher import PythonLauncher
from tilewright.devices.cuda.plan_layout import lay_out
from tilewright.devices.cuda.prepared import PreparedPlan
from tilewright.kernel_file import KernelFileError, NoneApplies
from tilewright.records import PROFILES, BoundPlan, DType, PackedLaunch, TensorSpec
from tilewright.runtime import BuildDuringCapture, Operation, OverlappingTensors
from tilewright.runtime.backends import Builds, CudaBackend
from tilewright.runtime.entries import extent_of, make_entry, overlap
from tilewright.runtime.specs import spec_of

Body = Callable[..., None]


class HostExecutor:
    """An executor whose kernels are Python functions, given by the plan's name of the kernel."""

    profile = PROFILES["H200"]

    def __init__(self, driver: NullDriver, bodies: dict[str, Body]) -> None:
        self._driver = driver
        self._bodies = bodies
        self.memory = HostMemory()
        self.prepared = 0

    def prepare(self, cubin: bytes, plan: BoundPlan, inputs: tuple[str, ...], results: tuple[str, ...]) -> PreparedPlan:
        self.prepared += 1
        launches = [step for step in plan.steps if isinstance(step, PackedLaunch)]
        functions = {launch.symbol: self._function(launch) for launch in launches}
        assert not launches or cubin[:4] == b"\x7fELF"
        layout = lay_out(plan, inputs, functions, CONTEXT)
        return PreparedPlan(layout, results, self.memory, PythonLauncher(self._driver.library))

    def _function(self, launch: PackedLaunch) -> int:
        sizes = tuple(size for _, size in launch.parameters)
        body = self._bodies[launch.kernel]

        def run(parameters: Any) -> None:
            body(*[ctypes.string_at(parameters[number], size) for number, size in enumerate(sizes)])

        return self._driver.function(sizes, run)


@pytest.fixture(scope="module")
def built_driver(tmp_path_factory: pytest.TempPathFactory) -> NullDriver:
    return NullDriver(tmp_path_factory.mktemp("null_driver"))


@pytest.fixture
def driver(built_driver: NullDriver) -> NullDriver:
    built_driver.reset()
    return built_driver


class Host:
    """An operation on the host executor, called as the slow way calls it."""

    def __init__(self, operation: Operation, driver: NullDriver, bodies: dict[str, Body]) -> None:
        self.operation = operation
        self.executor = HostExecutor(driver, bodies)
        self.on_device = CudaBackend(operation.files, operation._tuned, self.executor, Builds())  # type: ignore[arg-type]
        self.again: list[tuple[Any, ...]] = []
        self.differentiated: list[tuple[Any, ...]] = []

    def entry(self, *values: Any) -> Any:
        op = self.operation.op
        regular = self.operation.signature.normalise(values, {})
        named = zip(op.parameters, regular, strict=True)
        arguments = {p.name: spec_of(v) if isinstance(v, torch.Tensor) else v for p, v in named}
        ready = self.on_device.prepare(arguments)
        if isinstance(ready, NoneApplies):
            return ready
        specs = [arguments[p.name] for p in op.parameters if p.scalar is None]
        tensors = [v for v in values if isinstance(v, torch.Tensor)]
        requires_grad = any(tensor.requires_grad for tensor in tensors)
        differentiated = (lambda *values: self.differentiated.append(values)) if requires_grad else None
        return make_entry(ready, op, specs, lambda *values: self.again.append(values), differentiated)

    def call(self, *values: Any) -> Any:
        entry = self.entry(*values)
        pairs = list(zip(self.operation.op.parameters, values, strict=True))
        tensors = tuple(v for p, v in pairs if p.scalar is None)
        addresses = tuple(0 if t is None else t.data_ptr() for t in tensors)
        return entry(tensors, addresses, tuple(v for p, v in pairs if p.scalar is not None))


def aligned(*shape: int) -> torch.Tensor:
    count = torch.Size(shape).numel()
    raw = torch.zeros(count + 4)
    start = -raw.data_ptr() % 16 // 4
    return raw[start : start + count].view(shape)


def floats(pointer: bytes, count: int) -> Any:
    return ctypes.cast(int.from_bytes(pointer, "little"), ctypes.POINTER(ctypes.c_float * count)).contents


def scale_body(x: bytes, y: bytes, n: bytes, factor: bytes, shift: bytes) -> None:
    (count,), (by,), (plus,) = struct.unpack("<i", n), struct.unpack("<f", factor), struct.unpack("<i", shift)
    source, target = floats(x, count), floats(y, count)
    for i in range(count):
        target[i] = source[i] * by + plus


def test_a_call_from_text_to_arguments(make: Make, driver: NullDriver) -> None:
    host = Host(make(plans.SCALE), driver, {"scale": scale_body})
    x = aligned(3, 5).normal_()
    torch.testing.assert_close(host.call(x, 0.5, 2), x + 2)
    torch.testing.assert_close(host.call(x, -1.0, 0), -2 * x)
    assert host.executor.prepared == 1


def test_late_numbers_are_not_mixed_up(make: Make, driver: NullDriver) -> None:
    seen: list[tuple[bytes, bytes]] = []
    host = Host(make(plans.SCALE), driver, {"scale": lambda x, y, n, factor, shift: seen.append((factor, shift))})
    x = aligned(2)
    entry = host.entry(x, 0.0, 0)
    calls = ((0.5, 1), (0.5, 1), (0.5, 2), (0.0, 0), (-0.0, 0), (0.0, 0), (3, 1))
    for numbers in calls:
        entry((x,), (x.data_ptr(),), numbers)
    assert seen == [(struct.pack("<f", 2.0 * factor), struct.pack("<i", shift)) for factor, shift in calls]
    with pytest.raises(KernelFileError, match=r"argument 5 of scale: 2147483648 is outside"):
        entry((x,), (x.data_ptr(),), (1.0, 2**31))
    with pytest.raises(KernelFileError, match="beyond the range of a float"):
        entry((x,), (x.data_ptr(),), (1e300, 0))


def test_in_place_is_checked_and_counted(make: Make, driver: NullDriver) -> None:
    calls: list[tuple[bytes, ...]] = []
    host = Host(make(plans.IN_PLACE), driver, {"accumulate": lambda *parameters: calls.append(parameters)})
    y, x = torch.zeros(4, 8), torch.zeros(4, 8)
    version = y._version
    assert host.call(y, x) is None
    assert y._version == version + 1
    assert [int.from_bytes(p, "little") for p in calls[0]] == [y.data_ptr(), x.data_ptr(), 8, 8, 1, 8, 1]
    host.call(y[:, :4], y[:, 4:])
    for one, other in ((y, y), (y[:3], y[1:]), (y[:, :5], y[:, 3:])):
        with pytest.raises(OverlappingTensors, match="y is changed in place and shares memory with x"):
            host.call(one, other)
    assert len(calls) == 2
    refused = host.entry(torch.zeros(1, 8).expand(4, 8), x)
    assert isinstance(refused, NoneApplies)
    assert "share memory" in str(refused)


def test_gradients_are_asked_about_at_every_call(make: Make, driver: NullDriver) -> None:
    host = Host(make(plans.SCALE), driver, {"scale": scale_body})
    x = aligned(4).fill_(1.0).requires_grad_()
    with torch.no_grad():
        entry = host.entry(x, 1.0, 0)
        assert not entry((x,), (x.data_ptr(),), (1.0, 0)).requires_grad
    entry((x,), (x.data_ptr(),), (1.0, 0))
    assert host.differentiated == [((x,), (1.0, 0))]


def test_several_results_and_nothing_to_launch(make: Make, driver: NullDriver) -> None:
    host = Host(make(plans.TWO_RESULTS), driver, {"extremes": lambda *parameters: None})
    low, high = host.call(aligned(6, 5))
    assert low.shape == high.shape == (6,)
    low, high = host.call(aligned(0, 5))
    assert low.shape == (0,)
    assert len(driver.log) == 1


LATE_LET = """\
//! op      part(x, k: int) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32
//! let     step = 100 / k
//! launch  part<<<1, 32>>>(x, y, step)
__global__ void part(const float* x, float* y, int step) { if (threadIdx.x == 0) y[0] = x[0] + step; }
"""


def test_a_let_that_fails_on_late_numbers_asks_again(make: Make, driver: NullDriver) -> None:
    steps: list[int] = []
    host = Host(make(LATE_LET), driver, {"part": lambda x, y, step: steps.append(int.from_bytes(step, "little"))})
    x = aligned(4)
    entry = host.entry(x, 5)
    entry((x,), (x.data_ptr(),), (5,))
    entry((x,), (x.data_ptr(),), (0,))
    assert steps == [20]
    assert host.again == [((x,), (0,))]


def test_nothing_is_built_or_loaded_in_a_capture(make: Make, driver: NullDriver) -> None:
    host = Host(make(plans.SCALE), driver, {"scale": scale_body})
    host.executor.memory.captured = True
    x = aligned(4)
    with pytest.raises(BuildDuringCapture, match=r"scale\.prepare"):
        host.entry(x, 1.0, 0)
    host.executor.memory.captured = False
    host.entry(x, 1.0, 0)
    host.executor.memory.captured = True
    assert host.call(x.fill_(1.0), 1.0, 0)[0] == 2.0


def test_one_build_serves_many_shapes(make: Make, driver: NullDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    build = toolchain.build

    def counted(request: Any, **options: Any) -> Any:
        built.append(request.name)
        return build(request, **options)

    monkeypatch.setattr(toolchain, "build", counted)
    host = Host(make(plans.SCALE), driver, {"scale": scale_body})
    for n in range(1, 6):
        host.entry(aligned(n), 1.0, 0)
    assert [Path(name).name for name in built] == ["k0.cu"]
    assert host.executor.prepared == 5


# -- whether tensors share memory --


def touched(address: int, spec: TensorSpec) -> set[int]:
    starts = (
        address + 4 * sum(i * s for i, s in zip(index, spec.stride, strict=True))
        for index in itertools.product(*map(range, spec.shape))
    )
    return {start + byte for start in starts for byte in range(4)}


def spec(shape: tuple[int, ...], stride: tuple[int, ...]) -> TensorSpec:
    return TensorSpec(DType.F32, shape, stride)


@pytest.mark.parametrize(
    ("offset", "one", "other", "expected"),
    [
        (0, spec((4, 4), (4, 1)), spec((4, 4), (4, 1)), True),
        (64, spec((4, 4), (4, 1)), spec((4, 4), (4, 1)), False),
        (60, spec((4, 4), (4, 1)), spec((4, 4), (4, 1)), True),
        (16, spec((4, 4), (8, 1)), spec((4, 4), (8, 1)), False),  # the halves of a matrix
        (12, spec((4, 4), (8, 1)), spec((4, 4), (8, 1)), True),
        (4, spec((8,), (2,)), spec((8,), (2,)), False),  # even and odd elements
        (16, spec((3, 2, 4), (24, 12, 1)), spec((3, 2, 4), (24, 12, 1)), False),  # q and k of packed heads
        (0, spec((0, 4), (4, 1)), spec((4, 4), (4, 1)), False),
        (4, spec((), ()), spec((), ()), False),
        (0, spec((), ()), spec((1,), (7,)), True),
    ],
)
def test_known_cases(offset: int, one: TensorSpec, other: TensorSpec, expected: bool) -> None:
    a, b = extent_of(4096, one), extent_of(4096 + offset, other)
    assert overlap(a, b) is expected
    assert overlap(b, a) is expected
    assert bool(touched(4096, one) & touched(4096 + offset, other)) is expected


def test_no_overlap_is_ever_missed() -> None:
    generator = random.Random(7)
    apart = 0
    for _ in range(3000):
        specs = []
        for _ in range(2):
            rank = generator.randint(0, 3)
            shape = tuple(generator.randint(1, 4) for _ in range(rank))
            specs.append(spec(shape, tuple(generator.choice((0, 1, 2, 3, 4, 6, 8, 12)) for _ in range(rank))))
        address = 4096 + 4 * generator.randint(-40, 40)
        said = overlap(extent_of(4096, specs[0]), extent_of(address, specs[1]))
        shared = bool(touched(4096, specs[0]) & touched(address, specs[1]))
        assert said or not shared, (specs, address)
        apart += not said
    assert apart > 500

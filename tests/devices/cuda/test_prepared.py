"""Plans run through the null driver on host memory: layout, allocation, clearing, counters, library steps, results."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.devices.cuda.null_driver import CONTEXT, HostMemory, NullDriver

from tilewright.devices.cuda.driver import DriverError
from tilewright.devices.cuda.launcher import Launcher
from tilewright.devices.cuda.library_steps import LibraryStepError
from tilewright.devices.cuda.plan_layout import DeviceSequence, lay_out
from tilewright.devices.cuda.prepared import PreparedPlan
from tilewright.records import (
    BoundPlan,
    Buffer,
    BufferRole,
    Clearing,
    DType,
    LateField,
    LibraryCall,
    MapField,
    PackedLaunch,
    PointerField,
    TensorArgument,
    TensorMap,
    TensorSpec,
)

F32 = DType.F32


def buffer(
    name: str, *shape: int, role: BufferRole = BufferRole.OUT, clearing: Clearing = Clearing.UNDEFINED
) -> Buffer:
    return Buffer(name, role, TensorSpec.contiguous(F32, shape), clearing)


def scratch(name: str, *shape: int, clearing: Clearing = Clearing.UNDEFINED) -> Buffer:
    return buffer(name, *shape, role=BufferRole.SCRATCH, clearing=clearing)


def launch(symbol: str, *tensors: str, late: int = 0, pdl: bool = False) -> PackedLaunch:
    """A launch whose parameters are pointers to `tensors`, then `late` floats."""
    size = 8 * len(tensors) + 4 * late
    offsets = [8 * i for i in range(len(tensors))] + [8 * len(tensors) + 4 * i for i in range(late)]
    return PackedLaunch(
        symbol=symbol, kernel=symbol, grid=(1, 1, 1), block=(32, 1, 1), dynamic_smem_bytes=0, cluster=None,
        cooperative=False, pdl=pdl, parameters=tuple((offset, 8) for offset in offsets), block_template=bytes(size),
        pointers=tuple(PointerField(8 * i, name) for i, name in enumerate(tensors)), maps=(),
        late=tuple(LateField(8 * len(tensors) + 4 * i, "<f", i) for i in range(late)), line=5,
    )  # fmt: skip


class Host:
    """Prepares plans over the null driver; kernels are Python functions on arrays of floats."""

    def __init__(self, driver: NullDriver, launcher: Launcher) -> None:
        self.driver = driver
        self.launcher = launcher
        self.memory = HostMemory()

    def kernel(self, pointers: int, body: Callable[..., None], late: int = 0) -> int:
        def run(parameters: Any) -> None:
            arrays = [
                ctypes.cast(ctypes.cast(parameters[i], ctypes.POINTER(ctypes.c_void_p))[0], _FLOATS)
                for i in range(pointers)
            ]
            numbers = [ctypes.cast(parameters[pointers + i], _FLOATS)[0] for i in range(late)]
            body(*arrays, *numbers)

        return self.driver.function((8,) * pointers + (4,) * late, run)

    def prepare(
        self, plan: BoundPlan, inputs: tuple[str, ...], results: tuple[str, ...], functions: dict[str, int]
    ) -> PreparedPlan:
        return PreparedPlan(lay_out(plan, inputs, functions, CONTEXT), results, self.memory, self.launcher)


_FLOATS = ctypes.POINTER(ctypes.c_float)


@pytest.fixture
def host(driver: NullDriver, launcher: Launcher) -> Host:
    return Host(driver, launcher)


def test_a_pointwise_plan_with_a_late_number(host: Host) -> None:
    def scale(x: Any, y: Any, factor: float) -> None:
        for i in range(4):
            y[i] = factor * x[i]

    plan = BoundPlan((buffer("y", 4),), (), (launch("scale", "x", "y", late=1),))
    prepared = host.prepare(plan, ("x",), ("y",), {"scale": host.kernel(2, scale, late=1)})
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    for factor in (2.0, -0.5):
        (y,) = prepared.run((x,), (factor,))
        assert torch.equal(y, x * factor)
    first, second = (prepared.run((x,), (1.0,))[0] for _ in range(2))
    assert first.data_ptr() != second.data_ptr()


def test_scratch_shares_one_arena_and_zeroed_parts_are_cleared_once(host: Host) -> None:
    seen: list[list[float]] = []

    def look(a: Any, b: Any, c: Any, y: Any) -> None:
        seen.append([a[2], b[0], b[99], c[1]])
        y[0] = ctypes.addressof(b.contents) - ctypes.addressof(a.contents)

    plan = BoundPlan(
        (
            scratch("loose", 3),
            scratch("a", 3, clearing=Clearing.ZEROED),
            scratch("b", 100, clearing=Clearing.ZEROED),
            buffer("y", 1),
        ),
        (),
        (launch("look", "a", "b", "loose", "y"),),
    )
    prepared = host.prepare(plan, (), ("y",), {"look": host.kernel(4, look)})
    (y,) = prepared.run((), ())
    assert seen[0][:3] == [0.0, 0.0, 0.0]
    assert seen[0][3] != 0.0
    assert y[0] == 256
    assert [line.split(" stream")[0] for line in host.driver.log if line.startswith("clear")] == ["clear 656 bytes"]


def test_counters_are_kept_for_each_stream(host: Host) -> None:
    values: list[float] = []

    def count(counter: Any, add: float) -> None:
        values.append(counter[0])
        counter[0] += add

    plan = BoundPlan((scratch("tick", 1, clearing=Clearing.COUNTER),), (), (launch("count", "tick", late=1),))
    prepared = host.prepare(plan, (), (), {"count": host.kernel(1, count, late=1)})
    assert prepared.run((), (0.0,)) == ()
    prepared.run((), (1.0,))
    prepared.run((), (1.0,))
    assert values == [0.0, 0.0, 1.0]  # one memory for all calls on a stream
    host.memory.stream_handle += 1
    prepared.run((), (0.0,))
    assert values[-1] == 0.0
    assert host.memory.zeros_made == 2
    host.memory.captured = True
    prepared.run((), (1.0,))
    prepared.run((), (1.0,))
    assert values[-2:] == [0.0, 0.0]
    assert host.memory.zeros_made == 4


def test_a_call_with_counters_is_not_interleaved_with_another(host: Host) -> None:
    order: list[int] = []

    def step(counter: Any) -> None:
        order.append(threading.get_ident())

    steps = (launch("step", "tick"), launch("step", "tick"), launch("step", "tick"))
    plan = BoundPlan((scratch("tick", 1, clearing=Clearing.COUNTER),), (), steps)
    prepared = host.prepare(plan, (), (), {"step": host.kernel(1, step)})

    def work() -> None:
        for _ in range(50):
            prepared.run((), ())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(order) == 450
    assert all(len(set(order[i : i + 3])) == 1 for i in range(0, 450, 3))


def test_in_place_tensors_and_absent_optionals(host: Host) -> None:
    def add(residual: Any) -> None:
        residual[0] += 1.0

    plan = BoundPlan((), (), (launch("add", "residual"),))
    prepared = host.prepare(plan, ("residual", "mask"), ("residual",), {"add": host.kernel(1, add)})
    residual = torch.zeros(1)
    (back,) = prepared.run((residual, None), ())
    assert back is residual
    assert residual[0] == 1.0
    with pytest.raises(ValueError, match="takes 2 tensors, not 1"):
        prepared.run((residual,), ())


def test_library_steps_bring_their_buffer(host: Host) -> None:
    def bias(t: Any, y: Any) -> None:
        for i in range(4):
            y[i] = t[i] + 1.0

    call = LibraryCall("t", "aten.mm", (TensorArgument("a"), TensorArgument("b")), 9)
    plan = BoundPlan((scratch("t", 2, 2), buffer("y", 2, 2)), (), (call, launch("bias", "t", "y")))
    prepared = host.prepare(plan, ("a", "b"), ("y",), {"bias": host.kernel(2, bias)})
    a, b = torch.randn(2, 3, requires_grad=True), torch.randn(3, 2)
    (y,) = prepared.run((a, b), ())
    assert torch.allclose(y, a.detach() @ b + 1)
    assert not y.requires_grad


def test_clears_come_before_a_library_step(host: Host) -> None:
    call = LibraryCall("y", "aten.neg", (TensorArgument("z"),), 9)
    plan = BoundPlan((scratch("z", 3, clearing=Clearing.ZEROED), buffer("y", 3)), (), (call,))
    (y,) = host.prepare(plan, (), ("y",), {}).run((), ())
    assert torch.equal(y, torch.zeros(3))


@pytest.mark.parametrize(
    ("function", "shape", "dtype", "problem"),
    [
        ("aten.mm", (2, 3), F32, r"it returned f32\[2, 2\], and t is declared f32\[2, 3\]"),
        ("aten.mm", (2, 2), DType.F16, r"it returned f32\[2, 2\], and t is declared f16\[2, 2\]"),
        ("aten.t", (2, 2), F32, "it returned strides"),
        ("aten.alias", (2, 2), F32, "a view of its argument"),
        ("aten.addmm", (2, 2), F32, "torch refused it"),
        ("aten.max.dim", (2, 2), F32, "not one tensor"),
    ],
)
def test_a_library_result_must_be_what_is_declared(
    host: Host, function: str, shape: tuple[int, ...], dtype: DType, problem: str
) -> None:
    arguments: tuple[Any, ...] = (TensorArgument("a"), TensorArgument("a"))
    if function in ("aten.t", "aten.alias"):
        arguments = arguments[:1]
    if function == "aten.max.dim":
        arguments = (TensorArgument("a"), 0)
    call = LibraryCall("t", function, arguments, 9)
    plan = BoundPlan((Buffer("t", BufferRole.OUT, TensorSpec.contiguous(dtype, shape)),), (), (call,))
    prepared = host.prepare(plan, ("a",), ("t",), {})
    with pytest.raises(LibraryStepError, match=problem) as caught:
        prepared.run((torch.randn(2, 2),), ())
    assert "plan line 9" in str(caught.value)


def test_an_unknown_operator_is_found_when_preparing(host: Host) -> None:
    plan = BoundPlan((buffer("t", 1),), (), (LibraryCall("t", "aten.no_such_operator", (), 9),))
    with pytest.raises(LibraryStepError, match="has no such operator"):
        host.prepare(plan, (), ("t",), {})


def test_maps_are_encoded_once_for_an_address(host: Host) -> None:
    record = TensorMap("x_map", "x", DType.BF16, (64, 32), (128,), (64, 8), (1, 1), 128, False, 128)
    step = PackedLaunch(
        "k", "k", (1, 1, 1), (32, 1, 1), 0, None, False, False,
        ((0, 128),), bytes(128), (), (MapField(0, "x_map"),), (), 5,
    )  # fmt: skip
    plan = BoundPlan((), (record,), (step,))
    prepared = host.prepare(plan, ("x",), (), {"k": host.driver.function((128,))})
    x = torch.zeros(32, 64, dtype=torch.bfloat16)
    prepared.run((x,), ())
    prepared.run((x,), ())
    maps = [line for line in host.driver.log if line.startswith("map")]
    assert maps == ["map type 9 rank 2 interleave 0 swizzle 3 l2 2 fill 0 [64/64 step 1] [32/8 step 1] stride 128"]
    launched = [line for line in host.driver.log if line.startswith("launch")]
    assert launched[0] == launched[1]
    assert launched[0].endswith(x.data_ptr().to_bytes(8, "little").hex() + "ab" * 120)
    with pytest.raises(DriverError, match="encode map x_map over x"):
        prepared.run((x.view(-1)[1:],), ())


def test_pdl_only_follows_a_launch_of_the_same_plan(host: Host) -> None:
    plan = BoundPlan((), (), (launch("k", pdl=True), launch("k", pdl=True)))
    work = lay_out(plan, (), {"k": 1}, CONTEXT).work[0]
    assert isinstance(work, DeviceSequence)
    assert [step.programmatic for step in work.launches] == [False, True]


def test_a_failed_launch_names_kernel_and_line(host: Host) -> None:
    plan = BoundPlan((buffer("y", 4),), (), (launch("breaks", "y"),))
    prepared = host.prepare(plan, (), ("y",), {"breaks": host.driver.function((8,))})
    host.driver.fail(0, 701)
    with pytest.raises(
        DriverError, match=r"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES \(701\): launch breaks.*line 5"
    ) as caught:
        prepared.run((), ())
    assert (caught.value.kernel, caught.value.line) == ("breaks", 5)
    prepared.run((), ())


def test_buffers_without_elements_and_plans_without_steps(host: Host) -> None:
    plan = BoundPlan((buffer("y", 0, 4), scratch("t", 0, clearing=Clearing.ZEROED)), (), ())
    (y,) = host.prepare(plan, ("x",), ("y",), {}).run((torch.zeros(0, 4),), ())
    assert y.shape == (0, 4)
    assert host.driver.log == []


def test_another_current_device_is_left_and_restored(host: Host) -> None:
    plan = BoundPlan((buffer("y", 4),), (), (launch("k", "y"),))
    prepared = host.prepare(plan, (), ("y",), {"k": host.driver.function((8,))})
    prepared.run((), ())
    host.memory.elsewhere = True
    prepared.run((), ())
    assert host.memory.entered == 1


def test_strided_results(host: Host) -> None:
    spec = TensorSpec(F32, (2, 3), (1, 2))

    def fill(y: Any) -> None:
        for i in range(6):
            y[i] = float(i)

    plan = BoundPlan((Buffer("y", BufferRole.OUT, spec),), (), (launch("fill", "y"),))
    (y,) = host.prepare(plan, (), ("y",), {"fill": host.kernel(1, fill)}).run((), ())
    assert torch.equal(y, torch.tensor([[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]))

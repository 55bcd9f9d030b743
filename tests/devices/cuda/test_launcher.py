"""Both launchers against the null driver: the same steps, the same argument bytes, the same failures."""

from __future__ import annotations

import ctypes
import struct
import threading

import pytest
from tests.devices.cuda.null_driver import CONTEXT, STREAM, NullDriver

from tilewright.devices.cuda.driver import DriverError
from tilewright.devices.cuda.launcher import CompiledLauncher, Launcher, failure_of, make_launcher, open_library
from tilewright.devices.cuda.plan_layout import Clear, DeviceSequence, KernelLaunch, SlotAddress
from tilewright.records import DType, PackedLaunch, TensorMap


def kernel(
    function: int,
    *,
    programmatic: bool = False,
    pointers: tuple[tuple[int, int, int], ...] = (),
    descriptors: tuple[tuple[int, int], ...] = (),
    late: tuple[tuple[int, int, str], ...] = (),
    **changes: object,
) -> KernelLaunch:
    values: dict[str, object] = {
        "symbol": "k",
        "kernel": "k<4>",
        "grid": (3, 2, 1),
        "block": (64, 1, 1),
        "dynamic_smem_bytes": 0,
        "cluster": None,
        "cooperative": False,
        "pdl": False,
        "parameters": (),
        "block_template": b"",
        "pointers": (),
        "maps": (),
        "late": (),
        "line": 7,
    }
    packed = PackedLaunch(**{**values, **changes})  # type: ignore[arg-type]
    return KernelLaunch(packed, function, programmatic, pointers, descriptors, late)


def sequence(*launches: KernelLaunch, slots: int = 0, late: int = 0, clears: tuple[Clear, ...] = (), maps: int = 0):
    over = (TensorMap("m", "x", DType.F32, (8,), (), (8,), (1,), 0, False, 0), SlotAddress(0))
    return DeviceSequence(CONTEXT, slots, late, (over,) * maps, clears, launches)


def test_argument_block_is_filled(driver: NullDriver, launcher: Launcher) -> None:
    template = struct.pack("<QiI", 0, -5, 77) + bytes(8)
    launch = kernel(
        driver.function((8, 4, 4, 4)),
        parameters=(
            (0, 0),
            (8, 0),
            (12, 0),
            (16, 0),
        ),
        block_template=template,
        pointers=((0, 1, 0x100),),
        late=((16, 0, "f"),),
    )
    prepared = launcher.prepare(sequence(launch, slots=2, late=1))
    assert launcher.launch(prepared, STREAM, (0x1000, 0x2000), (), (1.5,)) == 0
    pointer, number, unsigned, late = struct.pack("<Q", 0x2100), struct.pack("<i", -5), struct.pack("<I", 77), 1.5
    expected = f"0:{pointer.hex()} 1:{number.hex()} 2:{unsigned.hex()} 3:{struct.pack('<f', late).hex()}"
    assert driver.log == [f"launch grid 3,2,1 block 64,1,1 smem 0 stream {STREAM:x} {expected}"]


def test_a_sequence_is_not_changed_by_a_launch(driver: NullDriver, launcher: Launcher) -> None:
    launch = kernel(
        driver.function((8, 8)),
        parameters=(
            (0, 0),
            (8, 0),
        ),
        block_template=bytes(16),
        pointers=((0, 0, 0),),
        late=((8, 0, "q"),),
    )
    prepared = launcher.prepare(sequence(launch, slots=1, late=1))
    for pointer, late in ((1, -1), (2, 2**40), (1, -1)):
        assert launcher.launch(prepared, STREAM, (pointer,), (), (late,)) == 0
    lines = driver.log
    assert lines[0] == lines[2] != lines[1]
    assert lines[1].endswith(f"0:{struct.pack('<Q', 2).hex()} 1:{struct.pack('<q', 2**40).hex()}")


@pytest.mark.parametrize(
    ("code", "value"),
    [
        *(("?", True), ("?", False), ("b", -128), ("B", 255), ("h", -300), ("H", 65535), ("i", -(2**31))),
        *(("I", 2**32 - 1), ("q", -(2**63)), ("Q", 2**64 - 1), ("f", 0.1), ("f", 3), ("d", 0.1), ("i", True)),
        ("f", float("inf")),
    ],
)
def test_late_numbers(driver: NullDriver, launcher: Launcher, code: str, value: float) -> None:
    size = struct.calcsize("<" + code)
    launch = kernel(driver.function((size,)), parameters=((0, 0),), block_template=bytes(size), late=((0, 0, code),))
    assert launcher.launch(launcher.prepare(sequence(launch, late=1)), STREAM, (), (), (value,)) == 0
    assert driver.log[0].endswith(f"0:{struct.pack('<' + code, value).hex()}")


@pytest.mark.parametrize(
    ("code", "value"), [("b", 128), ("B", -1), ("i", 2**31), ("I", -1), ("q", 2**63), ("Q", -1), ("f", 1e300)]
)
def test_a_late_number_that_does_not_fit_launches_nothing(
    driver: NullDriver, launcher: Launcher, code: str, value: float
) -> None:
    size = struct.calcsize("<" + code)
    function = driver.function(())
    launch = kernel(function, parameters=((0, 0),), block_template=bytes(size), late=((0, 0, code),))
    prepared = launcher.prepare(sequence(kernel(function), launch, late=1))
    with pytest.raises(OverflowError):
        launcher.launch(prepared, STREAM, (), (), (value,))
    assert driver.log == []


def test_attributes_and_shared_memory(driver: NullDriver, launcher: Launcher) -> None:
    function = driver.function(())
    launches = (
        kernel(function, cluster=(2, 1, 1), dynamic_smem_bytes=200_000),
        kernel(function, cooperative=True),
        kernel(function, programmatic=True, cluster=(4, 2, 1)),
    )
    assert launcher.launch(launcher.prepare(sequence(*launches)), 0, (), (), ()) == 0
    tails = [line.split("smem ")[1] for line in driver.log]
    assert tails == [
        "200000 stream 0 cluster 2,1,1",
        "0 stream 0 cooperative 1",
        "0 stream 0 cluster 4,2,1 pdl 1",
    ]


def test_descriptors_reach_their_parameter(driver: NullDriver, launcher: Launcher) -> None:
    launch = kernel(
        driver.function((128, 4)),
        parameters=(
            (0, 0),
            (128, 0),
        ),
        block_template=bytes(128) + struct.pack("<i", 9) + bytes(60),
        descriptors=((0, 1),),
    )
    prepared = launcher.prepare(sequence(launch, maps=2))
    assert launcher.launch(prepared, STREAM, (), (bytes(128), bytes(range(128))), ()) == 0
    assert driver.log[0].endswith(f"0:{bytes(range(128)).hex()} 1:{struct.pack('<i', 9).hex()}")


def test_clears_come_first(driver: NullDriver, launcher: Launcher) -> None:
    memory = ctypes.create_string_buffer(b"\xff" * 64, 64)
    prepared = launcher.prepare(sequence(kernel(driver.function(())), slots=1, clears=((0, 16, 32),)))
    assert launcher.launch(prepared, STREAM, (ctypes.addressof(memory),), (), ()) == 0
    assert memory.raw == b"\xff" * 16 + bytes(32) + b"\xff" * 16
    assert [line.split()[0] for line in driver.log] == ["clear", "launch"]


def test_another_context_is_left_as_it_was(driver: NullDriver, launcher: Launcher) -> None:
    prepared = launcher.prepare(sequence(kernel(driver.function(()))))
    for before in (None, 0xBEEF):
        driver.reset(before)
        assert launcher.launch(prepared, STREAM, (), (), ()) == 0
        assert driver.current == before
        assert driver.log[0] == f"context {CONTEXT:x}"
    driver.reset(CONTEXT)
    launcher.launch(prepared, STREAM, (), (), ())
    assert len(driver.log) == 1  # its own context costs no switch


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_failure_names_the_step(driver: NullDriver, launcher: Launcher, failing: int) -> None:
    function = driver.function(())
    made = sequence(
        kernel(function, kernel="first", line=3), kernel(function, kernel="second", line=4), slots=1,
        clears=((0, 0, 0),),
    )  # fmt: skip
    prepared = launcher.prepare(made)
    driver.fail(failing, 719)
    answer = launcher.launch(prepared, STREAM, (0,), (), ())
    error = failure_of(made, answer)
    assert error.number == 719
    assert (error.kernel, error.line) == [(None, None), ("first", 3), ("second", 4)][failing]
    assert "CUDA_LAUNCH_BLOCKING" in str(error)
    assert len(driver.log) == failing


def test_many_parameters_leave_the_stack(driver: NullDriver, launcher: Launcher) -> None:
    """Argument blocks of many launches together pass the room that a call has on the stack."""
    function = driver.function((8,))
    launches = tuple(
        kernel(function, parameters=((4088, 0),), block_template=bytes(4088) + struct.pack("<q", number))
        for number in range(32)
    )
    assert launcher.launch(launcher.prepare(sequence(*launches)), STREAM, (), (), ()) == 0
    assert [line.split("0:")[1] for line in driver.log] == [struct.pack("<q", n).hex() for n in range(32)]


def test_threads_do_not_mix_their_arguments(driver: NullDriver, launcher: Launcher) -> None:
    seen: list[tuple[int, int]] = []

    def body(parameters: object) -> None:
        first, second = (struct.unpack("<Q", _read(parameters, number))[0] for number in range(2))
        seen.append((first, second))

    launch = kernel(
        driver.function((8, 8), body),
        parameters=(
            (0, 0),
            (8, 0),
        ),
        block_template=bytes(16),
        pointers=((0, 0, 0), (8, 1, 0)),
    )
    prepared = launcher.prepare(sequence(launch, slots=2))

    def work(number: int) -> None:
        for _ in range(100):
            launcher.launch(prepared, STREAM, (number, number), (), ())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 400
    assert all(first == second for first, second in seen)


def _read(parameters: object, number: int) -> bytes:
    return ctypes.string_at(parameters[number], 8)  # type: ignore[index]


def test_the_compiled_launcher_refuses_what_would_corrupt_memory(driver: NullDriver, launcher_module: object) -> None:
    launcher = CompiledLauncher(driver.library, launcher_module, driver.path)
    function = driver.function(())
    outside = [
        kernel(function, block_template=bytes(8), pointers=((1, 0, 0),)),
        kernel(function, block_template=bytes(8), pointers=((0, 1, 0),)),
        kernel(function, block_template=bytes(120), descriptors=((0, 0),)),
        kernel(function, block_template=bytes(8), late=((6, 0, "i"),)),
        kernel(function, block_template=bytes(8), late=((0, 0, "x"),)),
        kernel(function, block_template=bytes(8), parameters=((8, 0),)),
    ]
    for launch in outside:
        with pytest.raises(ValueError, match="outside its argument block"):
            launcher.prepare(sequence(launch, slots=1, late=1, maps=1))
    prepared = launcher.prepare(sequence(kernel(function), slots=1))
    with pytest.raises(ValueError, match="wrong number of values"):
        launcher.launch(prepared, STREAM, (), (), ())
    with pytest.raises(ValueError, match="PyCapsule"):
        launcher.launch(object(), STREAM, (0,), (), ())
    assert driver.log == []


def test_no_driver_is_a_sentence() -> None:
    with pytest.raises(DriverError, match="install the NVIDIA driver"):
        open_library("libthere_is_no_such_driver.so.1")


def test_the_environment_can_ask_for_python(driver: NullDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_PURE_PYTHON_LAUNCHER", "1")
    assert make_launcher(driver.path).name == "python"


def test_opening_what_is_no_driver(launcher_module: object) -> None:
    with pytest.raises(OSError, match="cannot use libm"):
        launcher_module.open_driver("libm.so.6")  # type: ignore[attr-defined]

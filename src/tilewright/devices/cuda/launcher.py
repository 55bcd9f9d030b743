"""Launches prepared sequences: through the compiled extension, or through ctypes where it was not built.

Both take the same arguments and report failures in the same way. Neither imports torch.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tilewright.devices.cuda.driver import DriverError, error_name
from tilewright.devices.cuda.plan_layout import Clear, DeviceSequence, KernelLaunch, packed_clears, packed_launch

DRIVER_LIBRARY = "libcuda.so.1"
PURE_PYTHON_VARIABLE = "TILEWRIGHT_PURE_PYTHON_LAUNCHER"  # set to 1 to force the ctypes launcher

# Codes of a launch that report a fault of an earlier kernel: assertion, illegal access, hardware stack,
# illegal instruction, misaligned address, address space, program counter, launch failure, time-out.
_OF_EARLIER_WORK = frozenset({700, 702, 710, 714, 715, 716, 717, 718, 719})

Number = int | float | bool
# (prepared sequence, stream, one address per slot, one descriptor per index, late numbers) -> 0 or a failure
LaunchFunction = Callable[[Any, int, tuple[int, ...], tuple[bytes, ...], tuple[Number, ...]], int]


class Launcher(Protocol):
    """Prepares sequences and launches them. `launch` returns 0, or a code for `failure_of`."""

    name: str
    library: ctypes.CDLL

    @property
    def launch(self) -> LaunchFunction: ...

    def prepare(self, sequence: DeviceSequence) -> Any: ...


def failure_of(sequence: DeviceSequence, answer: int) -> DriverError:
    """The error for a nonzero return value of `launch`."""
    number, code = answer >> 32, answer & 0xFFFFFFFF
    if number == 0:
        return DriverError(error_name(code), code, "make the device's context current")
    kernel, line, tried = sequence.step_name(number - 1)
    if code in _OF_EARLIER_WORK:
        tried += "; the fault is of a kernel launched before, set CUDA_LAUNCH_BLOCKING=1 to see which"
    return DriverError(error_name(code), code, tried, kernel, line)


def open_library(path: str = DRIVER_LIBRARY) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise DriverError(
            "CUDA_ERROR_NO_DEVICE", 100, f"open the CUDA driver {path}: {error}; install the NVIDIA driver"
        ) from error


def make_launcher(path: str = DRIVER_LIBRARY) -> Launcher:
    """The compiled launcher if it was built and is not disabled, else the ctypes launcher."""
    library = open_library(path)
    if os.environ.get(PURE_PYTHON_VARIABLE, "") not in ("", "0"):
        return PythonLauncher(library)
    module = compiled_module()
    return PythonLauncher(library) if module is None else CompiledLauncher(library, module, path)


def compiled_module() -> Any | None:
    """The extension module, or None where it was not built."""
    try:
        return importlib.import_module("tilewright.devices.cuda._launcher")
    except ImportError:
        return None


def launcher_available() -> bool:
    """Whether the compiled launcher was built with this installation."""
    return compiled_module() is not None


class CompiledLauncher:
    """launcher.c: all steps of a sequence in one call, without the GIL."""

    name = "compiled"

    def __init__(self, library: ctypes.CDLL, module: Any, path: str) -> None:
        module.open_driver(path)
        self.library = library
        self.launch: LaunchFunction = module.launch
        self._prepare = module.prepare

    def prepare(self, sequence: DeviceSequence) -> Any:
        return self._prepare(
            sequence.context,
            sequence.slots,
            len(sequence.maps),
            sequence.late,
            packed_clears(sequence),
            tuple(packed_launch(launch) for launch in sequence.launches),
        )


# -- ctypes --


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: the value is a union of 64 bytes."""

    _fields_ = [("id", ctypes.c_int), ("padding", ctypes.c_char * 4), ("value", ctypes.c_uint32 * 16)]


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    ]


_COOPERATIVE, _CLUSTER, _PROGRAMMATIC = 2, 4, 6


def _attributes(launch: KernelLaunch) -> list[_Attribute]:
    found: list[_Attribute] = []
    if launch.packed.cluster is not None:
        found.append(_Attribute(_CLUSTER, b"", (ctypes.c_uint32 * 16)(*launch.packed.cluster)))
    if launch.packed.cooperative:
        found.append(_Attribute(_COOPERATIVE, b"", (ctypes.c_uint32 * 16)(1)))
    if launch.programmatic:
        found.append(_Attribute(_PROGRAMMATIC, b"", (ctypes.c_uint32 * 16)(1)))
    return found


class _PreparedLaunch:
    """One launch with its own argument block; used under its sequence's lock."""

    def __init__(self, launch: KernelLaunch) -> None:
        attributes, packed = _attributes(launch), launch.packed
        self._attributes = (_Attribute * max(len(attributes), 1))(*attributes)  # referenced by the config
        self.block = ctypes.create_string_buffer(packed.block_template, max(len(packed.block_template), 1))
        start = ctypes.addressof(self.block)
        count = len(packed.parameters)
        self.parameters = (ctypes.c_void_p * max(count, 1))(*(start + offset for offset, _ in packed.parameters))
        self.config = _Config(
            (ctypes.c_uint * 3)(*packed.grid),
            (ctypes.c_uint * 3)(*packed.block),
            packed.dynamic_smem_bytes,
            None,
            self._attributes,
            len(attributes),
        )
        self.config_reference = ctypes.byref(self.config)
        self.function = ctypes.c_void_p(launch.function)
        self.pointers = launch.pointers
        self.descriptors = launch.descriptors
        self.late = tuple((offset, struct.Struct("<" + code).pack_into, index) for offset, index, code in launch.late)


@dataclass(frozen=True)
class _PreparedSequence:
    context: int
    clears: tuple[Clear, ...]
    launches: tuple[_PreparedLaunch, ...]
    lock: threading.Lock


_pack_address = struct.Struct("<Q").pack_into


class PythonLauncher:
    """ctypes calls on prepared launch records: needs no compiler, about ten microseconds slower."""

    name = "python"

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self._launch_kernel = library.cuLaunchKernelEx
        self._clear = library.cuMemsetD8Async
        self._clear.argtypes = [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p]
        self._get_current = library.cuCtxGetCurrent
        self._set_current = library.cuCtxSetCurrent
        self._set_current.argtypes = [ctypes.c_void_p]

    def prepare(self, sequence: DeviceSequence) -> Any:
        return _PreparedSequence(
            sequence.context,
            sequence.clears,
            tuple(_PreparedLaunch(launch) for launch in sequence.launches),
            threading.Lock(),
        )

    def launch(
        self,
        prepared: _PreparedSequence,
        stream: int,
        pointers: tuple[int, ...],
        descriptors: tuple[bytes, ...],
        late: tuple[Number, ...],
    ) -> int:
        before = ctypes.c_void_p()
        code: int = self._get_current(ctypes.byref(before))
        if code:
            return code
        with prepared.lock:
            elsewhere = before.value != prepared.context
            code = self._set_current(prepared.context) if elsewhere else 0
            if code:
                return code
            try:
                for launch in prepared.launches:  # before any step, so that a number that does not fit launches nothing
                    _fill(launch, pointers, descriptors, late)
                return self._run(prepared, stream, pointers)
            finally:
                if elsewhere:
                    self._set_current(before)

    def _run(self, prepared: _PreparedSequence, stream: int, pointers: tuple[int, ...]) -> int:
        number = 0
        for slot, addend, size in prepared.clears:
            number += 1
            code: int = self._clear(pointers[slot] + addend, 0, size, stream)
            if code:
                return number << 32 | code
        for launch in prepared.launches:
            number += 1
            launch.config.stream = stream
            code = self._launch_kernel(launch.config_reference, launch.function, launch.parameters, None)
            if code:
                return number << 32 | code
        return 0


def _fill(
    launch: _PreparedLaunch, pointers: tuple[int, ...], descriptors: tuple[bytes, ...], late: tuple[Number, ...]
) -> None:
    block = launch.block
    for offset, slot, addend in launch.pointers:
        _pack_address(block, offset, pointers[slot] + addend)
    for offset, index in launch.descriptors:
        ctypes.memmove(ctypes.addressof(block) + offset, descriptors[index], len(descriptors[index]))
    for offset, pack, index in launch.late:
        try:
            pack(block, offset, late[index])
        except struct.error as error:
            raise OverflowError(f"{late[index]!r} does not fit the kernel's parameter: {error}") from error

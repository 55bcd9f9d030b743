"""A plan prepared for one device: allocate, fill, launch, on torch's current stream.

Everything that does not depend on the call is computed once, when `PreparedPlan` is created.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

import torch
from cuda.bindings import driver as cu

from tilewright.devices.cuda.driver import DriverError, check, device, error_name
from tilewright.devices.cuda.launcher import Launcher, Number, failure_of
from tilewright.devices.cuda.library_steps import LibraryStep
from tilewright.devices.cuda.plan_layout import DeviceSequence, PlanLayout, SlotAddress
from tilewright.devices.inputs import TORCH_DTYPE
from tilewright.records import Buffer, DType, GpuConditions, LibraryCall, TensorMap, TensorSpec

# -- clocks and temperature, by NVML --

_LIBRARY = "libnvidia-ml.so.1"
_SM, _MEMORY = 1, 2  # nvmlClockType_t
# nvmlClocksEventReasons that keep a busy GPU below its highest clock.
_REASONS = {
    0x02: "clocks that somebody set",
    0x04: "the power limit",
    0x08: "a slowdown of the hardware",
    0x20: "heat",
    0x40: "heat",
    0x80: "the power supply",
}


class _Refused(Exception):
    """NVML returned an error."""


class _Nvml:
    """NVML, opened for one GPU."""

    def __init__(self, index: int) -> None:
        self._library = ctypes.CDLL(_LIBRARY)
        self._call("nvmlInit_v2")
        address = check(cu.cuDeviceGetPCIBusId(32, device(index)), f"find the bus address of cuda:{index}")
        self._gpu = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByPciBusId_v2", bytes(address).rstrip(b"\0"), ctypes.byref(self._gpu))

    def conditions(self) -> GpuConditions:
        clock = self._number("nvmlDeviceGetClockInfo", _SM)
        reasons = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetCurrentClocksThrottleReasons", self._gpu, ctypes.byref(reasons))
        return GpuConditions(
            least_sm_mhz=clock,
            most_sm_mhz=clock,
            memory_mhz=self._number("nvmlDeviceGetClockInfo", _MEMORY),
            possible_sm_mhz=self._number("nvmlDeviceGetMaxClockInfo", _SM),
            celsius=self._number("nvmlDeviceGetTemperature", 0),
            held_back=tuple(dict.fromkeys(words for bit, words in _REASONS.items() if reasons.value & bit)),
        )

    def _number(self, function: str, of: int) -> int:
        found = ctypes.c_uint()
        self._call(function, self._gpu, ctypes.c_uint(of), ctypes.byref(found))
        return found.value

    def _call(self, function: str, *arguments: object) -> None:
        try:
            answer = getattr(self._library, function)(*arguments)
        except AttributeError as error:
            raise _Refused(f"{_LIBRARY} has no {function}") from error
        if answer:
            raise _Refused(f"{function} answered {answer}")


@cache
def _opened(index: int) -> _Nvml | None:
    try:
        return _Nvml(index)
    except (OSError, DriverError, _Refused):
        return None


def read_gpu_conditions(index: int) -> GpuConditions | None:
    """The current clocks and temperature of cuda:`index`; None without NVML."""
    opened = _opened(index)
    try:
        return opened.conditions() if opened is not None else None
    except _Refused:
        return None


# -- TMA descriptors --

DESCRIPTOR_BYTES = 128
_DESCRIPTOR_ALIGNMENT = 64  # the driver refuses to encode into less
_KEPT_PER_MAP = 256

_L2_PROMOTION = {0: 0, 64: 1, 128: 2, 256: 3}


class TensorMapEncoder:
    """Encodes one TMA descriptor for any address. `library` is libcuda."""

    def __init__(self, library: ctypes.CDLL, record: TensorMap) -> None:
        rank = len(record.shape)
        self._record = record
        self._encode = library.cuTensorMapEncodeTiled
        self._shape = (ctypes.c_uint64 * rank)(*record.shape)
        self._stride_bytes = (ctypes.c_uint64 * max(rank - 1, 1))(*record.stride_bytes)
        self._box = (ctypes.c_uint32 * rank)(*record.box)
        self._step = (ctypes.c_uint32 * rank)(*record.step)
        self._kept: dict[int, bytes] = {}

    def descriptor(self, address: int) -> bytes:
        """The descriptor for a tensor at `address`, cached."""
        kept = self._kept.get(address)
        return kept if kept is not None else self._encoded(address)

    def _encoded(self, address: int) -> bytes:
        record = self._record
        memory = ctypes.create_string_buffer(DESCRIPTOR_BYTES + _DESCRIPTOR_ALIGNMENT)
        start = ctypes.addressof(memory)
        aligned = -(-start // _DESCRIPTOR_ALIGNMENT) * _DESCRIPTOR_ALIGNMENT
        code = self._encode(
            ctypes.c_void_p(aligned),
            ctypes.c_int(record.data_type),
            ctypes.c_uint32(len(record.shape)),
            ctypes.c_void_p(address),
            self._shape,
            self._stride_bytes,
            self._box,
            self._step,
            ctypes.c_int(0),  # no interleave
            ctypes.c_int(record.swizzle_mode),
            ctypes.c_int(_L2_PROMOTION[record.l2_bytes]),
            ctypes.c_int(int(record.fill_nan)),
        )
        if code:
            raise DriverError(
                error_name(code),
                code,
                f"encode map {record.name} over {record.tensor} at {address:#x}: {record.dtype}, innermost first: "
                f"shape {record.shape}, stride {record.stride_bytes} bytes, box {record.box}, step {record.step}, "
                f"swizzle {record.swizzle}",
            )
        encoded = ctypes.string_at(aligned, DESCRIPTOR_BYTES)
        if len(self._kept) >= _KEPT_PER_MAP:
            self._kept.clear()
        self._kept[address] = encoded
        return encoded


Tensors = Sequence[torch.Tensor | None]
Addresses = tuple[int, ...]


class DeviceMemory(Protocol):
    """Allocations and the current stream."""

    stream: Callable[[], int]

    def is_elsewhere(self) -> bool: ...

    def here(self) -> contextlib.AbstractContextManager[Any]: ...

    def is_capturing(self) -> bool: ...

    def allocator(self, spec: TensorSpec) -> Callable[[], torch.Tensor]: ...

    def zeros(self, size_bytes: int) -> torch.Tensor: ...


class _DevicePart:
    """A prepared sequence and the encoders of its TMA descriptors."""

    def __init__(self, sequence: DeviceSequence, launcher: Launcher) -> None:
        self.sequence = sequence
        self.record = launcher.prepare(sequence)
        self._launch = launcher.launch
        self._encoders = tuple(
            (TensorMapEncoder(launcher.library, record), place.slot, place.addend) for record, place in sequence.maps
        )

    def run(self, stream: int, addresses: Addresses, late: tuple[Number, ...]) -> None:
        descriptors = tuple([encoder.descriptor(addresses[slot] + more) for encoder, slot, more in self._encoders])
        answer = self._launch(self.record, stream, addresses, descriptors, late)
        if answer:
            raise failure_of(self.sequence, answer)


class _LibraryPart:
    """A library step and the slot of its result."""

    def __init__(self, call: LibraryCall, layout: PlanLayout) -> None:
        target = next(buffer for buffer in layout.targets if buffer.name == call.target)
        self.step = LibraryStep(call, target)
        self.name = target.name
        self.slot = layout.places[target.name].slot


class PreparedPlan:
    """A prepared plan; may run from several threads and on several streams."""

    def __init__(self, layout: PlanLayout, results: tuple[str, ...], memory: DeviceMemory, launcher: Launcher) -> None:
        self._layout = layout
        self._memory = memory
        self._stream = memory.stream
        self._launch = launcher.launch
        self._parts = tuple(
            _LibraryPart(part, layout) if isinstance(part, LibraryCall) else _DevicePart(part, launcher)
            for part in layout.work
        )
        self._allocators = tuple(memory.allocator(buffer.spec) for buffer in layout.allocated)
        self._allocate_arena = memory.allocator(TensorSpec.contiguous(DType.U8, (layout.arena.size_bytes,)))
        self._counters: dict[int, torch.Tensor] = {}  # one per stream, zero between calls
        self._counter_lock = threading.Lock()
        self._results = results
        self.is_plain = self._is_plain()
        if self.is_plain:
            first = self._parts[0]
            assert isinstance(first, _DevicePart)
            self._record, self._sequence, self._allocate = first.record, first.sequence, self._allocators[0]

    def run(self, tensors: Tensors, late: tuple[Number, ...]) -> tuple[torch.Tensor, ...]:
        """Run the plan on `tensors`, one per input name, None for an absent optional; returns the results."""
        if len(tensors) != len(self._layout.inputs):
            raise ValueError(f"the plan takes {len(self._layout.inputs)} tensors, not {len(tensors)}")
        return self.run_at(tensors, tuple([0 if t is None else t.data_ptr() for t in tensors]), late)

    def _is_plain(self) -> bool:
        """Only launches and one result: the case with the lowest overhead."""
        layout = self._layout
        return (
            len(layout.work) == 1
            and isinstance(layout.work[0], DeviceSequence)
            and not layout.work[0].maps
            and not layout.arena.size_bytes
            and not layout.counters.size_bytes
            and len(layout.allocated) == 1
            and self._results == (layout.allocated[0].name,)
        )

    def run_plain(self, tensors: Tensors, addresses: Addresses, late: tuple[Number, ...]) -> torch.Tensor:
        """Run a plan that `is_plain`; returns its only result."""
        if self._memory.is_elsewhere():
            with self._memory.here():
                return self._run_here(tensors, addresses, late)[0]
        out = self._allocate()
        answer = self._launch(self._record, self._stream(), (*addresses, out.data_ptr()), (), late)
        if answer:
            raise failure_of(self._sequence, answer)
        return out

    def run_at(self, tensors: Tensors, addresses: Addresses, late: tuple[Number, ...]) -> tuple[torch.Tensor, ...]:
        """`run` with the tensors' addresses given."""
        if self.is_plain:
            return (self.run_plain(tensors, addresses, late),)
        if not self._memory.is_elsewhere():
            return self._run_here(tensors, addresses, late)
        with self._memory.here():
            return self._run_here(tensors, addresses, late)

    def _run_here(self, tensors: Tensors, addresses: Addresses, late: tuple[Number, ...]) -> tuple[torch.Tensor, ...]:
        layout = self._layout
        stream = self._stream()
        made = [allocate() for allocate in self._allocators]
        memory = [*addresses, *[tensor.data_ptr() for tensor in made], *[0] * len(layout.targets)]
        arena = self._allocate_arena() if layout.arena.size_bytes else None
        if arena is not None:
            memory.append(arena.data_ptr())
        if not layout.counters.size_bytes:
            return self._run_parts(stream, tensors, made, arena, memory, late)
        # Counters are zero again only after all launches of a call, so calls on one stream must not interleave.
        with self._counter_lock:
            counters = self._counter_memory(stream)
            memory.append(counters.data_ptr())
            return self._run_parts(stream, tensors, made, arena, memory, late)

    def _counter_memory(self, stream: int) -> torch.Tensor:
        if self._memory.is_capturing():  # a replay must find zeros even after other calls on this stream
            return self._memory.zeros(self._layout.counters.size_bytes)
        counters = self._counters.get(stream)
        if counters is None:
            counters = self._counters[stream] = self._memory.zeros(self._layout.counters.size_bytes)
        return counters

    def _run_parts(
        self,
        stream: int,
        tensors: Tensors,
        made: list[torch.Tensor],
        arena: torch.Tensor | None,
        memory: list[int],
        late: tuple[Number, ...],
    ) -> tuple[torch.Tensor, ...]:
        named = {name: tensor for name, tensor in zip(self._layout.inputs, tensors, strict=True) if tensor is not None}
        named.update((buffer.name, tensor) for buffer, tensor in zip(self._layout.allocated, made, strict=True))
        if arena is not None and any(isinstance(part, _LibraryPart) for part in self._parts):
            named.update((buffer.name, self._arena_tensor(arena, buffer)) for buffer in self._layout.arena.buffers)
        for part in self._parts:
            if isinstance(part, _DevicePart):
                part.run(stream, tuple(memory), late)
            else:
                result = part.step.run(named)
                named[part.name] = result
                memory[part.slot] = result.data_ptr()
        return tuple([named[name] for name in self._results])

    def _arena_tensor(self, arena: torch.Tensor, buffer: Buffer) -> torch.Tensor:
        place: SlotAddress = self._layout.places[buffer.name]
        part = arena[place.addend : place.addend + buffer.spec.storage_bytes]
        return part.view(TORCH_DTYPE[buffer.spec.dtype]).as_strided(buffer.spec.shape, buffer.spec.stride)

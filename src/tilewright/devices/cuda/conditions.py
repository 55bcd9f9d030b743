"""What a GPU says of its clocks: NVML, the management library that comes with the driver, called by ctypes.

`nvidia-smi` asks the same library, so where that is missing nothing else can tell.
"""

from __future__ import annotations

import ctypes
from functools import cache

from cuda.bindings import driver as cu

from tilewright.devices.cuda.driver import DriverError, check, device
from tilewright.records import GpuConditions

_LIBRARY = "libnvidia-ml.so.1"
_SM, _MEMORY = 1, 2  # nvmlClockType_t
# nvmlClocksEventReasons: those that hold a busy GPU below its highest clock.
_REASONS = {
    0x02: "clocks that somebody set",
    0x04: "the power limit",
    0x08: "a slowdown of the hardware",
    0x20: "heat",
    0x40: "heat",
    0x80: "the power supply",
}


class _Refused(Exception):
    """The library answered with an error."""


class _Nvml:
    """The library, opened for one GPU."""

    def __init__(self, index: int) -> None:
        self._library = ctypes.CDLL(_LIBRARY)
        self._call("nvmlInit_v2")
        address = check(cu.cuDeviceGetPCIBusId(32, device(index)), f"find the bus address of cuda:{index}")
        self._gpu = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByPciBusId_v2", bytes(address).rstrip(b"\0"), ctypes.byref(self._gpu))

    def conditions(self) -> GpuConditions:
        clock = self._number("nvmlDeviceGetClockInfo", _SM)
        held = self._held_back()
        return GpuConditions(
            least_sm_mhz=clock,
            most_sm_mhz=clock,
            memory_mhz=self._number("nvmlDeviceGetClockInfo", _MEMORY),
            possible_sm_mhz=self._number("nvmlDeviceGetMaxClockInfo", _SM),
            celsius=self._number("nvmlDeviceGetTemperature", 0),
            held_back=tuple(dict.fromkeys(words for bit, words in _REASONS.items() if held & bit)),
        )

    def _number(self, function: str, of: int) -> int:
        found = ctypes.c_uint()
        self._call(function, self._gpu, ctypes.c_uint(of), ctypes.byref(found))
        return found.value

    def _held_back(self) -> int:
        found = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetCurrentClocksThrottleReasons", self._gpu, ctypes.byref(found))
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


def conditions_of(index: int) -> GpuConditions | None:
    """The clocks of cuda:`index` as they are now; None where nobody can tell."""
    opened = _opened(index)
    try:
        return opened.conditions() if opened is not None else None
    except _Refused:
        return None

"""`EmulatedDevice`: the PTX emulator behind a child process, as a device like any other.

The child has limits of time, memory and instructions; a crash or a hang of it is a `Faulted` value. Executions carry
findings and counts, and never times. Nothing here imports torch, nor the emulator itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from tilewright.child.process import uninterrupted
from tilewright.devices.child_device import ChildDevice
from tilewright.records import GpuProfile, to_json

GIB = 1 << 30
EMULATED_RUNNER = (sys.executable, "-m", "tilewright.devices.runner_program", "emulated")


class EmulatedDevice(ChildDevice):
    """`profile` emulated in a child process.

    `host_bytes` bounds the child's memory, address space and resident pages alike. Jobs carry PTX; see `Job.emulation`
    for schedules, checks and sampled blocks. Inputs given by seed are drawn by numpy, whose values differ from
    a GPU's; give `Data` where both must see the same.
    """

    def __init__(
        self,
        profile: GpuProfile,
        *,
        start_seconds: float = 60.0,
        host_bytes: int = 16 * GIB,
        interrupt: Callable[[], bool] = uninterrupted,
    ) -> None:
        command = (
            *EMULATED_RUNNER,
            "--profile",
            json.dumps(to_json(profile)),
            "--address-space",
            str(host_bytes),
        )
        super().__init__(command, start_seconds=start_seconds, host_bytes=host_bytes, interrupt=interrupt)
        self._profile = profile

    @property
    def profile(self) -> GpuProfile:
        return self._profile

    def _label(self) -> str:
        return f"{self._profile.name} (emulated)"

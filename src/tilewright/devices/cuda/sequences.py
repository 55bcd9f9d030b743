"""Clears and launches as the launchers take them: slots for addresses, holes in argument blocks.

A sequence is what happens on the device between two library steps. It names memory by slot: a slot is one address
brought by the call, and a field may add a constant to it, so one scratch allocation serves many buffers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tilewright.records import Dim3


@dataclass(frozen=True)
class Place:
    """Memory as a call will know it: the address in a slot plus a constant."""

    slot: int
    addend: int = 0


@dataclass(frozen=True)
class Clear:
    place: Place
    bytes: int


@dataclass(frozen=True)
class PointerHole:
    offset: int
    place: Place


@dataclass(frozen=True)
class DescriptorHole:
    offset: int
    index: int


@dataclass(frozen=True)
class LateHole:
    offset: int
    code: str  # one `struct` code: ? b B h H i I q Q f d
    index: int


@dataclass(frozen=True)
class KernelLaunch:
    """One launch, ready but for its holes. `kernel` and `line` are for messages."""

    kernel: str
    line: int
    function: int
    grid: Dim3
    block: Dim3
    dynamic_smem_bytes: int
    cluster: Dim3 | None
    cooperative: bool
    programmatic: bool
    parameter_offsets: tuple[int, ...]
    template: bytes
    pointers: tuple[PointerHole, ...]
    descriptors: tuple[DescriptorHole, ...]
    late: tuple[LateHole, ...]


@dataclass(frozen=True)
class DeviceSequence:
    """Clears, then launches, in order on one stream; and how many values of each kind a call brings."""

    context: int
    slots: int
    descriptors: int
    late: int
    clears: tuple[Clear, ...]
    launches: tuple[KernelLaunch, ...]

    def step_name(self, number: int) -> tuple[str | None, int | None, str]:
        """Kernel, line and a description of the step that a launcher reports by number."""
        if number < len(self.clears):
            return None, None, f"clear {self.clears[number].bytes} bytes"
        launch = self.launches[number - len(self.clears)]
        shape = f"<<<{launch.grid}, {launch.block}, {launch.dynamic_smem_bytes}>>>"
        extra = f" cluster{launch.cluster}" if launch.cluster else ""
        extra += " cooperative" if launch.cooperative else ""
        return launch.kernel, launch.line, f"launch {launch.kernel}{shape}{extra} (plan line {launch.line})"


# -- the packed form that launcher.c copies as arrays of its own structs --


def packed_clears(sequence: DeviceSequence) -> bytes:
    return b"".join(
        struct.pack("=IIQQ", clear.place.slot, 0, clear.place.addend, clear.bytes) for clear in sequence.clears
    )


PackedDescription = tuple[int, Dim3, Dim3, int, Dim3, bool, bool, bytes, bytes, bytes, bytes, bytes]


def packed_launch(launch: KernelLaunch) -> PackedDescription:
    return (
        launch.function,
        launch.grid,
        launch.block,
        launch.dynamic_smem_bytes,
        launch.cluster or (0, 0, 0),
        launch.cooperative,
        launch.programmatic,
        launch.template,
        struct.pack(f"={len(launch.parameter_offsets)}I", *launch.parameter_offsets),
        b"".join(struct.pack("=IIQ", hole.offset, hole.place.slot, hole.place.addend) for hole in launch.pointers),
        b"".join(struct.pack("=II", hole.offset, hole.index) for hole in launch.descriptors),
        b"".join(struct.pack("=II8s", hole.offset, hole.index, hole.code.encode()) for hole in launch.late),
    )

"""The memory layout of a plan, and its steps in the form that the launchers take.

Memory is addressed by slot: each call passes one address per slot, and a field may add an offset, so that one scratch
allocation serves many buffers. A sequence is the work between two library steps, with placeholders in its argument
blocks. A pure function of the plan and the kernels' handles.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.records import (
    ALLOCATION_ALIGNMENT,
    BoundPlan,
    Buffer,
    BufferRole,
    Clearing,
    Dim3,
    LibraryCall,
    PackedLaunch,
    TensorMap,
)

Clear = tuple[int, int, int]  # slot, offset, bytes


@dataclass(frozen=True)
class SlotAddress:
    """An address of a call: that of a slot plus an offset."""

    slot: int
    addend: int = 0


@dataclass(frozen=True)
class KernelLaunch:
    """One launch, complete except for the fields of its argument block that each call fills."""

    packed: PackedLaunch
    function: int  # the driver's handle
    programmatic: bool
    pointers: tuple[tuple[int, int, int], ...]  # offset in the block, slot, offset from the slot's address
    descriptors: tuple[tuple[int, int], ...]  # offset, index
    late: tuple[tuple[int, int, str], ...]  # offset, index, one `struct` code: ? b B h H i I q Q f d


@dataclass(frozen=True)
class DeviceSequence:
    """Clears, then launches, in order on one stream.

    A call passes `slots` addresses, `late` numbers, and a descriptor for each of `maps` over the tensor paired with it.
    """

    context: int
    slots: int
    late: int
    maps: tuple[tuple[TensorMap, SlotAddress], ...]
    clears: tuple[Clear, ...]
    launches: tuple[KernelLaunch, ...]

    def step_name(self, number: int) -> tuple[str | None, int | None, str]:
        """Kernel, line and description of the step with this number."""
        if number < len(self.clears):
            return None, None, f"clear {self.clears[number][2]} bytes"
        launch = self.launches[number - len(self.clears)].packed
        shape = f"<<<{launch.grid}, {launch.block}, {launch.dynamic_smem_bytes}>>>"
        extra = f" cluster{launch.cluster}" if launch.cluster else ""
        extra += " cooperative" if launch.cooperative else ""
        return launch.kernel, launch.line, f"launch {launch.kernel}{shape}{extra} (plan line {launch.line})"


@dataclass(frozen=True)
class SharedAllocation:
    """Buffers in one allocation."""

    buffers: tuple[Buffer, ...]
    size_bytes: int


@dataclass(frozen=True)
class PlanLayout:
    """The layout of a plan.

    Slots are the inputs, `allocated`, `targets`, then arena and counters if not empty. `allocated` are results, each
    with its own allocation; `targets` are results of library steps; other scratch shares the arena, with the buffers to
    be cleared first so that one memset clears them.
    """

    inputs: tuple[str, ...]
    allocated: tuple[Buffer, ...]
    targets: tuple[Buffer, ...]
    arena: SharedAllocation
    counters: SharedAllocation
    places: Mapping[str, SlotAddress]
    work: tuple[DeviceSequence | LibraryCall, ...]


def lay_out(plan: BoundPlan, inputs: tuple[str, ...], functions: Mapping[str, int], context: int) -> PlanLayout:
    """Lay out `plan`; `functions` maps each launched symbol to its driver handle."""
    library_results = {step.target for step in plan.steps if isinstance(step, LibraryCall)}
    own = [buffer for buffer in plan.buffers if buffer.name not in library_results]
    allocated = tuple(buffer for buffer in own if buffer.role is not BufferRole.SCRATCH)
    targets = tuple(buffer for buffer in plan.buffers if buffer.name in library_results)
    counters = tuple(buffer for buffer in own if buffer.clearing is Clearing.COUNTER)
    scratch = [b for b in own if b.role is BufferRole.SCRATCH and b.clearing is not Clearing.COUNTER]
    arena = tuple(sorted(scratch, key=lambda buffer: buffer.clearing is not Clearing.ZEROED))

    slot_names = [*inputs, *(buffer.name for buffer in (*allocated, *targets))]
    places = {name: SlotAddress(slot) for slot, name in enumerate(slot_names)}
    shared = _share(places, arena, len(slot_names))
    counted = _share(places, counters, len(slot_names) + (shared.size_bytes > 0))
    slots = len(slot_names) + (shared.size_bytes > 0) + (counted.size_bytes > 0)

    work: list[DeviceSequence | LibraryCall] = []
    clears = _clears(allocated, arena, places)
    for is_library, steps in itertools.groupby(plan.steps, key=lambda step: isinstance(step, LibraryCall)):
        if is_library:
            if clears:  # before the first step
                work.append(_sequence((), clears, plan, places, functions, context, slots))
            work.extend(step for step in steps if isinstance(step, LibraryCall))
        else:
            launches = [step for step in steps if isinstance(step, PackedLaunch)]
            work.append(_sequence(launches, clears, plan, places, functions, context, slots))
        clears = ()
    if clears:
        work.append(_sequence((), clears, plan, places, functions, context, slots))
    return PlanLayout(inputs, allocated, targets, shared, counted, places, tuple(work))


def _share(places: dict[str, SlotAddress], buffers: Sequence[Buffer], slot: int) -> SharedAllocation:
    """Place the buffers in one allocation in `slot`."""
    end = 0
    for buffer in buffers:
        places[buffer.name] = SlotAddress(slot, end)
        end += -(-buffer.spec.storage_bytes // ALLOCATION_ALIGNMENT) * ALLOCATION_ALIGNMENT
    if end == 0:  # no slot: any address serves a buffer without elements
        for buffer in buffers:
            places[buffer.name] = SlotAddress(0)
    return SharedAllocation(tuple(buffers), end)


def _clears(
    allocated: Sequence[Buffer], arena: Sequence[Buffer], places: Mapping[str, SlotAddress]
) -> tuple[Clear, ...]:
    clears = [
        (places[buffer.name].slot, 0, buffer.spec.storage_bytes)
        for buffer in allocated
        if buffer.clearing is Clearing.ZEROED and buffer.spec.storage_bytes
    ]
    zeroed = [buffer for buffer in arena if buffer.clearing is Clearing.ZEROED and buffer.spec.storage_bytes]
    if zeroed:
        first, last = places[zeroed[0].name], places[zeroed[-1].name]
        clears.append((first.slot, first.addend, last.addend - first.addend + zeroed[-1].spec.storage_bytes))
    return tuple(clears)


def _sequence(
    launches: Sequence[PackedLaunch],
    clears: tuple[Clear, ...],
    plan: BoundPlan,
    places: Mapping[str, SlotAddress],
    functions: Mapping[str, int],
    context: int,
    slots: int,
) -> DeviceSequence:
    maps = {record.name: record for record in plan.maps}
    used = list(dict.fromkeys(field.map for launch in launches for field in launch.maps))
    late = max((field.index + 1 for launch in launches for field in launch.late), default=0)
    made = tuple(
        KernelLaunch(
            launch,
            functions[launch.symbol],
            launch.pdl and number > 0,  # never overlap work that is not this plan's
            tuple((one.offset, places[one.tensor].slot, places[one.tensor].addend) for one in launch.pointers),
            tuple((field.offset, used.index(field.map)) for field in launch.maps),
            tuple((field.offset, field.index, field.format[-1]) for field in launch.late),
        )
        for number, launch in enumerate(launches)
    )
    over = tuple((maps[name], places[maps[name].tensor]) for name in used)
    return DeviceSequence(context, slots, late, over, clears, made)


# -- the binary form that launcher.c reads --


def packed_clears(sequence: DeviceSequence) -> bytes:
    return b"".join(struct.pack("=IIQQ", slot, 0, addend, size) for slot, addend, size in sequence.clears)


PackedDescription = tuple[int, Dim3, Dim3, int, Dim3, bool, bool, bytes, bytes, bytes, bytes, bytes]


def packed_launch(launch: KernelLaunch) -> PackedDescription:
    packed = launch.packed
    offsets = [offset for offset, _ in packed.parameters]
    return (
        launch.function,
        packed.grid,
        packed.block,
        packed.dynamic_smem_bytes,
        packed.cluster or (0, 0, 0),
        packed.cooperative,
        launch.programmatic,
        packed.block_template,
        struct.pack(f"={len(offsets)}I", *offsets),
        b"".join(struct.pack("=IIQ", *hole) for hole in launch.pointers),
        b"".join(struct.pack("=II", *hole) for hole in launch.descriptors),
        b"".join(struct.pack("=II8s", offset, index, code.encode()) for offset, index, code in launch.late),
    )

"""Where everything of a plan will lie when it runs, and its steps as the launchers take them.

Memory is named by slot: a slot is one address brought by the call, and a field may add a constant to it, so one
scratch allocation serves many buffers. A sequence is what happens on the device between two library steps, with holes
in its argument blocks. A pure function of the plan and the kernels' handles: allocates nothing, knows no driver.
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

Clear = tuple[int, int, int]  # slot, what is added to its address, bytes


@dataclass(frozen=True)
class SlotAddress:
    """Memory as a call will know it: the address in a slot plus a constant."""

    slot: int
    addend: int = 0


@dataclass(frozen=True)
class KernelLaunch:
    """One launch, ready but for the holes in its argument block, which name what a call brings."""

    packed: PackedLaunch
    function: int  # the driver's handle
    programmatic: bool
    pointers: tuple[tuple[int, int, int], ...]  # offset in the block, slot, what is added to the slot's address
    descriptors: tuple[tuple[int, int], ...]  # offset, index
    late: tuple[tuple[int, int, str], ...]  # offset, index, one `struct` code: ? b B h H i I q Q f d


@dataclass(frozen=True)
class DeviceSequence:
    """Clears, then launches, in order on one stream: what reaches the driver together.

    A call brings `slots` addresses, `late` numbers, and a descriptor for each of `maps`, which lies over the tensor
    beside it.
    """

    context: int
    slots: int
    late: int
    maps: tuple[tuple[TensorMap, SlotAddress], ...]
    clears: tuple[Clear, ...]
    launches: tuple[KernelLaunch, ...]

    def step_name(self, number: int) -> tuple[str | None, int | None, str]:
        """Kernel, line and a description of the step that a launcher reports by number."""
        if number < len(self.clears):
            return None, None, f"clear {self.clears[number][2]} bytes"
        launch = self.launches[number - len(self.clears)].packed
        shape = f"<<<{launch.grid}, {launch.block}, {launch.dynamic_smem_bytes}>>>"
        extra = f" cluster{launch.cluster}" if launch.cluster else ""
        extra += " cooperative" if launch.cooperative else ""
        return launch.kernel, launch.line, f"launch {launch.kernel}{shape}{extra} (plan line {launch.line})"


@dataclass(frozen=True)
class SharedAllocation:
    """Buffers that lie one after another in one allocation."""

    buffers: tuple[Buffer, ...]
    size_bytes: int


@dataclass(frozen=True)
class PlanLayout:
    """A plan ready to be prepared.

    Slots are the inputs, `allocated`, `targets`, then arena and counters if they have bytes. `allocated` are results,
    each with memory of its own; `targets` are buffers that library steps bring; all other scratch shares the arena,
    the buffers to be cleared first so that one clear serves them.
    """

    inputs: tuple[str, ...]
    allocated: tuple[Buffer, ...]
    targets: tuple[Buffer, ...]
    arena: SharedAllocation
    counters: SharedAllocation
    places: Mapping[str, SlotAddress]
    work: tuple[DeviceSequence | LibraryCall, ...]

    @property
    def has_library(self) -> bool:
        return any(isinstance(part, LibraryCall) for part in self.work)


def lay_out(plan: BoundPlan, inputs: tuple[str, ...], functions: Mapping[str, int], context: int) -> PlanLayout:
    """Lay out `plan`; `functions` gives the driver's handle of each launched symbol."""
    brought = {step.target for step in plan.steps if isinstance(step, LibraryCall)}
    own = [buffer for buffer in plan.buffers if buffer.name not in brought]
    allocated = tuple(buffer for buffer in own if buffer.role is not BufferRole.SCRATCH)
    targets = tuple(buffer for buffer in plan.buffers if buffer.name in brought)
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
            if clears:  # before anything else of the plan
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
    """Give each buffer its part of one allocation in `slot`."""
    end = 0
    for buffer in buffers:
        places[buffer.name] = SlotAddress(slot, end)
        end += -(-buffer.spec.storage_bytes // ALLOCATION_ALIGNMENT) * ALLOCATION_ALIGNMENT
    if end == 0:  # nothing to allocate, so no slot: any address serves a buffer without elements
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
        _kernel_launch(launch, number > 0, used, places, functions[launch.symbol])
        for number, launch in enumerate(launches)
    )
    over = tuple((maps[name], places[maps[name].tensor]) for name in used)
    return DeviceSequence(context, slots, late, over, clears, made)


def _kernel_launch(
    launch: PackedLaunch, follows_launch: bool, maps: list[str], places: Mapping[str, SlotAddress], function: int
) -> KernelLaunch:
    pointers = [(field.offset, places[field.tensor]) for field in launch.pointers]
    return KernelLaunch(
        launch,
        function,
        launch.pdl and follows_launch,  # never over work that is not this plan's
        tuple((offset, place.slot, place.addend) for offset, place in pointers),
        tuple((field.offset, maps.index(field.map)) for field in launch.maps),
        tuple((field.offset, field.index, field.format[-1]) for field in launch.late),
    )


# -- the packed form that launcher.c copies as arrays of its own structs --


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

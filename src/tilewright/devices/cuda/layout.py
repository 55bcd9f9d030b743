"""Where everything of a plan will lie when it runs: slots for addresses, one arena for scratch, sequences of steps.

A pure function of the plan and the kernels' handles; it allocates nothing and knows neither torch nor the driver.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.devices.cuda.sequences import (
    Clear,
    DescriptorHole,
    DeviceSequence,
    KernelLaunch,
    LateHole,
    Place,
    PointerHole,
)
from tilewright.records import (
    ALLOCATION_ALIGNMENT,
    BoundPlan,
    Buffer,
    BufferRole,
    Clearing,
    LibraryCall,
    PackedLaunch,
    TensorMap,
)


@dataclass(frozen=True)
class MapUse:
    """A descriptor that a sequence needs, and the tensor it lies over."""

    record: TensorMap
    place: Place


@dataclass(frozen=True)
class DeviceWork:
    """Steps that reach the driver together, with the descriptors they take in order of their index."""

    sequence: DeviceSequence
    maps: tuple[MapUse, ...]


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
    arena: tuple[Buffer, ...]
    arena_bytes: int
    counters: tuple[Buffer, ...]
    counter_bytes: int
    places: Mapping[str, Place]
    work: tuple[DeviceWork | LibraryCall, ...]

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
    places = {name: Place(slot) for slot, name in enumerate(slot_names)}
    arena_bytes = _share(places, arena, len(slot_names))
    counter_bytes = _share(places, counters, len(slot_names) + (arena_bytes > 0))
    slots = len(slot_names) + (arena_bytes > 0) + (counter_bytes > 0)

    work: list[DeviceWork | LibraryCall] = []
    clears = _clears(allocated, arena, places)
    for is_library, steps in itertools.groupby(plan.steps, key=lambda step: isinstance(step, LibraryCall)):
        if is_library:
            if clears:  # before anything else of the plan
                work.append(_device_work((), clears, plan, places, functions, context, slots))
            work.extend(step for step in steps if isinstance(step, LibraryCall))
        else:
            launches = [step for step in steps if isinstance(step, PackedLaunch)]
            work.append(_device_work(launches, clears, plan, places, functions, context, slots))
        clears = ()
    if clears:
        work.append(_device_work((), clears, plan, places, functions, context, slots))
    return PlanLayout(inputs, allocated, targets, arena, arena_bytes, counters, counter_bytes, places, tuple(work))


def _share(places: dict[str, Place], buffers: Sequence[Buffer], slot: int) -> int:
    """Give each buffer its part of one allocation in `slot`; answers the allocation's size."""
    end = 0
    for buffer in buffers:
        places[buffer.name] = Place(slot, end)
        end += -(-buffer.spec.storage_bytes // ALLOCATION_ALIGNMENT) * ALLOCATION_ALIGNMENT
    if end == 0:  # nothing to allocate, so no slot: any address serves a buffer without elements
        for buffer in buffers:
            places[buffer.name] = Place(0)
    return end


def _clears(allocated: Sequence[Buffer], arena: Sequence[Buffer], places: Mapping[str, Place]) -> tuple[Clear, ...]:
    clears = [
        Clear(places[buffer.name], buffer.spec.storage_bytes)
        for buffer in allocated
        if buffer.clearing is Clearing.ZEROED and buffer.spec.storage_bytes
    ]
    zeroed = [buffer for buffer in arena if buffer.clearing is Clearing.ZEROED and buffer.spec.storage_bytes]
    if zeroed:
        first, last = places[zeroed[0].name], places[zeroed[-1].name]
        clears.append(Clear(first, last.addend - first.addend + zeroed[-1].spec.storage_bytes))
    return tuple(clears)


def _device_work(
    launches: Sequence[PackedLaunch],
    clears: tuple[Clear, ...],
    plan: BoundPlan,
    places: Mapping[str, Place],
    functions: Mapping[str, int],
    context: int,
    slots: int,
) -> DeviceWork:
    maps = {record.name: record for record in plan.maps}
    used = list(dict.fromkeys(field.map for launch in launches for field in launch.maps))
    late = max((field.index + 1 for launch in launches for field in launch.late), default=0)
    made = tuple(
        _kernel_launch(launch, number > 0, used, places, functions[launch.symbol])
        for number, launch in enumerate(launches)
    )
    return DeviceWork(
        DeviceSequence(context, slots, len(used), late, clears, made),
        tuple(MapUse(maps[name], places[maps[name].tensor]) for name in used),
    )


def _kernel_launch(
    launch: PackedLaunch, follows_launch: bool, maps: list[str], places: Mapping[str, Place], function: int
) -> KernelLaunch:
    return KernelLaunch(
        kernel=launch.kernel,
        line=launch.line,
        function=function,
        grid=launch.grid,
        block=launch.block,
        dynamic_smem_bytes=launch.dynamic_smem_bytes,
        cluster=launch.cluster,
        cooperative=launch.cooperative,
        programmatic=launch.pdl and follows_launch,  # never over work that is not this plan's
        parameter_offsets=tuple(offset for offset, _ in launch.parameters),
        template=launch.block_template,
        pointers=tuple(PointerHole(field.offset, places[field.tensor]) for field in launch.pointers),
        descriptors=tuple(DescriptorHole(field.offset, maps.index(field.map)) for field in launch.maps),
        late=tuple(LateHole(field.offset, field.format[-1], field.index) for field in launch.late),
    )

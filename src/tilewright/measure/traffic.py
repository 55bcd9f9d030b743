"""What a plan moves between device memory and the L2 cache, launch by launch.

Counts say how many sectors a launch touches, not which. So every byte of the tensors it gets is moved once, and what it
touches beyond that is taken to be, first, small tensors read again by every block, which caches hold, and then large
ones, which they hold only if those that the running blocks work on fit there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.measure.preparation import Prepared
from tilewright.measure.work import Work
from tilewright.records import USABLE_L2, Clearing, GpuProfile, LibraryCall, PackedLaunch, Task, TensorArgument

SMALL_BYTES = 4 << 20  # a tensor up to this stays in L2 beside whatever streams through
HELD_BY_L1 = 64 << 10  # small tensors up to this, all together, stay in the L1 caches
L1_HITS = 0.8  # of the repeated reads of those


@dataclass(frozen=True)
class LaunchTraffic:
    """Bytes of one launch that cross to device memory."""

    read_bytes: float
    written_bytes: float
    again_bytes: float  # read once more because L2 did not keep them
    evicted_bytes: float  # of others, that had to leave L2 first
    l1_bytes: float  # that the L1 caches provide, so that they do not even cross to L2

    @property
    def total_bytes(self) -> float:
        return self.read_bytes + self.written_bytes + self.again_bytes + self.evicted_bytes


def plan_traffic(
    prepared: Prepared, works: Sequence[Work], waves: Sequence[float], gpu: GpuProfile
) -> tuple[LaunchTraffic, ...]:
    """The traffic of every launch in order, the first of them on a cache full of somebody else's writes."""
    sizes = _tensor_bytes(prepared)
    buffers = {buffer.name: buffer for buffer in prepared.plan.buffers}
    usable = USABLE_L2 * gpu.l2
    written_before = {name for name, one in buffers.items() if one.clearing is not Clearing.UNDEFINED}
    in_cache: set[str] = set()
    found: list[LaunchTraffic] = []
    for step in prepared.plan.steps:
        names = _names(step, prepared)
        if isinstance(step, PackedLaunch):
            readable = {name for name in names if name not in buffers or name in written_before}
            writable = {name for name in names if name in buffers or _in_place(name, prepared)}
            read = {name: sizes[name] for name in readable}
            written = sum(sizes[name] for name in writable)
            number = len(found)
            found.append(_launch(works[number], waves[number], read, written, in_cache, usable))
        written_before |= {name for name in names if name in buffers}
        footprint = sum(sizes[name] for name in names)
        in_cache = names if footprint <= usable else set()
    return _with_evictions(found, usable)


def _launch(
    work: Work, waves: float, readable: dict[str, int], writable: int, in_cache: set[str], usable: float
) -> LaunchTraffic:
    distinct = float(sum(readable.values()))
    hot = float(sum(size for name, size in readable.items() if name in in_cache))
    read = min(work.load_bytes, distinct) * (1.0 - hot / distinct) if distinct else 0.0
    written = min(work.store_bytes + work.atomic_bytes, float(writable))
    excess = max(0.0, work.load_bytes - distinct)
    small = [size for size in readable.values() if size <= SMALL_BYTES]
    large = distinct - sum(small)
    of_small = min(excess, len(small) * large) if large else excess
    working = distinct * min(1.0, 1.0 / max(waves, 1e-9))
    lost = max(0.0, 1.0 - usable / working) if working else 0.0
    again = min(excess - of_small, large) * lost
    held = L1_HITS * of_small if sum(small) <= HELD_BY_L1 else 0.0
    return LaunchTraffic(read, written, again, 0.0, held)


def least_traffic(task: Task, gpu: GpuProfile) -> LaunchTraffic:
    """What one launch must move: every input in, every output out, on a cache full of somebody else's writes."""
    written = float(sum(spec.storage_bytes for spec in task.output_specs().values()))
    written += sum(task.specs()[one.name].storage_bytes for one in task.tensors if one.in_place)
    least = LaunchTraffic(task.moved_bytes - written, written, 0.0, 0.0, 0.0)
    return _with_evictions([least], USABLE_L2 * gpu.l2)[0]


def _with_evictions(launches: list[LaunchTraffic], usable: float) -> tuple[LaunchTraffic, ...]:
    """The first launch pays for what the cache held, less what the plan leaves there itself."""
    if not launches:
        return ()
    touched = math.fsum(one.read_bytes + one.written_bytes for one in launches)
    left = min(usable, math.fsum(one.written_bytes for one in launches))
    evicted = max(0.0, min(usable, touched) - left)
    first = launches[0]
    return (replace(first, evicted_bytes=evicted), *launches[1:])


def _tensor_bytes(prepared: Prepared) -> dict[str, int]:
    given = {name: spec.storage_bytes for name, spec in prepared.evaluation.tensors}
    made = {one.name: one.spec.storage_bytes for one in prepared.plan.buffers}
    return {**given, **made}


def _names(step: PackedLaunch | LibraryCall, prepared: Prepared) -> set[str]:
    if isinstance(step, LibraryCall):
        used = {one.name for one in step.arguments if isinstance(one, TensorArgument)}
        return used | {step.target}
    maps = {one.name: one.tensor for one in prepared.plan.maps}
    return {field.tensor for field in step.pointers} | {maps[field.map] for field in step.maps}


def _in_place(name: str, prepared: Prepared) -> bool:
    return any(one.name == name and one.in_place for one in prepared.evaluation.file.plan.op.parameters)

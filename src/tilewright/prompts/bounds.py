"""What bounds a task's time before anything is measured: its floor, and about the best that memory allows.

The figures are those of the stopwatch, which prompts may not import; a test keeps the two the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.records import Task

FLOOR_LAUNCH_US = 2.0  # no launch is shorter
MODELLED_LAUNCH_US = 2.5
REACHED_BANDWIDTH = 0.89  # of the vendor's figure, by a long copy
DIRTY_L2 = 0.75  # of the cache, full of somebody else's writes when a timing starts


@dataclass(frozen=True)
class MemoryBounds:
    """Of a kernel that moves every input and output once and does nothing else that takes time."""

    moved_bytes: int
    memory_us: float  # at the vendor's bandwidth
    written_back_bytes: int  # by a cold L2
    reached_us: float  # about the best that is reached, launch and write-back included

    @property
    def floor_us(self) -> float:
        return self.memory_us + FLOOR_LAUNCH_US


def memory_bounds(task: Task) -> MemoryBounds | None:
    """None where the GPU's bandwidth is not known or nothing is moved."""
    gpu, moved = task.profile, task.moved_bytes
    if not gpu.bandwidth_gbs or not moved:
        return None
    usable = int(DIRTY_L2 * gpu.l2)
    specs = task.specs()
    written = sum(spec.storage_bytes for spec in task.output_specs().values())
    written += sum(specs[one.name].storage_bytes for one in task.tensors if one.in_place)
    back = max(0, min(usable, moved) - min(usable, written))
    rate = gpu.bandwidth_gbs * 1e3  # bytes per microsecond
    return MemoryBounds(moved, moved / rate, back, MODELLED_LAUNCH_US + (moved + back) / (rate * REACHED_BANDWIDTH))

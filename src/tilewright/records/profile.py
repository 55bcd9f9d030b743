"""What a GPU's own counters say of a kernel that ran."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LineSamples:
    """How often a line of the kernel file was found waiting or issuing, and for what it waited most."""

    line: int
    samples: int
    waits: dict[str, int]  # reason -> samples, the most frequent first


@dataclass(frozen=True)
class KernelProfile:
    """One launch as the profiler saw it, with a cold cache. A figure that it did not give is not in `figures`."""

    kernel: str
    duration_us: float
    figures: dict[str, float]  # by the names of `FIGURES` in devices.profiler
    waits: dict[str, float]  # reason -> share of all samples, the largest first
    samples: int
    lines: tuple[LineSamples, ...]  # in the order of the file

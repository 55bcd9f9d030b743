"""How fast a kernel is: measured beside its baselines, or modelled from emulated counts. The two are never mixed."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

AT_BOUND = 1.02

# Figures of the roofline and of the performance model, which prompts tell before anything is measured.
LAUNCH_US = 2.0  # no launch is shorter, from one event to the next
FIRST_LAUNCH_US = 2.5  # of a plan, in the model
REACHED_BANDWIDTH = 0.89  # of the vendor's figure, by a long copy
USABLE_L2 = 0.75  # of the cache: for data that is used again, or full of somebody else's writes when a timing starts


@dataclass(frozen=True)
class Timing:
    """One contender's times over the same rounds as the others', in microseconds."""

    name: str  # "kernel", "eager", "torch.compile", "against"
    samples_us: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.samples_us:
            raise ValueError(f"{self.name}: no samples")

    @property
    def median_us(self) -> float:
        return statistics.median(self.samples_us)


@dataclass(frozen=True)
class Measured:
    """On a GPU: cold cache, interleaved with the baselines."""

    gpu: str
    sizes: dict[str, int]
    kernel: Timing
    baselines: tuple[Timing, ...]
    floor_us: float  # the roofline: the least bytes over the bandwidth, or the least work over the peak
    notes: tuple[str, ...] = ()  # a baseline that failed, throttling

    @property
    def time_us(self) -> float:
        return self.kernel.median_us

    @property
    def fraction(self) -> float:
        """Of the roofline that is reached."""
        return self.floor_us / self.time_us

    def speedup(self, name: str) -> float | None:
        found = next((one for one in self.baselines if one.name == name), None)
        return found.median_us / self.time_us if found else None


@dataclass(frozen=True)
class ModelTerm:
    """One bound of the model: the time this resource alone would need."""

    name: str  # "device memory", "issue slots", "shared memory", "tensor cores"
    time_us: float
    detail: str


@dataclass(frozen=True)
class Modelled:
    """From emulated counts of sampled blocks at the task's sizes. It ranks candidates; it is not a time."""

    gpu: str
    sizes: dict[str, int]
    terms: tuple[ModelTerm, ...]
    time_us: float
    floor_us: float
    occupancy: float  # fraction of the warps an SM can hold, of the launch that counts most
    spill_bytes: int
    sampled_blocks: int
    grid_blocks: int
    launches: int
    reachable_us: float = 0.0  # what the model gives a kernel that moves only the least bytes, in one launch

    @property
    def at_bound(self) -> bool:
        """Whether nothing worth a further step is left in the model."""
        return self.time_us <= AT_BOUND * self.reachable_us

    @property
    def fraction(self) -> float:
        return min(1.0, self.floor_us / self.time_us) if self.time_us else 0.0


Measurement = Measured | Modelled

"""The time of a kernel: measured beside baselines, or modelled from emulated counts. The two are never mixed."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass
from functools import lru_cache

from tilewright.records.execution import GpuConditions
from tilewright.records.task import Precision

# -- confidence intervals --

CONFIDENCE = 0.95
_DRAWS = 1000

TimesByRound = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Interval:
    """A bootstrap confidence interval at level `CONFIDENCE`."""

    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2.0


@lru_cache(maxsize=512)
def median_interval(rounds: TimesByRound) -> Interval:
    """The interval of the median of all times."""
    draw = random.Random(0)
    return _central([statistics.median(_drawn(rounds, _places(len(rounds), draw), draw)) for _ in range(_DRAWS)])


@lru_cache(maxsize=512)
def ratio_interval(above: TimesByRound, below: TimesByRound, paired: bool) -> Interval:
    """The interval of a ratio of medians; `paired`: times of the same rounds are resampled together."""
    draw = random.Random(0)

    def once() -> float:
        places = _places(len(above), draw)
        others = places if paired and len(above) == len(below) else _places(len(below), draw)
        return statistics.median(_drawn(above, places, draw)) / statistics.median(_drawn(below, others, draw))

    return _central([once() for _ in range(_DRAWS)])


@lru_cache(maxsize=512)
def mean_interval(values: tuple[float, ...]) -> Interval:
    """The interval of the mean of independent values, such as paired differences."""
    draw = random.Random(0)
    return _central([statistics.fmean(draw.choices(values, k=len(values))) for _ in range(_DRAWS)])


def _places(count: int, draw: random.Random) -> list[int]:
    return draw.choices(range(count), k=count)


def _drawn(rounds: TimesByRound, places: list[int], draw: random.Random) -> list[float]:
    return [time for place in places for time in draw.choices(rounds[place], k=len(rounds[place]))]


def _central(values: list[float]) -> Interval:
    values.sort()
    outside = round(len(values) * (1.0 - CONFIDENCE) / 2.0)
    return Interval(values[outside], values[-1 - outside])


AT_BOUND = 1.04  # times the modelled minimum; the model cannot resolve less

# Constants of the roofline and the performance model.
LAUNCH_US = 2.0  # the shortest launch, between two events
FIRST_LAUNCH_US = 3.4  # of a plan, in the model
REACHED_BANDWIDTH = 0.89  # of the vendor's figure, by a long copy
READ_BANDWIDTH, WRITTEN_BANDWIDTH = 0.965, 0.87  # of the vendor's figure, for reads and writes alone
EVICTED = 0.8  # of the write-back of a cold L2 that overlaps with other traffic
USABLE_L2 = 0.75  # of the cache, for reused data, or for dirty lines when a timing starts


def memory_us(read_bytes: float, written_bytes: float, evicted_bytes: float, bandwidth_gbs: float) -> float:
    """The time of device memory traffic at achievable bandwidth; 0 if the bandwidth is unknown."""
    written = (written_bytes + EVICTED * evicted_bytes) / WRITTEN_BANDWIDTH
    return (read_bytes / READ_BANDWIDTH + written) / (bandwidth_gbs * 1e3) if bandwidth_gbs else 0.0


@dataclass(frozen=True)
class Timing:
    """The times of the kernel or a baseline, in microseconds, over rounds shared with the others."""

    name: str  # "kernel", "eager", "torch.compile", "max-autotune", "library", "against"
    samples_us: tuple[float, ...]
    rounds: int = 1  # with equally many samples each

    def __post_init__(self) -> None:
        if not self.samples_us:
            raise ValueError(f"{self.name}: no samples")
        if self.rounds < 1 or len(self.samples_us) % self.rounds:
            raise ValueError(f"{self.name}: {len(self.samples_us)} samples are not {self.rounds} equal rounds")

    @property
    def median_us(self) -> float:
        return statistics.median(self.samples_us)

    @property
    def by_round(self) -> TimesByRound:
        size = len(self.samples_us) // self.rounds
        return tuple(self.samples_us[start : start + size] for start in range(0, len(self.samples_us), size))

    @property
    def interval_us(self) -> Interval:
        """The confidence interval of the median."""
        return median_interval(self.by_round)


@dataclass(frozen=True)
class Measured:
    """Measured on a GPU with a cold cache, in turns with baselines and a control, all at one precision."""

    gpu: str
    sizes: dict[str, int]
    kernel: Timing
    baselines: tuple[Timing, ...]
    floor_us: float  # the roofline: fewest bytes over bandwidth, or least work over peak rate
    notes: tuple[str, ...] = ()  # a baseline that failed, throttling
    control: Timing | None = None  # the same kernel timed as another contender, which shows the noise
    precision: Precision | None = None  # of kernel and baselines; None: not recorded
    conditions: GpuConditions | None = None
    answered_otherwise: str = ""  # the timed call whose results differ from the verified ones

    @property
    def time_us(self) -> float:
        return self.kernel.median_us

    @property
    def fraction(self) -> float:
        """The achieved fraction of the roofline."""
        return self.floor_us / self.time_us

    def speedup(self, name: str) -> float | None:
        found = next((one for one in self.baselines if one.name == name), None)
        return found.median_us / self.time_us if found else None

    def times_as_long(self, other: Timing) -> Interval:
        """The time of a baseline of the same rounds over the kernel's."""
        return ratio_interval(other.by_round, self.kernel.by_round, paired=True)

    @property
    def control_error(self) -> float:
        """The relative difference between the kernel and its control."""
        return abs(self.control.median_us / self.time_us - 1.0) if self.control else 0.0


LATENCY = "latency"
ON_TOP = ("launches", "library steps")  # model terms added to those of the launches


@dataclass(frozen=True)
class ModelTerm:
    """The time that one resource alone would need, in the model."""

    name: str  # "device memory", "issue slots", "shared memory", "tensor cores"
    time_us: float
    detail: str


@dataclass(frozen=True)
class Modelled:
    """Modelled from emulated counts of sampled blocks at the task's sizes. It ranks candidates; it is not measured."""

    gpu: str
    sizes: dict[str, int]
    terms: tuple[ModelTerm, ...]
    time_us: float
    floor_us: float
    occupancy: float  # of the dominant launch
    spill_bytes: int
    sampled_blocks: int
    grid_blocks: int
    launches: int
    reachable_us: float = 0.0  # the model's time for a kernel that moves the fewest bytes in one launch
    uncertainty: float = 0.0  # relative error that holds for two thirds of kernels with this bound
    registers: int = 0  # per thread of the dominant launch; 0: not recorded
    eager_us: float = 0.0  # the reference in eager PyTorch, modelled from the sizes of its tensors; 0: not known
    eager_kernels: int = 0  # that eager PyTorch launches

    @property
    def bounds(self) -> tuple[ModelTerm, ...]:
        """The terms of the launches, the limiting one first.

        That is the longest resource, or latency if no resource takes half of the time.
        """
        used = [term for term in self.terms if term.name not in ON_TOP]
        latency = [term for term in used if term.name == LATENCY]
        others = [term for term in used if term.name != LATENCY]
        if others and others[0].time_us >= self.time_us / 2:
            return (others[0], *(term for term in used if term is not others[0]))
        return (*latency, *others)

    @property
    def at_bound(self) -> bool:
        """Whether the modelled time is at its minimum."""
        return self.time_us <= AT_BOUND * self.reachable_us

    @property
    def fraction(self) -> float:
        return min(1.0, self.floor_us / self.time_us) if self.time_us else 0.0


Measurement = Measured | Modelled


def is_beyond_noise(faster: Measurement, slower: Measurement, noise: float) -> bool:
    """Whether one is faster by more than the fraction `noise` and than the scatter of measured times."""
    if not (isinstance(faster, Measured) and isinstance(slower, Measured)):
        return faster.time_us < slower.time_us * (1.0 - noise)
    needed = max(noise, faster.control_error, slower.control_error)
    if not faster.time_us < slower.time_us * (1.0 - needed):
        return False
    if max(faster.kernel.samples_us) < min(slower.kernel.samples_us):
        return True  # every resampled ratio would be below 1
    return ratio_interval(faster.kernel.by_round, slower.kernel.by_round, paired=False).high < 1.0

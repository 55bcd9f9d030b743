"""How fast a kernel is: measured beside its baselines, or modelled from emulated counts. The two are never mixed."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass
from functools import lru_cache

from tilewright.records.execution import GpuConditions
from tilewright.records.json_form import Displayed
from tilewright.records.task import Precision

# -- how well a median of times is known: --

CONFIDENCE = 0.95
_DRAWS = 1000

TimesByRound = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Interval:
    """Where a number lies with `CONFIDENCE`."""

    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2.0


@lru_cache(maxsize=512)
def median_interval(rounds: TimesByRound) -> Interval:
    """Of the median of all times."""
    draw = random.Random(0)
    return _central([statistics.median(_drawn(rounds, _places(len(rounds), draw), draw)) for _ in range(_DRAWS)])


@lru_cache(maxsize=512)
def ratio_interval(above: TimesByRound, below: TimesByRound, paired: bool) -> Interval:
    """Of the median of one over that of another; `paired`: taken in the same rounds, which are then drawn together."""
    draw = random.Random(0)

    def once() -> float:
        places = _places(len(above), draw)
        others = places if paired and len(above) == len(below) else _places(len(below), draw)
        return statistics.median(_drawn(above, places, draw)) / statistics.median(_drawn(below, others, draw))

    return _central([once() for _ in range(_DRAWS)])


@lru_cache(maxsize=512)
def mean_interval(values: tuple[float, ...]) -> Interval:
    """Of the mean of values that were drawn independently, such as the differences of pairs."""
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


AT_BOUND = 1.04  # of what the least traffic takes: closer than the model tells candidates apart

# Figures of the roofline and of the performance model, which prompts tell before anything is measured.
LAUNCH_US = 2.0  # no launch is shorter, from one event to the next
FIRST_LAUNCH_US = 3.4  # of a plan, in the model
REACHED_BANDWIDTH = 0.89  # of the vendor's figure, by a long copy
READ_BANDWIDTH, WRITTEN_BANDWIDTH = 0.965, 0.87  # of the vendor's figure, that reading and writing alone would reach
EVICTED = 0.8  # of what must leave a cold L2: the rest leaves while nothing else is moved
USABLE_L2 = 0.75  # of the cache: for data that is used again, or full of somebody else's writes when a timing starts


def memory_us(read_bytes: float, written_bytes: float, evicted_bytes: float, bandwidth_gbs: float) -> float:
    """What device memory takes at the rates that are reached; 0 where its bandwidth is not known."""
    written = (written_bytes + EVICTED * evicted_bytes) / WRITTEN_BANDWIDTH
    return (read_bytes / READ_BANDWIDTH + written) / (bandwidth_gbs * 1e3) if bandwidth_gbs else 0.0


@dataclass(frozen=True)
class Timing:
    """One contender's times over the same rounds as the others', in microseconds."""

    name: str  # "kernel", "eager", "torch.compile", "max-autotune", "library", "against"
    samples_us: tuple[float, ...]
    rounds: int = 1  # in which they were taken, equally many in each

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
        """Where its median lies."""
        return median_interval(self.by_round)


@dataclass(frozen=True)
class Measured(Displayed):
    """On a GPU: cold cache, in turn with the baselines and with itself once more, at one promise of precision."""

    gpu: str
    sizes: dict[str, int]
    kernel: Timing
    baselines: tuple[Timing, ...]
    floor_us: float  # the roofline: the least bytes over the bandwidth, or the least work over the peak
    notes: tuple[str, ...] = ()  # a baseline that failed, throttling
    control: Timing | None = None  # the same kernel as if it were another contender: what differs is noise
    precision: Precision | None = None  # the promise that it and its baselines were held to; None: none was recorded
    conditions: GpuConditions | None = None
    answered_otherwise: str = ""  # which timed call did not give the answer that was judged

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

    def times_as_long(self, other: Timing) -> Interval:
        """What another contender of the same rounds takes, over what the kernel takes."""
        return ratio_interval(other.by_round, self.kernel.by_round, paired=True)

    @property
    def control_error(self) -> float:
        """By what fraction the same kernel, timed as if it were another, came out otherwise."""
        return abs(self.control.median_us / self.time_us - 1.0) if self.control else 0.0


LATENCY = "latency"
ON_TOP = ("launches", "library steps")  # terms of the model that are no resource of a launch


@dataclass(frozen=True)
class ModelTerm:
    """One bound of the model: the time this resource alone would need."""

    name: str  # "device memory", "issue slots", "shared memory", "tensor cores"
    time_us: float
    detail: str


@dataclass(frozen=True)
class Modelled(Displayed):
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
    uncertainty: float = 0.0  # within this part of it, the times of two kernels out of three that are bound alike lie
    registers: int = 0  # of a thread, of the launch that counts most; 0 where it was not kept

    @property
    def bounds(self) -> tuple[ModelTerm, ...]:
        """What the launches use, what binds them first: the resource that takes longest, or latency where none of them
        takes half of the time. Launches and library steps come on top of these."""
        used = [term for term in self.terms if term.name not in ON_TOP]
        latency = [term for term in used if term.name == LATENCY]
        others = [term for term in used if term.name != LATENCY]
        if others and others[0].time_us >= self.time_us / 2:
            return (others[0], *(term for term in used if term is not others[0]))
        return (*latency, *others)

    @property
    def at_bound(self) -> bool:
        """Whether nothing worth a further step is left in the model."""
        return self.time_us <= AT_BOUND * self.reachable_us

    @property
    def fraction(self) -> float:
        return min(1.0, self.floor_us / self.time_us) if self.time_us else 0.0


Measurement = Measured | Modelled


def is_beyond_noise(faster: Measurement, slower: Measurement, noise: float) -> bool:
    """Whether one is faster by more than `noise`, a fraction, and by more than measured times scatter."""
    if not (isinstance(faster, Measured) and isinstance(slower, Measured)):
        return faster.time_us < slower.time_us * (1.0 - noise)
    needed = max(noise, faster.control_error, slower.control_error)
    if not faster.time_us < slower.time_us * (1.0 - needed):
        return False
    if max(faster.kernel.samples_us) < min(slower.kernel.samples_us):
        return True  # so is every ratio of medians that could be drawn
    return ratio_interval(faster.kernel.by_round, slower.kernel.by_round, paired=False).high < 1.0

"""Jobs for a device and their results. A job is self-contained: cubin, plan, inputs, limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from tilewright.records.addresses import FollowedAddresses
from tilewright.records.emulation import EmulatedRun, Emulation, FindingRecord
from tilewright.records.steps import BoundPlan
from tilewright.records.tensors import TensorSpec

# -- profiler counters --


@dataclass(frozen=True)
class LineSamples:
    """The profiler's samples at a line of the kernel file, by stall reason."""

    line: int
    samples: int
    waits: dict[str, int]  # reason -> samples, the most frequent first


@dataclass(frozen=True)
class KernelProfile:
    """The profile of one launch with a cold cache."""

    kernel: str
    duration_us: float
    figures: dict[str, float]  # by the names of `FIGURES` in devices.profiler
    waits: dict[str, float]  # reason -> share of all samples, the largest first
    samples: int
    lines: tuple[LineSamples, ...]  # in the order of the file


# -- contents of inputs --


class Part(Enum):
    """The part of the last two dimensions that is drawn; the rest is 0."""

    WHOLE = "whole"
    UPPER = "upper"  # the diagonal and above
    LOWER = "lower"


@dataclass(frozen=True)
class Data:
    """The elements in storage order."""

    content: bytes


@dataclass(frozen=True)
class Normal:
    LEFT_OUT: ClassVar[tuple[str, ...]] = ("part",)

    seed: int
    mean: float = 0.0
    deviation: float = 1.0
    part: Part = Part.WHOLE


@dataclass(frozen=True)
class Uniform:
    LEFT_OUT: ClassVar[tuple[str, ...]] = ("part",)

    seed: int
    low: float = 0.0
    high: float = 1.0
    part: Part = Part.WHOLE


@dataclass(frozen=True)
class Integers:
    seed: int
    low: int
    high: int  # exclusive


@dataclass(frozen=True)
class Repeated:
    """A smaller tensor, row-major, repeated along every axis. Only emulated devices support it."""

    content: bytes
    shape: tuple[int, ...]


Content = Data | Normal | Uniform | Integers | Repeated


@dataclass(frozen=True)
class InputTensor:
    name: str
    spec: TensorSpec
    content: Content


@dataclass(frozen=True)
class Limits:
    """Limits of a job; exceeding them ends the job, not its worker."""

    seconds: float = 30.0
    device_bytes: int = 16 << 30

    def __post_init__(self) -> None:
        if not (self.seconds > 0 and self.device_bytes >= 0):  # NaN would be a limit that nothing passes
            raise ValueError(f"{self.seconds} seconds and {self.device_bytes} bytes are no limits; give positive ones")


class Watch(str, Enum):
    """What a job on a GPU is monitored for instead of being timed; it then returns no results."""

    NOTHING = "nothing"
    COUNTERS = "counters"  # profiler counters
    FAULTS = "faults"  # bad accesses, shared-memory races and misused barriers, by compute-sanitizer


@dataclass(frozen=True)
class Job:
    """One kernel on one set of inputs. Outputs and in-place tensors named in `returns` are returned.

    Late numbers of the plan are filled in (`kernel_file.settle`). A GPU runs the cubin, an emulating device the PTX.
    With `checked` a GPU runs the plan twice, keeping scratch and counters, returns the second results, and checks that
    nothing else changed. With `share` results stay in GPU memory until the next job, for other processes.
    """

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("digests",)

    id: str
    arch: str
    cubin: bytes
    plan: BoundPlan
    inputs: tuple[InputTensor, ...]
    returns: tuple[str, ...]
    timed_runs: int = 0
    limits: Limits = field(default_factory=Limits)
    ptx: str | None = None
    emulation: Emulation = field(default_factory=Emulation)
    watch: Watch = Watch.NOTHING
    digests: tuple[str, ...] = ()  # tensors whose digests are returned, of the untimed run and of each timed one
    checked: bool = False
    share: bool = False


@dataclass(frozen=True)
class GpuConditions:
    """The state of a GPU during a timing, from NVML."""

    least_sm_mhz: int
    most_sm_mhz: int
    memory_mhz: int
    possible_sm_mhz: int  # the maximum clock
    celsius: int
    held_back: tuple[str, ...] = ()  # reasons for throttling: "the power limit", "heat"

    def with_later(self, later: GpuConditions) -> GpuConditions:
        """Combine two readings."""
        return GpuConditions(
            min(self.least_sm_mhz, later.least_sm_mhz),
            max(self.most_sm_mhz, later.most_sm_mhz),
            min(self.memory_mhz, later.memory_mhz),
            later.possible_sm_mhz,
            max(self.celsius, later.celsius),
            tuple(dict.fromkeys((*self.held_back, *later.held_back))),
        )


@dataclass(frozen=True)
class Digest:
    """A digest of a run's outputs. `sums`: per output, the sum of finite elements with random signs."""

    bits: str  # equal if all outputs are bitwise equal
    sums: tuple[float, ...] = ()
    sizes: tuple[float, ...] = ()  # L2 norms of the outputs
    elements: tuple[int, ...] = ()  # numbers of finite elements

    def is_near(self, other: Digest, fraction: float) -> bool:
        """Whether the outputs differ by at most a fraction of their norms, judged by the sums."""
        if self.elements != other.elements:
            return False
        pairs = zip(self.sums, other.sums, self.sizes, strict=True)
        return all(abs(mine - theirs) <= fraction * size for mine, theirs, size in pairs)


class FaultKind(str, Enum):
    ILLEGAL_ACCESS = "illegal memory access"
    MISALIGNED = "misaligned address"
    LAUNCH_REFUSED = "the driver refused the launch"
    LOAD_REFUSED = "the driver refused the module"
    DEVICE_ASSERT = "a trap or assertion fired on the device"
    TIME = "time limit passed"
    MEMORY = "memory limit passed"
    DIED = "the process that ran it died"
    STATE = "a counter was not left at zero"
    INPUT = "an input was changed"
    OUTSIDE = "memory outside every tensor was written"
    UNSUITABLE = "this device cannot run it"
    STOPPED = "the emulator stopped it"
    BROKEN_JOB = "the job could not be read"
    OTHER = "the driver reported an error"


@dataclass(frozen=True)
class ReturnedTensor:
    name: str
    spec: TensorSpec
    content: bytes


@dataclass(frozen=True)
class SharedTensor:
    """A tensor in GPU memory: the IPC handle of the allocation, and the tensor's offset in it."""

    name: str
    spec: TensorSpec
    handle: bytes
    offset: int


@dataclass(frozen=True)
class Completed:
    job: str
    device: str
    outputs: tuple[ReturnedTensor, ...]  # without the `shared` ones
    run_us: tuple[float, ...]  # per timed run: the whole plan, by device events
    emulated: EmulatedRun | None = None  # None on a GPU
    profiles: tuple[KernelProfile, ...] = ()  # of the launches in order, with `Watch.COUNTERS`
    faults: tuple[FindingRecord, ...] = ()  # with `Watch.FAULTS`
    not_watched: str = ""  # why monitoring failed
    digests: tuple[Digest, ...] = ()  # of the returned outputs, then of each timed run
    conditions: GpuConditions | None = None  # during the timed runs; None if unknown
    shared: tuple[SharedTensor, ...] = ()
    differing: tuple[str, ...] = ()  # results that were not bitwise equal in all calls
    other_outputs: tuple[tuple[ReturnedTensor, ...], ...] = ()  # of schedules with other outputs than the first
    addresses: FollowedAddresses | None = None  # where the emulation was asked to follow them

    @property
    def findings(self) -> tuple[FindingRecord, ...]:
        return self.emulated.findings if self.emulated else self.faults


@dataclass(frozen=True)
class Faulted:
    job: str
    device: str
    kind: FaultKind
    message: str
    kernel: str | None = None  # the C++ name expression of the faulty launch
    line: int | None = None  # its `launch` line in the kernel file
    emulated: EmulatedRun | None = None  # the run up to the fault; None on a GPU

    @property
    def findings(self) -> tuple[FindingRecord, ...]:
        return self.emulated.findings if self.emulated else ()


Execution = Completed | Faulted

"""Work for a device, and what became of it. A job is self-contained: cubin, plan, inputs, limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from tilewright.records.emulation import EmulatedRun, Emulation, FindingRecord
from tilewright.records.steps import BoundPlan
from tilewright.records.tensors import TensorSpec

# -- profiler counters --


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


# -- how an input is made on the device --


class Part(Enum):
    """What of the matrices of a tensor's last two dimensions is drawn; the rest is 0."""

    WHOLE = "whole"
    UPPER = "upper"  # the diagonal and above
    LOWER = "lower"


@dataclass(frozen=True)
class Data:
    """The elements themselves, in the order of the tensor's storage."""

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
    """Elements of a smaller tensor, in row-major order, repeated along every axis. Emulated devices alone take it."""

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
    """Ends a job that takes too long or too much, not the worker that runs it."""

    seconds: float = 30.0
    device_bytes: int = 16 << 30

    def __post_init__(self) -> None:
        if not (self.seconds > 0 and self.device_bytes >= 0):  # NaN would be a limit that nothing passes
            raise ValueError(f"{self.seconds} seconds and {self.device_bytes} bytes are no limits; give positive ones")


class Watch(str, Enum):
    """What a GPU's job is watched for instead of being timed; nothing of what it computes comes back then."""

    NOTHING = "nothing"
    COUNTERS = "counters"  # the GPU's own, by a profiler
    FAULTS = "faults"  # bad accesses, races in shared memory, barriers misused, by a sanitizer


@dataclass(frozen=True)
class Job:
    """One candidate on one set of inputs. Outputs and in-place tensors named in `returns` come back.

    The plan stands on its own: late numbers are written in (`kernel_file.settle`). A GPU runs the cubin; an emulating
    device runs the PTX, as `emulation` says, and needs no cubin. `checked`, a GPU calls the plan a second time, on what
    the first call left in scratch and counters, returns what that made, and looks at all that a plan must leave alone.
    With `share` the results stay in the GPU's memory until the next job, for another process of the machine to look at.
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
    digests: tuple[str, ...] = ()  # tensors whose digests come back, of the run before timed ones and of each of these

    checked: bool = False
    share: bool = False


@dataclass(frozen=True)
class GpuConditions:
    """What a GPU said of itself while something was timed on it, from its management library."""

    least_sm_mhz: int
    most_sm_mhz: int
    memory_mhz: int
    possible_sm_mhz: int  # the highest clock it has
    celsius: int
    held_back: tuple[str, ...] = ()  # by what the clock was held below that: "the power limit", "heat"

    def with_later(self, later: GpuConditions) -> GpuConditions:
        """Both readings as one."""
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
    """What a run answered, in a few numbers. `sums`: of each output's finite elements with signs put in at random."""

    bits: str  # the same where every bit of every output is
    sums: tuple[float, ...] = ()
    sizes: tuple[float, ...] = ()  # of the outputs: roots of their sums of squares
    elements: tuple[int, ...] = ()  # that are finite

    def is_near(self, other: Digest, fraction: float) -> bool:
        """Whether the outputs differ by no more than a fraction of their sizes, as far as the sums tell."""
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
    """A tensor in the memory of a GPU: the driver's handle of an allocation, and where in it the tensor begins."""

    name: str
    spec: TensorSpec
    handle: bytes
    offset: int


@dataclass(frozen=True)
class Completed:
    job: str
    device: str
    outputs: tuple[ReturnedTensor, ...]  # none of what is `shared`
    run_us: tuple[float, ...]  # one per timed run: the whole plan, on device events
    emulated: EmulatedRun | None = None  # None where a GPU ran it
    profiles: tuple[KernelProfile, ...] = ()  # of the launches, in order, where the job was watched for counters
    faults: tuple[FindingRecord, ...] = ()  # where it was watched for faults
    not_watched: str = ""  # why it could not be watched
    digests: tuple[Digest, ...] = ()  # of the run whose outputs come back, then one per timed run
    conditions: GpuConditions | None = None  # over the timed runs; None where there were none or nobody can tell
    shared: tuple[SharedTensor, ...] = ()
    differing: tuple[str, ...] = ()  # results that were not the same bits in every call
    other_outputs: tuple[tuple[ReturnedTensor, ...], ...] = ()  # of schedules that gave others than the first

    @property
    def findings(self) -> tuple[FindingRecord, ...]:
        return self.emulated.findings if self.emulated else self.faults


@dataclass(frozen=True)
class Faulted:
    job: str
    device: str
    kind: FaultKind
    message: str
    kernel: str | None = None  # the C++ name expression of the launch at fault
    line: int | None = None  # its `launch` line in the kernel file
    emulated: EmulatedRun | None = None  # what was seen up to the fault; None where a GPU ran it

    @property
    def findings(self) -> tuple[FindingRecord, ...]:
        return self.emulated.findings if self.emulated else ()


Execution = Completed | Faulted

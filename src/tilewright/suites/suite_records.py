"""What a suite is, and what became of each of its tasks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tilewright.records import Measured, Measurement, Settings
from tilewright.store import Request

FORMAT = 1


class Status(str, Enum):
    """What became of a task. The values are on record; `words` may be reworded."""

    MADE = "made"
    NONE_PASSED = "none-passed"
    UNSUPPORTED = "unsupported"
    REFUSED = "refused"
    FAILED = "failed"

    @property
    def words(self) -> str:
        match self:
            case Status.MADE:
                return "kernel made"
            case Status.NONE_PASSED:
                return "no kernel passed"
            case Status.UNSUPPORTED:
                return "the author cannot write it"
            case Status.REFUSED:
                return "no task to be judged by"
            case Status.FAILED:
                return "a fault of the machine, of a service or of tilewright"


@dataclass(frozen=True)
class SuiteTask:
    """One task: `id` is unique in its suite, `name` is what people call it."""

    id: str
    name: str
    request: Request


@dataclass(frozen=True)
class Suite:
    """Which tasks, by whom, on what. It is replaced as one."""

    title: str  # "KernelBench level 1"
    tasks: tuple[SuiteTask, ...]
    settings: Settings
    gpu: str  # a known GPU's name
    device: str  # as people are told: "H200 (emulated)"
    emulated: bool
    created: str  # ISO 8601, UTC
    tilewright: str
    level: int | None = None  # of KernelBench
    fresh: bool = False  # kernels of the library are not taken
    format: int = FORMAT


@dataclass(frozen=True)
class TaskRecord:
    """What became of one task; on record as soon as it is done."""

    id: str
    name: str
    status: Status
    reason: str = ""  # one sentence, where no kernel was made
    seconds: float = 0.0
    run: str = ""
    attempts: int = 0
    summary: str = ""  # the author's line on the best attempt
    kernel: str = ""  # its file, below the suite's folder
    measurement: Measurement | None = None
    provisional: bool = False  # right wherever it was judged, which is not everywhere
    degenerate: str = ""  # why passing proves nothing
    from_library: bool = False
    tries: int = 1

    @property
    def measured(self) -> Measured | None:
        return self.measurement if isinstance(self.measurement, Measured) else None

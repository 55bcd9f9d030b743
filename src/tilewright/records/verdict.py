"""The verdict on a kernel: passed, or rejected with the evidence an author needs to fix it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from tilewright.records.addresses import FollowedAddresses
from tilewright.records.build import Diagnostic, FailureReason
from tilewright.records.emulation import FindingKind, FindingRecord
from tilewright.records.execution import Digest, FaultKind
from tilewright.records.json_form import formerly
from tilewright.records.task import Layout


@dataclass(frozen=True)
class Case:
    """One test call: the size of every dimension, a seed, and the distribution of inputs."""

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("given", "layouts", "leading")

    sizes: dict[str, int]
    seed: int
    values: str = "task"  # a name of `verify.distributions`; "task": the task's own
    given: tuple[str, ...] = ()  # optional tensors that are passed
    layouts: tuple[tuple[str, Layout], ...] = ()  # of tensors with another layout than in the task
    leading: tuple[str, ...] = ()  # leading dimensions before those of the task's leading inputs; `sizes` has them

    def __str__(self) -> str:
        parts = [f"{name}={size}" for name, size in self.sizes.items()]
        parts += [f"with {name}" for name in self.given]
        parts += [f"{name}: {layout.value}" for name, layout in self.layouts]
        parts += [f"{self.values} values"] if self.values != "task" else []
        return ", ".join((*parts, f"seed {self.seed}"))


class CaseStatus(str, Enum):
    RIGHT = "right"
    SAMPLED = "right in the blocks that were run"  # sampled blocks of each launch, at the task's sizes
    DECLINED = "declined"  # a `need` of the file is false, and the task allows that
    TOO_LARGE = "too large to run here"
    NOT_EMULABLE = "not emulable here"


def label_says_emulated(data: dict[str, Any]) -> bool:
    """For records from when only the device's label showed that it was emulated."""
    return str(data.get("device", "")).endswith("(emulated)")


@formerly(derived={"emulated": label_says_emulated})
@dataclass(frozen=True)
class CaseResult:
    LEFT_OUT: ClassVar[tuple[str, ...]] = ("digest",)

    case: Case
    status: CaseStatus
    device: str  # its label: "H200 (emulated)"; "" if nothing ran
    error_ratio: float | None = None  # worst error over the allowed one; None if nothing was compared
    seconds: float = 0.0
    emulated: bool = False
    digest: Digest | None = None  # of the results, if a GPU ran the task's own call


@dataclass(frozen=True)
class UncoveredLine:
    """A line whose behaviour in the task's own call was not verified by any case."""

    line: int
    text: str
    why: str  # "it never ran", "its loop never ran more than two iterations"


_SIZES_SHOWN = 5


@dataclass(frozen=True)
class SizeLimit:
    """The sizes of a dynamic dimension that a file takes, if fewer than the task requires."""

    dimension: str
    declined: tuple[int, ...]  # of the sizes tried
    at_least: int | None = None
    at_most: int | None = None
    multiple_of: int = 1

    def __str__(self) -> str:
        """`n a multiple of 4`, `rows at least 3 and at most 1024`, `cols = 512`."""
        if self.at_least is not None and self.at_least == self.at_most:
            return f"{self.dimension} = {self.at_least}"
        told = [f"a multiple of {self.multiple_of}"] if self.multiple_of > 1 else []
        told += [f"at least {self.at_least}"] if self.at_least is not None else []
        told += [f"at most {self.at_most}"] if self.at_most is not None else []
        if told:
            return f"{self.dimension} {' and '.join(told)}"
        count = len(self.declined)
        steps = range(min(count, _SIZES_SHOWN))
        some = (self.declined[step * (count - 1) // max(len(steps) - 1, 1)] for step in steps)
        return f"{self.dimension} other than, among others, {', '.join(map(str, some))}"

    NOTE: ClassVar[str] = "of the sizes that were asked for it takes only "  # begins the sentence of a verdict on them
    FORMER_NOTE: ClassVar[str] = "sizes that the file declines: "

    @staticmethod
    def words(limits: tuple[SizeLimit, ...]) -> str:
        return "; ".join(map(str, limits))


@dataclass(frozen=True)
class Passed:
    """Right in all cases that could be run, without findings."""

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("uncovered", "unseen", "limits", "is_looked_at", "addresses")

    cases: tuple[CaseResult, ...]
    notes: tuple[str, ...] = ()  # what was not covered, in sentences
    uncovered: tuple[UncoveredLine, ...] = ()
    unseen: str = ""  # why the task's own call was neither verified nor observed
    limits: tuple[SizeLimit, ...] = ()  # required sizes that the file declines
    is_looked_at: bool = False  # the task's own call was observed, though its values were not verified
    addresses: FollowedAddresses | None = None  # of the task's own call; None where all of it was judged

    def is_narrower_than(self, other: Passed) -> bool:
        """Whether its file declines a size that the other's takes."""
        declined = {one.dimension: {*one.declined} for one in other.limits}
        return any(not {*one.declined} <= declined.get(one.dimension, set()) for one in self.limits)

    @property
    def unjudged(self) -> tuple[str, ...]:
        """What runs in the task's own call and was not verified, in sentences."""
        lines = tuple(f"line {one.line}: {one.why} in a judged case: {one.text}" for one in self.uncovered)
        unseen = f"what runs at the task's own sizes could not be seen: {self.unseen}"
        left = f"where the task's own call writes could not be followed: {self.doubt}"
        unread = self.addresses.unread if self.addresses is not None else ""
        lines += tuple(filter(None, (unseen * bool(self.unseen), left * bool(self.doubt))))
        return (*lines, f"at the task's own sizes {unread}") if unread else lines

    @property
    def doubt(self) -> str:
        """Why the addresses of the task's own call leave a doubt, a clause; "" where they do."""
        return self.addresses.doubt if self.addresses is not None else ""

    @property
    def is_provisional(self) -> bool:
        """Whether something in the task's own call was not verified; the kernel then does not count as verified."""
        return bool(self.unjudged)

    @property
    def error_ratio(self) -> float:
        return max((one.error_ratio for one in self.cases if one.error_ratio is not None), default=0.0)

    @property
    def answer(self) -> JudgedAnswer | None:
        """The digest of its results for the task's own call on a GPU."""
        return next((JudgedAnswer(one.case, one.digest) for one in self.cases if one.digest is not None), None)


@dataclass(frozen=True)
class JudgedAnswer:
    """The digest of verified results; a timed run on the same inputs must give the same."""

    case: Case
    digest: Digest


# -- why a kernel is rejected --


@dataclass(frozen=True)
class BadReply:
    """The author's reply was unusable, twice."""

    message: str


@dataclass(frozen=True)
class PlanProblem:
    line: int
    column: int
    code: str
    message: str
    remedy: str
    source_line: str = ""


@dataclass(frozen=True)
class BadPlan:
    """The kernel file is invalid, or its op is not the task's."""

    problems: tuple[PlanProblem, ...]


@dataclass(frozen=True)
class NotBuilt:
    reason: FailureReason
    diagnostics: tuple[Diagnostic, ...]
    constants: tuple[tuple[str, int | float | bool | str], ...] = ()  # the tune choice it failed with


@dataclass(frozen=True)
class Declined:
    """The file refuses a call that the task requires."""

    case: Case
    message: str


_FAULTS = {"RACE": "race", "OUT_OF_BOUNDS": "out of bounds", "UNINITIALISED": "unwritten read"}  # by kinds' names


@dataclass(frozen=True)
class Crashed:
    """The run did not finish, or a checker found a fault."""

    case: Case
    fault: FaultKind | None  # None: it ended, with findings
    message: str
    kernel: str | None
    line: int | None
    findings: tuple[FindingRecord, ...] = ()
    source_lines: tuple[tuple[int, str], ...] = ()  # the lines that findings name

    @property
    def spent_instructions(self) -> bool:
        """Whether an emulated run reached its instruction limit; a higher one might be enough."""
        return any(one.kind is FindingKind.BUDGET for one in self.findings)

    @property
    def ran_out(self) -> bool:
        """Whether it reached a limit of time, memory or instructions, which is no fault in itself."""
        return self.spent_instructions or self.fault in (FaultKind.TIME, FaultKind.MEMORY)

    @property
    def reason(self) -> str:
        if self.fault is FaultKind.MEMORY:
            return "took too much memory"
        if self.ran_out or self.fault is not None or not self.findings:
            return "ran too long" if self.ran_out else "crashed"
        kind = self.findings[0].kind.name  # it finished
        return next((words for start, words in _FAULTS.items() if kind.startswith(start)), "at fault")


class Pattern(str, Enum):
    """Where wrong elements lie."""

    ALL = "every element"
    TAIL = "the last elements"
    ONE_TILE = "one block of the output"
    ROWS = "whole rows"
    COLUMNS = "whole columns"
    PERIODIC = "every k-th element"
    TRANSPOSED = "transposed"
    SCALED = "scaled"
    SHIFTED = "shifted"
    UNWRITTEN = "never written"
    NOT_FINITE = "NaN or infinity"
    NAN_DROPPED = "only where NaN belongs"
    PRECISION = "too little precision"
    SCATTERED = "scattered"


@dataclass(frozen=True)
class WrongElement:
    index: tuple[int, ...]
    expected: float
    got: float
    allowed: float


@dataclass(frozen=True)
class WrongOutput:
    """The diagnosis of one output."""

    output: str
    wrong: int
    elements: int
    pattern: Pattern
    description: str  # one sentence: the pattern with its numbers
    worst_error: float | None
    allowed_error: float | None  # at the worst element
    reference_error: float | None  # PyTorch's own worst at this dtype
    first: tuple[WrongElement, ...]


@dataclass(frozen=True)
class WrongValues:
    """The smallest failing case, and what is wrong in it."""

    case: Case
    outputs: tuple[WrongOutput, ...]
    right_cases: tuple[Case, ...] = ()  # cases that passed

    @property
    def drops_nan(self) -> bool:
        """Whether the only fault is that NaN inputs do not propagate."""
        return bool(self.outputs) and all(one.pattern is Pattern.NAN_DROPPED for one in self.outputs)


@dataclass(frozen=True)
class Unstable:
    """Results differ from schedule to schedule or run to run."""

    case: Case
    outputs: tuple[str, ...]
    when: str = ""  # the timed call with other results, if it was one
    wrong: tuple[WrongOutput, ...] = ()  # of a run that differs by more than rounding


@dataclass(frozen=True)
class Impossible:
    """It cannot have done the work: it moved fewer bytes, or took less time, than the task requires."""

    message: str  # the required and the observed work
    found: float
    least: float
    unit: str  # "bytes", "us"


@dataclass(frozen=True)
class Duplicate:
    """The same kernel as an earlier attempt; it was not run again."""

    attempt: int


@dataclass(frozen=True)
class NotFaster:
    """Right in small cases and slower than the best file, so it was not verified at the task's own sizes."""

    time_us: float  # with tuned constants, if it was tuned
    best_us: float
    attempt: int  # of the best file


@dataclass(frozen=True)
class NothingBetter:
    """The author expects no gain over the best file and sent none."""

    reason: str


Evidence = (
    BadReply
    | BadPlan
    | NotBuilt
    | Declined
    | Crashed
    | WrongValues
    | Unstable
    | Impossible
    | Duplicate
    | NotFaster
    | NothingBetter
)


@dataclass(frozen=True)
class Rejected:
    evidence: Evidence
    cases: tuple[CaseResult, ...] = ()  # that were right before it

    @property
    def reason(self) -> str:
        """A word or two for tables."""
        if isinstance(self.evidence, WrongValues) and self.evidence.drops_nan:
            return "drops NaN"
        return self.evidence.reason if isinstance(self.evidence, Crashed) else _REASONS[type(self.evidence)]


@dataclass(frozen=True)
class Unsupported:
    """No device here can run it: neither right nor wrong."""

    message: str

    @property
    def reason(self) -> str:
        """A word or two for tables."""
        return "cannot run here"


@dataclass(frozen=True)
class Changed(Unsupported):
    """It passed, and its file was changed since. The message says which, and what to do; it is never stored."""

    @property
    def reason(self) -> str:
        return "changed since"


Verdict = Passed | Rejected | Unsupported | Changed

_REASONS: dict[type, str] = {
    BadReply: "no usable reply",
    BadPlan: "plan refused",
    NotBuilt: "not built",
    Declined: "declines the task",
    WrongValues: "wrong values",
    Unstable: "unstable",
    Impossible: "cannot have done the work",
    Duplicate: "seen before",
    NotFaster: "not faster",
    NothingBetter: "nothing better seen",
}

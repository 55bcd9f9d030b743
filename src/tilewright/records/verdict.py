"""What the referee says of a kernel: passed, or rejected with a reason and the evidence an author needs to mend it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from tilewright.records.build import Diagnostic, FailureReason
from tilewright.records.emulation import FindingKind, FindingRecord
from tilewright.records.execution import Digest, FaultKind
from tilewright.records.json_form import Displayed, formerly
from tilewright.records.task import Layout


@dataclass(frozen=True)
class Case:
    """One call to judge a kernel by: sizes of every dimension, a seed, and how inputs are drawn."""

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("given", "layouts", "leading")

    sizes: dict[str, int]
    seed: int
    values: str = "task"  # a name of `verify.distributions`; "task": as the task says
    given: tuple[str, ...] = ()  # optional tensors that this call has
    layouts: tuple[tuple[str, Layout], ...] = ()  # of tensors that lie otherwise than the task says
    leading: tuple[str, ...] = ()  # dimensions that come before the rows of the task's leading inputs; `sizes` has them

    def __str__(self) -> str:
        parts = [f"{name}={size}" for name, size in self.sizes.items()]
        parts += [f"with {name}" for name in self.given]
        parts += [f"{name}: {layout.value}" for name, layout in self.layouts]
        parts += [f"{self.values} values"] if self.values != "task" else []
        return ", ".join((*parts, f"seed {self.seed}"))


class CaseStatus(str, Enum):
    RIGHT = "right"
    SAMPLED = "right in the blocks that were run"  # of each launch a few, at the task's own sizes
    DECLINED = "declined"  # the file's `need` does not hold there, and the task lets it choose
    TOO_LARGE = "too large to run here"
    NOT_EMULABLE = "not emulable here"


def label_says_emulated(data: dict[str, Any]) -> bool:
    """Of a record made when a device's label alone told whether it was emulated."""
    return str(data.get("device", "")).endswith("(emulated)")


@formerly(derived={"emulated": label_says_emulated})
@dataclass(frozen=True)
class CaseResult:
    LEFT_OUT: ClassVar[tuple[str, ...]] = ("digest",)

    case: Case
    status: CaseStatus
    device: str  # as people are told: "H200 (emulated)"; "" where nothing ran
    error_ratio: float | None = None  # worst error over what is allowed: below 1; None where nothing was compared
    seconds: float = 0.0
    emulated: bool = False
    digest: Digest | None = None  # of the results that were judged, where a GPU ran the task's own call


@dataclass(frozen=True)
class UncoveredLine:
    """A line of a kernel file that does something in the task's own call that it did in no judged case."""

    line: int
    text: str
    why: str  # "it never ran", "its loop never ran more than two iterations"


_SIZES_SHOWN = 5


@dataclass(frozen=True)
class SizeLimit:
    """What a file takes of a dimension that varies, where that is less than the task asks for."""

    dimension: str
    declined: tuple[int, ...]  # of the sizes that were tried
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
class Passed(Displayed):
    """Right in every case that could be run, with no finding."""

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("uncovered", "unseen", "limits", "is_looked_at")

    cases: tuple[CaseResult, ...]
    notes: tuple[str, ...] = ()  # what was not covered, in sentences
    uncovered: tuple[UncoveredLine, ...] = ()
    unseen: str = ""  # why nobody could see what runs in the task's own call, where it was not judged there
    limits: tuple[SizeLimit, ...] = ()  # sizes that the task asks for and the file declines
    is_looked_at: bool = False  # what runs in the task's own call was seen, though no value of it could be judged

    def is_narrower_than(self, other: Passed) -> bool:
        """Whether its file declines a size that was tried and that the other's takes."""
        declined = {one.dimension: {*one.declined} for one in other.limits}
        return any(not {*one.declined} <= declined.get(one.dimension, set()) for one in self.limits)

    @property
    def unjudged(self) -> tuple[str, ...]:
        """What runs in the task's own call and was judged nowhere, in sentences."""
        lines = tuple(f"line {one.line}: {one.why} in a judged case: {one.text}" for one in self.uncovered)
        unseen = f"what runs at the task's own sizes could not be seen: {self.unseen}"
        return (*lines, unseen) if self.unseen else lines

    @property
    def is_provisional(self) -> bool:
        """Whether there is any of that: then the kernel is not verified."""
        return bool(self.uncovered or self.unseen)

    @property
    def error_ratio(self) -> float:
        return max((one.error_ratio for one in self.cases if one.error_ratio is not None), default=0.0)

    @property
    def answer(self) -> JudgedAnswer | None:
        """What it answered to the task's own call on a GPU."""
        return next((JudgedAnswer(one.case, one.digest) for one in self.cases if one.digest is not None), None)


@dataclass(frozen=True)
class JudgedAnswer:
    """What a kernel answered, and was right, on the inputs of a case: timed on the same, it must answer the same."""

    case: Case
    digest: Digest


# -- why a kernel is rejected --


@dataclass(frozen=True)
class BadReply:
    """The author's reply could not be read, twice."""

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
    """The kernel file's own rules are broken, or it is not the task's op."""

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
    """The run did not get to its end, or a checker found a fault in it."""

    case: Case
    fault: FaultKind | None  # None: it ended, with findings
    message: str
    kernel: str | None
    line: int | None
    findings: tuple[FindingRecord, ...] = ()
    source_lines: tuple[tuple[int, str], ...] = ()  # the lines that findings name

    @property
    def spent_instructions(self) -> bool:
        """Whether an emulated run spent the instructions it may take: more of them might do."""
        return any(one.kind is FindingKind.BUDGET for one in self.findings)

    @property
    def ran_out(self) -> bool:
        """Whether it was stopped for what it took, which is no fault in itself: it may be heavy, or never end."""
        return self.spent_instructions or self.fault in (FaultKind.TIME, FaultKind.MEMORY)

    @property
    def reason(self) -> str:
        if self.fault is FaultKind.MEMORY:
            return "took too much memory"
        if self.ran_out or self.fault is not None or not self.findings:
            return "ran too long" if self.ran_out else "crashed"
        kind = self.findings[0].kind.name  # it ran to its end
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
    """A diagnosis of one output, not a dump of it."""

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
    """The smallest case found to fail, and what is wrong there."""

    case: Case
    outputs: tuple[WrongOutput, ...]
    right_cases: tuple[Case, ...] = ()  # that passed: where the fault does not show

    @property
    def drops_nan(self) -> bool:
        """Whether nothing is wrong but that a NaN of the inputs does not reach the results."""
        return bool(self.outputs) and all(one.pattern is Pattern.NAN_DROPPED for one in self.outputs)


@dataclass(frozen=True)
class Unstable:
    """Results differ from schedule to schedule or run to run."""

    case: Case
    outputs: tuple[str, ...]
    when: str = ""  # which call answered otherwise, where it was one that was timed
    wrong: tuple[WrongOutput, ...] = ()  # of a run that was more than the last bits off


@dataclass(frozen=True)
class Impossible:
    """It cannot have done the work: it moved less, or took less time, than the task needs at its own sizes."""

    message: str  # what must be done, and what was
    found: float
    least: float
    unit: str  # "bytes", "us"


@dataclass(frozen=True)
class Duplicate:
    """The same kernel as an earlier attempt; it was not run again."""

    attempt: int


@dataclass(frozen=True)
class NotFaster:
    """Right as far as it was judged, and slower than the best so far: it was not judged at the task's own sizes."""

    time_us: float  # with the constants that suit it best, where they were looked for
    best_us: float
    attempt: int  # that the best is of


@dataclass(frozen=True)
class NothingBetter:
    """The author saw nothing to gain on the best file, and said so instead of sending one."""

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
class Rejected(Displayed):
    evidence: Evidence
    cases: tuple[CaseResult, ...] = ()  # that were right before it

    @property
    def reason(self) -> str:
        """A word or two for tables."""
        if isinstance(self.evidence, WrongValues) and self.evidence.drops_nan:
            return "drops NaN"
        return self.evidence.reason if isinstance(self.evidence, Crashed) else _REASONS[type(self.evidence)]


@dataclass(frozen=True)
class Unsupported(Displayed):
    """Nothing here can run it: neither right nor wrong."""

    message: str


Verdict = Passed | Rejected | Unsupported

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

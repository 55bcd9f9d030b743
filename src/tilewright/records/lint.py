"""Records of `tilewright lint`, which analyses a kernel without running it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tilewright.records.build import Severity


class LintRule(str, Enum):
    """The value is the rule's name and its section in docs/lint.md."""

    DIVERGENT_BARRIER = "divergent-barrier"
    MISSING_BOUNDS = "missing-bounds"
    INDEX_OVERFLOW = "index-overflow"
    MISALIGNED = "misaligned"
    UNWAITED_COPY = "unwaited-copy"
    UNCOALESCED = "uncoalesced"
    BANK_CONFLICT = "bank-conflict"
    SPILL = "spill"
    LOCAL_ARRAY = "local-array"
    ACCIDENTAL_DOUBLE = "accidental-double"
    SERIAL_ATOMIC = "serial-atomic"
    IDLE_TENSOR_CORES = "idle-tensor-cores"
    OCCUPANCY_CLIFF = "occupancy-cliff"
    NARROW_LOAD = "narrow-load"
    MISSING_RESTRICT = "missing-restrict"
    SWALLOWED_NAN = "swallowed-nan"


@dataclass(frozen=True)
class LintFinding:
    """One rule violated at one line of a kernel; `evidence` has the numbers."""

    rule: LintRule
    severity: Severity
    kernel: str  # the C++ name expression of the launch
    line: int | None  # of the kernel file; None if the compiler gives none
    evidence: str
    why: str
    remedy: str

    def __str__(self) -> str:
        at = f", line {self.line}" if self.line is not None else ""
        return f"{self.severity.value}: {self.rule.value}: {self.kernel}{at}: {self.evidence}; {self.remedy}"


@dataclass(frozen=True)
class LintReport:
    """The findings for one kernel file, one set of arguments and one GPU."""

    file: str
    identity: str
    op: str
    gpu: str
    arguments: dict[str, str]
    guessed: bool  # the shapes were guessed
    findings: tuple[LintFinding, ...]  # most severe first, then by line
    unread: tuple[str, ...] = ()  # what could not be analysed, a sentence each

    @property
    def has_errors(self) -> bool:
        return any(finding.severity is Severity.ERROR for finding in self.findings)

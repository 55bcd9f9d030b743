"""The records of `tilewright check`: what is asked of the reference, and the report. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from tilewright.devices.emulation.listing import Listing
from tilewright.records import CountsRecord, Diagnostic, FindingRecord, InputTensor, ReturnedTensor

Number = int | float | bool | None

# -- the conversation with the reference's process --


@dataclass(frozen=True)
class NumberArgument:
    """A scalar argument; a list's items, or one."""

    name: str
    values: tuple[Number, ...]
    is_list: bool

    @property
    def value(self) -> Any:
        return list(self.values) if self.is_list else self.values[0]


@dataclass(frozen=True)
class ReferenceRequest:
    """A call and what the kernel made of it."""

    names: tuple[str, ...]  # the op's parameters, in order
    inputs: tuple[InputTensor, ...]
    numbers: tuple[NumberArgument, ...]
    results: tuple[str, ...]
    in_place: tuple[str, ...]
    outputs: tuple[ReturnedTensor, ...]
    tolerance: float | None


@dataclass(frozen=True)
class ResultVerdict:
    """One result against the reference."""

    name: str
    agrees: bool
    message: str  # what differs, or how close it is
    worst_error: float | None  # None where no number says it
    reference_error: float | None  # the reference's own worst, at the same dtype


@dataclass(frozen=True)
class ReferenceVerdict:
    results: tuple[ResultVerdict, ...]


# -- the report --


class Outcome(str, Enum):
    """What became of a check; each has its exit status."""

    CLEAN = "clean"
    FINDINGS = "findings"  # a checker found something
    WRONG = "wrong"  # a result differs from the reference
    FAULTED = "faulted"  # the run did not get to its end
    NOT_BUILT = "not built"
    DOES_NOT_APPLY = "does not apply"
    NOT_EMULABLE = "not emulable"

    @property
    def exit_status(self) -> int:
        return {Outcome.CLEAN: 0, Outcome.NOT_EMULABLE: 3}.get(self, 1)


@dataclass(frozen=True)
class CostReport:
    """A line whose memory requests take far more than they need: advice, not a fault."""

    kernel: str
    line: int
    source: str
    message: str


@dataclass(frozen=True)
class CheckReport:
    """One kernel file at one set of arguments on one emulated GPU."""

    file: str
    identity: str
    op: str
    gpu: str
    arguments: dict[str, str]
    guessed: bool  # the shapes were guessed, not given
    outcome: Outcome
    reason: str  # why it faulted, was not built or does not apply
    findings: tuple[FindingRecord, ...] = ()
    results: tuple[ResultVerdict, ...] = ()  # against the reference
    compared: bool = False  # a reference was given, and the run got to its end
    costs: tuple[CostReport, ...] = ()
    varying: tuple[str, ...] = ()  # outputs that differ from schedule to schedule
    incomplete: tuple[str, ...] = ()  # what the checkers could not see to the end
    counts: tuple[CountsRecord, ...] = ()  # of each launch, per instruction
    listings: tuple[Listing, ...] = ()  # the same per line
    diagnostics: tuple[Diagnostic, ...] = ()
    schedules: int = 0  # that ran
    sampled_blocks: int | None = None
    thread_instructions: int = 0
    printed: str = ""
    seconds: float = 0.0  # in the emulator

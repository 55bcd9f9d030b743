"""What an audit says of one kernel file: one record, which the terminal, Markdown, HTML and JSON all show."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tilewright.frontends.view.roofline_plot import Roofline
from tilewright.records import Measured, Modelled, ModelTerm


class Weight(str, Enum):
    """How grave a suggestion is; in this order they are shown."""

    WRONG = "wrong"  # seen to go wrong
    FAULT = "fault"  # read to go wrong, or seen to at odd sizes only
    COST = "cost"
    REMARK = "remark"


@dataclass(frozen=True)
class Suggestion:
    """One thing to mend. `line` and `source` are of the kernel file as it was audited."""

    weight: Weight
    what: str  # a rule of lint, what a checker found, a resource of the model
    kernel: str
    line: int | None
    source: str
    evidence: str
    why: str
    remedy: str
    gain: float | None = None  # times as fast, at most, in the model; None: it cannot tell


@dataclass(frozen=True)
class Correctness:
    """`passed` is None where nothing could run it. `judge`: who looked, at which sizes, against what."""

    passed: bool | None
    words: str
    judge: str
    text: str = ""  # the diagnosis
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Speed:
    """Where the time goes. Terms and lines are modelled from emulated counts also where the time is measured."""

    measurement: Measured | Modelled | None
    problem: str = ""  # why there is no time, or no model
    terms: tuple[ModelTerm, ...] = ()
    bound_by: str = ""
    reachable_us: float | None = None  # what the model gives the least traffic in one launch
    floor_is: str = ""  # what the roofline counts
    counters: tuple[str, ...] = ()  # the GPU's own, of the launch that takes longest
    evidence: str = ""  # a page: by launch and line
    roofline: Roofline | None = None

    @property
    def most_gain(self) -> float | None:
        """Times as fast as it is, were it at the roofline."""
        found = self.measurement
        return max(1.0, found.time_us / found.floor_us) if found and found.floor_us else None


@dataclass(frozen=True)
class Audit:
    file: str
    identity: str
    op: str
    gpu: str
    device: str  # "H200 (emulated); times are modelled, not measured"
    arguments: dict[str, str]
    guessed: bool
    imported_from: str  # "" where it was a kernel file
    notes: tuple[str, ...]  # of the import; what lint could not look at
    correctness: Correctness
    speed: Speed
    suggestions: tuple[Suggestion, ...]  # the most urgent first
    kind: str  # of work, "" where there is no reference to tell
    advice: tuple[str, ...]  # for that kind of work

    @property
    def exit_status(self) -> int:
        grave = any(one.weight in (Weight.WRONG, Weight.FAULT) for one in self.suggestions)
        if self.correctness.passed is False or grave:
            return 1
        return 3 if self.correctness.passed is None else 0

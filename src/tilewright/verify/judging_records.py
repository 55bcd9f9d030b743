"""What the referee asks of the reference's process, and what it is told. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.records import Case, InputTensor, ReturnedTensor, Task, WrittenPart, WrongOutput

Number = int | float | bool | None

LARGE = 1 << 24  # elements of a call's inputs and results from which it is judged in parts, where there is a GPU


@dataclass(frozen=True)
class JudgeRequest:
    """A case, what a kernel was given for it, and what it made of that."""

    task: Task
    case: Case
    outputs: tuple[ReturnedTensor, ...]  # none where the job's own results come with the request
    # Those that a GPU drew by seed must be drawn by a GPU again. Where there are none, the case says what they hold.
    inputs: tuple[InputTensor, ...] = ()


@dataclass(frozen=True)
class WrittenRequest:
    """What sampled blocks wrote at the task's own sizes. Inputs were drawn at `drawn` and repeated from there."""

    task: Task
    sizes: dict[str, int]
    drawn: dict[str, int]
    seed: int
    independent: tuple[str, ...]
    parts: tuple[WrittenPart, ...]
    values: str


@dataclass(frozen=True)
class Judgement:
    """Right where `wrong` is empty. A case that is not `telling` proves nothing either way."""

    wrong: tuple[WrongOutput, ...]
    error_ratio: float  # worst error over what is allowed
    telling: bool
    seconds: float  # in the reference's process
    elements: int = 0  # that were compared
    parts: int = 1  # in which they were
    device_bytes: int = 0  # the most that judging held of a GPU's memory, inputs included
    not_judged: str = ""  # why nothing was compared
    not_opened: str = ""  # why the memory that the job's device lends could not be looked at; nothing was compared
    note: str = ""  # what the verdict should say of how it was judged


# -- what a task's cases may hold --


@dataclass(frozen=True)
class SurveyRequest:
    """Asks which values the reference takes, at sizes small enough to call it often."""

    task: Task
    sizes: dict[str, int]
    whole: bool  # of tensors of whole numbers, which may end the reference's process; else of all else


@dataclass(frozen=True)
class ValueSurvey:
    kinds: tuple[str, ...]  # further kinds of values, as a case names them


# -- a call that belongs to no task, as `tilewright check` makes it --


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
class CallRequest:
    """A call and what the kernel made of it. `tolerance` takes the place of the one worked out for each element."""

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
class CallJudgement:
    results: tuple[ResultVerdict, ...]

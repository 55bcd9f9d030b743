"""Requests to the reference's process and its answers. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.records import Case, InputTensor, ReturnedTensor, Task, WrittenPart, WrongOutput

Number = int | float | bool | None

LARGE = 1 << 24  # elements of inputs and results from which a call is judged in parts, where there is a GPU


@dataclass(frozen=True)
class JudgeRequest:
    """A case with its inputs and the kernel's outputs."""

    task: Task
    case: Case
    outputs: tuple[ReturnedTensor, ...]  # none where the job's results come with the request
    # Inputs generated on a GPU from a seed must be generated on one again. Where none are given, the case has them.
    inputs: tuple[InputTensor, ...] = ()


@dataclass(frozen=True)
class WrittenRequest:
    """What sampled blocks wrote at the task's own sizes. Inputs were drawn at the sizes `drawn` and repeated."""

    task: Task
    sizes: dict[str, int]
    drawn: dict[str, int]
    seed: int
    independent: tuple[str, ...]
    parts: tuple[WrittenPart, ...]
    values: str


@dataclass(frozen=True)
class Judgement:
    """Right where `wrong` is empty. If not `telling`, the case is ill-conditioned and proves nothing."""

    wrong: tuple[WrongOutput, ...]
    error_ratio: float  # worst error over what is allowed
    telling: bool
    seconds: float  # in the reference's process
    elements: int = 0  # compared
    parts: int = 1  # in which they were
    device_bytes: int = 0  # peak GPU memory of judging, inputs included
    not_judged: str = ""  # why nothing was compared
    not_opened: str = ""  # why the job's shared GPU memory could not be opened; nothing was compared
    note: str = ""  # on how it was judged, for the verdict


# -- the values survey --


@dataclass(frozen=True)
class SurveyRequest:
    """Which values the reference accepts, at sizes small enough to call it often."""

    task: Task
    sizes: dict[str, int]
    whole: bool  # survey integer tensors, which may crash the reference's process; else everything else


@dataclass(frozen=True)
class ValueSurvey:
    kinds: tuple[str, ...]  # as cases name them


# -- a call without a task, as `tilewright check` makes it --


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
    """A call and its results. `tolerance` replaces the one computed for each element."""

    names: tuple[str, ...]  # the op's parameters, in order
    inputs: tuple[InputTensor, ...]
    numbers: tuple[NumberArgument, ...]
    results: tuple[str, ...]
    in_place: tuple[str, ...]
    outputs: tuple[ReturnedTensor, ...]
    tolerance: float | None


@dataclass(frozen=True)
class ResultVerdict:
    """One result compared with the reference."""

    name: str
    agrees: bool
    message: str  # what differs, or how close it is
    worst_error: float | None
    reference_error: float | None  # the reference's worst error at the same dtype


@dataclass(frozen=True)
class CallJudgement:
    results: tuple[ResultVerdict, ...]

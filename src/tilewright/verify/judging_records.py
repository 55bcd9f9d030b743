"""What the referee asks of the reference's process, and what it is told. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.records import Case, InputTensor, ReturnedTensor, Task, WrongOutput


@dataclass(frozen=True)
class JudgeRequest:
    """A case, what a kernel was given for it, and what it made of that."""

    task: Task
    case: Case
    outputs: tuple[ReturnedTensor, ...]
    # Those that a GPU drew by seed must be drawn by a GPU again. Where there are none, the case says what they hold.
    inputs: tuple[InputTensor, ...] = ()


@dataclass(frozen=True)
class Judgement:
    """Right where `wrong` is empty. A case that is not `telling` proves nothing either way."""

    wrong: tuple[WrongOutput, ...]
    error_ratio: float  # worst error over what is allowed
    telling: bool
    seconds: float  # in the reference's process

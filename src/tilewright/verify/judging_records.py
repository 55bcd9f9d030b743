"""What the referee asks of the reference's process, and what it is told. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.records import Case, ReturnedTensor, Task, WrongOutput


@dataclass(frozen=True)
class JudgeRequest:
    """A case and what a kernel made of it. The inputs are drawn again from the case."""

    task: Task
    case: Case
    outputs: tuple[ReturnedTensor, ...]
    by_seed: bool = False  # the inputs were drawn by a GPU, so a GPU must draw them here too


@dataclass(frozen=True)
class Judgement:
    """Right where `wrong` is empty. A case that is not `telling` proves nothing either way."""

    wrong: tuple[WrongOutput, ...]
    error_ratio: float  # worst error over what is allowed
    telling: bool
    seconds: float  # in the reference's process

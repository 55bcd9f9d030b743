"""What a person may ask of a task beside what it computes."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.records import PROFILES, Goal, Precision


class TaskError(ValueError):
    """A request that makes no task: one sentence that says what is wrong and what to do."""


@dataclass(frozen=True)
class TaskOptions:
    gpu: str = "H200"
    precision: Precision = Precision.DTYPE
    goal: Goal = Goal.THROUGHPUT
    allow_library: bool = False
    fixed: tuple[str, ...] = ()  # names of dimensions that must not vary
    fixed_all: bool = False
    allow_degenerate: bool = False

    def __post_init__(self) -> None:
        if self.gpu not in PROFILES:
            raise TaskError(f"no known GPU is called {self.gpu!r}; write one of {', '.join(PROFILES)}")

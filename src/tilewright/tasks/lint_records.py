"""What `lint` asks of the child, and what it hears."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.records import Task

LINT = "tilewright.tasks.lint_run:run_lint"


@dataclass(frozen=True)
class LintRequest:
    task: Task
    sizes: dict[str, int]


@dataclass(frozen=True)
class LintAnswer:
    mismatch: str  # where the reference returns something else than the task says
    reason: str  # why answers prove nothing
    idle: tuple[str, ...] = ()  # tensors without influence on any output
    copied: str = ""  # the tensor that the first output equals, where that is the reason

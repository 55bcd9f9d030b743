"""A request as it was made."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.records import Goal, Precision

REQUEST = "request.json"


@dataclass(frozen=True)
class Request:
    """What a person asked for, from which the task is made: enough to go on with words after a crash."""

    text: str  # words, a path, or Python source
    shapes: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    gpu: str = "H200"
    precision: Precision = Precision.DTYPE
    goal: Goal = Goal.THROUGHPUT
    allow_library: bool = False
    fixed: tuple[str, ...] = ()
    allow_degenerate: bool = False
    function: str = ""  # where the text is Python source: the function meant

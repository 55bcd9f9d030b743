"""Requests in words that have no reading, and those that have several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.tasks.errors import GivenArgument, Remedy, RemedyKind, TaskError


class NotUnderstood(TaskError):
    """Words without a reading, or shapes that do not go with them. `near` names the nearest operation, or is ""."""

    near = ""
    understood: Any = None  # the part of the request that was read


@dataclass(frozen=True)
class Reading:
    """What a request may mean: a request that has this one reading, and what it computes."""

    request: str
    means: str


class SeveralReadings(NotUnderstood):
    """Words that may mean several things; a person picks one by asking for its `request`."""

    def __init__(self, found: str, readings: tuple[Reading, ...]) -> None:
        listed = "; ".join(f'{place}. "{one.request}": {one.means}' for place, one in enumerate(readings, 1))
        super().__init__(f"{found}: {listed}; ask for it in one of these phrases")
        self.question = found
        self.readings = readings


def unread(found: str, near: str = "", request: str = "", given: GivenArgument | None = None) -> NotUnderstood:
    """`near`: the operation nearest to the words, and `request`: the phrase that asks for it."""
    instead = f'; the nearest request it reads is "{request}"' if request else ""
    ways = (Remedy(RemedyKind.WRITE_FUNCTION), Remedy(RemedyKind.CHOOSE_MODEL))
    problem = NotUnderstood(f"{found}{instead}", *ways, given=given)
    problem.near = near
    return problem

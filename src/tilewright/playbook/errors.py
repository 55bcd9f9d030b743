"""What the playbook cannot do, and what would help."""

from __future__ import annotations

from tilewright.tasks.errors import RefusedRequest, Remedy, RemedyKind


class PlaybookProblem(RefusedRequest):
    """The playbook has no answer."""


class NotSupported(PlaybookProblem):
    """An operation, shape or dtype that no structure of the playbook computes; a model may."""

    def __init__(self, found: str) -> None:
        super().__init__(found, Remedy(RemedyKind.CHOOSE_MODEL))


def not_together(one: str, other: str) -> NotSupported:
    """Two operations, by ATen's names, that the playbook writes in kernels of their own only."""
    first, second = (text.strip("_").removeprefix("native_").removesuffix("_with_indices") for text in (one, other))
    return NotSupported(
        f"the playbook writes {first} and {second}, but not in one kernel; give it a function for each of the two"
    )

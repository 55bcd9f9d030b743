"""What the playbook cannot do, and what would help."""

from __future__ import annotations

from tilewright.tasks.errors import RefusedRequest, Remedy, RemedyKind


class PlaybookProblem(RefusedRequest):
    """The playbook has no answer."""


class NotUnderstood(PlaybookProblem):
    """Words that the grammar does not know, or shapes that do not go with them."""


class NotSupported(PlaybookProblem):
    """An operation, shape or dtype that no structure of the playbook computes; a model may."""

    def __init__(self, found: str) -> None:
        super().__init__(found, Remedy(RemedyKind.CHOOSE_MODEL))


def outside_grammar(found: str) -> NotUnderstood:
    """Words for which there are others, or a model."""
    return NotUnderstood(f"{found}; docs/playbook.md lists the words", Remedy(RemedyKind.CHOOSE_MODEL))

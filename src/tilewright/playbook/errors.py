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


def outside_grammar(found: str, near: str = "") -> NotUnderstood:
    """Words for which there are others, or a function, or a model. `near`: a request like it that works."""
    instead = (f'the nearest it reads is "{near}", and ' if near else "") + "docs/playbook.md lists the words"
    return NotUnderstood(f"{found}; {instead}", Remedy(RemedyKind.WRITE_FUNCTION), Remedy(RemedyKind.CHOOSE_MODEL))

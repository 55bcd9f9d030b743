"""What the playbook cannot do, said in one sentence."""

from __future__ import annotations


class PlaybookProblem(ValueError):
    """The playbook has no answer; the message says why and what to do.

    PlaybookProblem
    |-- NotUnderstood    words outside the grammar
    `-- NotSupported     a PyTorch function with an operation outside the playbook
    """


class NotUnderstood(PlaybookProblem):
    """Words that the grammar does not know."""


class NotSupported(PlaybookProblem):
    """An operation, shape or dtype that no structure of the playbook computes."""

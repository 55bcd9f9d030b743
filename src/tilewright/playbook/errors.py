"""What the playbook cannot do, and what would help."""

from __future__ import annotations

from tilewright.tasks import called_names
from tilewright.tasks.errors import RefusedRequest, Remedy, RemedyKind


class PlaybookProblem(RefusedRequest):
    """The playbook has no answer."""


class NotSupported(PlaybookProblem):
    """An operation, shape or dtype that no structure of the playbook computes; a model may."""

    def __init__(self, found: str) -> None:
        super().__init__(found, Remedy(RemedyKind.CHOOSE_MODEL))


class OtherAtTheLeast(NotSupported):
    """A number that follows from sizes is another where they are as small as they may be: `max(n - 1, 1)`."""


class NoMatch(NotSupported):
    """A graph that one kind of schedules does not take; nobody reads this, for others or the loops take it then."""

    def __init__(self) -> None:
        super().__init__("no schedule of this kind takes the graph")


# -- refused before anything is traced --

_ABSENT: tuple[tuple[str, frozenset[str]], ...] = (
    ("whole attention layers", frozenset(("multi_head_attention_forward", "multiheadattention"))),
    ("recurrent networks", frozenset(("lstm", "gru", "rnn", "lstmcell", "grucell", "rnncell"))),
    ("medians", frozenset(("median", "nanmedian"))),
    ("results whose size depends on data", frozenset(("unique", "nonzero", "masked_select"))),
)


def precheck(source: str, function: str) -> None:
    """Raises `NotSupported` where the function calls what has no structure. What the source defines is its own."""
    called = called_names(source, function)
    for what, names in _ABSENT:
        if found := sorted(names & called):
            raise NotSupported(f"the playbook has no rule for {what}, and {function} calls {found[0]}")

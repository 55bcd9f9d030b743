"""What no family computes and the source already says, so that nobody waits for a reference to be run and traced."""

from __future__ import annotations

from tilewright.playbook.errors import NotSupported
from tilewright.tasks import called_names

_ABSENT: tuple[tuple[str, frozenset[str]], ...] = (
    ("whole attention layers", frozenset(("multi_head_attention_forward", "multiheadattention"))),
    ("recurrent networks", frozenset(("lstm", "gru", "rnn", "lstmcell", "grucell", "rnncell"))),
    ("sorting", frozenset(("sort", "argsort", "msort", "median", "unique"))),
)


def foresee(source: str, function: str) -> None:
    """Raises `NotSupported` where the function calls what has no structure. What the source defines is its own."""
    called = called_names(source, function)
    for what, names in _ABSENT:
        if found := sorted(names & called):
            raise NotSupported(f"the playbook has no structure for {what}, and {function} calls {found[0]}")

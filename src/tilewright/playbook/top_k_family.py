"""Top-k: the few greatest or least elements of every row and where they are."""

from __future__ import annotations

from functools import partial

from tilewright.playbook.families import Answer, Family, Structure, TracedTask
from tilewright.playbook.top_k.program import top_program
from tilewright.playbook.top_k.structures import draft, lists


def _answer(traced: TracedTask) -> Answer:
    program = top_program(traced)
    first = Structure("draft-top", "first version: a block per row, lists of the best merged", partial(draft, program))
    summary = "a block per row read once in 16-byte vectors, lists of the best kept in registers and merged"
    later = (Structure("top-lists", summary, partial(lists, program)),)
    return Answer(first, later, (first, *later))


TOP_K = Family("top-k", frozenset(("topk",)), lambda traced: "topk" in traced.targets, _answer)

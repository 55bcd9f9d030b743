"""Losses with class indices: cross entropy, negative log likelihood, and what else picks one element of each row."""

from __future__ import annotations

from functools import partial

from tilewright.playbook.class_losses.program import EXPONENTIALS, PICKS, RULES, SUMS, loss_program
from tilewright.playbook.class_losses.structures import draft, warps
from tilewright.playbook.families import Answer, Family, Structure, TracedTask
from tilewright.playbook.operations import POINTWISE_RULES


def _claims(traced: TracedTask) -> bool:
    picks = bool(traced.targets & PICKS) and bool(traced.targets & (EXPONENTIALS | SUMS))
    return picks and traced.targets <= POINTWISE_RULES.keys() | RULES.keys()


def _answer(traced: TracedTask) -> Answer:
    program = loss_program(traced)
    first = Structure("draft-loss", "first version: a warp per row, element by element", partial(draft, program))
    later: tuple[Structure, ...] = ()
    if program.along is not None:
        summary = "a warp per row, read once in 16-byte vectors, several under way"
        later = (Structure("loss-warps", summary, partial(warps, program)),)
    return Answer(first, later, (first, *later))


CLASS_LOSSES = Family("class losses", frozenset((*EXPONENTIALS, *PICKS)), _claims, _answer)

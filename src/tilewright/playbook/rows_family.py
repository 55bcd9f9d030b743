"""Rows: pointwise work, and reductions along rows."""

from __future__ import annotations

from tilewright.playbook.analysis import RULES, row_program
from tilewright.playbook.catalogue import draft, every_structure, structures
from tilewright.playbook.families import Answer, Family, TracedTask


def _answer(traced: TracedTask) -> Answer:
    program = row_program(traced)
    return Answer(draft(program), structures(program), every_structure(program))


ROWS = Family("rows", frozenset(RULES), lambda traced: traced.targets - {"getitem"} <= RULES.keys(), _answer)

"""Rows: pointwise work, and reductions along rows; where there are reductions over two sets of dimensions, a chain."""

from __future__ import annotations

from tilewright.playbook.analysis import RULES, program_of, row_space
from tilewright.playbook.catalogue import draft, every_structure, structures
from tilewright.playbook.chains import chain_answer, chain_of
from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import Answer, Family, TracedTask


def _answer(traced: TracedTask) -> Answer:
    space = row_space(traced)
    try:
        program = program_of(space)
    except NotSupported:
        chain = chain_of(space)
        if chain is None:
            raise
        return chain_answer(chain)
    return Answer(draft(program), structures(program), every_structure(program))


ROWS = Family("rows", frozenset(RULES), lambda traced: traced.targets - {"getitem"} <= RULES.keys(), _answer)

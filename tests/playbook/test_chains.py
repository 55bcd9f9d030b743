"""Reductions over two sets of dimensions: files of two programs, run on the emulator against PyTorch in f64."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.playbook.agreement import check, load_structure, sizes_at
from tests.playbook.functions import TWO_SETS, Function, task_of

from tilewright.playbook.families import Schedules
from tilewright.playbook.rows import ROWS
from tilewright.playbook.tracing import trace
from tilewright.playbook.understanding import traced_task
from tilewright.records import Task

SIZES = ((1, 1), (5, 3), (2, 127), (33, 8))


def _answer(function: Function, task: Task) -> Schedules:
    made = function.callable
    found = ROWS.matches(traced_task(task, lambda request: trace(made, request)))
    assert found is not None
    return found


@pytest.mark.parametrize("function", TWO_SETS[:3], ids=lambda one: one.name)
def test_the_best_structure_of_a_chain_is_right(function: Function, tmp_path: Path) -> None:
    task = task_of(function)
    op = load_structure(_answer(function, task).structures[0], task, tmp_path)
    for rows, cols in SIZES[1:3]:
        check(op, function, task, sizes_at(task, rows, cols))


@pytest.mark.slow
@pytest.mark.parametrize("function", TWO_SETS, ids=lambda one: one.name)
def test_every_structure_of_a_chain_is_right(function: Function, tmp_path: Path) -> None:
    task = task_of(function)
    for step in _answer(function, task).every:
        op = load_structure(step, task, tmp_path)
        for rows, cols in SIZES:
            check(op, function, task, sizes_at(task, rows, cols))

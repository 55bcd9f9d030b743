"""Kernel files of the playbook, built and run on the emulator against PyTorch in f64."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.playbook.agreement import check, load_structure, sizes_at
from tests.playbook.functions import BY_NAME, FUNCTIONS, Function, program_of, task_of

from tilewright.playbook.catalogue import draft, every_structure
from tilewright.playbook.families import Structure

QUICK = (
    "layernorm_gelu",
    "add_rmsnorm",
    "where_greatest",
    "mean_loss",
    "masked_softmax",
    "gate",
    "scaled_and_summed",
    "bias_gelu",
    "middle_places",
    "channel_rmsnorm",
    "batch_norm_train",
    "hinge",
)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: one.name)
def test_the_draft_is_right_at_odd_sizes(function: Function, tmp_path: Path) -> None:
    task = task_of(function)
    program = program_of(function, task)
    op = load_structure(draft(program), task, tmp_path)
    for rows, cols in ((1, 3), (2, 127), (1, 1000)):
        check(op, function, task, sizes_at(task, rows, cols))


@pytest.mark.parametrize("name", QUICK)
def test_every_structure_is_right(name: str, tmp_path: Path) -> None:
    function = BY_NAME[name]
    task = task_of(function)
    program = program_of(function, task)
    for step in every_structure(program)[1:]:
        if not step.emulable:
            continue
        _check_all(step, function, ((3, 512), (2, 127)), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: one.name)
def test_every_structure_of_every_function_is_right(function: Function, tmp_path: Path) -> None:
    task = task_of(function)
    program = program_of(function, task)
    for step in every_structure(program)[1:]:
        for variant in (step, step.safer, step.polished):
            if variant is None or not variant.emulable:
                continue
            _check_all(variant, function, ((1, 1), (5, 3), (2, 127), (1, 1000), (3, 1024)), tmp_path)


def _check_all(step: Structure, function: Function, sizes: tuple[tuple[int, int], ...], folder: Path) -> None:
    task = task_of(function)
    op = load_structure(step, task, folder)
    for rows, cols in sizes:
        check(op, function, task, sizes_at(task, rows, cols))


@pytest.mark.parametrize(
    ("name", "cols"),
    [
        ("layernorm_gelu", 2056),
        ("layernorm_gelu", 120001),
        ("add_rmsnorm", 2056),
        ("softmax", 1001),
        ("where_greatest", 60001),
    ],
)
def test_rows_longer_than_a_structure_holds_are_right_too(name: str, cols: int, tmp_path: Path) -> None:
    """Beyond registers, beyond shared memory, and where no vector fits the row's length."""
    function = BY_NAME[name]
    for step in every_structure(program_of(function, task_of(function)))[1:]:
        if step.emulable:
            _check_all(step, function, ((2, cols),), tmp_path)

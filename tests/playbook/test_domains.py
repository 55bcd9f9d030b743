"""Arguments and sizes other than those a file was traced with: right there too, or declined."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.playbook.agreement import check, load_structure
from tests.playbook.functions import Function, task_of
from tests.playbook.placed import Placed, structure

from tilewright.playbook.families import Answer
from tilewright.playbook.tracing import trace
from tilewright.playbook.understanding import answer
from tilewright.records import NumberInput, Task
from tilewright.runtime.errors import NoKernelApplies

_SIZES = {"m": 9, "n": 7, "k": 8, "batch": 3, "rows": 6, "cols": 8}
_FACTORS = "x: f32[m, k]; w: f32[k, n]"


def _answer(function: Function) -> tuple[Task, Answer]:
    task, made = task_of(function, _SIZES), function.callable
    return task, answer(task, lambda request: trace(made, request))


def _given(task: Task, name: str, value: float) -> Task:
    inputs = (
        replace(one, value=value) if isinstance(one, NumberInput) and one.name == name else one for one in task.inputs
    )
    return replace(task, inputs=tuple(inputs))


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (Function("raised", "return (x * x + 1.0) ** e", "x: f32[rows, cols]; e = 2.0"), "e"),
        (Function("scaled_sum", "return torch.addmm(v, x, w, beta=s)", f"{_FACTORS}; v: f32[n]; s = 1.0"), "s"),
    ],
)
def test_an_argument_may_have_another_value(function: Function, name: str, tmp_path: Path) -> None:
    task, found = _answer(function)
    op = load_structure(found.draft, task, tmp_path)
    for value in (2.5, 1.0):
        check(op, function, _given(task, name, value), task.sizes)


def test_a_triangle_of_every_matrix_of_a_tall_product(tmp_path: Path) -> None:
    """The product is one tall matrix, the triangles are not."""
    function = Function("tall", "return torch.tril(x @ w)", "x: f32[batch, m, k]; w: f32[k, n]")
    task, found = _answer(function)
    for one in (found.draft, found.structures[-1]):
        check(load_structure(one, task, tmp_path), function, task, task.sizes)


_SLICES = (
    ("x[:, 1:3] + 0", "f32[rows, 2]", 3),
    ("x[:, -3:-1] + 0", "f32[rows, 2]", 3),
    ("x[:, 2:-2] + 0", "f32[rows, inner = cols - 4]", 4),
    ("x[:, x.shape[1] - 3:] + 0", "f32[rows, 3]", 3),
    ("x.select(1, -2) * 2", "f32[rows]", 2),
    ("x.roll(3, 1)", "f32[rows, cols]", 3),
    ("F.pad(x, (-2, 1))", "f32[rows, less = cols - 1]", 2),
)


@pytest.mark.parametrize(("body", "result", "least"), _SLICES)
def test_a_slice_needs_what_it_counts(body: str, result: str, least: int) -> None:
    case = Placed("sliced", f"return {body}", "x: f32[rows, cols]", result, ())
    for one in case.answer.every:
        assert f"x.shape[1] >= {least}" in one.write("sliced(x) -> y0")


_SHIFTS = ("x.shape[1] // 2", "-(x.shape[1] // 2)", "(x.shape[1] + 1) // 2", "x.shape[1] - 5")


@pytest.mark.parametrize("shift", _SHIFTS)
def test_what_is_rolled_by_a_share_of_its_size_may_have_any(shift: str, tmp_path: Path) -> None:
    case = Placed("rolled", f"return x.roll({shift}, 1)", "x: f32[rows, cols]", "f32[rows, cols]", ())
    for step in case.answer.every:
        if step.id == "loops":  # which hold some of these sizes
            continue
        op: Any = load_structure(step, case.task, tmp_path)
        for cols in (1, 2, 3, 7, 8, 12, 100):
            x = torch.randn(2, cols)
            assert torch.equal(op(x), case.function.callable(x)), (step.id, cols)


def test_too_small_a_tensor_is_declined_and_not_read_beyond(tmp_path: Path) -> None:
    case = Placed("sliced", "return x[:, 1:3] + 0", "x: f32[rows, cols]", "f32[rows, 2]", ())
    op: Any = load_structure(case.answer.draft, case.task, tmp_path)
    x = torch.randn(4, 3)
    assert torch.equal(op(x), x[:, 1:3])
    with pytest.raises(NoKernelApplies):
        op(x[:, :1].contiguous())


def test_a_slice_of_all_that_the_probes_had_needs_no_more_than_it_takes() -> None:
    case = Placed("headed", "return x[:, -199:] + 0", "x: f32[rows, cols]", "f32[rows, cols]", ())
    assert "x.shape[1] <= 199" in case.answer.structures[0].write("headed(x) -> y0")


def test_vectors_of_a_sum_of_sizes_are_counted_once(tmp_path: Path) -> None:
    case = Placed("joined", "return torch.cat((a, b))", "a: f32[rows]; b: f32[cols]", "f32[all = rows + cols]", ())
    op: Any = load_structure(structure(case, "place-vectors"), case.task, tmp_path)
    a, b = torch.randn(12), torch.randn(8)
    assert torch.equal(op(a, b), torch.cat((a, b)))


def test_a_size_that_follows_a_formula_has_a_name_in_c(tmp_path: Path) -> None:
    body = "return torch.stack((x, x), 1).chunk(2, 0)[1].clone(), x.flip(0)"
    results = "f32[half = (rows - 1) / 2, 2, cols]; f32[rows, cols]"
    case = Placed("second_half", body, "x: f32[rows, cols]", results, ())
    op: Any = load_structure(case.answer.draft, case.task, tmp_path)
    x = torch.randn(7, 5)
    assert torch.equal(op(x)[0], torch.stack((x, x), 1)[4:])


def test_elements_of_a_vector_that_are_looked_up_are_read_one_by_one(tmp_path: Path) -> None:
    inputs = "x: f32[rows, cols]; i: i64[batch, cols]"
    case = Placed("gathered_down", "return x.gather(0, i) + 1", inputs, "f32[batch, cols]", ())
    op: Any = load_structure(structure(case, "place-vectors"), case.task, tmp_path)
    x, i = torch.randn(6, 8), torch.randint(0, 6, (3, 8))
    assert torch.equal(op(x, i), x.gather(0, i) + 1)


def test_rows_side_by_side_may_be_none(tmp_path: Path) -> None:
    function = Function("down", "return x - x.amax(0)", "x: f32[rows, cols]")
    task, found = _answer(function)
    tiles = next(one for one in found.every if one.id == "column-tiles")
    assert load_structure(tiles, task, tmp_path)(torch.zeros(5, 0)).shape == (5, 0)

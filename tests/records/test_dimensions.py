"""Dimensions: their least sizes, and what is written of them."""

from __future__ import annotations

import pytest

from tilewright.records import Dimension, DType, SizeFormula, Task, TaskOutput, TensorInput, from_json, to_json


def task_with(*dimensions: Dimension) -> Task:
    x = TensorInput("x", DType.F32, tuple(one.name for one in dimensions))
    return Task("f", "def f(x): return x.sum(-1)", "f", (x,), (TaskOutput("y", DType.F32, ("rows",)),), dimensions)


def test_what_is_as_usual_is_not_written() -> None:
    assert to_json(Dimension("rows", 8)) == {
        "is": "Dimension",
        "name": "rows",
        "size": 8,
        "varies": True,
        "multiple_of": 1,
    }
    for dimension in (Dimension("rows", 8), Dimension("rows", 8, at_least=5)):
        assert from_json(Dimension, to_json(dimension)) == dimension
    assert to_json(Dimension("rows", 8, at_least=5))["at_least"] == 5


def test_a_least_size_is_part_of_a_tasks_identity() -> None:
    plain, least = task_with(Dimension("rows", 8)), task_with(Dimension("rows", 8, at_least=5))
    assert plain.hash != least.hash


def test_sizes_below_the_least_are_not_sound() -> None:
    half = Dimension("half", 4, formula=SizeFormula.parse("rows / 2"))
    task = task_with(Dimension("rows", 8, at_least=5), half)
    assert task.is_sound(task.complete({"rows": 5}))
    assert not task.is_sound(task.complete({"rows": 4}))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"size": 4, "at_least": 5}, "dimension rows: 4 is not a size of at least 5"),
        ({"size": 4, "at_least": 0}, "dimension rows: 4 is not a size of at least 0"),
        ({"size": 4, "at_least": 2, "formula": SizeFormula.parse("cols / 2")}, "give multiples and bounds"),
    ],
)
def test_least_sizes_that_cannot_be(made: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Dimension("rows", **made)  # type: ignore[arg-type]

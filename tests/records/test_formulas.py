"""Sizes that follow from others: read, written, reckoned; and what a task makes of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.records import (
    Dimension,
    DType,
    SizeFormula,
    SizeTerm,
    Task,
    TaskOutput,
    TensorInput,
    following,
    from_json,
    to_json,
)

GALLERY = Path(__file__).parents[2] / "gallery"


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("cols / 2", "cols / 2"),
        ("cols//2", "cols / 2"),
        ("2 * cols", "2 * cols"),
        ("height - kernel + 1", "height - kernel + 1"),
        ("(height - kernel + 2) / 2 + 1", "(height - kernel + 4) / 2"),
        ("heads * head_dim", "heads * head_dim"),
        ("3*cols/2", "3 * cols / 2"),
        ("5 - cols", "5 - cols"),
        ("-(a + 3) / 2 + 4 * b", "(8 * b - a - 3) / 2"),
        ("(a + b) * (a - b)", "a * a - b * b"),
        ("a / 2 / 3", "a / 6"),
        ("(2 * a + 1) / 2", "a"),
    ],
)
def test_texts(text: str, printed: str) -> None:
    formula = SizeFormula.parse(text)
    assert str(formula) == printed
    assert SizeFormula.parse(printed) == formula
    assert from_json(SizeFormula, to_json(formula)) == formula


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no formula; write names, numbers"),
        ("cols /", "is no formula; write names, numbers"),
        ("cols rows", "is no formula; write names, numbers"),
        ("(cols", "is no formula; write names, numbers"),
        ("* cols", "is no formula; write names, numbers"),
        ("cols % 2", "has '%'; a formula has names"),
        ("cols / rows", "divides by something other than a whole number"),
        ("cols / 0", "divides by something other than a whole number"),
        ("cols / 2 * 2", "divide once, last"),
        ("rows - cols / 2", "divide once, last"),
        ("2 * 3", "names no dimension"),
        ("cols - cols", "names no dimension"),
        ("*".join(f"(a{number} + b{number})" for number in range(9)), "more than 16 terms"),
        ("a" * 300, "at most 200 characters"),
        ("99999999999 * a", "too large for a size"),
    ],
)
def test_texts_that_are_no_formula(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SizeFormula.parse(text)


terms = st.builds(
    SizeTerm, st.integers(-9, 9).filter(bool), st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(tuple)
)


@given(st.lists(terms, min_size=1, max_size=4), st.integers(-20, 20), st.integers(1, 9), st.integers(1, 50))
def test_the_simplest_form_is_the_same_number_and_reads_back(
    parts: list[SizeTerm], constant: int, divisor: int, size: int
) -> None:
    sizes = {"a": size, "b": size + 3, "c": 7}
    total = constant
    for one in parts:
        product = one.coefficient
        for name in one.names:
            product *= sizes[name]
        total += product
    try:
        formula = SizeFormula.of(parts, constant, divisor)
    except ValueError:  # the terms cancel
        return
    assert formula.at(sizes) == total // divisor
    assert SizeFormula.parse(str(formula)) == formula
    assert from_json(SizeFormula, to_json(formula)) == formula


def test_what_is_not_simplest_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="not in its simplest form"):
        SizeFormula((SizeTerm(2, ("a",)),), 0, 2)
    with pytest.raises(ValueError, match="at least one term"):
        SizeFormula(())


def test_other_words_for_names() -> None:
    formula = SizeFormula.parse("(height - kernel + 4) / 2")
    assert formula.names == ("height", "kernel")
    shown = formula.text({"height": "x.shape[2]", "kernel": "w.shape[2]"})
    assert shown == "(x.shape[2] - w.shape[2] + 4) / 2"
    assert formula.renamed({"height": "a", "kernel": "b"}) == SizeFormula.parse("(a - b + 4) / 2")


def test_a_source_is_told_from_what_follows() -> None:
    assert SizeFormula.parse("2 * cols").solved("cols", 10, {}) == 5
    assert SizeFormula.parse("2 * cols").solved("cols", 11, {}) is None
    assert SizeFormula.parse("cols / 2").solved("cols", 5, {}) is None, "10 and 11 give 5"
    assert SizeFormula.parse("rows * cols").solved("cols", 12, {"rows": 4}) == 3
    assert SizeFormula.parse("cols * cols").solved("cols", 16, {}) is None


# -- in a task --


def task_with(*dimensions: Dimension) -> Task:
    inputs = (TensorInput("x", DType.F32, ("rows", "cols")), TensorInput("w", DType.F32, ("half",)))
    return Task("f", "", "f", inputs, (TaskOutput("y", DType.F32, ("rows", "half")),), dimensions)


ROWS, COLS = Dimension("rows", 8), Dimension("cols", 12, multiple_of=2)
HALF = Dimension("half", 6, formula=SizeFormula.parse("cols / 2"))


def test_sizes_are_completed_from_the_free_ones() -> None:
    task = task_with(ROWS, HALF, COLS)
    assert [one.name for one in task.free] == ["rows", "cols"]
    assert task.complete({"rows": 3, "cols": 20, "half": 99}) == {"rows": 3, "half": 10, "cols": 20}
    assert task.specs(task.complete({"rows": 3, "cols": 20}))["w"].shape == (10,)
    assert task.output_specs()["y"].shape == (8, 6)
    assert task.is_sound({"rows": 1, "cols": 2, "half": 1})
    assert not task.is_sound({"rows": 1, "cols": 1, "half": 0})
    assert from_json(Task, to_json(task)) == task


def test_sizes_found_in_a_call_agree_or_not() -> None:
    task = task_with(ROWS, COLS, HALF)
    assert task.agrees({"rows": 1, "cols": 8, "half": 4})
    assert not task.agrees({"rows": 1, "cols": 8, "half": 5})
    doubled = Task(
        "f",
        "",
        "f",
        (TensorInput("x", DType.F32, ("both",)),),
        (TaskOutput("y", DType.F32, ("n",)),),
        (Dimension("n", 4), Dimension("both", 8, formula=SizeFormula.parse("2 * n"))),
    )
    assert doubled.agrees({"both": 6})
    assert not doubled.agrees({"both": 7}), "no n gives it"


@pytest.mark.parametrize(
    ("dimension", "message"),
    [
        (replace(HALF, size=7), "half is not cols / 2"),
        (replace(HALF, varies=False), "half is not cols / 2"),
        (replace(HALF, formula=SizeFormula.parse("width / 2")), "there is no dimension width; name rows, cols"),
        (replace(HALF, formula=SizeFormula.parse("half - 1")), "half has a formula itself; name rows, cols"),
        (replace(HALF, formula=SizeFormula.parse("cols - 20")), "is -8 at cols = 12; no size is below 0"),
    ],
)
def test_dimensions_that_do_not_follow_are_refused(dimension: Dimension, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        task_with(ROWS, COLS, dimension)


def test_what_follows_varies_with_its_sources() -> None:
    fixed = following((ROWS, replace(COLS, varies=False, size=20), HALF))
    assert fixed[2] == replace(HALF, size=10, varies=False)
    with pytest.raises(ValueError, match="has a formula; give multiples"):
        replace(HALF, multiple_of=2)


def test_a_task_without_formulas_keeps_its_identity() -> None:
    """The hash is what it was before there were formulas: recorded runs and finished kernels are found by it."""
    recorded = json.loads((GALLERY / "add_rmsnorm" / "task.json").read_text())
    assert "formula" not in recorded["dimensions"][0]
    task = from_json(Task, recorded)
    assert task.hash == "32d40645063020929b4e"
    assert from_json(Task, to_json(task)) == task
    assert task_with(ROWS, COLS, HALF).hash != task_with(ROWS, COLS, Dimension("half", 6)).hash

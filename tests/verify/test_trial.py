"""Shrinking a failing case: as small as it still fails in the same way, within few runs."""

from __future__ import annotations

from dataclasses import replace

from tests.verify import tasks

from tilewright.records import Case, Dimension, Evidence, Pattern, SizeFormula, WrongOutput, WrongValues
from tilewright.verify.trial import MOST_RUNS, smallest_failing


def evidence(case: Case, pattern: Pattern = Pattern.TAIL, wrong: int = 3) -> WrongValues:
    return WrongValues(case, (WrongOutput("y", wrong, 100, pattern, "", 1.0, 0.1, 0.0, ()),))


CASE = Case({"rows": 65, "cols": 129}, 1)


def test_every_dimension_shrinks_as_far_as_it_fails() -> None:
    tried: list[Case] = []

    def attempt(case: Case) -> Evidence | None:
        tried.append(case)
        return evidence(case) if case.sizes["cols"] >= 30 else None

    found = smallest_failing(tasks.MEAN, CASE, evidence(CASE), attempt)
    assert found.case.sizes == {"rows": 1, "cols": 32}
    assert len(tried) <= MOST_RUNS


def test_another_pattern_or_a_single_element_is_not_the_same_fault() -> None:
    def attempt(case: Case) -> Evidence | None:
        if case.sizes["cols"] < 16:
            return evidence(case, Pattern.ALL)
        return evidence(case, wrong=1 if case.sizes["rows"] == 1 else 2)

    found = smallest_failing(tasks.MEAN, CASE, evidence(CASE), attempt)
    assert found.case.sizes == {"rows": 2, "cols": 16}


def test_fixed_dimensions_and_multiples_stay() -> None:
    task = replace(tasks.MEAN, dimensions=(Dimension("rows", 65, varies=False), Dimension("cols", 128, multiple_of=16)))
    case = Case({"rows": 65, "cols": 128}, 1)
    seen: list[Case] = []

    def attempt(one: Case) -> Evidence | None:
        seen.append(one)
        return None

    assert smallest_failing(task, case, evidence(case), attempt) == evidence(case)
    assert {one.sizes["rows"] for one in seen} == {65}
    assert {one.sizes["cols"] for one in seen} == {16, 32, 64}


def test_what_follows_shrinks_with_its_source() -> None:
    task = replace(
        tasks.MEAN,
        dimensions=(
            Dimension("rows", 61, formula=SizeFormula.parse("cols - 4")),
            Dimension("cols", 65),
        ),
    )
    case = Case({"rows": 61, "cols": 65}, 1)
    seen: list[Case] = []

    def attempt(one: Case) -> Evidence | None:
        seen.append(one)
        return evidence(one) if one.sizes["cols"] >= 16 else None

    found = smallest_failing(task, case, evidence(case), attempt)
    assert found.case.sizes == {"rows": 12, "cols": 16}
    assert [one.sizes["cols"] for one in seen] == [8, 16], "at 1 and 2 there would be no rows"

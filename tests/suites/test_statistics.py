"""The figures of a suite, held against values worked out by hand."""

from __future__ import annotations

import pytest
from tests.suites.made_records import RECORDS, made, measured

from tilewright.suites import summarise
from tilewright.suites.figures import BETTER, COMPILED, EAGER, geometric_mean, speedup


def test_the_figures_of_eight_tasks_of_which_six_are_done() -> None:
    summary = summarise(RECORDS, tasks=8)
    assert summary.counts == {
        "made": 4,
        "none-passed": 1,
        "unsupported": 1,
        "refused": 0,
        "failed": 0,
        "waiting": 2,
    }
    assert summary.verified == 3
    eager, compiled, better = summary.against
    assert (eager.name, compiled.name, better.name) == (EAGER, COMPILED, BETTER)
    assert eager.compared == 3
    assert eager.arithmetic_mean == pytest.approx((4 + 0.5 + 2) / 3)
    assert eager.geometric_mean == pytest.approx(4 ** (1 / 3))
    assert eager.fast == ((0.0, 4 / 8), (1.0, 2 / 8), (1.5, 2 / 8), (2.0, 1 / 8)), "2x is not more than 2x"
    assert eager.slower == ("2_b",)
    assert (compiled.compared, compiled.fast) == (2, ((0.0, 4 / 8), (1.0, 1 / 8), (1.5, 1 / 8), (2.0, 0.0)))
    assert compiled.geometric_mean == pytest.approx(2**0.5)
    assert (better.compared, better.arithmetic_mean) == (2, pytest.approx(0.75))
    assert better.slower == ("2_b",)
    assert summary.roofline_median == pytest.approx(0.5)
    assert summary.roofline_geometric_mean == pytest.approx((0.8 * 0.5 * 0.2) ** (1 / 3))
    assert summary.seconds == pytest.approx(50.0)


def test_a_baseline_that_was_never_timed_has_no_figures() -> None:
    summary = summarise((made("1", "a", measured(2.0, 4.0, None, 1.0)),), tasks=1)
    assert [one.name for one in summary.against] == [EAGER]
    assert summary.roofline_median == pytest.approx(0.5)


def test_nothing_measured_is_no_figure() -> None:
    summary = summarise((made("4", "4_d", None),), tasks=1)
    assert summary.against == ()
    assert summary.roofline_median is None
    assert geometric_mean(()) is None


def test_the_better_of_two_needs_both() -> None:
    assert speedup(made("1", "a", measured(2.0, 4.0, None, 1.0)), BETTER) is None
    assert speedup(made("1", "a", measured(2.0, 4.0, 3.0, 1.0)), BETTER) == pytest.approx(1.5)

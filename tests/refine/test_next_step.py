"""The decisions of the loop: from a run on record to its next step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.refine.runs import GOOD, NOTHING, UNREADABLE, WRONG, attempt, duplicate, not_built, run_of

from tilewright.records import Budget, Ending, Settings, Stage, Usage
from tilewright.refine import Step, next_step


def stage_of(step: Step | Ending) -> Stage:
    assert isinstance(step, Step), step
    return step.stage


def test_a_run_begins_with_a_draft() -> None:
    assert next_step(run_of()) == Step(Stage.DRAFT, 1)


@pytest.mark.parametrize(
    ("verdict", "stage"),
    [(not_built(), Stage.REPAIR_BUILD), (WRONG, Stage.REPAIR_WRONG)],
)
def test_a_failed_draft_is_repaired_by_its_kind(verdict: object, stage: Stage) -> None:
    first = attempt(1, Stage.DRAFT, verdict)
    step = next_step(run_of(first))
    assert isinstance(step, Step)
    assert (step.stage, step.failing) == (stage, first)


def test_repairs_end_and_a_new_draft_begins() -> None:
    attempts = [attempt(1, Stage.DRAFT, WRONG), *(attempt(n, Stage.REPAIR_WRONG, WRONG) for n in range(2, 6))]
    assert next_step(run_of(*attempts)) == Step(Stage.DRAFT, 6)
    assert stage_of(next_step(run_of(*attempts[:-1]))) is Stage.REPAIR_WRONG


def test_a_step_from_a_right_kernel_gets_two_repairs_then_reverts() -> None:
    attempts = [
        attempt(1, Stage.DRAFT, GOOD, 100.0),
        attempt(2, Stage.STRUCTURE, WRONG),
        attempt(3, Stage.REPAIR_WRONG, not_built()),
        attempt(4, Stage.REPAIR_BUILD, WRONG),
    ]
    assert stage_of(next_step(run_of(*attempts[:3]))) is Stage.REPAIR_BUILD
    reverted = next_step(run_of(*attempts))
    assert reverted == Step(Stage.STRUCTURE, 5)


@pytest.mark.parametrize("verdict", [UNREADABLE, duplicate(1)])
def test_what_has_no_text_to_mend_is_not_repaired(verdict: object) -> None:
    attempts = [attempt(1, Stage.DRAFT, GOOD, 100.0), attempt(2, Stage.STRUCTURE, verdict)]
    assert stage_of(next_step(run_of(*attempts))) is Stage.STRUCTURE


def test_profiling_starts_when_structure_has_stopped_paying_and_stays() -> None:
    attempts = [
        attempt(1, Stage.DRAFT, GOOD, 100.0),
        attempt(2, Stage.STRUCTURE, GOOD, 80.0),
        attempt(3, Stage.STRUCTURE, GOOD, 90.0),
        attempt(4, Stage.STRUCTURE, GOOD, 79.9),  # within a fifth of a percent
        attempt(5, Stage.PROFILED, GOOD, 60.0),
        attempt(6, Stage.PROFILED, GOOD, 61.0),
        attempt(7, Stage.PROFILED, GOOD, 62.0),
    ]
    stages = [stage_of(next_step(run_of(*attempts[:n]))) for n in range(1, 7)]
    assert stages == [Stage.STRUCTURE] * 3 + [Stage.PROFILED] * 3
    assert next_step(run_of(*attempts)) is Ending.SETTLED


def test_the_parent_is_the_best_beyond_noise() -> None:
    run = run_of(
        attempt(1, Stage.DRAFT, GOOD, 100.0),
        attempt(2, Stage.STRUCTURE, GOOD, 99.9),
        attempt(3, Stage.STRUCTURE, WRONG),
    )
    assert run.best is not None
    assert run.best.number == 1


def test_a_hint_reopens_a_settled_run() -> None:
    attempts = [
        attempt(1, Stage.DRAFT, GOOD, 100.0),
        *(attempt(n, Stage.STRUCTURE, GOOD, 101.0) for n in (2, 3)),
        *(attempt(n, Stage.PROFILED, GOOD, 101.0) for n in (4, 5)),
    ]
    settled = run_of(*attempts)
    assert next_step(settled) is Ending.SETTLED
    hinted = replace(settled, settings=replace(settled.settings, hints=((5, "one warp per row"),)))
    assert stage_of(next_step(hinted)) is Stage.STRUCTURE


def test_near_the_roofline_the_run_ends_unless_the_person_asks_for_more() -> None:
    done = run_of(attempt(1, Stage.DRAFT, GOOD, 10.2))
    assert next_step(done) is Ending.GOOD_ENOUGH
    hinted = replace(done, settings=replace(done.settings, hints=((1, "use wider loads"),)))
    assert stage_of(next_step(hinted)) is Stage.STRUCTURE


def test_candidates_of_a_step_share_its_number() -> None:
    settings = Settings("playbook", candidates=2)
    first = attempt(1, Stage.DRAFT, WRONG)
    assert next_step(run_of(first, settings=settings)) == Step(Stage.DRAFT, 1, candidate=1)
    second = replace(attempt(2, Stage.DRAFT, GOOD, 100.0), step=1)
    assert next_step(run_of(first, second, settings=settings)) == Step(Stage.STRUCTURE, 2)


@pytest.mark.parametrize(
    ("budget", "ending"),
    [
        (Budget(attempts=1), Ending.ATTEMPTS),
        (Budget(tokens=150), Ending.TOKENS),
        (Budget(dollars=0.5), Ending.DOLLARS),
        (Budget(dollars=0.0), Ending.DOLLARS),
        (Budget(seconds=3.0), Ending.SECONDS),
    ],
)
def test_each_budget_ends_the_run(budget: Budget, ending: Ending) -> None:
    spent = replace(attempt(1, Stage.DRAFT, WRONG), usage=Usage(100, 60), dollars=0.6, seconds=4.0)
    run = run_of(spent, settings=Settings("relay:x", budget))
    assert next_step(run) is ending


def test_three_unreadable_replies_in_a_row_end_the_run() -> None:
    attempts = [attempt(n, Stage.DRAFT, UNREADABLE) for n in (1, 2, 3)]
    assert stage_of(next_step(run_of(*attempts[:2]))) is Stage.DRAFT
    assert next_step(run_of(*attempts)) is Ending.UNREADABLE


def test_an_author_that_sees_nothing_better_is_shown_a_profile_and_then_asked_no_more() -> None:
    attempts = [
        attempt(1, Stage.DRAFT, GOOD, 100.0),
        attempt(2, Stage.STRUCTURE, NOTHING),
        attempt(3, Stage.PROFILED, NOTHING),
    ]
    assert next_step(run_of(*attempts[:2])) == Step(Stage.PROFILED, 3)
    assert next_step(run_of(*attempts)) is Ending.AUTHOR_DONE
    gained = attempt(3, Stage.PROFILED, GOOD, 50.0)
    assert next_step(run_of(*attempts[:2], gained)) == Step(Stage.PROFILED, 4)
    hinted = replace(Settings("playbook"), hints=((3, "try tensor cores"),))
    assert next_step(run_of(*attempts, settings=hinted)) == Step(Stage.STRUCTURE, 4)


def test_time_of_attempts_that_were_cut_short_counts() -> None:
    """So a process that was killed between the note of it and the run's end leaves a run that ends when it goes on."""
    settings = Settings("scripted", Budget(seconds=10.0))
    made = replace(attempt(1, Stage.DRAFT, WRONG), seconds=4.0)
    run = replace(run_of(made, settings=settings), cut_short=((2, 6.5),))
    assert run.seconds == pytest.approx(10.5)
    assert next_step(run) is Ending.SECONDS
    assert run.begun == 2

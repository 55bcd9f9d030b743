"""The loop on real candidates: built, emulated, judged, modelled, put on record."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.refine import candidates
from tests.refine.runs import ENVIRONMENT, TASK
from tests.refine.silent import Silent
from tests.tasks.in_process import HereReference

from tilewright.authors import Author
from tilewright.authors.playbook_author import PlaybookAuthor
from tilewright.devices.child_device import EmulatedDevice
from tilewright.kernel_file import Choice, KernelFile
from tilewright.measure import Stopwatch
from tilewright.prompts.verdict_text import verdict_text
from tilewright.records import (
    Attempt,
    Budget,
    Crashed,
    Duplicate,
    Ending,
    JudgedAnswer,
    Measured,
    Measurement,
    Message,
    NotBuilt,
    NotFaster,
    Proposal,
    Question,
    Rejected,
    Reply,
    Role,
    Run,
    Settings,
    Situation,
    Specification,
    Stage,
    StopReason,
    Timing,
    Unstable,
    Verdict,
    WrongValues,
)
from tilewright.refine import RunContext, refine
from tilewright.store import RunFolder, Store
from tilewright.verify import Referee
from tilewright.verify.referee import SkipIfSlower


class Scripted:
    """An author that proposes the given files in order, and remembers what it was told."""

    name = "scripted"
    reads_evidence = True

    def __init__(self, texts: Sequence[str | None]) -> None:
        self.texts = list(texts)
        self.told: list[Situation] = []

    def specify(self, *_: object) -> Specification:
        raise AssertionError("nobody asked in words")

    def propose(self, situation: Situation, ask: object) -> Proposal | None:
        self.told.append(situation)
        if situation.number > len(self.texts):
            return None
        text = self.texts[situation.number - 1]
        return Proposal(text, f"candidate {situation.number}", "" if text else "no code block")


def no_model(question: Question, on_text: object) -> Reply:
    raise AssertionError("this author asks no model")


@pytest.fixture(scope="module")
def bench() -> Iterator[tuple[Referee, Stopwatch]]:
    with (
        HereReference(TASK.reference, TASK.function) as reference,
        EmulatedDevice(TASK.profile) as emulator,
        Referee(TASK, reference, emulator=emulator) as referee,
        Stopwatch(TASK, reference, emulator=emulator) as stopwatch,
    ):
        yield referee, stopwatch


def carried_out(
    home: Path, bench: tuple[Referee, Stopwatch], author: Author, settings: Settings
) -> tuple[Run, RunFolder]:
    folder = Store(home).create_run(TASK, settings, ENVIRONMENT)
    return refine(folder, RunContext(author, no_model, *bench, Silent())), folder


class Timed(Stopwatch):
    """Says of every kernel that it was measured, and that a timed call answered otherwise."""

    def measure(
        self,
        file: KernelFile,
        choice: Choice | None = None,
        answer: JudgedAnswer | None = None,
        best_us: float | None = None,
    ) -> Measurement:
        timing = Timing("kernel", (1000.0,))
        return Measured("H200", TASK.sizes, timing, (), 1.0, answered_otherwise="timed call 3 of round 1")


def test_a_kernel_that_answers_otherwise_when_it_is_timed_is_rejected(
    tmp_path: Path, bench: tuple[Referee, Stopwatch]
) -> None:
    with EmulatedDevice(TASK.profile) as emulator, HereReference(TASK.reference, TASK.function) as reference:
        timed = Timed(TASK, reference, emulator=emulator)
        run, _ = carried_out(tmp_path, (bench[0], timed), Scripted([candidates.SIMPLE]), Settings("scripted"))
    unstable = evidence(run.attempts[0])
    assert isinstance(unstable, Unstable)
    assert unstable.outputs == ("y",)
    assert run.best is None
    assert "when it was timed (timed call 3 of round 1)" in verdict_text(run.attempts[0].verdict)


class Untimed(Timed):
    """Has no time of any kernel."""

    def measure(self, *_: object) -> None:  # type: ignore[override]
        self.unmeasured = "at these sizes it takes too long"


def test_why_a_kernel_that_passed_has_no_time_is_on_record(tmp_path: Path, bench: tuple[Referee, Stopwatch]) -> None:
    with EmulatedDevice(TASK.profile) as emulator, HereReference(TASK.reference, TASK.function) as reference:
        untimed = Untimed(TASK, reference, emulator=emulator)
        run, folder = carried_out(tmp_path, (bench[0], untimed), Scripted([candidates.SIMPLE]), Settings("scripted"))
    assert run.best is not None
    assert run.best.unmeasured == "at these sizes it takes too long"
    assert folder.load() == run


class Measuring(Timed):
    """Says of every kernel that it was measured at 1000 us, and of one beside it that it takes longer."""

    scatters = True  # type: ignore[assignment]

    def measure(self, *_: object) -> Measurement:
        return Measured("H200", TASK.sizes, Timing("kernel", (1000.0,)), (), 1.0)

    def times_us(self, file: KernelFile, choice: Choice | None, runs: int) -> tuple[float, ...]:
        return (3000.0,) * runs


class AsOnGpu(Referee):
    """Asks, as one with a GPU does, before it says that a kernel is right."""

    def judge(
        self, file: KernelFile | str, choice: Choice | None = None, *, skip_if_slower: SkipIfSlower | None = None
    ) -> Verdict:
        vain = skip_if_slower() if skip_if_slower is not None else None
        return Rejected(vain) if vain is not None else super().judge(file, choice)


def test_what_is_slower_than_the_best_is_on_record_as_that_and_not_repaired(tmp_path: Path) -> None:
    with EmulatedDevice(TASK.profile) as emulator, HereReference(TASK.reference, TASK.function) as reference:
        pair = (AsOnGpu(TASK, reference, emulator=emulator), Measuring(TASK, reference, emulator=emulator))
        author = Scripted([candidates.SIMPLE, candidates.STRIDED])
        run, folder = carried_out(tmp_path, pair, author, Settings("scripted", good_enough=2.0))
    assert run.best is not None
    assert run.best.number == 1
    assert evidence(run.attempts[1]) == NotFaster(3000.0, 1000.0, 1)
    assert not author.told[2].stage.is_repair
    assert "attempt #1 1,000 us" in verdict_text(run.attempts[1].verdict)
    assert folder.load() == run


def evidence(attempt: Attempt) -> object:
    assert isinstance(attempt.verdict, Rejected)
    return attempt.verdict.evidence


def test_a_run_of_every_kind_of_candidate_ends_with_the_best_good_one(
    tmp_path: Path, bench: tuple[Referee, Stopwatch]
) -> None:
    author = Scripted(
        [
            candidates.NOT_COMPILING,
            candidates.NOT_A_PLAN,
            candidates.STRIDED,
            candidates.WRONG,
            candidates.HANGING,
            candidates.CRASHING,
            candidates.SIMPLE,
            candidates.MEMORY_EATING,
            candidates.SCRATCH_EATING,
            None,
            candidates.WRONG,
        ]
    )
    budget = Budget(attempts=30, seconds=600.0)
    settings = Settings("scripted", budget, structure_patience=9, profiled_patience=9, good_enough=2.0)
    run, folder = carried_out(tmp_path, bench, author, settings)

    reasons = [one.verdict.reason if isinstance(one.verdict, Rejected) else "passed" for one in run.attempts]
    assert reasons == [
        "not built",
        "plan refused",
        "passed",
        "wrong values",
        "ran too long",
        "out of bounds",
        "passed",
        "not built",
        reasons[8],  # refused by its plan's limits or at the launch
        "no usable reply",
        "seen before",
    ]
    assert reasons[8] in ("declines the task", "crashed", "plan refused")
    assert run.ending is Ending.AUTHOR_DONE
    assert run.best is not None
    assert run.best.number == 7
    assert folder.attempt(7).text("kernel.cu") == candidates.SIMPLE

    build = evidence(run.attempts[0])
    assert isinstance(build, NotBuilt)
    assert "twice_of" in build.diagnostics[0].message
    wrong = evidence(run.attempts[3])
    assert isinstance(wrong, WrongValues)
    assert wrong.outputs[0].output == "y"
    assert wrong.outputs[0].wrong < wrong.outputs[0].elements
    crash = evidence(run.attempts[5])
    assert isinstance(crash, Crashed)
    assert crash.findings
    assert evidence(run.attempts[10]) == Duplicate(4)

    stages = [one.stage for one in run.attempts]
    assert stages[:4] == [Stage.DRAFT, Stage.REPAIR_BUILD, Stage.REPAIR_BUILD, Stage.STRUCTURE]
    assert stages[4:6] == [Stage.REPAIR_WRONG, Stage.REPAIR_CRASH]
    repair = author.told[4]
    assert (repair.failing_text, repair.parent_text) == (candidates.WRONG, candidates.STRIDED)
    assert folder.load() == run


def test_the_faster_of_two_right_kernels_is_kept_and_the_slower_reverted(
    tmp_path: Path, bench: tuple[Referee, Stopwatch]
) -> None:
    author = Scripted([candidates.SIMPLE, candidates.STRIDED])
    run, _ = carried_out(tmp_path, bench, author, Settings("scripted", good_enough=2.0))
    assert [one.passed for one in run.attempts] == [True, True]
    times = [one.time_us for one in run.attempts]
    assert times[0] is not None
    assert times[1] is not None
    assert times[0] < times[1]
    assert run.best is not None
    assert run.best.number == 1
    assert author.told[2].parent_text == candidates.SIMPLE


def test_a_run_starts_from_a_given_file(tmp_path: Path, bench: tuple[Referee, Stopwatch]) -> None:
    author = Scripted(["", candidates.SIMPLE])
    settings = Settings("scripted", good_enough=2.0, start=candidates.STRIDED)
    run, folder = carried_out(tmp_path, bench, author, settings)
    assert folder.attempt(1).text("kernel.cu") == candidates.STRIDED
    assert run.attempts[0].replies == 0
    assert author.told[0].stage is Stage.STRUCTURE
    assert run.best is not None
    assert run.best.number == 2


@pytest.mark.slow
@pytest.mark.parametrize("start", [candidates.WRONG, candidates.NOT_A_PLAN], ids=["wrong values", "no plan"])
def test_where_a_given_file_fails_the_playbook_goes_on_with_its_own(
    start: str, tmp_path: Path, bench: tuple[Referee, Stopwatch]
) -> None:
    settings = Settings("playbook", Budget(attempts=3), good_enough=2.0, start=start)
    run, _ = carried_out(tmp_path, bench, PlaybookAuthor(), settings)
    assert [one.stage for one in run.attempts[:3]] == [Stage.DRAFT, Stage.DRAFT, Stage.STRUCTURE]
    assert [one.passed for one in run.attempts[:3]] == [False, True, True]
    assert run.attempts[1].summary == (
        "baseline: one launch, loops fused by what they save; the playbook repairs no file but its own, so this is one"
    )
    assert "the playbook repairs" not in run.attempts[2].summary


def test_an_author_without_a_repair_goes_on_with_its_next_structure(
    tmp_path: Path, bench: tuple[Referee, Stopwatch]
) -> None:
    class NeverRepairs(Scripted):
        def propose(self, situation: Situation, ask: object) -> Proposal | None:
            return None if situation.stage.is_repair else super().propose(situation, ask)

    author = NeverRepairs([candidates.SIMPLE, candidates.WRONG, candidates.STRIDED])
    run, _ = carried_out(tmp_path, bench, author, Settings("scripted", good_enough=2.0, stop_at_bound=False))
    assert [one.stage for one in run.attempts] == [Stage.DRAFT, Stage.STRUCTURE, Stage.STRUCTURE]
    assert run.ending is Ending.AUTHOR_DONE


@pytest.mark.slow
def test_profiler_evidence_is_shown_in_the_last_stage_only(tmp_path: Path, bench: tuple[Referee, Stopwatch]) -> None:
    slower = [candidates.STRIDED + f"// variant {n}\n" for n in range(4)]
    author = Scripted([candidates.SIMPLE, *slower])
    run, _ = carried_out(tmp_path, bench, author, Settings("scripted", good_enough=2.0))
    by_stage = {one.stage: one.evidence for one in author.told}
    assert not by_stage[Stage.DRAFT]
    assert not by_stage[Stage.STRUCTURE]
    assert "twice" in by_stage[Stage.PROFILED]
    assert run.ending is Ending.SETTLED
    assert [one.stage for one in run.attempts] == [Stage.DRAFT, *[Stage.STRUCTURE] * 2, *[Stage.PROFILED] * 2]


class Sleepy(Scripted):
    """An author that a person is: what it waits for is no work."""

    def propose(self, situation: Situation, ask: Any) -> Proposal | None:
        reply = ask(Question("0001-1", "", (Message(Role.USER, "?"),), 100))
        assert reply.by_person
        return super().propose(situation, ask)


class SlowPerson:
    """Takes an hour over each reply, on a clock that says so."""

    def __init__(self) -> None:
        self.hours = 0

    def monotonic(self) -> float:
        return time.monotonic() + 3600.0 * self.hours

    def __call__(self, question: Question, on_text: object) -> Reply:
        self.hours += 1
        return Reply("relay:x", "", StopReason.END, by_person=True)


def test_the_budget_of_seconds_ends_the_attempt_under_way_which_goes_on_when_the_run_does(
    tmp_path: Path, bench: tuple[Referee, Stopwatch]
) -> None:
    settings = Settings("scripted", Budget(seconds=0.05))
    run, folder = carried_out(tmp_path, bench, Scripted([candidates.SIMPLE]), settings)
    assert (run.ending, run.attempts, run.begun) == (Ending.SECONDS, (), 1)
    assert run.seconds > 0.05
    assert "attempt 1 was cut short" in run.ending_words
    assert folder.attempt(1).text("kernel.cu") == candidates.SIMPLE

    spent = run.seconds
    folder.reopen(replace(settings, budget=Budget(attempts=1, seconds=spent + 600.0)))
    resumed = refine(folder, RunContext(Scripted([candidates.SIMPLE]), no_model, *bench, Silent()))
    assert [one.passed for one in resumed.attempts] == [True]
    assert (resumed.ending, resumed.begun) == (Ending.ATTEMPTS, None)
    assert resumed.seconds == pytest.approx(spent + resumed.attempts[0].seconds)


def test_waiting_for_a_person_is_not_cut_short(
    tmp_path: Path, bench: tuple[Referee, Stopwatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Store(tmp_path).create_run(TASK, Settings("relay:x", Budget(seconds=600.0)), ENVIRONMENT)
    author, person = Sleepy([candidates.NOT_A_PLAN]), SlowPerson()
    monkeypatch.setattr("tilewright.refine.time", person)
    run = refine(folder, RunContext(author, person, *bench, Silent()))
    assert person.hours >= 1
    assert len(run.attempts) >= 1
    assert run.attempts[0].seconds < 600.0

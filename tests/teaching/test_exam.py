"""An exam: pairs by task, held-out tasks enforced, the skill before one sitting of each pair and not the other."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from tests.frontends.in_process import tilewright
from tests.frontends.recordings import RIGHT, SOURCE, WRONG, record
from tests.teaching.made_runs import EARLIER

from tilewright.frontends.report.rendering import markdown
from tilewright.frontends.report.suite import exam_report
from tilewright.prompts.question import system_text
from tilewright.records import Budget, Modelled
from tilewright.store import RunFolder, Store
from tilewright.teaching.exam import (
    ATTEMPTS,
    MOST_SKILL_CHARACTERS,
    PASS_RATE,
    SPEED,
    TOKENS,
    Arm,
    Exam,
    Sitting,
    figures_of,
    skill_text,
    taught_before,
)
from tilewright.teaching.lessons import cleaner, lessons_of
from tilewright.teaching.skill import NoSkill, SkillProvenance

BUDGET = Budget(attempts=4)


def sitting(task: str, arm: Arm, right_after: int | None, tokens: int, time_us: float | None = None) -> Sitting:
    time = Modelled("H200", {}, (), time_us, 1.0, 1.0, 0, 1, 1, 1) if time_us else None
    return Sitting("a:b", arm, task, right_after is not None, right_after, 4, tokens, 0.0, time, "run", "made")


def pairs(count: int) -> list[Sitting]:
    """Without: wrong, or right at the third attempt in 8 us; with: right at the first in 4 us."""
    without = [
        sitting(f"t{i}", Arm.WITHOUT, None if i % 2 else 3, 1000 + i, None if i % 2 else 8.0) for i in range(count)
    ]
    return [*without, *(sitting(f"t{i}", Arm.WITH, 1, 1500, 4.0) for i in range(count))]


def test_figures_are_of_pairs() -> None:
    odd = [sitting("alone", Arm.WITH, None, 10**9), sitting("stopped", Arm.WITHOUT, 1, 5)]
    odd.append(replace(sitting("stopped", Arm.WITH, None, 0), fault="no reply"))
    found = {one.name: one for one in figures_of("a:b", [*pairs(6), *odd], BUDGET)}
    rate, attempts, tokens, speed = (found[name] for name in (PASS_RATE, ATTEMPTS, TOKENS, SPEED))
    assert (rate.pairs, rate.without, rate.with_skill, rate.change) == (6, 0.5, 1.0, 0.5)
    assert (attempts.without, attempts.with_skill) == (4.0, 1.0)  # a task that is never right counts five
    assert tokens.change == 497.5
    assert (speed.pairs, round(speed.change, 6)) == (3, 2.0)
    assert tokens.interval is not None
    assert 495.0 < tokens.interval.low < 497.5 < tokens.interval.high <= 500.0
    assert tokens.is_clear
    assert not speed.is_clear, "of three pairs nothing is clear"
    assert rate.interval is not None
    assert 0.0 <= rate.interval.low < 0.5 < rate.interval.high <= 1.0


def test_nothing_changes_between_equals() -> None:
    same = [sitting(f"t{i}", arm, 1, 100 * i, 3.0 + i) for i in range(8) for arm in Arm]
    for one in figures_of("a:b", same, BUDGET):
        assert not one.is_clear
        assert math.isclose(one.change, 1.0 if one.name == SPEED else 0.0)
    assert figures_of("a:b", [sitting("t", Arm.WITH, 1, 1)], BUDGET) == ()


def test_the_report_says_what_was_found_and_what_was_not_held() -> None:
    sittings = (*pairs(2), replace(sitting("t9", Arm.WITH, None, 0), fault="the service | failed"))
    figures = {"a:b": figures_of("a:b", sittings, BUDGET)}
    exam = Exam("norms", True, ("a:b",), ("t0", "t1"), BUDGET, "H200 (emulated)", True, "", "0", sittings, figures)
    text = markdown(exam_report(exam), None)
    assert "| pass rate | 2 | 50% | 100% | +50 points |" in text
    assert "the intervals say little" in text
    assert "not held: the service \\| failed" in text
    assert "held out: none" in text
    assert "Nobody knows" in markdown(exam_report(replace(exam, held_out=False)), None)


def test_what_a_student_is_told(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "a.cu").write_text("// kernel a")
    (tmp_path / "examples" / "long.cu").write_text("x" * MOST_SKILL_CHARACTERS)
    links = "[a](examples/a.cu) [long](examples/long.cu) [out](../outside.md) [none](none.md)"
    (tmp_path.parent / "outside.md").write_text("outside")
    (tmp_path / "SKILL.md").write_text(f"---\nname: x\ndescription: y\n---\n\n# Do this\n\n{links}\n")
    text = skill_text(tmp_path)
    assert text.startswith("# Do this")
    assert "// kernel a" in text
    assert "outside\n" not in text
    assert len(text) < 1000
    task = RunFolder(EARLIER).load().task
    plain, taught = system_text(task), system_text(task, skill=text)
    assert taught.replace(f"\n\n# What others learned\n\n{text}", "") == plain
    (tmp_path / "SKILL.md").write_text("---\nname: x\n---\n")
    with pytest.raises(NoSkill, match="says nothing"):
        skill_text(tmp_path)


def test_a_task_the_skill_was_made_of_is_known_at_any_size() -> None:
    task = RunFolder(EARLIER).load().task
    provenance = SkillProvenance("x", "", "", "", lessons_of([RunFolder(EARLIER)], cleaner()).runs)
    assert taught_before(task, provenance) == EARLIER.name
    larger = replace(task, dimensions=tuple(replace(one, size=one.size * 2) for one in task.dimensions))
    assert larger.hash != task.hash
    assert taught_before(larger, provenance) == EARLIER.name
    assert taught_before(replace(task, reference=task.reference.replace("3", "4")), provenance) == ""


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "SKILL.md").write_text("# Do this")
    (tmp_path / "student").mkdir()
    student = ("--model", f"replay:{tmp_path / 'student'}")
    for arguments, said in (
        ((tmp_path, "--tasks", tmp_path), "the playbook reads no skill"),
        ((tmp_path, "--tasks", tmp_path, *student, *student), "named twice"),
        ((tmp_path / "student", "--tasks", tmp_path, *student), "no SKILL.md"),
        ((tmp_path, "--tasks", tmp_path, *student), "no suite.toml"),
        ((tmp_path, "--tasks", tmp_path, "--model", "anthropic:claude-sonnet-5"), "needs a key"),
    ):
        done = tilewright(tmp_path, "exam", *arguments)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr


@pytest.mark.slow
def test_an_exam_from_its_tasks_to_its_report(tmp_path: Path) -> None:
    """A student that is wrong without the skill and right with it; then the same command again, which asks nobody."""
    (tmp_path / "ops.py").write_text(SOURCE)
    (tmp_path / "suite.toml").write_text(
        '[[task]]\nname = "silu"\nrequest = "ops.py:scaled_silu"\nshape.x = "64:f32"\n'
    )
    student = tmp_path / "student"
    record(student / "without" / "silu", ("0001-1", WRONG))
    record(student / "with" / "silu", ("0001-1", RIGHT))
    skill = tmp_path / "skill"
    assert tilewright(tmp_path, "teach", EARLIER, "-o", skill).returncode == 0
    command = ("exam", skill, "--tasks", tmp_path, "--model", f"replay:{student}", "--attempts", 1, "--gpu", "H200")
    done = tilewright(tmp_path, *command, "-o", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [(one["arm"], one["passed"]) for one in report["sittings"]] == [("without", False), ("with", True)]
    assert report["students"] == ["replay:student"]
    assert str(tmp_path) not in (tmp_path / "out" / "report.md").read_text()
    asked = [Store(tmp_path).open_run(one["run"]).attempt(1).question_texts()[0] for one in report["sittings"]]
    assert ["What others learned" in one for one in asked] == [False, True]
    for path in student.rglob("reply-*"):
        path.unlink()
    again = tilewright(tmp_path, *command, "-o", tmp_path / "out", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["sittings"] == report["sittings"]
    assert tilewright(tmp_path, "teach", report["sittings"][1]["run"], "-o", tmp_path / "taught").returncode == 0
    refused = tilewright(tmp_path, "exam", tmp_path / "taught", *command[2:])
    assert (refused.returncode, "not held out" in refused.stderr) == (2, True), refused.stderr

"""An exam: the same students on the same held-out tasks, with a skill and without, by what they really write.

A sitting is one student, one task, with the skill or without. What is compared is compared by task: a student's two
sittings of a task are a pair, and intervals come from drawing tasks with replacement, so the difficulty of tasks is no
noise. Where a sitting was kept from being held by a fault, its pair is left out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tilewright.records import CONFIDENCE, Budget, Interval, Measurement, Run, Task, mean_interval
from tilewright.teaching.lessons import reference_hash
from tilewright.teaching.skill import LINK, NoSkill, SkillProvenance

FEWEST_PAIRS = 6  # that agree in sign by chance in fewer than one of twenty exams
MOST_SKILL_CHARACTERS = 60_000  # about 15,000 tokens, of every question


class Arm(str, Enum):
    WITHOUT = "without"
    WITH = "with"


@dataclass(frozen=True)
class Sitting:
    """One student at one task."""

    student: str
    arm: Arm
    task: str
    passed: bool  # a kernel was verified
    right_after: int | None  # attempts to the first kernel that was verified
    attempts: int
    tokens: int
    dollars: float | None
    measurement: Measurement | None  # of the best kernel
    run: str
    verdict: str  # in words
    fault: str = ""  # why it could not be held

    @property
    def time_us(self) -> float | None:
        return self.measurement.time_us if self.measurement and self.passed else None


@dataclass(frozen=True)
class Figure:
    """One figure of a student, with the skill and without. `change` is a difference, or for speed a ratio."""

    name: str
    pairs: int
    without: float
    with_skill: float
    change: float
    interval: Interval | None  # None where there are fewer than two pairs

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out that nothing has changed. Of fewer pairs it does so by chance too often."""
        same = 1.0 if self.name == SPEED else 0.0
        return (
            self.interval is not None
            and self.pairs >= FEWEST_PAIRS
            and not self.interval.low <= same <= self.interval.high
        )


PASS_RATE, ATTEMPTS, TOKENS, SPEED = "pass rate", "attempts to the first right kernel", "tokens", "speed"


@dataclass(frozen=True)
class Exam:
    """What was asked of whom, and what came of it."""

    skill: str
    held_out: bool  # by the skill's record of its runs; False where it has none
    students: tuple[str, ...]
    tasks: tuple[str, ...]
    budget: Budget
    device: str
    emulated: bool
    created: str
    tilewright: str
    sittings: tuple[Sitting, ...]
    figures: dict[str, tuple[Figure, ...]]  # by student
    confidence: float = CONFIDENCE


# -- before --


def skill_text(folder: Path) -> str:
    """What a student gets: the body of SKILL.md, then the files it links to, as far as there is room."""
    path = folder / "SKILL.md"
    if not path.is_file():
        raise NoSkill(f"{folder}: it has no SKILL.md; give a skill's folder")
    text = path.read_text("utf-8", "replace")
    body = text.split("\n---", 1)[1].partition("\n")[2].strip() if text.startswith("---") and "\n---" in text else text
    if not body:
        raise NoSkill(f"{path}: it says nothing; an exam on it would compare a student with itself")
    parts, left = [body[:MOST_SKILL_CHARACTERS]], MOST_SKILL_CHARACTERS - len(body)
    for name in dict.fromkeys(LINK.findall(body)):
        file = (folder / name).resolve()
        if not file.is_file() or folder.resolve() not in file.parents or file.suffix not in (".md", ".cu", ".py"):
            continue
        part = f"## {name}\n\n````\n{file.read_text('utf-8', 'replace').rstrip()}\n````"
        if len(part) <= left:
            parts.append(part)
            left -= len(part)
    return "\n\n".join(parts)


def taught_before(task: Task, provenance: SkillProvenance) -> str:
    """The run by which the skill knows a task, at whatever sizes; "" where the task is held out."""
    known = (one for one in provenance.runs if task.hash == one.task_hash or reference_hash(task) == one.reference_hash)
    return next((one.run for one in known), "")


# -- after --


def sitting_of(student: str, arm: Arm, task: str, run: Run, verdict: str) -> Sitting:
    """A run that has ended as a sitting."""
    best = run.best
    usage = run.usage
    return Sitting(
        student,
        arm,
        task,
        passed=best is not None and not best.is_provisional,
        right_after=next((one.number for one in run.attempts if one.passed and not one.is_provisional), None),
        attempts=len(run.attempts),
        tokens=usage.tokens,
        dollars=run.dollars,
        measurement=best.measurement if best else None,
        run=run.id,
        verdict=verdict,
    )


def figures_of(student: str, sittings: Sequence[Sitting], budget: Budget) -> tuple[Figure, ...]:
    """What the skill changes for a student. A task without a right kernel counts one attempt more than were allowed."""
    held = {(one.task, one.arm): one for one in sittings if one.student == student and not one.fault}
    tasks = dict.fromkeys(task for task, _ in held)
    pairs = [
        (held[task, Arm.WITHOUT], held[task, Arm.WITH])
        for task in tasks
        if (task, Arm.WITHOUT) in held and (task, Arm.WITH) in held
    ]
    if not pairs:
        return ()
    never = budget.attempts + 1
    made = [
        _difference(PASS_RATE, pairs, lambda one: float(one.passed)),
        _difference(ATTEMPTS, pairs, lambda one: float(one.right_after or never)),
        _difference(TOKENS, pairs, lambda one: float(one.tokens)),
    ]
    timed = [(one.time_us, other.time_us) for one, other in pairs if one.time_us and other.time_us]
    return (*made, _ratio(timed)) if timed else tuple(made)


def _difference(name: str, pairs: list[tuple[Sitting, Sitting]], of: Callable[[Sitting], float]) -> Figure:
    changes = tuple(of(other) - of(one) for one, other in pairs)
    before, after = (statistics.fmean(of(pair[number]) for pair in pairs) for number in (0, 1))
    interval = mean_interval(changes) if len(changes) > 1 else None
    return Figure(name, len(pairs), before, after, statistics.fmean(changes), interval)


def _ratio(times: list[tuple[float, float]]) -> Figure:
    """Geometric means of the times of tasks that were solved both ways; above 1, kernels are faster with the skill."""
    logs = tuple(math.log(one / other) for one, other in times)
    before, after = (math.exp(statistics.fmean(math.log(pair[number]) for pair in times)) for number in (0, 1))
    found = mean_interval(logs) if len(logs) > 1 else None
    interval = Interval(math.exp(found.low), math.exp(found.high)) if found else None
    return Figure(SPEED, len(times), before, after, math.exp(statistics.fmean(logs)), interval)

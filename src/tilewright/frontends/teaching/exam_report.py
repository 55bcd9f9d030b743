"""An exam as a page of Markdown: what the skill changed for each student, and every sitting."""

from __future__ import annotations

from tilewright.frontends.run_words import dollars_words, seconds_words, time_words
from tilewright.records import Budget
from tilewright.teaching.exam import FEWEST_PAIRS, PASS_RATE, SPEED, TOKENS, Exam, Figure, Sitting


def report_text(exam: Exam) -> str:
    """The whole report."""
    times = "Times are modelled, not measured." if exam.emulated else "Times are measured."
    held = "They are held out: none is a task, or has the reference, of a run the skill was made of."
    if not exam.held_out:
        held = "Nobody knows whether they are held out: the skill has no record of its runs."
    parts = [
        f"# Exam of the skill {exam.skill}",
        f"{len(exam.tasks)} task{'s' if len(exam.tasks) != 1 else ''} on {exam.device}, each sat with the skill and "
        "without, with the same budget: "
        f"{_budget_words(exam.budget)}. {held} {times} {exam.created}, tilewright {exam.tilewright}.",
        f"A change is by task, with a {exam.confidence:.0%} interval by bootstrap over tasks. From {FEWEST_PAIRS} "
        "tasks on, one whose interval leaves out no change is marked `*`; of many figures some are marked by chance. "
        "A task without a right kernel counts one attempt more than were allowed. Speed is the geometric mean, over "
        "tasks solved both ways, of the time without the skill over the time with it.",
    ]
    for student in exam.students:
        parts += [f"## {student}", _figures(exam.figures[student])]
    head = "| student | task | skill | outcome | right after | attempts | tokens | cost | time | run |\n|" + "---|" * 10
    parts += ["## Sittings", "\n".join([head, *map(_row, exam.sittings)])]
    return "\n\n".join(parts) + "\n"


def _budget_words(budget: Budget) -> str:
    each = f"{budget.attempts} attempts, {budget.tokens:,} tokens, {dollars_words(budget.dollars)}"
    return f"{each} and {seconds_words(budget.seconds)} a task"


def _figures(figures: tuple[Figure, ...]) -> str:
    if not figures:
        return "No task was sat both ways, so there is nothing to compare."
    lines = ["| | tasks | without | with | change | interval |", "|---|---|---|---|---|---|"]
    for one in figures:
        mark = " *" if one.is_clear else ""
        cells = (one.name, str(one.pairs), value_words(one, one.without), value_words(one, one.with_skill))
        lines.append(f"| {' | '.join(cells)} | {change_words(one)}{mark} | {interval_words(one)} |")
    few = f"\n\nFewer than {FEWEST_PAIRS} tasks: the intervals say little." if figures[0].pairs < FEWEST_PAIRS else ""
    return "\n".join(lines) + few


def value_words(figure: Figure, value: float) -> str:
    if figure.name == PASS_RATE:
        return f"{value:.0%}"
    if figure.name == TOKENS:
        return f"{value:,.0f}"
    return f"{value:,.4g} us" if figure.name == SPEED else f"{value:.2f}"


def change_words(figure: Figure) -> str:
    return _change(figure, figure.change)


def interval_words(figure: Figure) -> str:
    if figure.interval is None:
        return "none: one task"
    return f"{_change(figure, figure.interval.low)} to {_change(figure, figure.interval.high)}"


def _change(figure: Figure, value: float) -> str:
    if figure.name == PASS_RATE:
        return f"{100 * value:+.0f} points"
    if figure.name == TOKENS:
        return f"{value:+,.0f}"
    return f"{value:.2f}x" if figure.name == SPEED else f"{value:+.2f}"


def _row(one: Sitting) -> str:
    said = f"not held: {' '.join(one.fault.split())[:160]}".replace("|", "/") if one.fault else one.verdict
    right, time = str(one.right_after or "never"), time_words(one.measurement) if one.measurement else ""
    cost = "" if one.dollars is None else dollars_words(one.dollars)
    cells = (
        one.student,
        one.task,
        one.arm.value,
        said,
        right,
        str(one.attempts),
        f"{one.tokens:,}",
        cost,
        time,
        one.run,
    )
    return f"| {' | '.join(cells)} |"

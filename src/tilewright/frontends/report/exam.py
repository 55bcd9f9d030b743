"""The report of an exam, and its figures as a picture."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.frontends.report import pictures
from tilewright.frontends.report.document import Block, Document, Section, Table, say
from tilewright.frontends.report.runs import dollars_words, seconds_words, time_words
from tilewright.teaching.exam import FEWEST_PAIRS, PASS_RATE, SPEED, TOKENS, Exam, Figure, Sitting


def exam_report(exam: Exam) -> Document:
    """The whole report."""
    times = "Times are modelled, not measured." if exam.emulated else "Times are measured."
    held = "They are held out: none is a task, or has the reference, of a run the skill was made of."
    if not exam.held_out:
        held = "Nobody knows whether they are held out: the skill has no record of its runs."
    budget = exam.budget
    each = f"{budget.attempts} attempts, {budget.tokens:,} tokens, {dollars_words(budget.dollars)}"
    opening = (
        say(
            f"{len(exam.tasks)} task{'s' if len(exam.tasks) != 1 else ''} on {exam.device}, each sat with the skill "
            f"and without, with the same budget: {each} and {seconds_words(budget.seconds)} a task. {held} {times} "
            f"{exam.created}, tilewright {exam.tilewright}."
        ),
        say(
            f"A change is by task, with a {exam.confidence:.0%} interval by bootstrap over tasks. From {FEWEST_PAIRS} "
            "tasks on, one whose interval leaves out no change is marked *; of many figures some are marked by chance. "
            "A task without a right kernel counts one attempt more than were allowed. Speed is the geometric mean, "
            "over tasks solved both ways, of the time without the skill over the time with it."
        ),
    )
    students = (Section(one, tuple(_figures(exam.figures[one]))) for one in exam.students)
    heads = ("student", "task", "skill", "outcome", "right after", "attempts", "tokens", "cost", "time", "run")
    sittings = Section("Sittings", (Table(heads, tuple(map(_row, exam.sittings))),))
    return Document(f"Exam of the skill {exam.skill}", (Section("", opening), *students, sittings))


def _figures(figures: tuple[Figure, ...]) -> Iterator[Block]:
    if not figures:
        yield say("No task was sat both ways, so there is nothing to compare.")
        return
    rows = tuple(
        (
            one.name,
            str(one.pairs),
            value_words(one, one.without),
            value_words(one, one.with_skill),
            f"{change_words(one)}{' *' if one.is_clear else ''}",
            interval_words(one),
        )
        for one in figures
    )
    yield Table(("", "tasks", "without", "with", "change", "interval"), rows)
    if figures[0].pairs < FEWEST_PAIRS:
        yield say(f"Fewer than {FEWEST_PAIRS} tasks: the intervals say little.")


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


def _row(one: Sitting) -> tuple[str, ...]:
    return (
        one.student,
        one.task,
        one.arm.value,
        f"not held: {' '.join(one.fault.split())[:160]}" if one.fault else one.verdict,
        str(one.right_after or "never"),
        str(one.attempts),
        f"{one.tokens:,}",
        "" if one.dollars is None else dollars_words(one.dollars),
        time_words(one.measurement) if one.measurement else "",
        one.run,
    )


WIDTH, LEFT, RIGHT, TOP = 900, 270, 290, 84
_ROW, _HEAD = 26, 30


def exam_picture(exam: Exam) -> str:
    """Every row has a scale of its own, from nothing to the larger of its two values; a pass rate's is the whole."""
    body = [pictures.dot(LEFT, 62, pictures.GREY), pictures.text(LEFT + 10, 66, "without the skill", anchor="start")]
    body += [pictures.dot(LEFT + 140, 62, pictures.GOOD), pictures.text(LEFT + 150, 66, "with it", anchor="start")]
    y: float = TOP
    for student in exam.students:
        body.append(pictures.text(24, y + 16, student[-100:], anchor="start", size=13))
        y += _HEAD
        for figure in exam.figures[student]:
            body += _exam_picture_row(figure, y + _ROW / 2)
            y += _ROW
    title = f"Exam of the skill {exam.skill}: {len(exam.tasks)} tasks on {exam.device}"
    under = f"change by task, with {exam.confidence:.0%} intervals; {'modelled' if exam.emulated else 'measured'} times"
    return pictures.page(WIDTH, y + 24, title, under, 24, body)


def _exam_picture_row(figure: Figure, y: float) -> list[str]:
    most = 1.0 if figure.name == PASS_RATE else max(figure.without, figure.with_skill) or 1.0

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * value / most

    before, after = x(figure.without), x(figure.with_skill)
    said = f"{value_words(figure, figure.without)} without, {value_words(figure, figure.with_skill)} with"
    marks = [
        pictures.line(before, y, after, y, pictures.INK),
        pictures.dot(before, y, pictures.GREY),
        pictures.dot(after, y, pictures.GOOD),
    ]
    change = f"{change_words(figure)} ({interval_words(figure)})"
    return [
        pictures.text(LEFT - 12, y + 4, figure.name, anchor="end"),
        pictures.line(LEFT, y, WIDTH - RIGHT, y, pictures.FAINT),
        pictures.titled(said, *marks),
        pictures.text(WIDTH - RIGHT + 14, y + 4, change, anchor="start", size=11),
    ]

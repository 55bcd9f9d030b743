"""An exam as a picture: for each student and figure, a dot without the skill, one with it, and what lies between."""

from __future__ import annotations

from tilewright.frontends import svg
from tilewright.frontends.teaching.exam_report import change_words, interval_words, value_words
from tilewright.teaching.exam import PASS_RATE, Exam, Figure

WIDTH, LEFT, RIGHT, TOP = 900, 270, 290, 84
_ROW, _HEAD = 26, 30


def exam_picture(exam: Exam) -> str:
    """Every row has a scale of its own, from nothing to the larger of its two values; a pass rate's is the whole."""
    body = [svg.dot(LEFT, 62, svg.GREY), svg.text(LEFT + 10, 66, "without the skill", anchor="start")]
    body += [svg.dot(LEFT + 140, 62, svg.GOOD), svg.text(LEFT + 150, 66, "with it", anchor="start")]
    y: float = TOP
    for student in exam.students:
        body.append(svg.text(24, y + 16, student[-100:], anchor="start", size=13))
        y += _HEAD
        for figure in exam.figures[student]:
            body += _row(figure, y + _ROW / 2)
            y += _ROW
    title = f"Exam of the skill {exam.skill}: {len(exam.tasks)} tasks on {exam.device}"
    under = f"change by task, with {exam.confidence:.0%} intervals; {'modelled' if exam.emulated else 'measured'} times"
    return svg.page(WIDTH, y + 24, title, under, 24, body)


def _row(figure: Figure, y: float) -> list[str]:
    most = 1.0 if figure.name == PASS_RATE else max(figure.without, figure.with_skill) or 1.0

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * value / most

    before, after = x(figure.without), x(figure.with_skill)
    said = f"{value_words(figure, figure.without)} without, {value_words(figure, figure.with_skill)} with"
    marks = [svg.line(before, y, after, y, svg.INK), svg.dot(before, y, svg.GREY), svg.dot(after, y, svg.GOOD)]
    change = f"{change_words(figure)} ({interval_words(figure)})"
    return [
        svg.text(LEFT - 12, y + 4, figure.name, anchor="end"),
        svg.line(LEFT, y, WIDTH - RIGHT, y, svg.FAINT),
        svg.titled(said, *marks),
        svg.text(WIDTH - RIGHT + 14, y + 4, change, anchor="start", size=11),
    ]

"""What is said while an author is at work: lines where there is no terminal, one live line where there is."""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console
from tests.refine.scripted_replies import TASK
from tests.waiting import wait_until

from tilewright.authors.model_author import ModelAuthor
from tilewright.frontends.api.choices import ChosenAuthor
from tilewright.frontends.api.reporter import PlainReporter
from tilewright.frontends.cli.make import TerminalReporter
from tilewright.records import (
    Attempt,
    BadPlan,
    Environment,
    Message,
    PlanProblem,
    Question,
    Rejected,
    Reply,
    Role,
    Run,
    Settings,
    Situation,
    Stage,
    StopReason,
)


def question(name: str) -> Question:
    return Question(name, "system", (Message(Role.USER, "write it"),))


def chosen(complete: Callable[[Question, Callable[[str], None]], Reply]) -> ChosenAuthor:
    return ChosenAuthor("relay:box", ModelAuthor("relay:box"), complete, None)


def at_once(asked: Question, on_text: Callable[[str], None]) -> Reply:
    on_text("here")
    return Reply("relay:box", "here", StopReason.END)


class Listed(PlainReporter):
    """A reporter whose lines are kept."""

    def __init__(self, stage: str = "") -> None:
        super().__init__()
        self.stage = stage
        self.lines: list[str] = []
        self.reminded = threading.Event()

    def say(self, text: str, title: str = "") -> None:
        self.lines.append(text)
        if len(self.lines) >= 3:
            self.reminded.set()


def terminal(stream: io.StringIO, *, live: bool = False) -> TerminalReporter:
    return TerminalReporter(Console(file=stream, force_terminal=live, color_system=None, width=80))


def test_a_long_wait_is_said_again_and_again_until_the_answer_is_there() -> None:
    reporter = Listed("structure")

    def slow(asked: Question, on_text: Callable[[str], None]) -> Reply:
        on_text("a thousand and one " * 100)
        assert reporter.reminded.wait(300)
        return Reply("relay:box", "done", StopReason.END)

    heard: list[str] = []
    author = reporter.following(chosen(slow), every_s=0.01)
    assert author.complete(question("0012-2"), heard.append).text == "done"
    assert reporter.lines[0] == "attempt 12, structure: asking relay:box"
    reminder = r"attempt 12, structure: waiting for relay:box for \d+ s, 1,900 characters so far"
    assert any(re.match(reminder, line) for line in reporter.lines[1:])
    assert len(heard) == 1


def test_a_question_that_fails_ends_the_waiting() -> None:
    def fails(asked: Question, on_text: Callable[[str], None]) -> Reply:
        raise ConnectionError("gone")

    before, reporter = threading.active_count(), Listed()
    with pytest.raises(ConnectionError):
        reporter.following(chosen(fails)).complete(question("0000-1"), lambda text: None)
    assert reporter.lines == ["specification: asking relay:box"]
    assert threading.active_count() == before


def test_without_a_terminal_each_question_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    for reporter, expected in (
        (terminal(stream), "attempt 3, repair-build: asking relay:box\n"),
        (PlainReporter(), "attempt 3, repair-build: asking relay:box\n"),
        (PlainReporter(quiet=True), ""),
    ):
        with reporter.live():
            reporter.asking(Situation(TASK, Stage.REPAIR_BUILD, 3))
            reporter.following(chosen(at_once)).complete(question("0003-1"), reporter.text)
        assert stream.getvalue() + capsys.readouterr().err == expected
        stream.truncate(0)
        stream.seek(0)


def test_without_a_terminal_long_work_is_said_from_time_to_time() -> None:
    stream = io.StringIO()
    reporter = terminal(stream)
    with reporter.live(every_s=0.01):
        reporter.asking(Situation(TASK, Stage.STRUCTURE, 2))
        time.sleep(0.05)
        assert stream.getvalue() == ""  # who is asked is followed elsewhere
        reporter.working("structure: tuning")
        wait_until(lambda: "structure: tuning" in stream.getvalue())
    assert re.search(r"structure: tuning  \d+ s\n", stream.getvalue())


def test_a_terminal_has_its_live_line_instead() -> None:
    stream = io.StringIO()
    reporter = terminal(stream, live=True)
    with reporter.live("waiting for a specification"):
        reporter.following(chosen(at_once)).complete(question("0000-1"), reporter.text)
    assert "waiting for a specification" in stream.getvalue()
    assert "asking" not in stream.getvalue()


def _run(*attempts: Attempt, hints: tuple[tuple[int, str], ...] = ()) -> Run:
    settings = Settings("playbook", hints=hints)
    environment = Environment("0.1.0", "3.11", "2.13.0", "NVRTC 13.0", "H200 (emulated)", "Linux", emulated=True)
    return Run("r", "2026-01-01T00:00:00Z", TASK, settings, environment, attempts)


def test_why_a_plan_is_refused_is_on_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    problem = PlanProblem(1, 5, "wrong-op", "the op must be `double(x) -> y`", "write that line")
    refused = Attempt(1, 1, Stage.DRAFT, None, "the kernel file to start from", "k", Rejected(BadPlan((problem,))))
    stream = io.StringIO()
    reporter = terminal(stream, live=True)
    with reporter.live():
        reporter.attempted(_run(refused), refused)
    assert "plan refused" in stream.getvalue()
    assert "line 1: the op must be `double(x) -> y`" in stream.getvalue()
    PlainReporter().attempted(_run(refused), refused)
    assert capsys.readouterr().err == (
        "attempt 1, draft, plan refused: line 1: the op must be `double(x) -> y` (the kernel file to start from)\n"
    )


def test_that_the_playbook_reads_no_hints_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = "the playbook reads no hints; a model does: tilewright resume r --model PROVIDER:NAME\n"
    for hints, said in (((), ""), (((0, "one warp per row"),), sentence)):
        stream = io.StringIO()
        terminal(stream).started(_run(hints=hints))
        PlainReporter().started(_run(hints=hints))
        assert stream.getvalue() == capsys.readouterr().err == said
    told = _run(hints=((0, "one warp per row"),))
    PlainReporter().started(replace(told, settings=replace(told.settings, author="relay:box")))
    assert capsys.readouterr().err == ""

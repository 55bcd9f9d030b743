"""A run as it goes, in plain lines on stderr: for the Python API, where there may be no terminal packages.

The lines on questions under way are for the command too, where it has no terminal.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.frontends.author_choice import PLAYBOOK, ChosenAuthor
from tilewright.frontends.run_rows import gain_words, rows, seconds_words, spend_words, time_words
from tilewright.records import Attempt, Question, Reply, Run, Situation

WAITING_S = 30.0  # between two lines on an answer that is awaited


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class PlainProgress:
    """Watches a run; a `refine.Watcher`. `quiet`: says nothing at all."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._stage = ""

    def line(self, text: str) -> None:
        if not self._quiet:
            say(text)

    def following(self, chosen: ChosenAuthor) -> ChosenAuthor:
        """The same author; each question to it is said in a line."""
        return spoken(chosen, self.line, lambda: self._stage)

    def started(self, run: Run) -> None:
        unread = unread_hint(run)
        if unread:
            self.line(unread)

    def asking(self, situation: Situation) -> None:
        self._stage = situation.stage.value

    def text(self, text: str) -> None:
        pass

    def working(self, what: str) -> None:
        pass

    def attempted(self, run: Run, attempt: Attempt) -> None:
        row = next(one for one in rows(run) if one.attempt.number == attempt.number)
        words = [f"attempt {attempt.number}", attempt.stage.value, row.verdict]
        words += [time_words(attempt.measurement)] if attempt.passed else []
        words += [gain_words(row.gain)] if row.gain is not None else []
        words += ["kept"] if row.kept else []
        self.line(f"{', '.join(words)}: {row.summary}")

    def ended(self, run: Run) -> None:
        self.line(f"{run.ending.words if run.ending else 'stopped'}; {spend_words(run)}")


def unread_hint(run: Run) -> str:
    """A sentence where a hint was just given to an author that reads none; else empty."""
    hints = run.settings.hints
    if run.settings.author != PLAYBOOK or not hints or hints[-1][0] != len(run.attempts):
        return ""
    return f"the playbook reads no hints; a model does: tilewright resume {run.id} --model PROVIDER:NAME"


# -- questions, where no live line shows that somebody is at work --


def spoken(
    chosen: ChosenAuthor, line: Callable[[str], None], stage: Callable[[], str], every_s: float = WAITING_S
) -> ChosenAuthor:
    """An author of whom it is said in lines when it is asked and, from time to time, that it has not answered yet."""

    def complete(question: Question, on_text: Callable[[str], None]) -> Reply:
        waiting = _Waiting(chosen.name, _about(question, stage()), line, every_s)
        return waiting.through(lambda heard: chosen.complete(question, heard), on_text)

    return replace(chosen, complete=complete)


def _about(question: Question, stage: str) -> str:
    """`attempt 3, structure`, from the id of a question: `0003-1`."""
    number = question.id.partition("-")[0].lstrip("0")
    return f"attempt {number}, {stage}" if number else "specification"


@dataclass
class _Waiting:
    """One question on its way."""

    name: str
    about: str
    line: Callable[[str], None]
    every_s: float
    characters: int = 0

    def through(self, ask: Callable[[Callable[[str], None]], Reply], on_text: Callable[[str], None]) -> Reply:
        def heard(text: str) -> None:
            self.characters += len(text)
            on_text(text)

        self.line(f"{self.about}: asking {self.name}")
        answered = threading.Event()
        reminder = threading.Thread(target=self._remind, args=(answered,), daemon=True)
        reminder.start()
        try:
            return ask(heard)
        finally:
            answered.set()
            reminder.join()

    def _remind(self, answered: threading.Event) -> None:
        began = time.monotonic()
        while not answered.wait(self.every_s):
            came = f"{self.characters:,} characters so far" if self.characters else "no word yet"
            self.line(f"{self.about}: {self.name} at it for {seconds_words(time.monotonic() - began)}, {came}")

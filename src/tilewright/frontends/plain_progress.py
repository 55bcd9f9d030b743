"""A run as it goes, in plain lines on stderr: for the Python API, where there may be no terminal packages."""

from __future__ import annotations

import sys

from tilewright.frontends.run_rows import gain_words, rows, spend_words, time_words
from tilewright.records import Attempt, Run, Situation


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class PlainProgress:
    """Watches a run; a `refine.Watcher`. `quiet`: says nothing at all."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet

    def line(self, text: str) -> None:
        if not self._quiet:
            say(text)

    def started(self, run: Run) -> None:
        pass

    def asking(self, situation: Situation) -> None:
        pass

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
        self.line(f"{', '.join(words)}: {' '.join(attempt.summary.split())}")

    def ended(self, run: Run) -> None:
        self.line(f"{run.ending.value if run.ending else 'stopped'}; {spend_words(run)}")

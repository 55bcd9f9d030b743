"""A run as it goes, on stderr: a line for each attempt and, on a terminal, a last line that says what is going on."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tilewright.frontends.author_choice import ChosenAuthor
from tilewright.frontends.plain_progress import spoken, unread_hint
from tilewright.frontends.run_rows import (
    Row,
    dollars_words,
    gain_words,
    rows,
    seconds_words,
    time_words,
)
from tilewright.records import Attempt, Run, Situation

_STYLES = {"passed": "green", "cannot run here": "yellow", "seen before": "yellow"}


class ProgressView:
    """Watches a run for a person; a `refine.Watcher`. Without a terminal it prints plain lines and no colours."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._run: Run | None = None
        self._number = 0
        self._stage = self._doing = ""
        self._characters = 0
        self._began = time.monotonic()

    def __enter__(self) -> ProgressView:
        if self._console.is_terminal:
            self._live = Live(get_renderable=self._status, console=self._console, refresh_per_second=8, transient=True)
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)
            self._live = None

    def following(self, chosen: ChosenAuthor) -> ChosenAuthor:
        """The same author. Where no last line tells that somebody is at work, each question to it is said in a line."""
        if self._console.is_terminal:
            return chosen
        return spoken(chosen, lambda text: self._console.print(Text(text), soft_wrap=True), lambda: self._stage)

    # -- what a watcher is told --

    def started(self, run: Run) -> None:
        self._run = run
        for row in rows(run):
            self._print(row)
        unread = unread_hint(run)
        if unread:
            self._console.print(Text(unread, style="yellow"), soft_wrap=True)

    def asking(self, situation: Situation) -> None:
        self._number, self._stage = situation.number, situation.stage.value
        self._doing = f"{self._stage}: the author is at work"
        self._characters = 0

    def text(self, text: str) -> None:
        self._characters += len(text)

    def working(self, what: str) -> None:
        self._doing, self._characters = what, 0

    def attempted(self, run: Run, attempt: Attempt) -> None:
        self._run = run
        self._print(next(row for row in rows(run) if row.attempt.number == attempt.number))

    def ended(self, run: Run) -> None:
        self._run = run
        self._doing = ""

    # -- how it looks --

    def _print(self, row: Row) -> None:
        attempt = row.attempt
        line = Text(f"{attempt.number:>3}  {attempt.stage.value:<12}  ")
        line.append(f"{row.verdict:<17}", style=_STYLES.get(row.verdict, "red"))
        if attempt.passed:
            shown = time_words(attempt.measurement)
            line.append(f"{shown:>20}  {gain_words(row.gain):>7}  {'kept' if row.kept else '    '}")
        line.append(f"  {row.summary}", style="dim" if attempt.passed else "")
        if self._console.is_terminal:
            self._console.print(line, overflow="ellipsis", no_wrap=True)
        else:
            self._console.print(line, soft_wrap=True)

    def _status(self) -> Text:
        line = Text(overflow="ellipsis", no_wrap=True)
        if self._run is None:
            line.append(self._doing)
            return line
        budget, run = self._run.settings.budget, self._run
        line.append(f"attempt {max(self._number, 1)} of {budget.attempts}  ", style="bold")
        line.append(self._doing)
        if self._characters:
            line.append(f" ({self._characters:,} characters)")
        if run.best is not None:
            line.append(f"  best {time_words(run.best.measurement)}", style="green")
        if run.usage.output_tokens:
            line.append(f"  {dollars_words(run.dollars)} of {dollars_words(budget.dollars)}")
        line.append(f"  {seconds_words(time.monotonic() - self._began)}", style="dim")
        return line

"""An agent as an author of the loop.

The loop asks. Where the agent has submitted no reply, `Pending` stops the work with the question on record, and the
tool answers with that question. Between two calls only the run's folder is needed: another server can continue it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from tilewright import records
from tilewright.authors import Ask
from tilewright.authors.model_author import ModelAuthor
from tilewright.authors.playbook_author import PlaybookAuthor
from tilewright.frontends.api.choices import ChosenAuthor
from tilewright.frontends.api.judges import Say
from tilewright.frontends.api.reporter import Reporter
from tilewright.models.prices import NOTHING
from tilewright.store import RunFolder


class Pending(records.NoReply):
    """The loop waits for the agent's answer to this question."""

    def __init__(self, question: records.Question) -> None:
        self.question = question
        super().__init__(f"the agent has not answered question {question.id} yet")


class AgentAuthor(ModelAuthor):
    """Replies with the text of one tool call for one attempt, if there is one. `done`: the agent ends the run.

    The agent is asked what a model would be asked. Its own tokens cost the run nothing. Words are specified by the
    built-in grammar; an agent that means something else gives the reference itself.
    """

    def __init__(self, name: str, attempt: int = 0, text: str = "", *, done: bool = False) -> None:
        super().__init__(name)
        self._attempt, self._text, self._done = attempt, text, done

    @property
    def is_empty(self) -> bool:
        """Whether the reply has been used."""
        return not self._text

    @contextmanager
    def opened(self, name: str, base_url: str, say: Say, seconds: float) -> Iterator[ChosenAuthor]:
        """This author for the loop; the arguments are for models, which are called."""
        yield ChosenAuthor(self.name, self, self.complete, NOTHING)

    def complete(self, question: records.Question, on_text: Callable[[str], None]) -> records.Reply:
        text = self._text
        if not text or int(question.id.partition("-")[0]) != self._attempt:
            raise Pending(question)
        self._text = ""
        on_text(text)
        return records.Reply(model=self.name, text=text, stop=records.StopReason.END, dollars=0.0)

    def specify(self, words: str, shapes: Mapping[str, str], gpu: str, ask: Ask) -> records.Specification:
        return PlaybookAuthor().specify(words, shapes, gpu, ask)

    def propose(self, situation: records.Situation, ask: Ask) -> records.Proposal | None:  # type: ignore[override]
        return None if self._done else super().propose(situation, ask)


class Cancelled(RuntimeError):
    """The client cancelled the call. What was done is on record."""

    def __init__(self) -> None:
        super().__init__("cancelled; what was submitted is on record, and is judged with the next call for this run")


class AgentReporter(Reporter):
    """Sends progress to the client, and raises `Cancelled` at the next message after the client cancels."""

    def __init__(self, progress: Say = lambda _: None, cancelled: threading.Event | None = None) -> None:
        self._progress = progress
        self._cancelled = cancelled or threading.Event()
        self.run: records.Run | None = None  # at the start of the work

    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def check(self) -> None:
        if self._cancelled.is_set():
            raise Cancelled

    def say(self, text: str, title: str = "") -> None:
        self.working(f"{title}: {text}" if title else text)

    def accept(self, folder: RunFolder, specification: records.Specification) -> None:
        """The tool was called with accept=true."""

    @contextmanager
    def live(self, what: str = "") -> Iterator[None]:
        if what:
            self.working(what)
        yield

    def started(self, run: records.Run) -> None:
        self.run = run

    def asking(self, situation: records.Situation) -> None:
        self.check()

    def working(self, what: str) -> None:
        self.check()
        self._progress(what)

    def attempted(self, run: records.Run, attempt: records.Attempt) -> None:
        self._progress(f"attempt {attempt.number} is on record")

"""An agent as an author of the loop: it has one reply in hand, or none.

The loop asks; where no reply is at hand, `Pending` ends the work with the question on record, and whoever drives the
run hands the question to the agent. So between two calls of a tool nothing is kept but the run's own folder: a server
that is killed, or another one, goes on from there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from tilewright.authors import Ask
from tilewright.authors.model_author import ModelAuthor
from tilewright.authors.playbook_author import PlaybookAuthor
from tilewright.frontends.api.choices import ChosenAuthor
from tilewright.frontends.api.reporter import Reporter
from tilewright.models.prices import NOTHING
from tilewright.records import Attempt, NoReply, Proposal, Question, Reply, Run, Situation, Specification, StopReason
from tilewright.store import RunFolder

OnText = Callable[[str], None]


class Pending(NoReply):
    """The loop waits for the agent: this is what it is asked."""

    def __init__(self, question: Question) -> None:
        self.question = question
        super().__init__(f"the agent has not answered question {question.id} yet")


@dataclass(frozen=True)
class Submission:
    """What an agent sends for one attempt, as the text that a model would reply."""

    attempt: int
    text: str


class AgentTurn:
    """What the agent gives to the loop in one call of a tool: one submission at most, or that it has no more to give.

    What the agent thinks and what it reads costs it, not the run, so no tokens are counted.
    """

    def __init__(self, name: str, submission: Submission | None = None, *, done: bool = False) -> None:
        self.name = name
        self.done = done
        self._submission = submission

    @property
    def is_empty(self) -> bool:
        return self._submission is None

    @contextmanager
    def opened(self, name: str, base_url: str, say: Callable[[str], None], seconds: float) -> Iterator[ChosenAuthor]:
        """This agent, as the loop's author; the other arguments are for models that are called."""
        yield ChosenAuthor(self.name, AgentAuthor(self), self.complete, NOTHING)

    def complete(self, question: Question, on_text: OnText) -> Reply:
        given = self._submission
        if given is None or question_attempt(question) != given.attempt:
            raise Pending(question)
        self._submission = None
        on_text(given.text)
        return Reply(model=self.name, text=given.text, stop=StopReason.END, dollars=0.0)


class AgentAuthor(ModelAuthor):
    """Asks the agent what a model would be asked. Words are specified by the built-in grammar; an agent that means
    something else gives the reference itself."""

    def __init__(self, turn: AgentTurn) -> None:
        super().__init__(turn.name)
        self._turn = turn

    def specify(self, words: str, shapes: Mapping[str, str], gpu: str, ask: Ask) -> Specification:
        return PlaybookAuthor().specify(words, shapes, gpu, ask)

    def propose(self, situation: Situation, ask: Ask) -> Proposal | None:  # type: ignore[override]
        return None if self._turn.done else super().propose(situation, ask)


def question_attempt(question: Question) -> int:
    """The attempt that a question is of: 3 of `0003-1`."""
    return int(question.id.partition("-")[0])


# -- what an agent's front end hears while a kernel is made, and how the work is stopped --

Progress = Callable[[str], None]


class Cancelled(RuntimeError):
    """The agent does not wait for the work any more. What was done is on record."""

    def __init__(self) -> None:
        super().__init__("cancelled; what was submitted is on record, and is judged with the next call for this run")


class AgentReporter(Reporter):
    """Passes on what goes on, and stops the work at the next word once it is cancelled.

    Whoever calls a tool has accepted the specification, or the tool would not have been carried so far.
    """

    def __init__(self, progress: Progress = lambda _: None, cancelled: threading.Event | None = None) -> None:
        self._progress = progress
        self._cancelled = cancelled or threading.Event()
        self.run: Run | None = None  # as it stood when the work on it began

    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def check(self) -> None:
        """Raises `Cancelled` where nobody waits any more."""
        if self._cancelled.is_set():
            raise Cancelled

    def say(self, text: str, title: str = "") -> None:
        self.working(f"{title}: {text}" if title else text)

    def remind(self, text: str) -> None: ...

    def accept(self, folder: RunFolder, specification: Specification) -> None: ...

    @contextmanager
    def live(self, what: str = "") -> Iterator[None]:
        if what:
            self.working(what)
        yield

    def started(self, run: Run) -> None:
        self.run = run

    def asking(self, situation: Situation) -> None:
        self.check()

    def working(self, what: str) -> None:
        self.check()
        self._progress(what)

    def attempted(self, run: Run, attempt: Attempt) -> None:
        self._progress(f"attempt {attempt.number} is on record")

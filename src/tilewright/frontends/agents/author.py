"""An agent as an author of the loop: it has one reply in hand, or none.

The loop asks; where no reply is at hand, `Awaited` ends the work with the question on record, and whoever drives the
run hands the question to the agent. So between two calls of a tool nothing is kept but the run's own folder: a server
that is killed, or another one, goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from tilewright.authors import Ask
from tilewright.authors.model_author import ModelAuthor
from tilewright.authors.playbook_author import PlaybookAuthor
from tilewright.frontends.choices import ChosenAuthor
from tilewright.models.prices import NOTHING
from tilewright.records import NoReply, Proposal, Question, Reply, Situation, Specification, StopReason

OnText = Callable[[str], None]


class Awaited(NoReply):
    """The loop waits for the agent: this is what it is asked."""

    def __init__(self, question: Question) -> None:
        self.question = question
        super().__init__(f"the agent has not answered question {question.id} yet")


@dataclass(frozen=True)
class Submission:
    """What an agent sends for one attempt, as the text that a model would reply."""

    attempt: int
    text: str


class Hand:
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
            raise Awaited(question)
        self._submission = None
        on_text(given.text)
        return Reply(model=self.name, text=given.text, stop=StopReason.END, dollars=0.0)


class AgentAuthor(ModelAuthor):
    """Asks the agent what a model would be asked. Words are specified by the built-in grammar; an agent that means
    something else gives the reference itself."""

    def __init__(self, hand: Hand) -> None:
        super().__init__(hand.name)
        self._hand = hand

    def specify(self, words: str, shapes: Mapping[str, str], gpu: str, ask: Ask) -> Specification:
        return PlaybookAuthor().specify(words, shapes, gpu, ask)

    def propose(self, situation: Situation, ask: Ask) -> Proposal | None:  # type: ignore[override]
        return None if self._hand.done else super().propose(situation, ask)


def question_attempt(question: Question) -> int:
    """The attempt that a question is of: 3 of `0003-1`."""
    return int(question.id.partition("-")[0])

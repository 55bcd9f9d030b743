"""An author that is a language model: a question, its reply, and one further question where the reply is unreadable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from tilewright.authors import Ask
from tilewright.prompts.question import base_of, correction_text, may_pass, question_text, system_text
from tilewright.prompts.replies import NoChange, ReplyProblem, read_no_change, read_reply, table_line
from tilewright.prompts.specify import read_specification, specify_correction_text, specify_texts
from tilewright.records import Message, Proposal, Question, Reply, Role, Situation, Specification, StopReason

T = TypeVar("T")

_SPECIFICATION = 0  # the number under which a specification is asked for
_CUT_REPLY_CHARACTERS = 4000  # of a reply that ended at the limit, as it is quoted back


class ModelAuthor:
    """Asks a model for every candidate. Which model, and what it costs, is behind `ask`."""

    reads_evidence = True

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def specify(self, words: str, shapes: Mapping[str, str], gpu: str, ask: Ask) -> Specification:
        """Raises `ReplyProblem` where the model refuses or cannot be read twice."""
        system, user = specify_texts(words, shapes, gpu)
        return _read_within_two(
            _SPECIFICATION,
            system,
            user,
            ask,
            read=read_specification,
            correct=lambda problem, cut: specify_correction_text(problem),
        )

    def propose(self, situation: Situation, ask: Ask) -> Proposal:
        """The candidate the model writes, that it has none, or what was wrong with its replies."""
        base, passing = base_of(situation), may_pass(situation)
        try:
            reply = _read_within_two(
                situation.number,
                system_text(situation.task, situation.emulated_only, situation.skill),
                question_text(situation),
                ask,
                read=lambda text: (read_no_change(text) if passing else None) or read_reply(text, base),
                correct=lambda problem, cut: correction_text(problem, cut=cut, base=base),
            )
        except ReplyProblem as problem:
            return Proposal(None, table_line(str(problem)), str(problem))
        if isinstance(reply, NoChange):
            return Proposal(None, reply.reason, passes=True)
        return Proposal(reply.text, reply.summary or "no summary given")


def _read_within_two(
    number: int,
    system: str,
    user: str,
    ask: Ask,
    *,
    read: Callable[[str], T],
    correct: Callable[[str, bool], str],
) -> T:
    """What `read` makes of the reply, or of the reply to one correction. Raises `ReplyProblem`."""
    first = Message(Role.USER, user)
    reply = ask(Question(f"{number:04d}-1", system, (first,)))
    _refuse(reply)
    try:
        return read(reply.text)
    except ReplyProblem as problem:
        correction = Message(Role.USER, correct(str(problem), reply.stop is StopReason.LENGTH))
    again = ask(Question(f"{number:04d}-2", system, (first, Message(Role.ASSISTANT, _quoted(reply)), correction)))
    _refuse(again)
    try:
        return read(again.text)
    except ReplyProblem as problem:
        raise ReplyProblem(f"asked twice, and {problem}") from None


def _refuse(reply: Reply) -> None:
    if reply.stop is StopReason.REFUSED:
        text = " ".join(reply.text.split())[:200]
        raise ReplyProblem(f"the model refused{f': {text}' if text else ''}")


def _quoted(reply: Reply) -> str:
    """The reply as part of the conversation: providers refuse an empty one; a cut one is not worth its whole length."""
    if reply.stop is StopReason.LENGTH and len(reply.text) > _CUT_REPLY_CHARACTERS:
        return f"{reply.text[:_CUT_REPLY_CHARACTERS].rstrip()}\n[cut off here]"
    return reply.text.strip() or "(empty reply)"

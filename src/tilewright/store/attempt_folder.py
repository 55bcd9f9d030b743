"""One attempt's folder: the questions and replies, the candidate, what became of it.

    attempts/0003/  question-1.json  question-1.md   what was asked, to the letter and to be read
                    reply-1.json     reply-1.md      what came back and what it cost
                    reply-1.partial.md               the part of a reply that has come in so far
                    unanswered-1.json                what was spent on a question that has no reply yet
                    kernel.cu                        the candidate
                    verdict.json, tune.json, ...     what has been found out about it
                    attempt.json                     the whole record, written last: until then it is unfinished

The folder of number 0 has the specification of a request in words. Nothing that was paid for is ever deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tilewright.records import Attempt, Cut, NoReply, Question, Reply
from tilewright.store import durable
from tilewright.store.durable import Damaged, read_text

T = TypeVar("T")

KERNEL = "kernel.cu"
_ABOUT_THE_KERNEL = (
    "verdict",
    "tune",
    "measurement",
    "unmeasured",
)  # of one candidate; another candidate deletes them
_ATTEMPT = "attempt.json"


class AttemptFolder:
    """The folder of attempt `number`, created with its first file."""

    def __init__(self, path: Path, number: int) -> None:
        self.path = path
        self.number = number
        self._streaming: set[int] = set()  # replies of which a part has arrived

    # -- questions and replies --

    def reply_to(self, k: int, question: Question, ask: Callable[[Question], Reply]) -> Reply:
        """The reply to this attempt's `k`-th question, counted from 1: the one on record, or else the one `ask` gets.

        The question is on disk before `ask` is called, and the reply before it is returned. A reply on record counts
        only if the question is the same to the letter; otherwise both are set aside, and taken up again should that
        question come back.
        """
        text = durable.record_text(question)
        if read_text(self._question(k)) != text:
            self._set_aside(k)
            self._save(f"question-{k}.md", question_text(question))
            self._save(f"question-{k}.json", text)
        if not self._reply(k).exists():
            self._take_up(k, _digest(text))
        if not self._reply(k).exists():
            self._streaming.discard(k)
            self._store_reply(k, self._asked(k, question, ask))
        reply: Reply = durable.read_record(self._reply(k), Reply)
        return reply

    def _asked(self, k: int, question: Question, ask: Callable[[Question], Reply]) -> Reply:
        """The reply that `ask` gets. The cost of failed requests is kept, and added to that of the reply."""
        path = self.path / f"unanswered-{k}.json"
        spent: Cut = durable.find_record(path, Cut) or Cut()
        try:
            return ask(question).after(spent)
        except NoReply as error:
            if error.cut.tokens:
                self._save(path.name, durable.record_text(spent + error.cut))
            raise

    def stream(self, k: int, piece: str) -> None:
        """Append to the partial file of the `k`-th reply, which is deleted when the whole reply is stored.

        The part that an interrupted process left is kept until the first piece of a new reply.
        """
        durable.make_folder(self.path)
        mode = "a" if k in self._streaming else "w"
        self._streaming.add(k)
        with open(self._partial(k), mode, encoding="utf-8", errors="replace", newline="") as stream:
            stream.write(piece)

    def replies(self) -> tuple[Reply, ...]:
        """The replies on record, in the order of their questions; not those set aside."""
        return tuple(durable.read_record(path, Reply) for path in self._numbered("reply"))

    def question_texts(self) -> tuple[str, ...]:
        """The questions on record to the letter, in order; not those set aside."""
        return tuple(text for text in map(read_text, self._numbered("question")) if text is not None)

    def _numbered(self, kind: str) -> list[Path]:
        found = (path for path in _listed(self.path) if re.fullmatch(rf"{kind}-\d+\.json", path.name))
        return sorted(found, key=lambda path: int(path.stem.removeprefix(f"{kind}-")))

    def _store_reply(self, k: int, reply: Reply) -> None:
        self._save(f"reply-{k}.json", durable.record_text(reply))
        durable.remove(self.path / f"unanswered-{k}.json")
        self._save(f"reply-{k}.md", reply.text)
        durable.remove(self._partial(k))

    def _set_aside(self, k: int) -> None:
        """Move the `k`-th question and all later ones aside, under a name made of the question.

        The reply is moved first, so that a reply in place always belongs to the question in place.
        """
        while (old := read_text(self._question(k))) is not None:
            for stem in (f"reply-{k}", f"question-{k}"):
                for suffix in ("json", "md"):
                    durable.move(self.path / f"{stem}.{suffix}", self.path / f"{stem}.{_digest(old)}.{suffix}")
            durable.remove(self._partial(k))
            k += 1

    def _take_up(self, k: int, digest: str) -> None:
        for suffix in ("md", "json"):
            durable.move(self.path / f"reply-{k}.{digest}.{suffix}", self.path / f"reply-{k}.{suffix}")

    def _question(self, k: int) -> Path:
        return self.path / f"question-{k}.json"

    def _reply(self, k: int) -> Path:
        return self.path / f"reply-{k}.json"

    def _partial(self, k: int) -> Path:
        return self.path / f"reply-{k}.partial.md"

    # -- the candidate and its results --

    def remember(self, name: str, kind: type[T] | Any, make: Callable[[], T]) -> T:
        """The record called `name`, of type `kind` (a union and `X | None` too): the one on record, or else `make()`,
        which is stored before it is returned."""
        path = self.path / f"{name}.json"
        if not path.exists():
            self._save(path.name, durable.record_text(make()))
        found: T = durable.read_record(path, kind)
        return found

    def save_text(self, name: str, text: str) -> None:
        """Save a text, such as `kernel.cu`. A different kernel deletes the results of the one before."""
        path = self.path / name
        if read_text(path) == text:
            return
        if name == KERNEL:
            for about in _ABOUT_THE_KERNEL:
                durable.remove(self.path / f"{about}.json")
        self._save(name, text)

    def text(self, name: str) -> str:
        """A saved text; raises `Damaged` if there is none."""
        found = self.find_text(name)
        if found is None:
            raise Damaged(f"{self.path / name} is missing")
        return found

    def find_text(self, name: str) -> str | None:
        return read_text(self.path / name)

    def finish(self, attempt: Attempt) -> None:
        """Record the attempt, which makes it one of the run's."""
        if attempt.number != self.number:
            raise ValueError(f"attempt {attempt.number} does not belong into the folder of attempt {self.number}")
        self._save(_ATTEMPT, durable.record_text(attempt))

    def load(self) -> Attempt | None:
        """The attempt; None while it is unfinished."""
        return durable.find_record(self.path / _ATTEMPT, Attempt)

    def _save(self, name: str, text: str) -> None:
        durable.make_folder(self.path)
        durable.write_text(self.path / name, text)


def question_text(question: Question) -> str:
    """A question as text for a person."""
    parts = [f"# {question.id}\n\n## system\n\n{question.system.strip()}\n"]
    parts += [f"## {message.role.value}\n\n{message.text.strip()}\n" for message in question.messages]
    return "\n".join(parts)


def _digest(question: str) -> str:
    return hashlib.sha256(question.encode("utf-8", "replace")).hexdigest()[:12]


def _listed(folder: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError):
        return sorted(folder.iterdir())
    return []

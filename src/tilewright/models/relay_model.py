"""Questions as files: for a person, or a coding agent, who answers by writing a file.

    DIR/0003-1.prompt.md      the question, with a head that says where the reply belongs
    DIR/0003-1.reply.md       the reply
    DIR/0003-1.old-1.md       a reply to an earlier, different question of that id, moved out of the way

The head of a prompt holds a digest of the question. A run that was interrupted and asks the same again takes the reply
that lies there; a reply to anything else is never taken. A directory is one run's for as long as that run works.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from tilewright.models.prices import NOTHING, Price
from tilewright.models.protocol import (
    MOST_REPLY_BYTES,
    BadModelName,
    ModelError,
    ModelUnavailable,
    OnText,
    Provider,
    ReplyTooLarge,
    say_on_stderr,
)
from tilewright.models.service import estimated_usage
from tilewright.records import Question, Reply, StopReason, to_json

POLL_S = 0.2
_DIGEST = re.compile(r"^Question: sha256 ([0-9a-f]{64})$", re.MULTILINE)
_HEAD_CHARACTERS = 2000
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class RelayModel:
    """Whoever watches a directory. Its tokens are estimated and cost nothing; `timeout_s` None waits for ever."""

    def __init__(
        self,
        directory: Path | str,
        *,
        say: Callable[[str], None] = say_on_stderr,
        timeout_s: float | None = None,
        poll_s: float = POLL_S,
    ) -> None:
        self.directory = Path(directory)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadModelName(f"{self.directory} cannot be made a directory for a relay: {error.strerror}") from None
        self.name = f"relay:{self.directory}"
        self.price: Price | None = NOTHING
        self._say = say
        self._timeout_s = timeout_s
        self._poll_s = poll_s
        self._claim: TextIO | None = None

    def complete(self, question: Question, on_text: OnText) -> Reply:
        if not _ID.fullmatch(question.id):
            raise ValueError(f"the id of a question names files, so it cannot be {question.id!r}")
        started = time.monotonic()
        self._claim_directory()
        self._ask(question)
        text = self._wait(question)
        on_text(text)
        return Reply(
            model=self.name,
            text=text,
            stop=StopReason.END,
            usage=estimated_usage(question, text),
            dollars=0.0,
            seconds=time.monotonic() - started,
            by_person=True,
        )

    def _claim_directory(self) -> None:
        """Two runs at once would overwrite each other's questions, which are called alike in all runs."""
        if self._claim is not None:
            return
        claim = (self.directory / ".claim").open("w")
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            claim.close()
            problem = f"{self.directory} is in use by another run; give this one a directory of its own"
            raise ModelError(problem) from None
        self._claim = claim

    def _path(self, question: Question, kind: str) -> Path:
        return self.directory / f"{question.id}.{kind}.md"

    def _ask(self, question: Question) -> None:
        prompt, reply = self._path(question, "prompt"), self._path(question, "reply")
        digest = hashlib.sha256(json.dumps(to_json(question), sort_keys=True).encode()).hexdigest()
        if _asked(prompt) == digest:
            return
        if reply.exists():
            self._move_aside(question, reply)
        writing = prompt.with_suffix(f".writing-{os.getpid()}")
        try:
            writing.write_text(_prompt_text(question, digest, reply), encoding="utf-8")
            writing.replace(prompt)
        except OSError as error:
            raise ModelError(f"the question {prompt} cannot be written: {error.strerror}") from None

    def _move_aside(self, question: Question, reply: Path) -> None:
        number = 1
        while (old := self._path(question, f"old-{number}")).exists():
            number += 1
        reply.replace(old)
        self._say(f"the question has changed, so the reply to the earlier one is now {old}")

    def _wait(self, question: Question) -> str:
        """The reply, once it has stopped growing between two looks: not everybody writes elsewhere and renames."""
        reply = self._path(question, "reply")
        deadline = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        seen = _look(reply)
        if seen is None:
            self._say(f"waiting for {reply}: the question is in {self._path(question, 'prompt')}")
        while True:
            if deadline is not None and time.monotonic() > deadline:
                raise ModelUnavailable(f"nobody wrote {reply} in {self._timeout_s:g} s; answer it and resume the run")
            time.sleep(self._poll_s)
            now = _look(reply)
            if now is not None and now[0] > MOST_REPLY_BYTES:
                raise ReplyTooLarge(f"the reply {reply}", now[0])
            if now is not None and now == seen:
                return _read(reply)
            seen = now

    def close(self) -> None:
        """Prompts and replies stay where they are; the directory is free for another run."""
        if self._claim is not None:
            self._claim.close()
            self._claim = None


def _asked(prompt: Path) -> str | None:
    """The digest of the question that a prompt file holds, None where there is no such file."""
    try:
        with prompt.open(encoding="utf-8", errors="replace") as file:
            match = _DIGEST.search(file.read(_HEAD_CHARACTERS))
    except FileNotFoundError:
        return None
    return match[1] if match else None


def _look(path: Path) -> tuple[int, int, int] | None:
    """What identifies a state of the file; None where it is not there or still empty."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    return (state.st_size, state.st_mtime_ns, state.st_ino) if state.st_size else None


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_REPLY_BYTES + 1)  # it may have grown meanwhile
        if len(content) > MOST_REPLY_BYTES:
            raise ReplyTooLarge(f"the reply {path}", len(content))
        return content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"the reply {path} cannot be read as UTF-8 text ({error}); write it again") from None


def _prompt_text(question: Question, digest: str, reply: Path) -> str:
    parts = [
        f"# Question {question.id}",
        "Answer by writing your whole reply, and nothing else, to\n\n"
        f"    {reply.resolve()}\n\n"
        "Write it under another name in the same directory first, then rename it. This head is not part of the "
        "question.",
        f"Question: sha256 {digest}",
    ]
    if question.system:
        parts.append(f"---------- system ----------\n\n{question.system}")
    parts += [f"---------- {one.role.value} ----------\n\n{one.text}" for one in question.messages]
    return "\n\n".join(parts) + "\n"


PROVIDERS = (Provider("relay", lambda opening: RelayModel(opening.model, say=opening.say), takes_path=True),)

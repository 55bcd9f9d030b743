"""The replies of an earlier run, given again: by the id of the question, from the run's directory.

Nothing is asked of anybody. A reply comes back as it was recorded, with its usage and cost, so that a replayed run
spends its budget exactly as the first one did.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TypeVar

from tilewright.models.prices import Price
from tilewright.models.protocol import (
    MOST_REPLY_BYTES,
    BadModelName,
    ModelError,
    NoRecordedReply,
    OnText,
    Provider,
    ReplyTooLarge,
)
from tilewright.records import Question, RecordError, Reply, from_json

T = TypeVar("T")
_MOST_FILE_BYTES = 6 * MOST_REPLY_BYTES  # JSON may write a letter with six
_ID = re.compile(r"(\d{4,})-([1-9]\d*)")


class ReplayModel:
    """Answers from a run's `attempts/NNNN/reply-K.json`.

    With `strict` a question must also be the recorded one, word for word; without, only its id counts, so that a
    recording outlives changes to the prompts. `delay_s` is waited before each reply, as a model would take its time.
    """

    def __init__(self, directory: Path | str, *, strict: bool = False, delay_s: float = 0.0) -> None:
        self.directory = Path(directory)
        if not self.directory.is_dir():
            raise BadModelName(f"there is no directory {self.directory} to replay")
        if not (self.directory / "attempts").is_dir():
            raise BadModelName(f"{self.directory} is no run: it has no directory `attempts`")
        self.name = f"replay:{self.directory}"
        self.price: Price | None = None
        self._strict = strict
        self._delay_s = delay_s

    def complete(self, question: Question, on_text: OnText) -> Reply:
        match = _ID.fullmatch(question.id)
        if match is None:
            raise ValueError(f"the id of a question is like 0003-1, not {question.id!r}")
        folder = self.directory / "attempts" / match[1]
        reply = _read(folder / f"reply-{match[2]}.json", Reply)
        if reply is None:
            raise NoRecordedReply(f"{self.name} holds no reply {question.id}: the recording ends here")
        if self._strict and _read(folder / f"question-{match[2]}.json", Question) != question:
            raise ModelError(f"{self.name}: question {question.id} is not the one that was recorded")
        time.sleep(self._delay_s)
        on_text(reply.text)
        return reply

    def close(self) -> None:
        """There is nothing to close."""


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        size = path.stat().st_size
        if size > _MOST_FILE_BYTES:
            raise ReplyTooLarge(str(path), size)
        return from_json(kind, json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecordError) as error:
        raise ModelError(f"{path} cannot be read as a {kind.__name__}: {error}") from None


PROVIDERS = (Provider("replay", lambda opening: ReplayModel(opening.model), takes_path=True),)

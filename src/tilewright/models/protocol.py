"""What a model is to the rest of the house, and what an adapter is given to open one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tilewright.models.keys import Scrubber
from tilewright.models.prices import Price
from tilewright.models.retries import RetryPolicy
from tilewright.records import Question, Reply

OnText = Callable[[str], None]


class Model(Protocol):
    """Somebody who answers questions.

    `complete` passes text to `on_text` as it arrives and returns the whole reply. Where a connection is lost midway the
    question is asked again, so `on_text` may then see the beginning of a second answer; the reply holds that one alone.
    """

    @property
    def name(self) -> str: ...

    @property
    def price(self) -> Price | None: ...

    def complete(self, question: Question, on_text: OnText) -> Reply: ...

    def close(self) -> None: ...


def say_on_stderr(text: str) -> None:
    """Where notices go unless told otherwise: that a relay waits, that a question is asked again."""
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Opening:
    """What an adapter is opened with. The environment holds keys, so it is never shown."""

    provider: str
    model: str  # what follows the provider's colon
    base_url: str | None = None
    say: Callable[[str], None] = say_on_stderr
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    retries: RetryPolicy = field(default_factory=RetryPolicy)
    timeout_s: float = (
        600.0  # the longest silence on an open connection; models that think first are silent for minutes
    )

    @property
    def name(self) -> str:
        return f"{self.provider}:{self.model}"

    @property
    def scrub(self) -> Scrubber:
        return Scrubber.of(self.environ)

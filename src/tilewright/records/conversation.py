"""A question to a model and its reply, with what it cost. Nothing here holds a key."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum


class Role(str, Enum):
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True)
class Message:
    role: Role
    text: str


@dataclass(frozen=True)
class Question:
    """What a model is asked. `system` is the same for many questions, so adapters ask for it to be cached.

    `id` names the question within its run, `0003-1`: a relay names its files after it, a replay finds its reply by it.
    """

    id: str
    system: str
    messages: tuple[Message, ...]
    max_output_tokens: int = 32_000  # what a model thinks before it answers counts too

    def __post_init__(self) -> None:
        if not self.messages or self.messages[-1].role is not Role.USER:
            raise ValueError("a question ends with a message of the user")


class StopReason(str, Enum):
    END = "end"
    LENGTH = "length"  # the reply was cut at the output limit
    REFUSED = "refused"


@dataclass(frozen=True)
class Usage:
    """Tokens of one reply. Tokens read from or written to a cache are counted apart from plain input."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    @property
    def all_input_tokens(self) -> int:
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )


@dataclass(frozen=True)
class Cut:
    """Streams that were cut before their reply was whole. They are billed too: their input and what had been written.

    What the service had not counted when it was cut is estimated, so these figures are near, not exact.
    """

    usage: Usage = field(default_factory=Usage)
    dollars: float | None = 0.0  # None: no price is known

    def __add__(self, other: Cut) -> Cut:
        dollars = None if self.dollars is None or other.dollars is None else self.dollars + other.dollars
        return Cut(self.usage + other.usage, dollars)

    @property
    def tokens(self) -> int:
        return self.usage.all_input_tokens + self.usage.output_tokens


@dataclass(frozen=True)
class Reply:
    """What came back. `dollars` is None where the model has no known price; tokens are the model's own count.

    `usage` and `dollars` are all that was spent on it, `cut` included.
    """

    model: str  # "anthropic:claude-sonnet-5", as asked for
    text: str
    stop: StopReason
    usage: Usage = field(default_factory=Usage)
    dollars: float | None = None
    seconds: float = 0.0
    retries: int = 0
    cut: Cut = field(default_factory=Cut)
    by_person: bool = False  # or by an agent, through files: `seconds` is time that nobody worked here

    def after(self, cut: Cut) -> Reply:
        """The same reply, after streams that were cut."""
        if not cut.tokens:
            return self
        dollars = None if self.dollars is None or cut.dollars is None else self.dollars + cut.dollars
        return replace(self, usage=self.usage + cut.usage, dollars=dollars, cut=self.cut + cut)


class NoReply(RuntimeError):
    """Asking failed for good; `cut` is what was spent on it all the same."""

    cut = Cut()

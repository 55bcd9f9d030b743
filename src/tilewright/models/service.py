"""What the adapters of HTTP services share: reading their failures, and their streams up to the end.

Both official SDKs come from one generator, so their exceptions carry the same fields; nothing here imports either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from tilewright.models.errors import ModelError, ModelRejected
from tilewright.models.keys import Scrubber
from tilewright.models.prices import Price
from tilewright.models.protocol import OnText
from tilewright.models.retries import Passing, asked_wait_s, is_passing
from tilewright.records import Cut, Usage

T = TypeVar("T")
CONNECT_S = 10.0
ASKED_AGAIN = "\n\n[broken off here and asked again]\n\n"
_LONGEST_QUOTE = 400


class StreamCut(Exception):
    """A stream that broke or ended before the model had finished."""


def read_stream(stream: Iterable[T], sdk_error: type[Exception]) -> Iterator[T]:
    """The items of a stream; whatever breaks it, from a lost connection to malformed JSON, becomes `StreamCut`."""
    items = iter(stream)
    while True:
        try:
            item = next(items)
        except StopIteration:
            return
        except Exception as error:
            if isinstance(error, sdk_error):
                raise
            problem = type(error).__name__
        else:
            yield item
            continue
        raise StreamCut(f"the stream broke ({problem})")


class Hearing:
    """A reply as it comes in, passed on without keys: what may be the beginning of one waits for the next piece."""

    def __init__(self, on_text: OnText, scrub: Scrubber) -> None:
        self._on_text = on_text
        self._scrub = scrub
        self._held = ""
        self._heard = False

    def begin(self) -> None:
        """An answer begins; whoever has heard part of an earlier one is told that it does not count."""
        self._held = ""
        if self._heard:
            self._on_text(ASKED_AGAIN)
            self._heard = False

    def add(self, piece: str) -> None:
        text = self._scrub(self._held + piece)
        waiting = max((_overlap(text, secret) for secret in self._scrub.secrets), default=0)
        self._held = text[len(text) - waiting :]
        self._pass_on(text[: len(text) - waiting])

    def end(self) -> None:
        self._pass_on(self._held)
        self._held = ""

    def _pass_on(self, text: str) -> None:
        if text:
            self._heard = True
            self._on_text(text)


class Bill:
    """What the streams of one question that were cut have cost so far."""

    def __init__(self, price: Price | None) -> None:
        self._price = price
        self.cut = Cut()

    def add(self, usage: Usage) -> None:
        self.cut += Cut(usage, self._price.dollars(usage) if self._price else None)

    @contextmanager
    def on_failure(self) -> Iterator[None]:
        """A question that fails for good takes the bill along."""
        try:
            yield
        except ModelError as error:
            error.cut = self.cut
            raise


def _overlap(text: str, secret: str) -> int:
    """How many characters at the end of the text are the beginning of the secret, which is not in it whole."""
    lengths = range(min(len(text), len(secret) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(secret[:length])), 0)


def shown_address(base_url: str) -> str:
    """A base URL fit to be shown: without a name and password that may stand before its host."""
    parts = urlsplit(base_url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))


@dataclass(frozen=True)
class Service:
    """A service as its user knows it, for sentences about it."""

    name: str  # of the model, as asked for
    key_variable: str
    address: str
    scrub: Scrubber

    def unreachable(self) -> Passing:
        return Passing(f"{self.address} could not be reached or did not answer in time")

    def failure(self, status: int, body: object, fallback: str, headers: Mapping[str, str]) -> Passing | ModelError:
        """An HTTP error: one that may pass, or a final one in a sentence."""
        said = self.quote(body, fallback)
        if is_passing(status) and not _is_spent(body):
            return Passing(f"the service answered {status}: {said}", asked_wait_s(headers))
        return ModelRejected(f"{self.name}: {self._advice(status)} ({status}): {said}")

    def quote(self, body: object, fallback: str) -> str:
        """What the service said, short, on one line and without keys."""
        text = " ".join(self.scrub(_said(body) or fallback).split())
        return text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "..."

    def _advice(self, status: int) -> str:
        match status:
            case 401:
                return f"the service did not accept the key; check {self.key_variable}"
            case 403:
                return f"the key may not use this model; check what {self.key_variable} is allowed"
            case 404:
                return f"{self.address} knows no such model or path; check the model's name and the base URL"
            case 402 | 429:
                return "the account has nothing left to spend; check its billing"
            case 413:
                return "the question is larger than the service takes"
            case _:
                return "the service rejected the question"


def _is_spent(body: object) -> bool:
    """Whether a 429 is about money rather than pace: waiting does not help."""
    return any(_field(body, key) in ("insufficient_quota", "billing_error") for key in ("code", "type"))


def _field(body: object, key: str) -> Any:
    if not isinstance(body, dict):
        return None
    inner = body.get("error")
    return inner.get(key) if isinstance(inner, dict) else body.get(key)


def _said(body: object) -> str | None:
    for key in ("message", "detail"):
        if (found := _field(body, key)) is not None:
            return str(found)
    if isinstance(body, dict) and isinstance(body.get("error"), str):
        return str(body["error"])
    return body if isinstance(body, str) and body.strip() else None

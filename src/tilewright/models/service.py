"""What the adapters of HTTP services share: requests, streams, retries, token counts and error messages.

Both official SDKs come from one generator: their clients take the same arguments and their exceptions have the same
names and fields. So an adapter says how a question is sent and what an event means, and nothing here imports an SDK.

The SDKs' own retries are switched off. They end once the first byte of a stream has arrived, and a stream that is cut
must be requested again as a whole; two layers of retries would multiply."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from tilewright.models.prices import Price, find_price
from tilewright.models.protocol import (
    MOST_REPLY_BYTES,
    MissingKey,
    ModelError,
    ModelRejected,
    ModelUnavailable,
    OnText,
    Opening,
    ReplyTooLarge,
    RetryPolicy,
    Scrubber,
    key_of,
)
from tilewright.records import Cut, Question, Reply, StopReason, Usage

PASSING_STATUSES = frozenset({408, 409, 425, 429})  # and every 5xx, Anthropic's 529 among them


@dataclass(frozen=True)
class Passing:
    """A failure that may pass, and the wait that the server asks for."""

    reason: str
    asked_s: float | None = None


def is_passing(status: int) -> bool:
    return status in PASSING_STATUSES or status >= 500


def asked_wait_s(headers: Mapping[str, str]) -> float | None:
    """What `Retry-After` asks for: seconds, milliseconds in the form both SDKs know, or a date."""
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000.0
    text = headers.get("retry-after")
    if text is None:
        return None
    if (seconds := _number(text)) is not None:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else -1.0
    except ValueError:
        return None
    return value if 0.0 <= value < float("inf") else None


def ask_until_answered(
    once: Callable[[], T],
    failure_of: Callable[[Exception], Passing | ModelError | None],
    policy: RetryPolicy,
    who: str,
    say: Callable[[str], None],
) -> tuple[T, int]:
    """What `once` returns, and how many retries that took.

    `failure_of` reads an exception: one that may pass, one that is final, or None for one that is not the service's.
    The exceptions of the SDKs hold the request with its key, so they are never chained to the one raised here.
    """
    for attempt in range(policy.attempts):
        try:
            return once(), attempt
        except Exception as error:
            failure = failure_of(error)
            if failure is None:
                raise
        if isinstance(failure, ModelError):
            raise failure
        if failure.asked_s is not None and failure.asked_s > policy.longest_asked_s:
            raise ModelUnavailable(
                f"{who} asks to wait {failure.asked_s:.0f} s ({failure.reason}); resume the run later"
            )
        if attempt + 1 == policy.attempts:
            raise ModelUnavailable(
                f"{who} did not answer in {policy.attempts} attempts; the last failed because {failure.reason}"
            )
        wait_s = max(policy.wait_s(attempt), failure.asked_s or 0.0)
        if time.monotonic() + wait_s > policy.give_up_at:
            raise ModelUnavailable(
                f"{who} did not answer, and there is no time left to ask again; the last attempt failed because "
                f"{failure.reason}"
            )
        say(f"{who}: {failure.reason}; asking again in {wait_s:.1f} s")
        time.sleep(wait_s)
    raise ValueError("a retry policy has at least one attempt")


T = TypeVar("T")
ASKED_AGAIN = "\n\n[broken off here and asked again]\n\n"
_CONNECT_S = 10.0
_NO_KEY = "no-key"  # what is sent to a server of one's own that wants none
_CHARACTERS_PER_TOKEN = 4
_LONGEST_QUOTE = 400
# Errors that arrive as events of a stream, whose HTTP status has been given as 200, and that would come again.
_FINAL_ERRORS = (
    "authentication_error",
    "billing_error",
    "invalid_request_error",
    "not_found_error",
    "permission_error",
    "request_too_large",
)


# -- a model behind a service --


class StreamedAnswer(ABC):
    """A reply under construction from the events of one stream."""

    def __init__(self) -> None:
        self.text = ""
        self.stop = StopReason.END
        self.begun = False  # the service has taken the question, so it is billed
        self.whole = False  # the model has finished

    @abstractmethod
    def add(self, event: Any) -> str:
        """Take in an event; returns the text it brought, if any. Thinking and unknown events bring none."""

    @abstractmethod
    def usage(self, question: Question) -> Usage:
        """The tokens so far: the service's count, or an estimate of what it has not counted yet."""

    def finished(self) -> tuple[str, StopReason]:
        return self.text, self.stop


class ServiceModel(ABC):
    """A model behind a service that streams its replies."""

    def __init__(self, opening: Opening, sdk: Any, client: Callable[..., Any]) -> None:
        provider = opening.provider
        key = key_of(opening.environ, provider.key)
        if provider.lacks_key(opening.base_url, opening.environ):
            raise MissingKey(
                f"{opening.name} needs a key; set {provider.key} in the environment, or give the base URL of a server "
                "of your own"
            )
        self.name = opening.name
        self.price: Price | None = find_price(provider.name, opening.model, opening.environ)
        self.opening = opening
        self.sdk = sdk
        self.client: Any = client(
            api_key=key or _NO_KEY,
            base_url=provider.own_server(opening.base_url, opening.environ) or provider.base_url,
            max_retries=0,
            timeout=sdk.Timeout(opening.timeout_s, connect=_CONNECT_S),
        )
        self._service = Service(self.name, provider.key, shown_address(str(self.client.base_url)), opening.scrub)

    @abstractmethod
    def answer(self) -> StreamedAnswer:
        """An answer of which nothing has come yet."""

    @abstractmethod
    def stream(self, question: Question) -> AbstractContextManager[Iterable[Any]]:
        """Send the question; the events of the reply."""

    def complete(self, question: Question, on_text: OnText) -> Reply:
        started = time.monotonic()
        incoming, bill = ReplyStream(on_text, self._service.scrub), Bill(self.price)
        with bill.on_failure():
            answer, retries = ask_until_answered(
                lambda: self._once(question, incoming, bill),
                self._failure_of,
                self.opening.retries,
                self.name,
                self.opening.say,
            )
        (text, stop), usage = answer.finished(), answer.usage(question)
        reply = Reply(
            model=self.name,
            text=self._service.scrub(text),
            stop=stop,
            usage=usage,
            dollars=self.price.dollars(usage) if self.price else None,
            seconds=time.monotonic() - started,
            retries=retries,
        )
        return reply.after(bill.cut)

    def _once(self, question: Question, incoming: ReplyStream, bill: Bill) -> StreamedAnswer:
        """The answer of one stream, taken in up to its end."""
        answer = self.answer()
        incoming.begin()
        try:
            with self.stream(question) as stream:
                for event in self._events(stream, answer):
                    if text := answer.add(event):
                        incoming.add(text)
                    if len(answer.text) > MOST_REPLY_BYTES:
                        raise ReplyTooLarge(f"the reply of {self.name}", len(answer.text))
            if not answer.whole:
                raise StreamCut("the stream ended before the reply did")
        except Exception:
            if answer.begun:
                bill.add(answer.usage(question))
            raise
        incoming.end()
        return answer

    def _events(self, stream: Iterable[T], answer: StreamedAnswer) -> Iterator[T]:
        """The events; whatever breaks them off, from a lost connection to malformed JSON, is a `StreamCut`.

        A stream that breaks when the answer is whole has ended.
        """
        events = iter(stream)
        while True:
            try:
                event = next(events)
            except StopIteration:
                return
            except Exception as error:
                lost = isinstance(error, self.sdk.APIConnectionError)
                if isinstance(error, self.sdk.APIError) and not lost:
                    raise
                problem = type(error).__name__
            else:
                yield event
                continue
            if answer.whole:
                return
            raise StreamCut(f"the stream broke ({problem})")

    def _failure_of(self, error: Exception) -> Passing | ModelError | None:
        sdk, service = self.sdk, self._service
        if isinstance(error, StreamCut):
            return Passing(str(error))
        if isinstance(error, sdk.APIConnectionError):
            return service.unreachable()
        if isinstance(error, sdk.APIStatusError) and error.status_code != 200:
            return service.failure(error.status_code, error.body, error.message, error.response.headers)
        if isinstance(error, sdk.APIError):
            # Sent as an event of the stream: it carries no status of its own, so it may pass unless its type says not.
            if getattr(error, "type", None) in _FINAL_ERRORS:
                return service.failure(400, error.body, error.message, {})
            return Passing(f"the service broke off: {service.quote(error.body, error.message)}")
        if isinstance(error, sdk.APIError.__base__):  # what the SDK says of itself
            return ModelError(f"{self.name}: {service.quote(None, str(error))}")
        return None

    def close(self) -> None:
        self.client.close()


# -- streams and failures --


class StreamCut(Exception):
    """A stream that broke or ended before the model had finished."""


class ReplyStream:
    """Passes on a reply as it arrives, without keys: what may be the beginning of a key waits for the next piece."""

    def __init__(self, on_text: OnText, scrub: Scrubber) -> None:
        self._on_text = on_text
        self._scrub = scrub
        self._held = ""
        self._passed_on = False

    def begin(self) -> None:
        """Begin an answer; if part of an earlier one was passed on, a note says that it does not count."""
        self._held = ""
        if self._passed_on:
            self._on_text(ASKED_AGAIN)
            self._passed_on = False

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
            self._passed_on = True
            self._on_text(text)


class Bill:
    """The cost of the streams of one question that were cut."""

    def __init__(self, price: Price | None) -> None:
        self._price = price
        self.cut = Cut()

    def add(self, usage: Usage) -> None:
        self.cut += Cut(usage, self._price.dollars(usage) if self._price else None)

    @contextmanager
    def on_failure(self) -> Iterator[None]:
        """A question that fails finally carries its cost in the error."""
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
    """The facts of a service for messages about it."""

    name: str  # of the model, as asked for
    key_variable: str
    address: str
    scrub: Scrubber

    def unreachable(self) -> Passing:
        return Passing(f"{self.address} could not be reached or did not answer in time")

    def failure(self, status: int, body: object, fallback: str, headers: Mapping[str, str]) -> Passing | ModelError:
        """An HTTP error: one that may pass, or a final one in a sentence."""
        message = self.quote(body, fallback)
        if is_passing(status) and not _is_spent(body):
            return Passing(f"the service answered {status}: {message}", asked_wait_s(headers))
        return ModelRejected(f"{self.name}: {self._advice(status)} ({status}): {message}")

    def quote(self, body: object, fallback: str) -> str:
        """The service's message, short, on one line and without keys."""
        text = " ".join(self.scrub(_message(body) or fallback).split())
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


def _message(body: object) -> str | None:
    for key in ("message", "detail"):
        if (found := _field(body, key)) is not None:
            return str(found)
    if isinstance(body, dict) and isinstance(body.get("error"), str):
        return str(body["error"])
    return body if isinstance(body, str) and body.strip() else None


# -- the text of a reply --


def estimated_usage(question: Question, text: str) -> Usage:
    """Tokens by the rule of thumb of four characters each, for those who do not count: people and some servers."""
    asked = len(question.system) + sum(len(message.text) for message in question.messages)
    return Usage(input_tokens=estimated_tokens(asked), output_tokens=estimated_tokens(len(text)))


def estimated_tokens(characters: int) -> int:
    return -(-characters // _CHARACTERS_PER_TOKEN)


def without_thinking(text: str) -> str:
    """The text after a leading `<think>` section, which open models send as text where their server leaves it in.

    Some chat templates put the opening tag into the prompt, so only the closing one is seen.
    """
    head, tag, rest = text.partition("</think>")
    if not tag:
        return text
    return rest.lstrip() if head.lstrip().startswith("<think>") or "<think>" not in head else text

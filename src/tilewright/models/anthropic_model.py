"""Claude through Anthropic's Messages API. The system text is sent as a block to be cached, since runs repeat it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import anthropic
from anthropic.types import RawMessageStreamEvent, TextBlockParam

from tilewright.models.errors import MissingKey, ModelError
from tilewright.models.keys import NO_KEY, key_of
from tilewright.models.prices import Price, find_price
from tilewright.models.protocol import OnText, Opening
from tilewright.models.reply_text import estimated_tokens
from tilewright.models.retries import Passing, ask_until_answered
from tilewright.models.service import CONNECT_S, Bill, Hearing, Service, StreamCut, read_stream, shown_address
from tilewright.records import Question, Reply, StopReason, Usage

KEY_VARIABLE = "ANTHROPIC_API_KEY"
# Errors that arrive as events of a stream, where the HTTP status has already been given as 200.
_PASSING_ERRORS = ("overloaded_error", "api_error", "rate_limit_error", "timeout_error")


def open_model(opening: Opening) -> AnthropicModel:
    return AnthropicModel(opening)


class _Answer:
    """A reply under construction from the events of one stream."""

    def __init__(self) -> None:
        self.text = ""
        self.stop: StopReason | None = None
        self.begun = self.ended = False
        self.characters = 0  # of text and of thinking
        self.input_tokens = self.output_tokens = self.cache_read_tokens = self.cache_write_tokens = 0

    def add(self, event: RawMessageStreamEvent) -> str:
        """Takes in an event; returns the text it brought, if any. Thinking and unknown events bring none."""
        match event.type:
            case "message_start":
                self.begun = True
                self._count(event.message.usage)
            case "content_block_delta":
                if event.delta.type == "thinking_delta":
                    self.characters += len(event.delta.thinking)
                if event.delta.type == "text_delta":
                    self.characters += len(event.delta.text)
                    self.text += event.delta.text
                    return event.delta.text
            case "message_delta":
                self._count(event.usage)
                self._finish(event.delta)
            case "message_stop":
                self.ended = True
        return ""

    def _count(self, usage: anthropic.types.Usage | anthropic.types.MessageDeltaUsage) -> None:
        # Counts are cumulative; a field that an event leaves out keeps its earlier value.
        self.output_tokens = usage.output_tokens
        if usage.input_tokens is not None:
            self.input_tokens = usage.input_tokens
        if usage.cache_read_input_tokens is not None:
            self.cache_read_tokens = usage.cache_read_input_tokens
        if usage.cache_creation_input_tokens is not None:
            self.cache_write_tokens = usage.cache_creation_input_tokens

    def _finish(self, delta: anthropic.types.raw_message_delta_event.Delta) -> None:
        match delta.stop_reason:
            case None:
                return
            case "max_tokens" | "model_context_window_exceeded":
                self.stop = StopReason.LENGTH
            case "refusal":
                self.stop = StopReason.REFUSED
                if delta.stop_details is not None and delta.stop_details.explanation:
                    self.text = self.text or delta.stop_details.explanation
            case _:
                self.stop = StopReason.END

    @property
    def usage(self) -> Usage:
        return Usage(self.input_tokens, self.output_tokens, self.cache_read_tokens, self.cache_write_tokens)

    @property
    def usage_when_cut(self) -> Usage:
        """The service counts output at the end only, so what had come until then is estimated."""
        return replace(self.usage, output_tokens=max(self.output_tokens, estimated_tokens(self.characters)))


class AnthropicModel:
    """A model of Anthropic, or one behind a base URL that speaks the same protocol."""

    def __init__(self, opening: Opening) -> None:
        base_url = opening.base_url or opening.environ.get("ANTHROPIC_BASE_URL")
        key = key_of(opening.environ, KEY_VARIABLE)
        if key is None and base_url is None:
            raise MissingKey(f"{opening.name} needs a key; set {KEY_VARIABLE} in the environment")
        self.name = opening.name
        self.price: Price | None = find_price(opening.provider, opening.model, opening.environ)
        self._opening = opening
        self._client = anthropic.Anthropic(
            api_key=key or NO_KEY,
            base_url=base_url,
            max_retries=0,
            timeout=anthropic.Timeout(opening.timeout_s, connect=CONNECT_S),
        )
        self._service = Service(self.name, KEY_VARIABLE, shown_address(str(self._client.base_url)), opening.scrub)

    def complete(self, question: Question, on_text: OnText) -> Reply:
        started = time.monotonic()
        hearing, bill = Hearing(on_text, self._service.scrub), Bill(self.price)
        with bill.on_failure():
            answer, retries = ask_until_answered(
                lambda: self._once(question, hearing, bill),
                self._failure_of,
                self._opening.retries,
                self.name,
                self._opening.say,
            )
        reply = Reply(
            model=self.name,
            text=self._service.scrub(answer.text),
            stop=answer.stop or StopReason.END,
            usage=answer.usage,
            dollars=self.price.dollars(answer.usage) if self.price else None,
            seconds=time.monotonic() - started,
            retries=retries,
        )
        return reply.after(bill.cut)

    def _once(self, question: Question, hearing: Hearing, bill: Bill) -> _Answer:
        answer = _Answer()
        hearing.begin()
        try:
            self._read(question, answer, hearing)
        except Exception:
            if answer.begun:
                bill.add(answer.usage_when_cut)
            raise
        hearing.end()
        return answer

    def _read(self, question: Question, answer: _Answer, hearing: Hearing) -> None:
        """Take in the stream up to its end."""
        messages: list[Any] = [{"role": one.role.value, "content": one.text} for one in question.messages]
        with self._client.messages.create(
            model=self._opening.model,
            max_tokens=question.max_output_tokens,
            system=_system(question) or anthropic.omit,
            messages=messages,
            stream=True,
        ) as stream:
            for event in read_stream(stream, anthropic.AnthropicError):
                if text := answer.add(event):
                    hearing.add(text)
        if not answer.ended:
            raise StreamCut("the stream ended before the reply did")

    def _failure_of(self, error: Exception) -> Passing | ModelError | None:
        match error:
            case StreamCut():
                return Passing(str(error))
            case anthropic.APIStatusError() if error.status_code == 200:
                said = self._service.quote(error.body, error.message)
                if error.type in _PASSING_ERRORS:
                    return Passing(f"the service broke off: {said}")
                return self._service.failure(400, error.body, error.message, {})
            case anthropic.APIStatusError():
                return self._service.failure(error.status_code, error.body, error.message, error.response.headers)
            case anthropic.APIConnectionError():
                return self._service.unreachable()
            case anthropic.AnthropicError():
                return ModelError(f"{self.name}: {self._service.quote(None, str(error))}")
        return None

    def close(self) -> None:
        self._client.close()


def _system(question: Question) -> list[TextBlockParam]:
    if not question.system:
        return []
    return [{"type": "text", "text": question.system, "cache_control": {"type": "ephemeral"}}]

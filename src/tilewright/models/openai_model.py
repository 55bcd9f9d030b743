"""Models behind the chat-completions API: OpenAI's own, the Hugging Face router, and servers of one's own.

vLLM, Ollama, llama.cpp and `transformers serve` speak it in dialects. What a server rejects by name is left out from
then on: usage within the stream, the cache key, one or the other way of saying how long a reply may be.
"""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import openai
from openai.types.chat import ChatCompletionChunk

from tilewright.models.errors import MissingKey, ModelError
from tilewright.models.keys import NO_KEY, key_of
from tilewright.models.prices import Price, find_price
from tilewright.models.protocol import OnText, Opening
from tilewright.models.reply_text import estimated_tokens, estimated_usage, without_thinking
from tilewright.models.retries import Passing, ask_until_answered
from tilewright.models.service import CONNECT_S, Bill, Hearing, Service, StreamCut, read_stream, shown_address
from tilewright.records import Question, Reply, StopReason, Usage

HUGGING_FACE_ROUTER = "https://router.huggingface.co/v1"
_OWN_HOST = "api.openai.com"
_REASONING = ("reasoning_content", "reasoning")  # what servers call it
_LENGTH_NAMES = ("max_completion_tokens", "max_tokens")


def open_model(opening: Opening) -> OpenAIModel:
    """`openai:MODEL`, with the key of OpenAI; with a base URL, a server that may want none."""
    return OpenAIModel(opening, "OPENAI_API_KEY", opening.base_url or opening.environ.get("OPENAI_BASE_URL"))


def open_hugging_face(opening: Opening) -> OpenAIModel:
    """`hf:ORG/MODEL` or `hf:ORG/MODEL:PROVIDER`: an open model through the Hugging Face router."""
    if opening.base_url is None and key_of(opening.environ, "HF_TOKEN") is None:
        raise MissingKey(f"{opening.name} needs a token of Hugging Face; set HF_TOKEN in the environment")
    return OpenAIModel(opening, "HF_TOKEN", opening.base_url or HUGGING_FACE_ROUTER)


class _Dialect:
    """Which optional fields the server takes; learnt from what it rejects."""

    def __init__(self, own: bool) -> None:
        # Others may ignore the newer name without a word, and a reply without a limit can run for an hour.
        self._length_names = list(_LENGTH_NAMES if own else reversed(_LENGTH_NAMES))
        self._optional = {"stream_options", "prompt_cache_key"} if own else {"stream_options"}

    def fields(self, question: Question) -> dict[str, Any]:
        offered: dict[str, Any] = {
            "stream_options": {"include_usage": True},
            "prompt_cache_key": hashlib.sha256(question.system.encode()).hexdigest()[:32],
        }
        fields = {name: value for name, value in offered.items() if name in self._optional}
        return {**fields, self._length_names[0]: question.max_output_tokens}

    def learn(self, complaint: str) -> bool:
        """Leaves out a field the complaint names; whether there was one, so that asking again makes sense."""
        for name in sorted(self._optional):
            if _mentions(complaint, name):
                self._optional.remove(name)
                return True
        if len(self._length_names) == 2 and _mentions(complaint, self._length_names[0]):
            del self._length_names[0]
            return True
        return False


def _mentions(text: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", text) is not None


class _Answer:
    """A reply under construction from the chunks of one stream."""

    def __init__(self) -> None:
        self.text = ""
        self.refusal = ""
        self.reasoning = 0  # characters of it that came apart from the text
        self.begun = False
        self.finish: str | None = None
        self.usage: Usage | None = None

    def add(self, chunk: ChatCompletionChunk) -> str:
        """Takes in a chunk; returns the text it brought, if any. Reasoning sent apart from the text brings none."""
        self.begun = True
        if chunk.usage is not None:
            self.usage = _usage(chunk.usage)
        # Servers send chunks without choices (usage at the end) or with null in place of what they leave out.
        for choice in chunk.choices or ():
            self.finish = choice.finish_reason or self.finish
            delta: Any = choice.delta
            if delta is not None:
                self.refusal += delta.refusal or ""
                self.reasoning += max(len(str(getattr(delta, name, None) or "")) for name in _REASONING)
                self.text += (piece := str(delta.content or ""))
                return piece
        return ""

    def usage_so_far(self, question: Question) -> Usage:
        """The service counts at the end, and some never: until then it is estimated from what has come."""
        if self.usage is not None:
            return self.usage
        estimated = estimated_usage(question, self.text + self.refusal)
        return replace(estimated, output_tokens=estimated.output_tokens + estimated_tokens(self.reasoning))

    @property
    def stop(self) -> StopReason:
        if self.refusal or self.finish == "content_filter":
            return StopReason.REFUSED
        return StopReason.LENGTH if self.finish == "length" else StopReason.END


def _usage(counted: openai.types.CompletionUsage) -> Usage:
    """Here the input counts include the cached ones; our record keeps them apart."""
    details = counted.prompt_tokens_details
    read = (details.cached_tokens or 0) if details else 0
    written = (details.cache_write_tokens or 0) if details else 0
    plain = max(0, counted.prompt_tokens - read - written)
    return Usage(plain, counted.completion_tokens, read, written)


class OpenAIModel:
    """A model behind the chat-completions API. Where the server counts no tokens they are estimated."""

    def __init__(self, opening: Opening, key_variable: str, base_url: str | None) -> None:
        key = key_of(opening.environ, key_variable)
        if key is None and base_url is None:
            raise MissingKey(
                f"{opening.name} needs a key; set {key_variable} in the environment, or give the base URL of a server "
                "of your own"
            )
        self.name = opening.name
        self.price: Price | None = find_price(opening.provider, opening.model, opening.environ)
        self._opening = opening
        self._client = openai.OpenAI(
            api_key=key or NO_KEY,
            base_url=base_url,
            max_retries=0,
            timeout=openai.Timeout(opening.timeout_s, connect=CONNECT_S),
        )
        address = str(self._client.base_url)
        self._dialect = _Dialect(own=urlsplit(address).hostname == _OWN_HOST)
        self._service = Service(self.name, key_variable, shown_address(address), opening.scrub)

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
        text = self._service.scrub(without_thinking(answer.text) or answer.refusal)
        usage = answer.usage_so_far(question)
        reply = Reply(
            model=self.name,
            text=text,
            stop=answer.stop,
            usage=usage,
            dollars=self.price.dollars(usage) if self.price else None,
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
                bill.add(answer.usage_so_far(question))
            raise
        hearing.end()
        return answer

    def _read(self, question: Question, answer: _Answer, hearing: Hearing) -> None:
        """Take in the stream up to its end."""
        with self._open_stream(question) as stream:
            try:
                for chunk in read_stream(stream, openai.OpenAIError):
                    if text := answer.add(chunk):
                        hearing.add(text)
            except (StreamCut, openai.APIConnectionError) as error:
                # Cut after the model had finished: only the count of tokens is missing, and that can be estimated.
                if answer.finish is None:
                    said = str(error) if isinstance(error, StreamCut) else f"the stream broke ({type(error).__name__})"
                    raise StreamCut(said) from None
        if answer.finish is None:
            raise StreamCut("the stream ended before the reply did")

    def _open_stream(self, question: Question) -> openai.Stream[ChatCompletionChunk]:
        messages: list[Any] = [{"role": "system", "content": question.system}] if question.system else []
        messages += [{"role": one.role.value, "content": one.text} for one in question.messages]
        while True:
            try:
                stream: openai.Stream[ChatCompletionChunk] = self._client.chat.completions.create(
                    model=self._opening.model, messages=messages, stream=True, **self._dialect.fields(question)
                )
                return stream
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                if not self._dialect.learn(error.message):
                    raise

    def _failure_of(self, error: Exception) -> Passing | ModelError | None:
        match error:
            case StreamCut():
                return Passing(str(error))
            case openai.APIStatusError():
                return self._service.failure(error.status_code, error.body, error.message, error.response.headers)
            case openai.APIConnectionError():
                return self._service.unreachable()
            case openai.APIError():
                # An error sent as an event of the stream. It carries no status, so it may pass.
                return Passing(f"the service broke off: {self._service.quote(error.body, error.message)}")
            case openai.OpenAIError():
                return ModelError(f"{self.name}: {self._service.quote(None, str(error))}")
        return None

    def close(self) -> None:
        self._client.close()

"""Models behind the chat-completions API: OpenAI's own, the Hugging Face router, and servers of one's own.

vLLM, Ollama, llama.cpp and `transformers serve` speak it in dialects. What a server rejects by name is left out from
then on: usage within the stream, the cache key, one or the other way of saying how long a reply may be.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tilewright.models.protocol import Opening, Provider
from tilewright.models.service import (
    ServiceModel,
    StreamedAnswer,
    estimated_tokens,
    estimated_usage,
    without_thinking,
)
from tilewright.records import Question, StopReason, Usage

if TYPE_CHECKING:
    from openai import Stream
    from openai.types import CompletionUsage
    from openai.types.chat import ChatCompletionChunk

_OWN_HOST = "api.openai.com"
_REASONING = ("reasoning_content", "reasoning")  # what servers call it
_LENGTH_NAMES = ("max_completion_tokens", "max_tokens")


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


class _ChatAnswer(StreamedAnswer):
    """From the chunks of one completion. Reasoning sent apart from the text is none of it."""

    def __init__(self) -> None:
        super().__init__()
        self.refusal = ""
        self.reasoning = 0  # characters of it that came apart from the text
        self.counted: Usage | None = None

    def add(self, chunk: ChatCompletionChunk) -> str:
        self.begun = True
        if chunk.usage is not None:
            self.counted = _usage(chunk.usage)
        # Servers send chunks without choices (usage at the end) or with null in place of what they leave out.
        for choice in chunk.choices or ():
            if choice.finish_reason:
                self._finish(choice.finish_reason)
            delta: Any = choice.delta
            if delta is not None:
                self.refusal += delta.refusal or ""
                self.reasoning += max(len(str(getattr(delta, name, None) or "")) for name in _REASONING)
                self.text += (piece := str(delta.content or ""))
                return piece
        return ""

    def _finish(self, reason: str) -> None:
        """What may still come is the count of tokens, and that can be estimated."""
        self.whole = True
        self.stop = {"content_filter": StopReason.REFUSED, "length": StopReason.LENGTH}.get(reason, StopReason.END)

    def finished(self) -> tuple[str, StopReason]:
        stop = StopReason.REFUSED if self.refusal else self.stop
        return without_thinking(self.text) or self.refusal, stop

    def usage(self, question: Question) -> Usage:
        """The service counts at the end, and some never: until then it is estimated from what has come."""
        if self.counted is not None:
            return self.counted
        estimated = estimated_usage(question, self.text + self.refusal)
        return replace(estimated, output_tokens=estimated.output_tokens + estimated_tokens(self.reasoning))


def _usage(counted: CompletionUsage) -> Usage:
    """Here the input counts include the cached ones; our record keeps them apart."""
    details = counted.prompt_tokens_details
    read = (details.cached_tokens or 0) if details else 0
    written = (details.cache_write_tokens or 0) if details else 0
    plain = max(0, counted.prompt_tokens - read - written)
    return Usage(plain, counted.completion_tokens, read, written)


class OpenAIModel(ServiceModel):
    """A model behind the chat-completions API. Where the server counts no tokens they are estimated."""

    def __init__(self, opening: Opening) -> None:
        import openai

        super().__init__(opening, openai, openai.OpenAI)
        self._dialect = _Dialect(own=urlsplit(str(self.client.base_url)).hostname == _OWN_HOST)

    def answer(self) -> StreamedAnswer:
        return _ChatAnswer()

    def stream(self, question: Question) -> Stream[ChatCompletionChunk]:
        messages = [{"role": "system", "content": question.system}] if question.system else []
        messages += [{"role": one.role.value, "content": one.text} for one in question.messages]
        while True:
            try:
                stream: Stream[ChatCompletionChunk] = self.client.chat.completions.create(
                    model=self.opening.model, messages=messages, stream=True, **self._dialect.fields(question)
                )
                return stream
            except (self.sdk.BadRequestError, self.sdk.UnprocessableEntityError) as error:
                if not self._dialect.learn(error.message):
                    raise


PROVIDERS = (
    Provider(  # with a base URL, a server that may want no key
        "openai",
        OpenAIModel,
        key="OPENAI_API_KEY",
        address="OPENAI_BASE_URL",
        default_model="gpt-6.1-sol",
        rank=2,
        package="openai",
    ),
    Provider(  # `hf:ORG/MODEL` or `hf:ORG/MODEL:PROVIDER`: an open model through the Hugging Face router
        "hf",
        OpenAIModel,
        key="HF_TOKEN",
        base_url="https://router.huggingface.co/v1",
        default_model="openai/gpt-oss-120b",
        rank=3,
        package="openai",
    ),
)

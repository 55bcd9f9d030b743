"""Claude through Anthropic's Messages API. The system text is sent as a block to be cached, since runs repeat it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.models.protocol import Opening, Provider
from tilewright.models.service import ServiceModel, StreamedAnswer, estimated_tokens
from tilewright.records import Question, StopReason, Usage

if TYPE_CHECKING:
    from anthropic import Stream, types
    from anthropic.types.raw_message_delta_event import Delta


class _MessageAnswer(StreamedAnswer):
    """From the events of one message."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = 0  # of text and of thinking
        self.counted = Usage()

    def add(self, event: types.RawMessageStreamEvent) -> str:
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
                self.whole = True
        return ""

    def _count(self, usage: types.Usage | types.MessageDeltaUsage) -> None:
        # Counts are cumulative; a field that an event leaves out keeps its earlier value.
        found = {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cache_read_tokens": usage.cache_read_input_tokens,
            "cache_write_tokens": usage.cache_creation_input_tokens,
        }
        self.counted = replace(self.counted, **{name: count for name, count in found.items() if count is not None})

    def _finish(self, delta: Delta) -> None:
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

    def usage(self, question: Question) -> Usage:
        """The service counts output at the end only, so what had come until a cut is estimated."""
        if self.whole:
            return self.counted
        return replace(self.counted, output_tokens=max(self.counted.output_tokens, estimated_tokens(self.characters)))


class AnthropicModel(ServiceModel):
    """A model of Anthropic, or one behind a base URL that speaks the same protocol."""

    def __init__(self, opening: Opening) -> None:
        import anthropic

        super().__init__(opening, anthropic, anthropic.Anthropic)

    def answer(self) -> StreamedAnswer:
        return _MessageAnswer()

    def stream(self, question: Question) -> Stream[types.RawMessageStreamEvent]:
        cached = [{"type": "text", "text": question.system, "cache_control": {"type": "ephemeral"}}]
        stream: Stream[types.RawMessageStreamEvent] = self.client.messages.create(
            model=self.opening.model,
            max_tokens=question.max_output_tokens,
            system=cached if question.system else self.sdk.omit,
            messages=[{"role": one.role.value, "content": one.text} for one in question.messages],
            stream=True,
        )
        return stream


PROVIDERS = (
    Provider(
        "anthropic",
        AnthropicModel,
        key="ANTHROPIC_API_KEY",
        address="ANTHROPIC_BASE_URL",
        default_model="claude-sonnet-5-5",
        rank=1,
        package="anthropic",
    ),
)

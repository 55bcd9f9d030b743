"""Small things every adapter needs to know about the text of a reply."""

from __future__ import annotations

from tilewright.records import Question, Usage

CHARACTERS_PER_TOKEN = 4


def estimated_usage(question: Question, text: str) -> Usage:
    """Tokens by the rule of thumb of four characters each, for those who do not count: people and some servers."""
    asked = len(question.system) + sum(len(message.text) for message in question.messages)
    return Usage(input_tokens=estimated_tokens(asked), output_tokens=estimated_tokens(len(text)))


def estimated_tokens(characters: int) -> int:
    return -(-characters // CHARACTERS_PER_TOKEN)


def without_thinking(text: str) -> str:
    """The text after a leading `<think>` section, which open models send as text where their server leaves it in.

    Some chat templates put the opening tag into the prompt, so only the closing one is seen.
    """
    head, tag, rest = text.partition("</think>")
    if not tag:
        return text
    return rest.lstrip() if head.lstrip().startswith("<think>") or "<think>" not in head else text

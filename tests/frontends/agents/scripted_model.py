"""A model of smolagents that knows one task by heart: it answers to what it reads, and to nothing it has not read."""

from __future__ import annotations

import re
from typing import Any

from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole, Model
from tests.frontends.agents.silu import ASKED, MENDED_BY_EDIT, WRONG

_ASKED_FOR = re.compile(r'submit_kernel\(run="([^"]+)", attempt=(\d+)')
_EXPORTED = "agent/silu.cu"


class ScriptedModel(Model):  # type: ignore[misc]
    """Calls tools as JSON or, for an agent that writes code, as Python."""

    def __init__(self, *, as_code: bool) -> None:
        super().__init__(model_id="scripted")
        self._as_code = as_code
        self._run = ""

    def generate(self, messages: list[ChatMessage], *_: Any, **__: Any) -> ChatMessage:
        content = messages[-1].content
        read = content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())
        name, arguments = self._answer(read)
        if self._as_code:
            given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
            result = f"answer = {name}({given})\nprint(answer)" if name != "final_answer" else f"{name}({given})"
            return ChatMessage(MessageRole.ASSISTANT, content=f"Thought: on.\n<code>\n{result}\n</code>")
        function = ChatMessageToolCallFunction(name=name, arguments=arguments)
        call = ChatMessageToolCall(function=function, id="1", type="function")
        return ChatMessage(MessageRole.ASSISTANT, content="", tool_calls=[call])

    def _answer(self, read: str) -> tuple[str, dict[str, Any]]:
        asked = _ASKED_FOR.search(read)
        if asked:
            self._run = asked[1]
        if f"Wrote {_EXPORTED}" in read:
            return "final_answer", {"answer": _EXPORTED}
        if asked and ", kept." in read:
            return "export", {"run": self._run, "destination": _EXPORTED}
        if asked and "the result is 0.5 (1/2) times what it should be" in read:
            return "submit_kernel", {"run": self._run, "attempt": int(asked[2]), "edits": MENDED_BY_EDIT}
        if asked:
            return "submit_kernel", {"run": self._run, "attempt": int(asked[2]), "kernel": WRONG, "summary": "plain"}
        return "specify", {**ASKED, "fresh": True, "accept": "accept=true" in read}

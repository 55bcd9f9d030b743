"""The same tools for agents of smolagents: made of the same table, with the same refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from smolagents import Tool

from tilewright.frontends.agents.actions import Session
from tilewright.frontends.agents.author import AgentReporter
from tilewright.frontends.agents.tools import TOOLS, AgentTool, Toolbox


class TilewrightTool(Tool):  # type: ignore[misc]
    """One tool at a session. Its answer is the text, and in its last line what a program needs of it."""

    skip_forward_signature_validation = True  # one class serves all, by their table
    output_type = "string"

    def __init__(self, tool: AgentTool, toolbox: Toolbox) -> None:
        self.name = tool.name
        self.description = tool.description
        self.inputs = {
            one.name: {"type": one.kind.value, "description": one.description}
            | ({} if one.default is None else {"nullable": True})
            for one in tool.parameters
        }
        self._toolbox = toolbox
        super().__init__()
        self.is_initialized = True

    def forward(self, *values: Any, **named: Any) -> str:
        given = dict(zip(self.inputs, values, strict=False)) | named
        answer = self._toolbox.call(self.name, given, AgentReporter())
        facts = {name: value for name, value in answer.facts.items() if isinstance(value, (str, int, float, bool))}
        short = {name: value for name, value in facts.items() if not isinstance(value, str) or "\n" not in value}
        return f"{answer.text}\n\n{json.dumps(short)}"


def tools_at(root: Path, *, agent: str, gpu: str, spool: str) -> list[TilewrightTool]:
    """All tools, at one session."""
    toolbox = Toolbox(Session(root, agent=agent, gpu=gpu, spool=spool))
    return [TilewrightTool(tool, toolbox) for tool in TOOLS.values()]

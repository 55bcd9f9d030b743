"""The SDK's own client and a server in a child process, as an agent has them."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

SECRET = "sk-not-to-be-seen-anywhere"


@asynccontextmanager
async def connected(folder: Path) -> AsyncIterator[Client]:
    """A client of a server of its own, whose runs and exports lie below `folder`."""
    root = folder / "root"
    root.mkdir(exist_ok=True)
    variables = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "TILEWRIGHT_HOME": str(folder / "home"),
        "OMP_NUM_THREADS": "1",
        "ANTHROPIC_API_KEY": SECRET,
    }
    arguments = ["-m", "tilewright", "mcp", "--root", str(root)]
    async with Client(
        stdio_client(StdioServerParameters(command=sys.executable, args=arguments, env=variables))
    ) as one:
        yield one


async def told(client: Client, tool: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    """What a tool answers: its text and its facts."""
    answer = await client.call_tool(tool, arguments)
    text = "\n".join(one.text for one in answer.content if one.type == "text")
    assert not answer.is_error, text
    facts: dict[str, Any] = answer.structured_content
    return text, facts


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    """What a tool says that does not do what it is asked."""
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error
    return "\n".join(one.text for one in answer.content if one.type == "text")


def servers() -> list[int]:
    """The processes of this one's servers."""
    children = " ".join(path.read_text() for path in Path("/proc/self/task").glob("*/children")).split()
    return [int(one) for one in children if b"\0mcp\0" in Path("/proc", one, "cmdline").read_bytes()]

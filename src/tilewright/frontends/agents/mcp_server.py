"""`tilewright mcp`: the tools over the Model Context Protocol, on stdin and stdout.

Tools run in threads, so the event loop always answers: progress is sent while they work, and a cancelled call is told
to stop. A refusal is an error of the tool with one sentence, never an error of the protocol.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Mapping
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import mcp.types as types
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server

from tilewright import __version__
from tilewright.frontends.agents.author import AgentReporter, Cancelled
from tilewright.frontends.agents.guard import Refused
from tilewright.frontends.agents.session import Answer
from tilewright.frontends.agents.tools import TOOLS, Toolbox

INSTRUCTIONS = (
    "Tilewright turns a PyTorch operation into one verified CUDA kernel file. You are the author: specify says what is "
    "to be computed (show the reference to the person, then accept), submit_kernel sends a file and brings back a "
    "verdict or a diagnosis and the next question, until the run ends or you finish it; export writes the kernel. No "
    "GPU is needed: without one kernels run in an emulator and times are modelled, and are said to be."
)
_AT_ONCE = 2  # calls at work; each has child processes of its own
_NOTICE_INTERVAL_S = 0.2

Context = ServerRequestContext[Any]


class McpServer:
    """Serves a toolbox to one client."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox
        self._limiter = anyio.CapacityLimiter(_AT_ONCE)

    def server(self) -> Server[Any]:
        return Server(
            "tilewright",
            version=__version__,
            title="Tilewright",
            instructions=INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )

    # -- tools --

    async def _list_tools(self, context: Context, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=one.name,
                    title=one.title,
                    description=one.description,
                    input_schema=one.schema(),
                    annotations=types.ToolAnnotations(
                        read_only_hint=one.reads_only, destructive_hint=False, open_world_hint=False
                    ),
                )
                for one in TOOLS.values()
            ]
        )

    async def _call_tool(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        client = context.session.client_params
        if client is not None:
            self._toolbox.session.agent = client.client_info.name
        try:
            answer = await self._called(context, params.name, params.arguments or {})
        except (Refused, Cancelled) as error:
            return types.CallToolResult(content=[types.TextContent(type="text", text=str(error))], is_error=True)
        text = types.TextContent(type="text", text=answer.text)
        return types.CallToolResult(content=[text], structured_content=answer.facts)

    async def _called(self, context: Context, name: str, arguments: Mapping[str, Any]) -> Answer:
        """A tool in a thread. The thread of a cancelled call stops by itself, soon."""
        cancelled = threading.Event()
        reporter = AgentReporter(_Progress(context).send, cancelled)
        work = functools.partial(self._toolbox.call, name, arguments, reporter)
        try:
            return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._limiter)
        finally:
            cancelled.set()


class _Progress:
    """Sends the progress of a call from its thread to the client, a few times a second at most."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._count = 0
        self._last = 0.0

    def send(self, text: str) -> None:
        now = time.monotonic()
        if now - self._last < _NOTICE_INTERVAL_S:
            return
        self._last, self._count = now, self._count + 1
        anyio.from_thread.run(self._context.session.report_progress, float(self._count), None, text)


def serve(toolbox: Toolbox) -> None:
    """Serve one client until it closes stdin."""
    anyio.run(_serve, McpServer(toolbox).server())


async def _serve(server: Server[Any]) -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

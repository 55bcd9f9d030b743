"""`tilewright mcp`: the tools of agents over the Model Context Protocol, on stdin and stdout.

Deeds run in threads, so the event loop always answers: progress goes out while they work, and a cancelled call is told
to stop. What a tool refuses is an error of the tool, with one sentence, never one of the protocol.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import mcp.types as types
from mcp import MCPError
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server

from tilewright import __version__
from tilewright.frontends.agents import library
from tilewright.frontends.agents.answers import Answer
from tilewright.frontends.agents.desk import Desk
from tilewright.frontends.agents.guard import Refused
from tilewright.frontends.agents.talk import AgentTalk, Cancelled
from tilewright.frontends.agents.tools import TOOLS, Toolbox

INSTRUCTIONS = (
    "Tilewright turns a PyTorch operation into one verified CUDA kernel file. You are the author: specify says what is "
    "to be computed (show the reference to the person, then accept), submit_kernel sends a file and brings back a "
    "verdict or a diagnosis and the next question, until the run ends or you finish it; export writes the kernel. No "
    "GPU is needed: without one kernels run in an emulator and times are modelled, and are said to be."
)

_AT_ONCE = 2  # deeds at work; each has child processes of its own
_BETWEEN_NOTICES_S = 0.2

Context = ServerRequestContext[Any]


class McpDesk:
    """A toolbox behind a protocol."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox
        self._at_work = anyio.CapacityLimiter(_AT_ONCE)

    def server(self) -> Server[Any]:
        return Server(
            "tilewright",
            version=__version__,
            title="Tilewright",
            instructions=INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
        )

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
            self._toolbox.desk.agent = client.client_info.name
        try:
            answer = await self._done(context, params.name, params.arguments or {})
        except Refused as refusal:
            return types.CallToolResult(content=[types.TextContent(type="text", text=str(refusal))], is_error=True)
        text = types.TextContent(type="text", text=answer.text)
        return types.CallToolResult(content=[text], structured_content=answer.facts)

    async def _done(self, context: Context, name: str, arguments: Mapping[str, Any]) -> Answer:
        """A deed in a thread. Where the call is cancelled, the thread is left to stop by itself, which it does soon."""
        cancelled, notices = threading.Event(), _Notices(context)
        talk = AgentTalk(notices.tell, cancelled)
        work = functools.partial(self._toolbox.call, name, arguments, talk)
        try:
            return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._at_work)
        except Cancelled as error:
            raise Refused(str(error)) from None
        finally:
            cancelled.set()

    # -- resources --

    async def _list_resources(self, context: Context, params: Any) -> types.ListResourcesResult:
        listed = await anyio.to_thread.run_sync(library.listed, self._toolbox.desk)
        return types.ListResourcesResult(
            resources=[
                types.Resource(uri=one.uri, name=one.name, description=one.description, mime_type=one.mime_type)
                for one in listed
            ]
        )

    async def _list_templates(self, context: Context, params: Any) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(
            resource_templates=[
                types.ResourceTemplate(
                    uri_template=one.uri, name=one.name, description=one.description, mime_type=one.mime_type
                )
                for one in library.TEMPLATES
            ]
        )

    async def _read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        uri = str(params.uri)
        try:
            found = await anyio.to_thread.run_sync(library.read, self._toolbox, uri)
        except Refused as refusal:
            raise MCPError(types.INVALID_PARAMS, str(refusal)) from None
        contents = types.TextResourceContents(uri=uri, mime_type=found.mime_type, text=found.text)
        return types.ReadResourceResult(contents=[contents])


class _Notices:
    """Progress of one call, from its thread to the client; so many a second at most, and none after its end."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._count = 0
        self._last = 0.0

    def tell(self, text: str) -> None:
        now = time.monotonic()
        if now - self._last < _BETWEEN_NOTICES_S:
            return
        self._last, self._count = now, self._count + 1
        anyio.from_thread.run(self._context.session.report_progress, float(self._count), None, text)


def serve(root: Path, *, gpu: str = "", spool: str = "") -> None:
    """Serve one client until it goes away."""
    desk = Desk(root, gpu=gpu, spool=spool)
    try:
        anyio.run(_serve, McpDesk(Toolbox(desk)).server())
    finally:
        desk.close()


async def _serve(server: Server[Any]) -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

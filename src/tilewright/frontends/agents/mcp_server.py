"""`tilewright mcp`: the tools over the Model Context Protocol, on stdin and stdout.

Tools run in threads, so the event loop always answers: progress is sent while they work, and a cancelled call is told
to stop. A refusal is an error of the tool with one sentence, never an error of the protocol.
"""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Mapping
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import mcp.types as types
from mcp import MCPError
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server

from tilewright import __version__
from tilewright.frontends.agents.author import AgentReporter, Cancelled
from tilewright.frontends.agents.guard import Refused
from tilewright.frontends.agents.session import Answer
from tilewright.frontends.agents.tools import TOOLS, Toolbox
from tilewright.frontends.cli.terminal import json_text
from tilewright.kernel_file import contract
from tilewright.prompts.advice import GPU_FAMILIES, card, family_card
from tilewright.records import Kind
from tilewright.store import StoreError
from tilewright.store.attempt_folder import KERNEL

INSTRUCTIONS = (
    "Tilewright turns a PyTorch operation into one verified CUDA kernel file. You are the author: specify says what is "
    "to be computed (show the reference to the person, then accept), submit_kernel sends a file and brings back a "
    "verdict or a diagnosis and the next question, until the run ends or you finish it; export writes the kernel. No "
    "GPU is needed: without one kernels run in an emulator and times are modelled, and are said to be."
)
SCHEME = "tilewright://"
_MARKDOWN, _JSON, _CUDA, _PYTHON = "text/markdown", "application/json", "text/x-cuda", "text/x-python"
_LISTED_RUNS = 20
_RUN = re.compile(r"runs/([^/]+)(?:/(task|kernel|attempts/(\d{1,4})))?")
_AT_ONCE = 2  # calls at work; each has child processes of its own
_NOTICE_INTERVAL_S = 0.2

Context = ServerRequestContext[Any]

TEMPLATES = [
    types.ResourceTemplate(uri_template=f"{SCHEME}runs/{{run}}{path}", name=name, description=text, mime_type=kind)
    for path, name, text, kind in (
        ("", "run", "A run's record: task, settings, attempts.", _JSON),
        ("/task", "task", "The reference of a run's task.", _PYTHON),
        ("/kernel", "kernel", "The best kernel file of a run.", _CUDA),
        ("/attempts/{number}", "attempt", "An attempt: verdict, times, file.", _MARKDOWN),
    )
]


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
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
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

    # -- resources --

    async def _list_resources(self, context: Context, params: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=await anyio.to_thread.run_sync(self._resources))

    async def _list_templates(self, context: Context, params: Any) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=TEMPLATES)

    async def _read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        uri = str(params.uri)
        try:
            text, mime_type = await anyio.to_thread.run_sync(self._read, uri)
        except Refused as refusal:
            raise MCPError(types.INVALID_PARAMS, str(refusal)) from None
        contents = types.TextResourceContents(uri=uri, mime_type=mime_type, text=text)
        return types.ReadResourceResult(contents=[contents])

    def _resources(self) -> list[types.Resource]:
        """The fixed texts, and the newest runs."""
        rows = [("kernel-format", "kernel format", "What a kernel file is and may do.")]
        rows += [(f"advice/{one.value}", f"advice: {one.value}", f"What pays for {one.value} kernels.") for one in Kind]
        rows += [(f"gpu/{one}", f"GPU family {one}", f"What pays on {one}.") for one in GPU_FAMILIES]
        found = self._toolbox.session.store.runs().runs[:_LISTED_RUNS]
        rows += [(f"runs/{one.id}", one.id, f"A run of {one.task.name}.") for one in found]
        return [
            types.Resource(
                uri=f"{SCHEME}{path}",
                name=name,
                description=text,
                mime_type=_JSON if path.startswith("runs/") else _MARKDOWN,
            )
            for path, name, text in rows
        ]

    def _read(self, uri: str) -> tuple[str, str]:
        """The text at a URI, and its MIME type; raises `Refused`."""
        path = uri.removeprefix(SCHEME)
        if path == "kernel-format":
            return contract(), _MARKDOWN
        kind, _, name = path.partition("/")
        if kind == "advice" and name in {one.value for one in Kind}:
            return card(Kind(name)), _MARKDOWN
        if kind == "gpu" and name in GPU_FAMILIES:
            return family_card(name), _MARKDOWN
        found = _RUN.fullmatch(path)
        if not uri.startswith(SCHEME) or found is None:
            raise Refused(f"there is no {uri[:80]!r} to read; the list of resources has what there is")
        return self._read_run(found[1], found[2] or "", int(found[3] or 0))

    def _read_run(self, name: str, part: str, number: int) -> tuple[str, str]:
        if number:
            return self._toolbox.call("history", {"run": name, "attempt": number}, AgentReporter()).text, _MARKDOWN
        try:
            folder, run = self._toolbox.session.opened(name)
        except StoreError as error:
            raise Refused(self._toolbox.redact(str(error))) from None
        if part == "task":
            return run.task.reference, _PYTHON
        if part == "kernel":
            if run.best is None:
                raise Refused(f"no attempt of run {name} has passed, so it has no kernel")
            return folder.attempt(run.best.number).text(KERNEL), _CUDA
        return self._toolbox.redact(json_text(run)), _JSON


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

"""`tilewright mcp`: the tools of agents over the Model Context Protocol, on stdin and stdout.

Actions run in threads, so the event loop always answers: progress goes out while they work, and a cancelled call
is told to stop. What a tool refuses is an error of the tool, with one sentence, never one of the protocol.
"""

from __future__ import annotations

import functools
import json
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
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
from tilewright.frontends.agents import answers
from tilewright.frontends.agents.actions import Session
from tilewright.frontends.agents.answers import Answer
from tilewright.frontends.agents.author import AgentReporter, Cancelled
from tilewright.frontends.agents.guard import Refused
from tilewright.frontends.agents.tools import TOOLS, Toolbox
from tilewright.frontends.cli.terminal import finite
from tilewright.kernel_file import contract
from tilewright.prompts.advice import GPU_FAMILIES, card, family_card
from tilewright.records import Kind, to_json
from tilewright.store import StoreError

# -- what an agent can read beside its tools: --

SCHEME = "tilewright://"
_MARKDOWN, _JSON, _CUDA = "text/markdown", "application/json", "text/x-cuda"
_LISTED_RUNS = 20
_RUN = re.compile(r"runs/([^/]+)(?:/(task|kernel|attempts/(\d{1,4})))?")


@dataclass(frozen=True)
class Described:
    """Something to be read, as a list shows it. `uri` has a name in braces where it stands for many."""

    uri: str
    name: str
    description: str
    mime_type: str = _MARKDOWN


@dataclass(frozen=True)
class Text:
    text: str
    mime_type: str = _MARKDOWN


TEMPLATES = (
    Described(f"{SCHEME}runs/{{run}}", "run", "A run's record: task, settings, attempts.", _JSON),
    Described(f"{SCHEME}runs/{{run}}/task", "task", "The reference of a run's task.", "text/x-python"),
    Described(f"{SCHEME}runs/{{run}}/kernel", "kernel", "The best kernel file of a run.", _CUDA),
    Described(f"{SCHEME}runs/{{run}}/attempts/{{number}}", "attempt", "An attempt: verdict, times, file."),
)


def listed(session: Session) -> tuple[Described, ...]:
    """What there is: the fixed texts, and the newest runs."""
    fixed = [Described(f"{SCHEME}kernel-format", "kernel format", "What a kernel file is and may do.")]
    fixed += [
        Described(f"{SCHEME}advice/{kind.value}", f"advice: {kind.value}", f"What pays for {kind.value} kernels.")
        for kind in Kind
    ]
    fixed += [
        Described(f"{SCHEME}gpu/{family}", f"GPU family {family}", f"What pays on {family}.") for family in GPU_FAMILIES
    ]
    runs = session.store.runs().runs[:_LISTED_RUNS]
    return (*fixed, *(Described(f"{SCHEME}runs/{one.id}", one.id, f"A run of {one.task.name}.", _JSON) for one in runs))


def read(toolbox: Toolbox, uri: str) -> Text:
    """The text behind a URI; raises `Refused`."""
    path = uri.removeprefix(SCHEME)
    if path == "kernel-format":
        return Text(contract())
    kind, _, name = path.partition("/")
    if kind == "advice" and name in {one.value for one in Kind}:
        return Text(card(Kind(name)))
    if kind == "gpu" and name in GPU_FAMILIES:
        return Text(family_card(name))
    found = _RUN.fullmatch(path)
    if not uri.startswith(SCHEME) or found is None:
        raise Refused(f"there is no {uri[:80]!r} to read; the list of resources has what there is")
    return _of_run(toolbox, found[1], found[2] or "", int(found[3] or 0))


def _of_run(toolbox: Toolbox, name: str, part: str, number: int) -> Text:
    if number:
        return Text(toolbox.call("history", {"run": name, "attempt": number}, AgentReporter()).text)
    try:
        folder, run = toolbox.session.opened(name)
    except StoreError as error:
        raise Refused(toolbox.veil(str(error))) from None
    if part == "task":
        return Text(run.task.reference, "text/x-python")
    if part == "kernel":
        if run.best is None:
            raise Refused(f"no attempt of run {name} has passed, so it has no kernel")
        return Text(folder.attempt(run.best.number).text(answers.KERNEL), _CUDA)
    return Text(toolbox.veil(json.dumps(finite(to_json(run)), indent=1, allow_nan=False)), _JSON)


INSTRUCTIONS = (
    "Tilewright turns a PyTorch operation into one verified CUDA kernel file. You are the author: specify says what is "
    "to be computed (show the reference to the person, then accept), submit_kernel sends a file and brings back a "
    "verdict or a diagnosis and the next question, until the run ends or you finish it; export writes the kernel. No "
    "GPU is needed: without one kernels run in an emulator and times are modelled, and are said to be."
)

_AT_ONCE = 2  # actions at work; each has child processes of its own
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
            self._toolbox.session.agent = client.client_info.name
        try:
            answer = await self._done(context, params.name, params.arguments or {})
        except Refused as refusal:
            return types.CallToolResult(content=[types.TextContent(type="text", text=str(refusal))], is_error=True)
        text = types.TextContent(type="text", text=answer.text)
        return types.CallToolResult(content=[text], structured_content=answer.facts)

    async def _done(self, context: Context, name: str, arguments: Mapping[str, Any]) -> Answer:
        """An action in a thread. The thread of a cancelled call stops by itself, soon."""
        cancelled, notices = threading.Event(), _Notices(context)
        reporter = AgentReporter(notices.tell, cancelled)
        work = functools.partial(self._toolbox.call, name, arguments, reporter)
        try:
            return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._at_work)
        except Cancelled as error:
            raise Refused(str(error)) from None
        finally:
            cancelled.set()

    # -- resources --

    async def _list_resources(self, context: Context, params: Any) -> types.ListResourcesResult:
        found = await anyio.to_thread.run_sync(listed, self._toolbox.session)
        return types.ListResourcesResult(
            resources=[
                types.Resource(uri=one.uri, name=one.name, description=one.description, mime_type=one.mime_type)
                for one in found
            ]
        )

    async def _list_templates(self, context: Context, params: Any) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(
            resource_templates=[
                types.ResourceTemplate(
                    uri_template=one.uri, name=one.name, description=one.description, mime_type=one.mime_type
                )
                for one in TEMPLATES
            ]
        )

    async def _read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        uri = str(params.uri)
        try:
            found = await anyio.to_thread.run_sync(read, self._toolbox, uri)
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
    session = Session(root, gpu=gpu, spool=spool)
    try:
        anyio.run(_serve, McpDesk(Toolbox(session)).server())
    finally:
        session.close()


async def _serve(server: Server[Any]) -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

"""The tools for agents: names, descriptions, parameters; and the ways they are offered: MCP, smolagents, a skill.

`tools.toml` is the table for all of them. `Toolbox.call` checks the arguments and calls the method of `Session` that
has the tool's name.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tomllib
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from tilewright import __version__
from tilewright.child.boundary import hide_from_others
from tilewright.child.process import Interrupted
from tilewright.frontends.agents.author import AgentReporter, Cancelled
from tilewright.frontends.agents.guard import Redactor, Refused
from tilewright.frontends.agents.session import FORMS, Answer, Session
from tilewright.frontends.api.choices import check_spool
from tilewright.frontends.api.kernel_arguments import named_gpu
from tilewright.frontends.cli.terminal import error_text, exit_code, finite
from tilewright.kernel_file import contract
from tilewright.prompts.advice import GPU_FAMILIES, card, family_card
from tilewright.records import PROFILES, Budget, Kind, Precision
from tilewright.store import write_text
from tilewright.tasks.errors import BadArgument


class ValueKind(str, Enum):
    """The type of a parameter, by its JSON name."""

    TEXT = "string"
    WHOLE = "integer"
    YES_OR_NO = "boolean"
    TEXTS = "object"  # text by name

    @property
    def words(self) -> str:
        return {
            ValueKind.TEXT: "a text",
            ValueKind.WHOLE: "a whole number",
            ValueKind.YES_OR_NO: "true or false",
            ValueKind.TEXTS: 'an object of texts, such as {"x": "4096x1024:bf16"}',
        }[self]


@dataclass(frozen=True)
class Parameter:
    name: str
    kind: ValueKind
    description: str
    default: Any = None  # None: it is required

    def schema(self) -> dict[str, Any]:
        """Its JSON schema."""
        made: dict[str, Any] = {"type": self.kind.value, "description": self.description}
        if self.kind is ValueKind.TEXTS:
            made["additionalProperties"] = {"type": "string"}
        return made if self.default is None else made | {"default": self.default}

    def read(self, value: Any) -> Any:
        """The value, checked; raises `Refused`."""
        match self.kind:
            case ValueKind.TEXT if isinstance(value, str):
                return value
            case ValueKind.WHOLE if isinstance(value, int) and not isinstance(value, bool):
                return value
            case ValueKind.YES_OR_NO if isinstance(value, bool):
                return value
            case ValueKind.TEXTS if isinstance(value, dict):
                if all(isinstance(key, str) and isinstance(one, (str, int, float)) for key, one in value.items()):
                    return {key: one if isinstance(one, str) else repr(one) for key, one in value.items()}
        raise Refused(f"{self.name} takes {self.kind.words}, not {type(value).__name__}")


@dataclass(frozen=True)
class AgentTool:
    name: str
    title: str
    description: str
    parameters: tuple[Parameter, ...]
    reads_only: bool = False

    def schema(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        return {
            "type": "object",
            "properties": {one.name: one.schema() for one in self.parameters},
            "required": [one.name for one in self.parameters if one.default is None],
            "additionalProperties": False,
        }

    def read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments, checked and with defaults; raises `Refused`."""
        known = {one.name: one for one in self.parameters}
        for name in arguments:
            if name not in known:
                raise Refused(f"{self.name} takes no {str(name)[:40]!r}; it takes {', '.join(known)}")
        made: dict[str, Any] = {}
        for name, parameter in known.items():
            value = arguments.get(name)
            if value is None:
                if parameter.default is None:
                    raise Refused(f"{self.name} needs {name}: {parameter.description}")
                value = parameter.default
            made[name] = parameter.read(value)
        return made


def _read_tools() -> dict[str, AgentTool]:
    text = resources.files("tilewright.frontends.agents").joinpath("tools.toml").read_text("utf-8")
    known = {"gpus": PROFILES, "precisions": (one.value for one in Precision), "forms": FORMS}
    words = {name: ", ".join(values) for name, values in known.items()}
    table = tomllib.loads(Template(text).substitute(words, attempts=Budget.attempts))
    return {name: _tool(name, **fields) for name, fields in table.items()}


def _tool(name: str, parameters: dict[str, list[Any]], **fields: Any) -> AgentTool:
    read = tuple(Parameter(one, ValueKind(kind), *rest) for one, (kind, *rest) in parameters.items())
    return AgentTool(name, parameters=read, **fields)


TOOLS = _read_tools()


class Toolbox:
    """The tools of one session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.redact = Redactor(session.root, session.store.home)

    def call(self, name: str, arguments: Mapping[str, Any], reporter: AgentReporter) -> Answer:
        """Run a tool. Raises `Refused` with one sentence, or `Cancelled`; never anything else."""
        tool = TOOLS.get(name)
        if tool is None:
            raise Refused(f"there is no tool {name[:40]!r}; there are {', '.join(TOOLS)}")
        try:
            answer: Answer = getattr(self.session, name)(reporter, **tool.read(arguments))
        except (Cancelled, Interrupted):
            raise Cancelled from None
        except Refused as refusal:
            raise Refused(self.redact(str(refusal))) from None
        except Exception as error:
            raise Refused(self.redact(_sentence(error))) from None
        return Answer(self.redact(answer.text), finite(self.redact(answer.facts)))


def _sentence(error: Exception) -> str:
    """The message of an expected error; of a fault of this program only that there was one."""
    if exit_code(error) is None:
        traceback.print_exc(file=sys.stderr)
        return f"this is a fault of tilewright itself ({type(error).__name__}); its stderr has more. Other calls go on"
    return error_text(error).removeprefix("tilewright: ")


# -- MCP and smolagents --


def serve_mcp(root: Path, gpu: str | None, spool: Path | None) -> None:
    """Serve over stdin and stdout until the client closes them."""
    if importlib.util.find_spec("mcp") is None:
        raise BadArgument("tilewright mcp needs the package mcp: pip install 'tilewright[mcp]'")
    if not root.is_dir():
        raise BadArgument(f"--root {root}: there is no such folder; exports are written below it")
    if gpu is not None:
        named_gpu(gpu)
    if spool is not None:
        check_spool(spool)
    from tilewright.frontends.agents.mcp_server import serve  # needs the package mcp

    hide_from_others()
    serve(Toolbox(Session(root, gpu=gpu or "", spool=str(spool) if spool else "")))


def smolagents_tools(root: str | Path = ".", *, agent: str = "smolagents", gpu: str = "", spool: str = "") -> list[Any]:
    """Tools with which an agent of smolagents writes kernels: `ToolCallingAgent(tools=smolagents_tools(), ...)`.

    `export` writes below the folder `root`. `agent` is the author's name on record. `gpu` and `spool` are those of
    `make`.
    """
    if importlib.util.find_spec("smolagents") is None:
        raise ImportError("smolagents_tools needs the package smolagents: pip install 'tilewright[smolagents]'")
    if not Path(root).is_dir():
        raise BadArgument(f"root {root}: there is no such folder; exports are written below it")
    return tools_of(Toolbox(Session(Path(root), agent=agent, gpu=gpu, spool=spool)))


def tools_of(toolbox: Toolbox) -> list[Any]:
    """The tools as smolagents takes them. An answer is the text, then the short facts as one line of JSON."""
    from smolagents import Tool  # needs the package smolagents

    class TilewrightTool(Tool):  # type: ignore[misc]
        skip_forward_signature_validation = True  # one class for all tools
        output_type = "string"

        def __init__(self, tool: AgentTool) -> None:
            self.name = tool.name
            self.description = tool.description
            self.inputs = {
                one.name: {"type": one.kind.value, "description": one.description}
                | ({} if one.default is None else {"nullable": True})
                for one in tool.parameters
            }
            super().__init__()
            self.is_initialized = True

        def forward(self, *values: Any, **named: Any) -> str:
            given = dict(zip(self.inputs, values, strict=False)) | named
            answer = toolbox.call(self.name, given, AgentReporter())
            facts = {name: value for name, value in answer.facts.items() if isinstance(value, (str, int, float, bool))}
            short = {name: value for name, value in facts.items() if not isinstance(value, str) or "\n" not in value}
            return f"{answer.text}\n\n{json.dumps(short)}"

    return [TilewrightTool(tool) for tool in TOOLS.values()]


# -- the Agent Skill: a folder that teaches a coding agent to use Tilewright --

_SKILL = "tilewright"
_WRITTEN = ("SKILL.md", "references/cli.md", "references/in-a-model.md")  # by hand, in `skill_text`


def skill_files() -> dict[str, str]:
    """Every file of the skill by its path in it."""
    texts = resources.files("tilewright.frontends.agents").joinpath("skill_text")
    files = {path: texts.joinpath(*path.split("/")).read_text(encoding="utf-8") for path in _WRITTEN}
    kinds = {f"references/advice-{one.value}.md": card(one) for one in Kind}
    families = {f"references/gpu-{one}.md": family_card(one) for one in GPU_FAMILIES}
    for name, text in (("version", __version__), ("kinds", _links(kinds)), ("families", _links(families))):
        files["SKILL.md"] = files["SKILL.md"].replace(f"{{{name}}}", text)
    head = "# Tools\n\nA refusal is an error of the tool with one sentence: what is wrong, and what to do.\n"
    files["references/tools.md"] = "\n".join([head, *map(_tool_section, TOOLS.values())])
    files["references/kernel-format.md"] = f"# The kernel file\n\n{contract().strip()}\n"
    return {**files, **kinds, **families}


def write_skill(folder: Path) -> Path:
    """Write the skill into `folder`, where a client looks for skills, and return its own folder."""
    if not folder.is_dir():
        raise BadArgument(f"{folder}: there is no such folder; give the one that holds an agent's skills")
    for path, text in skill_files().items():
        target = folder / _SKILL / path
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, text)
    return folder / _SKILL


def _tool_section(tool: AgentTool) -> str:
    rows = [
        f"| `{one.name}` | {one.kind.value} | {'required' if one.default is None else 'optional'} | {one.description} |"
        for one in tool.parameters
    ]
    table = "\n".join(["| parameter | type | | |", "|---|---|---|---|", *rows])
    return f"## {tool.name}\n\n{tool.description}\n\n{table}\n"


def _links(files: dict[str, str]) -> str:
    return ", ".join(f"[{Path(path).stem.partition('-')[2]}]({path})" for path in files)

"""The tools an agent is given: names, what they say of themselves, their parameters, and the action behind each.

One table for every front end of agents: MCP and smolagents show it as it is, and `call` checks arguments against it.
"""

from __future__ import annotations

import sys
import tomllib
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from importlib import resources
from string import Template
from typing import Any

from tilewright.child.process import Interrupted
from tilewright.frontends.agents import actions
from tilewright.frontends.agents.actions import Session, Wanted
from tilewright.frontends.agents.answers import Answer
from tilewright.frontends.agents.author import AgentReporter, Cancelled
from tilewright.frontends.agents.guard import Refused, Veil
from tilewright.frontends.cli.terminal import error_text, exit_code, finite
from tilewright.records import PROFILES, Budget, Precision

_TEXT_TYPES = (str, int, float)


class ValueKind(str, Enum):
    """What a parameter takes, by JSON's name for it."""

    TEXT = "string"
    WHOLE = "integer"
    YES_OR_NO = "boolean"
    TEXTS = "object"  # text by name


@dataclass(frozen=True)
class Parameter:
    name: str
    kind: ValueKind
    description: str
    default: Any = None  # None: it must be given

    def schema(self) -> dict[str, Any]:
        """Its JSON schema."""
        made: dict[str, Any] = {"type": self.kind.value, "description": self.description}
        if self.kind is ValueKind.TEXTS:
            made["additionalProperties"] = {"type": "string"}
        return made if self.default is None else made | {"default": self.default}

    def read(self, value: Any) -> Any:
        """The value, if it is of the kind; raises `Refused`."""
        match self.kind:
            case ValueKind.TEXT if isinstance(value, str):
                return value
            case ValueKind.WHOLE if isinstance(value, int) and not isinstance(value, bool):
                return value
            case ValueKind.YES_OR_NO if isinstance(value, bool):
                return value
            case ValueKind.TEXTS if isinstance(value, dict):
                plain = all(isinstance(key, str) and isinstance(one, _TEXT_TYPES) for key, one in value.items())
                if plain:
                    return {key: one if isinstance(one, str) else repr(one) for key, one in value.items()}
        raise Refused(f"{self.name} takes {_KIND_WORDS[self.kind]}, not {type(value).__name__}")


_KIND_WORDS = {
    ValueKind.TEXT: "a text",
    ValueKind.WHOLE: "a whole number",
    ValueKind.YES_OR_NO: "true or false",
    ValueKind.TEXTS: 'an object of texts, such as {"x": "4096x1024:bf16"}',
}

Action = Callable[[Session, AgentReporter, dict[str, Any]], Answer]


@dataclass(frozen=True)
class AgentTool:
    name: str
    title: str
    description: str
    parameters: tuple[Parameter, ...]
    action: Action = field(repr=False, compare=False)
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
        """The arguments, each of its kind, with defaults; raises `Refused`."""
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


class Toolbox:
    """The tools at one session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.veil = Veil(session.root, session.store.home)

    def call(self, name: str, arguments: Mapping[str, Any], reporter: AgentReporter) -> Answer:
        """Do what a tool does. Raises `Refused` with one sentence, or `Cancelled`; never anything else."""
        tool = TOOLS.get(name)
        if tool is None:
            raise Refused(f"there is no tool {name[:40]!r}; there are {', '.join(TOOLS)}")
        try:
            answer = tool.action(self.session, reporter, tool.read(arguments))
        except (Cancelled, Interrupted):
            raise Cancelled from None
        except Refused as refusal:
            raise Refused(self.veil(str(refusal))) from None
        except Exception as error:
            raise Refused(self.veil(self._sentence(error))) from None
        return Answer(self.veil(answer.text), finite(_veiled(answer.facts, self.veil)))

    def _sentence(self, error: Exception) -> str:
        """What an expected failure says; of a fault of this program only that there was one."""
        if exit_code(error) is None:
            traceback.print_exc(file=sys.stderr)
            return (
                f"this is a fault of tilewright itself ({type(error).__name__}); its stderr has more. Other calls go on"
            )
        return error_text(error).removeprefix("tilewright: ")


def _veiled(value: Any, veil: Veil) -> Any:
    if isinstance(value, str):
        return veil(value)
    if isinstance(value, dict):
        return {key: _veiled(one, veil) for key, one in value.items()}
    return [_veiled(one, veil) for one in value] if isinstance(value, list) else value


def _specify(session: Session, reporter: AgentReporter, given: dict[str, Any]) -> Answer:
    accept, start = given.pop("accept"), given.pop("start_kernel")
    return session.specify(Wanted(**given, start=start), accept, reporter)


_ACTIONS: dict[str, Action] = {
    "specify": _specify,
    "submit_kernel": lambda session, reporter, given: session.submit(
        given.pop("run"), given.pop("attempt"), reporter, **given
    ),
    "advise": lambda session, reporter, given: session.advise(given.pop("run"), reporter, **given),
    "check": lambda session, reporter, given: actions.check(session, given.pop("kernel"), reporter, **given),
    "bench": lambda session, reporter, given: actions.bench(session, given["run"], reporter, attempt=given["attempt"]),
    "history": lambda session, reporter, given: actions.history(session, **given),
    "finish": lambda session, reporter, given: session.finish(given["run"], reporter),
    "export": lambda session, reporter, given: actions.export(
        session, given["run"], given["destination"], reporter, to=given["to"]
    ),
}


def _read_tools() -> dict[str, AgentTool]:
    """The table, as `tools.toml` has it."""
    text = resources.files("tilewright.frontends.agents").joinpath("tools.toml").read_text("utf-8")
    known = {"gpus": PROFILES, "precisions": (one.value for one in Precision), "forms": actions.FORMS}
    words = {name: ", ".join(values) for name, values in known.items()}
    table = tomllib.loads(Template(text).substitute(words, attempts=Budget.attempts))
    return {name: _tool(name, **said) for name, said in table.items()}


def _tool(
    name: str, title: str, description: str, parameters: dict[str, list[Any]], reads_only: bool = False
) -> AgentTool:
    taken = (Parameter(one, ValueKind(kind), *said) for one, (kind, *said) in parameters.items())
    return AgentTool(name, title, description, tuple(taken), _ACTIONS[name], reads_only)


TOOLS = _read_tools()

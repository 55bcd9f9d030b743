"""The tools an agent is given: names, what they say of themselves, their parameters, and the deed behind each.

One table for every front end of agents: MCP and smolagents show it as it is, and `call` checks arguments against it.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tilewright.child.process import Interrupted
from tilewright.frontends.agents import looks
from tilewright.frontends.agents.answers import Answer
from tilewright.frontends.agents.desk import Desk, Wanted
from tilewright.frontends.agents.guard import Refused, Veil
from tilewright.frontends.agents.talk import AgentTalk, Cancelled
from tilewright.frontends.terminal import error_text, exit_code, finite
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

Deed = Callable[[Desk, AgentTalk, dict[str, Any]], Answer]


@dataclass(frozen=True)
class AgentTool:
    name: str
    title: str
    description: str
    parameters: tuple[Parameter, ...]
    deed: Deed = field(repr=False, compare=False)
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
    """The tools at one desk."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.veil = Veil(desk.root, desk.store.home)

    def call(self, name: str, arguments: Mapping[str, Any], talk: AgentTalk) -> Answer:
        """Do what a tool does. Raises `Refused` with one sentence, or `Cancelled`; never anything else."""
        tool = TOOLS.get(name)
        if tool is None:
            raise Refused(f"there is no tool {name[:40]!r}; there are {', '.join(TOOLS)}")
        try:
            answer = tool.deed(self.desk, talk, tool.read(arguments))
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


def _specify(desk: Desk, talk: AgentTalk, given: dict[str, Any]) -> Answer:
    accept, start = given.pop("accept"), given.pop("start_kernel")
    return desk.specify(Wanted(**given, start=start), accept, talk)


_RUN = Parameter("run", ValueKind.TEXT, "The run's name, as specify gave it.")
_SHAPES = Parameter(
    "shapes", ValueKind.TEXTS, 'Sizes and dtype of each tensor, such as {"x": "4096x1024:bf16"}.', default={}
)
_NUMBERS = Parameter("numbers", ValueKind.TEXTS, 'Number arguments, such as {"eps": "1e-5"}.', default={})

TOOLS: dict[str, AgentTool] = {
    one.name: one
    for one in (
        AgentTool(
            "specify",
            "Specify a task",
            "Say what is to be computed, in words or as the source of a PyTorch function or module. Without accept the "
            "reference is only shown: show it to the person who asked. With accept=true it is run in a limited child "
            "process, a run begins, and the answer has everything a kernel's author is told, and the first question. A "
            "kernel that was made before for the same task is found instead, unless fresh.",
            (
                Parameter(
                    "words", ValueKind.TEXT, 'Such as "LayerNorm over the last dimension, then exact GELU".', default=""
                ),
                Parameter(
                    "source",
                    ValueKind.TEXT,
                    "Instead of words: Python text that defines a function of tensors and numbers, or an nn.Module.",
                    default="",
                ),
                Parameter(
                    "function",
                    ValueKind.TEXT,
                    "With source: the function meant or, of an nn.Module, what makes it, such as Norm(256, eps=1e-5).",
                    default="",
                ),
                _SHAPES,
                _NUMBERS,
                Parameter(
                    "values",
                    ValueKind.TEXTS,
                    'What tensors hold, where normal numbers will not do: {"p": "uniform:0:1"}.',
                    default={},
                ),
                Parameter(
                    "gpu",
                    ValueKind.TEXT,
                    f"Target GPU: {', '.join(PROFILES)}; empty for the one at hand, else the H200 emulated.",
                    default="",
                ),
                Parameter(
                    "precision",
                    ValueKind.TEXT,
                    f"What f32 products may be computed in: {', '.join(one.value for one in Precision)}; "
                    "empty for what PyTorch computes them in by default.",
                    default="",
                ),
                Parameter("start_kernel", ValueKind.TEXT, "Text of a kernel file to improve.", default=""),
                Parameter("attempts", ValueKind.WHOLE, "Attempts the run may take.", default=Budget.attempts),
                Parameter("fresh", ValueKind.YES_OR_NO, "Make it anew though there is a kernel.", default=False),
                Parameter("accept", ValueKind.YES_OR_NO, "The reference was shown, and is meant.", default=False),
            ),
            _specify,
        ),
        AgentTool(
            "submit_kernel",
            "Submit a kernel",
            "Send a kernel file as the next attempt of a run. It is built, verified against the reference at many "
            "sizes and values, tuned and timed, and kept if it is right and faster than the best so far. The answer "
            "is what became of it - where it fails, a diagnosis with the smallest failing case - and the next "
            "question. It can take minutes.",
            (
                _RUN,
                Parameter("attempt", ValueKind.WHOLE, "The attempt that was asked for."),
                Parameter("kernel", ValueKind.TEXT, "The whole kernel file.", default=""),
                Parameter(
                    "edits", ValueKind.TEXT, "Instead of it: SEARCH/REPLACE edits of the file last shown.", default=""
                ),
                Parameter("summary", ValueKind.TEXT, "One line: what it does or changes, and why.", default=""),
            ),
            lambda desk, talk, given: desk.submit(given.pop("run"), given.pop("attempt"), talk, **given),
        ),
        AgentTool(
            "advise",
            "Ask what is next",
            "The whole of what the author of the next attempt is told: the rules, the kernel format, advice for the "
            "GPU and the kind of work, the task, what was tried, and the question. Takes up a run after a break; more "
            "attempts or a hint open one that has ended.",
            (
                _RUN,
                Parameter("more_attempts", ValueKind.WHOLE, "So many further attempts.", default=0),
                Parameter("hint", ValueKind.TEXT, "Something to try, kept with the run.", default=""),
            ),
            lambda desk, talk, given: desk.advise(given.pop("run"), talk, **given),
        ),
        AgentTool(
            "check",
            "Check a kernel file",
            "Run a kernel file in the emulator, beside the loop: accesses out of bounds, races, uninitialised reads, "
            "barrier faults by source line, and costs. With run, results are compared with its reference. It counts "
            "as no attempt, and is no verdict.",
            (
                Parameter("kernel", ValueKind.TEXT, "The whole kernel file."),
                Parameter("run", ValueKind.TEXT, "A run whose reference to compare with.", default=""),
                _SHAPES,
                _NUMBERS,
            ),
            lambda desk, talk, given: looks.check(desk, given.pop("kernel"), talk, **given),
            reads_only=True,
        ),
        AgentTool(
            "bench",
            "Time a kernel",
            "Time a kernel of a run that passed: on a GPU measured beside eager PyTorch and torch.compile, without one "
            "modelled from emulated counts. The answer says which; the two are never comparable.",
            (_RUN, Parameter("attempt", ValueKind.WHOLE, "Which attempt; 0 for the best.", default=0)),
            lambda desk, talk, given: looks.bench(desk, given["run"], talk, attempt=given["attempt"]),
            reads_only=True,
        ),
        AgentTool(
            "history",
            "Look at runs",
            "The runs of this machine; or the task and the attempts of one; or one attempt with its file and verdict.",
            (
                Parameter("run", ValueKind.TEXT, "A run; empty for the list of runs.", default=""),
                Parameter("attempt", ValueKind.WHOLE, "One of its attempts; 0 for the whole run.", default=0),
            ),
            lambda desk, talk, given: looks.history(desk, **given),
            reads_only=True,
        ),
        AgentTool(
            "finish",
            "End a run",
            "End a run with the best file it has, which is then found again for the same task.",
            (_RUN,),
            lambda desk, talk, given: desk.finish(given["run"], talk),
        ),
        AgentTool(
            "export",
            "Write the kernel out",
            "Write a run's best kernel below the folder the server was started for. file: the kernel file with its "
            "tuned constants and provenance, called with tilewright.load(path). torch: a package that needs torch "
            "alone. hub: a project for the Hugging Face Hub. cuda: plain CUDA sources with a C function.",
            (
                _RUN,
                Parameter(
                    "destination", ValueKind.TEXT, "A relative path, such as kernels/softmax.cu, or of a new folder."
                ),
                Parameter("to", ValueKind.TEXT, f"The form: {', '.join(looks.FORMS)}.", default=looks.FILE),
            ),
            lambda desk, talk, given: looks.export(desk, given["run"], given["destination"], talk, to=given["to"]),
        ),
    )
}

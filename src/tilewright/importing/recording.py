"""Parses the output of host programs into records, and runs the child process that executes them."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.child.envelope import message, message_in
from tilewright.child.process import Ended, SupervisedChild
from tilewright.importing.sources import ImportProblem


@dataclass(frozen=True)
class HostRequest:
    """Asks the child to compile a host program and run these calls of one function."""

    source: str
    calls: tuple[str, ...]  # per call one line: multiprocessor count, then one word per parameter
    seconds: float = 60.0


@dataclass(frozen=True)
class HostAnswer:
    output: str  # of the program; empty if it did not compile
    diagnostics: str  # of the compiler, or how the program ended


_PROGRAM = (sys.executable, "-m", "tilewright.importing.models")
_RESIDENT_BYTES = 4 << 30
_ERROR = re.compile(r"^(?P<place>[^\n:]+:\d+)(?::\d+)?: (?:fatal )?error: (?P<text>[^\n]*)", re.MULTILINE)


@dataclass(frozen=True)
class Pointer:
    tensor: int
    offset_bytes: int
    dtype: str = ""  # of the kernel parameter; "" for any other type


Argument = Pointer | int | float | bool | None


@dataclass(frozen=True)
class TemplateType:
    name: str  # a dtype of the plan; "" for any other type
    spelled: str  # the C++ text


@dataclass(frozen=True)
class TemplateName:
    """A template argument that is neither a type nor a number: a function, an enumerator."""

    spelled: str


@dataclass
class Launched:
    line: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    smem: int
    kernel: str = ""
    template: list[TemplateType | TemplateName | int | bool] = field(default_factory=list)
    arguments: list[Argument | str] = field(default_factory=list)  # "struct": a type that a plan cannot pass

    @property
    def own_template_arguments(self) -> dict[int, str]:
        """The template arguments that a plan cannot express, by position, as C++ text."""
        return {i: one.spelled for i, one in enumerate(self.template) if _is_own(one)}  # type: ignore[union-attr]


def _is_own(one: TemplateType | TemplateName | int | bool) -> bool:
    return isinstance(one, TemplateName) or (isinstance(one, TemplateType) and not one.name)


@dataclass
class Allocated:
    dtype: str
    is_zero: bool
    shape: tuple[int, ...]


@dataclass
class Result:
    tensor: int
    is_whole: bool  # contiguous, from the tensor's first element
    dtype: str
    shape: tuple[int, ...]


@dataclass
class Run:
    """One call of the launcher."""

    launches: list[Launched] = field(default_factory=list)
    allocated: dict[int, Allocated] = field(default_factory=dict)
    results: list[Result | None] = field(default_factory=list)  # None: not a tensor
    error: str = ""

    @property
    def structure(self) -> tuple[object, ...]:
        """Two calls can share one plan only if this is equal."""
        return (
            tuple((one.kernel, len(one.template), one.own_template_arguments) for one in self.launches),
            tuple((one.dtype, one.is_zero, len(one.shape)) for one in self.allocated.values()),
            tuple(one and (one.tensor, one.dtype, len(one.shape)) for one in self.results),
        )


@dataclass(frozen=True)
class Recording:
    parameters: tuple[str, ...]  # the kind of each of the launcher's parameters
    runs: tuple[Run, ...]


class HostChild:
    """The child process; it starts with the first request."""

    def __init__(self) -> None:
        self._child: SupervisedChild | None = None

    def __enter__(self) -> HostChild:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.end()

    def record(self, source: str, calls: Sequence[str], seconds: float = 60.0) -> Recording:
        """Run the calls. Raises `ImportProblem` if the program does not compile or dies."""
        if self._child is None or not self._child.alive:
            self._child = SupervisedChild(_PROGRAM, resident_bytes=_RESIDENT_BYTES)
        request = HostRequest(source, tuple(calls), seconds=seconds)
        answer = self._child.converse(message(request), seconds + 10, lambda line: message_in(line, HostAnswer))
        if isinstance(answer, Ended):
            raise ImportProblem(f"the host code did not finish: {answer.detail} {answer.last_words[-300:]}")
        return read_recording(answer)


def read_recording(answer: HostAnswer) -> Recording:
    if not answer.output and answer.diagnostics:
        raise ImportProblem(first_error(answer.diagnostics))
    recording = parse_output(answer.output)
    if answer.diagnostics and not recording.runs:
        raise ImportProblem(answer.diagnostics)
    return recording


def first_error(diagnostics: str) -> str:
    """The compiler's first error as one sentence."""
    found = _ERROR.search(diagnostics)
    if found is None and (undefined := re.search(r"undefined reference to [`'‘](?P<name>[^'’(]+)", diagnostics)):
        return f"the launcher calls {undefined['name']}, which is defined in another file"
    if found is None:
        return diagnostics.strip().splitlines()[-1][:300]
    text = re.sub(r"[‘’]", "`", found["text"])
    if re.search(r"cublas|cudnn|thrust|cusparse|\bcub\b", text):
        text += " (a plan launches kernels and calls no library)"
    return f"{found['place']}: the launcher uses what cannot be recorded: {text}"


def parse_output(text: str) -> Recording:
    """Parse the lines that a host program prints."""
    kinds: list[str] = []
    runs: list[Run] = []
    run = Run()
    for line in text.splitlines():
        word, *rest = line.split("\t")
        if word == "PARAMETER":
            kinds.append(rest[0])
        elif word == "RUN":
            run = Run()
        elif word == "END":
            runs.append(run)
        elif word:
            _note(run, word, rest)
    return Recording(tuple(kinds), tuple(runs))


def _note(run: Run, word: str, rest: list[str]) -> None:
    launches = run.launches
    if word == "LAUNCH":
        launches.append(Launched(int(rest[0]), _ints(rest[1]), _ints(rest[2]), int(rest[3])))
    elif word == "KERNEL" and launches:
        launches[-1].kernel = rest[0]
    elif word == "TYPE":
        launches[-1].template.append(TemplateType(rest[0], _spelled(rest[1])))
    elif word == "CONSTANT":
        launches[-1].template.append(_constant(rest[0], rest[1]))
    elif word == "ARG":
        launches[-1].arguments.append(_argument(rest))
    elif word == "ALLOC":
        run.allocated[int(rest[0])] = Allocated(rest[1], rest[2] == "zero", _ints(rest[3]))
    elif word == "ZERO":
        _zeroed(run, int(rest[0]))
    elif word == "RESULT":
        run.results.append(_result(rest))
    elif word == "ERROR":
        run.error = rest[0]


def _constant(kind: str, text: str) -> TemplateName | int | bool:
    if kind == "other":
        return TemplateName(_spelled(text))
    return bool(int(text)) if kind == "bool" else int(text)


def _spelled(function: str) -> str:
    """The template argument inside a `__PRETTY_FUNCTION__` such as `f() [with auto value = ns::g<float>]`."""
    text = function.rpartition("[")[2] if "[with " not in function else function.partition("[with ")[2]
    text = text.partition(" = ")[2].rpartition("]")[0].split("; ")[0]
    return re.sub(r"\{anonymous\}::|\(anonymous namespace\)::", "", text).removeprefix("&")


def _zeroed(run: Run, number: int) -> None:
    buffer = run.allocated.get(number)
    used = any(isinstance(a, Pointer) and a.tensor == number for one in run.launches for a in one.arguments)
    if buffer is None or used:
        run.error = run.error or "the host clears a tensor that is given to it, or between two launches"
    else:
        buffer.is_zero = True


def _result(rest: list[str]) -> Result | None:
    if rest[0] == "other":
        return None
    return Result(int(rest[0]), rest[1] == "0" and rest[2] == "1", rest[3], _ints(rest[4] if len(rest) > 4 else ""))


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(item) for item in text.split(",") if item)


def _argument(rest: list[str]) -> Argument | str:
    match rest[0]:
        case "pointer":
            return Pointer(int(rest[1]), int(rest[2]), rest[3])
        case "null":
            return None
        case "bool":
            return rest[1] == "1"
        case "int":
            return int(rest[1])
        case "float":
            return float(rest[1])
    return "struct"

"""In the child: load the reference's function from source, and find the source line of an error. Also the wire
format."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.child.boundary import Wall
from tilewright.child.envelope import Envelope, EnvelopeError, carried_in, message_in
from tilewright.records import Completed, Execution, ReturnedTensor, SharedTensor
from tilewright.reference.protocol import ReferenceProblem

FILE_NAME = "tilewright_reference.py"
_LONGEST_MESSAGE = 2000
_SEARCHED = re.compile(r"^import sys; sys\.path\.insert\(0, (?P<folder>'.*'|\".*\")\)  # for ", re.MULTILINE)


def search_line(folder: str, names: Iterable[str]) -> str:
    """The line of a source that has it find the files beside the one it came from."""
    return f"import sys; sys.path.insert(0, {folder!r})  # for {', '.join(names)}"


def searched_folders(source: str) -> tuple[str, ...]:
    """The folders that such lines name: their source files may be read, and no others outside the child's own."""
    found = []
    for line in _SEARCHED.finditer(source):
        with contextlib.suppress(SyntaxError, ValueError):
            found.append(str(ast.literal_eval(line["folder"])))
    return tuple(one for one in found if os.path.isabs(one))


def write_source(source: str, home: Path) -> Path:
    """The text as a file, so that errors have lines; before the boundary is up, which may let nothing be written."""
    path = home / FILE_NAME
    path.write_text(source, encoding="utf-8")
    return path


def load_function(path: Path, function: str, folder: str) -> Callable[..., Any]:
    """The function that the source at `path` defines."""
    if folder:
        sys.path.insert(0, folder)
    sys.argv = [FILE_NAME]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except MemoryError:
        raise
    except BaseException as error:  # a user's module may raise anything
        raise ReferenceProblem(f"the reference cannot be imported: {describe(error)}") from error
    found = getattr(module, function, None)
    if not callable(found):
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == path.stem]
        defined = [name for name in own if inspect.isfunction(getattr(module, name)) and name[0] != "_"]
        raise ReferenceProblem(f"the reference defines no function {function!r}; it has {', '.join(defined) or 'none'}")
    made: Callable[..., Any] = found
    return made


def line_of_reference(error: BaseException) -> int | None:
    """The last line of the reference's source in the error's traceback; None where there is none."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).name == FILE_NAME:
        return error.lineno
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__, limit=-50)
        if Path(frame.filename).name == FILE_NAME
    ]
    return lines[-1] if lines else None


def describe(error: BaseException) -> str:
    """The error and the source line of the reference, as one line."""
    if isinstance(error, SystemExit):
        text = "it called sys.exit"
    else:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        text = f"{type(error).__name__}: {' '.join(text.split())}"[:_LONGEST_MESSAGE]
    line = line_of_reference(error)
    if line is None:
        return text
    file = getattr(sys.modules.get(Path(FILE_NAME).stem), "__file__", None)
    lines = Path(file).read_text(encoding="utf-8").splitlines() if file and Path(file).is_file() else []
    code = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    return f"{text} (line {line}{f': {code}' if code else ''})"


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that the address space is exhausted."""
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error) or "bad_alloc" in str(error)


# -- wire format --


@dataclass(frozen=True)
class ReferenceSetup:
    """The first message to a child."""

    source: str
    function: str
    folder: str  # of the file the source came from, where its neighbours can be imported; "" where it has none
    threads: int
    address_bytes: int | None  # beyond torch's own; None: unlimited
    file_bytes: int
    wall: Wall  # what it needs beyond its own folder
    environment: tuple[tuple[str, str], ...] = ()  # further variables of the process
    gpu: bool = False  # whether it may use the GPU


@dataclass(frozen=True)
class HandlerRequest:
    handler: str  # "tilewright.part.module:function"
    results: tuple[ReturnedTensor | SharedTensor, ...] = ()  # of the job, for the handler


def results_of(execution: Execution) -> tuple[ReturnedTensor | SharedTensor, ...]:
    """A job's results; none where it faulted or has findings."""
    if isinstance(execution, Completed) and not execution.findings:
        return (*execution.outputs, *execution.shared)
    return ()


# -- replies of the child --


@dataclass(frozen=True)
class TorchImported:
    """The reference's own code is loaded next."""


@dataclass(frozen=True)
class ReferenceLoaded:
    """The function was found; the child is ready."""


@dataclass(frozen=True)
class Answered:
    """The handler's answer comes with it."""


@dataclass(frozen=True)
class ReferenceFault:
    """The reference is at fault."""

    message: str


@dataclass(frozen=True)
class HandlerFault:
    """The handler failed, which is a fault of this package."""

    traceback: str


ReferenceReply = TorchImported | ReferenceLoaded | Answered | ReferenceFault | HandlerFault


def reply_in(envelope: Envelope) -> ReferenceReply:
    reply: ReferenceReply = message_in(envelope, ReferenceReply)
    return reply


def answer_in(envelope: Envelope, handler: str, wanted: Any) -> Any:
    """The answer that a reply to `handler` carries.

    Raises `ReferenceProblem` where the reference is at fault, and `RuntimeError` where the handler is.
    """
    try:
        reply = reply_in(envelope)
        if isinstance(reply, Answered):
            return carried_in(envelope, wanted)
    except EnvelopeError as error:
        raise ReferenceProblem(f"the reference's process gave no answer that can be read: {error}") from None
    if isinstance(reply, ReferenceFault):
        raise ReferenceProblem(reply.message)
    detail = reply.traceback if isinstance(reply, HandlerFault) else f"it answered with {type(reply).__name__}"
    raise RuntimeError(f"{handler} failed in the reference's process: {detail}")

"""What a request is: a function of a file, a module, a KernelBench problem, a folder; or words. And functions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tilewright.records import Origin, Task
from tilewright.tasks.drafts import Draft, TaskOptions, make_task
from tilewright.tasks.errors import ArgumentKind, GivenArgument, Remedy, RemedyKind, TaskError
from tilewright.tasks.reading import python_source
from tilewright.tasks.reading.folders import DESCRIPTION_FILE, task_from_folder
from tilewright.tasks.reading.modules import is_kernelbench, task_from_kernelbench, task_from_module
from tilewright.tasks.reading.parameters import match_arguments

_LONGEST_PATH = 1000
_FILE = re.compile(r"(?P<path>.*\.py)(?::(?P<name>\w+)(?:\((?P<init>.*)\))?)?", re.DOTALL)


def open_task(
    request: str,
    shapes: Mapping[str, str],
    numbers: Mapping[str, str],
    values: Mapping[str, str],
    options: TaskOptions,
) -> Task | None:
    """The task that a request names; None where it is words.

    `FILE.py:function`, `FILE.py:Class`, `FILE.py:Class(8, eps=1e-5)`, `FILE.py` of KernelBench or with one function,
    or a folder with a `task.toml`.
    """
    request = request.strip()
    if not request:
        raise TaskError("the request is empty; give FILE.py:FUNCTION, a folder, or words")
    place = Path(request).expanduser()
    if "\n" not in request and len(request) < _LONGEST_PATH and place.is_dir():
        if (place / DESCRIPTION_FILE).is_file():
            return task_from_folder(place, options, shapes, numbers, values)
        raise TaskError(
            f"{request} is a folder without {DESCRIPTION_FILE}; see docs/tasks.md, or say in more words what is wanted"
        )
    found = _FILE.fullmatch(request)
    if found is None:
        _refuse_broken_name(request)
        return None
    path = Path(found["path"]).expanduser()
    if not path.is_file():
        if re.search(r"\s", found["path"]):
            return None
        raise TaskError(f"{path}: no such file; give FILE.py:FUNCTION, a folder, or words")
    return _from_file(path, found["name"], found["init"], shapes, numbers, values, options)


def _refuse_broken_name(request: str) -> None:
    """What begins with a file that is there and a colon is no words, which a model would be paid to read."""
    path, colon, name = request.partition(".py:")
    if not colon or "\n" in path or not Path(f"{path}.py").expanduser().is_file():
        return
    if name.count("(") > name.count(")"):
        raise TaskError(f"{request}: a bracket is not closed; write {path}.py:CLASS(ARGUMENTS)")
    raise TaskError(
        f"{request}: {name.strip()!r} names nothing of a file; write {path}.py:FUNCTION or {path}.py:CLASS(ARGUMENTS)"
    )


def _from_file(
    path: Path,
    name: str | None,
    init: str | None,
    shapes: Mapping[str, str],
    numbers: Mapping[str, str],
    values: Mapping[str, str],
    options: TaskOptions,
) -> Task:
    source = python_source.read_source(path)
    functions, classes = python_source.defined_names(python_source.parse_source(source, str(path)))
    if name is None or (name == "Model" and init is None and not shapes):
        if is_kernelbench(source, str(path)):
            for kind, names in ((ArgumentKind.SHAPE, shapes), (ArgumentKind.NUMBER, numbers)):
                for extra in names:
                    found = "a KernelBench problem says that itself; edit it there"
                    raise TaskError(found, given=GivenArgument(kind, extra))
            return task_from_kernelbench(path, options, values)
        public = [one for one in functions if not one.startswith("_")]
        if name is None and len(public) != 1:
            listed = ", ".join((*public, *classes)) or "nothing"
            raise TaskError(f"{path} defines {listed}; say which: {path}:NAME")
        name = name or public[0]
    bound = python_source.bound_names(python_source.parse_source(source, str(path)))
    if name in classes or (name in bound and name not in functions):  # a module may be imported from elsewhere
        return task_from_module(path, name, init or "", shapes, options, numbers, values)
    if init is not None:
        raise TaskError(f"{path}:{name} is no class, so it takes no arguments here", Remedy(RemedyKind.GIVE_ARGUMENTS))
    return task_from_source(source, name, shapes, numbers, options, values, where=str(path), folder=path.parent)


# -- functions --


def task_from_source(
    source: str,
    function: str,
    shapes: Mapping[str, str],
    numbers: Mapping[str, str],
    options: TaskOptions,
    values: Mapping[str, str] | None = None,
    *,
    where: str = "the source",
    folder: Path | None = None,
) -> Task:
    """A task from a function of a text. `shapes` are such as `4096x1024:bf16`, `numbers` such as `1e-5`."""
    node = python_source.find_function(python_source.parse_source(source, where), function, where)
    source, notes = python_source.with_neighbours(python_source.needed_source(source, {function}), where, folder)
    arguments = match_arguments(
        source, function, python_source.parameters_of(node, where), shapes, numbers, values or {}
    )
    draft = Draft(
        python_source.usable_name(function),
        arguments.source,
        arguments.function,
        arguments.inputs,
        arguments.dimensions,
        arguments.unsaid,
        Origin.FUNCTION,
        python_source.result_names(node),
        notes,
    )
    return make_task(draft, options)

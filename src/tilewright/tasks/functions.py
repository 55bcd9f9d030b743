"""A task from a PyTorch function, in a file or as text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tilewright.records import Origin, Task
from tilewright.tasks.arguments import match_arguments
from tilewright.tasks.making import Draft, make_task
from tilewright.tasks.options import TaskError, TaskOptions
from tilewright.tasks.pruning import needed_source
from tilewright.tasks.source import (
    find_function,
    first_line,
    local_imports,
    parameters_of,
    parse_source,
    result_names,
    usable_name,
)

_LARGEST_SOURCE_BYTES = 1 << 20


def task_from_function(
    path: Path,
    function: str,
    shapes: Mapping[str, str],
    numbers: Mapping[str, str],
    options: TaskOptions,
    values: Mapping[str, str] | None = None,
) -> Task:
    """A task from a function of a Python file; the reference is the part of the file that it needs."""
    source = read_source(path)
    return task_from_source(source, function, shapes, numbers, options, values, where=str(path), folder=path.parent)


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
    node = find_function(parse_source(source, where), function, where)
    source, notes = with_neighbours(needed_source(source, {function}), where, folder)
    arguments = match_arguments(source, function, parameters_of(node, where), shapes, numbers, values or {})
    draft = Draft(
        usable_name(function),
        arguments.source,
        arguments.function,
        arguments.inputs,
        Origin.FUNCTION,
        result_names(node),
        notes,
    )
    return make_task(draft, options)


def read_source(path: Path) -> str:
    """A Python file's text; raises `TaskError`."""
    try:
        if path.stat().st_size > _LARGEST_SOURCE_BYTES:
            raise TaskError(f"{path} is larger than a mebibyte; give a file with the reference alone")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise TaskError(f"{path} is not a text in UTF-8; give a Python file") from None


def with_neighbours(source: str, where: str, folder: Path | None) -> tuple[str, tuple[str, ...]]:
    """A source that finds the files beside it which it imports, and what must be said of that.

    A task does not carry those files, so the text gets a line that says where they are.
    """
    if folder is None:
        return source, ()
    tree = parse_source(source, where)
    beside = {one.stem for one in folder.glob("*.py")} | {one.parent.name for one in folder.glob("*/__init__.py")}
    used = local_imports(tree, beside - {Path(where).stem})
    if not used:
        return source, ()
    place = str(folder.resolve())
    lines = source.split("\n")
    lines.insert(first_line(tree), f"import sys; sys.path.insert(0, {place!r})  # for {', '.join(used)}")
    note = f"the reference imports {', '.join(used)} from {place}, and can be run only where they are found"
    return "\n".join(lines), (note,)

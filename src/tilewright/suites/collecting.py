"""The tasks of a suite: KernelBench's problem files, or whatever in a folder `make` accepts."""

from __future__ import annotations

import contextlib
import re
import tomllib
from pathlib import Path
from typing import Any

from tilewright.store import Request
from tilewright.suites.suite_folder import SuiteTask

LISTING = "suite.toml"
_PROBLEM = re.compile(r"(?P<number>\d+)_.*\.py")
_MARKS = ("class Model", "def get_inputs", "def get_init_inputs")
_OPTIONS = ("shape", "set", "fill")  # of a listed task, as `make` calls them


class NoTasks(ValueError):
    """The folder has no such tasks; the message says what was looked for."""


def numbers_in(text: str) -> tuple[int, ...]:
    """`1-3,7` is 1, 2, 3 and 7."""
    found: list[int] = []
    for part in text.split(","):
        read = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if read is None or (read[2] and int(read[2]) < int(read[1])):
            raise NoTasks(f"--ids {text}: {part.strip()!r} is no number and no range; write such as 1-49,51")
        found += range(int(read[1]), int(read[2] or read[1]) + 1)
    return tuple(dict.fromkeys(found))


# -- KernelBench --


def kernelbench_tasks(folder: Path, level: int, ids: str = "") -> tuple[SuiteTask, ...]:
    """The problems of a level, or those of `ids`; `folder` is a checkout, the KernelBench in it, or a level."""
    problems = {int(found["number"]): path for path, found in _problems(_level_folder(folder, level))}
    wanted = numbers_in(ids) if ids else tuple(sorted(problems))
    absent = [number for number in wanted if number not in problems]
    if absent:
        known = f"it has {min(problems)} to {max(problems)}" if problems else "it has none"
        raise NoTasks(f"--ids {ids}: level {level} of {folder} has no problem {absent[0]}; {known}")
    return tuple(
        SuiteTask(str(number), problems[number].stem, Request(str(problems[number].resolve()))) for number in wanted
    )


def _level_folder(folder: Path, level: int) -> Path:
    name = f"level{level}"
    for place in (folder / "KernelBench" / name, folder / name):
        if place.is_dir():
            return place
    if folder.resolve().name == name and folder.is_dir():
        return folder
    raise NoTasks(f"{folder}: no KernelBench/{name} and no {name} is in it; give a checkout of KernelBench")


def _problems(folder: Path) -> list[tuple[Path, re.Match[str]]]:
    found = [(path, read) for path in folder.glob("*.py") if (read := _PROBLEM.fullmatch(path.name))]
    if not found:
        raise NoTasks(f"{folder}: it has no problem files, such as 19_ReLU.py")
    return sorted(found)


# -- any folder --


def folder_tasks(folder: Path) -> tuple[SuiteTask, ...]:
    """The tasks that `suite.toml` lists; without one, all problem files and task folders directly in the folder.

    A function of a file has no shapes of its own, so it is a task only where `suite.toml` gives them.
    """
    if not folder.is_dir():
        raise NoTasks(f"{folder}: there is no such folder")
    listing = folder / LISTING
    tasks = _listed(folder, listing) if listing.is_file() else _found(folder)
    if not tasks:
        raise NoTasks(
            f"{folder}: no {LISTING}, no task folder (task.toml) and no problem file (class Model, get_inputs, "
            f"get_init_inputs) is in it; name functions and their shapes in a {LISTING}: see docs/suites.md"
        )
    return tasks


def _found(folder: Path) -> tuple[SuiteTask, ...]:
    places = [path for path in sorted(folder.iterdir()) if is_task_folder(path) or _is_problem_file(path)]
    return tuple(SuiteTask(place.stem, place.stem, Request(str(place.resolve()))) for place in places)


def is_task_folder(path: Path) -> bool:
    with contextlib.suppress(OSError):  # words may be too long for a name
        return (path / "task.toml").is_file()
    return False


def _is_problem_file(path: Path) -> bool:
    if path.suffix != ".py" or not path.is_file():
        return False
    text = path.read_text("utf-8", "replace")
    return all(mark in text for mark in _MARKS)


def _listed(folder: Path, listing: Path) -> tuple[SuiteTask, ...]:
    try:
        entries = tomllib.loads(listing.read_text("utf-8")).get("task", [])
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise NoTasks(f"{listing}: {error}") from None
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        raise NoTasks(f"{listing}: write a [[task]] for each task")
    tasks = tuple(_listed_task(folder, listing, one) for one in entries)
    twice = next((one.id for one in tasks if [other.id for other in tasks].count(one.id) > 1), None)
    if twice is not None:
        raise NoTasks(f"{listing}: two tasks are called {twice!r}; give one of them another name")
    return tasks


def _listed_task(folder: Path, listing: Path, entry: dict[str, Any]) -> SuiteTask:
    """`request`, and as tables what `make` takes as --shape, --set and --fill; `name` where the request's is taken."""
    unknown = next((key for key in entry if key not in {"request", "name", *_OPTIONS}), None)
    request = entry.get("request")
    if unknown is not None or not isinstance(request, str) or not request:
        found = f"{unknown!r} is unknown" if unknown is not None else "a task has no request"
        raise NoTasks(f"{listing}: {found}; a task has request, name, {', '.join(_OPTIONS)}")
    given: dict[str, dict[str, str]] = {}
    for key in _OPTIONS:
        table = entry.get(key, {})
        if not isinstance(table, dict):
            raise NoTasks(f'{listing}: {key} of {request} is no table; write such as {key} = {{ x = "..." }}')
        given[key] = {name: _text(value) for name, value in table.items()}
    name = _file_name(entry.get("name") or request)
    return SuiteTask(name, name, Request(_placed(folder, request), given["shape"], given["set"], given["fill"]))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _placed(folder: Path, request: str) -> str:
    """The request with its file or folder found from anywhere; what is neither is words or an installed module."""
    path, mark, rest = request.partition(".py")
    if mark and (folder / f"{path}.py").is_file():
        return f"{(folder / f'{path}.py').resolve()}{rest}"
    return str((folder / request).resolve()) if is_task_folder(folder / request) else request


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "_", text.replace(".py:", "-")).strip("_.")[:80] or "task"

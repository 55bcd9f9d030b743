"""Requests that `make` reads before torch is imported: words with one reading, several, or none.

A person at a terminal picks one of several readings. Words without a reading leave the nearest reference in a file.
"""

from __future__ import annotations

import contextlib
import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import typer

from tilewright.playbook.errors import PlaybookProblem, precheck
from tilewright.records import Specification
from tilewright.store import Request, Store, StoreError
from tilewright.words import NotUnderstood, SeveralReadings, nearest, read, reference

_FUNCTION = re.compile(r"(?P<path>\S+\.py)(?::(?P<name>\w+))?")
_LONGEST_PATH = 1000
_NAMES = ("request.py", *(f"request_{number}.py" for number in range(2, 100)))


def settled_words(request: Request, anew: bool, place: Path) -> Request:
    """The request in words that have one reading; other requests as they are.

    A person at a terminal picks one of several readings by its number. For words without a reading the nearest
    reference is written to a new file in `place`, to be edited, and the error says how it is made.
    """
    try:
        refuse_early(request, anew)
    except SeveralReadings as several:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise
        chosen = replace(request, text=_picked(several))
        return settled_words(chosen, anew, place)
    except NotUnderstood as problem:
        if problem.given is not None:
            raise
        raise _with_function(problem, request, place) from None
    return request


def _picked(several: SeveralReadings) -> str:
    typer.echo(f"{several.question}:", err=True)
    for number, one in enumerate(several.readings, 1):
        typer.echo(f'  {number}. "{one.request}": {one.means}', err=True)
    highest, number = len(several.readings), 0
    while not 1 <= number <= highest:
        number = int(typer.prompt(f"Which is meant, 1 to {highest}?", type=int, err=True))
    return several.readings[number - 1].request


def _with_function(problem: NotUnderstood, request: Request, place: Path) -> NotUnderstood:
    """The problem, and the nearest reference as a file that `make` takes; the problem alone where nothing is near."""
    near = problem.near or next((one.name for one in nearest(request.text, 1)), "")
    path = next((place / name for name in _NAMES if not (place / name).exists()), None)
    if not near or path is None:
        return problem
    made = reference(near, problem.understood, request.shapes)
    try:
        path.write_text(_source(request.text, made), encoding="utf-8")
    except OSError:
        return problem
    found = f"{problem.found}; {path.name} has the nearest function, to be edited: {_command(path.name, made)}"
    more = NotUnderstood(found, *problem.remedies)
    more.near = problem.near
    return more


def _source(words: str, made: Specification) -> str:
    asked = " ".join(words.split())
    assumed = "".join(f"#   {one}\n" for one in made.assumptions)
    return f"# Edit this function to compute: {asked}\n# It assumes:\n{assumed}\n{made.reference}"


def _command(path: str, made: Specification) -> str:
    described = tomllib.loads(made.description)
    sizes = {name: one["size"] if isinstance(one, dict) else one for name, one in described["dimensions"].items()}
    shapes = []
    for name, text in described["inputs"].items():
        if isinstance(text, str):
            dtype, _, inside = text.rstrip("]").partition("[")
            sides = [str(sizes.get(one, one)) for one in inside.split(", ") if one]
            shapes.append(f"--shape {name}={'x'.join(sides)}:{dtype}")
    return f"tilewright make {path}:{described['function']} {' '.join(shapes)}"


def refuse_early(request: Request, anew: bool) -> None:
    """Raise what the playbook would raise later, unless the library may have the kernel."""
    try:
        _precheck(request)
    except (NotUnderstood, PlaybookProblem):
        if anew or not _may_be_known(request):
            raise


def _precheck(request: Request) -> None:
    text = request.text.strip()
    found = _FUNCTION.fullmatch(text)
    if found is None:
        if text and ":" not in text and ".py" not in text and not _is_path(text):
            read(text, request.shapes)
        return
    with contextlib.suppress(OSError, UnicodeDecodeError):
        source = Path(found["path"]).expanduser().read_text(encoding="utf-8")
        precheck(source, found["name"] or "Model")


def _is_path(text: str) -> bool:
    return len(text) < _LONGEST_PATH and Path(text).expanduser().exists()


def _may_be_known(request: Request) -> bool:
    for kernel in Store().library.all():
        with contextlib.suppress(StoreError):
            asked = kernel.request()
            if asked is not None and asked.text == request.text:
                return True
    return False

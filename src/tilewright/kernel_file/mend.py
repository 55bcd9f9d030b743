"""Mends what has exactly one mechanical mend, so that no author is asked again about trivia.

Every mend is reported as the problem it removed. What has no such mend is raised as it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.kernel_file.parser import parse
from tilewright.kernel_file.problems import KernelFileError, Mend, Problem
from tilewright.kernel_file.syntax import KernelFile

# A mend can uncover another problem of the same directive, so files are read again; an honest file takes one or two.
_MAX_ROUNDS = 20


@dataclass(frozen=True)
class Mended:
    """A readable file and the problems that were mended to make it so, in the order of mending."""

    text: str
    file: KernelFile
    mends: tuple[Problem, ...]


def mend(text: str, name: str = "kernel.cu", *, allow_library: bool = True) -> Mended:
    """Read a file, mending what can be mended; raises `KernelFileError` with the problems that remain."""
    mended: list[Problem] = []
    seen = {text}
    for _ in range(_MAX_ROUNDS):
        try:
            return Mended(text, parse(text, name, allow_library=allow_library), tuple(mended))
        except KernelFileError as error:
            text, applied = apply_mends(text, error.problems)
            if not applied or text in seen:
                raise
            seen.add(text)
            mended.extend(applied)
    return Mended(text, parse(text, name, allow_library=allow_library), tuple(mended))


def apply_mends(text: str, problems: Sequence[Problem]) -> tuple[str, tuple[Problem, ...]]:
    """The text with every mend made that overlaps no earlier one, and the problems so mended."""
    lines = text.split("\n")
    applied: list[Problem] = []
    free_to: dict[int, int] = {}  # per line, the first column no later mend has touched
    for problem in sorted(problems, key=_mend_place, reverse=True):
        place = problem.mend
        if place is None or not 1 <= place.line <= len(lines):
            continue
        end = place.column + place.length
        if end > free_to.get(place.line, len(lines[place.line - 1]) + 1):
            continue
        line = lines[place.line - 1]
        lines[place.line - 1] = line[: place.column - 1] + place.replacement + line[end - 1 :]
        free_to[place.line] = place.column
        applied.append(problem)
    return "\n".join(lines), tuple(reversed(applied))


def _mend_place(problem: Problem) -> tuple[int, int]:
    place: Mend | None = problem.mend
    return (place.line, place.column) if place else (0, 0)

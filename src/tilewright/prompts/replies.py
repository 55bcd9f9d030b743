"""What a model's reply says, read strictly: a whole kernel file, or edits of the one it was shown.

A reply that cannot be read for certain is a `ReplyProblem`, whose message tells the model what was wrong and where, so
that one further question is enough. Nothing is guessed: edits must match exactly once, but for blanks at the ends of
lines.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

SEARCH_MARK, MIDDLE_MARK, REPLACE_MARK = "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE"

_FENCE = re.compile(r"^ {0,3}```+[ \t]*([\w+-]*)[ \t]*$")
_CUDA_FENCES = frozenset({"cuda", "cu", "cpp", "c++", "c"})
_SUMMARY = re.compile(r"^[*_#\s]*summary[*_\s]*:[*_\s]*(.+?)[*_\s]*$", re.IGNORECASE | re.MULTILINE)
_OP_LINE = re.compile(r"^//!\s*op\b", re.MULTILINE)
_MOST_SUMMARY_CHARACTERS = 160
_QUOTED_CHARACTERS = 100
_LIKENESS = 0.6


class ReplyProblem(ValueError):
    """A reply that cannot be used. The message is written for the model that is asked again."""


@dataclass(frozen=True)
class KernelReply:
    summary: str  # one line, the author's own; "" where it gave none
    text: str  # the whole kernel file


@dataclass(frozen=True)
class Fence:
    """A fenced block of a reply. Lines are 1-based."""

    language: str
    first_line: int  # of the opening fence
    text: str


@dataclass(frozen=True)
class _Edit:
    line: int  # of its opening mark in the reply, 1-based
    search: tuple[str, ...]
    replace: tuple[str, ...]


def read_reply(text: str, base: str | None) -> KernelReply:
    """The kernel file a reply stands for; `base` is the file its edits are of, None where there is none.

    Raises `ReplyProblem`.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    edits = _read_edits(lines)
    if not edits:
        return KernelReply(read_summary(text), _whole_file(lines))
    if not base:
        raise ReplyProblem(
            "the reply has SEARCH/REPLACE edits, but there is no file to edit; send the whole file in one ```cuda block"
        )
    edited = _apply(edits, base)
    if edited == _plain_lines(base):
        raise ReplyProblem("the edits change nothing: every REPLACE text equals its SEARCH text")
    return KernelReply(read_summary(text), "\n".join(edited))


def read_summary(text: str) -> str:
    """The line after `Summary:`, without marks of emphasis and cut to a table's width; "" where there is none."""
    found = _SUMMARY.search(text)
    summary = " ".join(found[1].split()) if found else ""
    return summary if len(summary) <= _MOST_SUMMARY_CHARACTERS else summary[: _MOST_SUMMARY_CHARACTERS - 3] + "..."


def read_fences(lines: list[str]) -> tuple[Fence, ...]:
    """Every fenced block, in order. Raises `ReplyProblem` where one is not closed."""
    fences: list[Fence] = []
    opened: tuple[str, int] | None = None
    for number, line in enumerate(lines, start=1):
        found = _FENCE.match(line)
        if found is None or (opened is not None and found[1]):
            continue
        if opened is None:
            opened = found[1].lower(), number
        else:
            language, first = opened
            fences.append(Fence(language, first, "\n".join(lines[first : number - 1]) + "\n"))
            opened = None
    if opened is not None:
        raise ReplyProblem(
            f"the ```{opened[0]} block opened at line {opened[1]} of the reply is never closed with ```: "
            "it seems to be cut off"
        )
    return tuple(fences)


def _whole_file(lines: list[str]) -> str:
    files = [fence for fence in read_fences(lines) if fence.language in _CUDA_FENCES]
    if not files:
        raise ReplyProblem(
            "the reply has neither a ```cuda block nor SEARCH/REPLACE edits; send one ```cuda block with the whole file"
        )
    if len(files) > 1:
        places = " and ".join(str(fence.first_line) for fence in files)
        raise ReplyProblem(
            f"the reply has {len(files)} ```cuda blocks, at lines {places}; send exactly one, with the whole file"
        )
    (file,) = files
    if not _OP_LINE.search(file.text):
        raise ReplyProblem(
            "the ```cuda block is not a whole kernel file: it has no `//! op` line; send the file from its first line "
            "to its last, or SEARCH/REPLACE edits"
        )
    return "\n".join(_plain_lines(file.text))


# -- edits --


def _read_edits(lines: list[str]) -> list[_Edit]:
    edits: list[_Edit] = []
    parts: list[list[str]] = []  # of the edit being read: the SEARCH lines, then the REPLACE lines
    began = 0
    for number, line in enumerate(lines, start=1):
        mark = line.strip()
        if mark == SEARCH_MARK:
            if parts:
                raise ReplyProblem(
                    f"the edit opened at line {began} of the reply is not closed before the next one opens"
                )
            parts, began = [[]], number
        elif not parts:
            if mark == REPLACE_MARK:
                raise ReplyProblem(
                    f"line {number} of the reply closes an edit that was never opened with {SEARCH_MARK}"
                )
        elif mark == MIDDLE_MARK:
            if len(parts) == 2:
                raise ReplyProblem(
                    f"the edit opened at line {began} of the reply has a second {MIDDLE_MARK} at line {number}"
                )
            parts.append([])
        elif mark == REPLACE_MARK:
            if len(parts) == 1:
                raise ReplyProblem(f"the edit opened at line {began} of the reply has no {MIDDLE_MARK} line")
            edits.append(_Edit(began, tuple(parts[0]), tuple(parts[1])))
            parts = []
        else:
            parts[-1].append(line)
    if parts:
        raise ReplyProblem(
            f"the edit opened at line {began} of the reply is never closed with {REPLACE_MARK}: it seems to be cut off"
        )
    if edits and any(_OP_LINE.search(fence.text) and SEARCH_MARK not in fence.text for fence in _closed_fences(lines)):
        raise ReplyProblem("the reply has both a whole file and SEARCH/REPLACE edits; send one or the other")
    return edits


def _closed_fences(lines: list[str]) -> tuple[Fence, ...]:
    """Fences around edits matter little: one that is not closed is none."""
    try:
        return read_fences(lines)
    except ReplyProblem:
        return ()


def _apply(edits: list[_Edit], base: str) -> list[str]:
    """The file after the edits, one after the other."""
    lines = _plain_lines(base)
    for number, edit in enumerate(edits, start=1):
        name = f"edit {number}" if len(edits) > 1 else "the edit"
        wanted = [line.rstrip() for line in edit.search]
        if not any(wanted):
            raise ReplyProblem(f"{name} has an empty SEARCH text; give the lines it replaces")
        held = [line.rstrip() for line in lines]
        places = [at for at in range(len(held) - len(wanted) + 1) if held[at : at + len(wanted)] == wanted]
        if not places:
            raise ReplyProblem(f"{name}: {_where_it_differs(wanted, held)}")
        if len(places) > 1:
            shown = ", ".join(str(at + 1) for at in places[:6])
            raise ReplyProblem(
                f"{name}: its SEARCH text is in the file {len(places)} times, at lines {shown}; "
                "add lines around it until it is unique"
            )
        (at,) = places
        lines[at : at + len(wanted)] = [line.rstrip() for line in edit.replace]
    return lines


def _where_it_differs(wanted: list[str], held: list[str]) -> str:
    """Why a SEARCH text is not in the file: the line where the longest match ends, or a line like its first."""
    best_at, matched = 0, 0
    for at in range(len(held)):
        count = 0
        while count < len(wanted) and at + count < len(held) and held[at + count] == wanted[count]:
            count += 1
        if count > matched and any(wanted[:count]):
            best_at, matched = at, count
    if matched:
        has = f"`{_quoted(held[best_at + matched])}`" if best_at + matched < len(held) else "its end"
        return (
            f"its SEARCH text is not in the file. Line {matched} of it is line {best_at + matched} of the file, but "
            f"line {matched + 1} of it, `{_quoted(wanted[matched])}`, differs: "
            f"line {best_at + matched + 1} of the file is {has}"
        )
    first = next(line for line in wanted if line)
    alike = difflib.get_close_matches(first, held, n=1, cutoff=_LIKENESS)
    message = f"its SEARCH text is not in the file: no line is `{_quoted(first)}`"
    if alike:
        message += f"; line {held.index(alike[0]) + 1} is `{_quoted(alike[0])}`"
    return message + ". Copy the lines from the file shown, blanks at their start included"


def _quoted(line: str) -> str:
    return line if len(line) <= _QUOTED_CHARACTERS else line[:_QUOTED_CHARACTERS] + "..."


def _plain_lines(text: str) -> list[str]:
    """The lines without blanks at their ends; the file ends with one line feed."""
    return [line.rstrip() for line in text.replace("\r\n", "\n").rstrip().split("\n")] + [""]

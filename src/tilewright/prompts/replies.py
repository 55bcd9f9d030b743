"""Parses a model's reply: a whole kernel file, or edits of the file it was shown.

Parsing is strict. An ambiguous reply raises `ReplyProblem`, whose message tells the model what is wrong and where. The
SEARCH text of an edit must occur exactly once, as whole lines or as part of a line that splits no word. Trailing blanks
are ignored.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

SEARCH_MARK, MIDDLE_MARK, REPLACE_MARK = "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE"

_FENCE = re.compile(r"^ {0,3}```+[ \t]*([\w+-]*)[ \t]*$")
_CUDA_FENCES = frozenset({"cuda", "cu", "cpp", "c++", "c"})
_SUMMARY = re.compile(r"^[*_#\s]*summary[*_\s]*:[*_\s]*(.+?)[*_\s]*$", re.IGNORECASE | re.MULTILINE)
_PASSING = re.compile(r"^[*_#\s]*nothing better[*_\s]*:[*_\s]*(.+?)[*_\s]*$", re.IGNORECASE | re.MULTILINE)
_OP_LINE = re.compile(r"^//!\s*op\b", re.MULTILINE)
_MOST_SUMMARY_CHARACTERS = 240
_QUOTED_CHARACTERS = 160
_LEAST_ALIKE = 0.4  # part of a line that a similar line must share in one piece
_WORD = re.compile(r"\w")


class ReplyProblem(ValueError):
    """A reply that cannot be used. The message is for the model, which is asked again."""


@dataclass(frozen=True)
class KernelReply:
    summary: str  # one line by the author; "" for none
    text: str  # the whole kernel file


@dataclass(frozen=True)
class NoChange:
    """A reply without a file: the author expects no gain."""

    reason: str


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


def read_no_change(text: str) -> NoChange | None:
    """The reply's `Nothing better:` line; None if it has a file, edits, or no such line."""
    found = _PASSING.search(text)
    return NoChange(table_line(found[1])) if found and SEARCH_MARK not in text and "```" not in text else None


def read_reply(text: str, base: str | None) -> KernelReply:
    """The kernel file of a reply; `base` is the file that its edits apply to. Raises `ReplyProblem`."""
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
    """The text after `Summary:`, without emphasis and cut to a table's width; "" for none."""
    return table_line(whole_summary(text))


def whole_summary(text: str) -> str:
    """The text after `Summary:` in full."""
    found = _SUMMARY.search(text)
    return " ".join(found[1].split()) if found else ""


def table_line(text: str) -> str:
    """A text on one line, cut to a table's width."""
    line = " ".join(text.split())
    return line if len(line) <= _MOST_SUMMARY_CHARACTERS else line[: _MOST_SUMMARY_CHARACTERS - 3] + "..."


def read_fences(lines: list[str]) -> tuple[Fence, ...]:
    """All fenced blocks in order. Raises `ReplyProblem` if one is not closed."""
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
    """The fenced blocks around edits; () if one is not closed, which does not matter there."""
    try:
        return read_fences(lines)
    except ReplyProblem:
        return ()


def _apply(edits: list[_Edit], base: str) -> list[str]:
    """Apply the edits in order. Raises one `ReplyProblem` for all that do not apply."""
    lines = _plain_lines(base)
    problems: list[str] = []
    for number, edit in enumerate(edits, start=1):
        try:
            lines = _edited(lines, edit)
        except ReplyProblem as problem:
            problems.append(f"{f'edit {number}' if len(edits) > 1 else 'the edit'}: {problem}")
    if problems:
        raise ReplyProblem(". ".join(problems))
    return lines


def _edited(lines: list[str], edit: _Edit) -> list[str]:
    wanted = [line.rstrip() for line in edit.search]
    replacing = [line.rstrip() for line in edit.replace]
    if not any(wanted):
        raise ReplyProblem("its SEARCH text is empty; give the lines it replaces")
    places = [at for at in range(len(lines) - len(wanted) + 1) if lines[at : at + len(wanted)] == wanted]
    if places:
        at = _only(places, [at + 1 for at in places])
        return [*lines[:at], *replacing, *lines[at + len(wanted) :]]
    text, part = "\n".join(lines), "\n".join(wanted)
    places = _places_of(part, text) if wanted[0] and wanted[-1] else []
    if not places:
        raise ReplyProblem(_where_it_differs(wanted, lines))
    at = _only(places, [text.count("\n", 0, at) + 1 for at in places])
    return _plain_lines(text[:at] + "\n".join(replacing) + text[at + len(part) :])


def _only(places: list[int], line_numbers: list[int]) -> int:
    if len(places) > 1:
        shown = ", ".join(map(str, line_numbers[:6]))
        raise ReplyProblem(
            f"its SEARCH text is in the file {len(places)} times, at lines {shown}; "
            "add lines around it until it is unique"
        )
    return places[0]


def _places_of(part: str, text: str) -> list[int]:
    """The offsets of `part` in `text` at which it splits no word or number."""

    def cuts(left: str, right: str) -> bool:
        return bool(_WORD.match(left) and _WORD.match(right))

    found = [at for at in range(len(text)) if text.startswith(part, at)]
    return [
        at
        for at in found
        if not cuts(text[at - 1 : at], part[0]) and not cuts(part[-1], text[at + len(part) : at + len(part) + 1])
    ]


def _where_it_differs(wanted: list[str], held: list[str]) -> str:
    """Why a SEARCH text is not in the file: where the longest match ends, or the line most similar to its first."""
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
    message = f"its SEARCH text is not in the file: no line is `{_quoted(first)}`"
    alike = _most_alike(first, held)
    if alike is not None:
        message += f"; line {alike + 1} is `{_quoted(held[alike])}`"
    return message + ". Copy the lines from the file shown, blanks at their start included"


def _most_alike(wanted: str, held: list[str]) -> int | None:
    """The index of the line that shares the longest piece with `wanted`; None if all pieces are short."""
    plain = wanted.strip()
    longest, best = 0, None
    for index, line in enumerate(held):
        piece = difflib.SequenceMatcher(None, plain, line, autojunk=False).find_longest_match()
        if piece.size > longest:
            longest, best = piece.size, index
    return best if longest >= _LEAST_ALIKE * len(plain) else None


def _quoted(line: str) -> str:
    return line if len(line) <= _QUOTED_CHARACTERS else line[:_QUOTED_CHARACTERS] + "..."


def _plain_lines(text: str) -> list[str]:
    """The lines without trailing blanks; the file ends with one line feed."""
    return [line.rstrip() for line in text.replace("\r\n", "\n").rstrip().split("\n")] + [""]

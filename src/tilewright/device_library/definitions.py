"""Reads the headers of the device library: the definitions of each, with their comments and the names they use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from tilewright.kernel_file.cpp_tokens import CppText, CppToken, closing, tokenize_cpp

FOLDER = Path(__file__).parent / "headers"
NAMESPACE = "tw"
MACRO_PREFIX = "TW_"


@dataclass(frozen=True)
class Definition:
    """A function, a type, a constant, a macro, or a macro's use that defines a function."""

    name: str
    text: str
    comment: tuple[str, ...]  # the lines above it, without `//`; () where it belongs to the definition above
    uses: frozenset[str]  # every identifier in it


@dataclass(frozen=True)
class Header:
    name: str  # such as mbarrier.cuh
    comment: tuple[str, ...]
    includes: tuple[str, ...]  # other headers of the library
    definitions: tuple[Definition, ...]


@cache
def library() -> Mapping[str, Header]:
    """All headers by name, each behind those it includes; the order is the same everywhere."""
    found = {path.name: read_header(path.name, path.read_text()) for path in sorted(FOLDER.glob("*.cuh"))}
    ordered: dict[str, Header] = {}

    def visit(name: str) -> None:
        if name not in ordered:
            for other in found[name].includes:
                visit(other)
            ordered[name] = found[name]

    for name in found:
        visit(name)
    return MappingProxyType(ordered)


def included_headers(cpp: CppText) -> dict[str, Sequence[CppToken]]:
    """The library's headers that a text includes, with the preprocessor lines; other includes are not listed."""
    found: dict[str, Sequence[CppToken]] = {}
    for line in cpp.directives:
        words = [token.text for token in line]
        if words[1:5] == ["include", "<", "tilewright", "/"] and words[-1] == ">":
            found["".join(words[5:-1])] = line
    return found


def read_header(name: str, text: str) -> Header:
    cpp = tokenize_cpp(text)
    assert not cpp.problems, f"{name}: {cpp.problems}"
    comment = tuple(line[2:].strip() for line in _comment_above(text, text.index("#pragma once")))
    return Header(name, comment, tuple(included_headers(cpp)), tuple(_definitions(cpp)))


def _definitions(cpp: CppText) -> list[Definition]:
    """Everything between the braces of the namespace."""
    code = cpp.code
    first = next(i for i, token in enumerate(code) if token.text == NAMESPACE) + 2
    last = closing(code, first - 1)
    macros = {line[0].start: line for line in cpp.directives if len(line) > 2 and line[1].text == "define"}
    pieces: list[tuple[Sequence[CppToken], str]] = [(line, line[2].text) for line in macros.values()]
    while first < last:
        end = _end(code, first)
        tokens = code[first:end]
        pieces.append((tokens, _name(tokens)))
        first = end
    pieces.sort(key=lambda piece: piece[0][0].start)
    return [_definition(cpp, tokens, name) for tokens, name in pieces]


def _definition(cpp: CppText, tokens: Sequence[CppToken], name: str) -> Definition:
    start, end = cpp.original(tokens[0].start), cpp.original(tokens[-1].start) + len(tokens[-1].text)
    remark = cpp.text[end : cpp.text.index("\n", end)]  # a comment behind the last token
    comment = tuple(line[2:].strip() for line in _comment_above(cpp.text, start))
    return Definition(name, cpp.text[start:end] + remark, comment, frozenset(t.text for t in tokens if t.is_identifier))


def _end(code: Sequence[CppToken], first: int) -> int:
    """The index behind a definition: behind its `;`, its body, or the brackets of a macro's use."""
    if code[first].text.startswith(MACRO_PREFIX):
        return closing(code, first + 1, "()") + 1
    position = first
    while code[position].text != ";":
        if code[position].text == "(":
            position = closing(code, position, "()")
        elif code[position].text == "{":
            position = closing(code, position)
            if code[position + 1].text != ";":
                break
        position += 1
    return position + 1


def _name(tokens: Sequence[CppToken]) -> str:
    words = [token.text for token in tokens]
    if words[0].startswith(MACRO_PREFIX):
        return words[2]
    if words[0] == "template":
        words = words[_behind_angles(words, 1) :]
    if words[0] in ("struct", "enum", "using"):
        skip = {"struct", "enum", "using", "class", "alignas", "(", ")", "16"}
        return next(word for word in words if word not in skip)
    stop = next(i for i, word in enumerate(words) if word in ("(", "=", "["))
    before = words[:stop]
    if before[-1] == ">":  # a specialisation of a function
        before = before[: len(before) - 1 - before[::-1].index("<")]
    return before[-1]


def _behind_angles(words: Sequence[str], first: int) -> int:
    """The index behind the angle brackets that open at an index."""
    depth = 0
    for position in range(first, len(words)):
        depth += {"<": 1, ">": -1}.get(words[position], 0)
        if depth == 0:
            return position + 1
    raise ValueError("angle brackets are never closed")


def _comment_above(text: str, start: int) -> list[str]:
    """The lines of `//` directly above the line that holds an offset."""
    lines = text[:start].split("\n")[:-1]
    count = 0
    while count < len(lines) and lines[-1 - count].startswith("//"):
        count += 1
    return lines[len(lines) - count :]

"""Puts what a kernel file uses of the device library into the file itself, so that it stands alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from tilewright.device_library.definitions import NAMESPACE, Definition, Header, included_headers, library
from tilewright.kernel_file.cpp_tokens import CppText, tokenize_cpp

_FACT = re.compile(r"(?:cost|arch|signature): ")
_OPENING = "// ---- from Tilewright's device library"


class UnknownHeader(ValueError):
    """A text includes a header that the device library does not have."""


def flatten(text: str, more: Iterable[Header] = ()) -> str:
    """The text with its `#include <tilewright/...>` lines replaced by the definitions it uses, and by what those use.

    They stand where the first such line stood, in the order of the library, in its namespace; those of `more` headers
    come last. A text without such lines is returned as it is.
    """
    cpp = tokenize_cpp(text)
    included = included_headers(cpp)
    if not included:
        return text
    headers = {**library(), **{header.name: header for header in more}}
    for name in included:
        if name not in headers:
            known = ", ".join(sorted(headers))
            raise UnknownHeader(f"the device library has no <tilewright/{name}>; it has {known}")
    kept = used_definitions(cpp, included, headers)
    spans = [(cpp.original(line[0].start), cpp.original(line[-1].start) + 1) for line in included.values()]
    pieces, position = [], 0
    for number, (start, end) in enumerate(spans):
        pieces.append(text[position:start] + ("" if number else _block(kept)))
        position = end + 1 if number and text[end : end + 1] == "\n" else end  # the line goes with its include
    return "".join([*pieces, text[position:]])


def used_definitions(
    cpp: CppText, included: Iterable[str], headers: Mapping[str, Header] | None = None
) -> list[tuple[Header, list[Definition]]]:
    """What a text uses of the headers it includes, transitively, by header; uses are found by name."""
    visible = _with_includes(included, library() if headers is None else headers)
    defined: dict[str, list[Definition]] = {}
    for header in visible:
        for definition in header.definitions:
            defined.setdefault(definition.name, []).append(definition)
    wanted = [name for name in _names_in(cpp) if name in defined]
    reached: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name not in reached:
            reached.add(name)
            wanted += [use for one in defined[name] for use in one.uses if use in defined]
    kept = [(header, [one for one in header.definitions if one.name in reached]) for header in visible]
    return [(header, definitions) for header, definitions in kept if definitions]


def _with_includes(names: Iterable[str], headers: Mapping[str, Header]) -> list[Header]:
    """Headers and those they include, in the library's order."""
    reached: set[str] = set()
    wanted = list(names)
    while wanted:
        name = wanted.pop()
        if name not in reached:
            reached.add(name)
            wanted += headers[name].includes
    return [header for name, header in headers.items() if name in reached]


def _names_in(cpp: CppText) -> set[str]:
    """What a text may mean of the library: what it qualifies; every name of it, where it opens the namespace."""
    tokens = [*cpp.code, *(token for line in cpp.directives for token in line)]
    words = [token.text for token in tokens]
    uses = [i for i, word in enumerate(words) if word == NAMESPACE]
    if all(words[i + 1 : i + 2] == ["::"] for i in uses):
        return {words[i + 2] for i in uses if i + 2 < len(words)} | {word for word in words if word.startswith("TW_")}
    return {token.text for token in tokens if token.is_identifier}


def _block(kept: Sequence[tuple[Header, list[Definition]]]) -> str:
    lines = [_OPENING, f"namespace {NAMESPACE} {{"]
    for header, definitions in kept:
        told: tuple[str, ...] = ()
        of_group: tuple[str, ...] = ()
        for one in header.definitions:
            of_group = one.comment or of_group
            if one not in definitions:
                continue
            if of_group != told:
                told = of_group
                lines += ["", *(f"// {line}" for line in of_group if not _FACT.match(line))]
            lines.append(one.text)
    return "\n".join([*lines, "", f"}}  // namespace {NAMESPACE}"])

"""Splits a CUDA source into top-level items (kernels, device code, host code) and finds which item uses which.

An item is all tokens up to the `;` or `}` that ends it, with the comments above it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from tilewright.importing.preprocessing import Includes, expand_definitions
from tilewright.kernel_file.cpp_tokens import CppText, CppToken, closing, tokenize_cpp

_TYPE_WORDS = frozenset(("struct", "class", "union", "enum"))
_NO_NAMES = frozenset(("__launch_bounds__", "__cluster_dims__", "__align__", "alignas", "__attribute__", "decltype"))
TENSOR_WORDS = frozenset(("torch", "at", "c10", "pybind11"))
_HOST_WORDS = TENSOR_WORDS | {"cublasHandle_t", "cudnnHandle_t", "ofstream", "cout"}
_MOST_CHARACTERS = 1_000_000
_SPACED_LAUNCH = re.compile(
    r"<<[ \t]+<([^;{}]*?)>>[ \t]*>(\s*\()"
)  # `<< <grid, block >> > (`, as some formatters write


class ImportProblem(ValueError):
    """The source uses something that a kernel file cannot express; the message names it and its place."""


class ConflictingArguments(ImportProblem):
    """The arguments specified for a launcher contradict the source."""


class Kind(Enum):
    KERNEL = "kernel"
    DEVICE = "device"  # a `__device__` function or variable
    HOST = "host"  # a function without CUDA qualifiers
    SHARED = "shared"  # a type, alias, constant or `__host__ __device__` function
    MACRO = "macro"
    DIRECTIVE = "directive"  # any other preprocessor line
    SCOPE = "scope"  # `namespace x {` or its `}`


@dataclass(frozen=True)
class Item:
    kind: Kind
    name: str  # "" for an unnamed item
    start: int  # offset in the text, comments above included
    code_start: int
    end: int
    line: int  # of its first token
    mentions: frozenset[str]
    tokens: tuple[CppToken, ...] = ()
    body: tuple[int, int] | None = None  # offsets of a function's braces
    is_host_only: bool = False  # mentions torch or another host library


@dataclass(frozen=True)
class Source:
    """One translation unit with its local includes expanded."""

    name: str
    text: str
    items: tuple[Item, ...]
    cpp: CppText
    places: tuple[tuple[str, int], ...] = ()  # the original file and line of each line; () if nothing was included
    missing: tuple[str, ...] = ()  # quoted includes that were not found
    instances: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # explicit template instantiations

    def place(self, line: int) -> tuple[str, int]:
        """The original file and line of a line of the text."""
        return self.places[line - 1] if 0 < line <= len(self.places) else (self.name, line)

    def at(self, line: int) -> str:
        return "{}:{}".format(*self.place(line))

    def of_kind(self, *kinds: Kind) -> tuple[Item, ...]:
        return tuple(item for item in self.items if item.kind in kinds)

    def scope(self, kernel: str) -> str:
        """The namespaces around a kernel: `a::b::`."""
        around: list[str] = []
        for item in self.items:
            words = [token.text for token in item.tokens]
            if item.kind is Kind.KERNEL and item.name == kernel and item.body is not None:
                return "".join(around)
            if item.kind is Kind.SCOPE and words[-1] == "{":
                named = [token.text for token in item.tokens if token.is_identifier and token.text != "inline"]
                around.append("".join(f"{name}::" for name in named[1:]) if named[:1] == ["namespace"] else "")
            elif item.kind is Kind.SCOPE and words == ["}"] and around:
                around.pop()
        return ""

    def reachable(self, seeds: Iterable[str], items: Iterable[Item]) -> set[Item]:
        """The named items that the seeds use, directly or through other items."""
        named: dict[str, list[Item]] = {}
        for item in items:
            enumerators = item.mentions if any(token.text == "enum" for token in item.tokens[:2]) else ()
            for name in {item.name, *enumerators} - {""}:
                named.setdefault(name, []).append(item)
        found: set[Item] = set()
        waiting = list(seeds)
        while waiting:
            for item in named.pop(waiting.pop(), ()):
                found.add(item)
                waiting.extend(item.mentions & named.keys())
        return found


def read_source(
    name: str, text: str, folder: Path | None, include: Sequence[Path] = (), defines: Sequence[str] = ()
) -> Source:
    """Read a source. `folder` is searched for quoted includes, `include` for all; `defines` are `NAME` or `NAME=VALUE`.

    Raises `ImportProblem`.
    """
    reader = Includes(include, defines)
    lines = [("#define " + one.replace("=", " ", 1), (name, 1)) for one in defines]
    lines += reader.lines(name, text.lstrip("\ufeff"), folder)
    made = parsed(name, "\n".join(line for line, _ in lines))
    return replace(made, places=tuple(place for _, place in lines), missing=tuple(dict.fromkeys(reader.missing)))


def parsed(name: str, text: str) -> Source:
    """Parse a text whose includes are already expanded. Raises `ImportProblem`."""
    text = _SPACED_LAUNCH.sub(r"<<<\1>>>\2", text)
    if len(text) > _MOST_CHARACTERS:
        raise ImportProblem(f"{name} has {len(text)} characters; at most {_MOST_CHARACTERS} are read")
    cpp = tokenize_cpp(text)
    if cpp.problems:
        raise ImportProblem(f"{name}:{cpp.problems[0].line}: {cpp.problems[0].found}; {cpp.problems[0].remedy}")
    expanded = expand_definitions(cpp)
    if expanded != text:
        text, cpp = expanded, tokenize_cpp(expanded)
    items = _Items(cpp).all()
    return Source(name, text, tuple(_one_of_each(items)), cpp, instances=_instances(items))


_SAME_TYPES = {"Half": "__half", "half": "__half", "BFloat16": "__nv_bfloat16", "nv_bfloat16": "__nv_bfloat16"}


def _one_of_each(items: Sequence[Item]) -> Iterator[Item]:
    """Drop specialisations for torch's `Half` if there is one for `__half`: both are the same type here."""
    special = {id(item): key for item in items if (key := _specialised(item))}
    own = {special[id(item)] for item in items if id(item) in special and not item.mentions & TENSOR_WORDS}
    for item in items:
        if not _is_instance(item) and not (item.mentions & TENSOR_WORDS and special.get(id(item)) in own):
            yield item


def _is_instance(item: Item) -> bool:
    """`template void f<float, 4>(...);`"""
    words = [token.text for token in item.tokens[:2]]
    return words[:1] == ["template"] and words[1:] != ["<"]


def _instances(items: Sequence[Item]) -> dict[str, tuple[str, ...]]:
    """The template arguments of explicit instantiations: the first of each function, `float` preferred."""
    made: dict[str, tuple[str, ...]] = {}
    for item in filter(_is_instance, items):
        texts = [token.text for token in item.tokens]
        if "<" not in texts or ">" not in texts:
            continue
        first = texts.index("<")
        given = tuple("".join(texts[first + 1 : texts.index(">")]).split(","))
        if texts[first - 1] not in made or ("float" in given and "float" not in made[texts[first - 1]]):
            made[texts[first - 1]] = given
    return made


def _specialised(item: Item) -> tuple[str, ...]:
    """The words of `template <> struct A<Half>`, with torch's type names replaced by CUDA's."""
    words = [token.text for token in item.tokens]
    if words[:3] != ["template", "<", ">"] or "{" not in words:
        return ()
    head = [word for word in words[3 : words.index("{")] if word not in TENSOR_WORDS | {"::", "headeronly"}]
    return tuple(_SAME_TYPES.get(word, word) for word in head)


class _Items:
    """Splits tokens into items."""

    def __init__(self, cpp: CppText) -> None:
        self.cpp = cpp
        self.defines = [d for d in cpp.directives if len(d) > 2 and d[1].text == "define"]
        self.device_words, self.host_words = self._words_for("__device__"), self._words_for("__host__")

    def _words_for(self, word: str) -> set[str]:
        """A CUDA qualifier and the macros that expand to it."""
        words, count = {word}, 0
        while len(words) > count:
            count = len(words)
            words |= {d[2].text for d in self.defines if any(t.text in words for t in d[3:])}
        return words

    def all(self) -> list[Item]:
        items = [*self._code(), *(self._directive(d) for d in self.cpp.directives)]
        items.sort(key=lambda item: item.code_start)
        placed: list[Item] = []
        end = 0
        for item in items:
            if item.code_start < end:  # a directive inside an item is part of it
                outer = placed[-1]
                mentions = outer.mentions | item.mentions
                placed[-1] = Item(**{**outer.__dict__, "mentions": mentions})
                if item.kind is Kind.MACRO:
                    placed.append(Item(**{**item.__dict__, "start": item.end, "code_start": item.end}))
                continue
            placed.append(Item(**{**item.__dict__, "start": end}))
            end = item.end
        return placed

    def _directive(self, tokens: Sequence[CppToken]) -> Item:
        word = tokens[1].text if len(tokens) > 1 else ""
        is_macro = word == "define" and len(tokens) > 2
        start, end = self._span(tokens)
        return Item(
            Kind.MACRO if is_macro else Kind.DIRECTIVE,
            tokens[2].text if is_macro else "",
            start,
            start,
            end,
            self.cpp.place(tokens[0].start)[0],
            frozenset(t.text for t in tokens[3:] if t.is_identifier) if is_macro else frozenset(),
            tuple(tokens),
        )

    def _span(self, tokens: Sequence[CppToken]) -> tuple[int, int]:
        last = tokens[-1]
        return self.cpp.original(tokens[0].start), self.cpp.original(last.start + len(last.text) - 1) + 1

    def _code(self) -> Iterator[Item]:
        tokens = self.cpp.code
        index = 0
        while index < len(tokens):
            first = index
            if tokens[index].text == "}" or tokens[index].text == ";":
                index += 1
                yield self._item(tokens[first:index], Kind.SCOPE, "")
            elif (opened := self._scope(tokens, index)) is not None:
                index = opened
                yield self._item(tokens[first:index], Kind.SCOPE, "")
            else:
                index, body = _end_of_item(tokens, index)
                yield self._function_or_other(tokens[first:index], None if body is None else body - first)

    @staticmethod
    def _scope(tokens: Sequence[CppToken], index: int) -> int | None:
        """The index after `namespace ... {` or `extern "C" {`; None if neither begins here."""
        position = index + (tokens[index].text == "inline")
        word = tokens[position].text if position < len(tokens) else ""
        if word not in ("namespace", "extern"):
            return None
        for ahead in range(position + 1, min(position + 8, len(tokens))):
            if tokens[ahead].text == "{":
                return ahead + 1
            if not (tokens[ahead].is_identifier or tokens[ahead].text == "::" or tokens[ahead].kind == "string"):
                return None
        return None

    def _function_or_other(self, tokens: Sequence[CppToken], body: int | None) -> Item:
        head = tokens[: body if body is not None else len(tokens)]
        words = {t.text for t in head}
        is_function = body is not None or _is_prototype(head)
        if any(t.text in _TYPE_WORDS for t in head[: end_of_template(head, 0) + 2][-2:]) and not is_function:
            kind = Kind.SHARED
        elif "__global__" in words:
            kind = Kind.KERNEL
        elif words & self.device_words:
            kind = Kind.SHARED if words & self.host_words else Kind.DEVICE
        elif is_function and "constexpr" not in words:
            kind = Kind.HOST
        else:
            kind = Kind.SHARED
        return self._item(tokens, kind, _function_name(head) if is_function else _other_name(head), body)

    def _item(self, tokens: Sequence[CppToken], kind: Kind, name: str, body: int | None = None) -> Item:
        start, end = self._span(tokens)
        mentions = frozenset(t.text for t in tokens if t.is_identifier)
        braces = (self.cpp.original(tokens[body].start), end) if body is not None else None
        line = self.cpp.place(tokens[0].start)[0]
        host_only = bool(mentions & _HOST_WORDS)
        return Item(kind, name, start, start, end, line, mentions, tuple(tokens), braces, host_only)


def _end_of_item(tokens: Sequence[CppToken], index: int) -> tuple[int, int | None]:
    """The end of the item that begins at `index`, and the start of its function body if it has one."""
    first, depth, is_type, has_value = index, 0, False, False
    seen_paren = False
    while index < len(tokens):
        text = tokens[index].text
        if text in ("(", "["):
            depth += 1
            seen_paren = seen_paren or text == "("
        elif text in (")", "]"):
            depth -= 1
        elif depth == 0 and text in _TYPE_WORDS and not _in_template(tokens, first, index):
            is_type = is_type or not seen_paren
        elif depth == 0 and text == "=" and tokens[index - 1].text != "operator":
            has_value = has_value or not _in_template(tokens, first, index)
        elif depth == 0 and text == ";":
            return index + 1, None
        elif depth == 0 and text == "{":
            close = closing(tokens, index)
            if not is_type and not has_value and seen_paren:
                return close + 1, index
            index = close
        elif depth == 0 and text == "}":  # the end of a namespace inside an item that was not understood
            return index, None
        index += 1
    return len(tokens), None


def _in_template(tokens: Sequence[CppToken], first: int, index: int) -> bool:
    """Whether a token is inside the `template <...>` that the item begins with."""
    return tokens[first].text == "template" and index < end_of_template(tokens, first)


def end_of_template(tokens: Sequence[CppToken], first: int) -> int:
    """The index after one or several `template <...>`."""
    index = first
    while index < len(tokens) and tokens[index].text == "template":
        depth, round_ = 0, 0
        for position in range(index + 1, len(tokens)):
            text = tokens[position].text
            round_ += {"(": 1, ")": -1}.get(text, 0)
            if round_ == 0:
                depth += {"<": 1, ">": -1}.get(text, 0)
            if depth == 0:
                index = position + 1
                break
        else:
            return len(tokens)
    return index


def _is_prototype(tokens: Sequence[CppToken]) -> bool:
    words = [t.text for t in tokens]
    return (
        words[-1] == ";"
        and "(" in words
        and not {"=", "{"} & set(words)
        and words[0] not in ("using", "typedef", "static_assert")
    )


def _function_name(head: Sequence[CppToken]) -> str:
    start = end_of_template(head, 0) if head and head[0].text == "template" else 0
    depth = 0
    for index in range(start, len(head) - 1):
        text = head[index].text
        depth += {"(": 1, ")": -1}.get(text, 0)
        if depth == 0 and head[index].is_identifier and text not in _NO_NAMES and head[index + 1].text == "(":
            return text
    return ""


def _other_name(head: Sequence[CppToken]) -> str:
    words = [t.text for t in head]
    if words[:2] == ["[", "["] and "]" in words:  # `[[maybe_unused]] static constexpr int N = 4;`
        return _other_name(head[words.index("]") + 2 :])
    if words[0] == "using":
        return words[1] if "=" in words else ""
    if words[0] == "typedef":
        names = [t.text for t in head if t.is_identifier]
        return names[-1] if names else ""
    start = end_of_template(head, 0) if words[0] == "template" else 0
    for index in range(start, len(head)):
        if words[index] in _TYPE_WORDS:
            depth = 0
            for token in head[index + 1 :]:  # `alignas(16)` comes before the name
                depth += {"(": 1, ")": -1}.get(token.text, 0)
                if depth == 0 and token.is_identifier and token.text not in (*_NO_NAMES, "class"):
                    return token.text
                if token.text in ("{", ";", ":"):
                    return ""
            return ""
    stop = next((i for i in range(start, len(words)) if words[i] in ("=", "[", ";", "{")), len(words))
    names = [t.text for t in head[start:stop] if t.is_identifier]
    return names[-1] if len(names) > 1 else ""

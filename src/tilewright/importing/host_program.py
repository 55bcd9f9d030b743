"""Turns the host code of a CUDA source into a CPU program that records kernel launches.

A kernel body becomes code that records its arguments. A launch becomes code that records its configuration, and a call.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib import resources

from tilewright.importing.signatures import fields, parameter_name, parameters, template_name, template_parameters
from tilewright.importing.sources import ImportProblem, Item, Kind, Source
from tilewright.kernel_file.cpp_tokens import CppToken, closing

_STANDARD = re.compile(
    r"#\s*include\s*<(?:(?!cassert)[a-z_]+|(?:stdint|stdlib|stdio|string|math|float|limits|time|sys/time)\.h)>"
)
_COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"', re.DOTALL)
_OF_THE_HEADER = frozenset(("TORCH_CHECK", "C10_CUDA_CHECK", "AT_DISPATCH_FLOATING_TYPES", "AT_CUDA_CHECK"))
_FOREIGN_NAMESPACES = frozenset(("nvcuda", "cooperative_groups", "cute", "cub", "pybind11"))


def host_program(source: Source, entry: str) -> str:
    """A C++ program that reads calls of `entry` from standard input. Raises `ImportProblem`."""
    seeds = [entry, *source.instances.get(entry, ())]
    wanted = {_key(item) for item in source.reachable(seeds, [_declared(source, item) for item in source.items])}
    parts = ['#include "recording_host.hpp"']
    served = next((i for i in source.of_kind(Kind.HOST) if i.name == entry and i.body is not None), None)
    for item in source.items:
        text = source.text[item.code_start : item.end]
        if item.kind is Kind.SCOPE:
            parts.append("" if text == ";" else text)
        elif item.kind is Kind.DIRECTIVE:
            parts.append(_directive(text))
        elif item.kind is Kind.DEVICE:
            # Declared because it may be a template argument; a member defined outside its class is not.
            texts = [token.text for token in item.tokens]
            if _key(item) in wanted and item.body is not None and texts[texts.index(item.name) - 1] != "::":
                parts.append(f"{_without_comments(source.text[item.code_start : item.body[0]])};")
        elif _key(item) in wanted or (not item.name and _is_worth_keeping(item)):
            if item.kind is Kind.MACRO and item.name in _OF_THE_HEADER:
                continue
            if item.tokens[0].text == "namespace" and item.mentions & _FOREIGN_NAMESPACES:
                continue  # `namespace cg = cooperative_groups;`
            file, line = source.place(item.line)
            parts.append(f'#line {line} "{file}"')
            if item.kind is Kind.KERNEL:
                parts.append(_kernel(source, item))
                continue
            if item.kind is Kind.HOST and item is served:
                text = _renamed(source, item)
            elif item.kind is Kind.SHARED and item.body is None:
                text = _without_device_bodies(source, item)
            parts.append(rewrite_launches(_without_comments(text)))
    return "\n".join([*parts, f"int main() {{ ::tw::serve(&tw_entry{_instance(source, served)}); }}", ""])


def _instance(source: Source, launcher: Item | None) -> str:
    """`<float, 4>` for a template launcher: from an explicit instantiation, or `float` for type parameters."""
    parts = template_parameters(launcher) if launcher is not None else []
    if launcher is not None and parts and launcher.name in source.instances:
        return f"<{', '.join(source.instances[launcher.name])}>"
    types = all(part[0].text in ("typename", "class") and "." not in {t.text for t in part} for part in parts)
    return f"<{', '.join('float' for _ in parts)}>" if parts and types else ""


def _key(item: Item) -> tuple[Kind, str, int]:
    return item.kind, item.name, item.code_start


def _declared(source: Source, item: Item) -> Item:
    """The item without what its body uses if it is device code, whose bodies are removed."""
    if item.kind not in (Kind.KERNEL, Kind.DEVICE) or item.body is None:
        return item
    head = (token for token in item.tokens if source.cpp.original(token.start) < item.body[0])
    return replace(item, mentions=frozenset(token.text for token in head if token.is_identifier))


def _renamed(source: Source, item: Item) -> str:
    """The launcher renamed to `tw_entry`: a kernel or another launcher may have the same name."""
    pairs = enumerate(itertools.pairwise(item.tokens))
    place = next(i for i, (token, after) in pairs if token.text == item.name and after.text == "(")
    end = source.cpp.original(item.tokens[place].start) + len(item.name)
    while place > 1 and item.tokens[place - 1].text == "::":  # `void ns::tw_entry(` would be undeclared
        place -= 2
    start = source.cpp.original(item.tokens[place].start)
    return f"{source.text[item.code_start : start]}tw_entry{source.text[end : item.end]}"


def _is_worth_keeping(item: Item) -> bool:
    words = [token.text for token in item.tokens[:3]]
    if words[:2] == ["using", "namespace"]:
        return words[2] not in _FOREIGN_NAMESPACES
    return words[:1] == ["using"] and not (set(_FOREIGN_NAMESPACES) & item.mentions)


def _without_device_bodies(source: Source, item: Item) -> str:
    """A type whose device functions have bodies that fail: the host lacks what the originals call."""
    tokens, pieces, done, index = item.tokens, [], item.code_start, 0
    while index < len(tokens):
        around = {token.text for token in tokens[max(index - 2, 0) : index + 3]}
        opened = _body(tokens, index) if tokens[index].text == "__device__" and "__host__" not in around else None
        if opened is not None and "constexpr" not in around:
            index = closing(tokens, opened)
            start, end = (source.cpp.original(tokens[at].start) for at in (opened, index))
            lines = "\n" * source.text.count("\n", start, end)
            pieces += [source.text[done:start], f'{{ ::tw::fail("device code is called"); {lines}']
            done = end
        index += 1
    return "".join([*pieces, source.text[done : item.end]])


def _body(tokens: Sequence[CppToken], index: int) -> int | None:
    """The index of the brace that opens the body of the function that begins here."""
    depth = 0
    for position in range(index, len(tokens)):
        depth += {"(": 1, ")": -1}.get(tokens[position].text, 0)
        if depth == 0 and tokens[position].text in (";", "{", "="):
            return position if tokens[position].text == "{" else None
    return None


def _directive(text: str) -> str:
    word = re.sub(r"#\s*", "", text, count=1).split(None, 1)[0] if text.strip("# ") else ""
    if word == "include":
        return text if _STANDARD.match(text) else ""
    return text if word in ("if", "ifdef", "ifndef", "else", "elif", "endif", "undef") else ""


def _without_comments(text: str) -> str:
    """The text without comments, line numbers unchanged."""

    def blank(match: re.Match[str]) -> str:
        found = match.group()
        return found if found.startswith('"') else " " + "\n" * found.count("\n")

    return _COMMENT_OR_STRING.sub(blank, text)


def _kernel(source: Source, item: Item) -> str:
    if item.body is None:
        return re.sub(r"\bstatic\b", "", _without_comments(source.text[item.code_start : item.end]))
    head = source.text[item.code_start : item.body[0]]
    declared = parameters(item)
    for number in range(len(declared) - 1, -1, -1):  # unnamed parameters get a name, so that they can be recorded
        if not parameter_name(declared[number]):
            last = declared[number][-1]
            at = source.cpp.original(last.start) + len(last.text) - item.code_start
            head = f"{head[:at]} tw_{number}{head[at:]}"
    notes = []
    for part in template_parameters(item):
        texts = [token.text for token in part]
        if "." in texts:
            raise ImportProblem(f"{source.at(item.line)}: {item.name} has a template parameter pack")
        name = template_name(part)
        if texts[0] in ("typename", "class"):
            notes.append(f"tw_note.type<{name}>();")
        elif texts[0] == "template":
            raise ImportProblem(f"{source.at(item.line)}: {item.name} takes a template as a template argument")
        else:
            notes.append(f"tw_note.constant<{name}>();")
    for number, part in enumerate(declared):
        name = parameter_name(part) or f"tw_{number}"
        inside = fields(source, part)
        notes += [f"tw_note.argument({name}.{one.name});" for one in inside] or [f"tw_note.argument({name});"]
    head = re.sub(r"\bstatic\b", "", _without_comments(head))
    return f'{head}{{ ::tw::Launched tw_note("{item.name}"); {" ".join(notes)} }}'


def rewrite_launches(text: str) -> str:
    """Rewrite `k<T><<<grid, block>>>(x)` as `::tw::configure(line, grid, block), k<T>(x)`, also in macros."""
    while (at := text.find("<<<")) >= 0:
        start = _start_of_callee(text, at)
        end = _end_of_configuration(text, at + 3)
        if start is None or end is None:
            raise ImportProblem(f"a launch that cannot be read: {text[max(at - 30, 0) : at + 30]!r}")
        configuration = text[at + 3 : end]
        callee = text[start:at]
        text = f"{text[:start]}::tw::configure(__LINE__, {configuration}), {callee}{text[end + 3 :]}"
    return text


def _start_of_callee(text: str, at: int) -> int | None:
    index = _back_over_space(text, at)
    if index and text[index - 1] == ">":
        depth = 0
        while index:
            index -= 1
            if text[index] == ">" and text[index - 1] != "-":
                depth += 1
            elif text[index] == "<" and text[index - 1] == "<":
                index -= 1  # a shift
            elif text[index] == "<":
                depth -= 1
                if depth == 0:
                    break
        index = _back_over_space(text, index)
    start = index
    while start and (text[start - 1].isalnum() or text[start - 1] in "_:#"):
        start -= 1
    return start if start < index else None


def _back_over_space(text: str, index: int) -> int:
    while index and (text[index - 1].isspace() or text[index - 1] == "\\"):
        index -= 1
    return index


def _end_of_configuration(text: str, index: int) -> int | None:
    depth = 0
    while index < len(text):
        if text[index] in "([{":
            depth += 1
        elif text[index] in ")]}":
            depth -= 1
        elif depth == 0 and text.startswith(">>>", index):
            return index
        index += 1
    return None


@cache
def header() -> str:
    """The header that host programs include."""
    return resources.files("tilewright.importing").joinpath("recording_host.hpp").read_text("utf-8")

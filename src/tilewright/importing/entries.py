"""Kernels of a kernel file's own for launches that a plan cannot write: with functions and types as template arguments,
with structs by value.

A plan passes dtypes, numbers and flags. A kernel that is launched with more becomes a device function, word for word,
and a kernel with the rest of its parameters, and the fields of structs, calls it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.importing.recording import Launched
from tilewright.importing.signatures import (
    fields,
    parameter_name,
    parameters,
    template_name,
    template_parameters,
    type_of,
)
from tilewright.importing.sources import Item, Kind, Source
from tilewright.kernel_file.cpp_tokens import CppToken, closing


@dataclass(frozen=True)
class Entry:
    """A kernel that calls another with template arguments of the source's own."""

    kernel: str
    name: str
    scope: str  # `a::b::`
    text: str


def entries(source: Source, launches: Sequence[Launched]) -> list[Entry | None]:
    """For each launch the entry that it needs; the same one for the same arguments."""
    made: dict[tuple[str, tuple[tuple[int, str], ...]], Entry] = {}
    found: list[Entry | None] = []
    for launch in launches:
        item = next(i for i in source.of_kind(Kind.KERNEL) if i.name == launch.kernel and i.body is not None)
        key = (launch.kernel, tuple(launch.own_names.items()))
        if (launch.own_names or any(fields(source, part) for part in parameters(item))) and key not in made:
            made[key] = _entry(source, item, launch, sum(one == launch.kernel for one, _ in made))
        found.append(made.get(key))
    return found


def flat_names(source: Source, item: Item) -> list[str]:
    """The names of a kernel's parameters, of structs those of their fields."""
    made: list[str] = []
    for part in parameters(item):
        name = parameter_name(part)
        made += [f"{name}_{one.name}" for one in fields(source, part)] or [name]
    return made


def _entry(source: Source, item: Item, launch: Launched, before: int) -> Entry:
    own = launch.own_names
    template = template_parameters(item)
    names = [template_name(part) for part in template]
    given = {names[place]: text for place, text in own.items()}
    name = f"{launch.kernel}_as_launched{before + 1 if before else ''}"
    left = [_text(source, part) for place, part in enumerate(template) if place not in own]
    head = f"template <{', '.join(left)}>\n" if left else ""
    declared, lines = [], []
    for part in parameters(item):
        inside, called = fields(source, part), parameter_name(part)
        declared += [f"{one.type_} {called}_{one.name}" for one in inside] or [_text(source, part)]
        lines += [f"  {type_of(part)} {called};"] if inside else []
        lines += [f"  {called}.{one.name} = {called}_{one.name};" for one in inside]
    passed = ", ".join(parameter_name(part) for part in parameters(item))
    chosen = ", ".join(own.get(place, one) for place, one in enumerate(names))
    lines.append(f"  {launch.kernel}{f'<{chosen}>' if names else ''}({passed});")
    body = "\n".join(_filled(line, given) for line in lines)
    takes = ", ".join(_filled(one, given) for one in declared)
    bounds = _filled(_bounds(source, item), given)
    text = f"{head}__global__ void {bounds}{name}({takes}) {{\n{body}\n}}"
    return Entry(launch.kernel, name, source.scope(launch.kernel), text)


def _text(source: Source, part: Sequence[CppToken]) -> str:
    start, last = source.cpp.original(part[0].start), part[-1]
    text = source.text[start : source.cpp.original(last.start) + len(last.text)]
    return " ".join(re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL).split())


def _filled(text: str, given: dict[str, str]) -> str:
    if not given:
        return text
    words = "|".join(map(re.escape, given))
    return re.sub(rf"\b({words})\b", lambda match: given[match.group()], text)


def _bounds(source: Source, item: Item) -> str:
    texts = [token.text for token in item.tokens]
    if "__launch_bounds__" not in texts:
        return ""
    first = texts.index("__launch_bounds__")
    return f"{_text(source, item.tokens[first : closing(item.tokens, first + 1, '()') + 1])} "


def with_entries(text: str, found: Sequence[Entry | None]) -> str:
    """Device code in which the kernels that entries call are functions, and the entries."""
    made = list(dict.fromkeys(one for one in found if one is not None))
    for kernel in dict.fromkeys(one.kernel for one in made):
        text = _as_function(text, kernel)
    for one in made:
        spaces = one.scope.removesuffix("::")
        text += f"\nnamespace {spaces} {{\n{one.text}\n}}\n" if spaces else f"\n{one.text}\n"
    return text


def _as_function(text: str, kernel: str) -> str:
    """`__global__ void __launch_bounds__(256) k(` as `__device__ __forceinline__ void k(`."""
    bounds = r"(?:__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)\s*)?"
    pattern = rf"__global__\s+{bounds}(?:static\s+|inline\s+)*void\s+{bounds}({kernel}\s*\()"
    return re.sub(pattern, r"__device__ __forceinline__ void \1", text)

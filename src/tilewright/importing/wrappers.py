"""Wrapper kernels for launches that a plan cannot express: function or type template arguments, structs by value.

The original kernel becomes a device function. The wrapper takes what a plan can pass (struct fields one by one) and
calls it.
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
class WrapperKernel:
    kernel: str  # the original, which it calls
    name: str
    scope: str  # `a::b::`
    text: str


def wrapper_kernels(source: Source, launches: Sequence[Launched]) -> list[WrapperKernel | None]:
    """The wrapper of each launch; None where it needs none. Launches with equal arguments share one."""
    made: dict[tuple[str, tuple[tuple[int, str], ...]], WrapperKernel] = {}
    found: list[WrapperKernel | None] = []
    for launch in launches:
        item = next(i for i in source.of_kind(Kind.KERNEL) if i.name == launch.kernel and i.body is not None)
        key = (launch.kernel, tuple(launch.own_template_arguments.items()))
        if (
            launch.own_template_arguments or any(fields(source, part) for part in parameters(item))
        ) and key not in made:
            made[key] = _wrapper(source, item, launch, sum(one == launch.kernel for one, _ in made))
        found.append(made.get(key))
    return found


def flat_names(source: Source, item: Item) -> list[str]:
    """The names of a kernel's parameters, with the fields of structs in place of the structs."""
    made: list[str] = []
    for part in parameters(item):
        name = parameter_name(part)
        made += [f"{name}_{one.name}" for one in fields(source, part)] or [name]
    return made


def _wrapper(source: Source, item: Item, launch: Launched, before: int) -> WrapperKernel:
    own = launch.own_template_arguments
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
    texts = [token.text for token in item.tokens]
    bounds = ""
    if "__launch_bounds__" in texts:
        first = texts.index("__launch_bounds__")
        end = closing(item.tokens, first + 1, "()") + 1
        bounds = f"{_filled(_text(source, item.tokens[first:end]), given)} "
    text = f"{head}__global__ void {bounds}{name}({takes}) {{\n{body}\n}}"
    return WrapperKernel(launch.kernel, name, source.scope(launch.kernel), text)


def _text(source: Source, part: Sequence[CppToken]) -> str:
    start, last = source.cpp.original(part[0].start), part[-1]
    text = source.text[start : source.cpp.original(last.start) + len(last.text)]
    return " ".join(re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL).split())


def _filled(text: str, given: dict[str, str]) -> str:
    if not given:
        return text
    words = "|".join(map(re.escape, given))
    return re.sub(rf"\b({words})\b", lambda match: given[match.group()], text)


def with_wrappers(text: str, found: Sequence[WrapperKernel | None]) -> str:
    """The device code with wrapped kernels turned into device functions, and the wrappers appended."""
    made = list(dict.fromkeys(one for one in found if one is not None))
    for kernel in dict.fromkeys(one.kernel for one in made):
        # `__global__ void __launch_bounds__(256) k(` becomes `__device__ __forceinline__ void k(`
        bounds = r"(?:__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)\s*)?"
        pattern = rf"__global__\s+{bounds}(?:static\s+|inline\s+)*void\s+{bounds}({kernel}\s*\()"
        text = re.sub(pattern, r"__device__ __forceinline__ void \1", text)
    for one in made:
        spaces = one.scope.removesuffix("::")
        text += f"\nnamespace {spaces} {{\n{one.text}\n}}\n" if spaces else f"\n{one.text}\n"
    return text

"""The device part of a CUDA source: what the launched kernels reach, in the source's own words and order.

A few spellings that only nvcc knows are put into those of a kernel file; each such edit is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.importing.sources import Item, Kind, Source
from tilewright.kernel_file.source_scan import is_allowed_header

_INCLUDE = re.compile(r"#\s*include\s*[<\"]([^>\"]+)[>\"]")
_STANDARD = {  # where libcu++ has what device code takes from the standard library
    "cuda/std/limits": ("numeric_limits",),
    "cuda/std/type_traits": (
        *("is_same", "is_same_v", "enable_if", "enable_if_t", "conditional", "conditional_t", "is_floating_point"),
        *("is_floating_point_v", "is_integral", "is_integral_v", "remove_const", "decay_t", "true_type", "false_type"),
        *("integral_constant", "remove_reference_t", "remove_cv_t", "void_t", "is_signed", "make_unsigned_t"),
    ),
    "cuda/std/utility": ("move", "forward", "swap", "pair", "index_sequence", "make_index_sequence", "declval"),
    "cuda/std/array": ("array",),
    "cuda/std/tuple": ("tuple", "get", "make_tuple"),
    "cuda/std/cstdint": (),
}
# These have a twin without a namespace in every kernel.
_PLAIN = frozenset(
    (
        "max",
        "min",
        "abs",
        "fabs",
        "sqrt",
        "exp",
        "log",
        "pow",
        "tanh",
        "floor",
        "ceil",
        "isnan",
        "isinf",
        "fmax",
        "fmin",
    )
) | frozenset(("size_t", "ptrdiff_t", "int8_t", "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t", "int64_t"))
_STD = re.compile(r"\bstd::(\w+)")
_HOST_NAMESPACES = frozenset(("std", "torch", "at", "c10"))
_OTHER_NAMES = {
    r"\b__log1pf\b": "log1pf",
    r"\b(?:at|c10|torch)::Half\b": "__half",
    r"\b(?:at|c10|torch)::BFloat16\b": "__nv_bfloat16",
}


@dataclass(frozen=True)
class DeviceText:
    text: str
    lines: tuple[int, ...]  # for each line the line of the source that it came from; 0: none
    edits: tuple[str, ...]

    def line(self, number: int) -> int:
        return self.lines[number - 1] if 0 < number <= len(self.lines) else 0


def device_text(source: Source, kernels: Iterable[str]) -> DeviceText:
    """What the kernels need of the source."""
    usable = [item for item in source.items if item.kind in (Kind.KERNEL, Kind.DEVICE, Kind.SHARED, Kind.MACRO)]
    wanted = source.reachable(kernels, usable)
    kept = _without_empty_conditions([item for item in source.items if _is_kept(source, item, wanted)], source)
    lines: list[str] = []
    origins: list[int] = []
    for item in kept:
        start = item.start if item in wanted else item.code_start
        text = source.text[start : item.end]
        blank = len(text) - len(text.lstrip("\n \t"))
        first = source.text.count("\n", 0, start + blank) + 1
        if item in wanted and lines and lines[-1] and text[:blank].count("\n") > 1:
            lines.append("")
            origins.append(0)
        for number, line in enumerate(text[blank:].split("\n")):
            lines.append(line.rstrip())
            origins.append(first + number)
    return _spelled("\n".join(lines), tuple(origins))


def _is_kept(source: Source, item: Item, wanted: set[Item]) -> bool:
    words = [token.text for token in item.tokens]
    if item.kind is Kind.SCOPE:
        return words != [";"]
    if item.kind is Kind.DIRECTIVE:
        return _keeps_directive(source.text[item.code_start : item.end], words)
    if item.kind is Kind.HOST or item.start == item.end:
        return False
    if item.name:
        return item in wanted
    if words[:2] == ["using", "namespace"]:
        return words[2] not in _HOST_NAMESPACES
    if words[:3] == ["using", "std", "::"]:
        return words[3] in _PLAIN or any(words[3] in names for names in _STANDARD.values())
    return not item.is_host_only and item.kind is Kind.SHARED and words[0] in ("using", "static_assert")


def _keeps_directive(text: str, words: list[str]) -> bool:
    word = words[1] if len(words) > 1 else ""
    if word == "include":
        found = _INCLUDE.match(text)
        return found is not None and is_allowed_header(found[1])
    return word in ("if", "ifdef", "ifndef", "elif", "else", "endif", "undef")


def _without_empty_conditions(items: list[Item], source: Source) -> list[Item]:
    """`#if` and its `#endif`, and a namespace and its brace, where nothing is left between them."""
    ends = {"endif": ("if", "ifdef", "ifndef"), "}": ("{",)}
    kept: list[Item] = []
    for item in items:
        word = _bracket(item)
        while word in ends and kept and _bracket(kept[-1]) in ("else", "elif") and word == "endif":
            kept.pop()
        if word in ends and kept and _bracket(kept[-1]) in ends[word]:
            kept.pop()
            continue
        kept.append(item)
    return kept


def _bracket(item: Item) -> str:
    if item.kind is Kind.DIRECTIVE and len(item.tokens) > 1:
        return item.tokens[1].text
    return item.tokens[-1].text if item.kind is Kind.SCOPE else ""


def _spelled(text: str, origins: tuple[int, ...]) -> DeviceText:
    edits: list[str] = []
    headers: set[str] = set()
    added: list[str] = []
    homes = {name: header for header, names in _STANDARD.items() for name in names}

    def put(match: re.Match[str]) -> str:
        name = match.group(1)
        if name in _PLAIN:
            edits.append(f"std::{name} -> {name}")
            return name
        if name in homes:
            headers.add(homes[name])
            edits.append(f"std::{name} -> cuda::std::{name}")
            return f"cuda::std::{name}"
        return match.group()

    text = _STD.sub(put, text)
    if "__builtin_prefetch" in text:  # only nvcc knows it, and only as a hint
        text = re.sub(r"\b__builtin_prefetch\b", "prefetch_hint", text)
        added.append("__device__ __forceinline__ void prefetch_hint(const void*, int = 0, int = 3) {}")
        edits.append("__builtin_prefetch -> prefetch_hint, which does nothing")
    for pattern, name in _OTHER_NAMES.items():
        text, count = re.subn(pattern, name, text)
        if count:
            edits.append(f"another name -> {name}")
    if re.search(r"\bhalf2?\b", text) and "cuda_fp16.h" not in text:
        headers.add("cuda_fp16.h")
    wmma = re.search(r"\bnvcuda\b", text)
    if wmma and "mma.h" not in text:
        headers.add("mma.h")
    added = [*(f"#include <{header}>" for header in sorted(headers) if f"<{header}>" not in text), *added]
    return DeviceText("\n".join([*added, text]) + "\n", (0,) * len(added) + origins, tuple(dict.fromkeys(edits)))

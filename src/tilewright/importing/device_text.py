"""The device part of a CUDA source: what the launched kernels reach, in the source's own words and order.

A few spellings that only nvcc knows are put into those of a kernel file; each such edit is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tilewright.importing.entries import Entry, with_entries
from tilewright.importing.sources import Item, Kind, Source
from tilewright.kernel_file.source_scan import is_allowed_header

_INCLUDE = re.compile(r"#\s*include\s*[<\"]([^>\"]+)[>\"]")
_STANDARD = {  # where libcu++ has what device code takes from the standard library
    "cuda/std/limits": ("numeric_limits",),
    "cuda/std/type_traits": (
        *("is_same", "is_same_v", "enable_if", "enable_if_t", "conditional", "conditional_t", "is_floating_point"),
        *("is_floating_point_v", "is_integral", "is_integral_v", "remove_const", "decay_t", "true_type", "false_type"),
        *("integral_constant", "remove_reference_t", "remove_cv_t", "void_t", "is_signed", "make_unsigned_t"),
        *("is_pod", "is_pod_v", "is_trivially_copyable", "is_trivially_copyable_v"),
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
    r"\b(?:at|c10|torch|torch::headeronly)::Half\b": "__half",
    r"\b(?:at|c10|torch|torch::headeronly)::BFloat16\b": "__nv_bfloat16",
    r"\b(?:at|c10|torch|torch::headeronly)::Float8_e4m3fn\b": "__nv_fp8_e4m3",
    r"\b(?:at|c10|torch|torch::headeronly)::Float8_e5m2\b": "__nv_fp8_e5m2",
}
_SHUFFLE = (
    "template <class T> __device__ __forceinline__ T {}(T value, {} by, int width = 32, unsigned mask = 0xffffffffu) "
    "{{ return __shfl{}_sync(mask, value, by, width); }}"
)
_OF_TORCH = {  # what torch's headers give device code, as one line each
    "WARP_SHFL": _SHUFFLE.format("WARP_SHFL", "int", ""),
    "WARP_SHFL_XOR": _SHUFFLE.format("WARP_SHFL_XOR", "int", "_xor"),
    "WARP_SHFL_UP": _SHUFFLE.format("WARP_SHFL_UP", "unsigned", "_up"),
    "WARP_SHFL_DOWN": _SHUFFLE.format("WARP_SHFL_DOWN", "unsigned", "_down"),
    "gpuAtomicAdd": "template <class T> __device__ __forceinline__ T gpuAtomicAdd(T* at, T value) "
    "{ return atomicAdd(at, value); }",
    "C10_WARP_SIZE": "#define C10_WARP_SIZE 32",
    "C10_DEVICE": "#define C10_DEVICE __device__",
    "C10_HOST_DEVICE": "#define C10_HOST_DEVICE __host__ __device__",
}
_CUB_OPERATORS = (
    (r"\bcub::Sum\b", "cuda::std::plus<>", "cuda/std/functional"),
    (r"\bcub::Max\b", "cuda::maximum<>", "cuda/functional"),
    (r"\bcub::Min\b", "cuda::minimum<>", "cuda/functional"),
)


@dataclass(frozen=True)
class DeviceText:
    text: str
    lines: tuple[int, ...]  # for each line the line of the source that it came from; 0: none
    edits: tuple[str, ...]

    def line(self, number: int) -> int:
        return self.lines[number - 1] if 0 < number <= len(self.lines) else 0


def device_text(source: Source, kernels: Iterable[str], added: Sequence[Entry | None] = ()) -> DeviceText:
    """What the kernels need of the source, and the entries that were made for them."""
    named = re.findall(r"[A-Za-z_]\w*", " ".join(one.text for one in added if one is not None))
    usable = [item for item in source.items if item.kind in (Kind.KERNEL, Kind.DEVICE, Kind.SHARED, Kind.MACRO)]
    wanted = source.reachable([*kernels, *named], usable)
    kept = _without_empty_conditions([item for item in source.items if _is_kept(source, item, wanted)])
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
    return _spelled(with_entries("\n".join(lines), added), tuple(origins))


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


def _without_empty_conditions(items: list[Item]) -> list[Item]:
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


def _with_cub(text: str, headers: set[str], edits: list[str]) -> str:
    """CUB's parts of a block or a warp, which are kernel code, by their own headers; and its operators."""
    for part, name in set(re.findall(r"\bcub::(Block|Warp)([A-Z]\w*)", text)):
        snake = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
        headers.add(f"cub/{part.lower()}/{part.lower()}_{snake}.cuh")
    for pattern, name, header in _CUB_OPERATORS:
        text, count = re.subn(pattern, name, text)
        if count:
            edits.append(f"cub's operator -> {name}")
        if name in text:
            headers.add(header)
    return text


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
    for name, line in _OF_TORCH.items():
        own = rf"(?:#\s*define|\b(?!return\b|else\b)[A-Za-z_]\w*[>*&]*)\s+{name}\b"
        if re.search(rf"\b{name}\b", text) and not re.search(own, text):
            added.append(line)
            edits.append(f"{name} of torch's headers, written out")
    for pattern, name in _OTHER_NAMES.items():
        text, count = re.subn(pattern, name, text)
        if count:
            edits.append(f"another name -> {name}")
    text = _with_cub(text, headers, edits)
    if re.search(r"\bhalf2?\b", text) and "cuda_fp16.h" not in text:
        headers.add("cuda_fp16.h")
    wmma = re.search(r"\bnvcuda\b", text)
    if wmma and "mma.h" not in text:
        headers.add("mma.h")
    added = [*(f"#include <{header}>" for header in sorted(headers) if f"<{header}>" not in text), *added]
    return DeviceText("\n".join([*added, text]) + "\n", (0,) * len(added) + origins, tuple(dict.fromkeys(edits)))

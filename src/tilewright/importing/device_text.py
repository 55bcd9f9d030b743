"""Copies the device code that the launched kernels use, in the order of the source.

A few spellings that NVRTC does not accept are rewritten; every rewrite is reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tilewright.importing.sources import Item, Kind, Source
from tilewright.importing.wrappers import WrapperKernel, with_wrappers
from tilewright.kernel_file.cpp_tokens import CppToken
from tilewright.kernel_file.source_scan import is_allowed_header

_INCLUDE = re.compile(r"#\s*include\s*[<\"]([^>\"]+)[>\"]")
_STANDARD = {  # libcu++ headers and the names of `std` that they provide
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
# Device code has these without a namespace.
_PLAIN = frozenset((
    "max", "min", "abs", "fabs", "sqrt", "exp", "log", "pow", "tanh", "floor", "ceil", "isnan", "isinf", "fmax", "fmin",
    "size_t", "ptrdiff_t", "int8_t", "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t", "int64_t",
))  # fmt: skip
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
_OF_TORCH = {  # helpers of torch's headers for device code, one line each
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
    lines: tuple[int, ...]  # the source line of each line; 0: added here
    edits: tuple[str, ...]

    def line(self, number: int) -> int:
        return self.lines[number - 1] if 0 < number <= len(self.lines) else 0


def device_text(source: Source, kernels: Iterable[str], added: Sequence[WrapperKernel | None] = ()) -> DeviceText:
    """The device code that the kernels and their wrappers use."""
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
    return _spelled(with_wrappers("\n".join(lines), added), tuple(origins))


def _is_kept(source: Source, item: Item, wanted: set[Item]) -> bool:
    words = [token.text for token in item.tokens]
    if item.kind is Kind.SCOPE:
        return words != [";"]
    if item.kind is Kind.DIRECTIVE:
        word = words[1] if len(words) > 1 else ""
        if word == "include":
            found = _INCLUDE.match(source.text[item.code_start : item.end])
            return found is not None and is_allowed_header(found[1])
        return word in ("if", "ifdef", "ifndef", "elif", "else", "endif", "undef")
    if item.kind is Kind.HOST or item.start == item.end:
        return False
    if item.name:
        return item in wanted
    if words[:2] == ["using", "namespace"]:
        return words[2] not in _HOST_NAMESPACES
    if words[:3] == ["using", "std", "::"]:
        return words[3] in _PLAIN or any(words[3] in names for names in _STANDARD.values())
    return not item.is_host_only and item.kind is Kind.SHARED and words[0] in ("using", "static_assert")


def _without_empty_conditions(items: list[Item]) -> list[Item]:
    """Drop `#if ... #endif` and namespaces that are empty."""
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
    """Rename CUB operators, and add the headers of block and warp collectives."""
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
    if "__builtin_prefetch" in text:  # NVRTC lacks it, and it is only a hint
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


# -- definitions visible at a place in a function body --

_BRANCHES = frozenset(("if", "else", "for", "while", "switch", "case", "do"))
_NO_TYPES = frozenset(("return", "delete", "goto", "throw", "new", "using", "typedef"))


@dataclass(frozen=True)
class Definition:
    """A variable with its value, or a type alias."""

    name: str
    type_: str  # "" for `using`
    value: tuple[CppToken, ...]
    prefix: str  # the text before the value
    suffix: str  # and after it
    order: int
    is_using: bool = False
    is_changed: bool = False  # outside the straight-line code that leads here
    text: str = ""

    @property
    def is_literal(self) -> bool:
        """Whether the value is a constant expression of literals only."""
        return bool(self.value) and not any(token.is_identifier for token in self.value)


def spelled(tokens: Sequence[CppToken]) -> str:
    return " ".join(token.text for token in tokens)


def definitions(tokens: Sequence[CppToken], stop: int) -> tuple[dict[str, Definition], dict[str, int]]:
    """The definitions visible at the token `stop`, and the token index at which each name was last changed."""
    scopes: list[dict[str, Definition]] = [{}]
    brackets: list[str] = []
    changed: dict[str, int] = {}
    statement: list[CppToken] = []
    for index, token in enumerate(tokens[:stop]):
        text = token.text
        # `dim3 grid{` and `int n = {` open a value.
        is_value = bool(statement) and (statement[-1].text == "=" or statement[0].text == "dim3")
        if text == "{" and not is_value:
            brackets.append(text)
            scopes.append({})
            statement = []
        elif text == "}" and "{" in brackets and not (brackets and brackets[-1] == "value"):
            while brackets.pop() != "{":
                pass
            scopes.pop()
            statement = []
        elif text == ";" and (not brackets or brackets[-1] == "{"):
            _read(statement, scopes, changed, index)
            statement = []
        else:
            if text in ("(", "["):
                brackets.append(text)
            elif text == "{":
                brackets.append("value")
            elif text in (")", "]", "}") and brackets:
                brackets.pop()
            statement.append(token)
    seen: dict[str, Definition] = {}
    for scope in scopes:
        seen |= scope
    changed |= _touched(tokens[:stop])
    return {name: replace(one, is_changed=name in changed) for name, one in seen.items()}, changed


def _read(
    statement: Sequence[CppToken], scopes: list[dict[str, Definition]], changed: dict[str, int], order: int
) -> None:
    """Read one statement; names that it sets without defining them are added to `changed`."""
    words = [t.text for t in statement]
    if not words:
        return
    if words[0] in _BRANCHES:
        changed |= {words[i - 1]: order for i in range(1, len(words)) if words[i] == "="}
        return
    if words[0] == "using" and "=" in words:
        at = words.index("=")
        prefix = f"{' '.join(words[: at + 1])} "
        scopes[-1][words[1]] = Definition(words[1], "", tuple(statement[at + 1 :]), prefix, ";", order, True)
        return
    if words[0] in _NO_TYPES or not statement[0].is_identifier:
        return
    start = _declarator(statement)
    if start is None:
        name = words[0]
        if "=" in words:  # an assignment overrides the definition
            changed[name] = order
        return
    type_ = " ".join(words[:start])
    for part in split_declarators(statement[start:]):
        if not part[0].is_identifier:
            return
        name, rest = part[0].text, part[1:]
        if rest and rest[0].text == "=":
            made = Definition(name, type_, tuple(rest[1:]), f"{type_} {name} = ", ";", order)
        elif rest and rest[0].text in ("(", "{") and rest[-1].text in (")", "}"):
            prefix = f"{type_} {name}{rest[0].text}"
            made = Definition(name, type_, tuple(rest[1:-1]), prefix, f"{rest[-1].text};", order)
        elif not rest:
            made = Definition(name, type_, (), f"{type_} {name}", ";", order)
            changed[name] = order
        else:
            return
        scopes[-1][name] = made


def _declarator(statement: Sequence[CppToken]) -> int | None:
    """The index of the first name in `const unsigned int a = 1, b = 2`; None if nothing is declared."""
    depth = 0
    for index, token in enumerate(statement):
        depth += {"<": 1, ">": -1}.get(token.text, 0)
        if depth < 0:
            return None
        if depth or token.is_identifier or token.text in ("::", ">", "*", "&"):
            continue
        if token.text not in ("=", "(", "{", ",", "[") or index < 2:
            return None
        return index - 1 if statement[index - 2].text not in ("::", ".", "->") else None
    last = len(statement) - 1
    return last if last > 0 and statement[last - 1].text not in ("::", ".", "->") else None


def split_declarators(tokens: Sequence[CppToken]) -> list[list[CppToken]]:
    """Split `a = 1, b = f<x, y>(z)` at its outer commas."""
    parts: list[list[CppToken]] = [[]]
    depth, inside = 0, 0  # `inside`: the end of template arguments
    for index, token in enumerate(tokens):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(token.text, 0)
        if token.text == "<":
            inside = max(inside, _end_of_arguments(tokens, index))
        if token.text == "," and depth == 0 and index >= inside:
            parts.append([])
        else:
            parts[-1].append(token)
    return [part for part in parts if part]


def _end_of_arguments(tokens: Sequence[CppToken], opened: int) -> int:
    """The index of the `>` that closes the template arguments; 0 if `<` is a comparison."""
    depth = 0
    for index in range(opened, len(tokens)):
        text = tokens[index].text
        if text in "();={}" or text in ("&&", "||"):
            return 0
        depth += {"<": 1, ">": -1}.get(text, 0)
        if depth == 0:
            return index if index + 1 < len(tokens) and tokens[index + 1].text in ("(", "::") else 0
    return 0


def _touched(tokens: Sequence[CppToken]) -> dict[str, int]:
    """Names that are incremented, assigned by `+=` and the like, read from a stream, or whose address is passed."""
    words = [t.text for t in tokens]
    found = {}
    for index in range(1, len(words) - 2):
        if not tokens[index].is_identifier:
            continue
        is_counted = words[index + 1 : index + 3] in (["+", "+"], ["-", "-"]) or (
            words[index + 1] in "+-*/%&|" and words[index + 2] == "="
        )
        is_lent = words[index - 1] == "&" and words[index - 2] in ("(", ",")
        is_read = words[max(index - 2, 0) : index] == [">", ">"]  # from a stream
        if is_counted or is_lent or is_read:
            found[words[index]] = index
    return found

"""The device part of a CUDA source: what the launched kernels reach, in the source's own words and order.

A few spellings that only nvcc knows are put into those of a kernel file; each such edit is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tilewright.importing.entries import Entry, with_entries
from tilewright.importing.sources import Item, Kind, Source
from tilewright.kernel_file.cpp_tokens import CppToken
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


# -- the definitions of a function's body that a place in it can see: --

_BRANCHES = frozenset(("if", "else", "for", "while", "switch", "case", "do"))
_NO_TYPES = frozenset(("return", "delete", "goto", "throw", "new", "using", "typedef"))


@dataclass(frozen=True)
class Definition:
    """A variable with a value, or a type with another name."""

    name: str
    type_: str  # "" for `using`
    value: tuple[CppToken, ...]
    prefix: str  # the text before the value, and after it
    suffix: str
    order: int
    is_using: bool = False
    is_changed: bool = False  # elsewhere than in the straight line that leads here
    text: str = ""

    @property
    def is_literal(self) -> bool:
        """A size that the author chose: digits and arithmetic alone."""
        return bool(self.value) and not any(token.is_identifier for token in self.value)


def spelled(tokens: Sequence[CppToken]) -> str:
    return " ".join(token.text for token in tokens)


def definitions(tokens: Sequence[CppToken], stop: int) -> tuple[dict[str, Definition], dict[str, int]]:
    """What the token at `stop` sees, of a whole function's tokens; and where names were last changed otherwise."""
    scopes: list[dict[str, Definition]] = [{}]
    brackets: list[str] = []
    changed: dict[str, int] = {}
    statement: list[CppToken] = []
    for index, token in enumerate(tokens[:stop]):
        text = token.text
        if text == "{" and not _is_value(statement):
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


def _is_value(statement: Sequence[CppToken]) -> bool:
    """Whether a brace after these tokens opens a value: `dim3 grid{`, `int n = {`."""
    return bool(statement) and (statement[-1].text == "=" or [t.text for t in statement[:1]] == ["dim3"])


def _read(
    statement: Sequence[CppToken], scopes: list[dict[str, Definition]], changed: dict[str, int], order: int
) -> None:
    """One statement; `changed` gets what it sets otherwise than by a definition in a straight line."""
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
        if "=" in words:  # an assignment: what it sets is no longer what the definition says
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
    """Where the names begin in `const unsigned int a = 1, b = 2`; None where nothing is declared."""
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
    """`a = 1, b = f<x, y>(z)` at its outer commas."""
    parts: list[list[CppToken]] = [[]]
    depth, inside = 0, 0  # up to where template arguments go
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
    """Where the `<` of a template that is called closes; 0 where it compares."""
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
    """Names that are counted up or down, read, or whose address is taken."""
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

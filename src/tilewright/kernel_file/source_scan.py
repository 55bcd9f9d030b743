"""Checks of the C++ text of a kernel file: allowed headers, no host code.

Works on tokens. State, heap, prints and clocks are found in the compiled PTX, where no macro hides them. Returns a
`SourceSummary` for the static checks.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.kernel_file import words
from tilewright.kernel_file.compiled_plan import SourceSummary
from tilewright.kernel_file.cpp_tokens import CppText, CppToken, macro_bodies, string_content, tokenize_cpp
from tilewright.kernel_file.problems import Autofix, Code, Problem

# -- inline assembly --

ASSEMBLY_WORDS = frozenset(("asm", "__asm__", "__asm"))
_QUALIFIERS = ("volatile", "__volatile__", "goto", "inline")
_RULES = (
    (
        re.compile(r"(?<![\w.%])\.(?:global|visible|extern|weak|common|managed)\b"),
        Code.DEVICE_STATE,
        "declare no memory in assembly; use a //! scratch buffer",
    ),
    (re.compile(r"(?<![\w.%])\.(?:include|incbin)\b"), Code.INCLUDE, "assembly may read no files; delete it"),
)
_PLACE = re.compile(r"\.(?:loc|file)\b")


@dataclass(frozen=True)
class _Template:
    content: str  # of the literals, joined
    first: CppToken | None
    is_literal: bool  # consists of string literals only


def check_assembly(cpp: CppText, tokens: Sequence[CppToken], index: int) -> None:
    """Report forbidden text in the assembly statement at a token."""
    template = _template(tokens, index)
    if template.first is None:
        return
    for pattern, code, remedy in _RULES:
        match = pattern.search(template.content)
        if match:
            cpp.report(code, template.first, f"`{match.group()}` in assembly", remedy)


def assembly_is_plain(text: str) -> bool:
    """Whether all assembly is literal and contains no .loc or .file directives."""
    cpp = tokenize_cpp(text)
    for tokens in (cpp.code, macro_bodies(cpp)):
        for index, token in enumerate(tokens):
            if token.text in ASSEMBLY_WORDS and token.is_identifier:
                template = _template(tokens, index)
                if not template.is_literal or _PLACE.search(template.content):
                    return False
    return not cpp.problems


def _template(tokens: Sequence[CppToken], index: int) -> _Template:
    position = index + 1
    while position < len(tokens) and tokens[position].text in _QUALIFIERS:
        position += 1
    if position >= len(tokens) or tokens[position].text != "(":
        return _Template("", None, False)
    content, first, is_literal = "", None, True
    for following in range(position + 1, len(tokens)):
        token = tokens[following]
        if token.text in (":", "::", ")", ";") or token.text in ASSEMBLY_WORDS:
            break
        if token.kind == "string":
            first = first or token
            content += string_content(token)
        else:
            is_literal = False
    return _Template(content, first, is_literal)


# -- headers and host code --

ALLOWED_HEADERS = (
    "cuda_fp16.h",
    "cuda_bf16.h",
    "cuda_fp8.h",
    "mma.h",
    "cuda_pipeline.h",
    "cooperative_groups.h",
)
_RARER_HEADERS = ("cuda_pipeline_primitives.h", "math_constants.h")  # for imported kernels; not documented for authors
ALLOWED_FOLDERS = ("cooperative_groups/", "cuda/", "cub/block/", "cub/warp/", "cute/", "cutlass/")
# Covered by the prelude, so the include can be deleted.
_NEEDLESS_HEADERS = frozenset(
    ("cuda.h", "cuda_runtime.h", "cuda_runtime_api.h", "device_launch_parameters.h", "device_functions.h", "cstdint")
) | frozenset(
    ("vector_types.h", "stdint.h", "stddef.h", "cstddef", "math.h", "cmath", "float.h", "cfloat", "limits.h", "climits")
)
_CLOCK_HEADERS = ("cuda/std/chrono", "cuda/std/ctime")
_HEADER_NAME = re.compile(r"<([A-Za-z0-9_+.-]+(?:/[A-Za-z0-9_+.-]+)*)>\Z")
_CONDITIONS = frozenset(("if", "ifdef", "ifndef", "elif", "elifdef", "elifndef"))
_DIRECTIVES = _CONDITIONS | {"", "define", "undef", "else", "endif", "error", "warning", "pragma", "include"}
_PRAGMA = re.compile(
    r"(?:unroll|nounroll|once|pack|nv_diag\w*|diag_\w+|nv_exec_check_disable|hd_warning_disable|GCC +diagnostic"
    r"|GCC +unroll|clang +diagnostic|clang +loop)\b"
)

_CALLED_ONLY = {  # common words: refused as calls, allowed as names
    "main": (Code.HOST_CODE, "delete it; the plan launches the kernels"),
    "system": (Code.HOST_CODE, "delete it; there is no host code"),
    "getenv": (Code.HOST_CODE, "delete it; there is no host code"),
    "fopen": (Code.HOST_CODE, "delete it; there is no host code"),
}
_RUNTIME_API = re.compile(r"cuda[A-Z]\w*\Z")
_DEVICE_RUNTIME_API = re.compile(
    r"cuda(?:GridDependencySynchronize|TriggerProgrammaticLaunchCompletion|Round(?:Mode|Nearest|Zero|PosInf|MinInf))\Z"
)
_DRIVER_API = re.compile(r"cu(?:[A-Z][a-z]\w*|blas\w*|dnn\w*|fft\w*|sparse\w*|solver\w*|rand\w*)\Z")
_HOST_NAMESPACES = frozenset(("torch", "at", "c10", "pybind11", "thrust"))
_HOST_STD = frozenset(
    ("thread", "jthread", "async", "mutex", "cout", "cerr", "ifstream", "ofstream", "fstream", "filesystem", "vector")
) | frozenset(("string", "map", "unordered_map", "system", "getenv", "printf"))
_HOST_MACROS = ("TORCH_LIBRARY", "TORCH_LIBRARY_IMPL", "PYBIND11_MODULE", "TORCH_CHECK", "CUTE_HOST", "CUTLASS_HOST")
_HAS_FILE = ("__has_include", "__has_include_next", "__has_embed")
_STATE = ("__managed__", "thread_local", "_Thread_local")
_REFUSED = {  # in any position
    **dict.fromkeys(_HOST_MACROS, (Code.HOST_CODE, "delete it; the file holds device code only")),
    **dict.fromkeys(_HAS_FILE, (Code.INCLUDE, "delete it; the allowed headers are always there")),
    **dict.fromkeys(_STATE, (Code.DEVICE_STATE, "memory across blocks is a //! scratch buffer")),
}
_NO_KERNEL_NAME = frozenset(
    ("__launch_bounds__", "__cluster_dims__", "__maxnreg__", "__block_size__", "__align__", "alignas", "__attribute__")
) | frozenset(("decltype", "requires"))


def scan_source(text: str, constants: Sequence[str]) -> tuple[SourceSummary, list[Problem]]:
    """A summary of the code and its problems; `constants` are the names of tunes and consts."""
    cpp = tokenize_cpp(text)
    known = frozenset(constants)
    incomplete = bool(cpp.problems) or any(t.text == "##" for directive in cpp.directives for t in directive)
    for directive in cpp.directives:
        _directive(cpp, directive, known)
    bodies = macro_bodies(cpp)
    _tokens(cpp, cpp.code)
    _tokens(cpp, bodies)
    identifiers = frozenset(token.text for tokens in (cpp.code, bodies) for token in tokens if token.kind == "ident")
    return SourceSummary(identifiers, _kernel_names(cpp.code), incomplete), cpp.problems


# -- preprocessor lines --


def _directive(cpp: CppText, directive: Sequence[CppToken], constants: frozenset[str]) -> None:
    word = directive[1].text if len(directive) > 1 else ""
    rest = directive[2:]
    if word not in _DIRECTIVES:
        remedy = "a kernel file may define, test, include an allowed header, and give pragmas; delete the line"
        cpp.report(Code.INCLUDE, directive[0], f"the preprocessor line `#{word}`", remedy)
    elif word == "include":
        _include(cpp, directive, rest)
    elif word == "pragma":
        _pragma(cpp, directive[0], " ".join(token.text for token in rest))
    elif word in ("define", "undef") and rest and rest[0].text in constants:
        remedy = f"delete the line; {rest[0].text} is a C++ constexpr already"
        cpp.report(Code.CONST, rest[0], f"`#{word}` of the plan's constant {rest[0].text}", remedy)
    elif word in _CONDITIONS:
        for token in rest:
            if token.text in constants:
                found = f"the plan's constant {token.text} in `#{word}`"
                cpp.report(Code.CONST, token, found, "it is no macro; use `if constexpr`")
    for token in rest:
        if token.text in _HAS_FILE:
            cpp.report(Code.INCLUDE, token, f"`{token.text}`", "delete the test; the allowed headers are always there")


def _include(cpp: CppText, directive: Sequence[CppToken], rest: Sequence[CppToken]) -> None:
    allowed = f"allowed: {words.quoted(f'<{name}>' for name in ALLOWED_HEADERS)}"
    allowed += f" and headers below {words.quoted(ALLOWED_FOLDERS)}"
    if not rest:
        cpp.report(Code.INCLUDE, directive[0], "an include without a header", allowed)
        return
    first, last = cpp.original(rest[0].start), cpp.original(rest[-1].start) + len(rest[-1].text)
    written = cpp.text[first:last]
    match = _HEADER_NAME.match(written)
    if match is None or any(part.startswith(".") for part in match.group(1).split("/")):
        meant = _HEADER_NAME.match(f"<{written[1:-1]}>") if written[:1] == written[-1:] == '"' else None
        if meant is not None and is_allowed_header(meant.group(1)):
            quoted = Autofix(*cpp.place(rest[0].start), len(written), meant.group())
            cpp.report(Code.INCLUDE, rest[0], f"include of {written[:60]}", f"write {meant.group()}", quoted)
            return
        cpp.report(Code.INCLUDE, rest[0], f"include of {written[:60]}", f"write the header's name in < >; {allowed}")
        return
    name = match.group(1)
    if name in _CLOCK_HEADERS:
        cpp.report(Code.INCLUDE, rest[0], f"include of <{name}>", "a kernel reads no clock; delete the line")
    elif name.startswith("tilewright/"):
        remedy = "`tilewright flatten` puts what a source uses of the device library into the file"
        cpp.report(Code.INCLUDE, rest[0], f"include of <{name}>", remedy)
    elif not is_allowed_header(name):
        autofix = None
        remedy = allowed
        if name in _NEEDLESS_HEADERS:
            line, column = cpp.place(directive[0].start)
            start = cpp.original(directive[0].start)
            remedy = "delete the line; what it declares is there already"
            if "\n" not in cpp.text[start:last]:
                autofix = Autofix(line, column, last - start, "")
        cpp.report(Code.INCLUDE, rest[0], f"include of <{name}>", remedy, autofix)


def is_allowed_header(name: str) -> bool:
    """Whether a kernel file may include it."""
    if any(part.startswith(".") for part in name.split("/")) or name in _CLOCK_HEADERS:
        return False
    return name in ALLOWED_HEADERS or name in _RARER_HEADERS or name.startswith(ALLOWED_FOLDERS)


def _pragma(cpp: CppText, at: CppToken, text: str) -> None:
    if not _PRAGMA.match(text):
        remedy = "allowed: unroll, nounroll, once, pack, nv_diag_...; delete the line"
        cpp.report(Code.INCLUDE, at, f"the pragma `{text[:40]}`", remedy)


# -- identifiers --


def _tokens(cpp: CppText, tokens: Sequence[CppToken]) -> None:
    for index, token in enumerate(tokens):
        kind, text, _ = token
        if kind == "ident":
            _word(cpp, tokens, index, token, text)
        elif text == "<<<" and kind == "punct":
            cpp.report(
                Code.HOST_CODE, token, "a kernel launch in the code", "launches are //! launch lines of the plan"
            )


def _word(cpp: CppText, tokens: Sequence[CppToken], index: int, token: CppToken, text: str) -> None:
    check = _WORDS.get(text)
    if check is None:
        if text[:2] == "cu":
            _api(cpp, tokens, index, token)
        return
    check(cpp, tokens, index)


def _is_member(tokens: Sequence[CppToken], index: int) -> bool:
    return index > 0 and tokens[index - 1].text in (".", "->")


def _following(tokens: Sequence[CppToken], index: int) -> str:
    return tokens[index + 1].text if index + 1 < len(tokens) else ""


def _preceding(tokens: Sequence[CppToken], index: int) -> str:
    return tokens[index - 1].text if index else ""


def _api(cpp: CppText, tokens: Sequence[CppToken], index: int, token: CppToken) -> None:
    text = token.text
    if _RUNTIME_API.match(text):
        if not _DEVICE_RUNTIME_API.match(text):
            cpp.report(Code.HOST_CODE, token, f"the host API `{text}`", "delete it; the runner owns memory and streams")
    elif (
        _DRIVER_API.match(text)
        and _following(tokens, index) == "("
        and not _is_member(tokens, index)
        and not _is_own(tokens, text)
    ):
        remedy = "delete it; a TMA descriptor is a //! map line, a vendor call a //! library line"
        cpp.report(Code.HOST_CODE, token, f"the host API `{text}`", remedy)


def _is_own(tokens: Sequence[CppToken], name: str) -> bool:
    """Whether the file defines a function of that name."""
    pairs = itertools.pairwise(tokens)
    return any(
        two.text == name and one.kind == "ident" and one.text not in ("return", "else", "case") for one, two in pairs
    )


def _called_only(cpp: CppText, tokens: Sequence[CppToken], index: int) -> None:
    token = tokens[index]
    if _following(tokens, index) != "(" or _is_member(tokens, index):
        return
    before = tokens[index - 1] if index else token
    declared = before.is_identifier and before.text not in ("return", "else", "do") and index > 0
    if not declared or token.text == "main":
        code, remedy = _CALLED_ONLY[token.text]
        cpp.report(code, token, f"`{token.text}(`", remedy)


def _host_namespace(cpp: CppText, tokens: Sequence[CppToken], index: int) -> None:
    token = tokens[index]
    if _following(tokens, index) == "::" and _preceding(tokens, index) not in ("::", ".", "->"):
        cpp.report(Code.HOST_CODE, token, f"`{token.text}::`", "delete it; the file holds device code only")


def _std(cpp: CppText, tokens: Sequence[CppToken], index: int) -> None:
    if _following(tokens, index) != "::" or index + 2 >= len(tokens) or _preceding(tokens, index) == "::":
        return
    name = tokens[index + 2]
    if name.text in _HOST_STD:
        cpp.report(Code.HOST_CODE, tokens[index], f"`std::{name.text}`", "delete it; the file holds device code only")


def _never(cpp: CppText, tokens: Sequence[CppToken], index: int) -> None:
    token = tokens[index]
    code, remedy = _REFUSED[token.text]
    cpp.report(code, token, f"`{token.text}`", remedy)


def _host_attribute(cpp: CppText, tokens: Sequence[CppToken], index: int) -> None:
    """`__host__` is allowed together with `__device__`."""
    for step in (-1, 1):
        position = index + step
        while 0 <= position < len(tokens) and tokens[position].is_identifier and abs(position - index) < 8:
            if tokens[position].text == "__device__":
                return
            position += step
    remedy = "write __device__, or __host__ __device__; there is no host code"
    cpp.report(Code.HOST_CODE, tokens[index], "`__host__` without `__device__`", remedy)


def _pragma_operator(cpp: CppText, tokens: Sequence[CppToken], index: int) -> None:
    literal = tokens[index + 2] if index + 2 < len(tokens) else None
    if literal is None or literal.kind != "string":
        remedy = 'write it out: _Pragma("unroll")'
        cpp.report(Code.INCLUDE, tokens[index], f"`{tokens[index].text}` of something not written out", remedy)
    else:
        _pragma(cpp, tokens[index], string_content(literal))


def _attribute(cpp: CppText, tokens: Sequence[CppToken], index: int) -> None:
    for token in tokens[index + 1 : index + 6]:
        if token.text in ("constructor", "destructor", "__constructor__", "__destructor__"):
            cpp.report(Code.HOST_CODE, token, f"the attribute `{token.text}`", "delete it; there is no host code")


def _import(cpp: CppText, tokens: Sequence[CppToken], index: int) -> None:
    if _preceding(tokens, index) in ("", ";", "}", "export") and _following(tokens, index) not in ("(", "=", ";", ","):
        cpp.report(Code.INCLUDE, tokens[index], "a module import", "include allowed headers instead")


_WORDS = {
    **dict.fromkeys(_CALLED_ONLY, _called_only),
    **dict.fromkeys(_HOST_NAMESPACES, _host_namespace),
    **dict.fromkeys(_REFUSED, _never),
    **dict.fromkeys(ASSEMBLY_WORDS, check_assembly),
    **dict.fromkeys(("__attribute__", "__attribute"), _attribute),
    **dict.fromkeys(("_Pragma", "__pragma"), _pragma_operator),
    "std": _std,
    "__host__": _host_attribute,
    "import": _import,
}


def _kernel_names(tokens: Sequence[CppToken]) -> tuple[str, ...]:
    names: list[str] = []
    for index, token in enumerate(tokens):
        if token.text != "__global__":
            continue
        for position in range(index + 1, min(index + 40, len(tokens) - 1)):
            candidate = tokens[position]
            if candidate.text in (";", "{"):
                break
            if candidate.is_identifier and tokens[position + 1].text == "(" and candidate.text not in _NO_KERNEL_NAME:
                names.append(candidate.text)
                break
    return tuple(dict.fromkeys(names))

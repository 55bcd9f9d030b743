"""Checks of inline assembly in a kernel file. Assembly built by macros is checked in the compiled PTX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.kernel_file.cpp_tokens import CppText, CppToken, macro_bodies, string_content, tokenize_cpp
from tilewright.kernel_file.problems import Code

ASSEMBLY_WORDS = frozenset(("asm", "__asm__", "__asm"))
_QUALIFIERS = ("volatile", "__volatile__", "goto", "inline")
_RULES = (
    (re.compile(r"%(?:clock|globaltimer)\w*"), Code.DEVICE_CALL, "a kernel reads no clock; delete it"),
    (
        re.compile(r"%(?:gridid|current_graph_exec|pm[0-7]|envreg\d)\w*"),
        Code.DEVICE_CALL,
        "a kernel's work may not depend on which call it is; delete it",
    ),
    (
        re.compile(r"%(?:n?smid|n?warpid)\b"),
        Code.DEVICE_CALL,
        "a kernel's work may not depend on where it runs; use blockIdx and threadIdx",
    ),
    (
        re.compile(r"\b(?:vprintf|malloc|free|__assertfail|cudaLaunchDevice\w*|cudaGetParameterBuffer\w*)\b"),
        Code.DEVICE_CALL,
        "nothing may be called from assembly; delete it",
    ),
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

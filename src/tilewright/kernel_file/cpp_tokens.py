"""A lexer for the C++ part of a kernel file: tokens after line splicing, without comments.

Handles literals (including raw strings), digraphs and preprocessor lines; expands no macros. Text that compilers could
read differently is refused.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from tilewright.kernel_file.problems import Autofix, Code, Problem

MAX_FILE_CHARACTERS = 1_000_000
_MAX_HIDDEN_REPORTED = 20  # per kind, for binary files


class CppToken(NamedTuple):
    kind: str  # "ident", "number", "string", "char" or "punct"
    text: str
    start: int  # offset in the spliced text

    @property
    def is_identifier(self) -> bool:
        return self.kind == "ident"


@dataclass
class CppText:
    """Code tokens and preprocessor lines, with the map back to lines and columns of the file."""

    text: str  # as in the file
    code: list[CppToken] = field(default_factory=list)
    directives: list[list[CppToken]] = field(default_factory=list)  # each from its `#` on
    problems: list[Problem] = field(default_factory=list)
    splices: list[int] = field(default_factory=list)  # offsets in the spliced text
    removed: list[int] = field(default_factory=list)  # characters removed up to and including each splice
    line_starts: list[int] = field(default_factory=list)

    def original(self, offset: int) -> int:
        """The offset in the file of an offset in the spliced text."""
        position = bisect_right(self.splices, offset)
        return offset + (self.removed[position - 1] if position else 0)

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column, 1-based, of an offset in the spliced text."""
        return self.place_in_file(self.original(offset))

    def place_in_file(self, offset: int) -> tuple[int, int]:
        if not self.line_starts:
            self.line_starts = [0, *(match.end() for match in re.finditer("\n", self.text))]
        line = bisect_right(self.line_starts, offset)
        return line, offset - self.line_starts[line - 1] + 1

    def report(self, code: Code, token: CppToken, found: str, remedy: str, autofix: Autofix | None = None) -> None:
        line, column = self.place(token.start)
        self.problems.append(Problem(code, line, column, found, remedy, autofix))


_TOKEN = re.compile(
    r"""(?P<space>[ \t]+|//[^\n]*)
      | (?P<newline>\n)
      | (?P<string>(?:u8|[uUL])?"(?:[^"\\\n]|\\[^\n])*")
      | (?P<raw>(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\([\s\S]*?\)(?P=mark)")
      | (?P<open_raw>(?:u8|[uUL])?R"[\s\S]*)
      | (?P<ident>[^\W\d][\w$]*|\$[\w$]*)
      | (?P<number>\.?[0-9](?:[eEpP][-+]|'[0-9A-Za-z_]|[\w.])*)
      | (?P<char>(?:u8|[uUL])?'(?:[^'\\\n]|\\[^\n])+')
      | (?P<block>/\*[\s\S]*?\*/)
      | (?P<open_block>/\*[\s\S]*)
      | (?P<open_quote>["'][^\n]*)
      | (?P<punct><<<|[=!<>]=|%:%:|<:(?!:(?![:>]))|:>|<%|%>|%:|\#\#|::|->|[-+*/%^&|~!=<>.,;:?()\[\]{}\#])
      | (?P<other>.)
    """,
    re.VERBOSE,
)
_DIGRAPHS = {"%:%:": "##", "<:": "[", ":>": "]", "<%": "{", "%>": "}", "%:": "#"}
_SPLICE = re.compile(r"\\\r?\n")
_BLANKS_AFTER_BACKSLASH = re.compile(r"\\[ \t]+(?=\r?$)", re.MULTILINE)
_TRIGRAPH = re.compile(r"\?\?[=/'()!<>-]")
_HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u061c\u200b-\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]|\r(?!\n)"
)
_ESCAPE = re.compile(r"\\(?:x(?P<hex>[0-9A-Fa-f]{1,2})|(?P<octal>[0-7]{1,3})|(?P<letter>.))", re.DOTALL)


def find_hidden_text(text: str) -> list[Problem]:
    """Characters that could make a file read differently for people, this lexer and compilers."""
    if len(text) > MAX_FILE_CHARACTERS:
        found = f"a file of {len(text)} characters"
        return [Problem(Code.LIMIT, 0, 0, found, f"at most {MAX_FILE_CHARACTERS}")]
    cpp = CppText(text)
    problems: list[Problem] = []
    for pattern in (_HIDDEN, _TRIGRAPH, _BLANKS_AFTER_BACKSLASH):
        for match in islice(pattern.finditer(text), _MAX_HIDDEN_REPORTED):
            written, (line, column) = match.group(), cpp.place_in_file(match.start())
            autofix: Autofix | None = None
            if pattern is _HIDDEN:
                found, remedy = f"the character U+{ord(written):04X}", "delete it; it shows nothing or misleads"
                autofix = Autofix(line, column, 1, "")
            elif pattern is _TRIGRAPH:
                found, remedy = f"the trigraph `{written}`", "write the character it stands for"
            else:
                found, remedy = "blanks after a `\\` at the end of a line", "delete the blanks"
                autofix = Autofix(line, column, len(written), "\\")
            problems.append(Problem(Code.SYNTAX, line, column, found, remedy, autofix))
    return sorted(problems, key=lambda problem: (problem.line, problem.column))


def tokenize_cpp(text: str) -> CppText:
    """Every token of a file; plan lines are comments here."""
    cpp = CppText(text)
    spliced = _splice(cpp)
    line_is_empty, directive = True, None
    code, digraphs = cpp.code, _DIGRAPHS
    for match in _TOKEN.finditer(spliced):
        kind = match.lastgroup
        if kind == "space" or kind == "block":
            continue
        if kind == "newline":
            line_is_empty, directive = True, None
            continue
        if kind == "mark":
            kind = "raw"
        start = match.start()
        token_text = match.group()
        if kind == "punct" or kind == "ident" or kind == "number":
            token = CppToken(kind, digraphs.get(token_text, token_text) if kind == "punct" else token_text, start)
        else:
            literal = _other(cpp, kind or "other", token_text, start)
            if literal is None:
                continue
            token = literal
        if directive is not None:
            directive.append(token)
        elif line_is_empty and token.text == "#" and kind == "punct":
            directive = [token]
            cpp.directives.append(directive)
        else:
            code.append(token)
        line_is_empty = False
    return cpp


def macro_bodies(cpp: CppText) -> list[CppToken]:
    """The bodies of the file's macros, each followed by `;`."""
    bodies: list[CppToken] = []
    for directive in cpp.directives:
        if len(directive) > 3 and directive[1].text == "define":
            bodies.extend(directive[3:])
            bodies.append(CppToken("punct", ";", directive[-1].start))
    return bodies


def closing(tokens: Sequence[CppToken], index: int, brackets: str = "{}") -> int:
    """The index of the bracket that closes the one at `index`; the last token if there is none."""
    depth = 0
    for position in range(index, len(tokens)):
        if tokens[position].text in brackets:
            depth += 1 if tokens[position].text in "([{" else -1
        if depth == 0:
            return position
    return len(tokens) - 1


def _splice(cpp: CppText) -> str:
    if "\\\n" not in cpp.text and "\\\r\n" not in cpp.text:
        return cpp.text
    parts: list[str] = []
    position = length = removed = 0
    for match in _SPLICE.finditer(cpp.text):
        part = cpp.text[position : match.start()]
        parts.append(part)
        length += len(part)
        removed += len(match.group())
        cpp.splices.append(length)
        cpp.removed.append(removed)
        position = match.end()
    parts.append(cpp.text[position:])
    return "".join(parts)


def _other(cpp: CppText, kind: str, text: str, start: int) -> CppToken | None:
    """A literal; other text is refused, because its end is ambiguous."""
    token = CppToken("char" if kind == "char" else "string", text, start)
    if kind == "raw" and any(start < splice <= start + len(text) for splice in cpp.splices):
        cpp.report(Code.SYNTAX, token, "a raw string with a `\\` at the end of a line", "write an ordinary string")
    elif kind == "open_block":
        cpp.report(Code.SYNTAX, token, "a comment that is never closed", "close it with `*/`")
        return None
    elif kind in ("open_quote", "open_raw"):
        cpp.report(Code.SYNTAX, token, f"a quote that is never closed: {text[:20]}", "close it on its line")
        return None
    elif kind == "other":
        if text == "\r":
            return None
        found = "a `\\` in the code" if text == "\\" else f"unexpected `{text}` in the code"
        cpp.report(Code.SYNTAX, token, found, "delete it; names are written plainly")
        return None
    return token


def string_content(token: CppToken) -> str:
    """The content of a string literal, with escapes resolved."""
    text = token.text
    first = text.index('"')
    if "R" in text[:first]:
        return text[text.index("(") + 1 : text.rindex(")")]
    return _ESCAPE.sub(_unescape, text[first + 1 : -1])


def _unescape(match: re.Match[str]) -> str:
    hexadecimal, octal, letter = match.group("hex", "octal", "letter")
    if hexadecimal:
        return chr(int(hexadecimal, 16))
    if octal:
        return chr(int(octal, 8))
    return {"n": "\n", "t": "\t"}.get(letter, letter)

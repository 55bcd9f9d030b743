"""Expands macros that define functions, such as a top-level `DEFINE_ADD(f32, float)`, and local includes.

All other macros are left to the compilers.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from pathlib import Path

from tilewright.kernel_file.cpp_tokens import CppText, CppToken, closing


def expand_definitions(cpp: CppText) -> str:
    """Replace every top-level use of a macro that defines or instantiates functions by its body."""
    macros = {}
    for directive in cpp.directives:
        if len(directive) > 4 and directive[1].text == "define" and {"{", "template"} & {t.text for t in directive[3:]}:
            macros[directive[2].text] = directive
    pieces: list[str] = []
    done = 0
    for first, last in _uses(cpp.code, macros.keys()):
        start = cpp.original(cpp.code[first].start)
        end = cpp.original(cpp.code[last].start) + 1
        arguments = _arguments(cpp, cpp.code[first + 2 : last])
        body = _expanded(cpp, macros[cpp.code[first].text], arguments)
        if body is not None:
            pieces += [cpp.text[done:start], body]
            done = end
    return "".join([*pieces, cpp.text[done:]])


def _uses(tokens: Sequence[CppToken], names: Container[str]) -> list[tuple[int, int]]:
    """The first and last token of each use of one of the macros outside all braces."""
    found = []
    depth, index = 0, 0
    while index < len(tokens):
        text = tokens[index].text
        depth += {"{": 1, "}": -1}.get(text, 0)
        is_call = index + 1 < len(tokens) and tokens[index + 1].text == "("
        if depth == 0 and is_call and text in names:
            last = closing(tokens, index + 1, "()")
            found.append((index, last))
            index = last
        index += 1
    return found


def _arguments(cpp: CppText, tokens: Sequence[CppToken]) -> list[str]:
    parts: list[list[CppToken]] = [[]]
    depth = 0
    for token in tokens:
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(token.text, 0)
        if token.text == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return [
        cpp.text[cpp.original(p[0].start) : cpp.original(p[-1].start) + len(p[-1].text)] if p else "" for p in parts
    ]


def _expanded(cpp: CppText, directive: Sequence[CppToken], arguments: Sequence[str]) -> str | None:
    texts = [token.text for token in directive]
    if texts[3] != "(" or ")" not in texts:
        return None
    close = texts.index(")")
    names = [text for text in texts[4:close] if text != ","]
    if len(names) != len(arguments) or close + 1 >= len(directive):
        return None
    start = cpp.original(directive[close + 1].start)
    end = cpp.original(directive[-1].start) + len(directive[-1].text)
    body = re.sub(r"\\\n", "\n", cpp.text[start:end])
    given = dict(zip(names, arguments, strict=True))
    words = "|".join(map(re.escape, names))
    body = re.sub(rf"(?<!#)#\s*({words})\b", lambda m: '"' + given[m.group(1)].replace('"', '\\"') + '"', body)
    body = re.sub(rf"\b({words})\b", lambda m: given[m.group(1)], body)
    return re.sub(r"\s*##\s*", "", body)


# -- includes --

_INCLUDE = re.compile(r'[ \t]*#[ \t]*include[ \t]*(?:"(?P<quoted>[^"\n]+)"|<(?P<angled>[^>\n]+)>)')
_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(ifdef|ifndef|if|elif|else|endif|define|undef)\b[ \t]*(\w*)")
_STAND_INS = ("ATen/", "torch/", "c10/", "cuda", "pybind11/")  # replaced by the recording runtime


class Includes:
    """Expands the includes of one translation unit, each header once, except in inactive `#ifdef` branches."""

    def __init__(self, include: Sequence[Path], defines: Sequence[str]) -> None:
        self.include = [(one, one.resolve()) for one in include]
        self.defined = {one.partition("=")[0] for one in defines}
        self.seen: set[Path] = set()
        self.missing: list[str] = []
        self._branches: list[bool | None] = []  # of the enclosing conditions: active, inactive or unknown (None)

    def lines(self, name: str, text: str, folder: Path | None) -> list[tuple[str, tuple[str, int]]]:
        """Each line with its original file and line number."""
        made = []
        for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
            self._directive(line)
            wanted = _INCLUDE.match(line)
            path = self._found(wanted, folder) if wanted and folder and False not in self._branches else None
            if path is None:
                made.append((line, (name, number)))
            elif path not in self.seen:
                self.seen.add(path)
                made += self.lines(path.name, path.read_text("utf-8", "replace"), path.parent)
        return made

    def _directive(self, line: str) -> None:
        """Evaluate `#ifdef` of names; a name that begins with `_` may be predefined, so it is unknown."""
        found = _DIRECTIVE.match(line)
        if found is None:
            return
        word, name = found.groups()
        if word in ("ifdef", "ifndef"):
            is_known = name in self.defined or not name.startswith("_")
            self._branches.append((name in self.defined) is (word == "ifdef") if is_known else None)
        elif word == "if":
            self._branches.append(None)
        elif word in ("else", "elif") and self._branches:
            taken = self._branches[-1]
            self._branches[-1] = None if taken is None or (word == "elif" and not taken) else not taken
        elif word == "endif" and self._branches:
            self._branches.pop()
        elif word == "define" and False not in self._branches:
            self.defined.add(name)
        elif word == "undef":
            self.defined.discard(name)

    def _found(self, wanted: re.Match[str], folder: Path) -> Path | None:
        # Nothing outside the file's folder and the include folders may be read.
        beside = [(folder, folder.resolve().parent)] if wanted["quoted"] else []
        name = wanted["quoted"] or wanted["angled"]
        places = (*beside, *self.include)
        for place, _ in places:
            path = (place / name).resolve()
            if any(path.is_relative_to(root) for _, root in places) and path.is_file():
                return path
        self.missing += [name] if wanted["quoted"] and not name.startswith(_STAND_INS) else []
        return None

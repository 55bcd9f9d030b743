"""The definitions of a function's body that a place in it can see: `int n = rows * 4;`, `dim3 grid(n);`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.kernel_file.cpp_tokens import CppToken

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

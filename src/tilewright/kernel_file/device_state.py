"""Finds variables that outlive a kernel: globals, static members, static locals.

Works on tokens; variables made by macros are found in the compiled PTX. Constants (`constexpr`, `const`, initialised
`__constant__`) and shared memory are allowed.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.kernel_file.cpp_tokens import CppText, CppToken, closing
from tilewright.kernel_file.problems import Code

_OPENERS = {"(": ")", "[": "]", "{": "}"}
_CLOSERS = frozenset(_OPENERS.values())
# Specifiers with an argument list that does not make the declaration a function.
_WITH_ARGUMENTS = frozenset(
    ("__launch_bounds__", "__cluster_dims__", "__maxnreg__", "__block_size__", "__align__", "__attribute__")
) | frozenset(("alignas", "decltype", "typeof", "__typeof__", "noexcept", "explicit", "requires", "sizeof"))
_NO_VARIABLE = frozenset(
    ("using", "typedef", "friend", "static_assert", "template", "concept", "return", "namespace", "import", "export")
) | frozenset(("asm", "__asm__", "__asm", "module", "public", "private", "protected"))
_CLASS_WORDS = frozenset(("struct", "class", "union"))
_NO_STATE = frozenset(("constexpr", "__shared__", "CUTE_INLINE_CONSTANT", "CUTE_STATIC_CONSTEXPR"))
_MAX_HEAD = 200  # tokens of a declaration that are kept
_REMEDY = "use registers, __shared__ or a constexpr table; memory across blocks is a //! scratch buffer"


def find_device_state(cpp: CppText) -> None:
    """Report every variable that keeps its value between calls."""
    _Walker(cpp).walk()


class _Walker:
    def __init__(self, cpp: CppText) -> None:
        self.cpp = cpp
        self.tokens = cpp.code
        self.closing = _closing_brackets(cpp.code)
        # Open braces: the declaration head of a class, or None for a namespace.
        self.open: list[list[CppToken] | None] = [None]
        self.head: list[CppToken] = []  # of the current declaration

    def walk(self) -> None:
        position = 0
        while position < len(self.tokens):
            token = self.tokens[position]
            text = token.text
            if token.kind != "punct" or text not in "(){}[];:":
                self.head.append(token)
            elif text in ("(", "["):
                end = self._matching(position)
                self.head.extend(self.tokens[position : end + 1])
                position = end
            elif text == "{":
                position = self._brace(position)
            elif text == "}":
                self._close(token)
            elif text == ";":
                self._judge(self.head)
                self.head = []
            elif text == ":" and self.head and self.head[-1].text in ("public", "private", "protected"):
                self.head = []
            else:
                self.head.append(token)
            position += 1

    def _matching(self, position: int) -> int:
        """The index of the closing bracket, or of the last token."""
        return self.closing.get(position, len(self.tokens) - 1)

    def _brace(self, position: int) -> int:
        """Enter a namespace or class, or skip a function, enum or initialiser; returns the last token consumed."""
        head = _without_template(self.head)
        words = [token.text for token in head if token.is_identifier]
        linkage = len(head) == 2 and head[0].text == "extern" and head[1].kind == "string"
        if "namespace" in words[:2] or linkage or not head:
            self.open.append(None)
            self.head = []
            return position
        end = self._matching(position)
        if "enum" in words[:2]:
            self.head = _after_body(head, self.tokens[end])
            return end
        if _is_function(head):
            for index in range(position, end):
                if self.tokens[index].text == "static" and self.tokens[index].is_identifier:
                    statement = self._statement(index, end)
                    if not _is_function(statement) and not _is_constant(statement):
                        self._report(statement, "the static variable")
            self.head = []
            return end
        if _CLASS_WORDS & set(words) and not any(token.text == "=" for token in head):
            self.open.append(head)
            self.head = []
            return position
        self.head = [*self.head[:_MAX_HEAD], CppToken("punct", "{", self.tokens[position].start)]
        return end

    def _close(self, brace: CppToken) -> None:
        if len(self.open) == 1:
            self.head = []
            return
        closed = self.open.pop()
        self.head = [] if closed is None else _after_body(closed, brace)

    def _statement(self, start: int, end: int) -> list[CppToken]:
        """The declaration that starts at a token, up to its end or body."""
        statement: list[CppToken] = []
        position = start
        while position < end and len(statement) < _MAX_HEAD and self.tokens[position].text not in (";", "{", "}"):
            stop = self._matching(position) if self.tokens[position].text in ("(", "[") else position
            statement.extend(self.tokens[position : min(stop, position + _MAX_HEAD) + 1])
            position = stop + 1
        return statement

    def _judge(self, head: Sequence[CppToken]) -> None:
        tokens = _without_template(head)
        if not tokens or tokens[0].text in _NO_VARIABLE or _is_function(tokens) or _is_constant(tokens):
            return
        in_class = self.open[-1] is not None
        if in_class and all(token.text != "static" for token in tokens):
            return
        if not _declares_type_only(tokens):
            self._report(tokens, "the static member" if in_class else "the global variable")

    def _report(self, tokens: Sequence[CppToken], what: str) -> None:
        name = _declared_name(tokens)
        self.cpp.report(Code.DEVICE_STATE, name, f"{what} `{name.text}` outlives the call", _REMEDY)


def _closing_brackets(tokens: Sequence[CppToken]) -> dict[int, int]:
    """Opening bracket -> closing bracket, by index; unpaired brackets are omitted."""
    found: dict[int, int] = {}
    awaited: list[int] = []
    for index, (kind, text, _) in enumerate(tokens):
        if kind != "punct":
            continue
        if text in _OPENERS:
            awaited.append(index)
        elif text in _CLOSERS:
            # A brace closes unpaired brackets inside it.
            while awaited and text == "}" and tokens[awaited[-1]].text != "{":
                awaited.pop()
            if awaited and _OPENERS[tokens[awaited[-1]].text] == text:
                found[awaited.pop()] = index
    return found


def _without_template(head: Sequence[CppToken]) -> list[CppToken]:
    """A declaration without `template <...>` and without specifiers that take arguments."""
    tokens = list(head)
    while tokens and tokens[0].text == "template" and len(tokens) > 1 and tokens[1].text == "<":
        tokens = tokens[_after_angles(tokens, 1) :]
    return _without_arguments(tokens)


def _after_angles(tokens: Sequence[CppToken], start: int) -> int:
    depth = brackets = 0
    for index in range(start, len(tokens)):
        text = tokens[index].text if tokens[index].kind == "punct" else ""
        if text in ("(", "["):
            brackets += 1
        elif text in (")", "]"):
            brackets -= 1
        elif not brackets and text == "<":
            depth += 1
        elif not brackets and text == ">":
            depth -= 1
            if not depth:
                return index + 1
    return len(tokens)


def _without_arguments(tokens: Sequence[CppToken]) -> list[CppToken]:
    kept: list[CppToken] = []
    position = 0
    while position < len(tokens):
        token = tokens[position]
        following = tokens[position + 1].text if position + 1 < len(tokens) else ""
        attribute = token.text == "[" and following == "["
        if attribute or (token.text in _WITH_ARGUMENTS and following == "("):
            position = closing(tokens, position if attribute else position + 1, "()[]") + 1
        else:
            kept.append(token)
            position += 1
    return kept


def _is_function(tokens: Sequence[CppToken]) -> bool:
    """Whether a parameter list follows a name before any initialiser."""
    for index, token in enumerate(tokens):
        if token.kind != "punct":
            continue
        if token.text == "=" and not (index and tokens[index - 1].text == "operator"):
            return False
        if token.text == "[" and not (index and tokens[index - 1].text == "operator"):
            return False
        if token.text == "(" and index:
            inside, second = (*tokens[index + 1 : index + 3], token, token)[:2]
            pointer = inside.text in ("*", "&") and second.is_identifier and tokens[index - 1].text != "operator"
            return not pointer and inside.kind not in ("number", "string", "char")
    return False


def _is_constant(tokens: Sequence[CppToken]) -> bool:
    texts = [token.text for token in tokens]
    if not _NO_STATE.isdisjoint(texts):
        return True
    initialised = "=" in texts or "{" in texts
    if "__constant__" in texts:
        return initialised
    if "const" not in texts or "mutable" in texts:
        return False
    declarator = texts[: texts.index("=")] if "=" in texts else texts
    if "*" not in declarator:
        return True
    last_star = len(declarator) - 1 - declarator[::-1].index("*")
    return "const" in declarator[last_star:]


def _declared_name(tokens: Sequence[CppToken]) -> CppToken:
    """The first name declared: the last identifier before an initialiser, a bracket or a comma."""
    name = next((token for token in tokens if token.is_identifier), tokens[0])
    for index, token in enumerate(tokens):
        if token.is_identifier:
            name = token
        elif token.text in ("=", "[", "{", ",", "("):
            pointer = token.text == "(" and index + 1 < len(tokens) and tokens[index + 1].text == "*"
            if name is not tokens[0] or not pointer:
                break
    return name


def _after_body(head: Sequence[CppToken], brace: CppToken) -> list[CppToken]:
    """The head after the body of a class or enum: a variable may follow, as in `struct {...} x;`."""
    kept = [token for token in head if token.text in ("const", "constexpr", "static", "typedef", "__shared__")]
    return [*kept, CppToken("punct", "}", brace.start)]


def _declares_type_only(tokens: Sequence[CppToken]) -> bool:
    """`struct A;`, `template <> struct A<int>;`, or the `;` after a body."""
    texts = [token.text for token in tokens]
    if "}" in texts:
        return not any(token.is_identifier for token in tokens[texts.index("}") :])
    if texts[0] == "enum" and "=" not in texts:
        return True
    if texts[0] not in _CLASS_WORDS:
        return not any(token.is_identifier for token in tokens)
    depth, names = 0, 0
    for index, token in enumerate(tokens):
        depth += (token.text == "<") - (token.text == ">")
        names += token.is_identifier and not depth and (not index or texts[index - 1] != "::")
    return names <= 2

"""The expression parser of launch plans: recursive descent, one token of look-ahead.

Failures carry a `Problem`. The tree's height is bounded, so that it can be walked recursively.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from tilewright.kernel_file import syntax, words
from tilewright.kernel_file.lexer import Token
from tilewright.kernel_file.problems import Autofix, Code, Problem
from tilewright.kernel_file.syntax import Expr

Item = TypeVar("Item")

_COMPARISONS = frozenset(("==", "!=", "<", "<=", ">", ">=", "in"))
_LOGICAL_SIGNS = {"||": "or", "&&": "and"}
_A_VALUE = "a value: a number, a name, a function or a bracket"


class ParseFailure(Exception):
    """A directive could not be parsed."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(str(problem))


class ExpressionParser:
    """Parses expressions from the tokens of one statement."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens = tokens
        self.position = 0
        self.token = tokens[0]  # at `position`
        self.nesting = 0
        self.height = 0  # of the last returned tree

    # -- tokens --

    def following(self, count: int = 1) -> Token:
        return self.tokens[min(self.position + count, len(self.tokens) - 1)]

    def advance(self) -> Token:
        token = self.token
        if token.kind != "end":
            self.position += 1
            self.token = self.tokens[self.position]
        return token

    def at(self, *texts: str) -> bool:
        return self.token.text in texts

    def accept(self, text: str) -> Token | None:
        return self.advance() if self.token.text == text else None

    def expect(self, text: str, why: str = "") -> Token:
        if not self.at(text):
            self.fail(f"`{text}`", why)
        return self.advance()

    def name(self, what: str) -> Token:
        if self.token.kind != "name":
            self.fail(what)
        return self.advance()

    def fail(self, expected: str, why: str = "") -> NoReturn:
        self.fail_at(self.token, Code.SYNTAX, f"found {self.token}", f"expected {expected}{why}")

    def fail_at(self, token: Token, code: Code, found: str, remedy: str, autofix: Autofix | None = None) -> NoReturn:
        raise ParseFailure(Problem.at(token.at, code, found, remedy, autofix))

    def comma_separated(self, item: Callable[[], Item]) -> tuple[Item, ...]:
        """One or more items, separated by commas."""
        items = [item()]
        while self.accept(","):
            items.append(item())
        return tuple(items)

    def sequence(self, item: Callable[[], Item], closer: str) -> tuple[Item, ...]:
        """Zero or more items, separated by commas, and the closing bracket."""
        items = () if self.at(closer) else self.comma_separated(item)
        if not self.accept(closer):
            self.fail(f"`,` or `{closer}`")
        return items

    def one_or_more(self, item: Callable[[], Item], closer: str, what: str) -> tuple[Item, ...]:
        if self.at(closer):
            self.fail(what)
        return self.sequence(item, closer)

    def enter(self, token: Token) -> None:
        self.nesting += 1
        if self.nesting > words.MAX_NESTING:
            limit = words.MAX_NESTING
            self.fail_at(token, Code.LIMIT, f"nesting deeper than {limit}", "name a part of it with `let`")

    def leave(self) -> None:
        self.nesting -= 1

    def grow(self, height: int, token: Token) -> int:
        """The height of a node over a part of `height`."""
        if height >= words.MAX_EXPRESSION_HEIGHT:
            limit = words.MAX_EXPRESSION_HEIGHT
            self.fail_at(token, Code.LIMIT, f"an expression more than {limit} operators deep", "name a part with `let`")
        self.height = height + 1
        return self.height

    # -- from `a if c else b` down to arithmetic --

    def expression(self) -> Expr:
        then = self.disjunction()
        height = self.height
        if not self.at("if"):
            return then
        word = self.advance()
        self.enter(word)
        condition = self.disjunction()
        height = max(height, self.height)
        self.expect("else", " (write `a if condition else b`)")
        otherwise = self.expression()
        self.leave()
        self.grow(max(height, self.height), word)
        return syntax.Conditional(condition, then, otherwise, word.at)

    def disjunction(self) -> Expr:
        conjunction = lambda: self._chain(syntax.Logical, ("and", "&&"), self.negation)  # noqa: E731
        return self._chain(syntax.Logical, ("or", "||"), conjunction)

    def negation(self) -> Expr:
        return self._prefixed("not", self.negation) if self.at("not", "!") else self.comparison()

    def arithmetic(self) -> Expr:
        return self._chain(syntax.Binary, ("+", "-"), self.term)

    def term(self) -> Expr:
        return self._chain(syntax.Binary, ("*", "/", "//", "%"), self.unary)

    def unary(self) -> Expr:
        return self._prefixed("-", self.unary) if self.at("-") else self.postfix()

    def _chain(
        self, kind: type[syntax.Binary | syntax.Logical], signs: tuple[str, ...], part: Callable[[], Expr]
    ) -> Expr:
        """A left-associative chain of operators of equal precedence."""
        left = part()
        height = self.height
        while self.token.text in signs:
            sign = self.advance()
            right = part()
            height = self.grow(max(height, self.height), sign)
            left = kind(_LOGICAL_SIGNS.get(sign.text, sign.text), left, right, sign.at)
        return left

    def _prefixed(self, operator: str, operand: Callable[[], Expr]) -> Expr:
        sign = self.advance()
        self.enter(sign)
        inner = operand()
        self.leave()
        self.grow(self.height, sign)
        return syntax.Unary(operator, inner, sign.at)

    def comparison(self) -> Expr:
        start = self.position
        left = self.arithmetic()
        if self.at("is"):
            self._fail_is(start)
        if self.at("not") and self.following().text == "in":
            self.fail("`and`, `or` or the end of the condition", "; write `not a in b`")
        if self.token.text not in _COMPARISONS:
            return left
        height = self.height
        sign = self.advance()
        right = self.arithmetic()
        self.grow(max(height, self.height), sign)
        if self.token.text in _COMPARISONS:
            found = f"found {self.token} after a comparison"
            self.fail_at(self.token, Code.SYNTAX, found, "write `a < b and b < c`; no chaining")
        return syntax.Compare(sign.text, left, right, sign.at)

    def _fail_is(self, start: int) -> NoReturn:
        """Suggest `has(mask)` for `mask is not None`."""
        left, word = self.tokens[start], self.advance()
        negated = self.accept("not") is not None
        last = self.token
        test = None
        if start == self.position - 1 - (1 + negated) and last.text in ("None", "none"):
            test = f"has({left.text})" if negated else f"not has({left.text})"
        remedy = "write has(x) for a given optional, not has(x) for none"
        self.fail_at(word, Code.SYNTAX, "found `is`", remedy, Autofix.between(left.at, last.at, test))

    # -- names, attributes, indices --

    def postfix(self) -> Expr:
        result = self.atom()
        while self.at(".", "["):
            sign = self.advance()
            height = self.height
            if sign.text == ".":
                name = self.name("an attribute such as .shape")
                if self.at("("):
                    self._fail_method(name)
                result = syntax.Attribute(result, name.text, name.at)
            else:
                result = self._subscript(result, sign)
            self.grow(max(height, self.height), sign)
        return result

    def _subscript(self, base: Expr, bracket: Token) -> Expr:
        self.enter(bracket)
        low = None if self.at(":") else self.expression()
        height = self.height
        if self.accept(":"):
            high = None if self.at("]") else self.expression()
            self.expect("]", " (a slice is [low:high], without a step)" if self.at(":") else "")
            result: Expr = syntax.Slice(base, low, high, bracket.at)
        else:
            assert low is not None
            self.expect("]")
            result = syntax.Index(base, low, bracket.at)
        self.height = max(height, self.height)
        self.leave()
        return result

    def _fail_method(self, name: Token) -> NoReturn:
        """Suggest attributes for `x.size(0)` and `x.numel()`."""
        known = words.ATTRIBUTE_SPELLINGS.get(name.text)
        first, second, third = self.following(), self.following(2), self.following(3)
        negative = first.text == "-"
        index, closer = (second, third) if negative else (first, second)
        autofix = None
        remedy = "tensors have attributes only: " + " ".join(f".{word}" for word in words.TENSOR_ATTRIBUTES)
        if known is not None:
            remedy = f"write .{known}"
            if first.text == ")":
                autofix = Autofix.between(name.at, first.at, known)
            elif known in ("shape", "stride") and index.kind in ("int", "name") and closer.text == ")":
                written = f"{known}[{'-' if negative else ''}{index.text}]"
                remedy = f"write .{written}"
                autofix = Autofix.between(name.at, closer.at, written)
        self.fail_at(name, Code.UNKNOWN_FUNCTION, f"`.{name.text}(` is a method call", remedy, autofix)

    def atom(self) -> Expr:
        token = self.token
        self.height = 1
        if token.kind in ("int", "float"):
            return self.number()
        if token.kind == "name":
            return self._word(self.advance())
        if token.text == "(":
            self.advance()
            self.enter(token)
            inner = self.expression()
            self.leave()
            self.expect(")")
            return inner
        if token.text != "[":
            self.fail(_A_VALUE)
        self.advance()
        return self.list_of(token)

    def list_of(self, bracket: Token) -> syntax.ListOf:
        return syntax.ListOf(self._items("]", bracket), bracket.at)

    def number(self) -> syntax.Literal:
        token = self.advance()
        digits = token.text.replace("_", "")
        if token.kind == "int":
            value = int(digits)
            if value > words.MAX_INT:
                self.fail_at(token, Code.VALUE, f"{_shortened(token.text)} does not fit in 64 bits", "at most 2^63 - 1")
            return syntax.Literal(value, token.at)
        real = float(digits)
        if math.isinf(real):
            found = f"{_shortened(token.text)} is too large for a float"
            self.fail_at(token, Code.VALUE, found, "at most about 1.8e308")
        return syntax.Literal(real, token.at)

    def _word(self, token: Token) -> Expr:
        text = token.text
        if text in words.LITERAL_WORDS:
            return syntax.Literal(words.LITERAL_WORDS[text], token.at)
        if text in words.FUNCTIONS:
            bracket = self.expect("(")
            return syntax.Call(text, self._items(")", bracket), token.at)
        if self.at("("):
            self._fail_function(token)
        if text in words.DTYPES:
            return syntax.Literal(words.DTYPES[text], token.at)
        if text in words.OPERATOR_WORDS or text in ("dim3", "tiled"):
            self.fail_at(token, Code.SYNTAX, f"found {token}", f"expected {_A_VALUE}")
        return syntax.Name(text, token.at)

    def _items(self, closer: str, bracket: Token) -> tuple[Expr, ...]:
        self.enter(bracket)
        highest = 0

        def item() -> Expr:
            nonlocal highest
            result = self.expression()
            highest = max(highest, self.height)
            return result

        items = self.sequence(item, closer)
        self.leave()
        self.grow(highest, bracket)
        return items

    def _fail_function(self, token: Token) -> NoReturn:
        meant = words.FUNCTION_SPELLINGS.get(token.text) or words.closest_name(token.text, words.FUNCTIONS)
        known = f"known: {words.quoted(words.FUNCTIONS)}"
        remedy = f"write {meant}; {known}" if meant else known
        if token.text == "dim3":
            remedy = "dim3(...) stands only in a launch's grid or block"
        self.fail_at(
            token, Code.UNKNOWN_FUNCTION, f"unknown function `{token.text}`", remedy, Autofix.of(token.at, meant)
        )


def _shortened(text: str) -> str:
    return text if len(text) <= 24 else text[:20] + "..."

"""The expression grammar of a launch plan: tokens in, a tree out. Recursive descent, one token of look-ahead.

Every failure carries a `Problem`; nothing is evaluated or typed here. The tree's height is bounded, so those who
walk it may recurse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from tilewright.kernel_file import words
from tilewright.kernel_file.lexer import Token
from tilewright.kernel_file.problems import Code, Mend, Problem
from tilewright.kernel_file.syntax import (
    Attribute,
    Binary,
    Call,
    Compare,
    Conditional,
    Expr,
    Index,
    ListOf,
    Literal,
    Logical,
    Name,
    Slice,
    Unary,
)

Item = TypeVar("Item")

_COMPARISONS = frozenset(("==", "!=", "<", "<=", ">", ">=", "in"))
_LOGICAL_SIGNS = {"||": "or", "&&": "and"}


class ParseFailure(Exception):
    """One directive could not be read."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(str(problem))


class ExpressionParser:
    """Reads expressions from the tokens of one statement; `grammar` adds the directives."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens = tokens
        self.position = 0
        self.token = tokens[0]  # the one at `position`, kept apart because everything looks at it
        self.nesting = 0
        self.height = 0  # of the tree returned last

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

    def fail_at(self, token: Token, code: Code, found: str, remedy: str, mend: Mend | None = None) -> NoReturn:
        raise ParseFailure(Problem(code, token.line, token.column, found, remedy, mend))

    def sequence(self, item: Callable[[], Item], closer: str) -> tuple[Item, ...]:
        """Items parted by commas, up to and with the closing bracket; there may be none."""
        items: list[Item] = []
        if not self.at(closer):
            items.append(item())
            while self.accept(","):
                items.append(item())
        if not self.at(closer):
            self.fail(f"`,` or `{closer}`")
        self.advance()
        return tuple(items)

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
        return Conditional(condition, then, otherwise, word.at)

    def disjunction(self) -> Expr:
        return self._logical(("or", "||"), self.conjunction)

    def conjunction(self) -> Expr:
        return self._logical(("and", "&&"), self.negation)

    def _logical(self, signs: tuple[str, str], part: Callable[[], Expr]) -> Expr:
        left = part()
        height = self.height
        while self.token.text in signs:
            sign = self.advance()
            right = part()
            height = self.grow(max(height, self.height), sign)
            left = Logical(_LOGICAL_SIGNS.get(sign.text, sign.text), left, right, sign.at)
        return left

    def negation(self) -> Expr:
        if not self.at("not", "!"):
            return self.comparison()
        sign = self.advance()
        self.enter(sign)
        operand = self.negation()
        self.leave()
        self.grow(self.height, sign)
        return Unary("not", operand, sign.at)

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
            again = self.token
            self.fail_at(
                again, Code.SYNTAX, f"found {again} after a comparison", "write `a < b and b < c`; no chaining"
            )
        return Compare(sign.text, left, right, sign.at)

    def _fail_is(self, start: int) -> NoReturn:
        """`mask is not None` has one meaning here: `has(mask)`."""
        left, word = self.tokens[start], self.advance()
        negated = self.accept("not") is not None
        last = self.token
        mend = None
        if start == self.position - 1 - (1 + negated) and last.text in ("None", "none") and last.line == left.line:
            test = f"has({left.text})" if negated else f"not has({left.text})"
            mend = Mend(left.line, left.column, last.end_column - left.column, test)
        self.fail_at(word, Code.SYNTAX, "found `is`", "write has(x) for a given optional, not has(x) for none", mend)

    def arithmetic(self) -> Expr:
        return self._chain(("+", "-"), self.term)

    def term(self) -> Expr:
        return self._chain(("*", "/", "//", "%"), self.unary)

    def _chain(self, signs: tuple[str, ...], part: Callable[[], Expr]) -> Expr:
        left = part()
        height = self.height
        while self.token.text in signs:
            sign = self.advance()
            right = part()
            height = self.grow(max(height, self.height), sign)
            left = Binary(sign.text, left, right, sign.at)
        return left

    def unary(self) -> Expr:
        sign = self.accept("-")
        if sign is None:
            return self.postfix()
        self.enter(sign)
        operand = self.unary()
        self.leave()
        self.grow(self.height, sign)
        return Unary("-", operand, sign.at)

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
                result = Attribute(result, name.text, name.at)
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
            result: Expr = Slice(base, low, high, bracket.at)
        else:
            assert low is not None
            self.expect("]")
            result = Index(base, low, bracket.at)
        self.height = max(height, self.height)
        self.leave()
        return result

    def _fail_method(self, name: Token) -> NoReturn:
        """`x.size(0)`, `x.numel()`: the plan has attributes, not methods."""
        known = words.ATTRIBUTE_SPELLINGS.get(name.text)
        first, second, third = self.following(), self.following(2), self.following(3)
        negative = first.text == "-"
        index, closer = (second, third) if negative else (first, second)
        mend = None
        remedy = "tensors have attributes only: " + " ".join(f".{word}" for word in words.TENSOR_ATTRIBUTES)
        if known is not None:
            remedy = f"write .{known}"
            if first.text == ")" and first.line == name.line:
                mend = Mend(name.line, name.column, first.end_column - name.column, known)
            elif known in ("shape", "stride") and index.kind in ("int", "name") and closer.text == ")":
                written = f"{known}[{'-' if negative else ''}{index.text}]"
                remedy = f"write .{written}"
                if closer.line == name.line:
                    mend = Mend(name.line, name.column, closer.end_column - name.column, written)
        self.fail_at(name, Code.UNKNOWN_FUNCTION, f"`.{name.text}(` is a method call", remedy, mend)

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
            self.fail("a value: a number, a name, a function or a bracket")
        self.advance()
        return self.list_of(token)

    def list_of(self, bracket: Token) -> ListOf:
        return ListOf(self._items("]", bracket), bracket.at)

    def number(self) -> Literal:
        token = self.advance()
        digits = token.text.replace("_", "")
        if token.kind == "int":
            value = int(digits)
            if value > words.MAX_INT:
                self.fail_at(token, Code.VALUE, f"{_shortened(token.text)} does not fit in 64 bits", "at most 2^63 - 1")
            return Literal(value, token.at)
        real = float(digits)
        if math.isinf(real):
            self.fail_at(
                token, Code.VALUE, f"{_shortened(token.text)} is too large for a float", "at most about 1.8e308"
            )
        return Literal(real, token.at)

    def _word(self, token: Token) -> Expr:
        text = token.text
        if text in words.LITERAL_WORDS:
            return Literal(words.LITERAL_WORDS[text], token.at)
        if text in words.FUNCTIONS:
            bracket = self.expect("(")
            return Call(text, self._items(")", bracket), token.at)
        if self.at("("):
            self._fail_function(token)
        if text in words.DTYPES:
            return Literal(words.DTYPES[text], token.at)
        if text in words.OPERATOR_WORDS or text in ("dim3", "tiled"):
            self.fail_at(
                token, Code.SYNTAX, f"found {token}", "expected a value: a number, a name, a function or a bracket"
            )
        return Name(text, token.at)

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
        near = words.near_names(token.text, words.FUNCTIONS)
        meant = words.FUNCTION_SPELLINGS.get(token.text) or (near[0] if len(near) == 1 else None)
        mend = Mend(token.line, token.column, len(token.text), meant) if meant else None
        known = f"known: {words.quoted(words.FUNCTIONS)}"
        remedy = f"write {meant}; {known}" if meant else known
        if token.text == "dim3":
            remedy = "dim3(...) stands only in a launch's grid or block"
        self.fail_at(token, Code.UNKNOWN_FUNCTION, f"unknown function `{token.text}`", remedy, mend)


def _shortened(text: str) -> str:
    return text if len(text) <= 24 else text[:20] + "..."

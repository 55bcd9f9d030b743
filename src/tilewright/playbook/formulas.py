"""Formulas as a chain of steps on one value: `relu(x + bias)`, `rmsnorm times gate`, `matmul + bias + gelu`.

Everything but the value at hand is a number or a tensor that an operation of the vocabulary brings. What is no chain,
such as a formula with the value in two places, is read as an expression of tensors by their names where it is one.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace

from tilewright.playbook.errors import NotUnderstood, outside_grammar
from tilewright.playbook.expressions import read_expression
from tilewright.playbook.named_operation import Effect, Form
from tilewright.playbook.phrases import (
    INPUT,
    NUMBER_TEXT,
    Clause,
    is_activation,
    is_value,
    match,
    read_phrase,
    refused,
    says_nothing,
    unordered,
    without_politeness,
)
from tilewright.playbook.vocabulary import as_said

_TOKEN = re.compile(rf" *(\*\*|{NUMBER_TEXT}|[a-z][a-z0-9]*|\S)")
_LEADING = re.compile(r"^(?:plus|minus|times|multiplied (?:by|with)|divided by|[+*/])(?= |[a-z\d])")
_VERBS = {"+": "add", "-": "subtract", "*": "multiply by", "/": "divide by"}
_OPERATORS = {*_VERBS, "^", "**", "(", ")", ","}
_TENSORS = frozenset(("weight", "bias", "gate"))
_NAME = re.compile(r"[a-z]\d?|pred|predictions?|targets?|labels?|logits|query|key|value")  # of a tensor
_POINTING_BACK = frozenset(("of", "for", "to", "which", "that"))  # "gelu, of layernorm"


@dataclass(frozen=True)
class Leaf:
    """Words without an operator, not yet known to be a step or an operand; or a number."""

    words: tuple[str, ...]

    @property
    def is_number(self) -> bool:
        return len(self.words) == 1 and re.fullmatch(rf"-?{NUMBER_TEXT}", self.words[0]) is not None


@dataclass(frozen=True)
class Chain:
    """Steps on the value at hand."""

    clauses: tuple[Clause, ...]


Node = Leaf | Chain


def read_formula(text: str, first: bool) -> tuple[Clause, ...]:
    """The steps of a part of a request. `first`: nothing comes before it, so that "x" is the value at hand."""
    try:
        return _read_chain(text, first)
    except NotUnderstood:
        expression = read_expression(text) if first else None
        if expression is None:
            raise
        return (expression,)


def _read_chain(text: str, first: bool) -> tuple[Clause, ...]:
    said = text = text.strip()
    if " times " in text and first and (whole := match(without_politeness(tuple(text.split())))):
        return (whole,)  # "matrix times vector" is no scaling
    text = _LEADING.sub(r"it \g<0>", text)
    text = re.sub(r"(?<!soft )\bplus\b", "+", text)
    text = re.sub(r"\bminus\b", "-", text)
    text = re.sub(r"\btimes\b|\bmultiplied (?:by|with)\b", "*", text)
    text = re.sub(r"\bdivided by\b", "/", text)
    text = re.sub(r"([a-z]) ?[=:] ?(?=[-\d.a-z])", r"\1 ", text)  # eps=1e-3
    tokens = _tokens(text)
    if not first and INPUT & set(tokens):
        raise outside_grammar(
            f'the playbook cannot tell whether x in "{text}" is the input or the result so far; leave x out after the '
            f"first step, or write brackets, such as gelu(layernorm(x))"
        )
    if not first and tokens and tokens[0] in _POINTING_BACK:
        raise unordered(text)
    clauses = _FormulaReader(tokens, said).read() if _OPERATORS & set(tokens) else read_phrase(tuple(tokens))
    _refuse_unread(tokens, clauses, said)
    return clauses


def _refuse_unread(tokens: list[str], clauses: tuple[Clause, ...], text: str) -> None:
    """Every number and word is one of a step's, an operator, or says nothing: what is read is all that was said."""
    read = Counter(word.lstrip("-") for one in clauses for word in one.words)  # a sign is a token or a number's own
    left = Counter(one.lstrip("-") or one for one in tokens) - read
    unread = [one for one in left if one not in _OPERATORS and not says_nothing(one)]
    if unread:
        steps = ", then ".join(one.says for one in clauses) or "no step"
        raise outside_grammar(f'the playbook reads "{as_said(text)}" as {steps}, which leaves "{unread[0]}" unread')


def _tokens(text: str) -> list[str]:
    """Words, numbers and operators; a minus sign that belongs to a number is a part of it, as in "add -1"."""
    found: list[str] = []
    place = 0
    while place < len(text.rstrip()):
        token = _TOKEN.match(text, place)
        assert token is not None  # \S takes anything but a space
        one, start = token[1], token.start(1)
        number = re.compile(NUMBER_TEXT).match(text, start + 1) if one == "-" else None
        apart = start == 0 or text[start - 1] in " (,"
        if number and apart and (not found or (found[-1].isalpha() and found[-1] not in {*INPUT, "it"})):
            found.append("-" + number[0])
            place = number.end()
            continue
        if not re.match(r"[\w.]", one) and one not in _OPERATORS:
            names = " between tensors of one letter other than i, such as relu(x @ w + b)" if one == "@" else ""
            reads = f'reads "@"{names}, and cannot read' if names else f'does not understand "{one}" in'
            raise outside_grammar(f'the playbook {reads} "{text.strip()}"')
        found.append(one)
        place = token.end()
    return found


class _FormulaReader:
    def __init__(self, tokens: list[str], text: str) -> None:
        self.tokens = tokens
        self.text = text
        self.place = 0

    def read(self) -> tuple[Clause, ...]:
        node = self._sum()
        if self._next is not None:
            raise unordered(self.text)
        return self._chain(node).clauses

    # -- the grammar --

    @property
    def _next(self) -> str | None:
        return self.tokens[self.place] if self.place < len(self.tokens) else None

    def _take(self) -> str:
        if self._next is None:
            raise unordered(self.text)
        self.place += 1
        return self.tokens[self.place - 1]

    def _sum(self) -> Node:
        node = self._product()
        while self._next in ("+", "-"):
            node = self._combined(node, self._take(), self._product())
        return node

    def _product(self) -> Node:
        node = self._power()
        while self._next in ("*", "/"):
            node = self._combined(node, self._take(), self._power())
        return node

    def _power(self) -> Node:
        if self._next == "-":
            self._take()
            return self._negated(self._power())
        node = self._factor()
        while self._next in ("^", "**"):
            sign = self._take()
            self._refuse_split(node, sign, Leaf(("2",)))
            if self._take() != "2":
                raise unordered(self.text)
            *before, square = self._applied(("square",), self._chain(node)).clauses
            node = Chain((*before, replace(square, words=("square", "2"))))
        return node

    def _factor(self) -> Node:
        words: list[str] = []
        while self._next is not None and self._next not in _OPERATORS:
            words.append(self._take())
        if self._next == "(":
            return self._call(tuple(words))
        if not words:
            raise unordered(self.text)
        return Leaf(tuple(words))

    def _call(self, name: tuple[str, ...]) -> Node:
        self._take()
        arguments = [self._sum()]
        while self._next == ",":
            self._take()
            arguments.append(self._sum())
        if self._take() != ")":
            raise unordered(self.text)
        name = name[:-1] if name and name[-1] in ("of", "to") else name
        steps = without_politeness(name)
        if not steps:
            if len(arguments) > 1:
                raise unordered(self.text)
            return self._chain(arguments[0])
        first, *rest = arguments
        whole = match(steps)
        names = all(isinstance(one, Leaf) and len(one.words) == 1 and not one.is_number for one in arguments)
        if names and whole and whole.operation.takes and len(arguments) == 1 + len(whole.operation.tensors):
            said = tuple(word for one in arguments if isinstance(one, Leaf) for word in one.words)
            own = (whole.operation.takes.name, *(one.name for one in whole.operation.tensors))
            distinct = len(set(said)) == len(said) and all(map(_NAME.fullmatch, said))
            called = tuple(zip(own, said, strict=True)) if distinct else ()  # mse loss(x, y)
            return Chain((replace(whole, words=(*whole.words, *said), called=called),))
        if isinstance(first, Leaf) and not rest and match((*steps, *first.words)):
            return self._remarked(steps, first)
        if isinstance(first, Leaf) and first.is_number:
            return self._applied((*steps, *self._settings(arguments)), Chain(()))  # leaky relu(0.2)
        return self._applied((*steps, *self._settings(rest)), self._chain(first))

    # -- meaning --

    def _remarked(self, name: tuple[str, ...], remark: Leaf) -> Chain:
        """GELU (exact), RMSNorm (eps 1e-3). Where the remark is a function too, as in gelu(tanh), it is refused."""
        plain = match(remark.words)
        if plain is not None and not is_value(remark.words):
            raise unordered(self.text)
        return self._applied((*name, *remark.words), Chain(()))

    def _applied(self, words: tuple[str, ...], to: Chain) -> Chain:
        found = match(words)
        if found is None or found.operation.form is not Form.FUNCTION:
            raise refused(words)
        return Chain((*to.clauses, found))

    def _settings(self, arguments: list[Node]) -> tuple[str, ...]:
        """What a call says beside its value, in words: (x, weight, bias) and (x, 0.2) and (x, eps=1e-3)."""
        leaves = [one for one in arguments if isinstance(one, Leaf)]
        if len(leaves) != len(arguments):
            raise unordered(self.text)
        numbers = [one.words[0] for one in leaves if one.is_number]
        tensors = [one.words[0] for one in leaves if len(one.words) == 1 and one.words[0] in _TENSORS]
        others = [word for one in leaves if self._setting(one) for word in one.words]
        if len(numbers) + len(tensors) + sum(map(self._setting, leaves)) != len(leaves):
            raise unordered(self.text)
        with_tensors = ["with", *" and ".join(tensors).split()] if tensors else []
        return (*with_tensors, *" to ".join(numbers).split(), *others)

    def _setting(self, leaf: Leaf) -> bool:
        return len(leaf.words) > 1 and leaf.words[0] in ("eps", "epsilon", "negative", "slope", "alpha", "approximate")

    def _chain(self, node: Node) -> Chain:
        """A node as steps on the value: x itself, or functions by name."""
        if isinstance(node, Chain):
            return node
        if is_value(node.words):
            return Chain(())
        if node.is_number or {"of", "it", *INPUT} & set(node.words):
            raise unordered(self.text)  # "log x + 1": of x, or of x + 1?
        clauses = read_phrase(node.words)
        if any(one.operation.form is not Form.FUNCTION and "add" not in one.words[1:] for one in clauses):
            raise unordered(self.text)  # "residual add" is a step, "residual" may be what is added
        return Chain(clauses)

    def _negated(self, node: Node) -> Node:
        if isinstance(node, Leaf) and node.is_number:
            return Leaf((f"-{node.words[0]}".removeprefix("--"),))
        return self._applied(("neg",), self._chain(node))

    def _refuse_split(self, left: Node, operator: str, right: Node) -> None:
        """ "temperature 2 * 3", "with weight + 1": of the number or weight, or of the result?"""
        if not (isinstance(left, Leaf) and isinstance(right, Leaf) and right.is_number and len(left.words) > 1):
            return
        last = left.words[-1]
        if Leaf((last,)).is_number or (last in ("weight", "weights", "bias") and "with" in left.words):
            text = as_said(self.text)
            after = f'"{last} {operator} {right.words[0]}"' if text == self.text else "a size"
            raise outside_grammar(
                f'the playbook cannot tell whether "{operator} {right.words[0]}" in "{text}" is a part of {after} or '
                f'done to the result; write one number, or join the steps by "then"'
            )

    def _combined(self, left: Node, operator: str, right: Node) -> Chain:
        self._refuse_split(left, operator, right)
        if isinstance(left, Leaf) and isinstance(right, (Chain, Leaf)) and self._is_operand(left):
            return self._turned(left, operator, right)
        chain = self._chain(left)
        if isinstance(right, Leaf) and not is_value(right.words):
            if found := match((*_VERBS[operator].split(), *right.words)):
                if found.operation.effect is Effect.WHOLE_ROW and chain.clauses:
                    raise unordered(self.text)  # whose mean?
                return Chain((*chain.clauses, found))
            if right.words[-1] == "scale":
                raise outside_grammar(
                    f'the playbook cannot tell if scale in "{self.text}" is a number or a vector; write a number, '
                    f'such as 0.125, or "scale vector"'
                )
            after = self._chain(right).clauses
            if operator == "+" and "(" not in self.tokens and _are_listed(chain.clauses, after):
                return Chain((*chain.clauses, *after))
            raise unordered(self.text)
        raise outside_grammar(
            f'the playbook reads a chain of steps on one value, and "{self.text}" has it in two places'
        )

    def _is_operand(self, leaf: Leaf) -> bool:
        """Whether the words are a number or a tensor, and no step by themselves."""
        if leaf.is_number:
            return True
        added, multiplied = match(("add", *leaf.words)), match(("multiply", "by", *leaf.words))
        return added is not None or multiplied is not None

    def _turned(self, operand: Leaf, operator: str, value: Node) -> Chain:
        """bias + f(x), 2 * x, 1 - x. The value must be plain to see: "bias + gelu" could be either order."""
        if isinstance(value, Leaf) and not is_value(value.words):
            raise unordered(self.text)
        chain = self._chain(value)
        if operator == "-" and operand.is_number:
            chain, operator = self._applied(("neg",), chain), "+"
        if operator not in ("+", "*"):
            raise unordered(self.text)
        found = match((*_VERBS[operator].split(), *operand.words))
        if found is None:
            raise unordered(self.text)
        return Chain((*chain.clauses, found))


def _are_listed(before: tuple[Clause, ...], after: tuple[Clause, ...]) -> bool:
    """ "LayerNorm + GELU", "matmul + bias + relu", "residual add + rmsnorm", as fused kernels are called."""
    leads = any(one.operation.leads or "add" in one.words[1:] for one in before)
    return leads and all(is_activation(one) or one.operation.leads for one in after)

"""Phrases and formulas as a chain of steps on one value: `gelu of layernorm`, `relu(x + bias)`, `rmsnorm times gate`.

A phrase is the words between operators and separators. In a formula everything but the value at hand is a number or a
tensor that an operation of the vocabulary brings; one with the value in two places is no chain, and is refused.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from tilewright.playbook.errors import NotUnderstood, outside_grammar
from tilewright.playbook.vocabulary import NAMED_OPERATIONS, WORDS, Effect, Form, NamedOperation

_INPUT = frozenset(("x", "input", "inputs"))
_VALUE = _INPUT | {"it", "tensor", "matrix", "result", "element", "elements", "values"}
_BEFORE_VALUE = frozenset(("of", "to", "on", "for", "from", "each", "every", "input", "tensor"))
_ARTICLES = frozenset(("a", "an", "the", "its"))
_START_WORDS = """
a an the i want need would like to me please compute computes computing calculate calculates apply applies do take
makes make write create generate give fused fuse fast efficient kernel op operation function that which for of cuda
gpu elementwise pointwise
"""
_JOINING_WORDS = """
of by with to from no or and on for in using each every affine parameters natural row value neg unit length norm
layer rms l2 euclidean exponential logarithm root
"""
_AT_START, _JOINING = frozenset(_START_WORDS.split()), frozenset(_JOINING_WORDS.split())
_AT_END = frozenset(
    ("kernel", "kernels", "op", "operation", "function", "activation", "please", "elementwise", "pointwise")
)
_TAKES_VALUE = frozenset(("scale", "multiply", "divide"))
_BEFORE_ACTIVATION = frozenset(("layernorm", "rmsnorm", "bias"))
_CLOSE = 0.75
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?"
_TOKEN = re.compile(rf" *(\*\*|{_NUMBER}|[a-z][a-z0-9]*|\S)")
_LEADING = re.compile(r"^(?:plus|minus|times|multiplied (?:by|with)|divided by|[+*/])(?= |[a-z\d])")
_VERBS = {"+": "add", "-": "subtract", "*": "multiply by", "/": "divide by"}
_OPERATORS = {*_VERBS, "^", "**", "(", ")", ","}
_TENSORS = frozenset(("weight", "bias", "gate"))
_POINTING_BACK = frozenset(("of", "for", "to", "which", "that"))  # "gelu, of layernorm"
_NORMS = frozenset(("layernorm", "rmsnorm"))


@dataclass(frozen=True)
class Clause:
    """One step: its operation, the numbers that were said, and the words."""

    operation: NamedOperation
    numbers: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def says(self) -> str:
        return self.operation.says.format(*self.numbers)


def _is_value(words: tuple[str, ...]) -> bool:
    """Whether the words stand for the value at hand."""
    kept = [word for word in words if word not in _AT_START]
    return bool(kept) and all(word in _VALUE for word in kept)


def match(words: tuple[str, ...]) -> Clause | None:
    """The one operation that these words name, all of them."""
    kept = tuple(word for word in words if word not in _ARTICLES)
    if len(kept) > 2 and kept[0] in _TAKES_VALUE and kept[1] in _VALUE and kept[2] == "by":
        kept = (kept[0], *kept[2:])  # "multiply x by 2"
    for operation in NAMED_OPERATIONS:
        found = operation.match(" ".join(kept))
        if found is not None:
            said = tuple(one for one in found.groups() if one is not None)
            numbers = tuple(_number(one) for one in said + operation.defaults[len(said) :])
            return Clause(operation, numbers, kept)
    return None


def read_phrase(words: tuple[str, ...]) -> tuple[Clause, ...]:
    """The steps of a phrase; none where it names the value at hand or is nothing but politeness."""
    kept = _trimmed(words)
    if not kept or _is_value(kept):
        return ()
    if found := match(kept):
        return (found,)
    if "of" in kept[1:-1]:  # "gelu of layernorm" is said from the outside in
        place = kept.index("of", 1)
        outer = match(kept[:place])
        if outer is not None and outer.operation.form is Form.FUNCTION:
            return (*read_phrase(kept[place + 1 :]), outer)
    for end in range(1, len(kept)):  # "layernorm gelu": only where no other reading is known
        first, second = match(kept[:end]), match(kept[end:])
        if first and second and first.operation.name in _BEFORE_ACTIVATION and _is_activation(second):
            return (first, second)
    raise _refused(kept)


def _is_activation(clause: Clause) -> bool:
    return clause.operation.form is Form.FUNCTION and clause.operation.effect is Effect.ELEMENTS


def _without_politeness(words: tuple[str, ...]) -> tuple[str, ...]:
    """Without "please compute the" and the like at the start."""
    while words and words[0] in _AT_START and match(words) is None:
        words = words[1:]
    return words


def _trimmed(words: tuple[str, ...]) -> tuple[str, ...]:
    """Without politeness at the start and "of x" or "kernel" at the end, as far as the rest is not an operation yet."""
    kept = list(_without_politeness(words))
    while kept and not match(tuple(kept)):
        if kept[-1] in _AT_END:
            kept.pop()
        elif len(kept) > 1 and kept[-1] in _VALUE:
            kept.pop()
            while kept and kept[-1] in _BEFORE_VALUE | _ARTICLES:
                kept.pop()
        else:
            break
    return tuple(kept)


def _number(text: str) -> str:
    return re.sub(r"e-0(\d)", r"e-\1", repr(float(text)))


# -- formulas --


@dataclass(frozen=True)
class Leaf:
    """Words without an operator, not yet known to be a step or an operand; or a number."""

    words: tuple[str, ...]

    @property
    def is_number(self) -> bool:
        return len(self.words) == 1 and re.fullmatch(rf"-?{_NUMBER}", self.words[0]) is not None


@dataclass(frozen=True)
class Chain:
    """Steps on the value at hand."""

    clauses: tuple[Clause, ...]


Node = Leaf | Chain


def read_formula(text: str, first: bool) -> tuple[Clause, ...]:
    """The steps of a part of a request. `first`: nothing comes before it, so that "x" is the value at hand."""
    text = _LEADING.sub(r"it \g<0>", text.strip())
    text = re.sub(r"(?<!soft )\bplus\b", "+", text)
    text = re.sub(r"\bminus\b", "-", text)
    text = re.sub(r"\btimes\b|\bmultiplied (?:by|with)\b", "*", text)
    text = re.sub(r"\bdivided by\b", "/", text)
    text = re.sub(r"([a-z]) ?[=:] ?(?=[-\d.a-z])", r"\1 ", text)  # eps=1e-3
    tokens = _tokens(text)
    if not first and _INPUT & set(tokens):
        raise outside_grammar(
            f'the playbook cannot tell whether x in "{text}" is the input or the result so far; leave x out after the '
            f"first step, or write brackets, such as gelu(layernorm(x))"
        )
    if not first and tokens and tokens[0] in _POINTING_BACK:
        raise unordered(text)
    if not _OPERATORS & set(tokens):
        return read_phrase(tuple(tokens))
    return _FormulaReader(tokens, text).read()


def _tokens(text: str) -> list[str]:
    """Words, numbers and operators; a minus sign that belongs to a number is a part of it, as in "add -1"."""
    found: list[str] = []
    place = 0
    while place < len(text.rstrip()):
        token = _TOKEN.match(text, place)
        assert token is not None  # \S takes anything but a space
        one, start = token[1], token.start(1)
        number = re.compile(_NUMBER).match(text, start + 1) if one == "-" else None
        apart = start == 0 or text[start - 1] in " (,"
        if number and apart and (not found or (found[-1].isalpha() and found[-1] not in {*_INPUT, "it"})):
            found.append("-" + number[0])
            place = number.end()
            continue
        if not re.match(r"[\w.]", one) and one not in _OPERATORS:
            raise outside_grammar(f'the playbook does not understand "{one}" in "{text}"')
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
            self._take()
            if self._take() != "2":
                raise unordered(self.text)
            node = self._applied(("square",), self._chain(node))
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
        steps = _without_politeness(name)
        if not steps:
            if len(arguments) > 1:
                raise unordered(self.text)
            return self._chain(arguments[0])
        first, *rest = arguments
        if isinstance(first, Leaf) and match((*steps, *first.words)):
            return self._remarked(steps, first)
        if isinstance(first, Leaf) and first.is_number:
            return self._applied((*steps, *self._settings(steps, arguments)), Chain(()))  # leaky relu(0.2)
        return self._applied((*steps, *self._settings(steps, rest)), self._chain(first))

    # -- meaning --

    def _remarked(self, name: tuple[str, ...], remark: Leaf) -> Chain:
        """GELU (exact), RMSNorm (eps 1e-3). Where the remark is a function too, as in gelu(tanh), it is refused."""
        plain = match(remark.words)
        if plain is not None and not _is_value(remark.words):
            raise unordered(self.text)
        return self._applied((*name, *remark.words), Chain(()))

    def _applied(self, words: tuple[str, ...], to: Chain) -> Chain:
        found = match(words)
        if found is None or found.operation.form is not Form.FUNCTION:
            raise _refused(words)
        return Chain((*to.clauses, found))

    def _settings(self, name: tuple[str, ...], arguments: list[Node]) -> tuple[str, ...]:
        """What a call says beside its value, in words: (x, weight, bias) and (x, 0.2) and (x, eps=1e-3)."""
        leaves = [one for one in arguments if isinstance(one, Leaf)]
        if len(leaves) != len(arguments):
            raise unordered(self.text)
        numbers = [one.words[0] for one in leaves if one.is_number]
        tensors = [one.words[0] for one in leaves if len(one.words) == 1 and one.words[0] in _TENSORS]
        others = [word for one in leaves if self._setting(one) for word in one.words]
        if len(numbers) + len(tensors) + sum(map(self._setting, leaves)) != len(leaves):
            raise unordered(self.text)
        plain = match(name)
        if numbers and plain is not None and plain.operation.effect is not Effect.ELEMENTS:
            if numbers != ["-1"]:
                raise outside_grammar(
                    f'the playbook does not understand {", ".join(numbers)} in "{self.text}": its steps go along each '
                    f"row, over the last dimension"
                )
            numbers = []
        with_tensors = ["with", *" and ".join(tensors).split()] if tensors else []
        return (*with_tensors, *" to ".join(numbers).split(), *others)

    def _setting(self, leaf: Leaf) -> bool:
        return len(leaf.words) > 1 and leaf.words[0] in ("eps", "epsilon", "negative", "slope", "alpha", "approximate")

    def _chain(self, node: Node) -> Chain:
        """A node as steps on the value: x itself, or functions by name."""
        if isinstance(node, Chain):
            return node
        if _is_value(node.words):
            return Chain(())
        if node.is_number or {"of", "it", *_INPUT} & set(node.words):
            raise unordered(self.text)  # "log x + 1": of x, or of x + 1?
        clauses = read_phrase(node.words)
        if any(one.operation.form is not Form.FUNCTION for one in clauses):
            raise unordered(self.text)
        return Chain(clauses)

    def _negated(self, node: Node) -> Node:
        if isinstance(node, Leaf) and node.is_number:
            return Leaf((f"-{node.words[0]}".removeprefix("--"),))
        return self._applied(("neg",), self._chain(node))

    def _combined(self, left: Node, operator: str, right: Node) -> Chain:
        if isinstance(left, Leaf) and isinstance(right, (Chain, Leaf)) and self._is_operand(left):
            return self._turned(left, operator, right)
        chain = self._chain(left)
        if isinstance(right, Leaf) and not _is_value(right.words):
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
            fused = operator == "+" and isinstance(left, Leaf) and chain.clauses and len(after) == 1
            if fused and chain.clauses[-1].operation.name in _NORMS and _is_activation(after[0]):
                return Chain((*chain.clauses, *after))  # "LayerNorm + GELU", as fused kernels are called
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
        if isinstance(value, Leaf) and not _is_value(value.words):
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


# -- refusals --


def _refused(words: tuple[str, ...]) -> NotUnderstood:
    """Quotes the first word that is not known; where all are, the phrase."""
    known = {*WORDS, *_JOINING, *_ARTICLES, *_VALUE}
    unknown = next((word for word in words if word not in known and not re.fullmatch(r"-?[\d.e-]+", word)), None)
    if unknown is None:
        return unordered(" ".join(words))
    near = difflib.get_close_matches(unknown, WORDS, 1, _CLOSE)
    within = f' in "{" ".join(words)}"' if len(words) > 1 else ""
    asked = f" (did you mean {near[0]}?)" if near else ""
    return outside_grammar(f'the playbook does not understand "{unknown}"{within}{asked}')


def unordered(text: str) -> NotUnderstood:
    """Words that are known, in an arrangement that is not, or that could mean two things."""
    return outside_grammar(
        f'the playbook cannot tell what "{text.strip()}" means; join steps by "then" in the order in which they are '
        "done, or write brackets, such as relu(x + bias)"
    )

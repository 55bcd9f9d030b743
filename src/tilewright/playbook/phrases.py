"""Phrases as steps: the words between operators and separators, such as `gelu of layernorm` or `matmul with bias`."""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass

from tilewright.playbook.dimension_words import LAST, Axis
from tilewright.playbook.errors import NotUnderstood, outside_grammar
from tilewright.playbook.named_operation import Effect, Form, NamedOperation
from tilewright.playbook.vocabulary import KNOWN, NAMED_OPERATIONS, WORDS, as_said, nearest_example, readings

INPUT = frozenset(("x", "input", "inputs"))
_VALUE_WORDS = "it tensor matrix result element elements values array image images activations logits scores"
_VALUE = INPUT | frozenset(_VALUE_WORDS.split())
_BEFORE_VALUE = frozenset(("of", "to", "on", "for", "from", "each", "every", "input", "tensor"))
_ARTICLES = frozenset(("a", "an", "the", "its"))
_START_WORDS = """
a an the i want need would like to me please compute computes computing calculate calculates apply applies do take
makes make write create generate give fused fuse fast efficient kernel op operation function that which for of cuda
gpu elementwise pointwise find get return returns perform performs run implement build optimized optimised simple
"""
_JOINING_WORDS = """
of by with to from no or and on for in using each every affine parameters natural row value neg unit length norm
layer rms l2 euclidean exponential logarithm root
"""
AT_START, _JOINING = frozenset(_START_WORDS.split()), frozenset(_JOINING_WORDS.split())
_AT_END = frozenset(
    ("kernel", "kernels", "op", "operation", "function", "activation", "please", "elementwise", "pointwise")
)
_CONNECTING = frozenset(("with", "vector", "by"))
_TAKES_VALUE = frozenset(("scale", "multiply", "divide"))
_ARITHMETIC = frozenset(("add", "sum", "subtract", "multiply", "divide"))
_LONGEST_LIST = 16  # words of steps that nothing joins
_CLOSE = 0.82
NUMBER_TEXT = r"(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?"


@dataclass(frozen=True)
class Clause:
    """One step: its operation, the numbers that were said, the words, the dimensions it goes over, and what the words
    call its tensors."""

    operation: NamedOperation
    numbers: tuple[str, ...]
    words: tuple[str, ...]
    axis: Axis = LAST
    called: tuple[tuple[str, str], ...] = ()  # by the operation's own names

    @property
    def says(self) -> str:
        called = dict(self.called)
        names = "|".join(one for one in called if not self.operation.pattern or one in "xy")  # others are words too
        said = self.operation.says.format(*self.numbers)
        return re.sub(rf"\b(?:{names})\b", lambda one: called[one[0]], said) if names else said


def is_value(words: tuple[str, ...]) -> bool:
    """Whether the words stand for the value at hand."""
    kept = [word for word in words if word not in AT_START]
    return bool(kept) and all(word in _VALUE for word in kept)


def says_nothing(word: str) -> bool:
    """Whether a word may be left out of what is read: politeness, or the value at hand."""
    return word in AT_START | _VALUE | _ARTICLES | _BEFORE_VALUE | _AT_END | _CONNECTING


def match(words: tuple[str, ...]) -> Clause | None:
    """The one operation that these words name, all of them."""
    kept = tuple(word for word in words if word not in _ARTICLES)
    if found := _matched(kept):
        return found
    if len(kept) > 2 and kept[0] in _TAKES_VALUE and kept[1] in {*_VALUE, "vector"} and kept[2] == "by":
        return _matched((kept[0], *kept[2:]))  # "multiply x by 2"
    return None


def _matched(kept: tuple[str, ...]) -> Clause | None:
    for operation in NAMED_OPERATIONS:
        found = operation.match(" ".join(kept))
        if found is not None:
            said = tuple(one for one in found.groups() if one is not None)
            said += operation.defaults[len(said) :]
            numbers = tuple(one if place < operation.whole else _number(one) for place, one in enumerate(said))
            return Clause(operation, numbers, kept)
    return None


def read_phrase(words: tuple[str, ...]) -> tuple[Clause, ...]:
    """The steps of a phrase; none where it names the value at hand or is nothing but politeness."""
    kept = _trimmed(words)
    if not kept or is_value(kept):
        return ()
    if found := match(kept):
        return (found,)
    if "of" in kept[1:-1]:  # "gelu of layernorm" is said from the outside in
        place = kept.index("of", 1)
        outer = match(kept[:place])
        if outer is not None and outer.operation.form is Form.FUNCTION:
            return (*read_phrase(kept[place + 1 :]), outer)
    if listed := _listed(kept):
        return listed
    raise refused(kept)


def _listed(words: tuple[str, ...]) -> tuple[Clause, ...]:
    """ "layernorm gelu", "matmul with bias", "conv batch norm relu": a step, and those that can only come after it."""
    for end in range(1, len(words)) if len(words) <= _LONGEST_LIST else ():
        first, joined = match(words[:end]), words[end] in ("with", "plus")
        if first is None or not (first.operation.leads or first.operation.name == "bias"):
            continue
        rest = words[end + joined :]
        whole = match(rest)
        after = (whole,) if whole else _listed(rest)
        if after and _follows(after[0], first, joined):
            return (first, *after)
    return ()


def _follows(second: Clause, first: Clause, joined: bool) -> bool:
    """Whether what is named right after the first, or "with" it, can only come after it."""
    leads = first.operation.leads or (first.operation.name == "bias" and not joined)
    return leads and (is_activation(second) or (joined and second.operation.form is Form.ACTION))


def is_activation(clause: Clause) -> bool:
    return clause.operation.form is Form.FUNCTION and clause.operation.effect is Effect.ELEMENTS


def without_politeness(words: tuple[str, ...]) -> tuple[str, ...]:
    """Without "please compute the" and the like at the start."""
    while words and words[0] in AT_START and match(words) is None:
        words = words[1:]
    return words


def _trimmed(words: tuple[str, ...]) -> tuple[str, ...]:
    """Without politeness at the start and "of x" or "kernel" at the end, as far as the rest is not an operation yet."""
    kept = list(without_politeness(words))
    while kept and not match(tuple(kept)):
        if kept[-1] in _AT_END:
            kept.pop()
        elif len(kept) > 1 and (kept[-1] in _VALUE or kept[-2:] in (["of", "vector"], ["a", "vector"])):
            kept.pop()
            while kept and kept[-1] in _BEFORE_VALUE | _ARTICLES:
                kept.pop()
        else:
            break
    return words if kept == ["add"] and len(words) > 1 else tuple(kept)  # "add x": to what?


def _number(text: str) -> str:
    if math.isinf(float(text)):
        raise NotUnderstood(f"{text} is more than any element can be; write a smaller number")
    return re.sub(r"e-0(\d)", r"e-\1", repr(float(text)))


# -- refusals --


def refused(words: tuple[str, ...]) -> NotUnderstood:
    """Quotes the first word that is not known; where all are, the phrase."""
    text = as_said(" ".join(words))
    if several := readings(text):
        return outside_grammar(f'"{text}" could be {several}; say which')
    known = {*KNOWN, *_JOINING, *_ARTICLES, *_VALUE, "transposed", "convolution"}  # the last as `as_said` has them
    unknown = next((word for word in text.split() if word not in known and not re.fullmatch(r"-?[\d.e-]+", word)), None)
    if unknown is None:
        return unordered(text)
    operand = len(unknown) == 1 and (len(words) == 1 or words[0] in _ARITHMETIC)
    near = difflib.get_close_matches(unknown, WORDS, 1, _CLOSE)
    within = f' in "{text}"' if len(words) > 1 else ""
    asked = f" (did you mean {near[0]}?)" if near else ""
    return outside_grammar(
        f'the playbook does not understand "{unknown}"{within}{asked}',
        near="" if near else "x + y" if operand else nearest_example(text),
    )


def unordered(text: str) -> NotUnderstood:
    """Words that are known, in an arrangement that is not, or that could mean two things."""
    if several := readings(text.strip()):
        return outside_grammar(f'"{as_said(text.strip())}" could be {several}; say which')
    return outside_grammar(
        f'the playbook cannot tell what "{as_said(text.strip())}" means; join steps by "then" in the order in which '
        "they are done, or write brackets, such as relu(x + bias)"
    )

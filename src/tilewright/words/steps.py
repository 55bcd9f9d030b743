"""The steps of a request: the operations and options that its tokens name, and the order in which they are done."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tilewright.words.catalogue import Name, Operation, names, vocabulary
from tilewright.words.errors import NotUnderstood, unread
from tilewright.words.text import ARTICLES, joined, listed
from tilewright.words.tokens import Token

THEN = listed("then ; -> . | ! ? followed finally afterwards")
_BACK = listed("of on after from over to")
_MODIFIERS = ("pad", "pad2d", "reflect_pad", "weight_norm", "row_absmax", "standardize")  # "conv with reflect padding"
NEGATIONS = listed("no not without except instead unless never excluding skip skipping non")
_LONGEST = 8  # words of a phrase
LEFT_OUT = "not understood and left out"


@dataclass
class Mention:
    """Tokens that name an operation or an option of one."""

    start: int
    end: int
    names: tuple[Name, ...]


@dataclass
class Step:
    """An operation as it was said."""

    operation: Operation
    start: int = 0
    end: int = 0
    options: list[str] = field(default_factory=list)
    numbers: dict[str, str] = field(default_factory=dict)
    axis: Any = None
    axis_said: str = ""
    called: tuple[str, ...] = ()

    @property
    def chosen(self) -> Operation:
        return self.operation.with_options(tuple(self.options))

    def takes_number(self, name: str) -> bool:
        own = name in self.operation.params or name in self.operation.numbers
        return own or any(name in one.params or name in one.numbers for one in self.operation.options)

    def give(self, name: str, value: str) -> None:
        """A number that was said, which may ask for an option."""
        if self.numbers.get(name, value) != value:
            raise unread(f"{name.replace('_', ' ')} is said to be {self.numbers[name]} and {value}")
        self.numbers[name] = value
        known = {**self.chosen.params, **self.chosen.numbers}
        asked = (one for one in self.operation.options if name in {**one.params, **one.numbers})
        self.options += [one.name for one in itertools.islice(asked, 1)] if name not in known else []


@dataclass(frozen=True)
class Request:
    """What the words say: steps, sizes, dtypes, and what was noticed on the way."""

    steps: tuple[Step, ...] = ()
    sizes: tuple[tuple[str, str], ...] = ()  # roles and numbers
    shapes: tuple[tuple[tuple[str, ...], tuple[int, ...]], ...] = ()  # with the names of the tensors that have them
    layout: tuple[str, ...] = ()  # the names of the first tensor's dimensions
    dtype: str = ""
    to: str = ""  # the dtype of the result
    notes: tuple[str, ...] = ()
    inplace: bool = False
    settings: tuple[tuple[str, str], ...] = ()  # numbers of a formula by their names
    joint: bool = False  # the last steps are results beside each other


def phrase_of(step: Step) -> str:
    """A request for a step with its options: "tanh gelu"."""
    options = [one.phrases[0] for one in step.operation.options if one.name in step.options and one.phrases]
    return " ".join((*options, step.operation.phrases[0])) if options else step.operation.request


def meaning(steps: tuple[Step, ...]) -> str:
    """What the steps compute, with their numbers in their places."""
    found = []
    for step in steps:
        one = step.chosen
        texts, text = {**one.slots, **one.params, **one.numbers, **step.numbers}, one.says
        for _ in range(2):
            text = re.sub(r"\{(\w+)\}", partial(_filled, texts), text)
        found.append(text)
    return ", then ".join(found)


def _filled(texts: dict[str, str], name: re.Match[str]) -> str:
    return str(texts.get(name[1], name[1]))


def words_in(some: list[Token], start: int, end: int) -> list[str]:
    """The texts of tokens without articles."""
    return [one.text for one in some[max(0, start) : end] if one.text not in ARTICLES]


def mentions_of(some: list[Token]) -> list[Mention]:
    """What the tokens name, by the longest phrases. An option belongs to an operation that is named too."""
    whole: set[str] = set()
    place = 0
    while place < len(some):
        here = [(end, one) for end, found in phrases_at(some, place) for one in found if one.whole]
        last = max((end for end, _ in here), default=place + 1)
        whole |= {one.operation for end, one in here if end == last}
        place = last
    mentions: list[Mention] = []
    place = 0
    while place < len(some):
        usable = [
            (end, chosen)
            for end, found in phrases_at(some, place)
            if (chosen := tuple(one for one in found if one.whole or one.operation in whole))
        ]
        negated = place and some[place - 1].text in ("no", "without", "not") and not some[place].text.isdigit()
        if not usable or negated:
            place += 1
            continue
        end, chosen = usable[-1]
        own = tuple(one for one in chosen if one.option and _follows(some, mentions, one, place))
        mentions.append(Mention(place, end, own or chosen))
        place = end
    return mentions


def _follows(some: list[Token], found: list[Mention], name: Name, place: int) -> bool:
    """Whether the operation of an option is named just before it, as in "gelu with tanh" and not "gelu, then tanh"."""
    before = [one for one in found if any(n.operation == name.operation for n in one.names)]
    return bool(before) and not {t.text for t in some[before[-1].end : place]} & {*THEN, "+", "before"}


def phrases_at(some: list[Token], place: int) -> list[tuple[int, tuple[Name, ...]]]:
    """The phrases that begin at a place, the longest last; numbers match `#` or themselves, sizes are skipped."""
    keys, solid, known = [""], 0, names()
    found: list[tuple[int, tuple[Name, ...]]] = []
    for end in range(place, len(some)):
        one = some[end]
        if solid and one.text == "->" and {some[end - 1].kind, some[end - 2].kind} & {"layout"}:
            keys = [f"{key}to" for key in keys]
            continue
        if (
            one.kind in ("size", "dtype")
            or (one.kind == "word" and one.text in ARTICLES)
            or one.text in ("+", "&")
            or (one.text == "/" and end + 1 < len(some) and some[end + 1].kind == "word")
        ):
            if not solid:
                break
            continue
        if one.kind == "mark" or solid == _LONGEST:
            break
        parts = ("#", one.text) if one.kind == "number" else (one.stem or joined(one.text),)
        longer = [key + part for key in keys for part in parts]
        may_skip = solid > 0 and one.kind in ("shape", "names", "axis")
        keys = [*longer, *keys] if may_skip else longer
        solid += not may_skip
        if here := tuple(dict.fromkeys(name for key in longer for name in known.get(key, ()))):
            found.append((end + 1, here))
    return found


def choices(found: list[Mention]) -> Iterator[tuple[Mention, ...]]:
    for chosen in itertools.product(*(one.names for one in found)):
        yield tuple(Mention(one.start, one.end, (name,)) for one, name in zip(found, chosen, strict=True))


def of_entry(found: list[Mention], entry: str) -> tuple[tuple[Mention, ...], str, tuple[Mention, ...]]:
    """The mentions of one entry and its options, the entry, and the mentions of others."""
    own = [(one, [n for n in one.names if n.operation == entry]) for one in found]
    mine = tuple(Mention(one.start, one.end, (some[0],)) for one, some in own if some)
    return mine, entry, tuple(one for one, some in own if not some)


# -- order --


def ordered(some: list[Token], steps: list[Step]) -> list[Step]:
    """The steps in the order in which they are done: "gelu of layernorm" is layernorm, then gelu."""
    found: list[Step] = []
    run: list[Step] = []
    for place, one in enumerate(steps):
        between = words_in(some, steps[place - 1].end, one.start) if place else []
        if place:
            _check_order(some, steps[place - 1], one, between, any(before.operation.leads for before in steps[:place]))
        words = [t for t in between if t not in ("output", "result", "outputs", "applied")]
        applies = bool(run) and (
            some[max(0, run[-1].start - 1)].text in ("apply", "applying") or acts(run[-1]) or "applied" in between
        )
        back = len(words) == 1 and words[0] in _BACK and (words != ["to"] or applies)
        if run and (back or between[:1] == ["after"]) and not THEN & set(between):
            run.append(one)
            continue
        found += run[::-1]
        run = [one]
    found += run[::-1]
    if len(found) > 1 and "before" in words_in(some, 0, steps[0].start):
        found[:2] = found[1::-1]
    return found


def _check_order(some: list[Token], one: Step, other: Step, between: list[str], fused: bool) -> None:
    """Refuses neighbours whose order or meaning cannot be told: "sigmoid and tanh", "mean absolute value"."""
    if "first" in between or between == [",", "of"]:
        raise _unordered(some, one, other)
    span = some[one.end : other.start]
    named = [t.text for t in span if t.kind == "names" or t.text == "x"]
    factor = {"times", "*", "multiplied"} & set(between)
    anew = {*THEN} & set(between) and between[-1:] == named[-1:] == ["x"]
    if named and (anew or factor or {"plus", "+", "minus"} & set(between)):
        raise _unordered(some, one, other)
    parted = {*THEN, ",", "after", "before", ":", "(", "+"} & set(between)
    turned = other.operation.name in ("transpose", "flip", "reverse") and not parted and not {"and"} & set(between)
    with_modifier = between[-1:] == ["with"] and other.operation.name in _MODIFIERS
    if turned or with_modifier or (not between and other.operation.kind == "reduce"):
        raise _unordered(some, one, other)
    if parted - {"+"}:
        return
    plain = [is_plain(step) for step in (one, other)]
    joint = one.operation.kind == other.operation.kind == "reduce"
    reads = not between or (named and len(between) < 3 and between[-1] == named[-1])
    if (
        (reads and (named or not acts(one)) and not one.operation.leads)
        or factor
        or (between and between[0] == "but")
        or between == ["by"]
        or (between[:1] == ["of"] and named and acts(other))  # "RMSNorm of x plus residual"
        or (between == ["of"] and one.operation.name in ("center", "minus_max", "over_sum", "over_max"))
        or (between in (["+"], ["plus"]) and not fused and not acts(other))
        or (between == ["and"] and not joint and (plain[0] or other.operation.kind == "reduce"))
        or (between[:1] == ["with"] and not one.operation.leads)
        or (between[:1] == ["with"] and len(between) > 1 and other.operation.kind == "row")
        or (not between and acts(other) and not one.operation.leads)
        or (between[:1] == ["with"] and one.operation.takes.startswith("query[") and not acts(other))
    ):
        raise _unordered(some, one, other)


def _unordered(some: list[Token], one: Step, other: Step) -> NotUnderstood:
    ask = f'"{one.operation.request} then {other.operation.request}"'
    said = " ".join(t.text for t in some[one.start : other.end])
    return unread(
        f'the order of the steps in "{said}" cannot be told; join them by "then", such as {ask}, '
        "or write a formula with brackets"
    )


def is_joint(some: list[Token], said: list[Step], steps: list[Step]) -> bool:
    """Two statistics with "and" between are two results."""
    if len(said) < 2 or any(one.operation.kind != "reduce" for one in steps[-2:]):
        return False
    return bool({"and", ",", "&"} & set(words_in(some, said[-2].end, said[-1].start)))


def tensors() -> set[str]:
    return set(vocabulary()["tensors"].split())


def is_plain(step: Step) -> bool:
    """A function of one tensor, without numbers, that is the name of no layer."""
    one = step.operation
    single = len(one.arguments) == 1 and not one.numbers and one.gives is None
    return not one.leads and one.kind in ("map", "row") and single


def acts(step: Step) -> bool:
    """Something done with another tensor or a number: add bias, scale by 2."""
    one = step.operation
    return not one.leads and one.kind == "map" and (len(one.arguments) > 1 or bool(one.numbers))

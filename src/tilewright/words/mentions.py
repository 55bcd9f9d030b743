"""What a request says, and what its tokens name."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tilewright.words.catalogue import Name, Operation, fillers, hints, names, operations, vocabulary
from tilewright.words.errors import unread
from tilewright.words.text import ARTICLES, joined, stem, words_of
from tilewright.words.tokens import Token

NEGATIONS = frozenset(
    ("no", "not", "without", "except", "instead", "unless", "never", "excluding", "skip", "skipping", "non", "zero")
)
_LONGEST = 8


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
    start: int
    end: int
    options: list[str] = field(default_factory=list)
    numbers: dict[str, str] = field(default_factory=dict)
    axis: Any = None
    axis_said: str = ""
    called: tuple[str, ...] = ()

    def takes_number(self, name: str) -> bool:
        return name in {**self.operation.params, **self.operation.numbers} or any(
            name in {**one.params, **one.numbers} for one in self.operation.options
        )

    def give(self, name: str, value: str) -> None:
        """A number that was said, which may ask for an option."""
        if self.numbers.get(name, value) != value:
            raise unread(f"{name.replace('_', ' ')} is said to be {self.numbers[name]} and {value}")
        self.numbers[name] = value
        for one in self.operation.options:
            known = name in {**self.operation.params, **self.operation.numbers}
            if not known and name in {**one.params, **one.numbers} and one.name not in self.options:
                self.options.append(one.name)


@dataclass(frozen=True)
class Request:
    """What the words say: steps, sizes, dtypes, and what was noticed on the way."""

    steps: tuple[Step, ...]
    sizes: tuple[tuple[str, str], ...] = ()  # roles and numbers
    shapes: tuple[tuple[tuple[str, ...], tuple[int, ...]], ...] = ()  # with the names of the tensors that have them
    layouts: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()
    dtype: str = ""
    to: str = ""  # the dtype of the result
    notes: tuple[str, ...] = ()
    inplace: bool = False
    settings: tuple[tuple[str, str], ...] = ()  # numbers of a formula by their names
    joint: bool = False  # the last steps are results beside each other


def mentions(some: list[Token]) -> list[Mention]:
    """What the tokens name, by the longest phrases; the first of those that overlap.

    An option belongs to an operation that is named too.
    """
    whole: set[str] = set()
    place = 0
    while place < len(some):
        here = [(end, one) for end, names_ in phrases_at(some, place) for one in names_ if one.whole]
        last = max((end for end, _ in here), default=place + 1)
        whole |= {one.operation for end, one in here if end == last}
        place = last
    found: list[Mention] = []
    place = 0
    while place < len(some):
        usable = [
            (end, chosen)
            for end, names_ in phrases_at(some, place)
            if (chosen := tuple(one for one in names_ if one.whole or one.operation in whole))
        ]
        if not usable or (
            place and some[place - 1].text in ("no", "without", "not") and not some[place].text.isdigit()
        ):
            place += 1
            continue
        end, chosen = usable[-1]
        own = tuple(one for one in chosen if one.option and _is_near(some, found, one, place))
        chosen = own or chosen
        found.append(Mention(place, end, chosen))
        place = end
    return found


def _is_near(some: list[Token], found: list[Mention], name: Name, place: int) -> bool:
    """Whether the operation of an option is named just before it, as in "gelu with tanh" and not "gelu, then tanh"."""
    before = [one for one in found if any(n.operation == name.operation for n in one.names)]
    return bool(before) and not {one.text for one in some[before[-1].end : place]} & {"then", "->", "+", ";", "before"}


def phrases_at(some: list[Token], place: int) -> list[tuple[int, tuple[Name, ...]]]:
    """The phrases that begin at a place, the longest last; numbers match `#` or themselves, sizes are skipped."""
    keys, solid, known = [""], 0, names()
    found: list[tuple[int, tuple[Name, ...]]] = []
    for end in range(place, len(some)):
        one = some[end]
        if one.kind == "names" and solid:
            keys += [key + joined(one.text) for key in keys]
            here = tuple(dict.fromkeys(name for key in keys for name in known.get(key, ())))
            if here and here != (found[-1][1] if found else ()):
                found.append((end + 1, here))
            continue
        if one.kind in ("axis", "size", "names") or (one.kind == "word" and one.text in ARTICLES):
            if not solid:
                break
            continue
        if solid and one.text in ("+", "&", "/"):
            continue
        if one.kind not in ("word", "number", "shape", "layout") or solid == _LONGEST:
            break
        solid += 1
        parts = ("#", one.text) if one.kind == "number" else (one.stem or "".join(re.findall(r"\w+", one.text)),)
        longer = [key + part for key in keys for part in parts]
        here = tuple(dict.fromkeys(name for key in longer for name in known.get(key, ())))
        keys = [*longer, *keys] if one.kind == "shape" and end > place else longer  # "multiply a 512x64 matrix by ..."
        if here:
            found.append((end + 1, here))
    return found


@cache
def explained(name: str) -> frozenset[str]:
    """The stems of an entry and of what it assumes, its options apart from those that change what it computes."""
    return hints(name) | {stem(word) for one in operations()[name].arguments for word in words_of(one.name)}


@cache
def operative() -> frozenset[str]:
    """The stems that say what is computed: those of names, options, dimensions and sizes; and negations."""
    told, found = vocabulary(), set(NEGATIONS)
    texts = [*told["axes"].values(), *told["sizes"].values(), *told["dtypes"].values()]
    for one in operations().values():
        texts += [*one.phrases, *(phrase for o in one.options for phrase in (*o.phrases, *o.alone))]
    found |= {stem(word) for text in texts for word in words_of(text)}
    return frozenset(found - fillers() - {stem(word) for word in told["asides"].split()})


def meaning(steps: tuple[Step, ...] | list[Step]) -> str:
    return ", then ".join(map(_said, steps))


def _said(step: Step) -> str:
    """What a step computes, with its numbers in their places."""
    one = step.operation.with_options(tuple(step.options))
    texts = {**one.slots, **one.params, **one.numbers, **step.numbers}
    text = one.says
    for _ in range(2):
        text = re.sub(r"\{(\w+)\}", lambda name: str(texts.get(name[1], name[1])), text)
    return text


def replace_names(mention: Mention, name: Name) -> Mention:
    return Mention(mention.start, mention.end, (name,))


def choices(found: list[Mention]) -> Iterator[tuple[Name, ...]]:
    return itertools.product(*(one.names for one in found))

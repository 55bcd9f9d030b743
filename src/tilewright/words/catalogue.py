"""The catalogue of operations: what people call each, its reference in PyTorch, and what is assumed when unsaid.

The entries are in the TOML files beside this module, whose format docs/words.md describes.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any

from tilewright.records import DType
from tilewright.words.text import joined, stem, stems, words_of

FILES = ("rows", "elements", "matrices", "images", "attention", "moves", "losses", "models", "gradients", "science")
_DESCRIBED = ("images", "losses", "models", "attention", "moves", "gradients", "science")
_TENSOR = re.compile(r"\s*(\w+)(?:: ?(\w+))?\[([^\]]*)\](?: = ([^,]+))?\s*(?:,|$)")


@dataclass(frozen=True)
class Argument:
    """A tensor that an operation takes. `...` among its dimensions stands for any that come before the others."""

    name: str
    dimensions: tuple[str, ...]
    dtype: DType | None = None  # where it is not that of the elements
    values: str = ""  # how it is drawn, in the words of task.toml


@dataclass(frozen=True)
class Option:
    """A variant that a phrase or a number asks for. Its `changes` replace fields of the operation."""

    name: str
    phrases: tuple[str, ...] = ()
    set: dict[str, str] = field(default_factory=dict)  # values of the operation's slots
    adds: str = ""  # tensors beside those of the operation
    drops: tuple[str, ...] = ()  # tensors that it does without
    params: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, str] = field(default_factory=dict)
    assume: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()  # phrases that name the operation too
    changes: dict[str, Any] = field(default_factory=dict)

    def applied_to(self, operation: Operation) -> Operation:
        """The operation with this option. An assumption "no: ..." replaces what the operation says of x."""
        replaced = any(one.startswith("no: ") for one in self.assume)
        kept = [one for one in operation.assume if not (replaced and one.startswith("x is ["))]
        merged = {
            "takes": ", ".join(filter(None, (operation.takes, self.adds))),
            "params": operation.params | self.params,
            "numbers": operation.numbers | self.numbers,
            "slots": operation.slots | self.set | dict.fromkeys(self.drops, "None"),
            "assume": (*kept, *(one.removeprefix("no: ") for one in self.assume)),
        }
        return replace(operation, **merged | self.changes)


@dataclass(frozen=True)
class Operation:
    """An entry. In `code` {name} is a tensor, number or slot, {dim} the dimension it goes over, {=...} arithmetic."""

    name: str
    says: str
    code: str
    takes: str = "x[...]"
    gives: str | None = None  # the dimensions of the result; those of the first tensor where it is None
    phrases: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()  # what the parameters of a call are named, where they are not the tensors in order
    kind: str = "map"  # row: needs whole rows; reduce: one element per row; scan
    title: str = ""  # of the function, where it is not the name
    params: dict[str, str] = field(default_factory=dict)  # numbers that are parameters of the reference
    numbers: dict[str, str] = field(default_factory=dict)  # numbers that stand in its code
    bare: tuple[str, ...] = ()  # the numbers that may be said without a name, in order
    slots: dict[str, str] = field(default_factory=dict)
    options: tuple[Option, ...] = ()
    elsewhere: dict[str, Any] = field(default_factory=dict)  # changes where it does not go over the last dimension
    image: dict[str, Any] = field(default_factory=dict)  # changes after an operation on images
    axis: str = ""  # "last": it goes over that only; "all": over all elements where nothing else is said
    assume: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()  # phrases that say what it does anyway
    absent: tuple[str, ...] = ()  # what it goes without, so that "no ..." says nothing new
    dtype: str = ""
    positive: str = ""  # "needs" or "makes" positive elements
    results: tuple[str, ...] = ()
    multiple: dict[str, str] = field(default_factory=dict)  # of what a dimension must be a multiple
    needs: tuple[str, ...] = ()  # what must hold of its numbers and sizes
    leads: bool = False  # the name of a layer: what is named after it comes after it
    describes: bool = False  # what is named after it may say how it works
    ask: str = ""

    @property
    def request(self) -> str:
        """A request that has this reading."""
        texts = {**self.slots, **self.params, **self.numbers}
        return self.ask or re.sub(r"\{(\w+)\}", lambda one: texts.get(one[1], one[1]), self.says.lower())

    @property
    def goes_over(self) -> bool:
        return any(place in self.code for place in ("{dim", "{kept}", "{axis}"))

    @property
    def arguments(self) -> tuple[Argument, ...]:
        sides = 3 if "depth" in self.takes else 2 if "height" in self.takes else 1
        slots = {"taps": ", ".join(["taps"] * sides), **self.slots}
        return parsed_arguments(re.sub(r"\{(\w+)\}", lambda one: slots.get(one[1], one[1]), self.takes))

    def with_options(self, names: tuple[str, ...]) -> Operation:
        found = self
        for option in self.options:
            found = option.applied_to(found) if option.name in names else found
        return found

    def rivals(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Options that each bring code of their own, of which only one can be written."""
        codes = {one.name: one.changes["code"] for one in self.options if one.name in names and "code" in one.changes}
        return tuple(codes) if len(set(codes.values())) > 1 else ()


def parsed_arguments(text: str) -> tuple[Argument, ...]:
    found = []
    for name, dtype, inside, values in _TENSOR.findall(text):
        dimensions = tuple(part.strip() for part in inside.split(",") if part.strip())
        found.append(Argument(name, dimensions, DType(dtype) if dtype else None, values.strip()))
    return tuple(found)


def expanded(pattern: str) -> Iterator[str]:
    """The phrases of a pattern, its innermost choice first: "layer (norm|normalization)" is two."""
    found = re.search(r"\(([^()]*)\)", pattern)
    if found is None:
        yield " ".join(pattern.split())
        return
    for one in found[1].split("|"):
        yield from expanded(pattern[: found.start()] + one + pattern[found.end() :])


def _field(name: str, value: Any) -> Any:
    """A field as the operation has it, from what the TOML file says."""
    if name in ("phrases", "hints", "absent", "alone"):
        patterns = filter(None, (one.strip() for one in value.split(";")))
        return tuple(dict.fromkeys(phrase for one in patterns for phrase in expanded(one)))
    if name in ("calls", "bare", "results", "drops"):
        return tuple(value.split())
    if name in ("assume", "needs"):
        return tuple(value) if isinstance(value, list) else (value,) if value else ()
    if name in ("params", "numbers"):
        return {key: str(number) for key, number in value.items()}
    if name in ("elsewhere", "image"):
        return {key: _field(key, one) for key, one in value.items()}
    return value


def _option(name: str, table: dict[str, Any]) -> Option:
    table = {"phrases" if key == "names" else key: value for key, value in table.items()}
    read = {key: _field(key, value) for key, value in table.items()}
    own = {one.name for one in fields(Option)}
    changes = {key: value for key, value in read.items() if key not in own}
    return Option(name, **{key: value for key, value in read.items() if key in own}, changes=changes)


@cache
def operations() -> dict[str, Operation]:
    found: dict[str, Operation] = {}
    for file in FILES:
        text = files("tilewright.words").joinpath(f"{file}.toml").read_text(encoding="utf-8")
        for name, table in tomllib.loads(text).items():
            assert name not in found, name
            plain = name.replace("_", " ")
            options = tuple(_option(one, inside) for one, inside in table.pop("with", {}).items())
            table = {"says": plain, "phrases": table.pop("names", plain), **table}
            read = {key: _field(key, value) for key, value in table.items()}
            found[name] = Operation(name, options=options, describes=file in _DESCRIBED, **read)
    return found


@cache
def vocabulary() -> dict[str, Any]:
    """What is no operation: fillers, connectors, the names of sizes and numbers, and spellings."""
    text = files("tilewright.words").joinpath("vocabulary.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@dataclass(frozen=True)
class Name:
    """What a phrase names: an operation, or one of its options."""

    operation: str
    option: str = ""
    whole: bool = True  # it names the operation itself


@cache
def names() -> dict[str, tuple[Name, ...]]:
    """By a phrase without its blanks, in stems."""
    found: dict[str, list[Name]] = {}
    for operation in operations().values():
        own = [joined(phrase) for phrase in operation.phrases]
        named = [(key, Name(operation.name)) for key in own]
        for option in operation.options:
            for key in map(joined, option.phrases):
                whole = any(len(core) > 2 and core in key for core in own)
                named.append((key, Name(operation.name, option.name, whole)))
            named += [(joined(phrase), Name(operation.name, option.name)) for phrase in option.alone]
        for key, name in named:
            if key.strip("#0123456789") and name not in found.setdefault(key, []):
                found[key].append(name)
    return {key: tuple(some) for key, some in found.items()}


@cache
def fillers() -> frozenset[str]:
    return frozenset(stem(one) for one in vocabulary()["fillers"].split())


_TELLING = frozenset(
    ("first", "second", "last", "both", "two", "already", "high", "low")
)  # fillers that matter within a phrase


def contents(phrase: str) -> frozenset[str]:
    """The stems of a phrase that say something."""
    return stems(phrase) - (fillers() - _TELLING)


@cache
def hints(name: str) -> frozenset[str]:
    """The stems that an entry uses of itself: whoever says them says what the entry does anyway."""
    one = operations()[name]
    tensors = (argument.name for argument in one.arguments)
    negations = stems("no not without except instead unless never")
    return stems(one.says, *one.phrases, *one.hints, *one.assume, *tensors) - negations


@cache
def harmless() -> frozenset[str]:
    """The stems of nouns that say where an operation is used or of what: tensors, dimensions, models."""
    told = vocabulary()
    sizes = [phrases for role, phrases in told["sizes"].items() if role in told["bound"]]
    texts = [*told["axes"].values(), *sizes, *told["dimensions"], told["asides"], told["models"]]
    return stems(*texts, told["values"], told["tensors"], told["connectors"])


@cache
def operative() -> frozenset[str]:
    """The stems that say what is computed: those of the names of operations and options."""
    phrases = [phrase for one in operations().values() for phrase in one.phrases]
    phrases += [p for one in operations().values() for o in one.options for p in (*o.phrases, *o.alone)]
    single = {joined(phrase) for one in operations().values() for phrase in one.phrases}
    return (stems(*phrases) - harmless() | single | stems(vocabulary()["changing"])) - fillers()


@cache
def _index() -> tuple[list[tuple[Operation, frozenset[str], frozenset[str]]], dict[str, float]]:
    """The stems and joined phrases of each entry; and the weight of each stem, high where few entries have it."""
    some = operations().values()
    entries = [(o, stems(o.says, *o.phrases) - fillers(), frozenset(map(joined, o.phrases))) for o in some]
    counts = Counter(word for _, own, _ in entries for word in own)
    return entries, {word: math.log(1 + len(entries) / count) for word, count in counts.items()}


def nearest(words: str, n: int = 3) -> tuple[Operation, ...]:
    """The entries that share most with the words, the nearest first; none where they share little or nothing."""
    said = [stem(word) for word in words_of(words)]
    runs = {"".join(said[a:b]) for a in range(len(said)) for b in range(a + 1, min(len(said), a + 7) + 1)}
    content, (entries, weights) = set(said) - fillers(), _index()
    found = []
    for one, own, phrases in entries:
        named = max(map(len, phrases & runs), default=0)
        shared = content & own - harmless()
        if named or 3 * len(shared) >= len(content):
            found.append((named + sum(weights[word] for word in shared) / math.sqrt(1 + len(own)), one))
    found.sort(key=lambda pair: -pair[0])
    return tuple(one for score, one in found[:n] if score > 1)

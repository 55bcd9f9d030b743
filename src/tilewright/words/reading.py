"""From the tokens of a request to its steps: what is named, what is said of it, and what becomes of every other word.

Several ways to take the words are tried: as a chain of the operations that they name, and as a description of one
entry. The one that leaves the least is taken. A number, a negation or a word that may change what is computed is never
left out; other words are listed as not used.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.records import TensorSpec
from tilewright.words.catalogue import (
    Name,
    Operation,
    contents,
    fillers,
    harmless,
    hints,
    names,
    nearest,
    operations,
    operative,
    parsed_arguments,
    vocabulary,
)
from tilewright.words.errors import NotUnderstood, Reading, SeveralReadings, unread
from tilewright.words.text import ARTICLES, joined, stem, stems, words_of
from tilewright.words.tokens import Token, number_of

_MOST, _MOST_TOKENS, _LONGEST, _WINDOW, _MOST_STEPS = 24, 120, 8, 9, 12
_THEN = frozenset(("then", ";", "->", ".", "|", "!", "?", "followed", "finally", "afterwards"))
_NEGATIONS = frozenset("no not without except instead unless never excluding skip skipping non zero".split())
_MODIFIES = frozenset("with using except but plus minus times only".split())
_MARKS = frozenset(",.;:()[]{}!?'\"`/&|-+*=%#~$@^<>…_\\") | {"->"}
_ASKS = frozenset("also too both additionally well return returns returning gimme".split())  # a result that is asked for
_NUMBERS = "zero one two three four five six seven eight nine ten".split()
_COUNTS = frozenset((*_NUMBERS, "twice", "double", "triple", "half", "quarter"))
_OF_SHAPE = frozenset("( [ is are : = of shape given size has with layout both have".split())
_BACK = frozenset("of on after from over to".split())
_PAIRS = {"row_sum": "add", "difference": "subtract", "row_prod": "multiply", "row_max": "maximum"}
_PAIRS["row_min"] = "minimum"
_SIZED = ("size", "shape", "dtype")


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
        return any(name in {**one.params, **one.numbers} for one in (self.operation, *self.operation.options))

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


def read_tokens(words: str, some: list[Token], given: Mapping[str, TensorSpec]) -> Request:
    """The one reading of the tokens; raises `NotUnderstood`, or `SeveralReadings`."""
    if len(some) > _MOST_TOKENS:
        raise unread("the request is too long; say it in fewer words")
    found = _mentions(some)
    tries = [_Attempt(some, given, chosen) for chosen in itertools.islice(_choices(found), _MOST)]
    readings, problem = _readings(tries)
    complete = any(not left for _, _, left in readings.values())
    entries = dict.fromkeys(name.operation for one in found for name in one.names)
    entries |= {} if complete else dict.fromkeys(one.name for one in nearest(words, 8) if _describes(some, one))
    alone, _ = _readings([_Attempt(some, given, *_of_entry(found, one)) for one in entries])
    readings |= {key: one for key, one in alone.items() if not one[2] and key not in readings}
    if not readings:
        raise problem or _nothing(words, some)
    least = min(count for count, _, _ in readings.values())
    best = [(request, left) for count, request, left in readings.values() if count == least]
    request, left = best[0]
    if left:
        raise _unknown(words, left, request)
    if not request.steps:
        raise _nothing(words, some)
    if len({meaning(one.steps) for one, _ in best}) > 1:
        listed = (Reading(", then ".join(map(_phrase, one.steps)), meaning(one.steps)) for one, _ in best[:3])
        raise SeveralReadings(f'"{words}" may mean several things', tuple(listed))
    return request


def read_rest(words: str, some: list[Token], given: Mapping[str, TensorSpec]) -> Request:
    """What is said after a formula, which may be nothing but sizes."""
    found = _mentions(some)
    attempt = _Attempt(some, given, tuple(Mention(one.start, one.end, one.names[:1]) for one in found))
    request, left, _ = attempt.request()
    named = {one.text: (one.value[2] or one.value[0], one.value[1]) for one in some if one.kind == "size"}
    if unclear := [one for one in left if one not in named]:
        raise _unknown(words, unclear, request)
    return replace(request, settings=tuple(pair for text, pair in named.items() if text in left))


def _readings(tries: list[_Attempt]) -> tuple[dict[str, tuple[float, Request, list[str]]], NotUnderstood | None]:
    readings: dict[str, tuple[float, Request, list[str]]] = {}
    problem = None
    for attempt in tries:
        try:
            request, left, cost = attempt.request()
        except NotUnderstood as error:
            problem = problem or error
            continue
        key = " ".join(f"{one.operation.name}{sorted(one.options)}{one.numbers}" for one in request.steps)
        readings.setdefault(key, (cost, request, left))
    return readings, problem


def _describes(some: list[Token], one: Operation) -> bool:
    """Whether the words describe an entry that they do not name: it has most of them, and two at least."""
    said = {t.stem for t in some if t.kind == "word"} - fillers() - harmless()
    own = said & hints(one.name)
    return len(own) > 1 and len(own) > 0.6 * len(said)


def _unknown(words: str, left: list[str], request: Request) -> NotUnderstood:
    near = [one.operation for one in request.steps] or [*nearest(words, 1)]
    listed = ", ".join(f'"{one}"' for one in dict.fromkeys(left))
    as_far = f'; the rest reads as "{meaning(request.steps)}"' if request.steps else ""
    ask = near[0].request if near and not request.steps else ""
    return unread(
        f'it is not understood what {listed} means in "{words}"{as_far}', near[0].name if near else "", ask
    )


def _nothing(words: str, some: list[Token]) -> NotUnderstood:
    near = nearest(words, 3)
    quoted = ", ".join(f'"{one.text}"' for one in some if one.kind == "word" and one.stem not in fillers())
    found = f'"{words}" names no operation' + (f" that is in the catalogue: {quoted} is not known" if quoted else "")
    return unread(found, near[0].name if near else "", near[0].request if near else "")


def _phrase(step: Step) -> str:
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
            text = re.sub(r"\{(\w+)\}", lambda name, texts=texts: str(texts.get(name[1], name[1])), text)
        found.append(text)
    return ", then ".join(found)


# -- what is named --


def _mentions(some: list[Token]) -> list[Mention]:
    """What the tokens name, by the longest phrases. An option belongs to an operation that is named too."""
    whole: set[str] = set()
    place = 0
    while place < len(some):
        here = [(end, one) for end, found in _phrases_at(some, place) for one in found if one.whole]
        last = max((end for end, _ in here), default=place + 1)
        whole |= {one.operation for end, one in here if end == last}
        place = last
    mentions: list[Mention] = []
    place = 0
    while place < len(some):
        usable = [
            (end, chosen)
            for end, found in _phrases_at(some, place)
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
    return bool(before) and not {t.text for t in some[before[-1].end : place]} & {*_THEN, "+", "before"}


def _phrases_at(some: list[Token], place: int) -> list[tuple[int, tuple[Name, ...]]]:
    """The phrases that begin at a place, the longest last; numbers match `#` or themselves, sizes are skipped."""
    keys, solid, known = [""], 0, names()
    found: list[tuple[int, tuple[Name, ...]]] = []
    for end in range(place, len(some)):
        one = some[end]
        if one.kind in ("axis", "size") or (one.kind == "word" and one.text in ARTICLES):
            if not solid:
                break
            continue
        if one.kind == "names":
            if not solid:
                break
            keys += [key + joined(one.text) for key in keys]
        elif solid and one.text in ("+", "&", "/"):
            continue
        elif one.kind not in ("word", "number", "shape", "layout") or solid == _LONGEST:
            break
        else:
            solid += 1
            parts = ("#", one.text) if one.kind == "number" else (one.stem or "".join(re.findall(r"\w+", one.text)),)
            longer = [key + part for key in keys for part in parts]
            here = tuple(dict.fromkeys(name for key in longer for name in known.get(key, ())))
            keys = [*longer, *keys] if one.kind == "shape" and end > place else longer
        if one.kind == "names":
            here = tuple(dict.fromkeys(name for key in keys for name in known.get(key, ())))
        if here and (one.kind != "names" or here != (found[-1][1] if found else ())):
            found.append((end + 1, here))
    return found


def _choices(found: list[Mention]) -> Iterator[tuple[Mention, ...]]:
    for chosen in itertools.product(*(one.names for one in found)):
        yield tuple(Mention(one.start, one.end, (name,)) for one, name in zip(found, chosen, strict=True))


def _of_entry(found: list[Mention], entry: str) -> tuple[tuple[Mention, ...], str, tuple[Mention, ...]]:
    """The mentions of one entry and its options, the entry, and the mentions of others."""
    own = [(one, [n for n in one.names if n.operation == entry]) for one in found]
    mine = tuple(Mention(one.start, one.end, (some[0],)) for one, some in own if some)
    return mine, entry, tuple(one for one, some in own if not some)


class _Attempt:
    """One way to take the words: as a chain of the operations that are mentioned, or as a description of one entry."""

    def __init__(
        self,
        some: list[Token],
        given: Mapping[str, TensorSpec],
        found: tuple[Mention, ...],
        entry: str = "",
        others: tuple[Mention, ...] = (),
    ) -> None:
        self.tokens, self.given, self.entry = some, given, entry
        self.left: list[str] = []
        self.notes: list[str] = []
        self.unused: list[str] = []  # words that say nothing of an operation
        self.used: set[int] = set()
        self.options: list[Mention] = []
        self.steps: list[Step] = []
        self.bound: dict[str, str] = {}
        for one in found:
            name = one.names[0]
            if name.option and not self._introduces(found, one):
                self.options.append(one)
            elif not self._is_state(found, one):
                own = [name.option] if name.option else []
                self.steps.append(Step(operations()[name.operation], one.start, one.end, own))
            self.used |= {at for at in range(one.start, one.end) if self._is_said(one, at)}
        if entry:
            again = [one for one in self.steps[1:] if not one.options]
            self.left += [self._text(one.start, one.end) for one in again[1:]]
            first = self.steps[0] if self.steps else Step(operations()[entry])
            self.steps = [replace(first, options=[o for s in self.steps for o in s.options])]
            colon = first.end and self._words(first.end, first.end + 1)[:1] in ([":"], ["("], ["="])
            if not found or not (first.operation.describes or colon):
                self.left += [self._text(one.start, one.end) for one in others]

    def request(self) -> tuple[Request, list[str], float]:
        """The request, what is left of the words, and how far they are from it."""
        if not self.entry:
            self._drop_repeats()
        if len(self.steps) > _MOST_STEPS:
            raise unread(f"the request has {len(self.steps)} steps; ask for fewer")
        self._take_options()
        sizes, shapes, layout = self._take_facts()
        self._take_axes()
        dtype, to = self._take_dtypes()
        steps = self._ordered()
        inplace = self._take_word("inplace")
        if self._take_word("keepdim"):
            for step in [one for one in steps if one.operation.kind == "reduce"][-1:]:
                code = step.operation.code.replace("{dim}", "{kept}")
                step.operation = replace(step.operation, code=code, kind="row", gives=None)
                self.notes.append("the dimension that is reduced stays, with a size of 1")
        self._take_rest()
        if self.unused:
            self.notes.append("not used: " + ", ".join(f'"{one}"' for one in dict.fromkeys(self.unused)))
        corrected = (one for one in self.tokens if one.kind == "word" and isinstance(one.value, str))
        self.notes += [f'"{one.value}" is read as "{one.text}"' for one in corrected]
        made = Request(tuple(steps), tuple(sizes), tuple(shapes), layout, dtype, to, tuple(self.notes), inplace)
        content = sum(t.kind == "word" and t.stem not in fillers() for t in self.tokens)
        if len(self.unused) > 2 and 2 * len(self.unused) > content:
            self.left += self.unused
        cost = 100.0 * len(self.left) + len(self.unused) + 0.1 * len(steps) + 0.05 * bool(self.entry)
        return replace(made, joint=self._is_joint(steps)), self.left, cost

    def _text(self, start: int, end: int) -> str:
        return " ".join(one.text for one in self.tokens[start:end])

    def _words(self, start: int, end: int) -> list[str]:
        return [one.text for one in self.tokens[max(0, start) : end] if one.text not in ARTICLES]

    # -- steps and options --

    def _introduces(self, found: tuple[Mention, ...], option: Mention) -> bool:
        """Whether an option's phrase stands for its operation: no other mention of it does."""
        name = option.names[0]
        others = [one for one in found if one is not option and one.names[0].operation == name.operation]
        named = any(not one.names[0].option or (one.names[0].whole and one.start < option.start) for one in others)
        return name.whole and not named

    def _is_state(self, found: tuple[Mention, ...], one: Mention) -> bool:
        """Whether it is named and not done: "b is already transposed", "attention scores"."""
        before, after = self._words(one.start - 2, one.start), self._words(one.end, one.end + 1)
        if before[-1:] in (["*"], ["^"]) or (before[-1:] == ["/"] and before[0][:1].isdigit()):
            self.left.append(self._text(max(0, one.start - 2), one.end))
        asked = {"return", "returns", "returning"} & set(self._words(one.start - 3, one.start))
        if asked and found[0] is not one and {"also", "too", "both", "well"} & set(self._clause(one.start)):
            self.left.append(self._text(one.start, one.end))
        state = before[-1:] in (["already"], ["stored"], ["is"], ["are"]) and one.end == one.start + 1 and one.start > 1
        leads = operations()[one.names[0].operation].leads and len(found) > 1
        return state or (leads and after in (["scores"], ["logits"], ["probs"]))

    def _is_said(self, mention: Mention, place: int) -> bool:
        """Whether a token is a part of a mention; a shape or names within it may be none: "conv 1x1", "rope to q, k"."""
        kind = self.tokens[place].kind
        if kind not in ("shape", "names"):
            return kind in ("word", "number", "layout")
        kept = [t for at, t in enumerate(self.tokens[: mention.end]) if at >= mention.start and at != place]
        return all(end != len(kept) or mention.names[0] not in some for end, some in _phrases_at(kept, 0))

    def _drop_repeats(self) -> None:
        """Operations that say what another one is or how it works: "rope (rotary embedding)", "conv with bias"."""
        kept: list[Step] = []
        for one in self.steps:
            before = kept[-1] if kept else None
            between = set(self._words(before.end, one.start)) if before else set()
            parted = between & {*_THEN, "+", "after", "before"}
            own = contents(self._text(one.start, one.end))
            if before is not None:
                again = before.operation is one.operation and not parted | (between & {"and", "of", "times", "by"})
                bias = one.operation.name == "bias" and self.tokens[one.start].text not in ("add", "plus")
                bias = bias and "bias" in before.chosen.takes and bool(between & {"with", "and"})
                arguments = stems(" ".join(a.name for a in before.operation.arguments))
                explains = any(own <= self._explained(s) for s in kept if s.operation.hints) and (
                    set(self._words(kept[0].start, one.start)) & {":", "(", ".", "=", "ie"}
                    or (before.operation.describes and not parted)
                )
                argument = own <= arguments and not parted
                if again or bias or (own and (explains or (argument and len(own) == 1))):
                    before.end = one.end if again else before.end
                    self.options = [o for o in self.options if o.names[0].operation != one.operation.name or again]
                    continue
            kept.append(one)
        self.steps = kept

    def _explained(self, step: Step) -> frozenset[str]:
        return hints(step.operation.name) - _NEGATIONS

    def _take_options(self) -> None:
        """Options by their phrases, and by phrases whose words all stand near a step in any order."""
        for mention in self.options:
            name = mention.names[0]
            step = self._nearest(mention.start, lambda one, name=name: one.operation.name == name.operation)
            parted = step and {"then", "->", "+", "followed"} & set(self._words(step.end, mention.start))
            if step is None or (parted and self.tokens[mention.start].text != "then"):
                self.used -= set(range(mention.start, mention.end))
                continue
            step.options += [name.option] if name.option not in step.options else []
            step.start = mention.start if mention.end == step.start else step.start
        for step in self.steps:
            for option in step.operation.options:
                if option.name not in step.options and not step.operation.rivals((*step.options, option.name)):
                    self._take_scattered(step, option.name, option.phrases)

    def _take_scattered(self, step: Step, option: str, phrases: tuple[str, ...]) -> None:
        free = {
            at: one.stem
            for at, one in enumerate(self.tokens)
            if at not in self.used and one.kind == "word" and step is self._nearest(at, lambda _: True)
        }
        for phrase in phrases:
            wanted = contents(phrase)
            if len(wanted) < 2 or not wanted <= set(free.values()) or not _NEGATIONS.isdisjoint(words_of(phrase)):
                continue
            for start in (at for at, said in free.items() if said in wanted):
                near = {at: said for at, said in free.items() if start <= at < start + _WINDOW and said in wanted}
                negated = any(_NEGATIONS & set(self._words(at - 3, at)) for at in near)
                if wanted <= set(near.values()) and "#" not in phrase and not negated:
                    step.options.append(option)
                    self.used |= set(near)
                    return

    def _nearest(self, place: int, accepts: Callable[[Step], bool]) -> Step | None:
        """The step that what is said there belongs to: the last before it that takes it, else the next."""
        before = [one for one in self.steps if one.start <= place and accepts(one)]
        after = [one for one in self.steps if one.start > place and accepts(one)]
        if before and after and self._parted(before[-1].end, place) and not self._parted(place, after[0].start):
            return after[0]
        return before[-1] if before else after[0] if after else None

    def _parted(self, start: int, end: int) -> bool:
        return bool({*_THEN, "+", ",", "and", "with"} & set(self._words(start, end)))

    # -- order --

    def _ordered(self) -> list[Step]:
        """The steps in the order in which they are done: "gelu of layernorm" is layernorm, then gelu."""
        found: list[Step] = []
        run: list[Step] = []
        for place, one in enumerate(self.steps):
            between = self._words(self.steps[place - 1].end, one.start) if place else []
            if place:
                self._check_order(self.steps[place - 1], one, between)
            words = [t for t in between if t not in ("output", "result", "outputs", "applied")]
            applies = bool(run) and (
                self.tokens[max(0, run[-1].start - 1)].text in ("apply", "applying")
                or _acts(run[-1])
                or "applied" in between
            )
            back = len(words) == 1 and words[0] in _BACK and (words != ["to"] or applies)
            if run and (back or between[:1] == ["after"]) and not _THEN & set(between):
                run.append(one)
                continue
            found += run[::-1]
            run = [one]
        found += run[::-1]
        if len(found) > 1 and "before" in self._words(0, self.steps[0].start):
            found[:2] = found[1::-1]
        return found

    def _check_order(self, one: Step, other: Step, between: list[str]) -> None:
        """Refuses neighbours whose order or meaning cannot be told: "sigmoid and tanh", "mean absolute value"."""
        if "first" in between or between == [",", "of"]:
            raise self._unordered(one, other)
        span = self.tokens[one.end : other.start]
        named = [t.text for t in span if t.kind == "names" or t.text == "x"]
        factor = {"times", "*", "multiplied"} & set(between)
        anew = {*_THEN} & set(between) and between[-1:] == named[-1:] == ["x"]
        if named and (anew or factor or {"plus", "+", "minus"} & set(between)):
            raise self._unordered(one, other)
        if {*_THEN, ",", "after", "before", ":", "("} & set(between):
            return
        plain = [_is_plain(step) for step in (one, other)]
        joint = one.operation.kind == other.operation.kind == "reduce"
        reads = not between or (named and len(between) < 3 and between[-1] == named[-1])
        if (
            (reads and (named or not _acts(one)) and not one.operation.leads)
            or (factor and one.operation.name in ("bias", "residual", "shift_by"))
            or (between == ["of"] and one.operation.name in ("center", "minus_max", "over_sum", "over_max"))
            or (between in (["+"], ["plus"]) and all(plain))
            or (between == ["and"] and not joint and (plain[0] or other.operation.kind == "reduce"))
            or (between in (["with"], ["with", "its"]) and plain[0] and _acts(other))
        ):
            raise self._unordered(one, other)

    def _unordered(self, one: Step, other: Step) -> NotUnderstood:
        ask = f'"{one.operation.request} then {other.operation.request}"'
        said = self._text(one.start, other.end)
        return unread(
            f'the order of the steps in "{said}" cannot be told; join them by "then", such as {ask}, '
            "or write a formula with brackets"
        )

    def _is_joint(self, steps: list[Step]) -> bool:
        """Two statistics with "and" between are two results."""
        if len(self.steps) < 2 or any(one.operation.kind != "reduce" for one in steps[-2:]):
            return False
        return bool({"and", ",", "&"} & set(self._words(self.steps[-2].end, self.steps[-1].start)))

    # -- numbers, sizes, shapes --

    def _take_facts(self) -> tuple[list[tuple[str, str]], list[Any], tuple[str, ...]]:
        """Sizes by their names, shapes with the names of their tensors, and the layout of the first tensor."""
        sizes: list[tuple[str, str]] = []
        shapes: list[Any] = []
        layout: tuple[str, ...] = ()
        for place, one in enumerate(self.tokens):
            if one.kind == "size":
                self._give(place, one, sizes)
            elif one.kind == "shape" and place not in self.used:
                shapes += self._take_shape(place, one)
            elif one.kind == "layout" and place not in self.used:
                layout = self._take_layout(place, one, sizes) or layout
        for place, one in enumerate(self.tokens):
            if one.kind == "number":
                self._take_number(place, one)
            elif one.kind == "names" and place not in self.used:
                self._take_names(place, one)
        for step in self.steps:  # one bound of two: which one must be said
            if step.operation.bare == ("low", "high") and len(step.numbers) == 1:
                (name,) = step.numbers
                if any(t.kind == "size" and t.value[0] == name for t in self.tokens):
                    step.options += [o.name for o in step.operation.options if o.name == name]
                else:
                    self.left.append(f"{step.numbers[name]}, from below or from above,")
        return sizes, shapes, layout

    def _give(self, place: int, token: Token, sizes: list[tuple[str, str]]) -> None:
        role, value, noun = token.value
        pairs = [(role, value)]
        if role == "betas" and " " in value:
            pairs = [("beta1", value.split()[0]), ("beta2", value.split()[1])]
        result = {"out", "output", "result"} & set(self._words(place - 3, place))
        for name, text in pairs:
            more = {"rows": ["nodes", "slots"]} if result else vocabulary()["settings"]
            for each in dict.fromkeys((noun, name, *more.get(name, ()), *more.get(noun, ()))):
                step = self._nearest(place, lambda one, each=each: one.takes_number(each))
                if step is not None:
                    step.give(each, text)
                    break
            else:
                if name not in vocabulary()["bound"] and name != "image":
                    self.left.append(token.text)
                    continue
                reducing = self._nearest(place, lambda one: one.operation.kind in ("reduce", "scan"))
                if reducing and self._words(place - 1, place)[:1] in (["over"], ["across"], ["along"], ["of"]):
                    if name in ("rows", "tokens", "sequence", "channels"):
                        reducing.axis, reducing.axis_said = "rows?", token.text
                sizes.append((noun if len(noun) == 1 else name, text))

    def _take_number(self, place: int, one: Token) -> None:
        """A number without a name goes to the step near it that takes another one."""
        inside = next((s for s in self.steps if s.start <= place < s.end and place in self.used), None)
        if place in self.used and inside is None:
            return
        self.used.add(place)

        def free(step: Step) -> bool:
            return any(name not in step.numbers for name in step.operation.bare)

        step = inside or self._nearest(place, free)
        far = False
        if step is not None and inside is None:
            start, end = (step.end, place) if step.end <= place else (place + 1, step.start)
            far = bool(_THEN & set(self._words(start, end))) or end - start > 6
        after = self.tokens[place + 1] if place + 1 < len(self.tokens) else one
        of_size = after.kind == "size" and after.value[0] in vocabulary()["bound"] and after.text[0].isalpha()
        of_size = of_size and one.text.isdigit()
        large = step is not None and step.operation.bare[:1] == ("window",) and not re.fullmatch(r"\d|1\d", one.text)
        if step is None or not free(step) or far or of_size or large:
            self.left += [] if self._is_told(one.text) else [one.text]
            return
        step.give(next(name for name in step.operation.bare if name not in step.numbers), number_of(one))

    def _is_told(self, number: str) -> bool:
        """Whether a number is one that a step has anyway, or says in its hints."""
        for step in self.steps:
            one = step.chosen
            if number == str(len(one.arguments)):
                return True
            told = (*one.hints, *one.assume, *one.numbers.values(), *one.params.values(), *step.numbers.values())
            found = re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?", " ".join(told))
            if abs(float(number_of(Token("number", number)))) in {abs(float(each)) for each in found}:
                return True
        return False

    def _take_shape(self, place: int, one: Token) -> list[Any]:
        """A shape; a small one is a window where a step has one, and a pair the numbers of a step with two."""
        step = self._nearest(place, lambda one: one.takes_number("window") and "window" not in one.numbers)
        if step is not None and max(one.value) < 16:
            equal = len(set(one.value)) == 1 and len(one.value) < 3
            step.give("window", str(one.value[0]) if equal else str(one.value))
            return []
        step = self._nearest(place, lambda one: len(one.operation.bare) == 2 and not one.numbers)
        if step is not None and len(one.value) == 2 and one.text[0] in "([" and step.operation.kind == "map":
            step.numbers.update(zip(step.operation.bare, map(str, one.value), strict=True))
            return []
        return [(self._owners(place), one.value)]

    def _owners(self, place: int) -> tuple[str, ...]:
        """The tensors that a shape or a layout is said of: "x is [B, S]", "a (512 x 1024)"."""
        at = place - 1
        while at >= 0 and self.tokens[at].text in _OF_SHAPE:
            at -= 1
        one = self.tokens[at] if at >= 0 else None
        if one is None or at in self.used or one.kind not in ("names", "word"):
            return ()
        if one.kind == "names":
            self.used.add(at)
            return tuple(one.value)
        said = {t.text for t in self.tokens[at + 1 : place]} & {"is", ":", "=", "("} or self.tokens[place].text[0] in "(["
        if (one.text == "a" and not said) or not (one.text in _tensors() or one.text in self.given or one.text == "a"):
            return ()
        self.used.add(at)
        return (one.text,)

    def _take_layout(self, place: int, one: Token, sizes: list[tuple[str, str]]) -> tuple[str, ...]:
        """A shape by letters: that of the tensor before it, which selects the variant that takes it in that order."""
        owners = self._owners(place)
        if not owners and {"->", "into", "out", "output", "result", "return", "returns", "gives"} & set(
            self._words(place - 2, place)
        ):
            before = [t.value for t in self.tokens[:place] if t.kind == "layout"][:1]
            if before and before[0] != one.value and sorted(before[0]) == sorted(one.value):
                self.left.append(one.text)  # the dimensions in another order
            self.notes.append(f"not used: the shape {one.text} of the result, which follows from the others")
            return ()
        if not self.steps:
            return one.value if owners in ((), ("x",)) else ()
        if not all(any(_patterns(step.chosen, (one,)) for step in self.steps) for one in owners):
            owners = ()
        for step in self.steps:
            for more in ([], *([o.name] for o in step.operation.options if "takes" in o.changes)):
                if more and (more[0] in step.options or step.operation.rivals((*step.options, *more))):
                    continue
                operation = step.operation.with_options((*step.options, *more))
                fitting = [each for each in _patterns(operation, owners) if _fits(each, one.value)]
                if not fitting or (owners and len(fitting) < len(_patterns(operation, owners))):
                    continue
                step.options += more
                pattern = fitting[0]
                if not self._agrees(one, pattern):
                    continue
                if step is self.steps[0] and pattern == operation.arguments[0].dimensions:
                    return one.value
                pairs = zip(pattern, one.value, strict=True) if "..." not in pattern else ()
                sizes += [(n, said) for n, said in pairs if said.isdigit() and n != said and not step.takes_number(n)]
                return ()
        self.left.append(f"{' and '.join(owners)} {one.text}".strip())
        return ()

    def _agrees(self, one: Token, pattern: tuple[str, ...]) -> bool:
        """Whether a dimension that tensors share has one letter: not weight (T,) beside x (B, T, D) with rows of D."""
        fixed = [name for name in pattern if name != "..."]
        letters = one.text.strip("()").split(",")
        pairs = list(zip(fixed, letters[-len(fixed) :] if fixed else [], strict=False))
        before = set(self.bound.values())
        clash = any(self.bound.get(n, said) != said in before and not said.isdigit() for n, said in pairs)
        self.bound = {**dict(pairs), **self.bound}
        return not clash

    def _take_names(self, place: int, one: Token) -> None:
        """Names of tensors go to the step before them that takes as many."""
        step = self._nearest(place, lambda one: not one.called)
        if step is None:
            self.left.append(one.text)
            return
        many = one.value
        if self._words(place - 1, place)[:1] in (["of"], ["between"], ["for"]) and len(many) == 2:
            step.operation = operations()[_PAIRS.get(step.operation.name, step.operation.name)]
        own = [a.name for a in step.chosen.arguments]
        known = {name for one in own for name in _called(one)}
        if any(len(_called(n)) > 1 and not _called(n) & known for n in many if n not in "abcuw"):
            self.left.append(one.text)
            return
        if len(many) == len(own) or (len(many) == len(own) - 1 and set(many) & set(own)):
            short = all(len(name) <= 2 for name in many) and len(set(many)) == len(many) == len(own)
            step.called = many if short else ()
        elif not set(many) <= {*own, *self.given} and not all(stem(n) in hints(step.operation.name) for n in many):
            self.left.append(one.text)

    # -- dimensions and dtypes --

    def _take_axes(self) -> None:
        for place, one in enumerate(self.tokens):
            if one.kind != "axis":
                continue
            step = self._nearest(place, lambda one: one.operation.goes_over and one.axis is None)
            if step is None:
                step = self._nearest(place, lambda s, v=one.value: s.operation.axis == "last" or s.axis == v)
            explained = any(contents(one.text) <= self._explained(s) for s in self.steps)
            if step is None or (not step.operation.goes_over and explained):
                self.left += [] if explained else [one.text]
                continue
            step.axis, step.axis_said = one.value, one.text
            for other in self.steps:  # "mean and variance of each row"
                beside = set(self._words(other.end, step.start)) <= {"and", ",", "&"} and other.end <= step.start
                if beside and other.operation.goes_over and other.axis is None:
                    other.axis, other.axis_said = one.value, one.text
        for step in self.steps:
            after = " ".join(self._words(step.end, step.end + 4))
            whole = re.match(r"of (?:\w+ )?(?:matrix|array|tensor|vector)\b", after)
            alone = step.operation.kind == "reduce" and len(step.operation.arguments) == 1
            if whole and step.axis is None and alone:
                step.axis, step.axis_said = (), whole[0]

    def _take_dtypes(self) -> tuple[str, str]:
        """The dtype of the elements, and that of the result where it is another."""
        dtype, to = "", ""
        cast = next((one for one in self.steps if one.operation.name == "cast"), None)
        for place, one in enumerate(self.tokens):
            if one.kind != "dtype":
                continue
            before, after = self._words(place - 3, place), self._words(place + 1, place + 2)
            near = [*self._words(place - 5, place), *after]
            result = {"out", "output", "result", "returns", "return", "to", "into", "as"} & set(before[-2:])
            tensor = (self._words(place - 1, place) or [""])[0]
            if any(re.match(r"accum|math|comput|calculat|intern|inside|sum|stat|state|everything", t) for t in near):
                self.notes.append(f'not used: "{one.text}" on the way: kernels compute in f32 anyway')
            elif result or (after in (["out"], ["output"], ["result"]) and (dtype or cast)):
                to = one.value
            elif dtype and dtype != one.value and tensor in _tensors() | {"scales", "scale"}:
                self.notes.append(f'not used: "{tensor} {one.text}"')
            elif dtype and dtype != one.value:
                raise unread(f"it says {dtype} and {one.value}")
            else:
                dtype = one.value
        if cast is not None:
            cast.options.append(to or dtype)
            return ("", "") if not to else (dtype, "")
        return (dtype, "" if to == dtype else to) if dtype or not to else ("", to)

    # -- every other word --

    def _take_word(self, text: str) -> bool:
        found = [at for at, one in enumerate(self.tokens) if one.text == text and at not in self.used]
        self.used |= set(found)
        return bool(found)

    def _take_rest(self) -> None:
        """Every other word says nothing, says what a step does anyway, is not used, or is left."""
        known = frozenset().union(*map(self._explained, self.steps))
        absent = frozenset().union(*(stems(" ".join(s.operation.absent)) for s in self.steps))
        known -= absent - frozenset().union(*(stems(" ".join(s.operation.hints)) for s in self.steps))
        known |= frozenset().union(*(stems(" ".join(s.chosen.assume)) for s in self.steps)) - _NEGATIONS
        letters = {each for t in self.tokens if t.kind == "layout" for each in re.findall(r"[a-z]\w*", t.text)}
        values = {*vocabulary()["values"].split(), *vocabulary()["connectors"].split()}
        values |= {*vocabulary()["models"].split(), *letters, *self.given}
        after = self._steps_after() if self.entry else len(self.tokens)
        place = 0
        while place < len(self.tokens):
            one = self.tokens[place]
            if one.stem in ("row", "column", "col") and place not in self.used:
                for step in self.steps:  # "sum the rows": of each row, or of each column?
                    if step.operation.goes_over and step.axis is None and one.stem not in stems(*step.operation.hints):
                        step.axis, step.axis_said = "rows?", one.text
            if place > after and one.stem in operative():
                values, known = set(), frozenset()
            if one.kind == "mark" and one.text not in _MARKS:
                self.left.append(one.text)
            if one.kind != "word" or place in self.used:
                place += 1
                continue
            if one.text in _NEGATIONS:
                place = self._negated(place, absent)
                continue
            if {"each", "every", "per"} & set(self._words(place - 1, place)) and one.text in values - {"x"} and one.stem not in known:
                self.left.append(one.text)
            free = one.stem in fillers() or one.stem in known or one.text in values
            if not free and not self._is_aside(place):
                (self.left if self._changes(place) else self.unused).append(one.text)
            place += 1

    def _in_formula(self, place: int) -> bool:
        """Whether a letter stands in a formula that explains an operation: "distances (a - b)^2 of all rows"."""
        end = max((step.end for step in self.steps if step.end <= place), default=0)
        near = {one.text for one in self.tokens[max(0, place - 1) : place + 2]}
        return bool(end and near & set("@*=^[]+/.") and {":", "=", "("} & set(self._words(end, place)))

    def _clause(self, place: int) -> list[str]:
        """The words around a place up to the next comma or stop."""
        ends = [at for at, one in enumerate(self.tokens) if one.text in {",", ".", ";", ":", "(", ")", "->", "then"}]
        start = max((at for at in ends if at < place), default=-1)
        return self._words(start + 1, min((at for at in ends if at > place), default=len(self.tokens)))

    def _steps_after(self) -> int:
        """Where a step after the entry may begin: at a "then" behind its name, if no colon or bracket explains it."""
        end = self.steps[0].end
        if not end or self._words(end, end + 1)[:1] in ([":"], ["("], ["="]):
            return len(self.tokens)
        parts = (at for at in range(end, len(self.tokens)) if self.tokens[at].text in {*_THEN, "+"} - {".", "|"})
        return next(parts, len(self.tokens))

    def _is_aside(self, place: int) -> bool:
        """A word that says nothing new: a dtype that a tensor has anyway, where the operation comes from."""
        one, (before, after) = self.tokens[place], (self._words(place - 2, place), self._words(place + 1, place + 2))
        if one.text in ("over", "across", "along") and self.tokens[place + 1 : place + 2]:
            return self.tokens[place + 1].kind in ("size", "shape", "dtype")
        if one.text == "accumulates32":
            self.notes.append("not used: that it is computed in f32 on the way, as kernels do anyway")
            return True
        if one.text == "rootscale":
            return any("1 / sqrt(" in said for s in self.steps for said in s.chosen.assume)
        if before[-1:] == ["like"] or before in (["as", "in"], ["used", "in"], ["used", "by"]) or after == ["style"]:
            self.notes.append(f'not used: "{one.text}", which is taken for where it comes from')
            return True
        if one.text in _NUMBERS and any(_NUMBERS.index(one.text) == len(s.chosen.arguments) for s in self.steps):
            return True
        wanted = vocabulary()["whole"].get(one.text, "")
        found = {str(a.dtype) for s in self.steps for a in s.chosen.arguments if a.dtype}
        indices = any("indices" in f"{s.chosen.results} {s.chosen.says}" or "arg" in s.chosen.code for s in self.steps)
        return bool(wanted) and (wanted in found or (wanted == "i64" and indices))

    def _changes(self, place: int) -> bool:
        """Whether a word may change what is computed: an entry or an option has it in its name, a preposition brings
        it, it stands right before an operation, or it is a step of its own."""
        one = self.tokens[place]
        if re.fullmatch(r"[a-z]\d?", one.text):
            return not self._in_formula(place)
        if re.match(r"-|\dd$", one.text) or one.text in _COUNTS or one.stem in operative():
            return True
        if _ASKS & set(self._clause(place)) or _MODIFIES & set(self._words(place - 1, place)):
            return True
        if {"each", "every", "per"} & set(self._words(place - 1, place)):
            return True
        if one.stem in harmless():
            return False
        before = [t for t in self._words(place - 3, place) if t not in ("my", "some", "any", "own")]
        alone = before[-1:] in ([], ["then"], ["+"], ["->"], ["and"]) and self._words(place + 1, place + 2) in (
            [], ["then"], ["+"], ["->"], ["and"], [","], ["."]
        )
        adjective = any(step.start == place + 1 for step in self.steps)
        adjective = adjective and bool(re.search(r"(?:[^e]ed|ive|al|ic|ar|less|wise|free|ing|ted)$", one.text))
        return bool(_MODIFIES & set(before[-1:])) or adjective or (alone and bool(self.steps))

    def _negated(self, place: int, absent: frozenset[str]) -> int:
        """ "no mask", "without bias": of what the steps go without anyway; else it is left. Where it ends."""
        at = place + 1
        while at < len(self.tokens) and self.tokens[at].stem in fillers() | {"learnabl", "extra"}:
            at += 1
        end = at
        while end < len(self.tokens) and self.tokens[end].kind == "word" and self.tokens[end].stem in absent | {"or"}:
            end += 1
        one = self.tokens[at] if at < len(self.tokens) else None
        if end == at and one is not None and one.kind == "word" and self._lacks(one):
            self.notes.append(f'without "{one.text}", which it does not have anyway')
            end = at + 1
        if end == at:
            end = min(len(self.tokens), at + 1)
            self.left.append(self._text(place, end))
        self.used |= set(range(place, end))
        return end

    def _lacks(self, one: Token) -> bool:
        """Whether nothing that the steps compute has what is named: an operation or a tensor of the catalogue."""
        for step in self.steps:
            own = step.chosen
            phrases = [phrase for o in own.options for phrase in o.phrases]
            text = " ".join((own.code, own.takes, own.says, *own.assume, *own.hints, *phrases))
            if one.stem in stems(text) or one.text in text:
                return False
        return bool(self.steps) and (one.stem in names() or one.text in _tensors())


def _tensors() -> set[str]:
    return set(vocabulary()["tensors"].split())


def _is_plain(step: Step) -> bool:
    """A function of one tensor, without numbers, that is the name of no layer."""
    one = step.operation
    single = len(one.arguments) == 1 and not one.numbers and one.gives is None
    return not one.leads and one.kind in ("map", "row") and single


def _acts(step: Step) -> bool:
    """Something done with another tensor or a number: add bias, scale by 2."""
    one = step.operation
    return not one.leads and one.kind == "map" and (len(one.arguments) > 1 or bool(one.numbers))


# -- shapes by letters --


def _kinds(layout: tuple[str, ...]) -> list[str]:
    kinds = vocabulary()["kinds"]
    image = "width" in layout or "w" in layout
    found = [kinds.get(one, one if one in "mnk" else "") for one in layout]
    return ["height" if image and one in ("h", "height") else kind for one, kind in zip(layout, found, strict=True)]


def _fits(pattern: tuple[str, ...], layout: tuple[str, ...]) -> bool:
    """Whether a tensor that an operation takes may have that shape: its rank, and no two dimensions changed about."""
    fixed = tuple(one.partition("=")[0].strip() for one in pattern if one != "...")
    if len(layout) < len(fixed) or ("..." not in pattern and len(layout) != len(fixed)):
        return False
    at = pattern.index("...") if "..." in pattern else len(fixed)
    after = len(fixed) - at
    said, own = _kinds(layout), _kinds(fixed)
    pairs = [*zip(said[:at], own[:at], strict=False), *(zip(said[-after:], own[at:], strict=True) if after else ())]
    numbers = [*zip(layout[:at], fixed[:at], strict=False), *(zip(layout[-after:], fixed[at:], strict=True) if after else ())]
    if any(one.isdigit() and other.isdigit() and one != other for one, other in numbers):
        return False
    return not any(a and b and a != b and (a in own or b in said) for a, b in pairs)


def _patterns(operation: Operation, owners: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The dimensions of the tensors with these names, of all where there are none."""
    takes = re.sub(r"\{(\w+)\}", lambda one: str(operation.slots.get(one[1], one[1])), operation.takes)
    listed = parsed_arguments(takes)
    wanted = {name for one in owners for name in _called(one)}
    return [one.dimensions for one in listed if not owners or wanted & {*_called(one.name), *one.name.split("_")}]


def _called(name: str) -> set[str]:
    """A name of a tensor, and the others that it may have."""
    return {name, *vocabulary()["tensor_names"].get(name, "").split()}

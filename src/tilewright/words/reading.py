"""From the tokens of a request to its steps, and what becomes of every word.

Several ways to take the words are tried: as a chain of the operations that they name, and as a description of one
entry. The one that leaves the least is taken. A number, a negation or a word that may change what is computed is never
left out; other words are listed as not used.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise

from tilewright.words.catalogue import (
    Operation,
    contents,
    fillers,
    harmless,
    hints,
    nearest,
    operations,
    operative,
    vocabulary,
)
from tilewright.words.errors import NotUnderstood, Reading, SeveralReadings, unread
from tilewright.words.facts import Facts, called
from tilewright.words.steps import (
    LEFT_OUT,
    NEGATIONS,
    THEN,
    Mention,
    Request,
    Step,
    choices,
    is_joint,
    meaning,
    mentions_of,
    of_entry,
    ordered,
    phrase_of,
    phrases_at,
)
from tilewright.words.text import joined, listed, stems
from tilewright.words.tokens import Token

_MOST, _MOST_TOKENS, _MOST_STEPS = 24, 120, 12
_MODIFIES = listed("with using except but plus minus times only")
_MARKS = frozenset(",.;:()[]{}!?'\"`/&|-+*=%#~$@^<>…_\\") | {"->"}
_ASKS = listed("also too both additionally well return returns returning gimme")  # a result that is asked for
_CONTEXT = listed("for in of from on like between inside as at to during so because that which when")
_DOMAIN = listed("rows columns channels tokens elements entries values positions pixels")
_ORDINALS = listed("second third fourth last other top bottom nth")
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_COUNTS = frozenset(_NUMBERS) | listed("twice double triple half quarter")


def read_tokens(words: str, some: list[Token], given: Collection[str]) -> Request:
    """The one reading of the tokens; raises `NotUnderstood`, or `SeveralReadings`."""
    if len(some) > _MOST_TOKENS:
        raise unread("the request is too long; say it in fewer words")
    found = mentions_of(some)
    tries = [_Attempt(some, given, chosen) for chosen in islice(choices(found), _MOST)]
    readings, problem = _readings(tries)
    complete = any(not left for _, _, left in readings.values())
    entries = dict.fromkeys(name.operation for one in found for name in one.names)
    entries |= {} if complete else dict.fromkeys(one.name for one in nearest(words, 12) if _describes(some, one))
    alone, _ = _readings([_Attempt(some, given, *of_entry(found, one)) for one in entries])
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
        shown = (Reading(", then ".join(map(phrase_of, one.steps)), meaning(one.steps)) for one, _ in best[:3])
        raise SeveralReadings(f'"{words}" may mean several things', tuple(shown))
    return request


def read_rest(words: str, some: list[Token], given: Collection[str]) -> Request:
    """What is said after a formula, which may be nothing but sizes."""
    found = mentions_of(some)
    attempt = _Attempt(some, given, tuple(Mention(one.start, one.end, one.names[:1]) for one in found))
    request, left, _ = attempt.request()
    named = {one.text: (one.value[2] or one.value[0], one.value[1]) for one in some if one.kind == "size"}
    if unclear := [one for one in left if one not in named] or [one.text for one in some if one.text == "x"]:
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
    return len(own) > 2 and len(own) > 0.6 * len(said)


def _unknown(words: str, left: list[str], request: Request) -> NotUnderstood:
    near = [one.operation for one in request.steps] or [*nearest(words, 1)]
    quoted = ", ".join(f'"{one}"' for one in dict.fromkeys(left))
    as_far = f'; the rest reads as "{meaning(request.steps)}"' if request.steps else ""
    ask = near[0].request if near and not request.steps else ""
    problem = unread(
        f'it is not understood what {quoted} means in "{words}"{as_far}', near[0].name if near else "", ask
    )
    problem.understood = request
    return problem


def _nothing(words: str, some: list[Token]) -> NotUnderstood:
    near = nearest(words, 3)
    quoted = ", ".join(f'"{one.text}"' for one in some if one.kind == "word" and one.stem not in fillers())
    found = f'"{words}" names no operation' + (f" that is in the catalogue: {quoted} is not known" if quoted else "")
    return unread(found, near[0].name if near else "", near[0].request if near else "")


class _Attempt(Facts):
    """One way to take the words: as a chain of the operations that are mentioned, or as a description of one entry."""

    def __init__(
        self,
        some: list[Token],
        given: Collection[str],
        found: tuple[Mention, ...],
        entry: str = "",
        others: tuple[Mention, ...] = (),
    ) -> None:
        super().__init__()
        self.tokens, self.given, self.entry = some, given, entry
        self.unused: list[str] = []  # words that say nothing of an operation
        self.omitted: list[str] = []  # words that are not known, and that change nothing that can be told
        self.options: list[Mention] = []
        self.claimed: list[Step] = []  # that are said to have a bias
        self.stated: list[Mention] = []  # what is said of something: "keys are quantized"
        for one in found:
            name = one.names[0]
            if name.option and not self._introduces(found, one):
                self.options.append(one)
            elif not self._is_state(found, one):
                own = [name.option] if name.option else []
                self.steps.append(Step(operations()[name.operation], one.start, one.end, own))
            self.used |= {at for at in range(one.start, one.end) if self._is_said(one, at)}
        if entry:
            for before, again in pairwise(self.steps):
                apart = {"of", "and", "on", "+", "then", "->"} & set(self._words(before.end, again.start))
                self.left += [self._text(again.start, again.end)] if apart and not again.options else []
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
        self._check_claims()
        sizes, shapes, layout = self._take_facts()
        self._take_axes()
        dtype, to = self._take_dtypes()
        steps = ordered(self.tokens, self.steps)
        inplace = self._take_word("inplace")
        if self._take_word("keepdim"):
            for step in [one for one in steps if one.operation.kind == "reduce"][-1:]:
                code = step.operation.code.replace("{dim}", "{kept}")
                step.operation = replace(step.operation, code=code, kind="row", gives=None)
                self.notes.append("the dimension that is reduced stays, with a size of 1")
        self._take_rest()
        content = sum(t.kind == "word" and t.stem not in fillers() for t in self.tokens)
        if len(self.unused) > 2 and 2 * len(self.unused) > content:
            self.left += self.unused
        if self.omitted and (not self.steps or 3 * len(self.omitted) >= content):
            self.left += self.omitted
        elif self.omitted:
            quoted = ", ".join(f'"{one}"' for one in dict.fromkeys(self.omitted))
            self.notes.insert(0, f"{LEFT_OUT}: {quoted}")
        if self.unused:
            self.notes.append("not used: " + ", ".join(f'"{one}"' for one in dict.fromkeys(self.unused)))
        corrected = (one for one in self.tokens if one.kind == "word" and isinstance(one.value, str))
        self.notes += [f'"{one.value}" is read as "{one.text}"' for one in corrected]
        made = Request(tuple(steps), tuple(sizes), tuple(shapes), layout, dtype, to, tuple(self.notes), inplace)
        cost = (
            100.0 * len(self.left)
            + 3 * len(self.omitted)
            + len(self.unused)
            + 0.1 * len(steps)
            + 0.05 * bool(self.entry)
        )
        return replace(made, joint=is_joint(self.tokens, self.steps, steps)), self.left, cost

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
            self.stated.append(Mention(max(0, one.start - 2), one.end, one.names))
            return {":", "=", "("} & set(self._words(0, one.start)) != set()
        asked = {"return", "returns", "returning"} & set(self._words(one.start - 3, one.start))
        if asked and found[0] is not one and {"also", "too", "both", "well"} & set(self._clause(one.start)):
            self.left.append(self._text(one.start, one.end))
        if before[-1:] in (["is"], ["are"]) and self._words(one.start - 2, one.start - 1) not in (["b"], ["a"]):
            self.stated.append(one)
        state = before[-1:] in (["already"], ["stored"], ["is"], ["are"]) and one.end == one.start + 1 and one.start > 1
        leads = operations()[one.names[0].operation].leads and len(found) > 1
        apart = all(other.end != one.start for other in found)
        return state or (leads and apart and after in (["scores"], ["logits"], ["probs"]))

    def _is_said(self, mention: Mention, place: int) -> bool:
        """Whether a token is a part of a mention; a shape or names within it may be none: "conv 1x1"."""
        kind = self.tokens[place].kind
        if kind not in ("shape", "names", "axis"):
            return kind in ("word", "number", "layout", "mark")
        kept = [t for at, t in enumerate(self.tokens[: mention.end]) if at >= mention.start and at != place]
        return all(end != len(kept) or mention.names[0] not in some for end, some in phrases_at(kept, 0))

    def _drop_repeats(self) -> None:
        """Operations that say what another one is or how it works: "rope (rotary embedding)", "conv with bias"."""
        kept: list[Step] = []
        for one in self.steps:
            before = kept[-1] if kept else None
            between = set(self._words(before.end, one.start)) if before else set()
            parted = between & {*THEN, "+", "after", "before"}
            own = contents(self._text(one.start, one.end))
            if before is not None:
                again = before.operation is one.operation and not parted | (between & {"and", "of", "times", "by"})
                bias = one.operation.name == "bias" and self.tokens[one.start].text not in ("add", "plus")
                bias = bias and "bias" in before.chosen.takes and bool(between & {"with", "and"})
                arguments = stems(" ".join(a.name for a in before.operation.arguments))
                explains = any(own <= self._explained(s) - _missing(s) for s in kept if s.operation.hints) and (
                    set(self._words(kept[0].start, one.start)) & {":", ".", "=", "ie"}
                    or "(" in between
                    or (before.operation.describes and not parted)
                )
                argument = own <= arguments and not parted
                if again or bias or (own and (explains or (argument and len(own) == 1))):
                    before.end = one.end if again else before.end
                    self.claimed += [before] * (one.operation.name == "bias")
                    self.options = [o for o in self.options if o.names[0].operation != one.operation.name or again]
                    continue
            kept.append(one)
        self.steps = kept

    def _check_claims(self) -> None:
        """A bias that is asked for, and that an option leaves out."""
        self.left += ["with bias" for step in self.claimed if step.chosen.slots.get("bias") == "None"]

    def _take_options(self) -> None:
        """Options by their phrases."""
        for mention in self.options:
            name = mention.names[0]
            step = self._nearest(mention.start, partial(_is_of, name.operation))
            parted = step and {"then", "->", "+", "followed"} & set(self._words(step.end, mention.start))
            if step is None or (parted and self.tokens[mention.start].text != "then" and not self._is_own(mention)):
                self.used -= set(range(mention.start, mention.end))
                continue
            step.options += [name.option] if name.option not in step.options else []
            step.start = mention.start if mention.end == step.start else step.start

    def _is_own(self, mention: Mention) -> bool:
        """Whether a negation belongs to one step only, wherever it stands: "layernorm then silu, no affine"."""
        said = joined(self._text(mention.start, mention.end))
        takers = [s for s in self.steps if any(said in map(joined, o.phrases) for o in s.operation.options)]
        return self.tokens[mention.start].text in NEGATIONS and len(takers) == 1

    # -- every other word --

    def _take_word(self, text: str) -> bool:
        found = [at for at, one in enumerate(self.tokens) if one.text == text and at not in self.used]
        self.used |= set(found)
        return bool(found)

    def _take_rest(self) -> None:
        """Every other word says nothing, says what a step does anyway, is not used, or is left."""
        known = frozenset().union(*map(self._explained, self.steps))
        absent = frozenset().union(*(stems(" ".join(s.operation.absent)) for s in self.steps))
        refused = absent - frozenset().union(*(stems(*s.operation.hints, *s.chosen.params) for s in self.steps))
        known -= refused
        known |= frozenset().union(*(stems(" ".join(s.chosen.assume)) for s in self.steps)) - NEGATIONS
        letters = {each for t in self.tokens if t.kind == "layout" for each in re.findall(r"[a-z]\w*", t.text)}
        values = {*vocabulary()["values"].split(), *vocabulary()["connectors"].split()}
        values |= {*vocabulary()["models"].split(), *letters, *self.given}
        stated = (self._text(one.start, one.end) for one in self.stated)
        self.left += [said for said in stated if not contents(said) <= known]
        after = self._steps_after() if self.entry else len(self.tokens)
        sides = {one.stem for at, one in enumerate(self.tokens) if at not in self.used} & {"row", "column"}
        self.left += ["rows and columns"] if len(sides) > 1 and len(self.steps) == 1 else []
        place = 0
        while place < len(self.tokens):
            one = self.tokens[place]
            if one.stem in ("row", "column", "col") and place not in self.used:
                for step in self.steps:  # "sum the rows": of each row, or of each column?
                    if step.operation.goes_over and step.axis is None and one.stem not in stems(*step.operation.hints):
                        step.axis, step.axis_said = "rows?", one.text
            self._take_object(place)
            if place > after and one.stem in operative():
                values, known = set(), frozenset()
            if one.kind == "mark" and one.text not in _MARKS:
                self.left.append(one.text)
            if one.kind != "word" or place in self.used:
                place += 1
                continue
            if one.text in NEGATIONS:
                place = self._negated(place, absent)
                continue
            noun = one.text in values - {"x"} and one.stem not in known
            both = one.text == "both" and {"return", "returns", "returning", "output"} & set(self._clause(place))
            if both or one.stem in refused or self._restricts(place, noun):
                self.left.append(one.text)
            free = one.stem in fillers() or one.stem in known or one.text in values
            if not free and not self._is_aside(place):
                known_place = self.unused if self._is_context(place) else self.omitted
                (self.left if self._changes(place) else known_place).append(one.text)
            place += 1

    def _take_object(self, place: int) -> None:
        """A dimension as the object of a step, "flip time"; one that is said of no step is left."""
        one = self.tokens[place]
        role = vocabulary()["objects"].get(one.text) if one.kind == "word" and place not in self.used else None
        open_steps = [s for s in self.steps if s.operation.goes_over and s.axis is None]
        step = next((s for s in open_steps if s.end == place and s.operation.kind != "reduce"), None)
        last = role == "channels" and self._words(place + 1, place + 2) == ["last"]
        if role and not last and step and step.operation.axis != "last" and not self.entry:
            step.axis, step.axis_said = role, one.text
            self.used.add(place)
        elif last:
            self.left.append("channels last")
        elif role and any(one.stem not in hints(s.operation.name) for s in open_steps):
            self.left.append(one.text)

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

    def _restricts(self, place: int, noun: bool) -> bool:
        """Whether a word says of which elements or which place: "the last 5 rows", "second largest", "each image"."""
        one = self.tokens[place]
        following = self.tokens[place + 1].kind if place + 1 < len(self.tokens) else ""
        if one.text in {*_ORDINALS, "first"} and following in ("size", "number"):
            return not self.tokens[place + 1].text.startswith("dim")
        next_word = self.tokens[place + 1] if place + 1 < len(self.tokens) else one
        if one.text in {*_ORDINALS, "first"} and next_word.stem in stems(*_DOMAIN, "head key query sample"):
            return place + 1 not in self.used
        if one.text == "half" and next_word.text == "of":
            return True
        if self._words(place - 1, place) == ["and"] and self.tokens[place - 2].kind == "axis":
            return True  # "over batch and heads"
        dropped = {name for s in self.steps for o in s.operation.options if o.name in s.options for name in o.drops}
        if one.text in dropped and self._words(place - 1, place) == ["with"]:
            return True
        if one.text in _ORDINALS and any(step.start == place + 1 for step in self.steps):
            return True
        return noun and bool({"each", "every", "per"} & set(self._words(place - 1, place)))

    def _steps_after(self) -> int:
        """Where a step after the entry may begin: at a "then" behind its name, if no colon or bracket explains it."""
        end = self.steps[0].end
        if not end or self._words(end, end + 1)[:1] in ([":"], ["("], ["="]):
            return len(self.tokens)
        parts = (at for at in range(end, len(self.tokens)) if self.tokens[at].text in {*THEN, "+"} - {".", "|"})
        return next(parts, len(self.tokens))

    def _is_aside(self, place: int) -> bool:
        """A word that says nothing new: a dtype that a tensor has anyway, where the operation comes from."""
        one, (before, after) = self.tokens[place], (self._words(place - 2, place), self._words(place + 1, place + 2))
        if one.text == "scalar" and {"out", "output", "result"} & {*before, *after}:
            return bool(self.steps) and self.steps[-1].chosen.gives == ""
        if one.text == "only" and {"return", "give", "want"} & set(self._clause(place)):
            return len(self.steps) == 1 and not self.steps[0].chosen.results  # it has one result anyway
        if one.text in ("batched", "batch") and self.steps and "..." in self.steps[0].chosen.arguments[0].dimensions:
            return True
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
        whole = re.compile(r"\.long\(\)|torch\.int|arg|indices|top_?k|bincount")
        indices = any(whole.search(f"{s.chosen.code} {s.chosen.results} {s.chosen.says}") for s in self.steps)
        if wanted in ("i32", "i64") and self._is_fact(place):
            self.notes.append(f'not used: "{one.text}": indices are int64, as PyTorch has them')
            return True
        return bool(wanted) and (wanted in found or (wanted == "i64" and indices))

    def _is_fact(self, place: int) -> bool:
        """Whether a dtype is that of a tensor that an operation takes beside its first: "targets bool"."""
        near = {*self._words(place - 2, place), *self._words(place + 1, place + 2)} - {"x"}
        others = (a.name for s in self.steps for a in s.chosen.arguments if str(a.dtype) == "i64")
        return any(near & {one for name in called(own) for one in (name, f"{name}s")} for own in others)

    def _changes(self, place: int) -> bool:
        """Whether a word may change what is computed: an entry or an option has it in its name, a preposition brings
        it, it stands right before an operation, or it is a step of its own."""
        one = self.tokens[place]
        if re.fullmatch(r"[a-z]\d?", one.text):
            return not self._in_formula(place)
        prefix = r"-|\dd$|.*ed$|(?:un|non|anti|semi)[a-z]{3}"
        if re.match(prefix + r"|(?:tf|fp|bf|nf|mxfp|int|uint|[fui])\d+$|complex\d*$", one.text):
            return True
        if one.text in {*_COUNTS, "itself", "themselves", "another"} or one.stem in operative():
            return True
        if any(step.start < place < step.end for step in self.steps):
            return True
        if any(step.end <= place for step in self.steps) and any(
            step.start > place and not THEN & set(self._words(place, step.start)) for step in self.steps
        ):
            return True  # between two operations: "matmul ignoring the diagonal"
        before, after = self._words(place - 1, place), self._words(place + 1, place + 2)
        if _ASKS & set(self._clause(place)) or {*_MODIFIES, "each", "every", "per"} & set(before):
            return True
        if any(step.start == place + 1 for step in self.steps) or _DOMAIN & set(after):
            return True  # "sparse attention", "the valid tokens"
        return one.stem in ("row", "column") and any(step.end == place for step in self.steps)  # "gather columns"

    def _is_context(self, place: int) -> bool:
        """Whether a word says where an operation is used, or stands apart from it."""
        end = max((step.end for step in self.steps if step.end <= place), default=0)
        between = set(self._words(end, place))
        apart = {"for", "in"} & between or (end and between & {*_CONTEXT, ",", "(", ":"})
        return bool(apart) or self.tokens[place].stem in harmless()

    def _negated(self, place: int, absent: frozenset[str]) -> int:
        """ "no mask", "without bias": of what the steps go without anyway; else it is left. Where it ends."""
        at = place + 1
        while at < len(self.tokens) and self.tokens[at].stem in fillers() | {"learnabl", "extra"}:
            at += 1
        end = at
        while end < len(self.tokens) and self.tokens[end].kind == "word" and self.tokens[end].stem in absent | {"or"}:
            end += 1
        if end == at:
            end = min(len(self.tokens), at + 1)
            self.left.append(self._text(place, end))
        self.used |= set(range(place, end))
        return end


def _missing(step: Step) -> frozenset[str]:
    return stems(*step.operation.absent) - stems(*step.operation.hints)


def _is_of(name: str, step: Step) -> bool:
    return step.operation.name == name

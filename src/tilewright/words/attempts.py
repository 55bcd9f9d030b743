"""One way to take what a request names: its steps in order, and what becomes of every word."""

from __future__ import annotations

from typing import Any

from tilewright.words.catalogue import fillers, hints, operations
from tilewright.words.errors import NotUnderstood, unread
from tilewright.words.leftovers import Leftovers
from tilewright.words.mentions import Mention, Request, Step, phrases_at
from tilewright.words.text import ARTICLES, stem, words_of

STRONG = frozenset(("then", ";", "->", ".", "|", "!", "?"))


class Attempt(Leftovers):
    """One way to take the mentions."""

    def __init__(self, reader: Any, found: list[Mention], entry: str = "") -> None:
        self.reader = reader
        self.tokens = reader.tokens
        self.given = reader.given
        self.left: list[str] = []
        self.notes: list[str] = []
        self.states: list[int] = []
        self.bound: dict[str, str] = {}
        self.bound_letters: set[str] = set()
        self.renamed: dict[str, str] = {}
        self.unused: list[str] = []  # words that say nothing of an operation
        self.unplaced: list[str] = []  # numbers that no step takes
        self.used: set[int] = set()
        self.options: list[Mention] = []
        self.steps: list[Step] = []
        for one in found:
            name = one.names[0]
            step = Step(operations()[name.operation], one.start, one.end, [name.option] if name.option else [])
            (self.steps if not name.option or self._introduces(found, one) else self.options).append(
                step if not name.option or self._introduces(found, one) else one  # type: ignore[arg-type]
            )
        self._drop_states()
        self.entry = entry  # the one that the whole sentence describes
        if entry:
            place = min((one.start for one in self.steps), default=0)
            end = min((one.end for one in self.steps), default=0)
            self.steps = [Step(operations()[entry], place, end, [o for s in self.steps for o in s.options])]
        for one in found:
            self.used |= {
                at for at in range(one.start, one.end) if self.tokens[at].kind in ("word", "number", "layout")
            }
            self.used |= {at for at in range(one.start, one.end) if self._is_said(one, at)}
        self.used -= set(self.states)

    def _drop_states(self) -> None:
        """What is named but not done: "b is already transposed", "attention scores"; a part of a formula."""
        for one in list(self.steps):
            before = [t.text for t in self.tokens[max(0, one.start - 2) : one.start]]
            after = self.tokens[one.end].text if one.end < len(self.tokens) else ""
            state = (
                before[-1:] in (["already"], ["stored"], ["is"], ["are"]) and one.end == one.start + 1 and one.start > 1
            )
            noun = one.operation.leads and after in ("scores", "logits", "probs") and len(self.steps) > 1
            if state or noun:
                self.steps.remove(one)
                self.states += range(one.start, one.end)
            elif before[-1:] in (["*"], ["^"]) or (before[-1:] == ["/"] and before[0][:1].isdigit()):
                self.left.append(self._text(max(0, one.start - 2), one.end))

    def _is_said(self, mention: Mention, place: int) -> bool:
        """Whether a shape or names within a phrase are a part of it: "conv 1x1", "rope to q and k"."""
        if self.tokens[place].kind not in ("shape", "names"):
            return False
        kept = [one for at, one in enumerate(self.tokens[: mention.end]) if at >= mention.start and at != place]
        return all(end != len(kept) or mention.names[0] not in some for end, some in phrases_at(kept, 0))

    def _introduces(self, found: list[Mention], option: Mention) -> bool:
        """Whether an option's phrase stands for its operation: no other mention near it does."""
        name = option.names[0]
        if not name.whole:
            return False
        others = [one for one in found if one is not option and one.names[0].operation == name.operation]
        if any(not one.names[0].option for one in others):
            return False
        return not any(one.names[0].whole and one.start < option.start for one in others)

    def request(self) -> tuple[Request, list[str]]:
        self._drop_repeats()
        self._absorb()
        self._take_options()
        sizes = self._take_sizes()
        shapes, layouts = self._take_shapes(sizes)
        self._take_numbers()
        for step in self.steps:
            self._check_bounds(step)
        self._take_axes()
        dtype, to = self._take_dtypes()
        self._take_names()
        steps = self._ordered()
        joint = self._joint(steps)
        inplace = self._take_word("inplace")
        self.left += [one for one in self.unplaced if not self._is_told(one)]
        self._take_rest()
        if self.unused:
            self.notes.append("not used: " + ", ".join(f'"{one}"' for one in dict.fromkeys(self.unused)))
        for one in self.tokens:
            if one.kind == "word" and isinstance(one.value, str):
                self.notes.append(f'"{one.value}" is read as "{one.text}"')
        request = Request(
            tuple(steps),
            tuple(sizes),
            tuple(shapes),
            tuple(layouts),
            dtype,
            to,
            tuple(self.notes),
            inplace,
            joint=joint,
        )
        return request, self.left

    # -- steps --

    def _drop_repeats(self) -> None:
        """An operation that is named once more says what it is: "rope (rotary embedding)"."""
        kept: list[Step] = []
        for one in self.steps:
            before = kept[-1] if kept else None
            between = [t.text for t in self.tokens[before.end : one.start]] if before else []
            apart = any(
                word in ("then", "->", "+", "after", "before", "and", "of", "times", "by", "twice") for word in between
            )
            if before is not None and before.operation.name == one.operation.name and not apart:
                before.end = one.end
                continue
            kept.append(one)
        self.steps = kept
        for one in list(self.steps):  # "add bias" within "conv with bias": it is the step's own
            if one.operation.name in ("bias",) and self._is_own(one):
                self.steps.remove(one)

    def _absorb(self) -> None:
        """An operation that says how the one before it works is no step: "MoE router: softmax over experts, top 2"."""
        for before in list(self.steps):
            if before not in self.steps:
                continue
            known = hints(before.operation.name)
            tensors = {stem(w) for one in before.operation.arguments for w in words_of(one.name)}
            for after in self.steps[self.steps.index(before) + 1 :]:
                between = {one.text for one in self.tokens[before.end : after.start]}
                said = {one.stem for one in self.tokens[after.start : after.end] if one.kind == "word"} - fillers()
                parted = between & {"then", "followed", "->", "+", "after", "before"}
                apart = {one.text for one in self.tokens[before.start : after.start]}
                explains = apart & {":", "(", ".", "=", "ie"} or (before.operation.describes and not parted)
                named = said <= tensors and not parted
                if (said and said <= known and (explains or named) and len(before.operation.hints) > 0) or (
                    said and named and len(said) == 1 and between & {"given", "with", ","}
                ):
                    self.steps.remove(after)
                    self.options = [
                        one
                        for one in self.options
                        if one.names[0].operation != after.operation.name
                        or any(s.operation is after.operation for s in self.steps)
                    ]

    def _is_own(self, step: Step) -> bool:
        """Whether "with bias" says of the step before it what it has anyway."""
        place = self.steps.index(step)
        if place == 0:
            return False
        before = self.steps[place - 1]
        between = {t.text for t in self.tokens[before.end : step.start] if t.kind == "word"}
        owns = any(one.name == "bias" for one in before.operation.with_options(tuple(before.options)).arguments)
        return owns and bool(between & {"with", "and"}) and self.tokens[step.start].text not in ("add", "plus")

    def _take_options(self) -> None:
        for mention in self.options:
            name = mention.names[0]
            step = self._nearest_step(mention.start, lambda one, name=name: one.operation.name == name.operation)
            if step is None:
                self.used -= set(range(mention.start, mention.end))
                continue
            if name.option not in step.options:
                step.options.append(name.option)
            step.start, step.end = (
                min(step.start, mention.start) if self._adjoins(mention, step) else step.start,
                step.end,
            )

    def _adjoins(self, mention: Mention, step: Step) -> bool:
        return mention.end == step.start

    # -- order --

    def _ordered(self) -> list[Step]:
        """The steps in the order in which they are done: "gelu of layernorm" is layernorm, then gelu."""
        self._check_joins()
        segments: list[list[Step]] = [[]]
        for place, one in enumerate(self.steps):
            between = self._between(place)
            if place and STRONG & set(between):
                segments.append([])
            segments[-1].append(one)
        return [one for segment in segments for one in self._in_order(segment)]

    def _check_joins(self) -> None:
        """Refuses neighbours whose order or meaning cannot be told: "sigmoid and tanh", "mean absolute value"."""
        for place in range(1, len(self.steps)):
            one, other = self.steps[place - 1], self.steps[place]
            span = self.tokens[one.end : other.start]
            between = [t.text for t in span if t.text not in ARTICLES]
            if "after" in between and place > 1 and self._between(place - 1) == [","]:
                raise self._unordered(self.steps[place - 2], other)
            if STRONG & set(between) or {"followed", ",", "after", "before"} & set(between) - {"first"}:
                if "first" in between or between == [",", "of"]:
                    raise self._unordered(one, other)
                continue
            if "after" in between and place > 1 and self._between(place - 1) == [","]:
                raise self._unordered(self.steps[place - 2], other)
            simple = [_is_plain(step) for step in (one, other)]
            joint = one.operation.kind == other.operation.kind == "reduce"
            named = [t for t in span if t.kind == "names" or t.text == "x"]
            reads = not between or (named and len(between) <= 2 and between[-1] == named[-1].text)
            if reads and (named or not _acts(one)) and not one.operation.leads:
                raise self._unordered(one, other)
            if (named and {"plus", "+", "times", "minus", "*"} & set(between)) or "first" in between:
                raise self._unordered(one, other)
            if between == ["of"] and one.operation.name in ("center", "minus_max", "over_sum", "over_max"):
                raise self._unordered(one, other)
            if one.operation.name in ("bias", "residual", "shift_by") and {"times", "*", "multiplied"} & set(between):
                raise self._unordered(one, other)
            if between == ["and"] and not joint and (simple[0] or other.operation.kind == "reduce"):
                raise self._unordered(one, other)
            if between in (["+"], ["plus"]) and all(simple):
                raise self._unordered(one, other)
            if between in (["with"], ["with", "its"]) and simple[0] and _acts(other):
                raise self._unordered(one, other)

    def _unordered(self, one: Step, other: Step) -> NotUnderstood:
        said = self._text(one.start, other.end)
        return unread(
            f'the order of the steps in "{said}" cannot be told; join them by "then", such as '
            f'"{one.operation.request} then {other.operation.request}", or write a formula with brackets'
        )

    def _between(self, place: int) -> list[str]:
        start = self.steps[place - 1].end if place else 0
        return [one.text for one in self.tokens[start : self.steps[place].start]]

    def _in_order(self, segment: list[Step]) -> list[Step]:
        found: list[Step] = []
        run: list[Step] = []
        for one in segment:
            place = self.steps.index(one)
            between = self._between(place)
            if run and self._goes_back(between, run[-1], one):
                run.append(one)
                continue
            found += run[::-1]
            run = [one]
        found += run[::-1]
        first = self._between(self.steps.index(segment[0])) if segment else []
        if "before" in first and len(segment) > 1:
            found[:2] = found[1::-1]
        return found

    def _goes_back(self, between: list[str], before: Step, after: Step) -> bool:
        if ("applied" in between and "to" in between) or between[:1] == ["after"]:
            return True
        words = [one for one in between if one not in ARTICLES and one not in ("output", "result", "outputs")]
        applies = self.tokens[max(0, before.start - 1)].text in ("apply", "applying")
        if words == ["to"] and _acts(before):
            return True  # "add bias to gelu"
        return words in (["of"], ["on"], ["after"], ["from"], ["over"]) or (words == ["to"] and applies)

    def _joint(self, steps: list[Step]) -> bool:
        """Two statistics with "and" between are two results."""
        if len(self.steps) < 2 or any(one.operation.kind != "reduce" for one in steps[-2:]):
            return False
        between = self._between(len(self.steps) - 1)
        return "and" in between or "," in between or "&" in between


def _is_plain(step: Step) -> bool:
    """A function of one tensor, without numbers, that is the name of no layer."""
    one = step.operation
    return (
        not one.leads
        and one.kind in ("map", "row")
        and len(one.arguments) == 1
        and not one.numbers
        and one.gives is None
    )


def _acts(step: Step) -> bool:
    """Something done with another tensor or a number: add bias, scale by 2."""
    one = step.operation
    return not one.leads and one.kind == "map" and (len(one.arguments) > 1 or bool(one.numbers))

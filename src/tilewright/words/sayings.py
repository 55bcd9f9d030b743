"""What the tokens beside the names of operations say: numbers, sizes, shapes, dtypes and dimensions."""

from __future__ import annotations

import re
from typing import Any

from tilewright.words.catalogue import fillers, hints, operations, vocabulary
from tilewright.words.errors import unread
from tilewright.words.layouts import fits, patterns
from tilewright.words.mentions import Step
from tilewright.words.text import stem, words_of
from tilewright.words.tokens import Token, number_of

STRONG = frozenset(("then", ";", "->", ".", "|", "!", "?"))
_OF_SHAPE = frozenset(
    ("(", "[", "is", "are", ":", "=", "of", "shape", "given", "size", "has", "with", "layout", "both", "have")
)
_PAIRS = {
    "row_sum": "add",
    "difference": "subtract",
    "row_prod": "multiply",
    "row_max": "maximum",
    "row_min": "minimum",
}


class Sayings:
    """One way to take the mentions, as far as what is said beside them goes."""

    tokens: list[Token]
    steps: list[Step]
    left: list[str]
    notes: list[str]
    unplaced: list[str]
    used: set[int]
    renamed: dict[str, str]
    given: frozenset[str]
    bound: dict[str, str]
    bound_letters: set[str]

    def _nearest_step(self, place: int, accepts: Any) -> Step | None:
        """The step that what is said there belongs to: the last before it that takes it, else the next."""
        before = [one for one in self.steps if one.start <= place and accepts(one)]
        after = [one for one in self.steps if one.start > place and accepts(one)]
        if before and after and self._is_parted(before[-1].end, place) and not self._is_parted(place, after[0].start):
            return after[0]
        return before[-1] if before else after[0] if after else None

    def _is_parted(self, start: int, end: int) -> bool:
        return any(one.text in STRONG or one.text in ("+", ",", "and", "with") for one in self.tokens[start:end])

    def _text(self, start: int, end: int) -> str:
        return " ".join(one.text for one in self.tokens[start:end])

    # -- numbers, sizes, dimensions --

    def _take_sizes(self) -> list[tuple[str, str]]:
        """Numbers with names: settings of a step, or sizes of dimensions."""
        sizes: list[tuple[str, str]] = []
        for place, one in enumerate(self.tokens):
            if one.kind != "size":
                continue
            role, value, noun = one.value
            if role == "betas" and " " in value:
                pairs = [("beta1", value.split()[0]), ("beta2", value.split()[1])]
            else:
                pairs = [(role, value)]
            for name, text in pairs:
                self._give(place, name, text, sizes, one, noun)
        return sizes

    def _give(self, place: int, role: str, value: str, sizes: list[tuple[str, str]], token: Token, noun: str) -> None:
        short = {"p": "padding", "s": "stride", "k": "window"}.get(noun, noun)
        for name in dict.fromkeys((noun, short, role, *vocabulary()["settings"].get(role, ()))):
            step = self._nearest_step(place, lambda one, name=name: one.takes_number(name))
            if step is not None:
                step.give(name, value)
                return
        if role in vocabulary()["bound"] or role in ("image",):
            before = self.tokens[place - 1].text if place else ""
            step = self._nearest_step(place, lambda one: one.operation.kind in ("reduce", "scan"))
            if (
                step
                and before in ("over", "across", "along", "of")
                and role in ("rows", "tokens", "sequence", "channels")
            ):
                step.axis, step.axis_said = "rows?", f"{before} {token.text}"
            sizes.append((noun if len(noun) == 1 else role, value))
        else:
            self.left.append(token.text)

    def _take_numbers(self) -> None:
        """Numbers without names, in the order in which a step takes them."""
        for place, one in enumerate(self.tokens):
            if one.kind != "number":
                continue
            inside = next((s for s in self.steps if s.start <= place < s.end and place in self.used), None)
            if place in self.used and inside is None:
                continue
            self.used.add(place)

            def free(step: Step) -> bool:
                return any(name not in step.numbers for name in step.operation.bare)

            after = self.tokens[place + 1] if place + 1 < len(self.tokens) else one
            if (
                after.kind == "size"
                and after.value[0] in vocabulary()["bound"]
                and one.text.isdigit()
                and after.text[0].isalpha()
            ):
                self.left.append(f"{one.text} {after.text}")  # "elu 2 rows 5"
                continue
            step = inside or self._nearest_step(place, free)
            if step is None or not free(step) or (inside is None and self._is_far(step, place)):
                self.unplaced.append(one.text)
                continue
            if step.operation.bare[0] == "window" and not re.fullmatch(r"\d|1[0-5]", one.text):
                self.unplaced.append(one.text)
                continue
            step.give(next(name for name in step.operation.bare if name not in step.numbers), number_of(one))

    def _check_bounds(self, step: Step) -> None:
        """One bound of two: from below or from above where its name is said, else it cannot be told."""
        if step.operation.bare != ("low", "high") or len(step.numbers) != 1:
            return
        (name,) = step.numbers
        named = any(t.kind == "size" and t.value[0] == name for t in self.tokens)
        options = {one.name for one in step.operation.options}
        if named and name in options:
            step.options.append(name)
        elif not named:
            self.left.append(f"{self._text(step.start, step.end)} {step.numbers[name]}, from below or from above,")

    def _is_far(self, step: Step, place: int) -> bool:
        between = self.tokens[step.end : place] if step.end <= place else self.tokens[place + 1 : step.start]
        return any(one.text in STRONG for one in between) or len(between) > 6

    def _take_letters(self) -> None:
        """A dimension by its letter in the first shape: "over T" of x (B, T, D)."""
        shapes = [t.text.strip("()").split(",") for t in self.tokens if t.kind == "layout"]
        for place in range(1, len(self.tokens)):
            one, before = self.tokens[place], self.tokens[place - 1].text
            if not shapes or before not in ("over", "along", "across") or shapes[0].count(one.text) != 1:
                continue
            step = self._nearest_step(place, lambda one: one.operation.goes_over and one.axis is None)
            if step is not None:
                step.axis, step.axis_said = (shapes[0].index(one.text),), f"{before} {one.text}"
                self.used |= {place - 1, place}

    def _take_axes(self) -> None:
        self._take_letters()
        for place, one in enumerate(self.tokens):
            if one.kind != "axis":
                continue
            step = self._nearest_step(place, lambda one: one.operation.goes_over and one.axis is None)
            step = step or self._nearest_step(
                place, lambda one, place=place: one.operation.axis == "last" or one.axis == self._axis(place)
            )
            if step is not None and not step.operation.goes_over:
                said = {stem(word) for word in words_of(one.text)} - fillers() - {"over", "along", "across", "dim"}
                if said and said <= {stem(w) for text in step.operation.hints for w in words_of(text)}:
                    continue
            if step is None:
                if not any(stem(word) in hints(s.operation.name) for s in self.steps for word in words_of(one.text)):
                    self.left.append(one.text)
                continue
            step.axis, step.axis_said = one.value, one.text
            shared = [
                s
                for s in self.steps
                if s is not step and s.operation.goes_over and s.axis is None and s.end <= step.start
            ]
            for other in shared:  # "mean and variance of each row"
                if {t.text for t in self.tokens[other.end : step.start]} <= {"and", "the", ",", "&"}:
                    other.axis, other.axis_said = one.value, one.text

        for step in self.steps:
            after = [one.text for one in self.tokens[step.end : step.end + 4]]
            whole = re.match(
                r"of (?:an?|the) (?:large |big |huge |long |whole |2d |1d )?(?:matrix|array|tensor|vector)\b",
                " ".join(after),
            )
            if whole and step.axis is None and step.operation.kind == "reduce" and len(step.operation.arguments) == 1:
                step.axis, step.axis_said = (), whole[0]

    def _axis(self, place: int) -> Any:
        return self.tokens[place].value

    def _take_layout(self, place: int, sizes: list[tuple[str, str]]) -> list[Any]:
        """A shape by letters: that of the tensor before it, which selects the variant that takes it in that order."""
        one = self.tokens[place]
        owners, before = self._names_before(place), {t.text for t in self.tokens[max(0, place - 2) : place]}
        if not owners and before & {"->", "into", "out", "output", "result", "return", "returns", "give", "gives"}:
            self.notes.append(f"not used: the shape {one.text} of the result, which follows from the others")
            return []
        named = {name for name in owners if any(patterns(s.operation, (name,)) for s in self.steps)}
        owned = owners if named else () if set(owners) <= {"x"} or not owners else None
        word = self.tokens[place - 1] if place else one
        if not owners and word.kind == "word" and place - 1 not in self.used and word.stem not in fillers():
            owned = (word.text,) if any(patterns(s.operation, (word.text,)) for s in self.steps) else ()
        if not self.steps and place and self._names_before(place) in ((), ("x",)):
            return [((), one.value)]
        single = len(self.steps[0].operation.arguments) == 1 if self.steps else False
        if owners == ("a",) and single:
            owned = ()
        if owned is None and len(owners) == 1 and self.steps:
            owned = self._by_order(owners[0])
        for step in self.steps:
            for options in ((), *((o.name,) for o in step.operation.options if "takes" in o.changes)):
                operation = step.operation.with_options((*step.options, *options))
                found = patterns(operation, owned) if owned is not None else []
                whole = found and (all if owned else any)(fits(pattern, one.value) for pattern in found)
                if whole and not self._agrees(one, next(each for each in found if fits(each, one.value))):
                    continue
                if whole:
                    step.options += [name for name in options if name not in step.options]
                    first = patterns(operation, ())[0]
                    if step is self.steps[0] and (not owned or (fits(first, one.value) and found[0] == first)):
                        return [((), one.value)]
                    pattern = next(each for each in found if fits(each, one.value))
                    for name, text in zip(pattern, one.value, strict=False) if "..." not in pattern else ():
                        if text.isdigit() and step.takes_number(name):
                            step.give(name, text)
                    if not owned:
                        self.notes.append(f"{one.text} is taken for the shape of a tensor of {step.operation.says}")
                    if "..." not in pattern:
                        sizes += [
                            (n, said)
                            for n, said in zip(pattern, one.value, strict=True)
                            if said.isdigit() and n != said and not step.takes_number(n)
                        ]
                    return []
        self.left.append(f"{' and '.join(owners)} {one.text}".strip())
        return []

    def _agrees(self, one: Token, pattern: tuple[str, ...]) -> bool:
        """Whether a dimension that tensors share has one letter: not weight (T,) beside x (B, T, D) with rows of D."""
        names = [name for name in pattern if name != "..."]
        letters = one.text.strip("()").split(",")[-len(names) :] if names else []
        for name, letter in zip(names, letters, strict=False):
            other = self.bound.setdefault(name, letter)
            if other != letter and letter in self.bound_letters and not letter.isdigit():
                return False
        self.bound_letters |= set(one.text.strip("()").split(","))
        return True

    def _by_order(self, owner: str) -> tuple[str, ...] | None:
        """The tensor of the first step that a name not of its own stands for: they are in the same order."""
        own = [one.name for one in self.steps[0].operation.with_options(tuple(self.steps[0].options)).arguments]
        if owner not in self.renamed and len(self.renamed) < len(own):
            self.renamed[owner] = own[len(self.renamed)]
            self.notes.append(f"{owner} is the {self.renamed[owner].replace('_', ' ')}")
        return (self.renamed[owner],) if owner in self.renamed else None

    def _take_shapes(self, sizes: list[tuple[str, str]]) -> tuple[list[Any], list[Any]]:
        """Shapes and layouts, with the names before them; a small shape is a window where a step has one."""
        shapes: list[Any] = []
        layouts: list[Any] = []
        for place, one in enumerate(self.tokens):
            if place in self.used:
                continue
            if one.kind == "shape":
                step = self._nearest_step(place, lambda one: one.takes_number("window") and "window" not in one.numbers)
                if step is not None and max(one.value) < 16:
                    step.give("window", _tuple_text(one.value))
                    continue
                step = self._nearest_step(place, lambda one: len(one.operation.bare) == 2 and not one.numbers)
                if step is not None and len(one.value) == 2 and one.text[0] in "([" and step.operation.kind == "map":
                    step.numbers.update(zip(step.operation.bare, map(str, one.value), strict=True))
                    continue
                shapes.append((self._names_before(place), one.value))
            elif one.kind == "layout":
                layouts += self._take_layout(place, sizes)
        return shapes, layouts

    def _names_before(self, place: int) -> tuple[str, ...]:
        """The tensors that a shape or a layout is said of: "x is [B, S]", "a (512 x 1024)"."""
        at = place - 1
        while at >= 0 and self.tokens[at].text in _OF_SHAPE:
            at -= 1
        one = self.tokens[at] if at >= 0 else None
        if one is not None and one.kind == "names":
            self.used.add(at)
            return tuple(one.value)
        if one is None or one.kind != "word" or at in self.used:
            return ()
        between = {t.text for t in self.tokens[at + 1 : place]}
        of = at > 0 and self.tokens[at - 1].text in ("of", "between", "matmul", "multiplication", ",", "times", "and")
        if one.text == "a" and not (
            between & {"is", ":", "="} or (of and ("(" in between or self.tokens[place].text[0] in "(["))
        ):
            return ()
        if self._is_tensor(one.text) or one.text in self.given or one.text == "a":
            self.used.add(at)
            return (one.text,)
        return ()

    def _is_tensor(self, text: str) -> bool:
        return text in vocabulary()["tensors"].split()

    def _take_dtypes(self) -> tuple[str, str]:
        """The dtype of the elements, and that of the result where it is another."""
        dtype, to = "", ""
        cast = next((one for one in self.steps if one.operation.name == "cast"), None)
        for place, one in enumerate(self.tokens):
            if one.kind != "dtype":
                continue
            before = [t.text for t in self.tokens[max(0, place - 3) : place]]
            after = [t.text for t in self.tokens[place + 1 : place + 2]]
            inside = [t.text for t in self.tokens[max(0, place - 5) : place]]
            if any(
                re.match(r"accum|math|comput|calculat|intern|inside|sum|stat|state|everything", t)
                for t in [*inside, *after]
            ):
                self.notes.append(
                    f'not used: "{one.text}" for what is computed on the way, which kernels do in f32 anyway'
                )
            elif (
                (cast is not None and before[-1:] in (["to"], ["into"], ["as"]))
                or before[-2:] in (["to", "an"],)
                or (
                    {"out", "output", "result", "returns", "return", "to"} & set(before[-2:])
                    or (after == ["out"] and dtype)
                )
            ):
                to = one.value
            elif dtype and dtype != one.value:
                raise unread(f"it says {dtype} and {one.value}")
            else:
                dtype = one.value
        if cast is not None and to:
            cast.options.append(to)
            to = ""
        elif cast is not None:
            cast.options.append(dtype)
            dtype = ""
        return dtype, "" if to == dtype else to

    def _take_names(self) -> None:
        """Names of tensors go to the step before them that takes as many."""
        for place, one in enumerate(self.tokens):
            if one.kind != "names" or place in self.used:
                continue
            many = one.value
            step = self._nearest_step(place, lambda one: not one.called)
            if step is None:
                self.left.append(one.text)
                continue
            behind = self.tokens[max(0, place - 1)].text in ("of", "between", "for", "the") and step.end >= place - 2
            if behind and len(many) == 2 and step.operation.name in _PAIRS:
                step.operation = operations()[_PAIRS[step.operation.name]]
            own = [a.name for a in step.operation.with_options(tuple(step.options)).arguments]
            if len(many) == len(own) or (len(many) == len(own) - 1 and set(many) & set(own)):
                if all(len(name) <= 2 for name in many) and len(set(many)) == len(many) == len(own):
                    step.called = many
            elif not set(many) <= {*own, *self.given} and not all(stem(n) in hints(step.operation.name) for n in many):
                self.left.append(one.text)


def _tuple_text(sides: tuple[int, ...]) -> str:
    return str(sides[0]) if len(set(sides)) == 1 and len(sides) < 3 else str(sides)

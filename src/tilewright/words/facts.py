"""What a request says beside the names of operations: numbers, sizes, shapes, dtypes and dimensions."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from tilewright.words.catalogue import Operation, contents, hints, operations, vocabulary
from tilewright.words.errors import unread
from tilewright.words.steps import NEGATIONS, THEN, Step, tensors, words_in
from tilewright.words.text import listed, stem
from tilewright.words.tokens import Token, number_of

_OF_SHAPE = listed("( [ is are : = of shape given size has with layout both have")
_PAIRS = {"row_sum": "add", "difference": "subtract", "row_prod": "multiply", "row_max": "maximum"}
_PAIRS["row_min"] = "minimum"


class Facts:
    """What tokens say of steps. What cannot be placed is `left`."""

    tokens: list[Token]
    given: Collection[str]

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.entry = ""
        self.left: list[str] = []
        self.notes: list[str] = []
        self.used: set[int] = set()
        self.bound: dict[str, str] = {}
        self.lone: list[tuple[str, str]] = []  # sizes without a name

    def _text(self, start: int, end: int) -> str:
        return " ".join(one.text for one in self.tokens[start:end])

    def _words(self, start: int, end: int) -> list[str]:
        return words_in(self.tokens, start, end)

    def _nearest(self, place: int, accepts: Callable[[Step], bool]) -> Step | None:
        """The step that what is said there belongs to: the last before it that takes it, else the next."""
        before = [one for one in self.steps if one.start <= place and accepts(one)]
        after = [one for one in self.steps if one.start > place and accepts(one)]
        if before and after and self._parted(before[-1].end, place) and not self._parted(place, after[0].start):
            return after[0]
        return before[-1] if before else after[0] if after else None

    def _parted(self, start: int, end: int) -> bool:
        return bool({*THEN, "+", ",", "and", "with"} & set(self._words(start, end)))

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
        return sizes + self.lone, shapes, layout

    def _give(self, place: int, token: Token, sizes: list[tuple[str, str]]) -> None:
        role, value, noun = token.value
        pairs = [(role, value)]
        if role == "betas" and " " in value:
            pairs = [("beta1", value.split()[0]), ("beta2", value.split()[1])]
        result = {"out", "output", "result"} & set(self._words(place - 3, place))
        for name, text in pairs:
            more = {"rows": ["nodes", "slots"]} if result else vocabulary()["settings"]
            for each in dict.fromkeys((noun, name, *more.get(name, ()), *more.get(noun, ()))):
                step = self._nearest(place, partial(Step.takes_number, name=each))
                if step is not None:
                    step.give(each, text)
                    break
            else:
                step = self._nearest(place, partial(_is_open, noun))
                if step is not None:
                    step.give(next(n for n in step.chosen.bare if n not in step.numbers), text)
                    break
                if name not in vocabulary()["bound"] and name != "image":
                    self.left += [] if self._says(noun, text) else [token.text]
                    continue
                reducing = self._nearest(place, lambda one: one.operation.kind in ("reduce", "scan"))
                over = {"over", "across", "along", "of"} & set(self._words(place - 1, place))
                if reducing and over and name in ("rows", "tokens", "sequence", "channels"):
                    reducing.axis, reducing.axis_said = "rows?", token.text
                sizes.append((noun if len(noun) == 1 else name, text))

    def _take_number(self, place: int, one: Token) -> None:
        """A number without a name goes to the step near it that takes another one."""
        inside = next((s for s in self.steps if s.start <= place < s.end and place in self.used), None)
        if place in self.used and inside is None:
            return
        self.used.add(place)

        def free(step: Step) -> bool:
            return any(name not in step.numbers for name in step.chosen.bare)

        step = inside or self._nearest(place, free)
        far = False
        if step is not None and inside is None:
            start, end = (step.end, place) if step.end <= place else (place + 1, step.start)
            far = not self.entry and (bool(THEN & set(self._words(start, end))) or end - start > 6)
        after = self.tokens[place + 1] if place + 1 < len(self.tokens) else one
        of_size = after.kind == "size" and after.value[0] in vocabulary()["bound"] and after.text[0].isalpha()
        of_size = of_size and one.text.isdigit()
        large = step is not None and step.operation.bare[:1] == ("window",) and not re.fullmatch(r"\d|1\d", one.text)
        before = self.tokens[place - 1].kind if place else ""
        wide = next((s for s in self.steps if s.operation.axis == "last" and s.operation.leads), None)
        if wide and one.text.isdigit() and int(one.text) > 31 and (before == "dtype" or wide.end == place):
            self.notes.append(f"{one.text} is taken for the size of the last dimension")
            self.lone.append(("hidden", one.text))
            return
        if step is None or not free(step) or far or of_size or large:
            self.left += [] if self._is_told(one.text) else [one.text]
            return
        step.give(next(name for name in step.chosen.bare if name not in step.numbers), number_of(one))

    def _says(self, noun: str, number: str) -> bool:
        """Whether an entry says that number of that name: "mu 255"."""
        return any(f"{noun} {number}" in " ".join(step.operation.hints) for step in self.steps)

    def _is_told(self, number: str) -> bool:
        """Whether a number is one that a step has anyway, or says in its hints."""
        for step in self.steps:
            one = step.chosen
            if number == str(len(one.arguments)):
                return True
            told = (*one.hints, *one.assume, *one.numbers.values(), *one.params.values(), *step.numbers.values())
            found = re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?", " ".join(told))
            values = {abs(float(each)) for each in found}
            values |= {round(1 - each, 9) for each in values if 0 < each < 1}
            if abs(float(number_of(Token("number", number)))) in values:
                return True
        return False

    def _take_shape(self, place: int, one: Token) -> list[Any]:
        """A shape; a small one is a window where a step has one, and a pair the numbers of a step with two."""
        if self._words(place - 1, place) == ["to"]:
            self.left.append(f"to {one.text}")  # it is the shape of the result
            return []
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
        said = {t.text for t in self.tokens[at + 1 : place]} & {"is", ":", "=", "("} or self.tokens[place].text[
            0
        ] in "(["
        if (one.text == "a" and not said) or not (one.text in tensors() or one.text in self.given or one.text == "a"):
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
                patterns = _patterns(operation, owners)
                thin = tuple(side for side in one.value if side != "1")
                said = one.value if any(_fits(each, one.value) for each in patterns) else thin
                fitting = [each for each in patterns if _fits(each, said)]
                if not owners:  # (M, 1) behind an unknown name is no [rows, cols]
                    fitting = [each for each in fitting if each.count("1") >= one.value.count("1")]
                if not fitting or (owners and len(fitting) < len(_patterns(operation, owners))):
                    continue
                step.options += more
                pattern = fitting[0]
                if not self._agrees(one, pattern):
                    continue
                if step is self.steps[0] and pattern == operation.arguments[0].dimensions:
                    return tuple(one.value)
                pairs = zip(pattern, said, strict=True) if "..." not in pattern else ()
                sizes += [(n, size) for n, size in pairs if size.isdigit() and n != size and not step.takes_number(n)]
                return ()
        ranks = {len(each) if "..." not in each else 0 for step in self.steps for each in _patterns(step.chosen, ())}
        alone = not any(t.kind == "layout" for t in self.tokens[:place])
        if owners or alone or 0 in ranks or len(one.value) in ranks:
            self.left.append(f"{' and '.join(owners)} {one.text}".strip())
        else:
            self.notes.append(f"not used: the shape {one.text}, which no tensor has")
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
        known = {name for one in own for name in called(one)}
        arguments = step.chosen.arguments
        if any(re.search(rf"\b{one} *=", step.chosen.code) for one in many):
            return  # the code has names of its own
        pair = len(many) == 2 == len(arguments) and "".join(many) in ("ab", "pq", "uv", "xy", "rs", "ax")
        if pair and len(arguments[0].dimensions) == len(arguments[1].dimensions):
            step.called = many
            return
        others = [n for n in many if len(called(n)) > 1 and not called(n) & known and n not in "abcuw"]
        if others and not (len(others) == 1 < len(many) == len(own)):
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
                step = self._nearest(place, partial(_goes_over, one.value))
            explained = any(contents(one.text) and contents(one.text) <= self._explained(s) for s in self.steps)
            if one.value == "row" and place not in self.used and any(map(_by_column, self.steps)):
                explained = False  # "a bias per row"
            last = [s for s in self.steps if s.end <= place][-1:]
            if last and step and step.start < last[0].start and THEN & set(self._words(step.end, last[0].start)):
                step, explained = None, False  # "rmsnorm, then times a gate over dim 0"
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
            if any(re.match(r"accum(?!ulates32)|math|comput|calcul|intern|inside|stat|everything", t) for t in near):
                self.notes.append(f'not used: "{one.text}" on the way: kernels compute in f32 anyway')
            elif result or (after in (["out"], ["output"], ["result"]) and (dtype or cast)):
                to = one.value
            elif dtype and dtype != one.value and tensor in tensors() | {"scales", "scale"}:
                self.notes.append(f'not used: "{tensor} {one.text}"')
            elif dtype and dtype != one.value:
                raise unread(f"it says {dtype} and {one.value}")
            else:
                dtype = one.value
        if cast is not None:
            cast.options.append(to or dtype)
            return ("", "") if not to else (dtype, "")
        return (dtype, "" if to == dtype else to) if dtype or not to else ("", to)

    def _explained(self, step: Step) -> frozenset[str]:
        return hints(step.operation.name) - NEGATIONS


def _is_open(noun: str, step: Step) -> bool:
    """Whether a number by a usual name, such as lambda or r, may be the one number that a step takes."""
    open_numbers = [name for name in step.chosen.bare if name not in step.numbers]
    return noun in vocabulary()["any_number"].split() and len(open_numbers) == 1 and step.operation.kind == "map"


def _by_column(step: Step) -> bool:
    """Whether it has one number per column."""
    return step.operation.kind == "map" and step.chosen.arguments[-1].dimensions == ("cols",)


def _goes_over(axis: object, step: Step) -> bool:
    return step.operation.axis == "last" or step.axis == axis


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
    numbers = [
        *zip(layout[:at], fixed[:at], strict=False),
        *(zip(layout[-after:], fixed[at:], strict=True) if after else ()),
    ]
    if any(one.isdigit() and other.isdigit() and one != other for one, other in numbers):
        return False
    return not any(a and b and a != b and (a in own or b in said) for a, b in pairs)


def _patterns(operation: Operation, owners: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The dimensions of the tensors with these names, of all where there are none."""
    listed = [one for one in operation.arguments if operation.slots.get(one.name) != "None"]
    wanted = {name for one in owners for name in called(one)}
    return [one.dimensions for one in listed if not owners or wanted & {*called(one.name), *one.name.split("_")}]


def called(name: str) -> set[str]:
    """A name of a tensor, and the others that it may have."""
    return {name, *vocabulary()["tensor_names"].get(name, "").split()}

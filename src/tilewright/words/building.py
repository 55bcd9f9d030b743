"""A reference under construction: tensors and their dimensions, numbers, statements, and what was assumed."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, count, islice, zip_longest
from typing import Any

from tilewright.records import DType
from tilewright.words.catalogue import Argument, Operation, parsed_arguments, vocabulary
from tilewright.words.errors import NotUnderstood, unread

_PLACE = re.compile(r"\{(=?[^{}]+)\}")
_NUMBER = re.compile(r"-?\d*\.?\d+\.?(?:e[-+]?\d+)?|\([\d, ]+\)")
TRAILING: tuple[tuple[str, ...], ...] = (("length",), ("height", "width"), ("depth", "height", "width"))
RANKS: tuple[tuple[str, ...], ...] = ((), ("cols",), ("rows", "cols"), ("batch", "rows", "cols"))
RANKS += tuple(("batch", "channels", *sides) for sides in TRAILING[1:])
_LEADING: tuple[tuple[str, ...], ...] = ((), ("rows",), ("batch", "rows"), ("batch", "heads", "rows"))
_LEAST = dict.fromkeys(("window", "stride", "dilation", "groups", "k"), 1)  # of numbers that are whole
_LEAST |= dict.fromkeys(("padding", "group", "bins", "nodes", "factor", "size"), 0)
UNKNOWN = "?"  # a dimension whose size is not known before the kernel runs

Dimensions = tuple[str, ...]
Bound = dict[str, Dimensions]
Axis = tuple[int, ...] | None  # the dimensions that an operation goes over; () is all of them


@dataclass(frozen=True)
class Value:
    """An expression and its dimensions."""

    code: str
    dimensions: Dimensions

    @property
    def atom(self) -> str:
        """The code as what binds most closely, in brackets if need be."""
        body = ast.parse(self.code, mode="eval").body
        is_atom = isinstance(body, (ast.Call, ast.Name, ast.Attribute, ast.Subscript, ast.Constant))
        return self.code if is_atom else f"({self.code})"


@dataclass
class Builder:
    """`renamed` are names that a person gave to tensors; `rank` and `layout` are the number and the names of the first
    tensor's dimensions where they are known."""

    renamed: dict[str, str] = field(default_factory=dict)
    rank: int | None = None
    layout: Dimensions = ()
    tensors: list[Argument] = field(default_factory=list)  # that the reference takes
    params: dict[str, str] = field(default_factory=dict)
    derived: dict[str, str] = field(default_factory=dict)  # dimensions that are formulas of others
    multiples: dict[str, int] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)  # a dimension and the one that it is equal to
    used: set[str] = field(default_factory=set)
    needs: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    positive: str = ""

    def assume(self, text: str) -> None:
        if text and text not in self.assumptions:
            self.assumptions.append(text)

    def dimension(self, name: str) -> str:
        """A new dimension with that name, or with a similar one that is free."""
        found = _free(name, self.used, *("pqr" if name in ("n", "m", "k") else ""))
        self.used.add(found)
        return found

    def settled(self, dimensions: Dimensions) -> Dimensions:
        """The dimensions by the names that they have after all equal ones were joined."""
        return tuple(self.settled((self.same[one],))[0] if one in self.same else one for one in dimensions)

    def join(self, left: Dimensions, right: Dimensions) -> None:
        """Makes the dimensions of two values that broadcast equal, the last first."""
        for pair in zip(left[::-1], right[::-1], strict=False):
            one, other = self.settled(pair)
            if one != other and not {one, other} & {"1", UNKNOWN} and not (one.isdigit() and other.isdigit()):
                kept, gone = (other, one) if other in self.derived or other.isdigit() else (one, other)
                self.same[gone] = kept

    def tensor(self, argument: Argument, dimensions: Dimensions) -> Value:
        """A new tensor of the reference."""
        _refuse_unknown(argument.name, dimensions)
        wanted = self.renamed.get(argument.name, argument.name)
        name = _free(wanted, {one.name for one in self.tensors} | set(self.params))
        name = name if name == wanted else self.renamed.get(name, name)
        self.tensors.append(replace(argument, name=name, dimensions=dimensions))
        return Value(name, dimensions)

    def generic(self) -> Dimensions:
        """The dimensions of a first tensor that may have any."""
        rank = 2 if self.rank is None else self.rank
        if not self.layout and rank >= len(RANKS):
            raise NotUnderstood(f"a tensor of {rank} dimensions is read in a function only")
        return tuple(map(self.dimension, self.layout or RANKS[rank]))

    # -- an operation --

    def apply(
        self,
        operation: Operation,
        first: Value | None,
        numbers: Mapping[str, str] | None = None,
        axis: Axis = None,
        axis_said: str = "",
        others: tuple[Value | None, ...] = (),
    ) -> Value:
        """The value of an operation that goes over `axis`. Where an argument is None, it is a new tensor."""
        operation = self._adapted(operation, first, axis)
        texts, values = _numbers(operation, numbers or {})
        named = {one: self._parameter(one, texts[one]) for one in operation.params}
        arguments = parsed_arguments(fill(operation.takes, texts, values))
        arguments = tuple(one for one in arguments if operation.slots.get(one.name) != "None")
        bound: Bound = {}
        before = len(self.tensors)
        taken: dict[str, Value] = {}
        for argument, one in zip_longest(arguments, (first, *others)[: len(arguments)]):
            if one is not None:
                taken[argument.name] = self._matched(operation, argument, one, bound)
            elif taken and operation.name == "concat":
                taken[argument.name] = self.tensor(argument, self._beside(bound, (axis or (-1,))[0]))
            else:
                taken[argument.name] = self.tensor(argument, self._new_dimensions(argument, bound, not taken))
        value = taken[arguments[0].name]
        axis = _checked_axis(operation, axis, axis_said, value.dimensions)
        code = operation.code
        for _ in range(2):
            code = fill(code, {**operation.slots, **_axis_code(axis, value), **named})
        *lines, last = _with_values(code, taken, values).replace(", )", ")").replace("(, ", "(").split("\n")
        self.lines += lines
        self._note(operation, {**texts, **{name: one.code for name, one in taken.items()}}, values, bound, axis)
        for place, made in enumerate(self.tensors[before:], before):
            if made.values.startswith("index "):
                size = bound.get(made.values[6:], (made.values[6:],))
                _refuse_unknown(made.name, size)
                self.tensors[place] = replace(made, values=f"index {size[0]}")
        dimensions = self._result(operation, value, {**texts, **_same_sides(values, bound)}, bound, axis)
        try:
            ast.parse(last, mode="eval")
        except SyntaxError:
            raise unread(f"{operation.says} does not go {goes_over(axis or ())}") from None
        return Value(last, dimensions)

    def _adapted(self, operation: Operation, first: Value | None, axis: Axis) -> Operation:
        """The operation as it is after one on images, or over a dimension that is not the last."""
        rank = len(first.dimensions) if first else self.rank
        if operation.image and first and len(first.dimensions) >= 4 and first.dimensions[1] in ("channels", "filters"):
            operation = replace(operation, **operation.image)
        if operation.elsewhere and axis not in (None, (-1,), ((rank or 2) - 1,)):
            operation = replace(operation, **operation.elsewhere)
        return operation

    def _parameter(self, name: str, text: str) -> str:
        """The name of a new parameter of the reference."""
        found = _free(name, {*self.params, *(one.name for one in self.tensors)})
        self.params[found] = text
        return found

    # -- its tensors: patterns of dimensions are bound to those that there are --

    def _matched(self, operation: Operation, argument: Argument, value: Value, bound: Bound) -> Value:
        """A value that is there already, its dimensions bound to those that the operation says."""
        if argument.dtype is not None and not argument.dtype.is_float and value.code in ("y", "z", "out", "result"):
            raise NotUnderstood(f"{operation.says} takes {argument.dtype} elements, and what it gets has others")
        found = self.settled(value.dimensions)
        names = [one.partition("=")[0].strip() for one in argument.dimensions]
        more = len(found) - sum(one != "..." for one in names)  # as many dimensions as "..." stands for
        if more < 0 or (more and "..." not in names):
            listed = ", ".join(one for one in argument.dimensions if one != "...")
            raise NotUnderstood(f"{operation.says} takes [{listed}], and what it gets has {len(found)} dimensions")
        left = iter(found)
        for name in names:
            one = tuple(islice(left, more if name == "..." else 1))
            if name in bound:
                self.join(bound[name], one)
            elif not name.isdigit():
                bound[name] = one
        return replace(value, dimensions=found)

    def _new_dimensions(self, argument: Argument, bound: Bound, first: bool) -> Dimensions:
        """The dimensions of a new tensor; those that are bound already stay the same."""
        pattern = argument.dimensions
        fixed = [one for one in pattern if one != "..."]
        if first and pattern == ("...",):
            listed = argument.dtype is DType.I64 and self.rank is None and not self.layout
            bound["..."] = (self.dimension("tokens"),) if listed else self.generic()
        if "..." in pattern and "..." not in bound:
            bound["..."] = self._more(len(fixed), pattern[0] == "...")
        if first and len(self.layout) == len(fixed):
            for name, one in zip(fixed, self.layout, strict=True):
                if name not in bound and name.isidentifier() and one.isidentifier():
                    bound[name] = (self.dimension(one),)
        return self.settled(tuple(chain(*(self._bound(one, bound) for one in pattern))))

    def _bound(self, one: str, bound: Bound) -> Dimensions:
        """What a dimension of a pattern stands for: `k`, `3`, `...` or `half=cols / 2`; a new dimension if need be."""
        name, _, formula = (part.strip() for part in one.partition("="))
        if name not in bound and not name.isdigit():
            bound[name] = (self.dimension(name),)
            for other in re.findall(r"[a-z]\w*", formula):
                bound[other] = bound.get(other) or (self.dimension(other),)
            if formula:
                self.derived[bound[name][0]] = re.sub(r"[a-z]\w*", lambda m: bound[m[0]][0], formula)
        return bound.get(name, (name,))

    def _more(self, fixed: int, before: bool) -> Dimensions:
        """New dimensions for `...` beside as many that are named."""
        rank = max(0, (self.rank or len(self.layout) or fixed + (fixed == 1)) - fixed)
        if not before:
            names = TRAILING[min(max(rank, 1), 3) - 1 if self.rank or self.layout else 1]
        elif self.layout and len(self.layout) == rank + fixed:
            names = self.layout[:rank]
        else:
            names = ("batch",) if rank == 1 and fixed > 1 else _LEADING[min(rank, 3)]
        return tuple(map(self.dimension, names))

    def _beside(self, bound: Bound, axis: int) -> Dimensions:
        """The dimensions of a tensor that is joined with the first one: of its own size along the axis."""
        first = bound["..."]
        axis %= len(first)
        own, total = self.dimension(first[axis]), self.dimension(f"joined_{first[axis]}")
        self.derived[total] = f"{first[axis]} + {own}"
        bound["..."] = (*first[:axis], total, *first[axis + 1 :])
        return (*first[:axis], own, *first[axis + 1 :])

    def _result(
        self, operation: Operation, value: Value, texts: dict[str, str], bound: Bound, axis: Axis
    ) -> Dimensions:
        """The dimensions of the result."""
        if operation.kind == "reduce":
            rank = len(value.dimensions)
            gone = {one % rank for one in axis or range(rank)}
            return tuple(one for place, one in enumerate(value.dimensions) if place not in gone)
        if operation.gives is None:
            return value.dimensions
        sides = iter(texts.get("sides", "").split())
        parts = (one.strip() for one in fill(operation.gives, texts, {}).split(","))
        parts = (next(sides, one) if one == UNKNOWN else one for one in parts)
        known = (bound.get(one, (one if one.isdigit() else UNKNOWN,)) for one in parts if one)
        return self.settled(tuple(chain(*known)))

    def _note(
        self, operation: Operation, texts: dict[str, str], numbers: dict[str, Any], bound: Bound, axis: Axis
    ) -> None:
        """What is assumed of an operation, and what must hold for it."""
        goes = goes_over(axis or ())
        texts = {**texts, "along": "of each row, along the last dimension" if axis in (None, (-1,)) else goes}
        told = {one: fill(fill(one, texts), texts, numbers) for one in operation.assume}
        for text in told.values():
            self.assume(text)
        if axis is not None and not any("{along}" in one or "dimension" in text for one, text in told.items()):
            self.assume(f"{operation.says} goes {goes}")
        for name, text in operation.multiple.items():
            multiple = computed(text, numbers)
            if not isinstance(multiple, int) or multiple < 1:
                raise unread(f"{name} cannot be a multiple of {multiple}; say a whole number")
            self.multiples[bound[name][0]] = multiple
        sizes = {name: one[0] for name, one in bound.items() if name != "..." and len(one) == 1}
        self.needs += [(need, numbers, sizes) for need in operation.needs]
        self.positive = self.positive or operation.positive

    def check(self, sizes: dict[str, int]) -> None:
        """Raises `NotUnderstood` where numbers and sizes are not as they must be, such as channels % groups == 0."""
        for name, multiple in self.multiples.items():
            (one,) = self.settled((name,))
            if sizes.get(one, 0) % multiple:
                raise NotUnderstood(f"{one} is {sizes[one]}, and must be a multiple of {multiple}")
        for need, numbers, names in self.needs:
            settled = {one: self.settled((dimension,))[0] for one, dimension in names.items()}
            known = {one: sizes[dimension] for one, dimension in settled.items() if dimension in sizes} | numbers
            try:
                holds = computed(need, known)
            except NotUnderstood:  # of sizes that are not known, or of windows that are no squares
                continue
            if not holds:
                said = (f"{one} is {value}" for one, value in known.items() if re.search(rf"\b{one}\b", need))
                raise NotUnderstood(f"{need} must hold, and {', '.join(said)}; say another number")


def kind(name: str) -> str:
    found: str = vocabulary()["kinds"].get(name, name)
    return found


def named(dimensions: Dimensions, rank: int | None) -> Dimensions:
    """The dimensions of a value; those of images by their names although their sizes are not known."""
    if "..." in dimensions and rank in (4, 5):
        return RANKS[rank]
    if not 3 <= len(dimensions) <= 5 or kind(dimensions[1]) != "channels":
        return dimensions
    usual = (*dimensions[:2], *TRAILING[len(dimensions) - 3])
    return tuple(side if one == UNKNOWN else one for one, side in zip(dimensions, usual, strict=True))


def _free(name: str, taken: Collection[str], *others: str) -> str:
    """The name, one of the others, or the name with a number: the first that is not taken."""
    return next(one for one in chain((name, *others), (f"{name}_{n}" for n in count(2))) if one not in taken)


def _refuse_unknown(name: str, dimensions: Dimensions) -> None:
    if UNKNOWN in dimensions:
        raise NotUnderstood(f"{name} would need the size of a result that depends on windows; write it as a function")


# -- numbers --


def _same_sides(numbers: Mapping[str, Any], bound: Bound) -> dict[str, str]:
    """The sides of a result of windows that keep them."""
    window, stride, padding = (numbers.get(one) for one in ("window", "stride", "padding"))
    if not (isinstance(window, int) and isinstance(padding, int) and stride == 1):
        return {}
    keeps = padding * 2 == numbers.get("dilation", 1) * (window - 1)
    return {"sides": " ".join(one for one in ("depth", "height", "width", "length") if one in bound)} if keeps else {}


def _numbers(operation: Operation, given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Any]]:
    """The slots and numbers of an operation as texts, and the numbers by their names."""
    texts = {**operation.params, **operation.numbers, **given}
    for _ in range(2):
        texts = {one: fill(text, texts, {}) for one, text in texts.items()}
    places = 3 if "depth" in operation.takes else 2 if "height" in operation.takes else 1
    title = operation.name.replace("_", " ")
    values = {one: number(f"the {one} of {title}", text, _LEAST.get(one), places) for one, text in texts.items()}
    if wrong := next((one for one in operation.params if isinstance(values[one], tuple)), ""):
        raise unread(f"the {wrong} of {title} cannot be {texts[wrong]}; say one number")
    window = values.get("window", 1)
    sides = window if isinstance(window, tuple) else (window,) * places
    return {**operation.slots, **texts, "taps": ", ".join(map(str, sides))}, values


def number(what: str, text: str, least: int | None = None, places: int = 0) -> Any:
    """A number as it stands in code: an int where it is whole, and "(3, 5)" a tuple. It must be whole where a least
    one is given."""
    if not _NUMBER.fullmatch(text):
        raise unread(f"{what} cannot be {text}; say a number")
    if text.startswith("("):
        value: Any = tuple(int(one) for one in re.findall(r"\d+", text))
    else:
        value = int(text) if re.fullmatch(r"-?\d{1,300}", text) else float(text)
    if value in (float("inf"), -float("inf")):
        raise NotUnderstood(f"{text} is too large; say a smaller number")
    if least is not None and (isinstance(value, float) or (isinstance(value, tuple) and len(value) != places)):
        raise NotUnderstood(f"{what} cannot be {text}; say a whole number")
    if least is not None and min(value if isinstance(value, tuple) else (value,)) < least:
        raise NotUnderstood(f"{what} is at least {least}, and {text} is said")
    return value


def computed(formula: str, numbers: Mapping[str, Any]) -> Any:
    """Arithmetic of the catalogue's own."""
    try:
        return eval(formula, {"__builtins__": {"min": min, "max": max}}, dict(numbers))
    except (ArithmeticError, NameError, TypeError, ValueError):
        said = ", ".join(f"{one} = {value}" for one, value in numbers.items() if re.search(rf"\b{one}\b", formula))
        raise unread(f"{formula} cannot be computed for {said or 'what is said'}; say other numbers") from None


# -- code --


def fill(text: str, texts: dict[str, str], numbers: dict[str, Any] | None = None) -> str:
    """The text with its {places} filled. Without numbers, places that are not known are kept, else left empty."""

    def filled(one: re.Match[str]) -> str:
        if numbers is not None and one[1].startswith("="):
            return str(computed(one[1][1:], numbers))
        return str(texts.get(one[1], one[0] if numbers is None else ""))

    return _PLACE.sub(filled, text)


def _with_values(code: str, tensors: dict[str, Value], numbers: dict[str, Any]) -> str:
    """Code with its tensors and numbers; None stands for a tensor that an option goes without."""

    def filled(one: re.Match[str]) -> str:
        if one[1] in tensors:
            alone = code[one.start() - 1 : one.start()] == "(" and code[one.end() : one.end() + 1] in (")", ",")
            return tensors[one[1]].code if alone else tensors[one[1]].atom
        return repr(computed(one[1][1:], numbers) if one[1].startswith("=") else numbers.get(one[1]))

    return _PLACE.sub(filled, code)


def _checked_axis(operation: Operation, axis: Axis, said: str, dimensions: Dimensions) -> Axis:
    """The dimensions that an operation goes over: () is all of them, None where it goes over none."""
    rank = len(dimensions)
    if not operation.goes_over:
        if axis is not None and operation.axis != "last":
            raise NotUnderstood(f'"{said}" cannot be said of {operation.says}')
        if axis not in (None, (-1,), (rank - 1,)) and (axis != (-2, -1) or operation.kind != "map"):
            raise NotUnderstood(f"{operation.says} goes over the last dimension only")
        return None
    axis = axis if axis is not None else () if operation.axis == "all" else (-1,)
    if axis == () and operation.axis == "last":
        raise NotUnderstood(f"{operation.says} goes over one dimension")
    if any(not -rank <= one < rank for one in axis):
        raise NotUnderstood(f"over dim {max(axis)} is said, and the value has {rank} dimensions only")
    return axis


def _axis_code(axis: Axis, value: Value) -> dict[str, str]:
    """What stands in code for the dimensions that an operation goes over."""
    if axis is None:
        return {}
    text = str(axis[0]) if len(axis) == 1 else str(axis)
    sizes = " * ".join(f"{value.atom}.shape[{one}]" for one in axis) or f"{value.atom}.numel()"
    return {
        "dim": f"dim={text}" if axis else "",
        "kept": f"dim={text}, keepdim=True" if axis else "",
        "axis": text,
        "count": f"({sizes})" if " " in sizes else sizes,
    }


def goes_over(axis: tuple[int, ...]) -> str:
    listed = " and ".join(map(str, axis))
    if axis == (-1,):
        return "over the last dimension"
    return f"over dimension{'s' * (len(axis) > 1)} {listed}" if axis else "over all elements"

"""A reference under construction: tensors and their dimensions, numbers, statements, and what was assumed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from typing import Any

from tilewright.records import DType
from tilewright.words.catalogue import Argument, Operation, parsed_arguments
from tilewright.words.errors import NotUnderstood

_PLACE = re.compile(r"\{(=?[^{}]+)\}")
_CALL = re.compile(r"[\w.]+(?:\(.*\)|\[.*\])?(?:\.\w+\(.*\))*")
_NUMBER = re.compile(r"-?\d*\.?\d+\.?(?:e-?\d+)?|\([\d, ]+\)")
_RANKS: tuple[tuple[str, ...], ...] = (
    (),
    ("cols",),
    ("rows", "cols"),
    ("batch", "rows", "cols"),
    ("batch", "channels", "height", "width"),
    ("batch", "channels", "depth", "height", "width"),
)
_LEADING: tuple[tuple[str, ...], ...] = ((), ("rows",), ("batch", "rows"), ("batch", "heads", "rows"))
_TRAILING: tuple[tuple[str, ...], ...] = (("length",), ("height", "width"), ("depth", "height", "width"))
_LEAST = dict.fromkeys(("window", "stride", "dilation", "groups", "k"), 1)  # of numbers that are whole
_LEAST |= dict.fromkeys(("padding", "group", "bins", "nodes", "factor", "size"), 0)
UNKNOWN = "?"  # a dimension whose size is not known before the kernel runs

Dimensions = tuple[str, ...]
Bound = dict[str, Dimensions]
Axis = tuple[int, ...] | None  # the dimensions that an operation goes over; () is all of them


@dataclass(frozen=True)
class Value:
    """An expression and its dimensions. `level`: how closely its operator binds, 5 where it needs no brackets."""

    code: str
    dimensions: Dimensions
    level: int = 5

    @property
    def atom(self) -> str:
        return self.operand(5)

    def operand(self, level: int) -> str:
        """The code as an operand of what binds at that level."""
        return self.code if self.level >= level else f"({self.code})"


@dataclass
class Tensor:
    """A tensor that the reference takes."""

    name: str
    dimensions: Dimensions
    dtype: DType | None = None
    values: str = ""


@dataclass
class Builder:
    """`renamed` are names that a person gave to tensors; `rank` and `layout` are the number and the names of the first
    tensor's dimensions where they are known."""

    renamed: dict[str, str] = field(default_factory=dict)
    rank: int | None = None
    layout: Dimensions = ()
    tensors: list[Tensor] = field(default_factory=list)
    params: dict[str, str] = field(default_factory=dict)
    derived: dict[str, str] = field(default_factory=dict)  # dimensions that are formulas of others
    multiples: dict[str, str] = field(default_factory=dict)
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
        letters = "pqr" if name in ("n", "m", "k") else ""
        free = next(
            one for one in chain((name,), letters, (f"{name}_{n}" for n in range(2, 99))) if one not in self.used
        )
        self.used.add(free)
        return free

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
        taken = {one.name for one in self.tensors} | set(self.params)
        parted = wanted if wanted[-1:].isdigit() else f"{wanted}_"
        name = next(one for one in chain((wanted,), (f"{parted}{n}" for n in range(2, 99))) if one not in taken)
        name = name if name == wanted else self.renamed.get(name, name)
        self.tensors.append(Tensor(name, dimensions, argument.dtype, argument.values))
        return Value(name, dimensions)

    def generic(self) -> Dimensions:
        """The dimensions of a first tensor that may have any."""
        rank = 2 if self.rank is None else self.rank
        if not self.layout and rank >= len(_RANKS):
            raise NotUnderstood(f"a tensor of {rank} dimensions is read in a function only")
        return tuple(map(self.dimension, self.layout or _RANKS[rank]))

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
        texts, values, params = self._numbers(operation, numbers or {})
        window = values.get("window", 1)
        sides = window if isinstance(window, tuple) else (window,) * (3 if "depth" in operation.takes else 2)
        texts["taps"] = ", ".join(map(str, sides))  # the sides of a window as dimensions of its weight
        bound: Bound = {}
        before = len(self.tensors)
        arguments = parsed_arguments(fill(operation.takes, texts, values))
        taken = self._taken(operation, arguments, (first, *others), (axis or (-1,))[0], bound)
        value = taken[arguments[0].name]
        axis = _checked_axis(operation, axis, axis_said, value.dimensions)
        code = operation.code
        for _ in range(2):
            code = fill(code, {**operation.slots, **_axis_code(axis, value), **params})
        *lines, last = _with_values(code, taken, values).replace(", )", ")").replace("(, ", "(").split("\n")
        self.lines += lines
        self._note(operation, {**texts, **{name: one.code for name, one in taken.items()}}, bound, axis)
        for one in self.tensors[before:]:
            if one.values.startswith("index "):
                one.values = f"index {bound.get(one.values[6:], (one.values[6:],))[0]}"
                _refuse_unknown(one.name, (one.values[6:],))
        dimensions = value.dimensions
        if operation.kind == "reduce":
            gone = {one % len(dimensions) for one in axis or range(len(dimensions))}
            dimensions = tuple(one for place, one in enumerate(dimensions) if place not in gone)
        elif operation.gives is not None:
            parts = [one.strip() for one in fill(operation.gives, texts, {}).split(",") if one.strip()]
            known = (bound.get(one, (one if one.isdigit() else UNKNOWN,)) for one in parts)
            dimensions = self.settled(tuple(chain(*known)))
        return Value(last, dimensions, 5 if _CALL.fullmatch(last) and _is_one_call(last) else 0)

    def _adapted(self, operation: Operation, first: Value | None, axis: Axis) -> Operation:
        """The operation as it is after one on images, or over a dimension that is not the last."""
        rank = len(first.dimensions) if first else self.rank
        if operation.image and first and len(first.dimensions) >= 4 and first.dimensions[1] in ("channels", "filters"):
            operation = replace(operation, **operation.image)
        if operation.elsewhere and axis not in (None, (-1,), ((rank or 2) - 1,)):
            operation = replace(operation, **operation.elsewhere)
        return operation

    def _numbers(
        self, operation: Operation, given: Mapping[str, str]
    ) -> tuple[dict[str, str], dict[str, Any], dict[str, str]]:
        """The slots and numbers of an operation as texts, the numbers that stand in its code, and the names of those
        that are parameters."""
        texts = {**operation.params, **operation.numbers, **given}
        for _ in range(2):
            texts = {one: fill(text, texts, {}) for one, text in texts.items()}
        _check_numbers(operation, texts)
        params: dict[str, str] = {}
        for one in operation.params:
            name = next(n for n in (one, *(f"{one}_{i}" for i in range(2, 99))) if n not in self.params)
            name = f"{name}_" if name in {made.name for made in self.tensors} else name
            self.params[name] = texts[one]
            params[one] = name
        return {**operation.slots, **texts}, {one: number(texts[one]) for one in texts if one not in params}, params

    def _taken(
        self,
        operation: Operation,
        arguments: tuple[Argument, ...],
        given: tuple[Value | None, ...],
        axis: int,
        bound: Bound,
    ) -> dict[str, Value]:
        """The tensors of an operation: those that are given, and new ones."""
        taken: dict[str, Value] = {}
        arguments = tuple(one for one in arguments if operation.slots.get(one.name) != "None")
        for argument, value in zip_longest(arguments, given[: len(arguments)]):
            if value is not None:
                taken[argument.name] = self._matched(operation, argument, value, bound)
                continue
            if taken and operation.name == "concat":
                dimensions = self._beside(taken[arguments[0].name].dimensions, axis, bound)
            else:
                dimensions = self._new_dimensions(argument, bound, not taken)
            taken[argument.name] = self.tensor(argument, dimensions)
        return taken

    def _matched(self, operation: Operation, argument: Argument, value: Value, bound: Bound) -> Value:
        """A value that is there already, its dimensions bound to those that the operation says."""
        if argument.dtype is not None and not argument.dtype.is_float and value.code in ("y", "z", "out", "result"):
            raise NotUnderstood(f"{operation.says} takes {argument.dtype} elements, and what it gets has others")
        found = self.settled(value.dimensions)
        names = [one for one in argument.dimensions if one != "..."]
        more = len(found) - len(names)
        if more < 0 or (more and len(names) == len(argument.dimensions)):
            raise NotUnderstood(
                f"{operation.says} takes [{', '.join(names)}], and what it gets has {len(found)} dimensions"
            )
        if "..." in argument.dimensions:
            at = argument.dimensions.index("...")
            pairs = [("...", found[at : at + more])]
            rest = found[:at] + found[at + more :]
        else:
            pairs, rest = [], found
        for name, one in (*pairs, *((name, (one,)) for name, one in zip(names, rest, strict=True))):
            name = name.partition("=")[0].strip()
            if name in bound:
                self.join(bound[name], one)
            elif not name.isdigit():
                bound[name] = one
        return replace(value, dimensions=found)

    def _beside(self, first: Dimensions, axis: int, bound: Bound) -> Dimensions:
        """The dimensions of a tensor that is joined with the first one: of its own size along the axis."""
        axis %= len(first)
        own, total = self.dimension(first[axis]), self.dimension(f"joined_{first[axis]}")
        self.derived[total] = f"{first[axis]} + {own}"
        bound["..."] = (*first[:axis], total, *first[axis + 1 :])
        return (*first[:axis], own, *first[axis + 1 :])

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
        found: list[str] = []
        for one in pattern:
            name, _, formula = (part.strip() for part in one.partition("="))
            if name not in bound and not name.isdigit():
                bound[name] = (self.dimension(name),)
                for other in re.findall(r"[a-z]\w*", formula):
                    bound[other] = bound.get(other) or (self.dimension(other),)
                if formula:
                    self.derived[bound[name][0]] = re.sub(r"[a-z]\w*", lambda m: bound[m[0]][0], formula)
            found += bound.get(name, (name,))
        return self.settled(tuple(found))

    def _more(self, fixed: int, before: bool) -> Dimensions:
        """New dimensions for `...` beside as many that are named."""
        rank = max(0, (self.rank or len(self.layout) or fixed + (fixed == 1)) - fixed)
        if not before:
            names = _TRAILING[min(max(rank, 1), 3) - 1 if self.rank or self.layout else 1]
        elif self.layout and len(self.layout) == rank + fixed:
            names = self.layout[:rank]
        else:
            names = ("batch",) if rank == 1 and fixed > 1 else _LEADING[min(rank, 3)]
        return tuple(map(self.dimension, names))

    def _note(self, operation: Operation, texts: dict[str, str], bound: Bound, axis: Axis) -> None:
        """What is assumed of an operation, and what must hold for it."""
        numbers = {key: number(value) for key, value in texts.items() if _NUMBER.fullmatch(value)}
        goes = goes_over(axis or ())
        rows = "of each row, along the last dimension"
        texts = {**texts, "along": rows if axis in (None, (-1,)) else goes}
        has_axis = False
        for one in operation.assume:
            text = fill(fill(one, texts), texts, numbers)
            has_axis = has_axis or "{along}" in one or "dimension" in text
            self.assume(text)
        if axis is not None and not has_axis:
            self.assume(f"{operation.says} goes {goes}")
        for name, text in operation.multiple.items():
            self.multiples[bound[name][0]] = str(computed(text, numbers))
        sizes = {name: one[0] for name, one in bound.items() if name != "..." and len(one) == 1}
        own = {key: numbers[key] for key in numbers if key not in operation.slots}
        self.needs += [(need, own, sizes) for need in operation.needs]
        self.positive = self.positive or operation.positive


def _refuse_unknown(name: str, dimensions: Dimensions) -> None:
    if UNKNOWN in dimensions:
        raise NotUnderstood(f"{name} would need the size of a result that depends on windows; write it as a function")


def number(text: str) -> Any:
    """A number as it stands in code: an int where it is whole, and "(3, 5)" a tuple."""
    if text.startswith("("):
        return tuple(int(one) for one in text.strip("() ").split(",") if one.strip())
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)


def _check_numbers(operation: Operation, texts: dict[str, str]) -> None:
    """Raises `NotUnderstood` for numbers that are none, or that should be whole."""
    places = 3 if "depth" in operation.takes else 2 if "height" in operation.takes else 1
    for name, text in texts.items():
        value = number(text) if _NUMBER.fullmatch(text) else 0
        what = f"the {name} of {operation.name.replace('_', ' ')}"
        if isinstance(value, float) and (value != value or abs(value) == float("inf")):
            raise NotUnderstood(f"{text} is too large; say a smaller number")
        if name not in _LEAST:
            continue
        if isinstance(value, float) or (isinstance(value, tuple) and len(value) != places):
            raise NotUnderstood(f"{what} cannot be {text}; say a whole number")
        if min(value if isinstance(value, tuple) else (value,)) < _LEAST[name]:
            raise NotUnderstood(f"{what} is at least 1, and {text} is said")


def computed(formula: str, numbers: dict[str, Any]) -> Any:
    """Arithmetic of the catalogue's own."""
    return eval(formula, {"__builtins__": {"min": min, "max": max}}, dict(numbers))


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


def _is_one_call(code: str) -> bool:
    """Whether a call's first bracket is closed by its last: f(x) * g(x) is no call."""
    depth = 0
    for place, one in enumerate(code):
        depth += (one in "([") - (one in ")]")
        if depth == 0 and one in ")]" and code[place + 1 : place + 2] not in ("", ".", "["):
            return False
    return True


def _checked_axis(operation: Operation, axis: Axis, said: str, dimensions: Dimensions) -> Axis:
    """The dimensions that an operation goes over: () is all of them, None where it goes over none."""
    if not operation.goes_over:
        if axis is not None and operation.axis != "last":
            raise NotUnderstood(f'"{said}" cannot be said of {operation.says}')
        if axis not in (None, (-1,), (len(dimensions) - 1,), (-2, -1)):
            raise NotUnderstood(f"{operation.says} goes over the last dimension only")
        return None
    axis = axis if axis is not None else () if operation.axis == "all" else (-1,)
    if axis == () and operation.axis == "last":
        raise NotUnderstood(f"{operation.says} goes over one dimension")
    if any(one >= len(dimensions) or one < -len(dimensions) for one in axis):
        raise NotUnderstood(f"over dim {max(axis)} is said, and the value has {len(dimensions)} dimensions only")
    return axis


def _axis_code(axis: Axis, value: Value) -> dict[str, str]:
    """What stands in code for the dimensions that an operation goes over."""
    if axis is None:
        return {}
    text = str(axis[0]) if len(axis) == 1 else str(axis)
    count = " * ".join(f"{value.atom}.shape[{one}]" for one in axis) or f"{value.atom}.numel()"
    return {
        "dim": f"dim={text}" if axis else "",
        "kept": f"dim={text}, keepdim=True" if axis else "",
        "axis": text,
        "count": f"({count})" if " " in count else count,
    }


def goes_over(axis: tuple[int, ...]) -> str:
    listed = " and ".join(map(str, axis))
    if axis == (-1,):
        return "over the last dimension"
    return f"over dimension{'s' * (len(axis) > 1)} {listed}" if axis else "over all elements"

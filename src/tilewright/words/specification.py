"""From steps to a specification: the reference in PyTorch, the sizes of its dimensions, and what was assumed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import chain

from tilewright.records import DType, Specification, TensorSpec
from tilewright.tasks.errors import ArgumentKind, GivenArgument, Remedy, RemedyKind
from tilewright.words.building import Builder, Dimensions, Tensor, Value, computed, goes_over
from tilewright.words.catalogue import Operation, vocabulary
from tilewright.words.errors import NotUnderstood, Reading, SeveralReadings, unread
from tilewright.words.formulas import Formula, write_formula
from tilewright.words.reading import Request, Step

_FUNCTIONS = frozenset(("exp", "log", "sqrt", "abs", "tanh", "round", "erf", "sin", "cos", "rsqrt"))  # of C++
_INTEGERS = re.compile("sum|max|min|add|transpose|where|histogram")  # operations that are read of whole numbers too
_FULL = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}
_AXES: dict[str, tuple[int, ...]] = {"row": (-1,), "last": (-1,), "last_two": (-2, -1), "first": (0,), "second": (1,)}
_AXES |= {"sequence": (1,), "third": (2,), "all": (), "channels": (1,), "spatial": (2, 3), "columns": (-1,)}
_NAMED = {
    "sequence": ("sequence", "time", "length"),
    "channels": ("channels",),
    "first": ("batch",),
    "row": ("d", "head_size", "classes", "cols"),
}

Given = dict[str, TensorSpec]  # the shapes that are given, by the names of tensors


def written(words: str, request: Request, formula: Formula | None, shapes: Mapping[str, str]) -> Specification:
    """The specification of a request. Shapes that were given win over sizes in the words."""
    given = {name: _parsed(name, text) for name, text in shapes.items()}
    plain = _Draft(request, formula, given, {}, None)
    renamed = plain.renamed()
    first = renamed.get(plain.builder.tensors[0].name, plain.builder.tensors[0].name)
    rank = len(given[first].shape) if first in given else plain.rank_of_words(first)
    return _Draft(request, formula, given, renamed, rank).specification(shapes)


def _parsed(name: str, text: str) -> TensorSpec:
    try:
        return TensorSpec.parse(text)
    except ValueError as error:
        raise NotUnderstood(str(error), given=GivenArgument(ArgumentKind.SHAPE, name, text)) from None


class _Draft:
    """The reference of a request, with the tensors by the names that are given."""

    def __init__(
        self, request: Request, formula: Formula | None, given: Given, renamed: dict[str, str], rank: int | None
    ) -> None:
        self.request, self.given, self.rank = request, given, rank
        layout = request.layout
        self.builder = Builder(renamed, rank, tuple(layout) if rank in (None, len(layout)) else ())
        self.names: list[str] = []
        self.says: list[str] = []
        self.results: tuple[str, ...] = ()
        value = self._formula(formula) if formula else None
        if any(len(spec.shape) == 2 for spec in given.values()):
            for step in request.steps:
                step.options += {one.name for one in step.operation.options} & {"flat"} - {*step.options}
        found = self._joint(value) if request.joint else self._steps(value)
        assert found is not None
        self.value = found

    # -- statements --

    def _formula(self, formula: Formula) -> Value:
        value = write_formula(formula, self.builder, self.given)
        for name, text in self.request.settings:
            if name not in self.builder.params:
                raise unread(f"{name} = {text} is said, and the formula has no number {name}")
            usual = self.builder.params[name]
            self.builder.assumptions = [
                one for one in self.builder.assumptions if not (usual in one and re.search(rf"\b{name}\b", one))
            ]
            self.builder.params[name] = text
            self.builder.assume(f"{name} is {text}")
        self.names.append(formula.name)
        self.says.append(f"the value of {formula.text}")
        return self._assigned(value)

    def _steps(self, value: Value | None) -> Value | None:
        before: Step | None = None
        for step in self.request.steps:
            if self.results:
                raise NotUnderstood(f"several results come before {step.operation.says}; write it as a function")
            reduced = before and before.operation.kind == "reduce" and value and len(value.dimensions) < 2
            if before and reduced and step.operation.kind in ("row", "scan"):
                what = f"{step.operation.says} cannot follow {before.operation.says}"
                raise NotUnderstood(f"{what}, which leaves one element per row")
            value, before = self._step(step, value), step
        if value and self.request.to:
            value = self._assigned(Value(f"{value.atom}.to(torch.{_FULL[self.request.to]})", value.dimensions))
            self.builder.assume(f"the result is cast to {self.request.to}")
        return value

    def _step(self, step: Step, value: Value | None) -> Value:
        operation, renamed = _operation(step), self.builder.renamed
        own = (one.name for one in operation.arguments)
        self.builder.renamed = {**renamed, **dict(zip(own, step.called, strict=False))}
        found = self._apply(step, value)
        self.builder.renamed = renamed
        texts = {**operation.params, **operation.numbers, **step.numbers, **operation.slots}
        says = re.sub(r"\{(\w+)\}", lambda one: str(texts.get(one[1], one[1])), operation.says)
        self.names.append(operation.title or operation.name)
        self.says.append(f"{says}{self._over(step)}")
        self.results = operation.results
        return self._assigned(found, ", ".join(operation.results))

    def _joint(self, value: Value | None) -> Value:
        """The last two steps are results beside each other."""
        *before, one, other = self.request.steps
        for step in before:
            value = self._step(step, value)
        if value is None:
            value = self.builder.tensor(one.operation.arguments[0], self.builder.generic())
        both = [self._apply(step, value).code for step in (one, other)]
        self.results = tuple(step.operation.name.removeprefix("row_") for step in (one, other))
        result = ", ".join(self.results)
        self.builder.lines.append(f"{result} = {', '.join(both)}")
        self.names.append("_and_".join(self.results))
        self.says.append(f"{one.operation.says} and {other.operation.says}{self._over(one)}")
        return Value(result, ())

    def _apply(self, step: Step, value: Value | None) -> Value:
        rank = len(value.dimensions) if value else self.rank
        axis = self._axis(step, rank, value.dimensions if value else self.builder.layout)
        return self.builder.apply(_operation(step), value, step.numbers, axis, step.axis_said)

    def _over(self, step: Step) -> str:
        operation, axis = step.operation, self._axis(step, self.rank)
        if axis not in (None, (-1,)):
            return f" {goes_over(axis or ())}"
        along = (operation.goes_over and operation.axis != "all") or operation.axis == "last"
        return " over the last dimension" if along and not any("dimension" in one for one in self.says) else ""

    def _assigned(self, value: Value, name: str = "") -> Value:
        taken = {one.name for one in self.builder.tensors}
        name = name or next(one for one in ("y", "z", "out", "result") if one not in taken)
        if value.code != name:
            self.builder.lines.append(f"{name} = {value.code}")
        return Value(name, value.dimensions)

    def _axis(self, step: Step, rank: int | None, names: Dimensions = ()) -> tuple[int, ...] | None:
        """The dimensions that the words about a step mean. They may say the rank of the first tensor too."""
        said, builder, wanted = step.axis, self.builder, None
        if said is None:
            return None
        if isinstance(said, tuple):
            if rank is None and not builder.layout:
                wanted = {2: 3, 3: 4}.get(max(said, default=0))
                if max(said, default=0) > 4:
                    what = f'"{step.axis_said}" needs a tensor of {max(said) + 1} dimensions'
                    raise NotUnderstood(f"{what}; give its shape")
            builder.rank = builder.rank or wanted
            return said
        if said.startswith("="):
            wanted_kinds = {said[1:], vocabulary()["kinds"].get(said[1:], "")}
            found = [
                at for at, name in enumerate(names) if wanted_kinds & {name, vocabulary()["kinds"].get(name, name)}
            ]
            if len(found) == 1:
                return (found[0],)
            raise NotUnderstood(f'which dimension "{step.axis_said}" is cannot be told; say it as "over dim 1"')
        if said in ("rows?", "columns?"):
            base = step.operation.request
            readings = (
                Reading(f"{base} of each row", f"{step.operation.says} over the last dimension"),
                Reading(f"{base} of each column", f"{step.operation.says} over dimension 0"),
            )
            raise SeveralReadings(f'"{step.axis_said}" may be of each row or of each column', readings)
        for name in _NAMED.get(said, ()):
            if name in names:
                return (names.index(name),)
        if said == "column":
            return (0,) if rank in (None, 2) else (-2,)
        if said == "sequence" and rank not in (None, 3):
            raise NotUnderstood(f'which dimension "{step.axis_said}" is cannot be told; say it as "over dim 1"')
        if said == "sequence":
            builder.assume("the sequence is dimension 1, of [batch, sequence, features]")
        if rank is None or said == "spatial":
            builder.rank = builder.rank or {"sequence": 3, "channels": 4, "spatial": 4, "last_two": 3}.get(said)
        return _AXES[said]

    # -- tensors, names and sizes --

    def renamed(self) -> dict[str, str]:
        """The tensors that a person named: by another word for each, and the others in order."""
        free = [one.name for one in self.builder.tensors]
        said = dict.fromkeys([*self.given, *(name for names, _ in self.request.shapes for name in names)])
        unknown = [one for one in said if one not in free]
        free = [one for one in free if one not in said]
        found: dict[str, str] = {}
        for fits in (_is_word_for, self._may_have):
            for name in [one for one in unknown if one not in found.values()]:
                own = next((one for one in free if fits(one, name)), "")
                if own:
                    found[own] = name
                    free.remove(own)
                elif fits == self._may_have and name in self.given:
                    has = ", ".join(one.name for one in self.builder.tensors)
                    argument = GivenArgument(ArgumentKind.SHAPE, name)
                    raise NotUnderstood(f"the task has no such tensor; it has {has}", given=argument)
        return found

    def _may_have(self, own: str, name: str) -> bool:
        """Whether a tensor may have the shape that is given for a name."""
        if name not in self.given:
            return True
        place, made = next((at, one) for at, one in enumerate(self.builder.tensors) if one.name == own)
        shape = self.given[name]
        is_float = made.dtype is None or made.dtype.is_float
        return (place == 0 or len(made.dimensions) == len(shape.shape)) and is_float == shape.dtype.is_float

    def rank_of_words(self, first: str) -> int | None:
        """The number of dimensions of the first tensor that the words say."""
        dimensions = self.builder.tensors[0].dimensions
        if dimensions in (("m", "k"), ("tokens",)) and len(self.request.shapes) == 1:
            return None
        for names, shape in self.request.shapes:
            if not names or first in names:
                return len(shape) if len(dimensions) != 2 or len(shape) < 6 else None
        if self.request.layout:
            return len(self.request.layout)
        roles = {role for role, _ in self.request.sizes}
        if {"batch", "sequence"} <= roles and roles & {"hidden", "classes", "channels"}:
            return 3
        return 1 if "elements" in roles else None

    def specification(self, shapes: Mapping[str, str]) -> Specification:
        builder = self.builder
        for made in builder.tensors:
            made.dimensions = builder.settled(made.dimensions)
        dtype = self._dtype(shapes)
        sizes = _Sizes(builder, self.given, self.request).all()
        self._check(sizes)
        for own, name in builder.renamed.items():
            if own != name and not (len(own) > 1 and own.startswith(name)):
                builder.assume(f"{name} is the {own.replace('_', ' ')}")
        positive = builder.positive == "needs" and builder.tensors[0].dtype is None
        said = self.request.dtype or any(one.name in self.given for one in builder.tensors if one.dtype is None)
        first = [f"{builder.tensors[0].name} is positive"] * positive
        first += [f"elements are {dtype}" + ("" if said else ", as no dtype was said")]
        assumptions = tuple(dict.fromkeys([*first, *builder.assumptions, *self.request.notes]))
        inputs: dict[str, str] = {}
        for one in builder.tensors:
            kind = self.given[one.name].dtype if one.name in self.given else one.dtype or dtype
            mode = "inplace " if self.request.inplace and not inputs else ""
            inputs[one.name] = f"{mode}{kind}[{', '.join(one.dimensions)}]"
        name = "_".join([one for at, one in enumerate(self.names) if self.names[max(0, at - 1)] != one or not at][:5])
        name += "_op" * (name in {*_FUNCTIONS, *inputs, *builder.params})
        description = self._description(name, assumptions, inputs, sizes, positive)
        return Specification(self._function(name, inputs), description, assumptions)

    def _function(self, name: str, inputs: dict[str, str]) -> str:
        body = "\n".join(f"    {line}" for line in (*self.builder.lines, self._last_line()))
        imports = [f"import {one}" for one in ("math", "torch") if f"{one}." in body]
        imports += ["import torch.nn.functional as F"] * (re.search(r"\bF\.", body) is not None)
        params = [*inputs, *(f"{one}: float = {float(text)!r}" for one, text in self.builder.params.items())]
        says = ", then ".join(self.says)
        says = says if re.match(r"[b-z] ", says) else f"{says[0].upper()}{says[1:]}"
        head = "\n".join([*imports, "", ""]) + "\n" if imports else ""
        return f'{head}def {name}({", ".join(params)}):\n    """{says}."""\n{body}\n'

    def _last_line(self) -> str:
        if not self.request.inplace:
            return f"return {self.value.code}"
        first = self.builder.tensors[0]
        if self.builder.settled(self.value.dimensions) != first.dimensions:
            raise NotUnderstood(f"this cannot be done in place: its result has another shape than {first.name}")
        return f"{first.name}.copy_({self.value.code})"

    def _dtype(self, shapes: Mapping[str, str]) -> DType:
        said = DType(self.request.dtype) if self.request.dtype else None
        first = self.builder.tensors[0]
        if first.name in self.given and first.dtype is None:
            dtype, text = self.given[first.name].dtype, shapes[first.name]
            argument = GivenArgument(ArgumentKind.SHAPE, first.name, text)
            if ":" not in text and said not in (None, dtype):
                remedy = Remedy(RemedyKind.GIVE_SHAPE, first.name, f"{text}:{said}")
                raise NotUnderstood(f"this means {dtype}, and the words say {said}", remedy, given=argument)
            operation = self.request.steps[0].operation if self.request.steps else None
            if not dtype.is_float and operation and operation.kind != "scan" and not _INTEGERS.search(operation.name):
                raise NotUnderstood(f"words about {first.name} are read of floating-point elements", given=argument)
            return dtype
        others = (
            self.given[one.name].dtype for one in self.builder.tensors if one.name in self.given and not one.dtype
        )
        usual = next((one.operation.dtype for one in self.request.steps if one.operation.dtype), "bf16")
        return said or next((one for one in others if one.is_float), DType(usual))

    def _check(self, sizes: dict[str, int]) -> None:
        """Raises `NotUnderstood` where numbers and sizes are not as they must be, such as channels % groups == 0."""
        for name, multiple in self.builder.multiples.items():
            (one,) = self.builder.settled((name,))
            if sizes.get(one, 0) % int(multiple):
                raise NotUnderstood(f"{one} is {sizes[one]}, and must be a multiple of {multiple}")
        for need, numbers, names in self.builder.needs:
            settled = {one: self.builder.settled((dimension,))[0] for one, dimension in names.items()}
            known = {one: sizes[dimension] for one, dimension in settled.items() if dimension in sizes} | numbers
            try:
                holds = computed(need, known)
            except (NameError, TypeError):
                continue
            if not holds:
                said = (f"{one} is {value}" for one, value in known.items() if re.search(rf"\b{one}\b", need))
                raise NotUnderstood(f"{need} must hold, and {', '.join(said)}; say another number")

    def _description(
        self, name: str, assumptions: tuple[str, ...], inputs: dict[str, str], sizes: dict[str, int], positive: bool
    ) -> str:
        """The text of task.toml."""
        builder = self.builder
        lines = [f'name = "{name}"', f'function = "{name}"', "assumptions = ["]
        escaped = (one.replace("\\", "\\\\").replace('"', '\\"') for one in assumptions)
        lines += [*(f'    "{one}",' for one in escaped), "]", "", "[dimensions]"]
        for one, size in sizes.items():
            multiple = builder.multiples.get(one)
            lines.append(f"{one} = {{size = {size}, multiple_of = {multiple}}}" if multiple else f"{one} = {size}")
        used = {d for one in builder.tensors for d in one.dimensions}
        lines += [f'{one} = "{formula}"' for one, formula in builder.derived.items() if one in used]
        lines += ["", "[inputs]", *(f'{one} = "{text}"' for one, text in inputs.items())]
        lines += [f"{one} = {float(text)!r}" for one, text in builder.params.items()]
        values = {builder.tensors[0].name: "uniform 0.1 4"} if positive else {}
        for made in builder.tensors:
            if made.values.startswith("index "):
                made.values = f"index {builder.settled((made.values[6:],))[0]}"
            values |= {made.name: made.values} if made.values else {}
        if values:
            lines += ["", "[values]", *(f'{one} = "{text}"' for one, text in values.items())]
        return "\n".join(lines) + "\n"


class _Sizes:
    """The sizes of all dimensions: as given, as said, and the usual ones."""

    def __init__(self, builder: Builder, given: Given, request: Request) -> None:
        self.builder, self.given, self.request = builder, given, request
        self.tensors = builder.tensors
        self.sizes: dict[str, int] = {}
        self.fixed: set[str] = set()  # dimensions of shapes that were given
        order = list(dict.fromkeys(d for one in self.tensors for d in one.dimensions))
        within = [re.findall(r"[a-z]\w*", builder.derived[one]) for one in order if one in builder.derived]
        order = [one for one in order if not one.isdigit() and one not in builder.derived]
        self.plain = list(dict.fromkeys([*order, *chain(*within)]))

    def all(self) -> dict[str, int]:
        for one in self.tensors:
            if one.name in self.given:
                self._given_shape(one, self.given[one.name].shape)
        self._shapes_said()
        for role, value in self.request.sizes:
            self._size_said(role, value)
        if "keys" in self.plain and "sequence" in self.sizes:
            self.sizes.setdefault("keys", self.sizes["sequence"])
        batched = "batch" in self.plain  # many matrices, which are smaller than a single one
        for one in self.plain:
            size = 1024 if batched and one in ("m", "n", "k") else _usual_size(one)
            self.sizes.setdefault(one, size)
        return {one: self.sizes[one] for one in self.plain}

    # -- shapes --

    def _given_shape(self, made: Tensor, shape: tuple[int, ...]) -> None:
        argument = GivenArgument(ArgumentKind.SHAPE, made.name, _by(shape))
        if len(shape) != len(made.dimensions):
            takes = _by(self.sizes.get(one, one) for one in made.dimensions)
            raise NotUnderstood(f"{made.name} has the shape {takes}", given=argument)
        for one, size in zip(made.dimensions, shape, strict=True):
            if size < 1:
                raise NotUnderstood("a tensor has no size of 0", given=argument)
            if one in self.builder.derived or one.isdigit():
                self._solve(made, one, size, argument)
            elif self.sizes.setdefault(one, size) != size:
                takes = _by(self.sizes.get(d, n) for d, n in zip(made.dimensions, shape, strict=True))
                raise NotUnderstood(f"{made.name} goes with the others and has the shape {takes}", given=argument)
            self.fixed.add(one)

    def _solve(self, made: Tensor, name: str, size: int, argument: GivenArgument) -> None:
        """Finds the dimension that gives another one its size, or checks it."""
        formula = self.builder.derived.get(name, name).replace("/", "//")
        unknown = {one for one in re.findall(r"[a-z]\w*", formula) if one not in self.sizes}
        if len(unknown) == 1 and size < 1 << 18:
            (one,) = unknown
            guesses = range(1, size * 256 + 1)
            found = next((n for n in guesses if computed(formula, {**self.sizes, one: n}) == size), None)
            self.sizes |= {one: found} if found else {}
        elif not unknown and computed(formula, self.sizes) != size:
            wanted = computed(formula, self.sizes)
            raise NotUnderstood(f"{made.name} has {wanted} where {size} is given", given=argument)

    def _shapes_said(self) -> None:
        """Shapes in the words: of the tensors that they name, or of the first ones in order."""
        if all(one.name in self.given for one in self.tensors):
            return
        nameless = [shape for names, shape in self.request.shapes if not names]
        for names, shape in self.request.shapes:
            for own in ((name.lower(), self.builder.renamed.get(name, name)) for name in names):
                owner = next((one for one in self.tensors if one.name.lower() in own), None)
                if owner is None:
                    nameless.append(shape)
                elif owner.name not in self.given:
                    self._shape(owner, shape)
        if len(nameless) > len(self.tensors):
            have = ", ".join(one.name for one in self.tensors)
            raise unread(f"{len(nameless)} shapes are said, and the tensors are {have}")
        if len(nameless) == 1:
            self._only_shape(nameless[0])
            return
        free = [one for one in self.tensors if one.name not in self.given and not set(one.dimensions) <= self.fixed]
        for shape in nameless:
            ranks = ((len(one.dimensions) - (one.dimensions[:1] == ("batch",)), one) for one in free)
            made = next((one for rank, one in ranks if rank <= len(shape)), None)
            if made is None:
                raise unread(f"which tensor has the shape {_by(shape)} is not clear")
            free.remove(made)
            is_weight = len(shape) == 2 == len(made.dimensions) and made.name.startswith("weight")
            if is_weight and self.sizes.get(made.dimensions[1]) == shape[0] != shape[1]:
                self.builder.assume(f"{made.name} is [out, in], so {_by(shape)} is in and out")
                shape = shape[::-1]
            self._shape(made, shape)

    def _only_shape(self, shape: tuple[int, ...]) -> None:
        """A shape that is said alone: of the first tensor, or the sizes of a product."""
        first, second = (*self.tensors, None)[:2]
        dimensions = first.dimensions if first else ()
        if first is None or first.name in self.given:
            return
        if "k" in dimensions and second and self._of_product(dimensions, second.dimensions, shape):
            return
        last = dimensions[len(dimensions) - len(shape) :]
        if len(shape) < len(dimensions) and last[-2:] == ("height", "width"):
            self._set_all(last, shape)
            self.builder.assume(f"{_by(shape)} is {', '.join(last)}")
            return
        owner = next((o for o in self.tensors if len(o.dimensions) == len(shape) and o.name not in self.given), None)
        if owner is None:
            raise unread(f"{_by(shape)} is said, and {first.name} takes {', '.join(dimensions)}")
        self._shape(owner, shape)
        self.builder.assume(f"{_by(shape)} is the shape of {owner.name}")

    def _of_product(self, left: Dimensions, right: Dimensions, shape: tuple[int, ...]) -> bool:
        """Whether the shape is that of both factors of a product."""
        if len(shape) == len(left) == 3 and left[0] == "batch" and shape[-1] == shape[-2]:
            self._set_all((*left, *right), (*shape, *shape))
            return True
        if right[-2:-1] != ("k",):
            return False
        if len(set(shape)) == 1 and len(shape) <= 3:
            sides = [one for one in dict.fromkeys((*left, *right)) if one != "batch"]
            self._set_all(sides, shape[:1] * len(sides))
            return True
        if len(shape) == 3 and len(left) == 2:
            a, b, c = shape
            readings = (
                Reading(f"matmul {a}x{b} by {b}x{c}", "the inner size is the second"),
                Reading(f"matmul m={a} n={b} k={c}", "the inner size is the last"),
            )
            raise SeveralReadings(f"{_by(shape)} may mean several readings", readings)
        if len(shape) == 2:
            raise unread(f'the shape of the other operand is not said; say "{_by(shape)} by {_by(shape[::-1])}"')
        return False

    def _shape(self, made: Tensor, shape: tuple[int, ...]) -> None:
        dimensions = made.dimensions
        if len(shape) == len(dimensions) - 1 and dimensions[0] == "batch":
            self.builder.assume(f"{_by(shape)} is each of a batch")
            dimensions = dimensions[1:]
        if len(shape) != len(dimensions):
            raise unread(f"{_by(shape)} is said, and {made.name} takes {', '.join(dimensions)}")
        for one, size in zip(dimensions, shape, strict=True):
            if one in self.builder.derived or one.isdigit():
                self._solve(made, one, size, GivenArgument(ArgumentKind.SHAPE, made.name, _by(shape)))
            else:
                self._set(one, size, made.name)

    # -- sizes --

    def _set(self, name: str, size: int, tensor: str = "") -> None:
        if name in self.fixed:
            return
        if self.sizes.setdefault(name, size) != size:
            of = f"; {tensor} does not go with the others" if tensor else ""
            raise unread(f"{name} is said to be {self.sizes[name]} and {size}{of}")
        if size < 1:
            raise unread("a tensor has no size of 0")

    def _set_all(self, names: Iterable[str], sizes: Iterable[int]) -> None:
        for name, size in zip(names, sizes, strict=True):
            self._set(name, size)

    def _size_said(self, role: str, value: str) -> None:
        plain = self.plain
        have = f"and the dimensions are {', '.join(plain)}"
        if role == "image":
            sides = tuple(map(int, re.findall(r"\d+", value)))
            names = ("batch", "channels", "height", "width")[-max(len(sides), 2) :]
            if not {*names} <= {*plain}:
                raise unread(f"an image of {value} is said, {have}")
            self._set_all(names, sides if len(sides) > 1 else sides * 2)
            return
        if not re.fullmatch(r"\d+", value):
            raise unread(f"{role} = {value} is no size")
        size = int(value)
        if role == "side" and "n" in plain:
            for one in (d for tensor in self.tensors[:2] for d in tensor.dimensions if d != "batch"):
                self._set(one, size)
            return
        name = vocabulary()["letters"].get(role, role)
        wanted = [role, name, *vocabulary()["bound"].get(name, ())]
        wanted += ["head_size"] * (role == "d") + ["rows"] * (name == "sequence" and "batch" in plain)
        for one in self.builder.settled(tuple(wanted)):
            if one in plain and (one in self.fixed or self.sizes.get(one, size) == size):
                if one in self.fixed and self.sizes[one] != size:
                    self.builder.assume(f"{role}={value} is said, and the shapes that were given win")
                self._set(one, size)
                return
        if not ({*plain} <= self.fixed and size in self.sizes.values()):
            raise unread(f"{role}={value} is said, {have}")


def _usual_size(name: str) -> int:
    for size, names in vocabulary()["usual"].items():
        if {name, re.sub(r"_\d+$", "", name)} & {*names.split()}:
            return int(size)
    return 64


def _by(sides: Iterable[object]) -> str:
    return "x".join(map(str, sides))


def _operation(step: Step) -> Operation:
    if rivals := step.operation.rivals(tuple(step.options)):
        asked = " and ".join(one.replace("_", " ") for one in rivals)
        raise unread(f"{step.operation.name.replace('_', ' ')} is read with one of these only: {asked}")
    return step.operation.with_options(tuple(step.options))


def _is_word_for(own: str, name: str) -> bool:
    """Whether a person may mean a tensor of the catalogue by a name."""
    usual = vocabulary()["tensor_names"].get(name.lower(), "").split()
    return own.split("_")[0] == name or own in usual or own.lower() == name.lower()

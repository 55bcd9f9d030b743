"""From steps to a specification: the reference in PyTorch, the sizes of its dimensions, and what was assumed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain, groupby

from tilewright.records import DType, Specification, TensorSpec
from tilewright.tasks.errors import ArgumentKind, GivenArgument, Remedy, RemedyKind
from tilewright.words import building
from tilewright.words.building import Axis, Builder, Dimensions, Value
from tilewright.words.catalogue import Argument, Operation, parsed_arguments, vocabulary
from tilewright.words.errors import NotUnderstood, Reading, SeveralReadings, unread
from tilewright.words.formulas import Formula, write_formula
from tilewright.words.steps import LEFT_OUT, Request, Step

_FUNCTIONS = frozenset(("exp", "log", "sqrt", "abs", "tanh", "round", "erf", "sin", "cos", "rsqrt"))  # of C++
_INTEGERS = re.compile(  # operations that are read of integers too
    r"(row_|arg|cum|scatter_|vector_|exclusive_cum|reverse_cum)?(sum|prod|max|min|sort|add|subtract|multiply)"
    r"|maximum|minimum|where|clamp|transpose|concat|flip|roll|top_k|histogram|searchsorted|hamming|gather(_rows)?"
)
_FULL = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "i32": "int32", "i64": "int64"}
_MOST_HEADS = 256
_AXES: dict[str, tuple[int, ...]] = {"row": (-1,), "last": (-1,), "columns": (-1,), "last_two": (-2, -1), "first": (0,)}
_AXES |= {"second": (1,), "third": (2,), "sequence": (1,), "channels": (1,), "spatial": (2, 3), "all": ()}
_NAMED = {"row": "d head_size classes cols", "first": "batch", "channels": "channels filters"}  # the dimensions meant
_NAMED["sequence"] = "sequence time length"
_WANTED = {"sequence": 3, "channels": 4, "spatial": 4, "last_two": 3, "height": 4, "width": 4, "depth": 5}  # ranks

Given = dict[str, TensorSpec]  # the shapes that are given, by the names of tensors


def written(words: str, request: Request, formula: Formula | None, shapes: Mapping[str, str]) -> Specification:
    """The specification of a request. Shapes that were given win over sizes in the words."""
    given: Given = {}
    for name, text in shapes.items():
        try:
            given[name] = TensorSpec.parse(text)
        except ValueError as error:
            raise NotUnderstood(str(error), given=GivenArgument(ArgumentKind.SHAPE, name, text)) from None
    plain = _Draft(request, formula, given, {}, None)  # it tells what the tensors are called, and how many there are
    if not plain.builder.tensors:
        raise unread(f'"{words}" takes no tensor')
    renamed = plain.renamed()
    first = renamed.get(plain.builder.tensors[0].name, plain.builder.tensors[0].name)
    rank = len(given[first].shape) if first in given else plain.rank_of_words(first)
    _choose_layouts(request, given, renamed)
    _drop_absent(request, given, renamed)
    return _Draft(request, formula, given, renamed, rank).specification(shapes)


class _Draft:
    """The reference of a request, with the tensors by the names that are given."""

    def __init__(
        self, request: Request, formula: Formula | None, given: Given, renamed: dict[str, str], rank: int | None
    ) -> None:
        self.request, self.given, self.rank = request, given, rank
        self.builder = Builder(renamed, rank, request.layout if rank in (None, len(request.layout)) else ())
        self.names: list[str] = []
        self.says: list[str] = []
        self.results: tuple[str, ...] = ()
        value = self._formula(formula) if formula else None
        self.value = self._joint(value) if request.joint else self._steps(value)

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
            self.builder.params[name] = str(float(building.number(name, text)))
            self.builder.assume(f"{name} is {text}")
        self.names.append(formula.name)
        self.says.append(f"the value of {formula.text}")
        return self._assigned(value)

    def _steps(self, value: Value | None) -> Value:
        before: Step | None = None
        for step in self.request.steps:
            if self.results:
                raise NotUnderstood(f"several results come before {step.operation.says}; write it as a function")
            reduced = before and before.operation.kind == "reduce" and value and len(value.dimensions) < 2
            if before and reduced and step.operation.kind in ("row", "scan"):
                what = f"{step.operation.says} cannot follow {before.operation.says}"
                raise NotUnderstood(f"{what}, which leaves one element per row")
            value, before = self._step(step, value), step
        assert value is not None
        if self.request.to:
            value = self._assigned(Value(f"{value.atom}.to(torch.{_FULL[self.request.to]})", value.dimensions))
            self.builder.assume(f"the result is cast to {self.request.to}")
        return value

    def _step(self, step: Step, value: Value | None) -> Value:
        operation, renamed = _chosen(step), self.builder.renamed
        own = (one.name for one in operation.arguments)
        self.builder.renamed = {**renamed, **dict(zip(own, step.called, strict=False))}
        found, over = self._apply(step, value)
        self.builder.renamed = renamed
        texts = {**operation.params, **operation.numbers, **step.numbers, **operation.slots}
        self.names.append(operation.title or operation.name)
        self.says.append(f"{building.fill(operation.says, texts)}{over}")
        self.results = operation.results
        return self._assigned(found, ", ".join(operation.results))

    def _joint(self, value: Value | None) -> Value:
        """The last two steps are results beside each other."""
        *before, one, other = self.request.steps
        for step in before:
            value = self._step(step, value)
        value = value or self.builder.tensor(one.operation.arguments[0], self.builder.generic())
        (left, over), (right, _) = self._apply(one, value), self._apply(other, value)
        self.results = tuple(step.operation.name.removeprefix("row_") for step in (one, other))
        self.names.append("_and_".join(self.results))
        self.says.append(f"{one.operation.says} and {other.operation.says}{over}")
        return self._assigned(Value(f"{left.code}, {right.code}", ()), ", ".join(self.results))

    def _apply(self, step: Step, value: Value | None) -> tuple[Value, str]:
        """The value of a step, and the words for what it goes over."""
        operation, dimensions = _chosen(step), value.dimensions if value else self.builder.layout
        axis = self._axis(step, len(value.dimensions) if value else self.rank, dimensions)
        over = f" {building.goes_over((-1,) if axis is None else axis)}"
        if axis in (None, (-1,)):
            along = (operation.goes_over and operation.axis != "all") or operation.axis == "last"
            over = over if along and not any("dimension" in one for one in self.says) else ""
        return self.builder.apply(operation, value, step.numbers, axis, step.axis_said), over

    def _assigned(self, value: Value, name: str = "") -> Value:
        taken = {one.name for one in self.builder.tensors}
        name = name or next(one for one in ("y", "z", "out", "result") if one not in taken)
        if value.code != name:
            self.builder.lines.append(f"{name} = {value.code}")
        return Value(name, value.dimensions)

    def _axis(self, step: Step, rank: int | None, dimensions: Dimensions) -> Axis:
        """The dimensions that the words about a step mean. They may say the rank of the first tensor too."""
        said, builder = step.axis, self.builder
        untold = NotUnderstood(f'which dimension "{step.axis_said}" is cannot be told; say it as "over dim 1"')
        if said is None or isinstance(said, tuple):
            if said and rank is None and not builder.layout:
                if max(said) > 4:
                    raise NotUnderstood(
                        f'"{step.axis_said}" needs a tensor of {max(said) + 1} dimensions; give its shape'
                    )
                builder.rank = builder.rank or {2: 3, 3: 4}.get(max(said))
            return said
        if said in ("rows?", "columns?"):
            ways = {"row": "the last dimension", "column": "dimension 0"}
            asked, says = step.operation.request, step.operation.says
            readings = tuple(Reading(f"{asked} of each {one}", f"{says} over {way}") for one, way in ways.items())
            raise SeveralReadings(f'"{step.axis_said}" may be of each row or of each column', readings)
        if said.startswith("="):
            own = dimensions or _chosen(step).arguments[0].dimensions
            if rank is None and "..." in own:  # images have sides
                rank = builder.rank = builder.rank or _WANTED.get(said[1:])
            names = [building.kind(one) for one in building.named(own, rank)]
            if names.count(building.kind(said[1:])) != 1:
                raise untold
            place = names.index(building.kind(said[1:]))
            return (place - len(names) if "..." in names[:place] else place,)
        if said == "column":
            return (0,) if rank in (None, 2) else (-2,)
        if named := [one for one in _NAMED.get(said, "").split() if one in dimensions]:
            place = dimensions.index(named[0])
            return (place if place < len(dimensions) - 1 else -1,)
        if said == "sequence":
            if rank not in (None, 3):
                raise untold
            builder.assume("the sequence is dimension 1, of [batch, sequence, features]")
        if rank is None or said == "spatial":
            builder.rank = builder.rank or _WANTED.get(said)
        return _AXES[said]

    # -- tensors, names and sizes --

    def renamed(self) -> dict[str, str]:
        """The tensors that a person named: by another word for each, and the others in order."""
        tensors = {one.name: one for one in self.builder.tensors}
        said = dict.fromkeys([*self.given, *(name for names, _ in self.request.shapes for name in names)])
        found: dict[str, str] = {}
        for fits in (_is_word_for, self._may_have):
            for name in (one for one in said if one not in tensors and one not in found.values()):
                free = (one for own, one in tensors.items() if own not in said and own not in found)
                if own := next((one.name for one in free if fits(one, name)), ""):
                    found[own] = name
                elif fits == self._may_have and name in self.given:
                    argument = GivenArgument(ArgumentKind.SHAPE, name)
                    raise NotUnderstood(f"the task has no such tensor; it has {', '.join(tensors)}", given=argument)
        return found

    def _may_have(self, made: Argument, name: str) -> bool:
        """Whether a tensor may have the shape that is given for a name."""
        if name not in self.given:
            return True
        spec, is_float = self.given[name], made.dtype is None or made.dtype.is_float
        same_rank = made is self.builder.tensors[0] or len(made.dimensions) == len(spec.shape)
        return same_rank and is_float == spec.dtype.is_float

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
        for place, one in enumerate(builder.tensors):
            values = re.sub(r"(?<=^index )\w+", lambda said: builder.settled((said[0],))[0], one.values)
            builder.tensors[place] = replace(one, dimensions=builder.settled(one.dimensions), values=values)
        dtype = self._dtype(shapes)
        sizes = _Sizes(builder, self.given, self.request).all()
        builder.check(sizes)
        for own, name in builder.renamed.items():
            if own != name and not (len(own) > 1 and own.startswith(name)):
                builder.assume(f"{name} is the {own.replace('_', ' ')}")
        positive = builder.positive == "needs" and builder.tensors[0].dtype is None
        said = self.request.dtype or any(one.name in self.given for one in builder.tensors if one.dtype is None)
        if positive and not builder.tensors[0].values:
            builder.tensors[0] = replace(builder.tensors[0], values="uniform 0.1 4")
        first = [f"{builder.tensors[0].name} is positive"] * positive
        first += [f"elements are {dtype}" + ("" if said else ", as no dtype was said")]
        notes = self.request.notes
        left_out = [one for one in notes if one.startswith(LEFT_OUT)]  # a person sees it before all else
        assumptions = tuple(dict.fromkeys([*left_out, *first, *builder.assumptions, *notes]))
        dtypes = (self.given[o.name].dtype if o.name in self.given else o.dtype or dtype for o in builder.tensors)
        inputs = {o.name: f"{t}[{', '.join(o.dimensions)}]" for o, t in zip(builder.tensors, dtypes, strict=True)}
        if self.request.inplace:
            inputs[builder.tensors[0].name] = f"inplace {inputs[builder.tensors[0].name]}"
        name = "_".join([one for one, _ in groupby(self.names)][:5])
        name += "_op" * (name in {*_FUNCTIONS, *inputs, *builder.params})
        description = self._description(name, assumptions, inputs, sizes)
        return Specification(self._function(name, inputs), description, assumptions)

    def _function(self, name: str, inputs: dict[str, str]) -> str:
        builder, result = self.builder, f"return {self.value.code}"
        if self.request.inplace:
            first = builder.tensors[0]
            if builder.settled(self.value.dimensions) != first.dimensions:
                raise NotUnderstood(f"this cannot be done in place: its result has another shape than {first.name}")
            result = f"{first.name}.copy_({self.value.code})"
        body = "\n".join(f"    {line}" for line in (*builder.lines, result))
        imports = [f"import {one}" for one in ("math", "torch") if f"{one}." in body]
        imports += ["import torch.nn.functional as F"] * (re.search(r"\bF\.", body) is not None)
        head = "\n".join([*imports, "", "", ""]) if imports else ""
        params = [*inputs, *(f"{one}: float = {float(text)!r}" for one, text in builder.params.items())]
        says = ", then ".join(self.says)
        says = says if re.match(r"[b-z] ", says) else f"{says[0].upper()}{says[1:]}"
        return f'{head}def {name}({", ".join(params)}):\n    """{says}."""\n{body}\n'

    def _dtype(self, shapes: Mapping[str, str]) -> DType:
        """The dtype of the elements: that of the first tensor, of the words, of another tensor, or the usual one."""
        tensors, steps = self.builder.tensors, self.request.steps
        said = DType(self.request.dtype) if self.request.dtype else None
        own = [self.given[one.name].dtype for one in tensors if one.name in self.given and one.dtype is None]
        first, text = tensors[0].name, shapes.get(tensors[0].name, "")
        argument = GivenArgument(ArgumentKind.SHAPE, first, text) if text and tensors[0].dtype is None else None
        if argument:
            if ":" not in text and said not in (None, own[0]):
                remedy = Remedy(RemedyKind.GIVE_SHAPE, first, f"{text}:{said}")
                raise NotUnderstood(f"this means {own[0]}, and the words say {said}", remedy, given=argument)
            said = own[0]
        if said and not said.is_float and not all(_INTEGERS.fullmatch(one.operation.name) for one in steps):
            raise NotUnderstood(f"words about {first} are read of floating-point elements", given=argument)
        usual = next((one.operation.dtype for one in steps if one.operation.dtype), "bf16")
        return said or next((one for one in own if one.is_float), DType(usual))

    def _description(self, name: str, assumptions: Iterable[str], inputs: dict[str, str], sizes: dict[str, int]) -> str:
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
        values = [f'{one.name} = "{one.values}"' for one in builder.tensors if one.values]
        lines += ["", "[values]", *values] if values else []
        return "\n".join(lines) + "\n"


class _Sizes:
    """The sizes of all dimensions. What is strongest is settled first: shapes that are given, shapes in the words,
    sizes in the words by the names of dimensions, and the usual ones."""

    def __init__(self, builder: Builder, given: Given, request: Request) -> None:
        self.builder, self.given, self.request = builder, given, request
        self.tensors = builder.tensors
        self.free = [one for one in self.tensors if one.name not in given]
        self.sizes: dict[str, int] = {}
        self.fixed: frozenset[str] = frozenset()  # dimensions of shapes that were given
        order = (builder.derived.get(d, d) for one in self.tensors for d in one.dimensions)
        self.plain = list(dict.fromkeys(chain(*(re.findall(r"[A-Za-z]\w*", one) for one in order))))

    def all(self) -> dict[str, int]:
        for one in self.tensors:
            if one.name in self.given:
                self._put(one.dimensions, self.given[one.name].shape, one)
        self.fixed = frozenset(self.sizes)
        if self.free:
            self._shapes_said()
        for role, value in self.request.sizes:
            self._size_said(role, value)
        if "keys" in self.plain and "sequence" in self.sizes:
            self.sizes.setdefault("keys", self.sizes["sequence"])
        usual = {one: int(size) for size, names in vocabulary()["usual"].items() for one in names.split()}
        usual |= dict.fromkeys("mnk", 1024) if "batch" in self.plain else {}  # many matrices are smaller than one
        alike = {one: re.sub(r"_\d+$", "", one) for one in self.plain}
        return {one: self.sizes.get(one, usual.get(one, usual.get(alike[one], 64))) for one in self.plain}

    def _put(self, names: Dimensions, shape: tuple[int, ...], made: Argument | None = None) -> None:
        """Settles sizes. Those of shapes that were given stay as they are."""
        given = made is not None and made.name in self.given
        argument = GivenArgument(ArgumentKind.SHAPE, made.name, _by(shape)) if made and given else None
        if made and len(shape) != len(names):
            raise NotUnderstood(f"{made.name} has the shape {_by(self.sizes.get(n, n) for n in names)}", given=argument)
        for name, size in zip(names, shape, strict=True):
            if size < 1:
                raise NotUnderstood("a tensor has no size of 0", given=argument)
            is_formula = name in self.builder.derived or name.isdigit()
            had = self._solved(name, size) if is_formula else self.sizes.setdefault(name, size)
            if had == size or (name in self.fixed and not given):
                continue
            if made is None:
                raise unread(f"{name} is said to be {had} and {size}")
            takes = _by(had if one == name else self.sizes.get(one, n) for one, n in zip(names, shape, strict=True))
            clash = f"{made.name} does not go with the others: it has the shape {takes}"
            raise NotUnderstood(clash, given=argument) if given else unread(f"{_by(shape)} is said, and {clash}")

    def _solved(self, name: str, size: int) -> int:
        """The size by the formula of a dimension, once the one size that it may lack is found."""
        formula = self.builder.derived.get(name, name).replace("/", "//")
        unknown = {one for one in re.findall(r"[a-z]\w*", formula) if one not in self.sizes}
        if len(unknown) == 1 and size < 1 << 18:
            (one,) = unknown
            guesses = range(1, size * 256 + 1)
            found = next((n for n in guesses if building.computed(formula, {**self.sizes, one: n}) == size), None)
            self.sizes |= {one: found} if found else {}
        return size if unknown else int(building.computed(formula, self.sizes))

    # -- shapes in the words --

    def _shapes_said(self) -> None:
        """Shapes in the words: of the tensors that they name, or of the first ones in order."""
        nameless: list[tuple[int, ...]] = []
        for names, shape in self.request.shapes:
            for name in names:
                meant = {name.lower(), self.builder.renamed.get(name, name)}
                owner = next((one for one in self.tensors if one.name.lower() in meant), None)
                if owner is None:
                    nameless.append(shape)
                elif owner in self.free:
                    self._shape(owner, shape)
            nameless += [] if names else [shape]
        if len(nameless) > len(self.tensors):
            have = ", ".join(one.name for one in self.tensors)
            raise unread(f"{len(nameless)} shapes are said, and the tensors are {have}")
        free = [one for one in self.free if not {*one.dimensions} <= self.fixed]
        alone = len(nameless) == 1
        if alone and (self.tensors[0] not in self.free or self._of_product(nameless[0])):
            return
        for shape in nameless:
            made = next((one for one in free if _sides(one, shape, alone)), None)
            if made is None:
                takes = ", ".join(free[0].dimensions) if free else "the shape that is given"
                raise unread(f"{_by(shape)} is said, and {(free or self.tensors)[0].name} takes {takes}")
            free.remove(made)
            sides = _sides(made, shape, alone)
            if made.name.startswith("weight") and len(shape) == 2 and self.sizes.get(sides[1]) == shape[0] != shape[1]:
                self.builder.assume(f"{made.name} is [out, in], so {_by(shape)} is in and out")
                shape = shape[::-1]
            elif alone and sides == made.dimensions:
                self.builder.assume(f"{_by(shape)} is the shape of {made.name}")
            self._shape(made, shape, alone)

    def _shape(self, made: Argument, shape: tuple[int, ...], alone: bool = False) -> None:
        """A shape in the words, which may be that of one of a batch."""
        sides = _sides(made, shape, alone)
        if not sides:
            raise unread(f"{_by(shape)} is said, and {made.name} takes {', '.join(made.dimensions)}")
        if sides != made.dimensions:
            self.builder.assume(f"{_by(shape)} is {', '.join(sides)} of each of a batch")
        self._put(sides, shape, made)

    def _of_product(self, shape: tuple[int, ...]) -> bool:
        """Whether the one shape in the words is that of both factors of a product, which are square then."""
        left, right = (*(one.dimensions for one in self.tensors), (), ())[:2]
        many = left[:1] == ("batch",)
        if "k" not in left or not (right[-2:-1] == ("k",) or (many and "k" in right)):
            return False
        if len(shape) <= 3 and len(set(shape[-2:] if many else shape)) == 1:
            for one in (*left, *right):
                size = shape[:-2] if one == "batch" else shape[-1:]
                self._put((one,) * len(size), size)
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

    # -- sizes in the words --

    def _size_said(self, role: str, value: str) -> None:
        plain, sizes = self.plain, tuple(map(int, re.findall(r"\d{1,18}", value)))
        if not 1 <= len(sizes) <= 4 or (role != "image" and str(sizes[0]) != value):
            raise unread(f"{role} = {value} is no size")
        name = vocabulary()["letters"].get(role, role)
        wanted = [role, name, *vocabulary()["bound"].get(name, ())]
        wanted += ["head_size"] * (role == "d") + ["rows"] * (name == "sequence" and "batch" in plain)
        if role == "image":
            names = ("batch", "channels", "height", "width")[-max(len(sizes), 2) :]
        elif role == "side" and "n" in plain:
            names = tuple(d for one in self.tensors[:2] for d in one.dimensions if d != "batch")
        else:
            found = [one for one in self.builder.settled(tuple(wanted)) if one in plain]
            names = tuple(one for one in found if one in self.fixed or self.sizes.get(one, sizes[0]) == sizes[0])[:1]
        if names and {*names} <= {*plain}:
            if any(one in self.fixed and self.sizes[one] not in sizes for one in names):
                self.builder.assume(f"{role}={value} is said, and the shapes that were given win")
            self._put(names, sizes if len(sizes) == len(names) else sizes * len(names))
        elif not ({*plain} <= self.fixed and sizes[0] in self.sizes.values()):
            raise unread(f"{role}={value} is said, and the dimensions are {', '.join(plain)}")


def _sides(made: Argument, shape: tuple[int, ...], alone: bool) -> Dimensions:
    """The dimensions of a tensor that a shape is of: all, or those of one of a batch; () where it does not fit."""
    fewer, last = len(made.dimensions) - len(shape), made.dimensions[-len(shape) :]
    each = last[-2:] == ("height", "width") if alone else fewer == 1
    return last if fewer == 0 or (fewer > 0 and each and made.dimensions[0] == "batch") else ()


def _by(sides: Iterable[object]) -> str:
    return "x".join(map(str, sides))


# -- steps and their tensors --


def _chosen(step: Step) -> Operation:
    if rivals := step.operation.rivals(tuple(step.options)):
        asked = " and ".join(one.replace("_", " ") for one in rivals)
        raise unread(f"{step.operation.name.replace('_', ' ')} is read with one of these only: {asked}")
    return step.chosen


def _choose_layouts(request: Request, given: Given, renamed: dict[str, str]) -> None:
    """Adds the option of a step that only says how its tensors lie, where their shapes ask for it."""
    shapes = {name: shape for names, shape in request.shapes for name in names or ("",)}
    shapes |= {name: spec.shape for name, spec in given.items()}

    def unfit(arguments: tuple[Argument, ...], only_heads: bool = False) -> list[Dimensions]:
        known = [shapes.get(renamed.get(one.name, one.name), ()) for one in arguments]
        known[:1] = [one or shapes.get("", ()) for one in known[:1]]
        pairs = [(one.dimensions, shape) for one, shape in zip(arguments, known, strict=True) if shape]
        heads = [one for one, shape in pairs if not request.layout and _many_heads(one, shape)]
        return heads + [d for d, shape in pairs if not (only_heads or "..." in d or len(d) == len(shape))]

    for step in request.steps:
        arguments = step.chosen.arguments
        layouts = [one for one in step.operation.options if all(name.startswith("layout ") for name in one.phrases)]
        takes = ((one.name, parsed_arguments(one.changes.get("takes", ""))) for one in layouts)
        found = next((name for name, other in takes if other and not unfit(other)), "") if unfit(arguments) else ""
        step.options += [found] if found else []
        if not found and (wrong := unfit(arguments, only_heads=True)):
            read = ", ".join(wrong[0])
            raise unread(f"the shape is read as [{read}], which makes too many heads; give it in that order")


def _drop_absent(request: Request, given: Given, renamed: dict[str, str]) -> None:
    """Where the other tensors of a step are given and its bias is not, it goes without."""
    for step in request.steps if len(given) > 1 else ():
        absent = {one.name for one in step.chosen.arguments[1:] if renamed.get(one.name, one.name) not in given}
        option = next((one for one in step.operation.options if absent and {*one.drops} == absent), None)
        if option and option.name not in step.options and len(absent) < len(step.chosen.arguments) - 1:
            step.options.append(option.name)


def _many_heads(dimensions: Dimensions, shape: tuple[int, ...]) -> bool:
    """Whether the size of the heads is rather that of a sequence: 4096 in 2x4096x32x128."""
    kinds = [building.kind(one) for one in dimensions]
    if len(shape) != 4 or len(kinds) != 4 or not {"heads", "sequence"} <= {*kinds}:
        return False
    return shape[kinds.index("heads")] > max(_MOST_HEADS, shape[kinds.index("sequence")])


def _is_word_for(made: Argument, name: str) -> bool:
    """Whether a person may mean a tensor of the catalogue by a name."""
    usual = vocabulary()["tensor_names"].get(name.lower(), "").split()
    return made.name.split("_")[0] == name or made.name in usual or made.name.lower() == name.lower()

"""Words to a specification: the steps that the grammar reads, as a reference in PyTorch and its description."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.playbook.errors import NotUnderstood
from tilewright.playbook.phrases import Clause
from tilewright.playbook.sentences import WordsRequest, parse_words
from tilewright.playbook.vocabulary import Effect, Shape
from tilewright.records import DType, Specification, TensorSpec
from tilewright.tasks.errors import ArgumentKind, GivenArgument, Remedy, RemedyKind

_FUNCTIONS = frozenset(("exp", "log", "sqrt", "abs", "tanh"))  # of C++: no op is called so
_DEFAULT_ROWS, _DEFAULT_COLS = 4096, 1024


def specification(words: str, shapes: Mapping[str, str]) -> Specification:
    """The reference in PyTorch and the task's description. Shapes given for `x` win over sizes in the words."""
    return _SpecificationWriter(parse_words(words), shapes).specification()


def _parsed_shape(name: str, text: str) -> TensorSpec:
    try:
        return TensorSpec.parse(text)
    except ValueError as error:
        raise NotUnderstood(str(error), given=GivenArgument(ArgumentKind.SHAPE, name, text)) from None


class _SpecificationWriter:
    def __init__(self, request: WordsRequest, shapes: Mapping[str, str]) -> None:
        self.request = request
        self.given = {name: _parsed_shape(name, text) for name, text in shapes.items()}
        self.extras = _named_extras(request.clauses)
        self.dtype = self._dtype(shapes.get("x", ""))
        sizes = self._sizes()
        self.dimensions = dict(zip(_dimension_names(len(sizes)), sizes, strict=True))
        self.inputs: dict[str, str] = {"x": self._tensor("x", tuple(self.dimensions))}
        self.numbers: dict[str, float] = {}
        self.assumptions: list[str] = []

    def _dtype(self, shape_of_x: str) -> DType:
        """That of x: as given, as said, or that of another tensor that was given."""
        said = self.request.dtype
        if "x" in self.given:
            dtype, given = self.given["x"].dtype, GivenArgument(ArgumentKind.SHAPE, "x", shape_of_x)
            if ":" not in shape_of_x and said not in (None, dtype):
                remedy = Remedy(RemedyKind.GIVE_SHAPE, "x", f"{shape_of_x}:{said}")
                raise NotUnderstood(f"this means {dtype}, and the words say {said}", remedy, given=given)
            if not dtype.is_float:
                raise NotUnderstood("the playbook reads words about floating-point x only", given=given)
            return dtype
        tensors = (name for names in self.extras for name, _ in names.values() if name in self.given)
        others = [self.given[name].dtype for name in tensors if self.given[name].dtype.is_float]
        return said or (others[0] if others else DType.BF16)

    def _sizes(self) -> tuple[int, ...]:
        """Those of x: as given, as a tensor like x was given, as said, or as a vector along the columns was given."""
        whole: list[tuple[int, ...]] = []
        columns: list[tuple[int, ...]] = []
        for names in self.extras:
            for name, shape in names.values():
                if name in self.given:
                    (whole if shape is Shape.WHOLE else columns).append(self.given[name].shape)
        sizes = self.request.sizes or (_DEFAULT_ROWS, columns[0][-1] if columns and columns[0] else _DEFAULT_COLS)
        sizes = whole[0] if whole and not self.request.sizes else sizes
        sizes = self.given["x"].shape if "x" in self.given else sizes
        if not sizes or 0 in sizes:
            found = "x needs at least one dimension, and no size of 0"
            raise NotUnderstood(found, Remedy(RemedyKind.GIVE_SHAPE, "x", f"{_DEFAULT_ROWS}x{_DEFAULT_COLS}:bf16"))
        return sizes

    def specification(self) -> Specification:
        self._check_order()
        if self._wants_positive():
            self._assume("x is positive")
        self._assume(f"elements are {self.dtype}" + ("" if self._dtype_said() else ", as no dtype was said"))
        steps = zip(self.request.clauses, self.extras, strict=True)
        lines = [
            f"    y = {self._code(clause, names, 'y' if place else 'x')}" for place, (clause, names) in enumerate(steps)
        ]
        name = self._name()
        parameters = [*self.inputs, *(f"{number}: float = {value!r}" for number, value in self.numbers.items())]
        says = self._says()
        reference = "\n".join(
            [
                *_imports(lines),
                "",
                "",
                f"def {name}({', '.join(parameters)}):",
                f'    """{says[0].upper()}{says[1:]}."""',
                *lines,
                "    return y",
                "",
            ]
        )
        return Specification(reference, self._description(name), tuple(self.assumptions))

    def _says(self) -> str:
        """The steps in a sentence; the first that goes along rows says so."""
        along = [one.operation.effect is not Effect.ELEMENTS for one in self.request.clauses]
        first = along.index(True) if True in along else -1
        return ", then ".join(
            one.says + (" over the last dimension" if place == first else "")
            for place, one in enumerate(self.request.clauses)
        )

    def _dtype_said(self) -> bool:
        return "x" in self.given or self.request.dtype is not None

    def _assume(self, text: str) -> None:
        if text and text not in self.assumptions:
            self.assumptions.append(text)

    def _check_order(self) -> None:
        reduced: Clause | None = None
        for clause in self.request.clauses:
            operation = clause.operation
            if reduced is not None and (operation.effect is not Effect.ELEMENTS or operation.extras):
                raise NotUnderstood(
                    f'"{clause.says}" cannot follow "{reduced.says}", which leaves one element per row; put it first',
                    Remedy(RemedyKind.CHOOSE_MODEL),
                )
            reduced = clause if operation.effect is Effect.REDUCES else reduced

    def _code(self, clause: Clause, names: Mapping[str, tuple[str, Shape | None]], value: str) -> str:
        for name, shape in names.values():
            if shape is None:
                self.numbers[name] = float(clause.numbers[0])
            else:
                dimensions = tuple(self.dimensions) if shape is Shape.WHOLE else tuple(self.dimensions)[-1:]
                self.inputs[name] = self._tensor(name, dimensions)
        self._assume(clause.operation.assumption.format(*clause.numbers))
        return clause.operation.code.format(*clause.numbers, v=value, **{one: name for one, (name, _) in names.items()})

    def _tensor(self, name: str, dimensions: tuple[str, ...]) -> str:
        if name not in self.given:
            return f"{self.dtype}[{', '.join(dimensions)}]"
        given, wanted = self.given[name], tuple(self.dimensions[one] for one in dimensions)
        if given.shape != wanted:
            x = "x".join(str(size) for size in self.dimensions.values())
            raise NotUnderstood(
                f"{name} goes with x, which is {x}, and so has the shape {'x'.join(map(str, wanted))}",
                given=GivenArgument(ArgumentKind.SHAPE, name, "x".join(map(str, given.shape))),
            )
        return f"{given.dtype}[{', '.join(dimensions)}]"

    def _name(self) -> str:
        names = [clause.operation.name for clause in self.request.clauses]
        unique = [one for place, one in enumerate(names) if place == 0 or names[place - 1] != one]
        name = "_".join(unique[:5])
        return f"{name}_op" if name in {*_FUNCTIONS, *self.inputs, *self.numbers} else name

    def _description(self, name: str) -> str:
        lines = [f'name = "{name}"', f'function = "{name}"', "assumptions = ["]
        lines += [f'    "{one}",' for one in self.assumptions]
        lines += ["]", "", "[dimensions]", *(f"{one} = {size}" for one, size in self.dimensions.items())]
        lines += ["", "[inputs]", *(f'{one} = "{text}"' for one, text in self.inputs.items())]
        lines += [f"{one} = {value!r}" for one, value in self.numbers.items()]
        if self._wants_positive():
            lines += ["", "[values]", 'x = "uniform 0.1 4"']
        return "\n".join(lines) + "\n"

    def _wants_positive(self) -> bool:
        """Whether a root or a logarithm meets x before anything has made it positive."""
        for clause in self.request.clauses:
            if clause.operation.needs_positive or clause.operation.makes_positive:
                return clause.operation.needs_positive
        return False


def _named_extras(clauses: tuple[Clause, ...]) -> list[dict[str, tuple[str, Shape | None]]]:
    """For every clause: what its operation calls its tensors and numbers, and what the reference calls them."""
    taken = {"x"}
    found = []
    for clause in clauses:
        names: dict[str, tuple[str, Shape | None]] = {}
        for extra in clause.operation.extras:
            name, number = extra.name, 2
            while name in taken:
                name, number = f"{extra.name}_{number}", number + 1
            taken.add(name)
            names[extra.name] = (name, extra.shape)
        found.append(names)
    return found


def _dimension_names(rank: int) -> tuple[str, ...]:
    known = {1: ("cols",), 2: ("rows", "cols"), 3: ("batch", "rows", "cols")}
    return known.get(rank) or (*(f"batch_{place}" for place in range(1, rank - 1)), "rows", "cols")


def _imports(lines: list[str]) -> list[str]:
    text = "\n".join(lines)
    return ["import torch"] * ("torch." in text) + ["import torch.nn.functional as F"] * ("F." in text)

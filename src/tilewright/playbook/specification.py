"""Words to a specification: the steps that the grammar reads, as a reference in PyTorch and its description."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tilewright.playbook.dimension_words import Axis
from tilewright.playbook.errors import NotUnderstood
from tilewright.playbook.named_operation import Effect, Number
from tilewright.playbook.sentences import WordsRequest, parse_words
from tilewright.playbook.tensor_sizes import Step, TensorSizes
from tilewright.records import DType, Specification, TensorSpec
from tilewright.tasks.errors import ArgumentKind, GivenArgument, Remedy, RemedyKind

_FUNCTIONS = frozenset(("exp", "log", "sqrt", "abs", "tanh", "round", "erf", "sin", "cos", "rsqrt"))  # of C++


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
        self.sizes = TensorSizes(request, {name: _parsed_shape(name, text) for name, text in shapes.items()})
        self.dtype = self._dtype(shapes.get(self.sizes.first.name, ""))
        self.numbers: dict[str, float] = {}
        self.assumptions: list[str] = []

    def _dtype(self, first_shape: str) -> DType:
        """That of the elements: as given for the first tensor, as said, or that of another tensor that was given."""
        said, first, given = self.request.dtype, self.sizes.first, self.sizes.given
        if first.name in given and first.dtype is None:
            dtype, argument = given[first.name].dtype, GivenArgument(ArgumentKind.SHAPE, first.name, first_shape)
            if ":" not in first_shape and said not in (None, dtype):
                remedy = Remedy(RemedyKind.GIVE_SHAPE, first.name, f"{first_shape}:{said}")
                raise NotUnderstood(f"this means {dtype}, and the words say {said}", remedy, given=argument)
            if not dtype.is_float:
                raise NotUnderstood(f"the playbook reads words about floating-point {first.name} only", given=argument)
            return dtype
        others = [given[one.name].dtype for one in self.sizes.tensors if one.name in given and one.dtype is None]
        floats = [one for one in others if one.is_float]
        usual = next((one.operation.dtype for one in self.request.clauses if one.operation.dtype), DType.BF16)
        return said or (floats[0] if floats else usual)

    def specification(self) -> Specification:
        if self._wants_positive():
            self._assume(f"{self.sizes.first.name} is positive")
        self._assume(f"elements are {self.dtype}" + ("" if self._dtype_said() else ", as no dtype was said"))
        body = self._body()
        name = self._name()
        parameters = [*self._inputs(), *(f"{number}: float = {value!r}" for number, value in self.numbers.items())]
        says = self._says()
        imports = _imports(body)
        lines = [
            *imports,
            *(["", ""] if imports else []),
            f"def {name}({', '.join(parameters)}):",
            f'    """{_sentence(says)}"""',
        ]
        reference = "\n".join([*lines, *(f"    {line}" for line in body), ""])
        return Specification(reference, self._description(name), tuple(self.assumptions))

    def _body(self) -> list[str]:
        """The statements: a step each, and the results."""
        lines, value = [], self.sizes.first.name
        for step in self.sizes.steps:
            *before, result = self._code(step, value).split("\n")
            value = ", ".join(step.clause.operation.results) or self._result()
            lines += [*before, *([f"{value} = {result}"] if result != value else [])]
        if self.request.in_place:
            first = self.sizes.first.name
            if self.sizes.reshaped:
                raise NotUnderstood(
                    f"{self._says()} cannot be done in place: its result has another shape than {first}"
                )
            return [*lines, f"{first}.copy_({value})"]
        return [*lines, f"return {value}"]

    def _result(self) -> str:
        """What the reference calls its result: y where that is no input."""
        taken = {one.name for one in self.sizes.tensors}
        return next(one for one in ("y", "z", "out") if one not in taken)

    def _says(self) -> str:
        """The steps in a sentence; the first that goes along rows says so, and each that goes over other dimensions."""
        steps: list[str] = []
        for clause in self.request.clauses:
            named = any("dimension" in one for one in steps)
            along = clause.operation.effect in (Effect.WHOLE_ROW, Effect.REDUCES) and clause.operation.takes is None
            said = clause.axis.is_last and (not along or named)
            steps.append(clause.says if said else f"{clause.says} {_over(clause.axis)}")
        return ", then ".join(steps)

    def _dtype_said(self) -> bool:
        return self.sizes.first.name in self.sizes.given or self.request.dtype is not None

    def _assume(self, text: str) -> None:
        if text and text not in self.assumptions:
            self.assumptions.append(text)

    def _code(self, step: Step, value: str) -> str:
        clause, operation = step.clause, step.clause.operation
        names = dict(step.names)
        for extra in operation.extras:
            if isinstance(extra, Number):
                self.numbers[names[extra.name]] = float(clause.numbers[extra.place])
        dimensions = clause.axis.dimensions
        if operation.assumption:
            self._assume(operation.assumption.format(*clause.numbers, along=_along(clause.axis), v=value, **names))
        axis = str(dimensions[0]) if len(dimensions) == 1 else str(dimensions)
        over = f"dim={axis}" if dimensions else ""
        kept = f"{over}, keepdim=True" if dimensions else ""
        count = " * ".join(f"{value}.shape[{one}]" for one in dimensions) or f"{value}.numel()"
        count = f"({count})" if " " in count else count
        code = operation.code.format(
            *clause.numbers, v=value, over=over, over_kept=kept, axis=axis, count=count, **names
        )
        return code.replace(", )", ")")  # of all elements no dimension is said

    def _inputs(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for one in self.sizes.tensors:
            dtype = self.sizes.given[one.name].dtype if one.name in self.sizes.given else one.dtype or self.dtype
            mode = "inplace " if self.request.in_place and not found else ""
            found[one.name] = f"{mode}{dtype}[{', '.join(map(str, one.dimensions or ()))}]"
        return found

    def _name(self) -> str:
        names = [
            one.operation.name if one.axis.is_last else one.operation.name.removeprefix("row_")
            for one in self.request.clauses
        ]
        unique = [one for place, one in enumerate(names) if place == 0 or names[place - 1] != one]
        name = "_".join(unique[:5])
        return f"{name}_op" if name in {*_FUNCTIONS, *self._inputs(), *self.numbers} else name

    def _description(self, name: str) -> str:
        lines = [f'name = "{name}"', f'function = "{name}"', "assumptions = ["]
        lines += [f'    "{one}",' for one in self.assumptions]
        lines += ["]", "", "[dimensions]", *self._dimension_lines()]
        lines += ["", "[inputs]", *(f'{one} = "{text}"' for one, text in self._inputs().items())]
        lines += [f"{one} = {value!r}" for one, value in self.numbers.items()]
        values = {one.name: one.values for one in self.sizes.tensors if one.values}
        if self._wants_positive():
            values = {self.sizes.first.name: "uniform 0.1 4", **values}
        if values:
            lines += ["", "[values]", *(f'{one} = "{text}"' for one, text in values.items())]
        return "\n".join(lines) + "\n"

    def _dimension_lines(self) -> list[str]:
        return [
            f"{one} = {{size = {size}, multiple_of = 2}}" if one in self.sizes.even else f"{one} = {size}"
            for one, size in self.sizes.dimensions.items()
        ]

    def _wants_positive(self) -> bool:
        """Whether a root or a logarithm meets x before anything has made it positive."""
        for clause in self.request.clauses:
            if clause.operation.needs_positive or clause.operation.makes_positive:
                return clause.operation.needs_positive
        return False


def _sentence(says: str) -> str:
    """With a capital, unless it begins with the name of a tensor."""
    return f"{says}." if re.match(r"[b-z] ", says) else f"{says[0].upper()}{says[1:]}."


def _over(axis: Axis) -> str:
    if axis.is_last:
        return "over the last dimension"
    listed = " and ".join(map(str, axis.dimensions))
    return f"over dimension{'s' * (len(axis.dimensions) > 1)} {listed}" if axis.dimensions else "over all elements"


def _along(axis: Axis) -> str:
    return "of each row, along the last dimension" if axis.is_last else _over(axis)


def _imports(lines: list[str]) -> list[str]:
    text = "\n".join(lines)
    return ["import torch"] * ("torch." in text) + ["import torch.nn.functional as F"] * ("F." in text)

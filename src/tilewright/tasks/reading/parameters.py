"""Matches a function's parameters with the given shapes, numbers and values."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.records import (
    Dimension,
    DType,
    IndexValues,
    IntegerValues,
    Layout,
    NormalValues,
    NumberInput,
    Part,
    ScalarType,
    TaskInput,
    TensorInput,
    TensorSpec,
    UniformValues,
    Values,
)
from tilewright.tasks.drafts import axes_of
from tilewright.tasks.errors import ArgumentKind, GivenArgument, Remedy, RemedyKind, TaskError
from tilewright.tasks.reading.python_source import SourceParameter, usable_name

SCALARS = {bool: ScalarType.BOOL, int: ScalarType.INT, float: ScalarType.FLOAT}
_TYPE_NAMES = {kind.__name__: scalar for kind, scalar in SCALARS.items()}
_USUAL_SHAPE = "4096x1024:bf16"
_VALUE_FORMS = "normal, normal:MEAN:DEVIATION, uniform:LOW:HIGH, integers:LOW:HIGH or index:DIMENSION; "
_VALUE_FORMS += "normal and uniform may end with :upper or :lower, for triangles"


@dataclass(frozen=True)
class Arguments:
    """The inputs of the op, and a source whose function takes exactly those by name."""

    inputs: tuple[TaskInput, ...]
    dimensions: tuple[Dimension, ...]
    unspecified: frozenset[str]  # tensors without values
    source: str
    function: str
    called: Mapping[str, str]  # input -> the function's own name for it
    closed: Mapping[str, object]  # parameters with constant values


def match_arguments(
    source: str,
    function: str,
    parameters: Sequence[SourceParameter],
    shapes: Mapping[str, str],
    numbers: Mapping[str, str],
    values: Mapping[str, str],
) -> Arguments:
    """Make every parameter an input of the op. A value that is no tensor or number becomes a constant in a wrapper."""
    given = (shapes, numbers, values)
    _refuse_unknown(function, [one.name for one in parameters], dict(zip(ArgumentKind, given, strict=True)))
    inputs: list[TaskInput] = []
    dimensions: dict[str, Dimension] = {}
    closed: dict[str, object] = {}
    called: dict[str, str] = {}  # input -> the function's own name for it
    for one in parameters:
        name = usable_name(one.name, (given.name for given in inputs), "x")
        if one.name in shapes:
            spec = read_shape(one.name, shapes[one.name])
            drawn = read_values(one.name, spec, values[one.name]) if one.name in values else NormalValues()
            layout = Layout.DENSE if spec.is_dense else Layout.PADDED
            axes = axes_of(spec.shape, dimensions)
            inputs.append(TensorInput(name, spec.dtype, axes, drawn, memory_order=spec.order, layout=layout))
        elif (made := _number(function, one, name, numbers.get(one.name))) is not None:
            inputs.append(made)
        elif one.name in numbers:
            closed[one.name] = _literal(numbers[one.name])
            continue
        elif one.default is not None:
            continue  # the function uses its default
        else:
            raise _missing(function, parameters, one, shapes)
        called[name] = one.name
    if not shapes:
        raise _missing(function, parameters, parameters[0] if parameters else None, shapes)
    unspecified = frozenset(name for name, own in called.items() if own in shapes and own not in values)
    renamed = any(name != own for name, own in called.items())
    if closed or renamed or any(one.positional_only for one in parameters):
        source, function = _wrapped(source, function, parameters, inputs, called, closed)
    return Arguments(tuple(inputs), tuple(dimensions.values()), unspecified, source, function, called, closed)


def _refuse_unknown(function: str, known: Sequence[str], given: Mapping[ArgumentKind, Mapping[str, str]]) -> None:
    for kind, names in given.items():
        for name in names:
            if name not in known:
                found = f"{function} has no such parameter; it has {', '.join(known) or 'none'}"
                raise TaskError(found, given=GivenArgument(kind, name))
    for name in given[ArgumentKind.VALUES]:
        if name not in given[ArgumentKind.SHAPE]:
            remedy = Remedy(RemedyKind.GIVE_SHAPE, name, _USUAL_SHAPE)
            raise TaskError("only a tensor holds values", remedy, given=GivenArgument(ArgumentKind.VALUES, name))


def read_shape(name: str, text: str) -> TensorSpec:
    try:
        return TensorSpec.parse(text)
    except ValueError as error:
        raise TaskError(str(error), given=GivenArgument(ArgumentKind.SHAPE, name, text)) from None


def read_values(name: str, one: TensorSpec | TensorInput, text: str) -> Values:
    rank = len(one.shape if isinstance(one, TensorSpec) else one.dimensions)
    try:
        return parse_values(text, one.dtype, rank)
    except ValueError as error:
        raise TaskError(str(error), given=GivenArgument(ArgumentKind.VALUES, name, text)) from None


def parse_values(text: str, dtype: DType, rank: int) -> Values:
    """Read the values of a tensor: `normal`, `normal 0 2`, `uniform -1 1`, `integers 0 100`, `index rows`.

    Floats may end with `upper` or `lower` for triangular matrices. Words are separated by blanks or colons. Raises
    `ValueError` with one sentence.
    """
    kind, *words = re.split(r"[\s:]+", text.strip())
    try:
        made = _values(kind, words)
    except ValueError:
        raise ValueError(f"{text!r} describes no values; write {_VALUE_FORMS}") from None
    if not dtype.is_float and isinstance(made, (NormalValues, UniformValues)):
        shown = print_values(made)
        raise ValueError(f"{dtype} cannot hold {shown}; write integers:LOW:HIGH or index:DIMENSION")
    if rank < 2 and isinstance(made, (NormalValues, UniformValues)) and made.part is not Part.WHOLE:
        raise ValueError(f"a tensor of fewer than two dimensions has no {made.part.value} triangle; leave the word out")
    return made


def _values(kind: str, words: list[str]) -> Values:
    if kind in ("normal", "uniform") and words and words[-1] in (Part.UPPER.value, Part.LOWER.value):
        whole = _values(kind, words[:-1])
        assert isinstance(whole, (NormalValues, UniformValues))
        return replace(whole, part=Part(words[-1]))
    if kind == "normal" and len(words) in (0, 2):
        made = NormalValues(float(words[0]), float(words[1])) if words else NormalValues()
        if made.deviation < 0:
            raise ValueError
        return made
    if kind == "uniform" and len(words) in (0, 2):
        between = UniformValues(float(words[0]), float(words[1])) if words else UniformValues()
        if not between.low <= between.high:
            raise ValueError
        return between
    if kind == "integers" and len(words) == 2:
        numbers = IntegerValues(*map(int, words))
        if numbers.low >= numbers.high:
            raise ValueError
        return numbers
    if kind == "index" and len(words) == 1:
        return IndexValues(words[0])
    raise ValueError(kind)


def print_values(values: Values) -> str:
    """The inverse of `parse_values`."""
    if isinstance(values, (NormalValues, UniformValues)) and values.part is not Part.WHOLE:
        return f"{print_values(replace(values, part=Part.WHOLE))} {values.part.value}"
    if isinstance(values, NormalValues):
        return "normal" if values == NormalValues() else f"normal {values.mean!r} {values.deviation!r}"
    if isinstance(values, UniformValues):
        return f"uniform {values.low!r} {values.high!r}"
    if isinstance(values, IntegerValues):
        return f"integers {values.low} {values.high}"
    return f"index {values.dimension}"


def scalar_type(parameter: SourceParameter) -> ScalarType | None:
    """The scalar type of the default or the annotation, if any."""
    default = parameter.value
    if type(default) in SCALARS:
        # `eps: float = 1` is a float.
        whole = type(default) is int and parameter.annotation == "float"
        return ScalarType.FLOAT if whole else SCALARS[type(default)]
    plain = parameter.annotation.replace("Optional[", "").rstrip("]").replace("| None", "").strip()
    return _TYPE_NAMES.get(plain) if default is None else None


def _number(function: str, one: SourceParameter, name: str, text: str | None) -> NumberInput | None:
    """The parameter as a number input; None if it is no number or its value is None."""
    scalar = scalar_type(one)
    default = one.value
    if text is None:
        if scalar is None or default is None:
            return None
        assert isinstance(default, (int, float))
        return NumberInput(name, scalar, float(default) if scalar is ScalarType.FLOAT else default, True)
    if scalar is None:
        if default is not None:
            return None  # a text or a list
        scalar = _type_of_text(text)
        if scalar is None:
            return None
    try:
        value = read_number(text, scalar)
    except ValueError as error:
        given = GivenArgument(ArgumentKind.NUMBER, one.name, text)
        raise TaskError(f"{function}'s {one.name} takes {error}", given=given) from None
    return NumberInput(name, scalar, value, default is not None and value == default)


def read_number(text: str, scalar: ScalarType) -> int | float | bool:
    """Parse a number; raises `ValueError` with what the type accepts."""
    word = text.strip().lower()
    try:
        if scalar is ScalarType.BOOL:
            return {"true": True, "false": False}[word]
        return int(word) if scalar is ScalarType.INT else float(word)
    except (KeyError, ValueError):
        such_as = {ScalarType.BOOL: "true or false", ScalarType.INT: "a whole number", ScalarType.FLOAT: "a number"}
        raise ValueError(such_as[scalar]) from None


def _type_of_text(text: str) -> ScalarType | None:
    for scalar in (ScalarType.BOOL, ScalarType.INT, ScalarType.FLOAT):
        try:
            read_number(text, scalar)
        except ValueError:
            continue
        return scalar
    return None


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _missing(
    function: str, parameters: Sequence[SourceParameter], one: SourceParameter | None, shapes: Mapping[str, str]
) -> TaskError:
    if one is None:
        return TaskError(f"{function} takes no parameters; an op has at least one tensor")
    listed = (other.name if other.default is None else f"{other.name}={other.default}" for other in parameters)
    call = f"{function}({', '.join(listed)})"
    if one.annotation in _TYPE_NAMES:
        remedy = Remedy(RemedyKind.GIVE_NUMBER, one.name)
        return TaskError(f"{call}: no value is given for {one.name}", remedy)
    remedy = Remedy(RemedyKind.GIVE_SHAPE_OR_NUMBER, one.name, next(iter(shapes.values()), _USUAL_SHAPE))
    return TaskError(f"{call}: no shape is given for {one.name}", remedy)


def _wrapped(
    source: str,
    function: str,
    parameters: Iterable[SourceParameter],
    inputs: Sequence[TaskInput],
    called: Mapping[str, str],
    closed: Mapping[str, object],
) -> tuple[str, str]:
    """The source with a wrapper that takes exactly the inputs, and the wrapper's name."""
    name = f"{function}_of_inputs"
    of = {own: given for given, own in called.items()}
    passed = []
    for one in parameters:
        text = of.get(one.name) or (repr(closed[one.name]) if one.name in closed else None)
        if text is None and one.positional_only:
            text = one.default  # a later positional one may follow
        if text is not None:
            passed.append(text if one.positional_only else f"{one.name}={text}")
    taken = ", ".join(
        f"{one.name}={one.value!r}" if isinstance(one, NumberInput) and one.default else one.name for one in inputs
    )
    if any(isinstance(one, NumberInput) and one.default for one in inputs[:-1]):
        taken = ", ".join(one.name for one in inputs)  # a default may not stand before a parameter without one
    lines = [f"def {name}({taken}):", f"    return {function}({', '.join(passed)})"]
    return source.rstrip("\n") + "\n\n\n" + "\n".join(lines) + "\n", name

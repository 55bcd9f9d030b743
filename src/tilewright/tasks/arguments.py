"""A function's parameters and what a person gave for them: tensors from shapes, numbers from settings and defaults."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.records import DType, NumberInput, ScalarType, TensorSpec, Values
from tilewright.tasks.options import TaskError
from tilewright.tasks.source import Literal, SourceParameter, usable_name
from tilewright.tasks.values import check_values, parse_values

_TYPE_NAMES = {"int": ScalarType.INT, "float": ScalarType.FLOAT, "bool": ScalarType.BOOL}


@dataclass(frozen=True)
class GivenTensor:
    name: str
    dtype: DType
    shape: tuple[int, ...]
    values: Values | None  # None: to be found out
    parameter: bool = False


GivenInput = GivenTensor | NumberInput


@dataclass(frozen=True)
class Arguments:
    """The inputs of the op, and the source that takes exactly those by name."""

    inputs: tuple[GivenInput, ...]
    source: str
    function: str


def match_arguments(
    source: str,
    function: str,
    parameters: Sequence[SourceParameter],
    shapes: Mapping[str, str],
    numbers: Mapping[str, str],
    values: Mapping[str, str],
) -> Arguments:
    """Every parameter as an input of the op; what is neither tensor nor number is closed over in a wrapper."""
    _refuse_unknown(function, parameters, shapes, numbers, values)
    inputs: list[GivenInput] = []
    closed: dict[str, object] = {}
    called: dict[str, str] = {}  # input -> the function's own name for it
    for one in parameters:
        name = usable_name(one.name, (given.name for given in inputs), "x")
        if one.name in shapes:
            inputs.append(_tensor(name, one.name, shapes[one.name], values))
        elif (made := _number(function, one, name, numbers.get(one.name))) is not None:
            inputs.append(made)
        elif one.name in numbers:
            closed[one.name] = _literal(numbers[one.name])
            continue
        elif one.default is not None:
            continue  # the function's own default serves
        else:
            raise _missing(function, parameters, one, shapes)
        called[name] = one.name
    if not any(isinstance(one, GivenTensor) for one in inputs):
        raise _missing(function, parameters, parameters[0] if parameters else None, shapes)
    renamed = any(name != own for name, own in called.items())
    if closed or renamed or any(one.positional_only for one in parameters):
        return Arguments(tuple(inputs), *_wrapped(source, function, parameters, inputs, called, closed))
    return Arguments(tuple(inputs), source, function)


def _refuse_unknown(function: str, parameters: Sequence[SourceParameter], *given: Mapping[str, str]) -> None:
    known = [one.name for one in parameters]
    for option, names in zip(("--shape", "--set", "--fill"), given, strict=True):
        for name in names:
            if name not in known:
                raise TaskError(
                    f"{option} {name}: {function} has no such parameter; it has {', '.join(known) or 'none'}"
                )
    for name in given[2]:
        if name not in given[0]:
            raise TaskError(f"--fill {name}: only a tensor holds values; give its --shape too")


def _tensor(name: str, own: str, shape: str, values: Mapping[str, str]) -> GivenTensor:
    spec = read_shape(own, shape)
    held = read_fill(own, spec.dtype, values[own]) if own in values else None
    return GivenTensor(name, spec.dtype, spec.shape, held)


def read_shape(name: str, text: str) -> TensorSpec:
    try:
        return TensorSpec.parse(text)
    except ValueError as error:
        raise TaskError(f"--shape {name}={text}: {error}") from None


def read_fill(name: str, dtype: DType, text: str) -> Values:
    held = parse_values(f"--fill {name}={text}", text)
    check_values(f"--fill {name}={text}", dtype, held)
    return held


def scalar_type(parameter: SourceParameter) -> ScalarType | None:
    """The type that an annotation or a default says, where it says one."""
    default = parameter.default.value if isinstance(parameter.default, Literal) else None
    for kind, scalar in ((bool, ScalarType.BOOL), (int, ScalarType.INT), (float, ScalarType.FLOAT)):
        if type(default) is kind:
            # `eps: float = 1` is a float.
            return ScalarType.FLOAT if parameter.annotation == "float" and scalar is ScalarType.INT else scalar
    plain = parameter.annotation.replace("Optional[", "").rstrip("]").replace("| None", "").strip()
    return _TYPE_NAMES.get(plain) if default is None else None


def _number(function: str, one: SourceParameter, name: str, text: str | None) -> NumberInput | None:
    """The parameter as a number; None where it is none, or where None is its value."""
    scalar = scalar_type(one)
    default = one.default.value if isinstance(one.default, Literal) else None
    if text is None:
        if scalar is None or default is None:
            return None
        return NumberInput(name, scalar, _as(scalar, default), True)
    if scalar is None:
        if default is not None:
            return None  # a text or a list
        scalar = _type_of_text(text)
        if scalar is None:
            return None
    try:
        value = read_number(text, scalar)
    except ValueError as error:
        raise TaskError(f"--set {one.name}={text}: {function}'s {one.name} takes {error}") from None
    return NumberInput(name, scalar, value, default is not None and value == default)


def _as(scalar: ScalarType, value: object) -> int | float | bool:
    assert isinstance(value, (int, float))
    return float(value) if scalar is ScalarType.FLOAT else value


def read_number(text: str, scalar: ScalarType) -> int | float | bool:
    """The number a text says; raises `ValueError` with what the type takes."""
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
    listed = ", ".join(_shown(parameter) for parameter in parameters)
    if one is None:
        return TaskError(f"{function} takes no parameters; an op has at least one tensor")
    if one.annotation in _TYPE_NAMES:
        return TaskError(f"{function}({listed}): no value is given for {one.name}; write --set {one.name}=VALUE")
    such_as = next(iter(shapes.values()), "4096x1024:bf16")
    return TaskError(
        f"{function}({listed}): no shape is given for {one.name}; write --shape {one.name}={such_as}, "
        f"or --set {one.name}=VALUE if it is a number"
    )


def _shown(parameter: SourceParameter) -> str:
    if parameter.default is None:
        return parameter.name
    default = parameter.default
    return f"{parameter.name}={default.value!r}" if isinstance(default, Literal) else f"{parameter.name}={default.text}"


def _wrapped(
    source: str,
    function: str,
    parameters: Iterable[SourceParameter],
    inputs: Sequence[GivenInput],
    called: Mapping[str, str],
    closed: Mapping[str, object],
) -> tuple[str, str]:
    """The source with a function of exactly the inputs at its end, and that function's name."""
    name = f"{function}_of_inputs"
    of = {own: given for given, own in called.items()}
    passed = []
    for one in parameters:
        text = of.get(one.name) or (repr(closed[one.name]) if one.name in closed else None)
        if text is None and one.positional_only and isinstance(one.default, Literal):
            text = repr(one.default.value)  # a later one may follow it
        if text is not None:
            passed.append(text if one.positional_only else f"{one.name}={text}")
    taken = ", ".join(
        f"{one.name}={one.value!r}" if isinstance(one, NumberInput) and one.default else one.name for one in inputs
    )
    if any(isinstance(one, NumberInput) and one.default for one in inputs[:-1]):
        taken = ", ".join(one.name for one in inputs)  # a default may not stand before a parameter without one
    lines = [f"def {name}({taken}):", f"    return {function}({', '.join(passed)})"]
    return source.rstrip("\n") + "\n\n\n" + "\n".join(lines) + "\n", name

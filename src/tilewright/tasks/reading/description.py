"""Reads and writes `task.toml`; docs/tasks.md describes the format."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilewright.records import (
    Dimension,
    DType,
    Goal,
    Layout,
    Precision,
    SizeFormula,
    TaskOutput,
    TensorInput,
    following,
)
from tilewright.tasks.dimension_names import ONE, part_name
from tilewright.tasks.errors import TaskError
from tilewright.tasks.reading.parameters import parse_values, print_values
from tilewright.tasks.reading.python_source import usable_name

_KEYS = (
    *("name", "function", "words", "assumptions", "gpu", "precision", "goal", "allow_library"),
    *("dimensions", "inputs", "values", "outputs", "results"),
)
_TENSOR = re.compile(r"(?P<marks>(?:\w+\s+)*)(?P<dtype>\w+)\s*\[(?P<axes>[^\]]*)\](?:\s+order\s+(?P<order>[\d\s]+))?")
_BOUNDS = ("multiple_of", "at_least")
# mark -> field of `TensorInput` and its value
_MARKS: dict[str, tuple[str, object]] = {
    "inplace": ("in_place", True),
    "optional": ("optional", True),
    "parameter": ("parameter", True),
    "strided": ("layout", Layout.PADDED),
}


@dataclass(frozen=True)
class Described:
    """The content of a `task.toml`, not yet checked against the reference."""

    name: str
    function: str
    dimensions: dict[str, Dimension]
    inputs: dict[str, TensorInput | int | float | bool]
    unspecified: frozenset[str]  # tensors without values
    outputs: tuple[TaskOutput, ...]  # empty: found by probing
    results: tuple[str, ...]  # names of the outputs, if only these are given
    words: str
    assumptions: tuple[str, ...]
    gpu: str | None
    precision: Precision | None
    goal: Goal | None
    allow_library: bool | None

    @property
    def tensors(self) -> dict[str, TensorInput]:
        return {name: one for name, one in self.inputs.items() if isinstance(one, TensorInput)}


def read_description(text: str, where: str = "task.toml") -> Described:
    """Raises `TaskError`, which says what is wrong and where."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TaskError(f"{where}: this is not TOML: {error}") from None
    for key in data:
        if key not in _KEYS:
            raise TaskError(f"{where}: unknown key {key!r}; it may have {', '.join(_KEYS)}")
    name = _text(data, "name", where)
    if not name.isidentifier():
        raise TaskError(f"{where}: the name {name!r} is no valid op name; write letters, digits and _")
    dimensions = _following(
        {key: _dimension(key, value, where) for key, value in _table(data, "dimensions", where).items()}, where
    )
    reader = _TensorReader(dimensions, where)
    values = _table(data, "values", where)
    inputs: dict[str, TensorInput | int | float | bool] = {}
    for key, value in _table(data, "inputs", where).items():
        if isinstance(value, (bool, int, float)):
            inputs[key] = value
        else:
            inputs[key] = reader.tensor(key, value, values.get(key))
    tensors = [key for key, one in inputs.items() if isinstance(one, TensorInput)]
    if not tensors:
        raise TaskError(f'{where}: [inputs] has no tensor; write such as x = "bf16[rows, cols]"')
    for key in values:
        if key not in tensors:
            raise TaskError(f"{where}: [values] has {key}, which is no tensor of [inputs]")
    outputs, results = _outputs(data, reader, where)
    return Described(
        name,
        _text(data, "function", where, name),
        reader.dimensions,
        inputs,
        frozenset(tensors) - values.keys(),
        outputs,
        results,
        _text(data, "words", where, ""),
        tuple(_texts(data, "assumptions", where)),
        _choice(data, "gpu", str, where),
        _choice(data, "precision", Precision, where),
        _choice(data, "goal", Goal, where),
        _choice(data, "allow_library", bool, where),
    )


class _TensorReader:
    """Reads `bf16[rows, 3]`; adds a dimension for every number or formula in brackets."""

    def __init__(self, dimensions: dict[str, Dimension], where: str) -> None:
        self.dimensions = dimensions
        self._where = where

    def tensor(self, name: str, text: object, values: object) -> TensorInput:
        marks, dtype, axes, order = self._parts(name, text)
        for mark in marks:
            if mark not in _MARKS:
                raise TaskError(f"{self._where}: {name}: {mark!r} is none of {', '.join(_MARKS)}")
        if sorted(order) != list(range(len(axes))) and order:
            raise TaskError(f"{self._where}: {name}: order must name each of its {len(axes)} axes once, from 0")
        named = tuple(axis if isinstance(axis, str) else self._fixed(axis) for axis in axes)
        tensor = TensorInput(
            name,
            dtype,
            named,
            memory_order=order,
            **dict(_MARKS[mark] for mark in marks),  # type: ignore[arg-type]
        )
        if values is None:
            return tensor
        if not isinstance(values, str):
            raise TaskError(f'{self._where}: [values] {name} is text, such as "uniform -1 1"')
        try:
            return replace(tensor, values=parse_values(values, dtype, len(named)))
        except ValueError as error:
            raise TaskError(f"{self._where}: [values] {name}: {error}") from None

    def output(self, name: str, text: object) -> TaskOutput:
        marks, dtype, axes, order = self._parts(name, text)
        if marks or order:
            raise TaskError(f'{self._where}: [outputs] {name} is a dtype and sizes, such as "bf16[rows, cols]"')
        return TaskOutput(name, dtype, axes)

    def _parts(self, name: str, text: object) -> tuple[list[str], DType, tuple[str | int, ...], tuple[int, ...]]:
        found = _TENSOR.fullmatch(text.strip()) if isinstance(text, str) else None
        if found is None:
            raise TaskError(f'{self._where}: {name} = {text!r} is no tensor; write such as "bf16[rows, cols]"')
        try:
            dtype = DType.read(found["dtype"])
        except ValueError as error:
            raise TaskError(f"{self._where}: {name}: {error}") from None
        axes = tuple(self._axis(name, axis) for axis in (one.strip() for one in found["axes"].split(",")) if axis)
        return found["marks"].split(), dtype, axes, tuple(map(int, (found["order"] or "").split()))

    def _axis(self, tensor: str, text: str) -> str | int:
        """A number, or the name of a dimension, which may be a new one for a formula."""
        if text.isdigit():
            return int(text)
        if text in self.dimensions:
            return text
        known = ", ".join(self.dimensions) or "none"
        if text.isidentifier():
            raise TaskError(f"{self._where}: {tensor}: there is no dimension {text!r}; [dimensions] has {known}")
        try:
            formula = SizeFormula.parse(text)
        except ValueError as error:
            raise TaskError(f"{self._where}: {tensor}: {error}") from None
        same = [one.name for one in self.dimensions.values() if one.formula == formula]
        if same or str(formula) in self.dimensions:
            return same[0] if same else str(formula)
        name = usable_name(part_name(formula) or f"{tensor}_size", tuple(self.dimensions))
        made = {**self.dimensions, name: Dimension(name, 0, formula=formula)}
        self.dimensions = _following(made, f"{self._where}: {tensor}")
        return name

    def _fixed(self, size: int) -> str:
        name = ONE if size == 1 else f"size_{size}"
        self.dimensions.setdefault(name, Dimension(name, size, varies=False))
        return name


def _outputs(
    data: Mapping[str, Any], reader: _TensorReader, where: str
) -> tuple[tuple[TaskOutput, ...], tuple[str, ...]]:
    table = dict(_table(data, "outputs", where))
    results = tuple(_texts(data, "results", where)) or tuple(_texts(table, "results", where))
    if isinstance(table.get("results"), list):
        del table["results"]
    if table and results:
        raise TaskError(f"{where}: [outputs] gives names twice; leave out `results`")
    return tuple(reader.output(key, value) for key, value in table.items()), results


def _following(dimensions: dict[str, Dimension], where: str) -> dict[str, Dimension]:
    """The dimensions with the sizes given by formulas computed."""
    unknown = {name for one in dimensions.values() for name in one.unless} - dimensions.keys()
    if unknown:
        raise TaskError(f"{where}: [dimensions] `unless` names {min(unknown)}, which is no dimension")
    try:
        return {one.name: one for one in following(tuple(dimensions.values()))}
    except ValueError as error:
        raise TaskError(f"{where}: {error}") from None


def _dimension(name: str, value: object, where: str) -> Dimension:
    try:
        if isinstance(value, str):
            return Dimension(name, 0, formula=SizeFormula.parse(value))  # the size is computed once all are read
        if isinstance(value, int) and not isinstance(value, bool):
            return Dimension(name, value)
        if isinstance(value, dict) and value.keys() <= {"size", "varies", "at_most", "unless", *_BOUNDS}:
            varies, numbers = value.get("varies", True), [value["size"], *(value.get(key, 1) for key in _BOUNDS)]
            most, unless = value.get("at_most"), value.get("unless", [])
            words = isinstance(unless, list) and all(isinstance(one, str) for one in unless)
            if words and type(varies) is bool and all(type(one) is int for one in (*numbers, most or 1)):
                size, multiple, least = numbers
                return Dimension(name, size, varies, multiple, at_least=least, at_most=most, unless=tuple(unless))
    except KeyError:
        pass
    except ValueError as error:
        raise TaskError(f"{where}: {error}") from None
    raise TaskError(
        f"{where}: [dimensions] {name}: write a size, {{size = 1024, varies = true, multiple_of = 1}}, "
        'or a formula: "cols / 2"'
    )


def _table(data: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    value = data.get(key, {})
    if not isinstance(value, dict):
        raise TaskError(f"{where}: {key} is a table; write [{key}] and a line for each")
    return value


def _text(data: Mapping[str, Any], key: str, where: str, default: str | None = None) -> str:
    value = data.get(key, default)
    if not isinstance(value, str):
        raise TaskError(f"{where}: {key} must be given as text")
    return value


def _texts(data: Mapping[str, Any], key: str, where: str) -> list[str]:
    value = data.get(key, [])
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        if key == "results" and isinstance(value, str):
            return []  # an output named `results`
        raise TaskError(f"{where}: {key} is a list of texts")
    return value


def _choice(data: Mapping[str, Any], key: str, kind: Any, where: str) -> Any:
    if key not in data:
        return None
    try:
        if kind in (str, bool):
            if type(data[key]) is not kind:
                raise ValueError
            return data[key]
        return kind(data[key])
    except ValueError:
        known = "true or false" if kind is bool else "a text" if kind is str else ", ".join(one.value for one in kind)
        raise TaskError(f"{where}: {key} = {data[key]!r} is not {known}") from None


# -- writing --


def print_described(described: Described) -> str:
    """The inverse of `read_description`."""
    lines = [f"name = {_quoted(described.name)}", f"function = {_quoted(described.function)}"]
    if described.words:
        lines.append(f"words = {_quoted(described.words)}")
    lines += [f"gpu = {_quoted(described.gpu)}"] if described.gpu is not None else []
    lines += [f"precision = {_quoted(described.precision.value)}"] if described.precision is not None else []
    lines += [f"goal = {_quoted(described.goal.value)}"] if described.goal is not None else []
    lines += [f"allow_library = {_word(described.allow_library)}"] if described.allow_library is not None else []
    if described.assumptions:
        lines += ["assumptions = [", *(f"    {_quoted(one)}," for one in described.assumptions), "]"]
    lines += ["", "[dimensions]", *(f"{one.name} = {_size(one)}" for one in described.dimensions.values())]
    lines += ["", "[inputs]", *(f"{name} = {_input(one)}" for name, one in described.inputs.items())]
    valued = [one for one in described.tensors.values() if one.name not in described.unspecified]
    lines += (
        ["", "[values]", *(f"{one.name} = {_quoted(print_values(one.values))}" for one in valued)] if valued else []
    )
    outputs = [f"{one.name} = {_quoted(f'{one.dtype}[{_axes(one.shape)}]')}" for one in described.outputs]
    outputs += [f"results = [{', '.join(map(_quoted, described.results))}]"] if described.results else []
    lines += ["", "[outputs]", *outputs] if outputs else []
    return "\n".join(lines) + "\n"


def _size(one: Dimension) -> str:
    if one.formula is not None:
        return _quoted(str(one.formula))
    if one == Dimension(one.name, one.size):
        return str(one.size)
    bounds = f", at_least = {one.at_least}" if one.at_least > 1 else ""
    bounds += f", unless = [{', '.join(map(_quoted, one.unless))}]" if one.unless else ""
    bounds += f", at_most = {one.at_most}" if one.at_most is not None else ""
    return f"{{size = {one.size}, varies = {_word(one.varies)}, multiple_of = {one.multiple_of}{bounds}}}"


def _input(one: TensorInput | int | float | bool) -> str:
    if not isinstance(one, TensorInput):
        return _word(one) if isinstance(one, bool) else repr(one)
    marks = [mark for mark, (field, value) in _MARKS.items() if getattr(one, field) is value]
    order = f" order {' '.join(map(str, one.memory_order))}" if one.memory_order else ""
    return _quoted(" ".join([*marks, f"{one.dtype}[{_axes(one.dimensions)}]"]) + order)


def _axes(shape: tuple[str | int, ...]) -> str:
    return ", ".join(map(str, shape))


def _word(value: bool) -> str:
    return "true" if value else "false"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

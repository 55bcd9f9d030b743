"""The values of a case's inputs: the task's own, and others that reveal what those would hide.

Values depend on the task and the case alone, so every process draws the same bytes. Integers, flags and scalars leave
the task's domain only where the case says so, which requires that the reference accepted them (`value_survey`).
Importing this does not import torch.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from tilewright import records
from tilewright.devices.emulation.input_content import Seeded, drawn, laid_out
from tilewright.records import Case, DType, Integers, NumberInput, Task
from tilewright.verify.code_constants import CONSTANTS, with_constants
from tilewright.verify.float_values import (
    DISTRIBUTIONS,
    DRAWN_ANYWHERE,
    EDGES,
    NEGATIVE_OFFSET,
    OUTSIDE,
    PATTERNED,
    Place,
    drawn_anywhere,
    edge_values,
    values_outside,
)
from tilewright.verify.integer_values import ALIKE, flags, integers

# -- constants in the reference's source --

_ALWAYS = (0.0, 1.0, -1.0, 0.5)
_MOST = 40
_LARGEST = 1e4
_LEAST = 1e-3
# Functions with implicit thresholds.
_KNOWN = {
    "softplus": (20.0,),
    "Softplus": (20.0,),
    "hardswish": (3.0,),
    "Hardswish": (3.0,),
    "hardsigmoid": (3.0,),
    "Hardsigmoid": (3.0,),
    "relu6": (6.0,),
    "ReLU6": (6.0,),
    "smooth_l1_loss": (1.0,),
    "huber_loss": (1.0,),
}


def thresholds(task: Task) -> tuple[float, ...]:
    """Thresholds at which the reference may branch, and ties of roundings to their multiples; both signs."""
    numbers = tuple(float(one.value) for one in task.numbers)
    return _thresholds(task.reference, numbers)


@lru_cache(maxsize=64)
def _thresholds(source: str, numbers: tuple[float, ...]) -> tuple[float, ...]:
    written = dict.fromkeys((*_ALWAYS, *numbers, *_constants(source)))
    usual = [one for one in written if math.isfinite(one) and (one == 0 or _LEAST <= abs(one) <= _LARGEST)]
    found = dict.fromkeys(
        sign * part * one for part in (1.0, 0.5, 1.5, 2.5, 3.0) for one in usual for sign in (1.0, -1.0)
    )
    return tuple(found)[:_MOST]


def _constants(source: str) -> list[float]:
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    found: list[float] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
            found.append(float(min(max(node.value, -1e30), 1e30)))
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        found += _KNOWN.get(name, ())
    return found


TASK = "task"
NUMBERS = "other numbers"
WHOLE = "whole numbers"
FLAGS = "flags"
PARTS = "triangles"  # zero where the timed call's tensors are triangular; alone they would hide a missing `tril`
_SEED_STEP = 1_000_003  # between the inputs of a case, so that no two hold the same values
_NUMBER_FACTORS = (1.5, 0.625, 1.25, 0.75)  # for scalars in turn: one factor would hide two that are swapped


def contents(task: Task, case: Case) -> dict[str, records.Content] | None:
    """The inputs as generators that a device can run from a seed; None where they must be sent as bytes."""
    settings = _settings(case.values)
    all_alike = case.values.startswith(WHOLE) and set(settings.values()) == {ALIKE}
    plain = case.values in (TASK, PARTS) or case.values.startswith(NUMBERS) or all_alike
    if not plain and case.values not in DRAWN_ANYWHERE:
        return None
    made: dict[str, records.Content] = {}
    for position, one in enumerate(task.tensors):
        if one.optional:
            continue
        own = seeded(one, case.sizes, case.seed + _SEED_STEP * position, parts=case.values == PARTS)
        if all_alike and one.name in settings and isinstance(own, Integers):  # devices generate no mixtures
            own = replace(own, low=own.high - 1)
        other = None if plain or isinstance(own, Integers) else drawn_anywhere(case.values, one.dtype, own.seed)
        made[one.name] = other or own
    return made


def draw_inputs(task: Task, case: Case) -> dict[str, bytes]:
    """The bytes of every tensor input, in storage order."""
    specs = task.specs(case.sizes)
    return {
        one.name: _draw(task, position, specs[one.name], case)
        for position, one in enumerate(task.tensors)
        if one.name in specs
    }


def case_task(task: Task, case: Case) -> Task:
    """The task as the case calls it: its tensors, scalars and resulting outputs."""
    task = _led(_formed(task, case), case)
    kind, settings = _kind(case.values), _settings(case.values)
    if kind not in (NUMBERS, PATTERNED):
        return task
    inputs: list[records.TaskInput] = []
    floats = 0
    for one in task.inputs:
        if isinstance(one, NumberInput) and one.name in settings:
            inputs.append(replace(one, value=type(one.value)(float(settings[one.name]))))
        elif kind == NUMBERS and isinstance(one, NumberInput) and isinstance(one.value, float):
            inputs.append(_other_number(one, _NUMBER_FACTORS[floats % len(_NUMBER_FACTORS)]))
            floats += 1
        else:
            inputs.append(one)
    outputs = tuple(
        replace(one, shape=tuple(map(int, settings[one.name].split("x")))) if one.name in settings else one
        for one in task.outputs
    )
    return replace(task, inputs=tuple(inputs), outputs=outputs)


def _formed(task: Task, case: Case) -> Task:
    layouts = dict(case.layouts)
    if not case.given and not layouts:
        return task
    inputs = tuple(
        replace(one, optional=one.optional and one.name not in case.given, layout=layouts.get(one.name, one.layout))
        if isinstance(one, records.TensorInput)
        else one
        for one in task.inputs
    )
    return replace(task, inputs=inputs)


def _led(task: Task, case: Case) -> Task:
    if not case.leading:
        return task
    leading = {name for name, _ in task.leading}
    inputs = tuple(
        replace(one, dimensions=(*case.leading, *one.dimensions))
        if isinstance(one, records.TensorInput) and one.name in leading
        else one
        for one in task.inputs
    )
    outputs = tuple(replace(one, shape=(*case.leading, *one.shape)) for one in task.outputs)
    more = tuple(records.Dimension(name, case.sizes[name]) for name in case.leading)
    return replace(task, inputs=inputs, outputs=outputs, dimensions=(*task.dimensions, *more), leading=())


def values_with(kind: str, settings: Mapping[str, str | int | float]) -> str:
    """A kind of values with settings, such as "whole numbers: x=full, index=signed" or "other numbers: window=5,
    y=10x66".

    Settings name inputs, and outputs whose shapes follow.
    """
    return f"{kind}: {', '.join(f'{name}={value}' for name, value in settings.items())}"


def _kind(values: str) -> str:
    return values.partition(": ")[0]


def _settings(values: str) -> dict[str, str]:
    _, _, settings = values.partition(": ")
    return dict(one.split("=", 1) for one in settings.split(", ")) if settings else {}


def is_of_numbers(values: str) -> bool:
    """Whether a kind of values uses other scalars."""
    return _kind(values) == NUMBERS


@dataclass(frozen=True)
class ValueTraits:
    """What a comparison must know about the input values."""

    mixed: bool = False  # rows of different kinds; ill-conditioned ones are not judged
    even: bool = False  # both signs over several powers of two, so that roundings fall to both sides
    one_sided: bool = False  # close together and far from 0: roundings of a sum may all fall to one side


PLAIN = ValueTraits()


def traits_of(task: Task, case: Case) -> ValueTraits:
    plain = all(one.values == records.NormalValues() for one in task.tensors if one.dtype.is_float)
    known = DISTRIBUTIONS.get(_kind(case.values))
    by_rows = case.values == FLAGS or _kind(case.values) in (WHOLE, EDGES, OUTSIDE)
    return ValueTraits(
        mixed=by_rows or (known is not None and known.mixed),
        even=case.values in ("normal", "logarithmic") or (case.values == TASK and plain),
        one_sided=case.values in ("offset", NEGATIVE_OFFSET),
    )


def has_float_numbers(task: Task) -> bool:
    return any(isinstance(one.value, float) for one in task.numbers)


def has_varied_floats(task: Task) -> bool:
    """Whether there is a float tensor that the distributions change."""
    return any(one.dtype.is_float and not isinstance(one.values, _DISCRETE) for one in task.tensors)


def has_flags(task: Task) -> bool:
    return any(one.dtype is DType.BOOL and not one.optional for one in task.tensors)


def whole_inputs(task: Task) -> tuple[records.TensorInput, ...]:
    """The integer tensors that are given."""
    return tuple(
        one for one in task.tensors if not one.dtype.is_float and one.dtype is not DType.BOOL and not one.optional
    )


_DISCRETE = (records.IntegerValues, records.IndexValues)


def _other_number(one: NumberInput, factor: float) -> NumberInput:
    """A scalar's other value, which reveals a hard-coded one; an epsilon grows until it matters."""
    value = float(one.value)
    wanted = value * 1000.0 * factor if 0 < abs(value) < 1e-2 else value * factor or factor / 6
    # Where that value is outside the domain, try values nearer to the task's own, or on its other side.
    nearer = (value + part * (wanted - value) for part in (1.0, 0.5, 0.1, 0.01, -0.5, -0.1, -0.01))
    return replace(one, value=next((other for other in nearer if one.takes(other)), value))


def timed_values(task: Task) -> str:
    """The values that the full-size call is timed with."""
    return PARTS if has_parts(task) else TASK


def has_parts(task: Task) -> bool:
    return any(getattr(one.values, "part", records.Part.WHOLE) is not records.Part.WHOLE for one in task.tensors)


def seeded(one: records.TensorInput, sizes: Mapping[str, int], seed: int, *, parts: bool = False) -> Seeded:
    """The generator of an input with the task's own values; with `parts`, triangular ones are 0 elsewhere."""
    values = one.values
    if isinstance(values, records.IndexValues):
        return Integers(seed, 0, max(sizes[values.dimension], 1))
    if isinstance(values, records.IntegerValues):
        return Integers(seed, values.low, values.high)
    if not one.dtype.is_float:
        return Integers(seed, 0, 2)
    if isinstance(values, records.NormalValues):
        return records.Normal(seed, values.mean, values.deviation, values.part if parts else records.Part.WHOLE)
    return records.Uniform(seed, values.low, values.high, values.part if parts else records.Part.WHOLE)


def _draw(task: Task, position: int, spec: records.TensorSpec, case: Case) -> bytes:
    one, seed, kind = task.tensors[position], case.seed + _SEED_STEP * position, _kind(case.values)
    content = seeded(one, case.sizes, seed, parts=case.values == PARTS)
    generator = np.random.Generator(np.random.PCG64(seed))
    if spec.numel == 0:
        return drawn(spec, content).tobytes()
    if one.dtype is DType.BOOL and case.values == FLAGS:
        return laid_out(spec, flags(generator, spec.shape)).tobytes()
    if kind == CONSTANTS:
        return with_constants(generator, one, content, drawn(spec, content), _settings(case.values))
    level = _settings(case.values).get(one.name)
    if level is not None and case.values.startswith(WHOLE) and isinstance(content, Integers):
        return laid_out(spec, integers(generator, spec, level, content, thresholds(task))).tobytes()
    if level is not None and kind == OUTSIDE:
        return laid_out(spec, values_outside(generator, spec)).tobytes()
    if level is not None and kind == EDGES:
        return laid_out(spec, edge_values(generator, spec, level, position)).tobytes()
    distribution = DISTRIBUTIONS.get(kind)
    if distribution is None or isinstance(content, Integers):
        return drawn(spec, content).tobytes()
    if not isinstance(one.values, records.NormalValues) and distribution.mixed:
        assert isinstance(one.values, records.UniformValues)  # values inside the task's bounds, its ends and ties
        steps = generator.integers(0, 9, spec.numel) / 8.0
        return laid_out(spec, one.values.low + (one.values.high - one.values.low) * steps).tobytes()
    return laid_out(spec, distribution.draw(generator, _place(task, position, spec))).tobytes()


def _place(task: Task, position: int, spec: records.TensorSpec) -> Place:
    floats = [one for one in task.tensors if one.dtype.is_float and not one.optional]
    data = [one for one in floats if not one.parameter] or floats
    rank = max(len(one.dimensions) for one in data)
    main = [one for one in data if len(one.dimensions) == rank]
    one, first = task.tensors[position], main[0]
    kept = {name for made in task.outputs for name in made.shape}
    others = {name for other in floats if other is not first for name in other.dimensions}
    summed = [name for name in first.dimensions if name in others and name not in kept]
    along = (summed or list(first.dimensions[-1:]) or [""])[-1]
    return Place(
        spec.shape,
        spec.dtype,
        position,
        main=any(one is other for other in main),
        first=one is first,
        thresholds=thresholds(task),
        axis=one.dimensions.index(along) if along in one.dimensions else None,
        half=task.precision is records.Precision.HALF,
    )

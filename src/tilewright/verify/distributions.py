"""What the inputs of a case hold: the task's own values, and others that bring out what those would hide.

Values are drawn by numpy from the case alone, so every process that draws a case sees the same bytes. Only floats are
varied: whole numbers, booleans and indices stay in the task's domain. Importing this does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tilewright import records
from tilewright.devices.emulation.input_content import Seeded, drawn, laid_out
from tilewright.records import Case, DType, Integers, NumberInput, Task

Floats = npt.NDArray[np.float64]
TASK = "task"
NUMBERS = "other numbers"
_SEED_STEP = 1_000_003  # between the inputs of a case, so that no two hold the same values


@dataclass(frozen=True)
class Distribution:
    """A way to draw floats, and what it is for."""

    name: str
    purpose: str
    draw: Callable[[np.random.Generator, int, DType], Floats]


def _normal(generator: np.random.Generator, count: int, dtype: DType) -> Floats:
    return generator.standard_normal(count)


def _small(generator: np.random.Generator, count: int, dtype: DType) -> Floats:
    return generator.standard_normal(count) * 2.0**-9


def _offset(generator: np.random.Generator, count: int, dtype: DType) -> Floats:
    # A narrow type cannot tell neighbours of a large number apart, so its offset is smaller.
    return generator.standard_normal(count) + (1e4 if dtype in (DType.F32, DType.F64) else 30.0)


def _wide(generator: np.random.Generator, count: int, dtype: DType) -> Floats:
    return generator.uniform(-100.0, 100.0, count)


def _impulse(generator: np.random.Generator, count: int, dtype: DType) -> Floats:
    """Little almost everywhere and much in one element of sixteen, the first and the last among them."""
    values = generator.standard_normal(count) * 0.01
    large = generator.random(count) < 1 / 16
    large[[0, -1]] = True
    return np.where(large, generator.choice((-30.0, 30.0), count) * (1 + generator.random(count)), values)


def _logarithmic(generator: np.random.Generator, count: int, dtype: DType) -> Floats:
    """Every order of magnitude as often as the next, both signs."""
    decades = 3.0 if dtype in (DType.F32, DType.F64, DType.BF16) else 1.5
    sizes: Floats = np.power(10.0, generator.uniform(-decades, decades, count))
    signs: Floats = generator.choice((-1.0, 1.0), count)
    return sizes * signs


DISTRIBUTIONS: dict[str, Distribution] = {
    one.name: one
    for one in (
        Distribution("normal", "zero-mean values, which show lost precision where positive ones hide it", _normal),
        Distribution("small", "a constant that the kernel adds or a bound it assumes shows", _small),
        Distribution("offset", "a large common part, which cancels in a variance or a maximum", _offset),
        Distribution("wide", "exponentials that overflow unless a maximum is taken off first", _wide),
        Distribution("impulse", "few elements decide the result, so each that is left out shows", _impulse),
        Distribution("logarithmic", "every order of magnitude", _logarithmic),
    )
}


# -- one input of a case --


def contents(task: Task, case: Case) -> dict[str, records.Content] | None:
    """The inputs as a device can draw them by seed itself; None where only bytes can say what they hold."""
    if case.values not in (TASK, NUMBERS):
        return None
    return {
        one.name: seeded(one, case.sizes, _seed(case, position))
        for position, one in enumerate(task.tensors)
        if not one.optional
    }


def draw_inputs(task: Task, case: Case) -> dict[str, bytes]:
    """The bytes of every tensor input, in the order of its storage."""
    specs = task.specs(case.sizes)
    return {
        one.name: _draw(one, specs[one.name], case, _seed(case, position))
        for position, one in enumerate(task.tensors)
        if one.name in specs
    }


def case_task(task: Task, case: Case) -> Task:
    """The task with the numbers this case calls it with."""
    if case.values != NUMBERS:
        return task
    return replace(
        task, inputs=tuple(_other_number(one) if isinstance(one, NumberInput) else one for one in task.inputs)
    )


def has_float_numbers(task: Task) -> bool:
    return any(isinstance(one.value, float) for one in task.numbers)


def has_varied_floats(task: Task) -> bool:
    """Whether there is a tensor that the distributions change."""
    return any(one.dtype.is_float and not isinstance(one.values, _DISCRETE) for one in task.tensors)


_DISCRETE = (records.IntegerValues, records.IndexValues)


def _other_number(one: NumberInput) -> NumberInput:
    """A kernel that has the usual value written in gives the wrong answer; an epsilon must grow until it matters."""
    value = one.value
    if not isinstance(value, float):
        return one
    return replace(one, value=value * 1000.0 if 0 < abs(value) < 1e-2 else value * 1.5 if value else 0.25)


def _seed(case: Case, position: int) -> int:
    return case.seed + _SEED_STEP * position


def seeded(one: records.TensorInput, sizes: Mapping[str, int], seed: int) -> Seeded:
    """What a device draws for an input that holds what the task says."""
    values = one.values
    if isinstance(values, records.IndexValues):
        return Integers(seed, 0, max(sizes[values.dimension], 1))
    if isinstance(values, records.IntegerValues):
        return Integers(seed, values.low, values.high)
    if not one.dtype.is_float:
        return Integers(seed, 0, 2)
    if isinstance(values, records.NormalValues):
        return records.Normal(seed, values.mean, values.deviation)
    return records.Uniform(seed, values.low, values.high)


def _draw(one: records.TensorInput, spec: records.TensorSpec, case: Case, seed: int) -> bytes:
    content = seeded(one, case.sizes, seed)
    distribution = DISTRIBUTIONS.get(case.values)
    if distribution is None or isinstance(content, Integers) or spec.numel == 0:
        return drawn(spec, content).tobytes()
    generator = np.random.Generator(np.random.PCG64(seed))
    return laid_out(spec, distribution.draw(generator, spec.numel, spec.dtype)).tobytes()

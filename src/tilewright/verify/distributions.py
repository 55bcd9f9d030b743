"""What the inputs of a case hold: the task's own values, and others that bring out what those would hide.

Values are drawn by numpy from the task and the case alone, so every process that draws a case sees the same bytes.
Whole numbers, flags and scalars leave the task's own domain only where the case says so, and it says so only where the
reference was seen to take them (`value_survey`). Importing this does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tilewright import records
from tilewright.devices.emulation.input_content import Seeded, drawn, laid_out
from tilewright.records import Case, DType, Integers, NumberInput, Task
from tilewright.verify.thresholds import thresholds

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
TASK = "task"
NUMBERS = "other numbers"
WHOLE = "whole numbers"
FLAGS = "flags"
_SEED_STEP = 1_000_003  # between the inputs of a case, so that no two hold the same values
_NUMBER_FACTORS = (1.5, 0.625, 1.25, 0.75)  # of scalars in turn: one factor for all would hide two that are swapped

_WIDE_RANGE = (DType.F32, DType.F64, DType.BF16)
_TINY = {DType.F64: 2.2e-308, DType.F16: 6.1e-5, DType.F8E4M3: 2.0**-6, DType.F8E5M2: 2.0**-14}
_OUTLIER = {DType.F16: 6e4, DType.F8E4M3: 400.0, DType.F8E5M2: 4e4}


@dataclass(frozen=True)
class Place:
    """One float tensor of a case, as its values depend on it."""

    shape: tuple[int, ...]
    dtype: DType
    number: int = 0  # among the task's tensors: patterns of rows are shifted by it, so that they meet
    main: bool = True  # of the highest rank among the inputs that are no weights
    first: bool = True  # of those
    thresholds: tuple[float, ...] = (0.0, 1.0)
    axis: int | None = -1  # along which there are outliers, or zeros for the outliers of the first tensor; None: none
    half: bool = False  # work in 16 bits is permitted

    @property
    def count(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def tiny(self) -> float:
        """The least normal number."""
        return _TINY.get(self.dtype, 1.2e-38)


@dataclass(frozen=True)
class Distribution:
    """A way to draw floats, and what it is for."""

    name: str
    purpose: str
    draw: Callable[[np.random.Generator, Place], Floats]
    # Rows of different kinds, some of them extreme: what the reference itself is unsure of there is not judged.
    mixed: bool = False


def _normal(generator: np.random.Generator, place: Place) -> Floats:
    return generator.standard_normal(place.count)


def _small(generator: np.random.Generator, place: Place) -> Floats:
    return generator.standard_normal(place.count) * 2.0**-9


def _offset(generator: np.random.Generator, place: Place) -> Floats:
    # A narrow type cannot tell neighbours of a large number apart, so its offset is smaller.
    return generator.standard_normal(place.count) + (1e4 if place.dtype in (DType.F32, DType.F64) else 30.0)


def _negative_offset(generator: np.random.Generator, place: Place) -> Floats:
    values = generator.standard_normal(place.count)
    if not place.main:
        return values
    return values - 1e4 if place.dtype in (DType.F32, DType.F64) else 8.0 * values - 300.0


def _wide(generator: np.random.Generator, place: Place) -> Floats:
    return generator.uniform(-100.0, 100.0, place.count)


def _impulse(generator: np.random.Generator, place: Place) -> Floats:
    """Little almost everywhere and much in one element of sixteen, the first and the last among them."""
    count = place.count
    values = generator.standard_normal(count) * 0.01
    large = generator.random(count) < 1 / 16
    large[[0, -1]] = True
    return np.where(large, generator.choice((-30.0, 30.0), count) * (1 + generator.random(count)), values)


def _logarithmic(generator: np.random.Generator, place: Place) -> Floats:
    """Every order of magnitude as often as the next, both signs."""
    decades = 3.0 if place.dtype in _WIDE_RANGE else 1.5
    sizes: Floats = np.power(10.0, generator.uniform(-decades, decades, place.count))
    signs: Floats = generator.choice((-1.0, 1.0), place.count)
    return sizes * signs


# -- values by row --

_Row = Callable[[np.random.Generator, int, Place], Floats]


def _by_rows(generator: np.random.Generator, place: Place, patterns: tuple[_Row, ...]) -> Floats:
    """Every row by the next pattern; a tensor of one dimension has every pattern in a piece of it."""
    shift = 2 * place.number
    if len(place.shape) < 2:
        pieces = np.array_split(np.arange(place.count), len(patterns))
        drawn = [
            patterns[(number + shift) % len(patterns)](generator, len(one), place) for number, one in enumerate(pieces)
        ]
        return np.concatenate(drawn) if drawn else np.zeros(0)
    width = place.shape[-1]
    rows = place.count // max(width, 1)
    drawn = [patterns[(row + shift) % len(patterns)](generator, width, place) for row in range(rows)]
    return np.concatenate(drawn) if drawn else np.zeros(0)


def _ties(generator: np.random.Generator, width: int, place: Place) -> Floats:
    return generator.choice((-1.0, -0.5, 0.5, 1.0), width)


def _constant(generator: np.random.Generator, width: int, place: Place) -> Floats:
    # Few bits: a sum of them is exact, as it is in an honest kernel.
    return np.full(width, float(generator.choice((-2.5, -0.75, 0.5, 1.5, 3.0))))


def _zeros(generator: np.random.Generator, width: int, place: Place) -> Floats:
    return generator.choice((0.0, -0.0), width)


def _at_thresholds(generator: np.random.Generator, width: int, place: Place) -> Floats:
    step = np.float32 if place.dtype in (DType.F32, DType.F64) else np.float16
    at = generator.choice(np.array(place.thresholds), width)
    beside = generator.integers(-1, 2, width)
    moved = np.nextafter(at.astype(step), np.where(beside < 0, -np.inf, np.inf).astype(step)).astype(np.float64)
    return np.where(beside == 0, at, np.where(np.isfinite(moved), moved, at))


def _ascending(generator: np.random.Generator, width: int, place: Place) -> Floats:
    return np.sort(generator.standard_normal(width))


def _negative(generator: np.random.Generator, width: int, place: Place) -> Floats:
    return -1.0 - np.abs(generator.standard_normal(width))


def _tiny(generator: np.random.Generator, width: int, place: Place) -> Floats:
    """Around the least normal number and below it."""
    scale: Floats = place.tiny * generator.choice((2.0**-6, 1.0, 64.0), width)
    return generator.standard_normal(width) * scale


def _descending(generator: np.random.Generator, width: int, place: Place) -> Floats:
    falling: Floats = -np.sort(generator.standard_normal(width))
    return falling


def _mostly_zero(generator: np.random.Generator, width: int, place: Place) -> Floats:
    return np.where(generator.random(width) < 0.1, generator.standard_normal(width), 0.0)


_PATTERNS = (
    _ties,
    _constant,
    _zeros,
    _at_thresholds,
    _ascending,
    _negative,
    _tiny,
    _descending,
    _mostly_zero,
)


def _patterned(generator: np.random.Generator, place: Place) -> Floats:
    return _by_rows(generator, place, _PATTERNS) if place.main else _normal(generator, place)


def _outliers(generator: np.random.Generator, place: Place) -> Floats:
    """One large number along the axis, for half of the rows with its negative beside it, where other tensors are 0."""
    values = generator.standard_normal(place.count).reshape(place.shape)
    if place.axis is None or not place.shape or place.shape[place.axis] < 2:
        return values.reshape(-1)
    along = np.moveaxis(values, place.axis, -1)
    at, partner = along.shape[-1] // 3, along.shape[-1] - 1
    if not place.first:
        along[..., [at, partner]] = 0.0
        return values.reshape(-1)
    size = 6e4 if place.half else _OUTLIER.get(place.dtype, 1e8)
    large = size * generator.choice((-1.0, 1.0), along.shape[:-1])
    cancelled = generator.random(along.shape[:-1]) < 0.5
    along[..., at] = large
    along[..., partner] = np.where(cancelled, -large, along[..., partner])
    return values.reshape(-1)


# -- values that are no numbers --


def _with(*wanted: tuple[float, float]) -> _Row:
    """A row with numbers put in: where, as a part of its length, and what."""

    def row(generator: np.random.Generator, width: int, place: Place) -> Floats:
        values = generator.standard_normal(width)
        for part, number in wanted if width else ():
            values[min(int(part * width), width - 1)] = number
        return values

    return row


def _hidden(generator: np.random.Generator, width: int, place: Place) -> Floats:
    """Nothing but -infinity: a row that a mask hides."""
    return np.full(width, -np.inf)


_INFINITE: tuple[_Row, ...] = (
    _with((0.0, -np.inf), (0.1, -np.inf), (0.6, -np.inf)),
    _with((0.4, np.inf)),
    _with(),
    _hidden,
    _with((0.3, np.inf), (0.7, -np.inf)),
    _with((1.0, -np.inf)),
)
_SPECIAL: tuple[_Row, ...] = (*_INFINITE[:3], _with((0.4, np.nan)), *_INFINITE[3:], _with((1.0, np.nan)))
_NAN_ROWS: tuple[_Row, ...] = (_with(), _with((0.4, np.nan)), _with(), _with((1.0, np.nan)))


def _special(generator: np.random.Generator, place: Place) -> Floats:
    return _by_rows(generator, place, _SPECIAL) if place.main else _normal(generator, place)


def _infinite(generator: np.random.Generator, place: Place) -> Floats:
    return _by_rows(generator, place, _INFINITE) if place.main else _normal(generator, place)


def _nan_rows(generator: np.random.Generator, place: Place) -> Floats:
    return _by_rows(generator, place, _NAN_ROWS) if place.first else _normal(generator, place)


SPECIAL, INFINITE, NAN_ROWS = "special", "infinite", "NaN"
PATTERNED, OUTLIERS, NEGATIVE_OFFSET = "patterned", "outliers", "negative offset"

DISTRIBUTIONS: dict[str, Distribution] = {
    one.name: one
    for one in (
        Distribution("normal", "zero-mean values, which show lost precision where positive ones hide it", _normal),
        Distribution("small", "a constant that the kernel adds or a bound it assumes shows", _small),
        Distribution("offset", "a large common part, which cancels in a variance or a maximum", _offset),
        Distribution("wide", "exponentials that overflow unless a maximum is taken off first", _wide),
        Distribution("impulse", "few elements decide the result, so each that is left out shows", _impulse),
        Distribution("logarithmic", "every order of magnitude", _logarithmic),
        Distribution(NEGATIVE_OFFSET, "a maximum that starts at 0", _negative_offset),
        Distribution(PATTERNED, "ties, constant and sorted rows, zeros, denormals, thresholds", _patterned, mixed=True),
        Distribution(OUTLIERS, "a range or a scale that one large number spoils", _outliers, mixed=True),
        Distribution(SPECIAL, "NaN and infinities, masked rows", _special, mixed=True),
        Distribution(INFINITE, "infinities, where the order of NaN is nobody's promise", _infinite, mixed=True),
        Distribution(NAN_ROWS, "NaN in rows of the first operand of a product", _nan_rows, mixed=True),
    )
}


# -- one input of a case --


def contents(task: Task, case: Case) -> dict[str, records.Content] | None:
    """The inputs as a device can draw them by seed itself; None where only bytes can say what they hold."""
    if case.values != TASK and not case.values.startswith(NUMBERS):
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
        one.name: _draw(task, position, specs[one.name], case)
        for position, one in enumerate(task.tensors)
        if one.name in specs
    }


def case_task(task: Task, case: Case) -> Task:
    """The task with the numbers this case calls it with."""
    if not case.values.startswith(NUMBERS):
        return task
    said, floats = _settings(case.values), 0
    inputs: list[records.TaskInput] = []
    for one in task.inputs:
        if isinstance(one, NumberInput) and one.name in said:
            kind = bool if isinstance(one.value, bool) else int
            one = replace(one, value=kind(int(said[one.name])))
        elif isinstance(one, NumberInput) and isinstance(one.value, float):
            one, floats = _other_number(one, _NUMBER_FACTORS[floats % len(_NUMBER_FACTORS)]), floats + 1
        inputs.append(one)
    return replace(task, inputs=tuple(inputs))


def values_with(kind: str, settings: Mapping[str, str | int]) -> str:
    """A kind of values that says what it does with some inputs: "whole numbers: x=full, index=signed"."""
    return f"{kind}: {', '.join(f'{name}={value}' for name, value in settings.items())}"


def _settings(values: str) -> dict[str, str]:
    _, _, said = values.partition(": ")
    return dict(one.split("=", 1) for one in said.split(", ")) if said else {}


def is_mixed(values: str) -> bool:
    """Whether the rows of a kind of values are of different kinds, so that each is judged where it can be."""
    known = DISTRIBUTIONS.get(values)
    return values == FLAGS or values.startswith(WHOLE) or (known is not None and known.mixed)


def has_float_numbers(task: Task) -> bool:
    return any(isinstance(one.value, float) for one in task.numbers)


def has_varied_floats(task: Task) -> bool:
    """Whether there is a tensor that the distributions change."""
    return any(one.dtype.is_float and not isinstance(one.values, _DISCRETE) for one in task.tensors)


def has_flags(task: Task) -> bool:
    return any(one.dtype is DType.BOOL and not one.optional for one in task.tensors)


def whole_inputs(task: Task) -> tuple[records.TensorInput, ...]:
    """The tensors of whole numbers that are given."""
    return tuple(
        one for one in task.tensors if not one.dtype.is_float and one.dtype is not DType.BOOL and not one.optional
    )


_DISCRETE = (records.IntegerValues, records.IndexValues)


def _other_number(one: NumberInput, factor: float) -> NumberInput:
    """A kernel that has the usual value written in gives the wrong answer; an epsilon must grow until it matters."""
    value = float(one.value)
    return replace(one, value=value * 1000.0 * factor if 0 < abs(value) < 1e-2 else value * factor or factor / 6)


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


def _draw(task: Task, position: int, spec: records.TensorSpec, case: Case) -> bytes:
    one, seed = task.tensors[position], _seed(case, position)
    content = seeded(one, case.sizes, seed)
    generator = np.random.Generator(np.random.PCG64(seed))
    if spec.numel == 0:
        return drawn(spec, content).tobytes()
    if one.dtype is DType.BOOL and case.values == FLAGS:
        return laid_out(spec, _flags(generator, spec.shape)).tobytes()
    level = _settings(case.values).get(one.name) if case.values.startswith(WHOLE) else None
    if level is not None and isinstance(content, Integers):
        return laid_out(spec, WHOLE_LEVELS[level](generator, spec, content, thresholds(task))).tobytes()
    distribution = DISTRIBUTIONS.get(case.values)
    if distribution is None or isinstance(content, Integers):
        return drawn(spec, content).tobytes()
    if not isinstance(one.values, records.NormalValues) and (distribution.mixed or case.values == NEGATIVE_OFFSET):
        return laid_out(spec, _within(generator, spec, one)).tobytes()
    return laid_out(spec, distribution.draw(generator, _place(task, position, spec))).tobytes()


def _within(generator: np.random.Generator, spec: records.TensorSpec, one: records.TensorInput) -> Floats:
    """Numbers of the domain that the task itself bounds, its ends and equal ones among them."""
    assert isinstance(one.values, records.UniformValues)
    steps = generator.integers(0, 9, spec.numel) / 8.0
    return one.values.low + (one.values.high - one.values.low) * steps


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


# -- flags and whole numbers --


def _flags(generator: np.random.Generator, shape: tuple[int, ...]) -> Whole:
    """Rows with few flags, none, long runs, all, and many; of one dimension, pieces of it."""

    def row(number: int, width: int) -> Whole:
        if number % 5 == 2:
            length = max(width // 3, 1)
            runs: Whole = 1 - np.arange(width) // length % 2
            return runs
        share = (0.01, 0.0, 0.5, 1.0, 0.97)[number % 5]
        drawn: Whole = (generator.random(width) < share).astype(np.int64)
        if number % 5 == 0 and width:
            drawn[width // 2] = 1
        return drawn

    if len(shape) < 2:
        count = int(np.prod(shape, dtype=np.int64))
        return np.concatenate([row(number, len(one)) for number, one in enumerate(np.array_split(range(count), 5))])
    rows = int(np.prod(shape[:-1], dtype=np.int64))
    return np.concatenate([row(number, shape[-1]) for number in range(rows)])


_Level = Callable[[np.random.Generator, records.TensorSpec, Integers, tuple[float, ...]], Whole]


def _limits(dtype: DType) -> tuple[int, int]:
    bits = 8 * dtype.itemsize
    return (0, 2**bits - 1) if dtype is DType.U8 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _placed(generator: np.random.Generator, values: Whole, edges: list[int]) -> Whole:
    """The values with each of the edges somewhere among them, as far as there is room."""
    places = generator.permutation(values.size)[: len(edges)]
    values[places] = np.array(edges[: places.size], dtype=np.int64)
    return values


def _full(
    generator: np.random.Generator, spec: records.TensorSpec, content: Integers, known: tuple[float, ...]
) -> Whole:
    """All that the type holds: everywhere, around 0, at its ends and at what the reference compares with."""
    low, high = _limits(spec.dtype)
    values = generator.integers(low, high, spec.numel, dtype=np.int64, endpoint=True)
    near = generator.integers(max(low, -100), min(high, 100), spec.numel, dtype=np.int64, endpoint=True)
    values = np.where(generator.random(spec.numel) < 0.4, near, values)
    edges = [low, high, 0, 1, *((-1,) if low < 0 else ())]
    edges += [int(one) for one in known if float(one).is_integer() and low <= one <= high and abs(one) < 2**62]
    return _placed(generator, values, list(dict.fromkeys(edges)))


def _large(
    generator: np.random.Generator, spec: records.TensorSpec, content: Integers, known: tuple[float, ...]
) -> Whole:
    """Both signs, but not the few numbers that are no divisors, or next to them."""
    low, high = _limits(spec.dtype)
    sizes = generator.integers(3, high // 2, spec.numel, dtype=np.int64)
    near = generator.integers(3, min(high, 100), spec.numel, dtype=np.int64)
    sizes = np.where(generator.random(spec.numel) < 0.5, near, sizes)
    signs: Whole = generator.choice((-1, 1), spec.numel)
    both: Whole = sizes * signs if low < 0 else sizes
    return both


def _signed(
    generator: np.random.Generator, spec: records.TensorSpec, content: Integers, known: tuple[float, ...]
) -> Whole:
    """As far below 0 as the task goes above: indices that count from the end."""
    values = generator.integers(-content.high, content.high, spec.numel, dtype=np.int64)
    return _placed(generator, values, [-content.high, -1, 0, content.high - 1])


def _own(
    generator: np.random.Generator, spec: records.TensorSpec, content: Integers, known: tuple[float, ...]
) -> Whole:
    """The task's own domain with its ends, one number many times over, and rising numbers."""
    values = generator.integers(content.low, content.high, spec.numel, dtype=np.int64)
    third = spec.numel // 3
    values[:third] = content.high - 1
    values[third : 2 * third] = np.sort(values[third : 2 * third])
    return _placed(generator, values, [content.low, content.high - 1])


# From the most to the least that is asked of the reference.
WHOLE_LEVELS: dict[str, _Level] = {"full": _full, "large": _large, "signed": _signed, "own": _own}

"""Ways to draw the floats of a tensor, each for the sake of a fault that the task's own values would hide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewright.records import DType, Normal, Uniform

Floats = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator, "Place"], Floats]

_WIDE_RANGE = (DType.F32, DType.F64, DType.BF16)
_TINY = {DType.F64: 2.2e-308, DType.F16: 6.1e-5, DType.F8E4M3: 2.0**-6, DType.F8E5M2: 2.0**-14}
_SMALL = 2.0**-9
_WIDEST = 100.0
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
    draw: Draw
    # Rows of different kinds, some of them extreme: what the reference itself is unsure of there is not judged.
    mixed: bool = False


DRAWN_ANYWHERE = ("normal", "small", "offset", "wide")


def drawn_anywhere(values: str, dtype: DType, seed: int) -> Normal | Uniform:
    """The same kinds of values for a device that draws them itself, by a seed of its own."""
    if values == "wide":
        return Uniform(seed, -_WIDEST, _WIDEST)
    return Normal(seed, _common_part(dtype) if values == "offset" else 0.0, _SMALL if values == "small" else 1.0)


def _common_part(dtype: DType) -> float:
    # A narrow type cannot tell neighbours of a large number apart, so its offset is smaller.
    return 1e4 if dtype in (DType.F32, DType.F64) else 30.0


def _normal(generator: np.random.Generator, place: Place) -> Floats:
    return generator.standard_normal(place.count)


def _negative_offset(generator: np.random.Generator, place: Place) -> Floats:
    values = generator.standard_normal(place.count)
    if not place.first:  # a product of two such would be decided by roundings
        return values
    return values - 1e4 if place.dtype in (DType.F32, DType.F64) else 8.0 * values - 300.0


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


def _mixed(patterns: tuple[_Row, ...], first: bool = False) -> Draw:
    """Rows by these patterns in main tensors, or in the first alone; elsewhere normal ones."""
    return lambda generator, place: (
        _by_rows(generator, place, patterns) if (place.first if first else place.main) else _normal(generator, place)
    )


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


def _at_thresholds(generator: np.random.Generator, width: int, place: Place) -> Floats:
    step = np.float32 if place.dtype in (DType.F32, DType.F64) else np.float16
    at = generator.choice(np.array(place.thresholds), width)
    beside = generator.integers(-1, 2, width)
    moved = np.nextafter(at.astype(step), np.where(beside < 0, -np.inf, np.inf).astype(step)).astype(np.float64)
    return np.where(beside == 0, at, np.where(np.isfinite(moved), moved, at))


def _tiny(generator: np.random.Generator, width: int, place: Place) -> Floats:
    """Around the least normal number and below it."""
    scale: Floats = place.tiny * generator.choice((2.0**-6, 1.0, 64.0), width)
    return generator.standard_normal(width) * scale


_PATTERNS: tuple[_Row, ...] = (
    lambda generator, width, _: generator.choice((-1.0, -0.5, 0.5, 1.0), width),
    # One number, of few bits: a sum of them is exact, as it is in an honest kernel.
    lambda generator, width, _: np.full(width, float(generator.choice((-2.5, -0.75, 0.5, 1.5, 3.0)))),
    lambda generator, width, _: generator.choice((0.0, -0.0), width),
    _at_thresholds,
    lambda generator, width, _: np.sort(generator.standard_normal(width)),
    lambda generator, width, _: -1.0 - np.abs(generator.standard_normal(width)),
    _tiny,
    lambda generator, width, _: -np.sort(generator.standard_normal(width)),
    lambda generator, width, _: np.where(generator.random(width) < 0.1, generator.standard_normal(width), 0.0),
)


_HEIGHTS = (18.5, 12.0, 21.0, 15.0, 24.0)  # of which exponentials still count where there are thousands of them


def _peaks(generator: np.random.Generator, place: Place) -> Floats:
    """One element of each row far above the rest, which is little by itself and something together."""
    values = generator.standard_normal(place.count) * 0.1
    if not place.main or not place.shape or not place.count:
        return values
    rows = values.reshape(-1, place.shape[-1])
    heights = np.resize(_HEIGHTS, rows.shape[0])
    rows[np.arange(rows.shape[0]), generator.integers(0, rows.shape[1], rows.shape[0])] = heights
    return values


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


SPECIAL, INFINITE, NAN_ROWS = "special", "infinite", "NaN"
PATTERNED, OUTLIERS, NEGATIVE_OFFSET, PEAKS = "patterned", "outliers", "negative offset", "peaks"

DISTRIBUTIONS: dict[str, Distribution] = {
    one.name: one
    for one in (
        Distribution("normal", "zero-mean values, which show lost precision where positive ones hide it", _normal),
        Distribution(
            "small",
            "a constant that the kernel adds or a bound it assumes shows",
            lambda generator, place: generator.standard_normal(place.count) * _SMALL,
        ),
        Distribution(
            "offset",
            "a large common part, which cancels in a variance or a maximum",
            lambda generator, place: generator.standard_normal(place.count) + _common_part(place.dtype),
        ),
        Distribution(
            "wide",
            "exponentials that overflow unless a maximum is taken off first",
            lambda generator, place: generator.uniform(-_WIDEST, _WIDEST, place.count),
        ),
        Distribution("impulse", "few elements decide the result, so each that is left out shows", _impulse),
        Distribution("logarithmic", "every order of magnitude", _logarithmic),
        Distribution(PEAKS, "terms that are left out because each of them is small", _peaks),
        Distribution(NEGATIVE_OFFSET, "a maximum that starts at 0", _negative_offset, mixed=True),
        Distribution(
            PATTERNED, "ties, constant and sorted rows, zeros, denormals, thresholds", _mixed(_PATTERNS), mixed=True
        ),
        Distribution(OUTLIERS, "a range or a scale that one large number spoils", _outliers, mixed=True),
        Distribution(SPECIAL, "NaN and infinities, masked rows", _mixed(_SPECIAL), mixed=True),
        Distribution(INFINITE, "infinities, where the order of NaN is nobody's promise", _mixed(_INFINITE), mixed=True),
        Distribution(
            NAN_ROWS, "NaN in rows of the first operand of a product", _mixed(_NAN_ROWS, first=True), mixed=True
        ),
    )
}

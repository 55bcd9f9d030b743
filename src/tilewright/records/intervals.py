"""How well a median of times is known: bootstrap intervals, the same for the same times whenever they are asked for.

Times come in rounds, and what disturbs a GPU lasts longer than one call, so rounds are drawn with replacement and
times within each of them. Two contenders of one measurement took part in the same rounds: for their ratio, each draw
takes the same rounds of both.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass
from functools import lru_cache

CONFIDENCE = 0.95
_DRAWS = 1000

TimesByRound = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Interval:
    """Where a number lies with `CONFIDENCE`."""

    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2.0


@lru_cache(maxsize=512)
def median_interval(rounds: TimesByRound) -> Interval:
    """Of the median of all times."""
    draw = random.Random(0)
    return _central([statistics.median(_drawn(rounds, _places(len(rounds), draw), draw)) for _ in range(_DRAWS)])


@lru_cache(maxsize=512)
def ratio_interval(above: TimesByRound, below: TimesByRound, paired: bool) -> Interval:
    """Of the median of one over that of another; `paired`: taken in the same rounds, which are then drawn together."""
    draw = random.Random(0)

    def once() -> float:
        places = _places(len(above), draw)
        others = places if paired and len(above) == len(below) else _places(len(below), draw)
        return statistics.median(_drawn(above, places, draw)) / statistics.median(_drawn(below, others, draw))

    return _central([once() for _ in range(_DRAWS)])


@lru_cache(maxsize=512)
def mean_interval(values: tuple[float, ...]) -> Interval:
    """Of the mean of values that were drawn independently, such as the differences of pairs."""
    draw = random.Random(0)
    return _central([statistics.fmean(draw.choices(values, k=len(values))) for _ in range(_DRAWS)])


def _places(count: int, draw: random.Random) -> list[int]:
    return draw.choices(range(count), k=count)


def _drawn(rounds: TimesByRound, places: list[int], draw: random.Random) -> list[float]:
    return [time for place in places for time in draw.choices(rounds[place], k=len(rounds[place]))]


def _central(values: list[float]) -> Interval:
    values.sort()
    outside = round(len(values) * (1.0 - CONFIDENCE) / 2.0)
    return Interval(values[outside], values[-1 - outside])

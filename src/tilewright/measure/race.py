"""Choices of a file timed against each other: all a little, then fewer and fewer of them more.

    rung 1   every choice       3 runs each
    rung 2   the faster half    5 runs each
    rung 3   the last few       7 runs each, there
    rung 4   and the default    7 runs each, and back

No choice leaves while it may still be the fastest by what its own times scatter, and the default never does. A choice
is faster than the default where its median is, by more than the gain that is asked for, and where the ratio of the two
lies below 1 with 95 % confidence.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tilewright.records import TimesByRound, ratio_interval

RUNGS = ((3, 0.5), (5, 0.25), (7, 0.0), (7, 0.0))  # runs of each choice, and the part of all that goes on
# Of calls that take so long, which scatter little, and whose every timing takes a while.
LONG_US, RUNGS_OF_LONG = 1000.0, ((2, 0.25), (5, 0.0), (5, 0.0))
FEWEST = 3  # that stay to the end
_SCATTER = 3.0  # times the spread of a choice's own runs: within so much it may still be the fastest

Items = tuple[tuple[str, int | bool], ...]
Time = Callable[
    [Items, int], tuple[float, ...] | None
]  # a choice and so many runs: their microseconds, None: it failed
Say = Callable[[str], None]


@dataclass
class Runner:
    """One choice on its way."""

    choice: Items
    rounds: list[tuple[float, ...]] = field(default_factory=list)

    @property
    def by_round(self) -> TimesByRound:
        return tuple(self.rounds)

    @property
    def median_us(self) -> float:
        return statistics.median(time for one in self.rounds for time in one)

    @property
    def least_us(self) -> float:
        """What it may come to when it is timed more: its best run, less what its runs scatter."""
        times = sorted(time for one in self.rounds for time in one)
        spread = times[len(times) // 2] - times[0]
        return times[0] - (_SCATTER - 1.0) * spread


def race(
    choices: Sequence[Items], time: Time, say: Say, *, scatters: bool, floor_us: float = 0.0
) -> tuple[list[Runner], int]:
    """Every choice with its times, the default first, and how many failed. Times that do not `scatter` need one run,
    and those of calls that no kernel does in less than a millisecond few."""
    field_ = [Runner(choice) for choice in choices]
    standing, failed = list(field_), 0
    rungs = (RUNGS_OF_LONG if floor_us >= LONG_US else RUNGS) if scatters else ((1, 0.0),)
    for number, (runs, part) in enumerate(rungs):
        back = scatters and number == len(rungs) - 1
        for place, runner in enumerate(reversed(standing) if back else standing):
            words = choice_words(runner.choice)
            say(f"tuning {place + 1}/{len(standing)}" + (f": {words}" if words else ""))
            times = time(runner.choice, runs)
            if times is None:
                failed += 1
                runner.rounds.clear()
                field_.remove(runner)
            else:
                runner.rounds.append(times)
        standing = _going_on([one for one in standing if one.rounds], choices[0], max(FEWEST, int(part * len(choices))))
        if len(standing) < 2:
            break
    return field_, failed


def choice_words(choice: Items) -> str:
    return ", ".join(f"{name} = {str(value).lower()}" for name, value in choice)


def _going_on(standing: list[Runner], default: Items, count: int) -> list[Runner]:
    """The fastest so many, whoever may still be the fastest, and the default; in the order they had."""
    if not standing:
        return []
    ranked = sorted(standing, key=lambda one: one.median_us)
    best_us = ranked[0].median_us
    staying = ranked[:count] + [one for one in ranked[count : 2 * count] if one.least_us < best_us]
    return [one for one in standing if one in staying or one.choice == default]


def faster_than_default(runners: Sequence[Runner], default: Items, gain: float) -> list[Items]:
    """The choices that gain enough over the default, beyond what times scatter; the fastest first."""
    own = next((one for one in runners if one.choice == default), None)
    ranked = sorted(runners, key=lambda one: one.median_us)
    if own is None:
        return [one.choice for one in ranked]
    return [one.choice for one in ranked if one is not own and _beats(one, own, gain)]


def _beats(one: Runner, default: Runner, gain: float) -> bool:
    if not one.median_us < default.median_us * (1.0 - gain):
        return False
    if max(len(one.by_round[0]), len(default.by_round[0])) == 1:
        return True  # times that do not scatter
    return ratio_interval(one.by_round, default.by_round, paired=False).high < 1.0

"""Autotuning: a sweep of a file's `tune` combinations at the task's sizes, within a number of them.

Built on all cores, those left out that cannot win, the rest raced. What was timed once is not timed again: a sweep is
known by the code of its choices, so an edit that leaves the launched kernels as they are costs none.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from tilewright.kernel_file import KernelFile, combinations
from tilewright.measure.race import Items, Runner, choice_words, faster_than_default, race
from tilewright.measure.stopwatch import Stopwatch
from tilewright.measure.sweep_choices import BuiltChoice, built_choices, promising, sweep_key, worth_timing
from tilewright.measure.sweep_memory import ProcessMemory, Sweep, SweepMemory
from tilewright.records import MEASURED_NOISE, JudgedAnswer, Passed, RefusedChoice, TuneResult
from tilewright.verify import Referee

CHECKED = 4  # winners that are judged before the default is kept
RUNS_ALONE = 5  # of a file beside the best so far
OUT_OF_REACH = 1.5  # times as slow as the best: no constants make that good
_MOST_COMBINATIONS = 4096  # of a file that are looked at
_GOLDEN = 0.6180339887498949
_MODELLED = ProcessMemory()

Say = Callable[[str], None]
_Answered = tuple[Items, JudgedAnswer | None]


def autotune(
    file: KernelFile,
    referee: Referee,
    stopwatch: Stopwatch,
    limit: int,
    say: Say = lambda _: None,
    *,
    gain: float = MEASURED_NOISE,
    answer: JudgedAnswer | None = None,
    memory: SweepMemory | None = None,
) -> TuneResult:
    """Try the combinations, the default first; the fastest that is right wins if it gains more than `gain` and noise.

    The default is what the file gives without a choice, and is taken to be right already; another choice is judged by
    every case, with builds of its own, before it is adopted. A file without `tune` lines has one entry. `answer` is
    what the default was judged by, where a GPU ran it. `memory` has the sweeps that were made before.
    """
    swept = _swept(file, stopwatch, limit, say, memory)
    if swept is None:
        return TuneResult((), (), answer=answer)
    faster = faster_than_default(swept.runners, swept.default, gain)
    (winner, answer), refused = _winner(file, referee, (swept.default, answer), faster, say)
    scores = tuple((one.choice, one.median_us) for one in swept.runners)
    return TuneResult(scores, winner, swept.skipped, swept.failed + len(refused), refused, answer)


def slower_than(
    file: KernelFile, best_us: float, stopwatch: Stopwatch, limit: int, say: Say = lambda _: None
) -> float | None:
    """The time of a file with the constants that suit it best where that is longer than another's, else None.

    Nothing of it needs to have been judged. Constants are looked for only where they may decide it.
    """
    times = stopwatch.times_us(file, None, RUNS_ALONE)
    if times is None or statistics.median(times) <= best_us:
        return None
    found = [statistics.median(times)]
    if found[0] <= OUT_OF_REACH * best_us:
        swept = _swept(file, stopwatch, limit, say, None)
        found += [one.median_us for one in swept.runners] if swept is not None else []
    return min(found) if min(found) > best_us else None


@dataclass(frozen=True)
class _Swept:
    """The choices of a file that were timed; `skipped` were not, and `failed` could not be."""

    default: Items
    runners: list[Runner]
    skipped: int
    failed: int


def _swept(file: KernelFile, stopwatch: Stopwatch, limit: int, say: Say, memory: SweepMemory | None) -> _Swept | None:
    """A file's choices, built and raced; None where it has none."""
    found = list(islice(combinations(file, stopwatch.task.arguments(), stopwatch.profile), _MOST_COMBINATIONS))
    tried = spread(found, limit)
    if not tried:
        return None
    say("tuning: building")
    made = built_choices(file, stopwatch.task, stopwatch.profile, tried)
    built = [one for one in made if one is not None]
    timed = worth_timing(built) if made[0] is not None else []
    memory = memory or (SweepMemory() if stopwatch.scatters else _MODELLED)
    runners, failed = _timed(file, stopwatch, timed, say, memory)
    skipped = len(found) - len(tried) + len(built) - len(timed)
    return _Swept(tuple(tried[0].items()), runners, skipped, failed + len(made) - len(built))


def _timed(
    file: KernelFile, stopwatch: Stopwatch, choices: list[BuiltChoice], say: Say, memory: SweepMemory
) -> tuple[list[Runner], int]:
    """The choices with their times, from memory where the same was timed before; and how many failed. Where the GPU is
    on another machine, only what the model puts first is timed."""
    if not choices:
        return [], 0
    if len(choices) == 1 and stopwatch.scatters:
        return [], 0  # it is measured in full right after, beside its baselines
    key = sweep_key(choices, stopwatch.task, stopwatch.profile, stopwatch.scatters)
    known = memory.find(key)
    if known is not None:
        say("tuning: timed before")
        return [Runner(choice, list(rounds)) for choice, rounds in known.times_us], 0
    if stopwatch.is_far:
        say("tuning: modelling")
        choices = promising(choices, lambda one: stopwatch.modelled_us(file, dict(one.choice)))
    floor_us = stopwatch.floor_us
    with stopwatch.turn():  # a GPU that others use meanwhile cools down
        runners, failed = race(
            [one.choice for one in choices],
            lambda choice, runs: stopwatch.times_us(file, dict(choice), runs),
            say,
            scatters=stopwatch.scatters,
            floor_us=floor_us,
        )
    if runners and not failed:
        memory.keep(key, Sweep(tuple((one.choice, one.by_round) for one in runners)))
    return runners, failed


def spread(choices: list[dict[str, int | bool]], limit: int) -> list[dict[str, int | bool]]:
    """At most `limit` of the choices: the first, and others spread over all of them."""
    if len(choices) <= limit:
        return choices
    taken: dict[int, None] = {0: None}
    step = 0
    while len(taken) < max(limit, 1):
        step += 1
        taken.setdefault(int(step * _GOLDEN % 1.0 * len(choices)))
    return [choices[index] for index in taken]


def _winner(
    file: KernelFile, referee: Referee, default: _Answered, faster: list[Items], say: Say
) -> tuple[_Answered, tuple[RefusedChoice, ...]]:
    """The choice to use with what it answered, and the faster ones that did not pass."""
    refused: list[RefusedChoice] = []
    for choice in faster[:CHECKED]:
        say(f"verifying {choice_words(choice)}")
        verdict = referee.judge(file, dict(choice))
        if isinstance(verdict, Passed):
            return (choice, verdict.answer), tuple(refused)
        refused.append(RefusedChoice(choice, verdict))
    return default, tuple(refused)

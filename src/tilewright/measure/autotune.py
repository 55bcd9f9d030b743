"""Autotuning: a plain sweep of a file's `tune` combinations at the task's sizes, within a number of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from tilewright.kernel_file import Choice, KernelFile, combinations, evaluate
from tilewright.measure.stopwatch import Stopwatch
from tilewright.records import MEASURED_NOISE, BuildFailure, JudgedAnswer, Passed, RefusedChoice, TuneResult
from tilewright.toolchain import build_many
from tilewright.verify import Referee

CHECKED = 4  # winners that are judged before the default is kept
_MOST_COMBINATIONS = 4096  # of a file that are looked at
_GOLDEN = 0.6180339887498949

Say = Callable[[str], None]
Items = tuple[tuple[str, int | bool], ...]
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
) -> TuneResult:
    """Try the combinations, the default first; the fastest that is right wins if it gains more than `gain`.

    The default is what the file gives without a choice, and is taken to be right already; another choice is judged by
    every case, with builds of its own, before it is adopted. A file without `tune` lines has one entry. `answer` is
    what the default was judged by, where a GPU ran it.
    """
    arguments = stopwatch.task.arguments()
    found = list(islice(combinations(file, arguments, stopwatch.profile), _MOST_COMBINATIONS))
    tried_choices = spread(found, limit)
    if not tried_choices:
        return TuneResult((), (), answer=answer)
    built = _built(file, stopwatch, tried_choices)
    failed = built.count(False)
    scores: list[tuple[Items, float]] = []
    for number, (choice, is_built) in enumerate(zip(tried_choices, built, strict=True), 1):
        say(f"tuning {number}/{len(tried_choices)}" + (f": {_text(choice)}" if choice else ""))
        score = stopwatch.score_us(file, choice) if is_built else None
        if score is None:
            failed += is_built
            continue
        scores.append((tuple(choice.items()), score))
    default = tuple(tried_choices[0].items())
    (winner, answer), refused = _winner(file, referee, (default, answer), _faster(default, scores, gain), say)
    return TuneResult(tuple(scores), winner, len(found) - len(tried_choices), failed + len(refused), refused, answer)


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


def _built(file: KernelFile, stopwatch: Stopwatch, choices: list[dict[str, int | bool]]) -> list[bool]:
    """Fill the build cache on all cores, and say which choices build."""
    gpu, arguments = stopwatch.profile, stopwatch.task.arguments()
    requests = [evaluate(file, arguments, gpu, choice).build_request() for choice in choices]
    wanted = [request for request in requests if request is not None]
    failed = {one for one, made in zip(wanted, build_many(wanted), strict=True) if isinstance(made, BuildFailure)}
    return [request not in failed for request in requests]


def _faster(default: Items, scores: list[tuple[Items, float]], gain: float) -> list[Items]:
    """The choices that gain enough over the default, the fastest first."""
    default_us = next((score for choice, score in scores if choice == default), float("inf"))
    gaining = [(score, choice) for choice, score in scores if score < default_us * (1.0 - gain)]
    return [choice for _, choice in sorted(gaining, key=lambda one: one[0])]


def _winner(
    file: KernelFile, referee: Referee, default: _Answered, faster: list[Items], say: Say
) -> tuple[_Answered, tuple[RefusedChoice, ...]]:
    """The choice to use with what it answered, and the faster ones that did not pass."""
    refused: list[RefusedChoice] = []
    for choice in faster[:CHECKED]:
        say(f"verifying {_text(dict(choice))}")
        verdict = referee.judge(file, dict(choice))
        if isinstance(verdict, Passed):
            return (choice, verdict.answer), tuple(refused)
        refused.append(RefusedChoice(choice, verdict))
    return default, tuple(refused)


def _text(choice: Choice) -> str:
    return ", ".join(f"{name} = {str(value).lower()}" for name, value in choice.items())

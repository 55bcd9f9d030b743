"""Autotuning: sweep the combinations of a file's `tune` values at the task's sizes.

All combinations are built in parallel, hopeless ones are dropped, and the rest are timed by successive halving. Sweeps
are cached by the code of their choices, so an edit that leaves the launched kernels unchanged costs nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path

from tilewright.kernel_file import Choice, Evaluation, KernelFile, KernelFileError, combinations, evaluate
from tilewright.measure.stopwatch import Stopwatch
from tilewright.records import (
    MEASURED_NOISE,
    Build,
    BuildFailure,
    GpuProfile,
    JudgedAnswer,
    PackedLaunch,
    Passed,
    RecordError,
    RefusedChoice,
    Task,
    TimesByRound,
    TuneResult,
    from_json,
    ratio_interval,
    to_json,
)
from tilewright.toolchain import BuiltPlan, FileCache, build_many, cache_directory, launch_occupancy
from tilewright.toolchain.ptx_text import parse_ptx
from tilewright.verify import Referee

# -- successive halving --

RUNGS = ((3, 0.5), (5, 0.25), (7, 0.0), (7, 0.0))  # (runs of each choice, fraction of all choices that survives)
LONG_US, RUNGS_OF_LONG = 1000.0, ((2, 0.25), (5, 0.0), (5, 0.0))  # long calls vary less, and each timing is slow
FEWEST = 3  # choices in the last rung
_SCATTER = 3.0  # a choice within this many times the spread of its runs may still be the fastest

Items = tuple[tuple[str, int | bool], ...]
Time = Callable[[Items, int], tuple[float, ...] | None]  # (choice, runs) -> microseconds; None: it failed
Say = Callable[[str], None]


@dataclass
class TimedChoice:
    """One choice and its times so far."""

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
        """An optimistic estimate: the best run less the spread of the runs."""
        times = sorted(time for one in self.rounds for time in one)
        spread = times[len(times) // 2] - times[0]
        return times[0] - (_SCATTER - 1.0) * spread


def successive_halving(
    choices: Sequence[Items], time: Time, say: Say, *, scatters: bool, floor_us: float = 0.0
) -> tuple[list[TimedChoice], int]:
    """Time every choice, the default first. Returns the timed choices and how many failed.

    Without `scatters` times are deterministic and one run suffices. A long roofline floor needs fewer runs.
    """
    timed = [TimedChoice(choice) for choice in choices]
    standing, failed = list(timed), 0
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
                timed.remove(runner)
            else:
                runner.rounds.append(times)
        standing = _survivors(
            [one for one in standing if one.rounds], choices[0], max(FEWEST, int(part * len(choices)))
        )
        if len(standing) < 2:
            break
    return timed, failed


def choice_words(choice: Items) -> str:
    return ", ".join(f"{name} = {str(value).lower()}" for name, value in choice)


def _survivors(standing: list[TimedChoice], default: Items, count: int) -> list[TimedChoice]:
    """The fastest `count`, any that may still be the fastest, and the default, in their order."""
    if not standing:
        return []
    ranked = sorted(standing, key=lambda one: one.median_us)
    best_us = ranked[0].median_us
    staying = ranked[:count] + [one for one in ranked[count : 2 * count] if one.least_us < best_us]
    return [one for one in standing if one in staying or one.choice == default]


def faster_than_default(timed: Sequence[TimedChoice], default: Items, gain: float) -> list[Items]:
    """The choices that beat the default by more than `gain` and the noise, fastest first."""
    own = next((one for one in timed if one.choice == default), None)
    ranked = sorted(timed, key=lambda one: one.median_us)
    if own is None:
        return [one.choice for one in ranked]
    return [one.choice for one in ranked if one is not own and _beats(one, own, gain)]


def _beats(one: TimedChoice, default: TimedChoice, gain: float) -> bool:
    if not one.median_us < default.median_us * (1.0 - gain):
        return False
    deterministic = max(len(one.by_round[0]), len(default.by_round[0])) == 1  # modelled
    return deterministic or ratio_interval(one.by_round, default.by_round, paired=False).high < 1.0


# -- building the choices --

FAR_LESS = 0.25  # of the resident threads of the choice that has most
FEW_CHOICES = 8  # timed without ranking them by the performance model
PROMISING = 0.25  # fraction of all choices, default included, that the model keeps
MORE_SPILLED = 256  # bytes more than the choice that spills least: a few spills outside loops are free


@dataclass(frozen=True)
class BuiltChoice:
    """One choice built at the task's sizes. `code` is a digest of the launched kernels and their launches."""

    choice: Items
    code: str
    fits: bool  # every launch can be resident
    spill_bytes: int
    resident_threads: int  # on the whole GPU, of the largest launch


def built_choices(
    file: KernelFile, task: Task, gpu: GpuProfile, choices: Sequence[Choice]
) -> tuple[BuiltChoice | None, ...]:
    """Build every choice in parallel; None for one that is invalid or does not build."""
    arguments = task.arguments()
    evaluations: dict[int, Evaluation] = {}
    for number, choice in enumerate(choices):
        with contextlib.suppress(KernelFileError):  # such as a block of 2,048 threads
            evaluations[number] = evaluate(file, arguments, gpu, choice)
    asked = {number: wanted for number, one in evaluations.items() if (wanted := one.build_request()) is not None}
    builds = dict(zip(asked, build_many(list(asked.values())), strict=True))
    made: list[BuiltChoice | None] = [None] * len(choices)
    for number, evaluation in evaluations.items():
        build = builds.get(number)
        if not isinstance(build, BuildFailure):
            plan = BuiltPlan.of(evaluation, build, arguments)
            made[number] = _built(tuple(choices[number].items()), plan, gpu)
    return tuple(made)


def _built(choice: Items, plan: BuiltPlan, gpu: GpuProfile) -> BuiltChoice:
    launches, build = plan.plan.launches, plan.build
    if build is None:
        return BuiltChoice(choice, "", True, 0, 0)
    resources = [build.kernel(launch.kernel).resources for launch in launches]
    residents = [launch_occupancy(one, found, gpu) for one, found in zip(launches, resources, strict=True)]
    threads = [
        min(math.prod(launch.grid), gpu.sms * resident.blocks_per_sm) * math.prod(launch.block)
        for launch, resident in zip(launches, residents, strict=True)
    ]
    return BuiltChoice(
        choice,
        _code(build, plan),
        all(one.blocks_per_sm > 0 for one in residents),
        sum(one.spill_bytes for one in resources),
        max(threads, default=0),
    )


def _code(build: Build, plan: BuiltPlan) -> str:
    """A digest of the launched kernels' instructions, without line numbers, and of their launches."""
    module = parse_ptx(build.ptx)
    launched = {launch.symbol for launch in plan.plan.launches}
    functions = [one for one in module.functions.values() if not one.is_entry or one.name in launched]
    text = [[one.name, one.declaration, [statement.text for statement in one.statements]] for one in functions]
    scratch = [[one.name, list(one.spec.shape), one.spec.dtype.value] for one in plan.plan.buffers]
    launches = [_launch(one) if isinstance(one, PackedLaunch) else repr(one) for one in plan.plan.steps]
    return hashlib.sha256(json.dumps([build.arch, text, scratch, launches]).encode()).hexdigest()


def _launch(launch: PackedLaunch) -> list[object]:
    sizes = [launch.grid, launch.block, launch.dynamic_smem_bytes, launch.cluster, launch.cooperative, launch.pdl]
    fields = [repr(launch.pointers), repr(launch.maps), repr(launch.late)]
    return [launch.symbol, sizes, launch.block_template.hex(), fields]


def worth_timing(built: Sequence[BuiltChoice]) -> list[BuiltChoice]:
    """The default, which is first, and every other choice that may be faster."""
    default, *others = built
    fullest = max(one.resident_threads for one in built)
    least_spilled = min(one.spill_bytes for one in built)
    kept, seen = [default], {default.code}
    for one in others:
        repeats = bool(one.code) and one.code in seen
        starved = one.resident_threads < FAR_LESS * fullest
        if repeats or starved or not one.fits or one.spill_bytes > least_spilled + MORE_SPILLED:
            continue
        kept.append(one)
        seen.add(one.code)
    return kept


def promising(choices: Sequence[BuiltChoice], modelled_us: Callable[[BuiltChoice], float | None]) -> list[BuiltChoice]:
    """The default and the choices that the performance model ranks highest; unmodelled ones stay."""
    default, *others = choices
    if len(others) < FEW_CHOICES:
        return list(choices)
    scores = {one.choice: modelled_us(one) for one in others}
    known = sorted(score for score in scores.values() if score is not None)
    count = max(1, int(PROMISING * len(choices)) - 1)
    most_us = known[min(count, len(known)) - 1] if known else math.inf
    return [default, *(one for one in others if (score := scores[one.choice]) is None or score <= most_us)]


def sweep_key(built: Sequence[BuiltChoice], task: Task, gpu: GpuProfile, measured: bool) -> str:
    """The cache key of a sweep: GPU, measured or modelled, inputs, and the code of the choices."""
    inputs = {name: [spec.dtype.value, list(spec.shape), list(spec.stride)] for name, spec in task.specs().items()}
    values = [repr(one.values) for one in task.tensors]
    choices = [[list(map(list, one.choice)), one.code] for one in built]
    parts = [gpu.name, measured, inputs, values, choices]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


# -- cached sweeps --

KNOWN = Path(__file__).with_name("known_sweeps.json")
_MOST_BYTES = 16 << 20  # some thousands of sweeps


@dataclass(frozen=True)
class Sweep:
    """The choices with their times in microseconds, by round; the default is the first."""

    times_us: tuple[tuple[tuple[tuple[str, int | bool], ...], tuple[tuple[float, ...], ...]], ...]


class SweepMemory(FileCache):
    """A cache of sweeps, beside the builds by default. `known` is a read-only file."""

    def __init__(self, folder: Path | None = None, known: Path = KNOWN) -> None:
        builds = cache_directory()
        super().__init__(folder or builds.with_name(f"{builds.name}-tuned"), _MOST_BYTES)
        self._known = known

    def find(self, key: str) -> Sweep | None:
        """A cached sweep; None where there is none that can be read."""
        with contextlib.suppress(ValueError, RecordError):
            found: Sweep = from_json(Sweep, json.loads(self.read(f"{key}.json") or b""))
            return found
        return known_sweeps(self._known).get(key)

    def keep(self, key: str, sweep: Sweep) -> None:
        """A failure only means that it is measured again."""
        with contextlib.suppress(OSError):
            self.write(f"{key}.json", json.dumps(to_json(sweep)).encode())


@cache
def known_sweeps(path: Path = KNOWN) -> Mapping[str, Sweep]:
    """The sweeps that ship with the package, by key."""
    with contextlib.suppress(OSError):
        return {key: from_json(Sweep, one) for key, one in json.loads(path.read_text("utf-8")).items()}
    return {}


class InMemorySweeps(SweepMemory):
    """A cache of sweeps that lives as long as the process."""

    def __init__(self) -> None:
        super().__init__()
        self._sweeps: dict[str, Sweep] = {}

    def find(self, key: str) -> Sweep | None:
        return self._sweeps.get(key)

    def keep(self, key: str, sweep: Sweep) -> None:
        self._sweeps[key] = sweep


CHECKED = 4  # faster choices to verify before falling back to the default
RUNS_ALONE = 5  # with the default constants, before deciding whether to sweep
OUT_OF_REACH = 1.5  # times the best: no choice of constants makes up for that
_MOST_COMBINATIONS = 4096
_GOLDEN = 0.6180339887498949
_MODELLED = InMemorySweeps()

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
    """Sweep the combinations. The fastest one that verifies wins if it beats the default by more than `gain` and noise.

    The default is what the file gives without a choice and counts as verified. `answer` is the output that it was
    verified with on a GPU. `memory` caches sweeps.
    """
    swept = _swept(file, stopwatch, limit, say, memory)
    if swept is None:
        return TuneResult((), (), answer=answer)
    faster = faster_than_default(swept.timed, swept.default, gain)
    (winner, answer), refused = _winner(file, referee, (swept.default, answer), faster, say)
    scores = tuple((one.choice, one.median_us) for one in swept.timed)
    return TuneResult(scores, winner, swept.skipped, swept.failed + len(refused), refused, answer)


def slower_than(
    file: KernelFile, best_us: float, stopwatch: Stopwatch, limit: int, say: Say = lambda _: None
) -> float | None:
    """The best time of a file if it is slower than `best_us` even after tuning, else None. It need not be verified."""
    times = stopwatch.times_us(file, None, RUNS_ALONE)
    if times is None or statistics.median(times) <= best_us:
        return None
    found = [statistics.median(times)]
    if found[0] <= OUT_OF_REACH * best_us:
        swept = _swept(file, stopwatch, limit, say, None)
        found += [one.median_us for one in swept.timed] if swept is not None else []
    return min(found) if min(found) > best_us else None


@dataclass(frozen=True)
class _Swept:
    default: Items
    timed: list[TimedChoice]
    skipped: int
    failed: int


def _swept(file: KernelFile, stopwatch: Stopwatch, limit: int, say: Say, memory: SweepMemory | None) -> _Swept | None:
    """Build and time a file's choices; None where it has no `tune` values."""
    found = list(islice(combinations(file, stopwatch.task.arguments(), stopwatch.profile), _MOST_COMBINATIONS))
    tried = sampled_choices(found, limit)
    if not tried:
        return None
    say("tuning: building")
    made = built_choices(file, stopwatch.task, stopwatch.profile, tried)
    built = [one for one in made if one is not None]
    candidates = worth_timing(built) if made[0] is not None else []
    memory = memory or (SweepMemory() if stopwatch.scatters else _MODELLED)
    timed, failed = _timed(file, stopwatch, candidates, say, memory)
    skipped = len(found) - len(tried) + len(built) - len(candidates)
    return _Swept(tuple(tried[0].items()), timed, skipped, failed + len(made) - len(built))


def _timed(
    file: KernelFile, stopwatch: Stopwatch, choices: list[BuiltChoice], say: Say, memory: SweepMemory
) -> tuple[list[TimedChoice], int]:
    """Time the choices, or find their times in the cache. On a remote GPU only what the model ranks highest is
    timed."""
    if not choices or (len(choices) == 1 and stopwatch.scatters):  # a single one is measured in full right after
        return [], 0
    key = sweep_key(choices, stopwatch.task, stopwatch.profile, stopwatch.scatters)
    known = memory.find(key)
    if known is not None:
        say("tuning: timed before")
        return [TimedChoice(choice, list(rounds)) for choice, rounds in known.times_us], 0
    if stopwatch.is_far:
        say("tuning: modelling")
        choices = promising(choices, lambda one: stopwatch.modelled_us(file, dict(one.choice)))
    floor_us = stopwatch.floor_us
    with stopwatch.turn():  # without a reserved GPU its clocks change between choices
        timed, failed = successive_halving(
            [one.choice for one in choices],
            lambda choice, runs: stopwatch.times_us(file, dict(choice), runs),
            say,
            scatters=stopwatch.scatters,
            floor_us=floor_us,
        )
    if timed and not failed:
        memory.keep(key, Sweep(tuple((one.choice, one.by_round) for one in timed)))
    return timed, failed


def sampled_choices(choices: list[dict[str, int | bool]], limit: int) -> list[dict[str, int | bool]]:
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
    refused: list[RefusedChoice] = []
    for choice in faster[:CHECKED]:
        say(f"verifying {choice_words(choice)}")
        verdict = referee.judge(file, dict(choice))
        if isinstance(verdict, Passed):
            return (choice, verdict.answer), tuple(refused)
        refused.append(RefusedChoice(choice, verdict))
    return default, tuple(refused)

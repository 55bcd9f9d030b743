"""The sweep: what is left out of it, how the rest is raced, and when nothing is timed again."""

from __future__ import annotations

import random
import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from benchmarks.known_sweeps import gather
from tests.measure import kernels

from tilewright.kernel_file import Choice, KernelFile, combinations, parse
from tilewright.measure import autotune, slower_than
from tilewright.measure.autotune import (
    LONG_US,
    RUNGS,
    BuiltChoice,
    Items,
    SweepMemory,
    built_choices,
    faster_than_default,
    promising,
    successive_halving,
    worth_timing,
)
from tilewright.records import PROFILES, GpuProfile, Passed, Task

CHOICES: list[Items] = [(("A", number),) for number in range(16)]


class Noisy:
    """Sixteen choices with times of their own, drawn with a scatter; one of them fails where it is said."""

    def __init__(self, true_us: dict[int, float], scatter: float, seed: int, fails: int | None = None) -> None:
        self.runs: dict[int, int] = {}
        self._true_us, self._scatter, self._fails = true_us, scatter, fails
        self._draw = random.Random(seed)

    def __call__(self, choice: Items, runs: int) -> tuple[float, ...] | None:
        number = int(choice[0][1])
        self.runs[number] = self.runs.get(number, 0) + runs
        if number == self._fails:
            return None
        return tuple(self._true_us[number] * (1.0 + self._scatter * self._draw.random()) for _ in range(runs))


def silent(_: str) -> None: ...


@pytest.mark.parametrize("seed", range(20))
def test_a_faster_choice_is_found_among_noise_and_slow_ones_are_left_early(seed: int) -> None:
    true_us = {number: 100.0 + 3.0 * number for number in range(16)} | {9: 90.0}
    time = Noisy(true_us, 0.02, seed)
    timed, failed = successive_halving(CHOICES, time, silent, scatters=True)
    assert failed == 0
    assert faster_than_default(timed, CHOICES[0], 0.01)[0] == (("A", 9),)
    assert time.runs[9] == time.runs[0] == sum(runs for runs, _ in RUNGS)
    assert time.runs[15] == RUNGS[0][0]
    assert sum(time.runs.values()) < 0.6 * 16 * time.runs[0]


@pytest.mark.parametrize("seed", range(20))
def test_equal_choices_never_beat_the_default(seed: int) -> None:
    timed, _ = successive_halving(CHOICES, Noisy(dict.fromkeys(range(16), 100.0), 0.02, seed), silent, scatters=True)
    assert faster_than_default(timed, CHOICES[0], 0.01) == []


def test_a_gain_within_the_scatter_is_no_gain() -> None:
    """Its median is 2 % lower, yet times scatter by 20 %."""
    true_us = dict.fromkeys(range(16), 200.0) | {0: 100.0, 1: 98.0}
    found = [
        faster_than_default(
            successive_halving(CHOICES, Noisy(true_us, 0.2, seed), silent, scatters=True)[0], CHOICES[0], 0.01
        )
        for seed in range(40)
    ]
    assert sum(map(bool, found)) <= 12


def test_calls_that_take_long_are_timed_less_often() -> None:
    asked: list[tuple[Items, int]] = []

    def time(choice: Items, runs: int) -> tuple[float, ...]:
        asked.append((choice, runs))
        return (2000.0 + 100.0 * CHOICES.index(choice),) * runs

    successive_halving(CHOICES, time, silent, scatters=True, floor_us=LONG_US)
    assert [runs for _, runs in asked] == [2] * 16 + [5] * 4 + [5] * 3
    assert [choice for choice, _ in asked[-3:]] == list(CHOICES[:3])[::-1]


def test_a_choice_that_fails_is_counted_and_forgotten() -> None:
    timed, failed = successive_halving(
        CHOICES[:4], Noisy(dict.fromkeys(range(4), 1.0), 0.0, 0, fails=2), silent, scatters=True
    )
    assert failed == 1
    assert [one.choice for one in timed] == [CHOICES[0], CHOICES[1], CHOICES[3]]


def built(number: int, **changes: object) -> BuiltChoice:
    made = BuiltChoice((("A", number),), f"code {number}", True, 0, 1000)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_what_cannot_win_is_not_timed_but_the_default_is() -> None:
    spilling, fine = built(0, spill_bytes=400), built(1)
    others = [
        built(2, fits=False),
        built(3, spill_bytes=300),
        built(7, spill_bytes=128),
        built(4, resident_threads=200),
        built(5, code="code 1"),
        built(6, resident_threads=260),
    ]
    assert [one.choice[0][1] for one in worth_timing([spilling, fine, *others])] == [0, 1, 7, 6]


def test_on_a_far_gpu_the_default_and_the_models_first_quarter_are_timed() -> None:
    choices = [built(number) for number in range(24)]

    def numbers(found: list[BuiltChoice]) -> list[int]:
        return [int(one.choice[0][1]) for one in found]

    def modelled_us(one: BuiltChoice) -> float | None:
        return abs(int(one.choice[0][1]) - 11.2)

    assert numbers(promising(choices, modelled_us)) == [0, 9, 10, 11, 12, 13]
    assert numbers(promising(choices[:8], modelled_us)) == list(range(8))  # so few are timed as they are
    unknown = promising(choices, lambda one: None if one.choice[0][1] in (5, 20) else modelled_us(one))
    assert numbers(unknown) == [0, 5, 9, 10, 11, 12, 13, 20]
    assert promising(choices, lambda one: None) == choices


@dataclass
class Bench:
    """A stopwatch that counts what it times, and a referee that finds all right."""

    task: Task
    timed: list[Items] = field(default_factory=list)
    profile: GpuProfile = PROFILES["H200"]
    scatters: bool = True
    is_far: bool = False
    floor_us: float = 1.0

    def turn(self) -> AbstractContextManager[None]:
        return nullcontext()

    def times_us(self, file: KernelFile, choice: Choice | None, runs: int) -> tuple[float, ...]:
        self.timed.append(tuple((choice or {}).items()))
        return (5.0 if choice and choice["THREADS"] == 64 else 10.0,) * runs

    def judge(self, file: KernelFile, choice: Choice) -> Passed:
        return Passed(())


def swept(text: str, bench: Bench, memory: SweepMemory) -> dict[str, int | bool]:
    bench.timed.clear()
    return dict(autotune(parse(text, "k.cu"), bench, bench, 24, memory=memory).choice)  # type: ignore[arg-type]


def test_an_edit_that_leaves_the_launched_code_as_it_is_sweeps_nothing(tmp_path: Path) -> None:
    text, bench, memory = kernels.TUNED.text, Bench(kernels.scale_task()), SweepMemory(tmp_path)
    first = swept(text, bench, memory)
    assert first["THREADS"] == 64
    assert bench.timed
    commented = "// a line more\n" + text.replace("//! launch", "// and another\n//! launch", 1)
    unused = text + "\n__global__ void never_launched(float* x) { x[threadIdx.x] = 7.0f; }\n"
    for edited in (text, commented, unused):
        assert swept(edited, bench, SweepMemory(tmp_path)) == first
        assert bench.timed == []
    changed = text.replace("y[i] = 2 * x[i]", "y[i] = 3 * x[i]")
    assert changed != text
    swept(changed, bench, memory)
    assert bench.timed
    bench.profile = replace(PROFILES["H200"], name="another GPU")
    swept(text, bench, memory)
    assert bench.timed


@pytest.mark.parametrize(
    ("best_us", "slower_us", "sweeps"),
    [(10.0, None, False), (8.0, None, True), (4.9, 10.0, False), (20.0, None, False)],
)
def test_constants_are_looked_for_where_they_decide_whether_a_file_is_slower(
    best_us: float, slower_us: float | None, sweeps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes 10 us as it stands, and 5 us with other constants."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "builds"))
    bench = Bench(kernels.scale_task())
    assert slower_than(kernels.TUNED, best_us, bench, 24) == slower_us  # type: ignore[arg-type]
    assert (len(bench.timed) > 1) == sweeps


def test_a_damaged_record_is_as_good_as_none(tmp_path: Path) -> None:
    bench, memory = Bench(kernels.scale_task()), SweepMemory(tmp_path)
    swept(kernels.TUNED.text, bench, memory)
    (kept,) = tmp_path.glob("*.json")
    kept.write_text("{")
    swept(kernels.TUNED.text, bench, memory)
    assert bench.timed


def test_a_choice_that_no_gpu_takes_costs_that_choice_alone(tmp_path: Path) -> None:
    text = re.sub(r"(tune\s+THREADS = .*)", r"\1 | 2048", kernels.TUNED.text, count=1)
    assert text != kernels.TUNED.text
    bench = Bench(kernels.scale_task())
    assert swept(text, bench, SweepMemory(tmp_path))["THREADS"] == 64
    assert not any(dict(choice)["THREADS"] == 2048 for choice in bench.timed)


def test_what_comes_with_the_package_is_not_timed_again(tmp_path: Path) -> None:
    bench = Bench(kernels.scale_task())
    first = swept(kernels.TUNED.text, bench, SweepMemory(tmp_path / "there"))
    known = tmp_path / "known.json"
    gather(tmp_path / "there", known)
    assert swept(kernels.TUNED.text, bench, SweepMemory(tmp_path / "here", known)) == first
    assert bench.timed == []
    swept(kernels.TUNED.text.replace("2 * x[i]", "3 * x[i]"), bench, SweepMemory(tmp_path / "here", known))
    assert bench.timed


def test_choices_are_built_with_what_they_hold_on_the_gpu() -> None:
    task, gpu = kernels.scale_task(), PROFILES["H200"]
    choices = list(combinations(kernels.TUNED, task.arguments(), gpu))
    made = built_choices(kernels.TUNED, task, gpu, choices)
    assert all(one is not None and one.fits and one.resident_threads > 0 for one in made)
    assert len({one.code for one in made if one is not None}) == len(choices)

"""The corpus: wrong kernels are rejected, each for the right reason, and unusual honest ones are accepted.

A dozen of each kind are judged here; the whole of it, honest ones with twenty sets of values, and the mutants are slow.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
from benchmarks.harness_table import RULES, Compared, accepts, compare_file
from tests.verify.corpus.court import Court, Row
from tests.verify.corpus.entries import FOLDER, HONEST, WRONG, Entry, load
from tests.verify.corpus.mutants import HOPPER, KERNELS, judge_mutants, mutants_of
from tests.verify.corpus.run import Job, judge_jobs, summary

ENTRIES = {one.name: one for one in load()}
QUICK = (
    "base_softmax",
    "softmax_exp2_prescaled",
    "softmax_two_launches_scratch",
    "dist_softmax_no_max",
    "dist_softmax_max_init_zero",
    "inf_softmax_online_minus_inf",
    "race_missing_barrier",
    "state_device_variable",
    "tol_bias_1e-6",
    "time_no_launch_at_own_size",
    "own_size_no_max_flag",
    "mem_scratch_assumed_zero",
    "counter_left_behind",
    "count_in_bytes",
    "nan_bounds_by_fminf",
    "quotient_fast",
    "between_softmax_cols",
    "tail_3_of_4_softmax",
    "ignored_target_cross_entropy",
    "picked_half_plain",
    "best_thirds_last_of_ties",
)
SEEDS = 20
_WORKERS = max((os.cpu_count() or 2) - 1, 1)


@pytest.fixture(scope="module")
def court() -> Iterator[Court]:
    with Court() as made:
        yield made


def test_every_file_has_its_line_and_its_task() -> None:
    for side in (WRONG, HONEST):
        names = [one.name for one in load(side)]
        assert len(set(names)) == len(names)
        assert {path.stem for path in (FOLDER / side).glob("*.cu")} == set(names)
    assert {path.name for path in (FOLDER / "tasks").iterdir()} == {one.task for one in ENTRIES.values()}
    assert all(one.reasons for one in load(WRONG))
    assert not any(one.reasons for one in load(HONEST))


def test_it_is_as_large_as_it_is_said_to_be() -> None:
    assert len(load(WRONG)) >= 200
    assert len(load(HONEST)) >= 90
    assert len({one.task for one in load(WRONG)}) >= 60
    assert len({one.kind for one in load(WRONG)}) >= 15


@pytest.mark.parametrize("name", QUICK)
def test_quick_part(court: Court, name: str) -> None:
    assert_as_expected([court.judge(ENTRIES[name])])


def test_mutants_are_the_same_every_time_and_differ_from_their_original() -> None:
    for kernel in KERNELS:
        text = ENTRIES[kernel].text
        made = mutants_of(kernel, text)
        assert made == mutants_of(kernel, text)
        assert len(made) >= 8
        assert len({one.text for one in made} | {text}) == len(made) + 1


def test_rules_of_other_harnesses() -> None:
    """Plain values do not show a maximum that is left out."""
    sizes = [{"rows": 3, "cols": 37}, {"rows": 1, "cols": 37}]
    for name in ("base_softmax", "dist_softmax_no_max"):
        compared = compare_file(ENTRIES[name], "cpu", sizes)
        assert all(accepts(rule, compared) for rule in RULES), compared
    first = Compared(trial=0, shape=0, call=0, output=0, itemsize=4, needed=5e-4)
    loose = {"CuTeGen", "CudaForge", "KernelAgent"}
    assert {rule.name for rule in RULES if accepts(rule, [first])} == loose
    assert {rule.name for rule in RULES if accepts(rule, [replace(first, itemsize=2)])} == {*loose, "KernelBench"}
    second = replace(first, output=1, needed=1.0)
    assert {rule.name for rule in RULES if accepts(rule, [first, second])} == {"CudaForge"}
    assert not any(accepts(rule, []) for rule in RULES)


@pytest.mark.slow
@pytest.mark.parametrize("side", [WRONG, HONEST])
def test_whole_corpus(side: str) -> None:
    assert_as_expected(judged(load(side)))


@pytest.mark.slow
def test_honest_kernels_are_accepted_whatever_the_seed() -> None:
    assert_as_expected(judged(load(HONEST), SEEDS))


@pytest.mark.slow
def test_mutants_are_rejected() -> None:
    done = judge_mutants(KERNELS, ("emulator",), _WORKERS, lambda row: None)
    assert len(done.killed) >= 150
    assert not done.alive, [f"{row.name}: {row.verdict}" for row in done.alive]


@pytest.mark.slow
def test_mutants_of_kernels_for_hopper_are_rejected() -> None:
    """Of those whose original is vouched for without a GPU all, of the others none is vouched for."""
    done = judge_mutants(HOPPER, ("emulator",), _WORKERS, lambda row: None)
    assert len(done.killed) >= 25
    assert not done.alive, [f"{row.name}: {row.verdict}" for row in done.alive]


def judged(entries: tuple[Entry, ...], seeds: int = 1) -> list[Row]:
    known = {one.name: one for one in entries}
    jobs = [Job(name, "emulator", seed) for name in known for seed in range(seeds)]
    return judge_jobs(jobs, known, _WORKERS, lambda row: None)


def assert_as_expected(rows: list[Row]) -> None:
    assert rows
    missed = [row for row in rows if not row.for_the_right_reason and not ENTRIES[row.name].open]
    assert not missed, "\n".join(summary(missed, 0.0))

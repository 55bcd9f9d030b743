"""Every example in the emulator with every check: right by the examples' own yardstick, and nothing reported, in order
and over random schedules.

The quick set takes the smallest calls of each case; the slow one everything that is not large, and CuTe.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from tests.examples.agreement import disagreement
from tests.examples.all_cases import CASES
from tests.examples.cases import Arguments, Call, Case
from tests.ptx.harness import A100, Outcome, Prepared, prepare_first, shown

from tilewright.kernel_file import KernelFile, parse
from tilewright.ptx.launching import LaunchOptions
from tilewright.records import PROFILES

H200 = PROFILES["H200"]
CPU, META = torch.device("cpu"), torch.device("meta")
EMULATED = [case for case in CASES if case.runs_on(A100.cc)]
HOPPER = [case for case in CASES if case not in EMULATED and case.runs_on(H200.cc)]
PLAIN = [case for case in EMULATED if not case.slow_build]
QUICK_CALLS = 3
QUICK_ELEMENTS = 80_000
QUICK_SCHEDULES = 5
SLOW_ELEMENTS = 400_000
QUICK_ON_HOPPER = ("matmul_wgmma_tma", "cluster_softmax")
SCHEDULES = 20


@cache
def _files(case: Case) -> list[KernelFile]:
    return [parse(path.read_text(), path.name, allow_library=case.library) for path in case.paths()]


def _elements(call: Call) -> int:
    return sum(argument.numel() for argument in call.make(META) if isinstance(argument, torch.Tensor))


def _calls(case: Case, most_elements: int) -> list[Call]:
    """The calls that are small enough, the ones with most to do first."""
    sized = [(_elements(call), call) for call in case.calls]
    return [call for elements, call in sorted(sized, key=lambda pair: -pair[0]) if elements <= most_elements]


def _few(case: Case) -> list[Call]:
    """Some of the small calls, spread from the largest to the smallest."""
    calls = _calls(case, QUICK_ELEMENTS)
    return [calls[i * len(calls) // QUICK_CALLS] for i in range(min(QUICK_CALLS, len(calls)))]


def _pairs(calls: dict[Case, list[Call]]) -> list[object]:
    return [pytest.param(case, call, id=f"{case.name}-{call.label}") for case in calls for call in calls[case]]


def _prepare(case: Case, call: Call) -> tuple[Prepared, Arguments]:
    arguments = call.make(CPU)
    return prepare_first(_files(case), arguments, H200 if case in HOPPER else A100), arguments


def _check(case: Case, arguments: Arguments, outcome: Outcome, what: str) -> None:
    assert not outcome.findings, f"{what}:\n{shown(outcome.findings)}"
    assert not outcome.incomplete, f"{what}: {outcome.incomplete}"
    assert outcome.completed, what
    assert outcome.counters_left == (), what
    assert outcome.unwritten == (), what
    wrong = disagreement(case, arguments, outcome.results)
    assert wrong is None, f"{what}: {wrong}"


def _check_schedules(case: Case, call: Call, seeds: range) -> None:
    prepared, arguments = _prepare(case, call)
    for seed in seeds:
        outcome = prepared.run(LaunchOptions(seed=seed, workers=1))
        _check(case, arguments, outcome, f"{call.label}, schedule {seed}")


@pytest.mark.parametrize(("case", "call"), _pairs({case: _few(case) for case in PLAIN}))
def test_it_is_right_and_clean(case: Case, call: Call) -> None:
    prepared, arguments = _prepare(case, call)
    for seed in (None, 1):
        outcome = prepared.run(LaunchOptions(seed=seed, workers=1))
        _check(case, arguments, outcome, f"{call.label}, schedule {seed}")


@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case.name)
def test_it_is_clean_over_some_schedules(case: Case) -> None:
    """Of the small calls, the one with most to do."""
    _check_schedules(case, _calls(case, QUICK_ELEMENTS)[0], range(QUICK_SCHEDULES))


@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case.name)
def test_two_workers_agree_with_one(case: Case) -> None:
    call = _calls(case, QUICK_ELEMENTS)[0]
    prepared, arguments = _prepare(case, call)
    for workers in (1, 2):
        outcome = prepared.run(LaunchOptions(workers=workers))
        _check(case, arguments, outcome, f"{call.label}, {workers} workers")


@pytest.mark.slow
@pytest.mark.parametrize(("case", "call"), _pairs({case: _calls(case, SLOW_ELEMENTS) for case in PLAIN}))
def test_it_is_clean_over_many_schedules_at_every_size(case: Case, call: Call) -> None:
    few = _elements(call) > QUICK_ELEMENTS
    _check_schedules(case, call, range(2 if few else SCHEDULES))


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in EMULATED if case.slow_build], ids=lambda case: case.name)
def test_cute_is_clean_over_many_schedules(case: Case) -> None:
    for call in _calls(case, SLOW_ELEMENTS):
        few = _elements(call) > 100_000
        _check_schedules(case, call, range(2 if few else SCHEDULES))


@pytest.mark.parametrize("case", [case for case in HOPPER if case.name in QUICK_ON_HOPPER], ids=lambda case: case.name)
def test_it_is_right_and_clean_on_hopper(case: Case) -> None:
    _check_schedules(case, _calls(case, QUICK_ELEMENTS)[-1], range(1))


@pytest.mark.slow
@pytest.mark.parametrize("case", HOPPER, ids=lambda case: case.name)
def test_it_is_clean_over_many_schedules_on_hopper(case: Case) -> None:
    for call in _calls(case, SLOW_ELEMENTS):
        _check_schedules(case, call, range(2 if _elements(call) > QUICK_ELEMENTS else SCHEDULES // 2))


def test_every_example_for_this_gpu_is_here() -> None:
    for case in PLAIN:
        assert _calls(case, QUICK_ELEMENTS), f"{case.name} has no small call"

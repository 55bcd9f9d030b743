"""Every example parses, evaluates at its cases' shapes, builds for the GPUs it is for, and binds. No GPU is needed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tilewright.kernel_file import Choice, DoesNotApply, Evaluation, KernelFile, bind, evaluate, parse
from tilewright.records import PROFILES, TYPICAL, Build, BuildRequest, GpuProfile
from tilewright.runtime.specs import spec_of
from tilewright.toolchain import build

from .all_cases import CASES
from .cases import EXAMPLES, Call, Case, single_choices

META = torch.device("meta")
QUICK = [case for case in CASES if not case.slow_build]
SLOW = [case for case in CASES if case.slow_build]
GPUS = [PROFILES["A100"], PROFILES["H200"]]
OTHER_GPUS = [gpu for arch, gpu in TYPICAL.items() if arch not in ("sm_80", "sm_90a")]


def _files(case: Case) -> list[KernelFile]:
    return [parse(path.read_text(), path.name, allow_library=case.library) for path in case.paths()]


def _evaluate(files: list[KernelFile], call: Call, gpu: GpuProfile, choice: Choice | None = None) -> Evaluation | None:
    """The first file that takes the call, evaluated; None where none does."""
    values = call.make(META)
    for file in files:
        parameters = file.plan.op.parameters
        arguments = {
            parameter.name: spec_of(value) if isinstance(value, torch.Tensor) else value
            for parameter, value in zip(parameters, values, strict=False)
        }
        try:
            return evaluate(file, arguments, gpu, choice)
        except DoesNotApply:
            continue
    return None


def _evaluations(case: Case, gpu: GpuProfile) -> dict[str, Evaluation]:
    files = _files(case)
    found = {call.label: _evaluate(files, call, gpu) for call in case.calls}
    return {label: evaluation for label, evaluation in found.items() if evaluation is not None}


def _builds(evaluations: dict[str, Evaluation], arch: str) -> dict[str, Build]:
    """The build of each evaluation. Calls that differ in kernels alone, by dtype say, share one translation unit."""
    together: dict[BuildRequest, list[str]] = defaultdict(list)
    kernels: dict[BuildRequest, dict[str, None]] = defaultdict(dict)
    for label, evaluation in evaluations.items():
        request = evaluation.build_request()
        if request is None:
            continue
        unit = replace(request, kernels=())
        together[unit].append(label)
        kernels[unit].update(dict.fromkeys(request.kernels))
    builds: dict[str, Build] = {}
    for unit, labels in together.items():
        result = build(replace(unit, kernels=tuple(kernels[unit])), isolated=False)
        assert isinstance(result, Build), f"{unit.name} with {unit.constants} for {arch}: {result}"
        builds.update(dict.fromkeys(labels, result))
    return builds


def _check_builds(case: Case, gpu: GpuProfile) -> None:
    evaluations = _evaluations(case, gpu)
    builds = _builds(evaluations, gpu.arch)
    assert builds, f"no call of {case.name} launches anything on {gpu.name}"
    for label, result in builds.items():
        plan = bind(evaluations[label], result, gpu)
        assert len(plan.steps) == len(evaluations[label].steps), label
    for result in {result.key: result for result in builds.values()}.values():
        assert not result.warnings, [str(warning) for warning in result.warnings]
        for kernel in result.kernels:
            resources = kernel.resources
            spills = resources.spill_store_bytes + resources.spill_load_bytes
            assert spills == 0, f"{kernel.expression} spills {spills} bytes for {gpu.arch}"


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.arch)
@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_it_builds_and_binds(case: Case, gpu: GpuProfile) -> None:
    if not case.runs_on(gpu.cc):
        assert _evaluations(case, gpu) == {}, f"{case.name} takes calls on {gpu.name}, which it is not for"
        return
    _check_builds(case, gpu)


@pytest.mark.slow
@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.arch)
@pytest.mark.parametrize("case", SLOW, ids=lambda case: case.name)
def test_it_builds_and_binds_slowly(case: Case, gpu: GpuProfile) -> None:
    if not case.runs_on(gpu.cc):
        assert _evaluations(case, gpu) == {}, f"{case.name} takes calls on {gpu.name}, which it is not for"
        return
    _check_builds(case, gpu)


@pytest.mark.slow
@pytest.mark.parametrize("gpu", OTHER_GPUS, ids=lambda gpu: gpu.arch)
@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_it_builds_for_every_other_architecture(case: Case, gpu: GpuProfile) -> None:
    if not case.runs_on(gpu.cc):
        assert _evaluations(case, gpu) == {}, f"{case.name} takes calls on {gpu.name}, which it is not for"
        return
    _check_builds(case, gpu)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({file for case in QUICK for file in case.files}))
def test_every_choice_of_the_tuner_builds(name: str) -> None:
    """With the first call that takes it; a choice that no call takes would be dead text."""
    cases = [case for case in QUICK if name in case.files]
    gpu = next(gpu for gpu in reversed(GPUS) if cases[0].runs_on(gpu.cc))
    file = parse((EXAMPLES / name).read_text(), name)
    calls = [call for case in cases for call in case.calls]
    for tune, value in single_choices(file):
        evaluations = (_evaluate([file], call, gpu, {tune: value}) for call in calls)
        taken = next((evaluation for evaluation in evaluations if evaluation and evaluation.steps), None)
        assert taken is not None, f"no call takes {name} with {tune} = {value}"
        bind(taken, _builds({"": taken}, gpu.arch)[""], gpu)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_takes_its_calls_and_refuses_the_others(case: Case) -> None:
    gpus = [gpu for gpu in GPUS if case.runs_on(gpu.cc)]
    assert gpus, f"{case.name} runs on neither {' nor '.join(gpu.name for gpu in GPUS)}"
    files = _files(case)
    for call in case.calls:
        assert _evaluate(files, call, gpus[-1]) is not None, f"{call.label} is refused on {gpus[-1].name}"
    for gpu in gpus:
        for call in case.refused:
            assert _evaluate(files, call, gpu) is None, f"{call.label} is taken on {gpu.name}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_file_of_a_case_is_used(case: Case) -> None:
    gpu = next(gpu for gpu in reversed(GPUS) if case.runs_on(gpu.cc))
    used = {evaluation.file.name for evaluation in _evaluations(case, gpu).values()}
    assert used == set(case.files)


def test_every_example_has_a_case() -> None:
    with_case = {file for case in CASES for file in case.files}
    assert {path.name for path in EXAMPLES.glob("*.cu")} == with_case


def test_case_names_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.cu")), ids=lambda path: path.name)
class TestStyle:
    """A file is named for its op, explains itself above its plan, and keeps to the width of a page."""

    def test_its_name_contains_its_op(self, path: Path) -> None:
        file = parse(path.read_text(), path.name)
        assert f"_{file.plan.op.name}_" in f"_{path.stem}_"

    def test_it_opens_with_an_explanation(self, path: Path) -> None:
        lines = path.read_text().splitlines()
        before = lines[: next(i for i, line in enumerate(lines) if line.startswith("//!"))]
        assert sum(line.startswith("// ") for line in before) >= 3

    def test_its_lines_fit(self, path: Path) -> None:
        text = path.read_text()
        assert text.isascii()
        assert text.endswith("\n")
        long = [i for i, line in enumerate(text.splitlines(), 1) if len(line) > 160 or line != line.rstrip()]
        assert long == []

"""The choices of a sweep, built: which are worth timing, and what makes a sweep the same sweep.

A choice is left out where its kernels cannot be resident, where they spill and others do not, where they fill the GPU
far less than others, or where it comes to the very code and launches of an earlier one. The default always stays.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.kernel_file import Choice, Evaluation, KernelFile, KernelFileError, evaluate
from tilewright.records import Build, BuildFailure, GpuProfile, PackedLaunch, Task
from tilewright.toolchain import BuiltPlan, build_many, launch_occupancy
from tilewright.toolchain.ptx_text import parse_ptx

FAR_LESS = 0.25  # of the threads that the fullest choice has on the GPU at once
FEW_CHOICES = 8  # beside the default: so many are timed without asking the model
PROMISING = 0.25  # of all choices, the default among them
MORE_SPILLED = 256  # bytes beyond the choice that spills least: a few outside of loops cost nothing

Items = tuple[tuple[str, int | bool], ...]


@dataclass(frozen=True)
class BuiltChoice:
    """One choice as it would run at the task's sizes. `code`: of the kernels it launches, and of how it does."""

    choice: Items
    code: str
    fits: bool  # every launch can be resident
    spill_bytes: int
    resident_threads: int  # at once on the whole GPU, of its largest launch


def built_choices(
    file: KernelFile, task: Task, gpu: GpuProfile, choices: Sequence[Choice]
) -> tuple[BuiltChoice | None, ...]:
    """Every choice built, on all cores at once; None for one that no GPU takes or that does not build."""
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
    """A digest of what runs: the launched kernels' instructions without line numbers, and their launches."""
    module = parse_ptx(build.ptx)
    launched = {launch.symbol for launch in plan.plan.launches}
    functions = [one for one in module.functions.values() if not one.is_entry or one.name in launched]
    text = [[one.name, one.declaration, [statement.text for statement in one.statements]] for one in functions]
    scratch = [[one.name, list(one.spec.shape), one.spec.dtype.value] for one in plan.plan.buffers]
    launches = [_launch(one) if isinstance(one, PackedLaunch) else repr(one) for one in plan.plan.steps]
    return hashlib.sha256(json.dumps([build.arch, text, scratch, launches]).encode()).hexdigest()


def _launch(launch: PackedLaunch) -> list[object]:
    """All of a launch but the line it stands on."""
    sizes = [launch.grid, launch.block, launch.dynamic_smem_bytes, launch.cluster, launch.cooperative, launch.pdl]
    fields = [repr(launch.pointers), repr(launch.maps), repr(launch.late)]
    return [launch.symbol, sizes, launch.block_template.hex(), fields]


def worth_timing(built: Sequence[BuiltChoice]) -> list[BuiltChoice]:
    """The default, which is the first, and those of the others that may be faster."""
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
    """The default, and of the others the part that a model puts first; what it knows nothing of stays."""
    default, *others = choices
    if len(others) < FEW_CHOICES:
        return list(choices)
    scores = {one.choice: modelled_us(one) for one in others}
    known = sorted(score for score in scores.values() if score is not None)
    count = max(1, int(PROMISING * len(choices)) - 1)
    most_us = known[min(count, len(known)) - 1] if known else math.inf
    return [default, *(one for one in others if (score := scores[one.choice]) is None or score <= most_us)]


def sweep_key(built: Sequence[BuiltChoice], task: Task, gpu: GpuProfile, measured: bool) -> str:
    """By what a sweep is known again: the code of its choices, the inputs, the GPU, and whether times are measured."""
    inputs = {name: [spec.dtype.value, list(spec.shape), list(spec.stride)] for name, spec in task.specs().items()}
    values = [repr(one.values) for one in task.tensors]
    choices = [[list(map(list, one.choice)), one.code] for one in built]
    parts = [gpu.name, measured, inputs, values, choices]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

"""Where the task's own call writes and reads, for all of its blocks: followed at full size without values.

An element of a result that nothing writes rejects the candidate, as does an access outside every tensor, and an input
that every result needs and of which little is read. Elements that two threads write are run with their values.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from tilewright import records
from tilewright.devices.protocol import Device
from tilewright.records import (
    Case,
    Check,
    Crashed,
    Emulation,
    FindingKind,
    FollowedAddresses,
    Impossible,
    InputTensor,
    Integers,
)
from tilewright.verify.block_sample import OWN_SEED, SampleSizes, drawn_sizes, elements, sample_inputs, seed_of
from tilewright.verify.candidate import Candidate
from tilewright.verify.distributions import seeded

_BUDGET = 40_000_000_000  # thread instructions of the slices
_SECONDS = 120.0
_MOST_ELEMENTS = 32 << 20  # of inputs that are drawn where addresses depend on them
_READ = 0.9  # of an input that every tested element of must be read
_MOST_PAIRS = 3
_PAIR_BUDGET = 400_000_000
_RACES = (FindingKind.RACE_GLOBAL, FindingKind.RACE_SHARED)

Followed = dict[str, FollowedAddresses]  # by what decides them, for attempts that launch the same


def follow_own_call(
    candidate: Candidate, device: Device, independent: tuple[str, ...], known: Followed
) -> FollowedAddresses:
    task = candidate.task
    nothing = tuple(InputTensor(name, spec, Integers(1, 0, 1)) for name, spec in task.specs().items())
    job = candidate.emulated_job(Case(task.sizes, OWN_SEED), device.profile, nothing)
    if job is None or not job.plan.launches:
        return FollowedAddresses("nothing is launched there")
    key = hashlib.sha256(repr((job.ptx, job.plan, job.arch)).encode()).hexdigest()
    if key not in known:
        known[key] = _followed(candidate, device, independent, job)
    return known[key]


def _followed(
    candidate: Candidate, device: Device, independent: tuple[str, ...], job: records.Job
) -> FollowedAddresses:
    task, given, specs, too_many = candidate.task, dict[str, InputTensor](), candidate.task.specs(), ""
    while True:
        unknown = tuple(one.name for one in job.inputs if one.name not in given)
        how = Emulation(
            addresses=True,
            unknown=unknown,
            assumed=bool(too_many),
            instruction_budget=_BUDGET,
            seed=seed_of(task, candidate.file.text),
        )
        inputs = tuple(given.get(one.name, one) for one in job.inputs)
        limits = replace(job.limits, seconds=_SECONDS)
        execution = candidate.execute(device, replace(job, inputs=inputs, emulation=how, limits=limits))
        if not isinstance(execution, records.Completed) or execution.addresses is None:
            message = execution.message if isinstance(execution, records.Faulted) else "they were not returned"
            return FollowedAddresses(message)
        found = execution.addresses
        needed = [name for name in found.needs if name not in given]
        if needed and too_many:
            return FollowedAddresses(f"they depend on the values of {too_many}, which are too many to draw")
        if not needed:
            return found if found.followed else replace(found, reason=str(found).removeprefix("not followed: "))
        whole = {
            one.name: InputTensor(one.name, specs[one.name], _content(task, one))
            for one in task.tensors
            if one.name in needed and specs[one.name].numel <= _MOST_ELEMENTS
        }
        if whole:
            given |= whole
            continue
        sizes = SampleSizes(task.sizes, drawn_sizes(task, task.sizes, independent))
        if elements(task, sizes.drawn) > _MOST_ELEMENTS:
            too_many = needed[0]
            continue
        drawn = sample_inputs(task, sizes.called, Case(sizes.drawn, OWN_SEED))
        given |= {one.name: one for one in drawn if one.name in needed}


def _content(task: records.Task, one: records.TensorInput) -> records.Content:
    return seeded(one, task.sizes, OWN_SEED + task.tensors.index(one))


def refuted(candidate: Candidate, followed: FollowedAddresses, needed: tuple[str, ...]) -> records.Evidence | None:
    """What the addresses prove wrong."""
    if not followed.followed:
        return None
    case = Case(candidate.task.sizes, OWN_SEED)
    if followed.findings:
        return crashed(candidate, case, followed.findings)
    for one in followed.read:
        if one.name in needed and one.touched < _READ * one.elements:
            share = "nothing" if not one.touched else f"{100 * one.touched / one.elements:.3g} %"
            first = "" if one.first_left is None else f", not {one.name}[{', '.join(map(str, one.first_left))}]"
            message = f"{one.name} must be read whole: of its {one.elements:,} elements all blocks read {share}{first}"
            return Impossible(message, float(one.touched), float(one.elements), "elements")
    return None


def unread(followed: FollowedAddresses, needed: tuple[str, ...]) -> str:
    """That elements of an input which every result needs are read by nothing, a clause; "" where all are read.

    Every tested element of such an input changes a result. Others may not, so this leaves a doubt and proves nothing.
    """
    for one in followed.read if not followed.reads_left else ():
        if one.name in needed and not one.whole:
            first = "" if one.first_left is None else f", such as {one.name}[{', '.join(map(str, one.first_left))}]"
            return f"{one.elements - one.touched:,} elements of {one.name} are never read{first}"
    return ""


def crashed(candidate: Candidate, case: Case, findings: tuple[records.FindingRecord, ...]) -> Crashed:
    lines = candidate.file.text.splitlines()
    named = sorted({one for found in findings for one in (found.line, found.launch_line) if one})
    shown = tuple((one, lines[one - 1]) for one in named if 0 < one <= len(lines))
    first = findings[0]
    return Crashed(case, None, str(first), first.kernel, first.line, findings, shown)


def written_twice(
    candidate: Candidate, device: Device, followed: FollowedAddresses, independent: tuple[str, ...]
) -> tuple[Crashed | None, str]:
    """The race of blocks that write the same elements, run with their values; or why that is unknown, a clause."""
    task = candidate.task
    drawn = drawn_sizes(task, task.sizes, independent)
    inputs = sample_inputs(task, task.sizes, Case(drawn, OWN_SEED)) if elements(task, drawn) <= _MOST_ELEMENTS else ()
    job = candidate.emulated_job(Case(task.sizes, OWN_SEED), device.profile, inputs) if inputs else None
    for one in followed.twice[:_MOST_PAIRS]:
        place = f"{one.name}[{', '.join(map(str, one.index))}]"
        unknown = f"two threads write {place}, and whether they write the same could not be seen"
        if job is None or any(launch.cooperative for launch in job.plan.launches):
            return None, unknown
        blocks = tuple(
            tuple(sorted(set(one.blocks))) if number == one.launch else (0,) for number in range(len(job.plan.launches))
        )
        checks = (Check.UNINITIALISED, Check.RACES, Check.WARP)
        how = Emulation(checks, instruction_budget=_PAIR_BUDGET, sampled_blocks=2, chosen_blocks=blocks)
        steps = tuple(job.plan.launches)
        execution = candidate.execute(
            device, replace(job, plan=replace(job.plan, steps=steps), emulation=how, returns=())
        )
        races = tuple(found for found in execution.findings if found.kind in _RACES)
        if races:
            return crashed(candidate, Case(candidate.task.sizes, OWN_SEED), races), ""
        if not isinstance(execution, records.Completed):
            return None, unknown
    return None, ""

"""Run a few blocks of every launch at the task's own sizes: what they execute and what they write.

Grid, builds and tensors are those of the full-size call, but only some blocks run: one of each way through the slice
of its addresses, the last one, and others drawn at random. Inputs are drawn at fewer indices of the reference's
independent dimensions and repeated, so that the reference is needed at those indices only. A launch's output is judged
if it reads only inputs and results, and no other launch touches those results.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from random import Random

from tilewright import records
from tilewright.devices.emulation.input_content import row_major
from tilewright.devices.protocol import Device
from tilewright.records import (
    BufferRole,
    Case,
    Clearing,
    FaultKind,
    FollowedAddresses,
    InputTensor,
    PackedLaunch,
    Task,
    WrittenPart,
)
from tilewright.verify.candidate import Candidate
from tilewright.verify.case_work import Sizes, bytes_of
from tilewright.verify.code_constants import blocks_named
from tilewright.verify.distributions import draw_inputs

OWN_SEED = 401
_REPEATED = 61  # indices drawn of an independent dimension: a prime, so that no stride of a kernel repeats one
_LEAST_REPEATED = 3
_FEW_ELEMENTS = 2 << 20  # to draw, as far as fewer indices of independent dimensions achieve it
_MOST_ELEMENTS = 48 << 20
_MOST_BYTES = 768 << 20  # of inputs; beyond, independent dimensions are halved where the plan stays the same
_WRITTEN_ELEMENTS = 1 << 20  # of an output that are returned
_SAMPLES = ((8, 80_000_000), (4, 200_000_000), (1, 400_000_000))
_FEW_SAMPLES = ((2, 80_000_000), (1, 200_000_000))  # again with other values
_ALL_BLOCKS = ((None, 400_000_000),)
_WHOLE = 300_000_000  # affordable thread instructions of all blocks together
_ONLY_WHOLE = 4_000_000_000  # where a few blocks determine no result
_BY_TICKETS = 1_000_000_000  # where besides a block takes tiles until none are left, so that a few do not tell
_WHOLE_SECONDS = 60.0
_SECONDS = 20.0
_FEW_BLOCKS = 8
_MOST_PATHS = 16
_CHECKS = (records.Check.UNINITIALISED, records.Check.WARP, records.Check.COVERAGE)
_TICKETS = re.compile(r"\batom\.(?!shared|async)")
_GLOBAL_ATOMICS = re.compile(r"\b(?:atom|red)\.(?!shared|async)")
_RAN_OUT = (FaultKind.STOPPED, FaultKind.TIME, FaultKind.MEMORY)


_Sample = tuple[int | None, int]  # (blocks of a launch or None for all, budget of thread instructions)


@dataclass(frozen=True)
class SampleSizes:
    """Sizes of the sampled call, and those at which its inputs were drawn: fewer in independent dimensions."""

    called: Sizes
    drawn: Sizes

    def periods(self, task: Task) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """For each result, the period along each axis with which its inputs repeat, and so must it."""
        repeated = {name: size for name, size in self.drawn.items() if size < self.called[name]}
        return tuple((one.name, tuple(repeated.get(str(axis), 0) for axis in one.shape)) for one in task.outputs)

    def are_judged(self, independent: tuple[str, ...]) -> bool:
        """Whether the reference can compute the results for such inputs."""
        return all(size == self.drawn[name] for name, size in self.called.items() if name not in independent)


@dataclass(frozen=True)
class BlockSample:
    """What sampled blocks did."""

    sizes: SampleSizes
    execution: records.Execution
    settled: tuple[str, ...]  # results that depend on no other blocks
    blocks: int | None  # blocks run of each launch; None: all
    whole: bool  # all results are of that kind, or all blocks ran: findings and coverage count
    by_few: bool = False  # whether there are results that a few blocks determine

    @property
    def coverage(self) -> tuple[records.CoverageRecord, ...]:
        return self.execution.emulated.coverage if self.execution.emulated is not None else ()

    @property
    def written(self) -> tuple[WrittenPart, ...]:
        if not isinstance(self.execution, records.Completed) or self.execution.emulated is None:
            return ()
        return tuple(part for part in self.execution.emulated.written if part.name in self.settled)


@dataclass(frozen=True)
class NotSampled:
    message: str


def sample_blocks(
    candidate: Candidate, device: Device, independent: tuple[str, ...], followed: FollowedAddresses | None = None
) -> BlockSample | NotSampled:
    """Run as much of the full-size call as is affordable."""
    task = candidate.task
    own = candidate.emulated_job(Case(task.sizes, OWN_SEED), device.profile, ())
    if own is None or not own.plan.launches:
        return NotSampled("nothing is launched there")
    sizes, job = _near(candidate, device, own, independent)
    drawn = drawn_sizes(task, sizes, independent)
    held = _held_bytes(task, sizes, drawn)
    if held > 2 * _MOST_BYTES or elements(task, drawn) > _MOST_ELEMENTS:
        return NotSampled(f"its tensors take {bytes_of(task, sizes) / 1e6:,.0f} MB")
    grids = [launch.grid for launch in job.plan.launches]
    same = followed if grids == [launch.grid for launch in own.plan.launches] else None
    both = SampleSizes(sizes, drawn)
    judged = both.are_judged(independent)
    return _sampled(candidate, device, job, both, Case(drawn, OWN_SEED), followed=same, judged=judged)


def resample_blocks(candidate: Candidate, device: Device, first: BlockSample, values: str) -> BlockSample | NotSampled:
    """Run part of the same call with other values: all blocks where fewer determine nothing."""
    sizes = first.sizes
    job = candidate.emulated_job(Case(sizes.called, OWN_SEED, values), device.profile, ())
    if job is None or not job.plan.launches:
        return NotSampled("it is not taken with such values")
    samples = _FEW_SAMPLES if first.by_few or first.blocks is not None else _ALL_BLOCKS
    return _sampled(candidate, device, job, sizes, Case(sizes.drawn, OWN_SEED, values), samples)


def _sampled(
    candidate: Candidate,
    device: Device,
    job: records.Job,
    sizes: SampleSizes,
    case: Case,
    only: tuple[_Sample, ...] | None = None,
    followed: FollowedAddresses | None = None,
    judged: bool = False,
) -> BlockSample | NotSampled:
    """Run some blocks, in the first of the given samples that is affordable. `judged`: results can be judged, so that
    all blocks are worth more where a few determine nothing."""
    inputs = sample_inputs(candidate.task, sizes.called, case)
    job = replace(job, inputs=inputs, limits=replace(job.limits, seconds=_SECONDS), returns=())
    launches = job.plan.launches
    waits = any(launch.cooperative for launch in launches)
    in_place = any(one.in_place for one in candidate.task.tensors)  # whose old values are lost
    alone = () if in_place else _settled(candidate.task, job)
    launched = replace(job, plan=replace(job.plan, steps=tuple(launches)))  # library calls are slow at these sizes
    complete = len(launches) == len(job.plan.steps) and not in_place
    samples = list(_ALL_BLOCKS if waits else only or _SAMPLES)
    found: BlockSample | NotSampled = NotSampled("")
    while samples:
        blocks, budget = samples.pop(0)
        how = records.Emulation(
            _CHECKS,
            instruction_budget=budget,
            sampled_blocks=blocks,
            chosen_blocks=() if blocks is None else chosen_blocks(candidate, followed, launches, blocks, job.ptx or ""),
            written_elements=_WRITTEN_ELEMENTS,
            written_periods=sizes.periods(candidate.task),
        )
        execution = candidate.execute(device, replace(launched, emulation=how))
        if isinstance(execution, records.Faulted) and execution.kind in (*_RAN_OUT, FaultKind.UNSUITABLE):
            if isinstance(found, NotSampled):
                # What ran until then counts: a persistent block processes rows until none are left.
                ran = execution.emulated
                done = records.Completed(execution.job, execution.device, (), (), ran)
                partly = ran is not None and bool(ran.coverage)
                found = BlockSample(sizes, done, (), 0, False) if partly else NotSampled(execution.message)
            continue
        everything = blocks is None or all(math.prod(launch.grid) <= blocks for launch in launches)
        if everything and complete:
            return BlockSample(sizes, execution, _results(job.plan), None, True, bool(alone))
        written = [job.plan.tensors_of(one) & {buffer.name for buffer in job.plan.buffers} for one in launches]
        whole = not in_place and all(names <= set(alone) for names in written)
        found = BlockSample(sizes, execution, alone, blocks, whole, bool(alone))
        samples = []
        if complete and only is None:
            alone_tells = bool(alone) or not judged
            most = _WHOLE if alone_tells else _ONLY_WHOLE
            if _of_all(execution, launches, blocks) <= most:
                samples = [(None, 2 * most)]
            elif not alone_tells and _TICKETS.search(job.ptx or "") is not None:
                samples = [(None, _BY_TICKETS)]
            launched = replace(launched, limits=replace(job.limits, seconds=_WHOLE_SECONDS))
    return found


def _of_all(execution: records.Execution, launches: list[PackedLaunch], blocks: int | None) -> float:
    if execution.emulated is None or isinstance(execution, records.Faulted):
        return math.inf
    grids = [math.prod(launch.grid) for launch in launches]
    run = sum(grid if blocks is None else min(grid, blocks) for grid in grids)
    return execution.emulated.thread_instructions / run * sum(grids)


# -- which blocks --


def seed_of(task: Task, text: str) -> int:
    """Another for every kernel file, so that none knows which of its blocks are judged."""
    return Random(f"{task.hash} {text} blocks").getrandbits(62)


def chosen_blocks(
    candidate: Candidate, followed: FollowedAddresses | None, launches: list[PackedLaunch], wanted: int, ptx: str = ""
) -> tuple[tuple[int, ...], ...]:
    """Per launch the blocks to judge: one of each way that the slice found, those that constants of the code number,
    the last, others at random. An empty tuple stands for all."""
    chosen: list[tuple[int, ...]] = []
    seed = seed_of(candidate.task, candidate.file.text)
    for number, launch in enumerate(launches):
        total = math.prod(launch.grid)
        if total <= wanted:
            chosen.append(())
            continue
        drawing = Random(f"{seed} {number}")
        paths = [one.example for one in followed.paths if one.launch == number] if followed is not None else []
        drawing.shuffle(paths)
        others = [total - 1, *(drawing.randrange(total) for _ in range(wanted))]
        if wanted == 1:
            others = others[1:]
        named = blocks_named(ptx, total, math.prod(launch.block)) if wanted >= _FEW_BLOCKS else ()
        count = max(wanted, min(len(paths), _MOST_PATHS)) if wanted >= _FEW_BLOCKS else wanted
        some = list(dict.fromkeys((*paths, *others)))[:count]
        chosen.append(tuple(sorted({*some, *named})))
    return tuple(chosen)


# -- sizes --


def _near(
    candidate: Candidate, device: Device, own: records.Job, independent: tuple[str, ...]
) -> tuple[Sizes, records.Job]:
    """The task's own sizes, or independent dimensions halved until the tensors are affordable with the same code."""
    task, sizes, job, kernels = candidate.task, candidate.task.sizes, own, [one.kernel for one in own.plan.launches]
    while _held_bytes(task, sizes, drawn_sizes(task, sizes, independent)) > _MOST_BYTES:
        halved = [one for one in task.free if one.name in independent and sizes[one.name] % (2 * one.multiple_of) == 0]
        for one in sorted(halved, key=lambda one: -sizes[one.name]):
            fewer = task.complete({**sizes, one.name: sizes[one.name] // 2})
            near = candidate.emulated_job(Case(fewer, OWN_SEED), device.profile, ()) if task.is_sound(fewer) else None
            same = near is not None and [one.kernel for one in near.plan.launches] == kernels
            if near is not None and same and near.ptx == own.ptx:
                sizes, job = fewer, near
                break
        else:
            break
    return sizes, job


# -- inputs --


def drawn_sizes(task: Task, sizes: Sizes, independent: tuple[str, ...]) -> Sizes:
    """Few indices of independent dimensions. If that is too much to draw, fewer of others too; then values are not
    judged."""
    drawn = {name: _REPEATED if name in independent and size > 2 * _REPEATED else size for name, size in sizes.items()}
    followed = {name for one in task.dimensions if one.formula is not None for name in one.formula.names}
    others = tuple(one.name for one in task.free if one.name not in {*independent, *followed})
    for names, most in ((independent, _FEW_ELEMENTS), (others, _MOST_ELEMENTS)):
        while names and elements(task, drawn) > most:
            longest = max(names, key=lambda name: drawn[name])
            if drawn[longest] <= _LEAST_REPEATED:
                break
            drawn[longest] = max(drawn[longest] // 2 | 1, _LEAST_REPEATED)
    return task.complete(drawn)


def elements(task: Task, sizes: Sizes) -> int:
    return sum(spec.numel for spec in task.specs(sizes).values())


def _held_bytes(task: Task, sizes: Sizes, drawn: Sizes) -> int:
    """Memory of the inputs: repeated rows of the outermost dimension and unwritten results take none."""
    few = task.specs(drawn)
    return sum(
        spec.storage_bytes // max(spec.shape[0], 1) * few[name].shape[0] if spec.shape else spec.storage_bytes
        for name, spec in task.specs(sizes).items()
    )


def sample_inputs(task: Task, sizes: Sizes, case: Case) -> tuple[InputTensor, ...]:
    contents = draw_inputs(task, case)
    few, given = task.specs(case.sizes), task.specs(sizes)
    made = []
    for name, spec in given.items():
        content: records.Content = records.Data(contents[name])
        if few[name] != spec:
            content = records.Repeated(row_major(few[name], contents[name]), few[name].shape)
        made.append(InputTensor(name, spec, content))
    return tuple(made)


# -- results that sampled blocks determine --


def _results(plan: records.BoundPlan) -> tuple[str, ...]:
    return tuple(one.name for one in plan.buffers if one.role is not BufferRole.SCRATCH and one.spec.numel)


def _settled(task: Task, job: records.Job) -> tuple[str, ...]:
    """Results of launches that read only inputs and results, where no other step uses those results."""
    plan = job.plan
    if _GLOBAL_ATOMICS.search(job.ptx or "") is not None:
        return ()
    undefined = {one.name for one in plan.buffers if one.clearing is Clearing.UNDEFINED}
    results = undefined & set(_results(plan))
    inputs = {one.name for one in task.tensors}
    users = [plan.tensors_of(step) for step in plan.steps]
    single = {name for name in results if sum(name in user for user in users) == 1}
    launches = [
        user
        for step, user in zip(plan.steps, users, strict=True)
        if isinstance(step, PackedLaunch) and user <= single | inputs
    ]
    return tuple(sorted(single & set().union(*launches)))

"""`tilewright bench`: a kernel timed beside PyTorch and other kernel files, for a terminal or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from tilewright.devices.protocol import Device
from tilewright.frontends.api.choices import ChosenDevice, choose_device, gpu_reference, open_devices, spool_path
from tilewright.frontends.api.judges import Say, eager_model, locked_gpu
from tilewright.frontends.api.requests import task_of_file, task_of_reference
from tilewright.frontends.cli import terminal
from tilewright.frontends.cli.judging import judged_by_checkers
from tilewright.frontends.report.audit import BenchReport, BenchRow, bench_report
from tilewright.frontends.report.checks import describe_arguments
from tilewright.kernel_file import Choice, DoesNotApply, KernelFile, TunedChoices, evaluate_tuned
from tilewright.measure.baselines import BASELINES, EAGER
from tilewright.measure.emulated_counts import NotCounted, count_plan
from tilewright.measure.floor import floor_us
from tilewright.measure.gpu_timing import CONTROL, bench_on_gpu
from tilewright.measure.performance_model import model_plan
from tilewright.measure.preparation import NotPrepared, prepare
from tilewright.records import PROFILES, USUAL_BASELINES, Task
from tilewright.records.measurement import ratio_interval
from tilewright.reference import AnyReference, Reference, ReferenceLimits, ReferenceProblem
from tilewright.tasks.errors import BadArgument


def bench(
    file: terminal.FileArgument,
    against: Annotated[
        str,
        typer.Option(
            metavar="NAME,FILE.cu",
            help="What to time it beside: eager, compile, max-autotune, library, kernel files of the same op. "
            "[default: eager,compile where there is a reference]",
        ),
    ] = "",
    reference: terminal.ReferenceOption = None,
    shape: terminal.ShapeOption = None,
    set_: terminal.SetOption = None,
    gpu: terminal.GpuOption = None,
    spool: terminal.SpoolOption = None,
    as_json: terminal.JsonOption = False,
) -> None:
    """Time a kernel beside PyTorch and other kernels: in turn, on a cold cache; modelled without a GPU."""
    usual = USUAL_BASELINES if reference else ()
    others = tuple(name for one in (against.split(",") if against else usual) if (name := one.strip()))
    named = [one for one in others if one in BASELINES]
    if named and not reference:
        raise BadArgument(f"--against {', '.join(named)}: PyTorch's code is unknown; give --reference FILE.py:FUNCTION")
    device = choose_device(gpu, spool_path(spool))
    with terminal.progress() as say:
        kernel = terminal.read_kernel(file, shape, set_, PROFILES[device.gpu], say, small=False)
        with terminal.reference_of(reference, kernel.arguments, kernel) as known:
            report = _Bench(file, kernel, others, known, device, say).run()
    terminal.deliver(report, as_json, bench_report(report))
    terminal.exit_with(report.exit_status)


@dataclass(frozen=True)
class _Contender:
    name: str
    file: KernelFile
    choice: Choice | None


class _Bench:
    def __init__(
        self,
        path: Path,
        kernel: terminal.Kernel,
        against: Sequence[str],
        known: tuple[Path, str] | None,
        device: ChosenDevice,
        say: Say,
    ) -> None:
        self._path, self._kernel, self._known, self._device, self._say = path, kernel, known, device, say
        self._gpu, self._arguments = PROFILES[device.gpu], kernel.arguments
        others = [(one, terminal.read_kernel_file(one)) for one in _files(path, against)]
        self._kernels = [self._contender(path, kernel.file), *(self._contender(*one) for one in others)]
        self._baselines = tuple(dict.fromkeys(BASELINES[one] for one in against if one in BASELINES))

    def _contender(self, path: Path, file: KernelFile) -> _Contender:
        _, near = evaluate_tuned(file, self._arguments, self._gpu, TunedChoices.load(path))
        return _Contender(path.name, file, near.choice if near is not None else None)

    def run(self) -> BenchReport:
        task = self._task()
        for one in self._kernels:  # every file must take the same call
            try:
                prepare(one.file, task, one.choice)
            except NotPrepared as problem:
                raise BadArgument(f"{one.name} cannot take part: {problem}") from None
        judged = {}
        for one in self._kernels:
            self._say(f"judging {one.name}")
            judged[one.name], _ = judged_by_checkers(one.file, self._arguments, self._gpu, self._known, self._say)
        with open_devices(self._device) as (emulator, gpu), self._reference(task, gpu) as reference:
            least_us = floor_us(task, reference)
            if gpu is not None:
                rows, notes = self._measured(task, gpu, reference, least_us)
            else:
                rows, notes = self._modelled(task, emulator, reference, least_us)
        beside = [replace(row, judged=judged[row.name].words) if row.name in judged else row for row in rows]
        return BenchReport(
            file=str(self._path),
            op=task.name,
            gpu=self._device.gpu,
            device=self._device.words,
            measured=not self._device.is_emulated,
            arguments=describe_arguments(self._arguments),
            guessed=self._kernel.guessed,
            floor_us=least_us,
            rows=_beside_first(beside),
            wrong=tuple(name for name, found in judged.items() if found.passed is False),
            notes=(*notes, *filter(None, (self._kernel.note,))),
        )

    def _task(self) -> Task:
        first = self._kernels[0].file
        if self._known is None:
            try:
                return task_of_file(first, self._arguments, self._gpu)
            except DoesNotApply as refusal:
                raise BadArgument(f"{first.name}:{refusal}") from None
        self._say("reading the reference")
        task = task_of_reference(self._known, self._arguments, self._device)
        return replace(task, name=first.plan.op.name)

    @contextmanager
    def _reference(self, task: Task, gpu: Device | None) -> Iterator[AnyReference | None]:
        if self._known is None:
            yield None
        elif (far := gpu_reference(self._device, task, gpu)) is not None:
            yield far
        else:
            limits = ReferenceLimits.on_gpu() if gpu is not None else None
            with Reference(task.reference, task.function, limits=limits) as own:
                yield own

    def _measured(
        self, task: Task, gpu: Device, reference: AnyReference | None, least_us: float
    ) -> tuple[list[BenchRow], list[str]]:
        built = {one.name: prepare(one.file, task, one.choice, gpu=gpu.profile) for one in self._kernels}
        beside = (reference, self._baselines) if reference is not None and self._baselines else None
        with locked_gpu(self._device.index, self._say):
            rounds = bench_on_gpu(built, task, gpu, beside, least_us, self._say)
        timings = {name: rounds.timing(name) for name in rounds.samples}
        named = [(name, timings.get(name)) for name in (*built, *self._baselines)]
        rows = [BenchRow(name, timing.median_us if timing else None, timing=timing) for name, timing in named]
        if CONTROL in rounds.samples and rows[0].time_us:
            off = abs(rounds.timing(CONTROL).median_us / rows[0].time_us - 1.0)
            rounds.note(f"{rows[0].name} beside itself differs by {off:.1%}: less than that is noise")
        return rows, rounds.notes

    def _modelled(
        self, task: Task, emulator: Device, reference: AnyReference | None, least_us: float
    ) -> tuple[list[BenchRow], list[str]]:
        rows = []
        for one in self._kernels:
            self._say(f"modelling {one.name}")
            try:
                model = model_plan(count_plan(one.file, task, one.choice, emulator), task, least_us)
                rows.append(BenchRow(one.name, model.modelled.time_us))
            except NotCounted as problem:
                rows.append(BenchRow(one.name, None, note=f"not modelled: {problem}"))
        rows += [self._modelled_baseline(name, task, reference) for name in self._baselines]
        return rows, ["modelled from emulated counts: it ranks kernels, it is no clock; a GPU measures"]

    def _modelled_baseline(self, name: str, task: Task, reference: AnyReference | None) -> BenchRow:
        if name != EAGER or reference is None:
            return BenchRow(name, None, note="not modelled: what it compiles is known on a GPU only")
        try:
            time_us, kernels = eager_model(task, reference)
        except (ReferenceProblem, RuntimeError) as problem:
            return BenchRow(name, None, note=f"not modelled: {str(problem).splitlines()[0]}")
        plural = "s one after the other" if kernels != 1 else ""
        note = f"its {kernels} kernel{plural} at the speed of a copy, from their sizes alone"
        return BenchRow(name, time_us, note=note)


def _beside_first(rows: list[BenchRow]) -> tuple[BenchRow, ...]:
    first, made = rows[0], rows[:1]
    for row in rows[1:]:
        if row.time_us is not None and first.time_us:
            interval = None
            if row.timing is not None and first.timing is not None:
                interval = ratio_interval(row.timing.by_round, first.timing.by_round, paired=True)
            row = replace(row, times_as_long=row.time_us / first.time_us, interval=interval)
        made.append(row)
    return tuple(made)


def _files(path: Path, against: Sequence[str]) -> list[Path]:
    """The other kernel files; raises `BadArgument` for what is neither a file nor a baseline."""
    paths = [Path(one) for one in against if one not in BASELINES]
    for other in paths:
        if other.suffix != ".cu" or not other.is_file():
            raise BadArgument(f"--against {other}: write a kernel file that is there, or one of {', '.join(BASELINES)}")
    names = [one.name for one in (path, *paths)]
    if len({*names}) < len(names):
        raise BadArgument(f"--against: two files are called {max(names, key=names.count)}; give one another name")
    return paths

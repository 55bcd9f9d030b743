"""`tilewright bench`: from arguments to a contest, and its record to a terminal, JSON or a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tilewright.devices.protocol import Device
from tilewright.frontends.api.choices import ChosenDevice, choose_device, gpu_reference, open_devices
from tilewright.frontends.api.eager_model import MODEL_EAGER, EagerAnswer, EagerRequest
from tilewright.frontends.api.judges import turn_at
from tilewright.frontends.api.kernel_arguments import complete_arguments, parse_arguments
from tilewright.frontends.api.references import task_of_file, task_of_reference
from tilewright.frontends.cli.audit_checks import judged_by_checkers
from tilewright.frontends.cli.build import arguments_line, describe_arguments
from tilewright.frontends.cli.explain import check_page
from tilewright.frontends.cli.terminal import print_json, progress, stdout_console
from tilewright.frontends.report import pictures
from tilewright.frontends.report.pictures import BAR_CELLS, bar
from tilewright.frontends.report.runs import microseconds, scatter_words
from tilewright.kernel_file import Choice, DoesNotApply, KernelFile, TunedChoices, evaluate_tuned, parse
from tilewright.measure.baselines import BASELINES, EAGER
from tilewright.measure.emulated_counts import NotCounted, count_plan
from tilewright.measure.floor import floor_us
from tilewright.measure.gpu_timing import CONTROL, bench_on_gpu
from tilewright.measure.performance_model import model_plan
from tilewright.measure.preparation import NotPrepared, prepare
from tilewright.records import PROFILES, Task, Timing
from tilewright.records.measurement import Interval, ratio_interval
from tilewright.reference import AnyReference, Reference, ReferenceLimits, ReferenceProblem
from tilewright.store import write_text
from tilewright.tasks.errors import BadArgument

# -- what a bench says: --


@dataclass(frozen=True)
class BenchRow:
    """One contender. Without a GPU a time is modelled, and has no samples."""

    name: str
    time_us: float | None  # None: it has none
    times_as_long: float | None = None  # as the kernel takes
    interval: Interval | None = None  # where that lies, where it was measured
    timing: Timing | None = None
    judged: str = ""  # of a kernel file: whether it is right
    note: str = ""


@dataclass(frozen=True)
class BenchReport:
    file: str
    op: str
    gpu: str
    device: str
    measured: bool
    arguments: dict[str, str]
    guessed: bool
    floor_us: float
    rows: tuple[BenchRow, ...]  # the kernel first
    wrong: tuple[str, ...]  # kernel files that are not right
    notes: tuple[str, ...] = ()

    @property
    def exit_status(self) -> int:
        return int(bool(self.wrong) or self.rows[0].time_us is None)


# -- from arguments to a bench: --

Say = Callable[[str], None]


@dataclass(frozen=True)
class Asked:
    """As it was written on the command line."""

    file: Path
    against: tuple[str, ...]  # names of baselines, and paths of kernel files
    reference: tuple[Path, str] | None
    shapes: tuple[str, ...]
    numbers: tuple[str, ...]


@dataclass(frozen=True)
class _Kernel:
    name: str
    file: KernelFile
    choice: Choice | None


def bench(asked: Asked, device: ChosenDevice, say: Say) -> BenchReport:
    """Raises `BadArgument`, `KernelFileError`, `RefusedRequest`, `ToolchainError`, `DeviceError`."""
    return _Bench(asked, device, say).run()


class _Bench:
    def __init__(self, asked: Asked, device: ChosenDevice, say: Say) -> None:
        self._asked, self._device, self._say = asked, device, say
        self._gpu = PROFILES[device.gpu]
        file = _read(asked.file)
        given = parse_arguments(file.plan.op, asked.shapes, asked.numbers)
        self._arguments, self._guessed = complete_arguments(file, given, self._gpu)
        self._kernels = [self._kernel(asked.file, file), *(self._kernel(one, _read(one)) for one in _files(asked))]
        names = [BASELINES[one] for one in asked.against if one in BASELINES]
        self._baselines = tuple(dict.fromkeys(names))
        if self._baselines and asked.reference is None:
            said = ", ".join(one for one in asked.against if one in BASELINES)
            raise BadArgument(f"--against {said}: what PyTorch does is not known; give --reference FILE.py:FUNCTION")

    def _kernel(self, path: Path, file: KernelFile) -> _Kernel:
        _, near = evaluate_tuned(file, self._arguments, self._gpu, TunedChoices.load(path))
        return _Kernel(path.name, file, near.choice if near is not None else None)

    def run(self) -> BenchReport:
        task = self._task()
        self._refuse_others(task)
        judged = {one.name: self._judged(one) for one in self._kernels}
        least_us = 0.0
        with open_devices(self._device) as (emulator, gpu), self._reference(task, gpu) as reference:
            least_us = floor_us(task, reference)
            rows, notes = (
                self._measured(task, gpu, reference, least_us)
                if gpu is not None
                else self._modelled(task, emulator, reference, least_us)
            )
        told = [replace(row, judged=judged[row.name][0]) if row.name in judged else row for row in rows]
        return BenchReport(
            file=str(self._asked.file),
            op=task.name,
            gpu=self._device.gpu,
            device=self._device.words,
            measured=not self._device.is_emulated,
            arguments=describe_arguments(self._arguments),
            guessed=self._guessed,
            floor_us=least_us,
            rows=_beside_first(told),
            wrong=tuple(name for name, (_, passed) in judged.items() if passed is False),
            notes=tuple(notes),
        )

    # -- what they share --

    def _task(self) -> Task:
        first = self._kernels[0].file
        if self._asked.reference is None:
            try:
                return task_of_file(first, self._arguments, self._gpu)
            except DoesNotApply as refusal:
                raise BadArgument(f"{first.name}:{refusal}") from None
        self._say("reading the reference")
        task = task_of_reference(self._asked.reference, self._arguments, self._device)
        return replace(task, name=first.plan.op.name)

    def _refuse_others(self, task: Task) -> None:
        """Every file must take the same call."""
        for one in self._kernels:
            try:
                prepare(one.file, task, one.choice)
            except NotPrepared as problem:
                raise BadArgument(f"{one.name} cannot take part: {problem}") from None

    def _judged(self, one: _Kernel) -> tuple[str, bool | None]:
        """A wrong kernel may be as fast as it likes."""
        self._say(f"judging {one.name}")
        found, _ = judged_by_checkers(one.file, self._arguments, self._gpu, self._asked.reference, self._say)
        return found.words, found.passed

    @contextmanager
    def _reference(self, task: Task, gpu: Device | None) -> Iterator[AnyReference | None]:
        if self._asked.reference is None:
            yield None
        elif (far := gpu_reference(self._device, task, gpu)) is not None:
            yield far
        else:
            limits = ReferenceLimits.on_gpu() if gpu is not None else None
            with Reference(task.reference, task.function, limits=limits) as own:
                yield own

    # -- times --

    def _measured(
        self, task: Task, gpu: Device, reference: AnyReference | None, least_us: float
    ) -> tuple[list[BenchRow], list[str]]:
        built = {one.name: prepare(one.file, task, one.choice, gpu=gpu.profile) for one in self._kernels}
        beside = (reference, self._baselines) if reference is not None and self._baselines else None
        with turn_at(self._device.index, self._say):
            rounds = bench_on_gpu(built, task, gpu, beside, least_us, self._say)
        rows = []
        for name in (*built, *self._baselines):
            timing = rounds.timing(name) if name in rounds.samples else None
            rows.append(BenchRow(name, timing.median_us if timing else None, timing=timing))
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
        for name in self._baselines:
            rows.append(self._modelled_baseline(name, task, reference))
        return rows, ["modelled from emulated counts: it ranks kernels, it is no clock; a GPU measures"]

    def _modelled_baseline(self, name: str, task: Task, reference: AnyReference | None) -> BenchRow:
        if name != EAGER or reference is None:
            return BenchRow(name, None, note="not modelled: what it compiles is known on a GPU only")
        try:
            found: EagerAnswer = reference.call(MODEL_EAGER, EagerRequest(task), EagerAnswer)
        except (ReferenceProblem, RuntimeError) as problem:
            return BenchRow(name, None, note=f"not modelled: {str(problem).splitlines()[0]}")
        plural = "s one after the other" if found.kernels != 1 else ""
        note = f"its {found.kernels} kernel{plural} at the speed of a copy, from their sizes alone"
        return BenchRow(name, found.time_us, note=note)


def _beside_first(rows: list[BenchRow]) -> tuple[BenchRow, ...]:
    first = rows[0]

    def beside(row: BenchRow) -> BenchRow:
        if row is first or row.time_us is None or not first.time_us:
            return row
        interval = None
        if row.timing is not None and first.timing is not None:
            interval = ratio_interval(row.timing.by_round, first.timing.by_round, paired=True)
        return replace(row, times_as_long=row.time_us / first.time_us, interval=interval)

    return tuple(map(beside, rows))


def _files(asked: Asked) -> list[Path]:
    """The other kernel files; raises `BadArgument` for what is neither a file nor a baseline."""
    paths = [Path(one) for one in asked.against if one not in BASELINES]
    for path in paths:
        if path.suffix != ".cu" or not path.is_file():
            raise BadArgument(f"--against {path}: write a kernel file that is there, or some of {', '.join(BASELINES)}")
    names = [path.name for path in (asked.file, *paths)]
    if len({*names}) < len(names):
        raise BadArgument(f"--against: two files are called {max(names, key=names.count)}; give one another name")
    return paths


def _read(path: Path) -> KernelFile:
    if not path.is_file():
        raise BadArgument(f"{path}: no such file; give the path of a kernel file (.cu)")
    try:
        return parse(path.read_bytes().decode(), str(path))
    except UnicodeDecodeError:
        raise BadArgument(f"{path}: not UTF-8 text; save the kernel file as UTF-8") from None


# -- a bench for a terminal, with bars of text, and as a picture --

_WIDTH, _ROW, _LEFT, _TOP, _RIGHT = 760, 30, 170, 66, 200
_WRONG = "not right"


def show_bench(console: Console, report: BenchReport) -> None:
    kind = "measured" if report.measured else "modelled"
    console.print(Text(f"{report.op}: {kind} times; shorter is better", style="bold"))
    console.print(arguments_line(report.arguments, report.guessed))
    console.print(Text(f"{report.device}\n"))
    width = max(len("roofline"), *(len(row.name) for row in report.rows))
    longest = max((row.time_us or 0.0 for row in report.rows), default=0.0)
    for row in report.rows:
        drawn = bar(row.time_us / longest) if row.time_us and longest else ""
        wrong = row.name in report.wrong
        said = f"{row.name:<{width}}  {drawn:<{BAR_CELLS}}  {_row_words(row)}"
        console.print(Text.assemble(said, (f"  {row.judged}", "bold red" if wrong else "green")))
        if row.note:
            console.print(Text(f"{'':<{width}}  {row.note}", style="dim"))
    if longest:
        drawn = bar(report.floor_us / longest)
        console.print(Text(f"{'roofline':<{width}}  {drawn:<{BAR_CELLS}}  {microseconds(report.floor_us)} us"))
    for note in report.notes:
        console.print(Text(note, style="yellow"))


def _row_words(row: BenchRow) -> str:
    if row.time_us is None:
        return "no time"
    lying = f" ({scatter_words(row.timing)})" if row.timing is not None else ""
    ratio = ""
    if row.times_as_long is not None:
        between = f" ({row.interval.low:.2f} to {row.interval.high:.2f})" if row.interval is not None else ""
        ratio = f", {row.times_as_long:.2f}x as long{between}"
    return f"{microseconds(row.time_us)} us{lying}{ratio}"


def bench_picture(report: BenchReport) -> str:
    """A bar for each contender, with where its median lies; the roofline dashed."""
    rows = [row for row in report.rows if row.time_us is not None]
    longest = max([row.time_us or 0.0 for row in rows] + [report.floor_us, 1e-3])
    height = _TOP + _ROW * len(rows) + 30

    def x(time_us: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * time_us / longest

    body = []
    for place, row in enumerate(rows):
        y, end = _TOP + _ROW * place, x(row.time_us or 0.0)
        colour = pictures.BAD if row.name in report.wrong else pictures.GOOD if place == 0 else pictures.DOT
        body.append(pictures.text(_LEFT - 8, y + 15, row.name, anchor="end"))
        body.append(pictures.rectangle(_LEFT, y + 3, max(end - _LEFT, 1.0), 16, colour))
        if row.timing is not None:
            low, high = x(row.timing.interval_us.low), x(row.timing.interval_us.high)
            body.append(pictures.line(low, y + 11, high, y + 11, pictures.INK))
        ratio = f"  {row.times_as_long:.2f}x" if row.times_as_long is not None else ""
        wrong = f"  {_WRONG}" if row.name in report.wrong else ""
        body.append(
            pictures.text(end + 8, y + 15, f"{microseconds(row.time_us or 0.0)} us{ratio}{wrong}", anchor="start")
        )
    floor = x(report.floor_us)
    body.append(pictures.line(floor, _TOP - 4, floor, height - 24, pictures.INK, dashes="5 4"))
    body.append(pictures.text(floor, height - 8, f"roofline {microseconds(report.floor_us)} us"))
    kind = "measured" if report.measured else "modelled"
    sizes = ", ".join(f"{name} = {text}" for name, text in report.arguments.items())
    return pictures.page(_WIDTH, height, f"{report.op} on {report.gpu}: {kind} time", sizes, 16, body)


def bench_command(asked: Asked, gpu: str | None, spool: str, plot: Path | None, as_json: bool) -> int:
    """Returns the exit status: 1 where a kernel file is not right."""
    if plot is not None:
        check_page(plot, (".svg",), "--plot")
    device = choose_device(gpu, spool)
    with progress() as say:
        report = bench(asked, device, say)
    if plot is not None:
        write_text(plot, bench_picture(report))
    if as_json:
        print_json(report)
    else:
        show_bench(stdout_console(), report)
    return report.exit_status

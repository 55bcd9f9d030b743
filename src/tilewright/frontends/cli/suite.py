"""`tilewright suite`: from arguments to a suite carried out, and its report."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import typer
from rich.text import Text

from tilewright import __version__
from tilewright.frontends.api.choices import (
    PLAYBOOK,
    ChosenDevice,
    check_key,
    choose_device,
    emulated_device,
    known_profile,
)
from tilewright.frontends.api.kernel_arguments import named_gpu
from tilewright.frontends.cli.program import SuiteKind
from tilewright.frontends.cli.suite_task import PROGRAM
from tilewright.frontends.cli.terminal import FAULT, INTERRUPTED, NotDone, print_json, stderr_console, stdout_console
from tilewright.frontends.report.runs import dollars_words
from tilewright.frontends.report.suite import SuiteDisplay, closing_words, write_report
from tilewright.records import PROFILES, Precision, Settings
from tilewright.suites import (
    NoTasks,
    OtherSuite,
    Pool,
    Status,
    Suite,
    SuiteFolder,
    SuiteTask,
    carry_out,
    folder_tasks,
    kernelbench_tasks,
)
from tilewright.suites.pools import LocalPool
from tilewright.suites.ray_cluster import NoRay, RayCluster, RayPool
from tilewright.tasks.errors import BadArgument

MOST_WORKERS = 6


@dataclass(frozen=True)
class Wanted:
    """What the command line says of a suite."""

    kind: SuiteKind
    folder: Path
    level: int = 1
    ids: str = ""
    gpu: str | None = None
    precision: Precision | None = None
    allow_degenerate: bool = False
    fixed: tuple[str, ...] = ()
    fresh: bool = False
    workers: int | None = None
    ray: str | None = None
    out: Path | None = None
    as_json: bool = False


def suite_command(wanted: Wanted, settings: Settings) -> None:
    """Carry a suite out, from wherever it stands, and write its report; or write the report of one again."""
    if wanted.kind is SuiteKind.REPORT:
        _close(SuiteFolder(wanted.folder), wanted.as_json)
        return
    try:
        tasks = _tasks(wanted)
    except NoTasks as error:
        raise BadArgument(str(error)) from None
    check_key(settings.author, settings.base_url, os.environ)
    folder = SuiteFolder(wanted.out or Path(f"suite-{_slug(wanted)}"))
    with ExitStack() as stack:
        cluster = _cluster(wanted.ray, settings.spool)
        stack.callback(cluster.close if cluster is not None else lambda: None)
        device = choose_device(wanted.gpu, settings.spool) if cluster is None else _cluster_device(cluster, wanted.gpu)
        try:
            suite = folder.begin(_suite(wanted, settings, device, tasks))
        except OtherSuite as error:
            raise BadArgument(str(error)) from None
        stack.enter_context(folder.lock())
        _carry_out(folder, suite, device, wanted, cluster)
    _close(folder, wanted.as_json)


def _cluster(address: str | None, spool: str) -> RayCluster | None:
    """The Ray cluster that tasks run on; None where they run here."""
    if address is None:
        return None
    if spool:
        raise BadArgument("--ray has GPUs of its own, and --spool others; drop one")
    try:
        return RayCluster(address)
    except NoRay as error:
        raise BadArgument(str(error)) from None


def _cluster_device(cluster: RayCluster, gpu: str | None) -> ChosenDevice:
    """A GPU of the cluster, with a worker on each; emulated on its nodes where it has none."""
    wanted = named_gpu(gpu) if gpu is not None else None
    found = [one for one in cluster.open_gpus() if wanted is None or known_profile(one) == wanted]
    if not found:
        return emulated_device((wanted or PROFILES["H200"]).name, f"the cluster has no {gpu or 'GPU'}")
    return ChosenDevice(known_profile(found[0]).name, found[0].name, spool="the cluster's")


def _tasks(wanted: Wanted) -> tuple[SuiteTask, ...]:
    if wanted.kind is SuiteKind.KERNELBENCH:
        tasks = kernelbench_tasks(wanted.folder, wanted.level, wanted.ids)
    elif wanted.ids:
        raise BadArgument("--ids are numbers of KernelBench's problems; a folder's tasks are listed in its suite.toml")
    else:
        tasks = folder_tasks(wanted.folder)
    fixed = tuple(name for name in wanted.fixed if name) or ()
    return tuple(
        replace(
            task,
            request=replace(
                task.request, precision=wanted.precision, allow_degenerate=wanted.allow_degenerate, fixed=fixed
            ),
        )
        for task in tasks
    )


def _slug(wanted: Wanted) -> str:
    if wanted.kind is SuiteKind.KERNELBENCH:
        return f"kernelbench-level{wanted.level}"
    return wanted.folder.resolve().name


def _suite(wanted: Wanted, settings: Settings, device: ChosenDevice, tasks: tuple[SuiteTask, ...]) -> Suite:
    kernelbench = wanted.kind is SuiteKind.KERNELBENCH
    return Suite(
        title=f"KernelBench level {wanted.level}" if kernelbench else wanted.folder.resolve().name,
        tasks=tasks,
        settings=settings,
        gpu=device.gpu,
        device=device.label,
        emulated=device.is_emulated,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        tilewright=__version__,
        level=wanted.level if kernelbench else None,
        fresh=wanted.fresh,
    )


def _carry_out(
    folder: SuiteFolder, suite: Suite, device: ChosenDevice, wanted: Wanted, cluster: RayCluster | None
) -> None:
    waiting = folder.waiting()
    console = stderr_console()
    display = SuiteDisplay(console, len(suite.tasks), len(suite.tasks) - len(waiting))
    with ExitStack() as stack:
        pool = _pool(folder, device, wanted, cluster, display)
        stack.callback(pool.close)
        for title, text in (
            ("suite", f"{suite.title}: {len(suite.tasks)} tasks, {len(suite.tasks) - len(waiting)} of them done"),
            ("author", f"{suite.settings.author}; {_budget_words(suite.settings, len(waiting))}"),
            ("device", device.words),
            (
                "workers",
                f"{pool.size} tasks at a time{'' if device.is_emulated else '; a GPU is used by one at a time'}",
            ),
            ("folder", str(folder.path)),
        ):
            console.print(Text.assemble((f"{title:<8}", "bold"), text), soft_wrap=True)
        try:
            with display.live():
                carry_out(folder, pool, display)
        except KeyboardInterrupt:
            raise NotDone("interrupted; the same command goes on where it stopped", INTERRUPTED) from None


def _budget_words(settings: Settings, tasks: int) -> str:
    """The most that it may cost, said before anything is spent."""
    budget = settings.budget
    said = f"at most {budget.attempts} attempts a task"
    if settings.author == PLAYBOOK:
        return said
    each, all_ = dollars_words(budget.dollars), dollars_words(tasks * budget.dollars)
    return f"{said}, {budget.tokens:,} tokens and, where the price is known, {each}: {all_} for {tasks} tasks"


def _pool(
    folder: SuiteFolder, device: ChosenDevice, wanted: Wanted, cluster: RayCluster | None, display: SuiteDisplay
) -> Pool:
    if cluster is not None:
        gpu = "" if device.is_emulated else device.label
        return RayPool(folder, PROGRAM, cluster, gpu=gpu, size=wanted.workers, doing=display.doing)
    return local_pool(folder, wanted.workers, display)


def local_pool(folder: SuiteFolder, workers: int | None, display: SuiteDisplay) -> LocalPool:
    """Processes of this machine, half as many as it has cores unless told otherwise."""
    cores = len(os.sched_getaffinity(0))
    return LocalPool(folder, PROGRAM, workers or min(MOST_WORKERS, max(1, cores // 2)), display.doing)


def _close(folder: SuiteFolder, as_json: bool) -> None:
    """Write the report and say where it is; a task that a fault kept from being done ends the command with its code."""
    try:
        report, files = write_report(folder)
    except OtherSuite as error:
        raise BadArgument(str(error)) from None
    if as_json:
        print_json(report)
    else:
        console = stdout_console()
        for line in closing_words(report):
            console.print(Text(line))
        for file in files:
            console.print(Text(f"wrote {file}"))
    if any(one.status is Status.FAILED for one in report.tasks):
        raise typer.Exit(FAULT)

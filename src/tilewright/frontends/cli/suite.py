"""`tilewright suite` and `find`: kernels for many tasks side by side, and for the regions of a model."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from tilewright import __version__
from tilewright.frontends.api.choices import (
    PLAYBOOK,
    ChosenDevice,
    author_name,
    check_key,
    choose_device,
    emulated_device,
    known_profile,
)
from tilewright.frontends.api.kernel_arguments import named_gpu, pairs
from tilewright.frontends.cli import program
from tilewright.frontends.cli.program import settings_of, wanted_gpu
from tilewright.frontends.cli.suite_task import PROGRAM
from tilewright.frontends.cli.terminal import FAULT, INTERRUPTED, NotDone, deliver, exit_with, stderr_console
from tilewright.frontends.report.runs import dollars_words
from tilewright.frontends.report.suite import SuiteDisplay, closing_words, write_report
from tilewright.records import PROFILES, Budget, Settings
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


class SuiteKind(str, Enum):
    """What a suite's folder is."""

    KERNELBENCH = "kernelbench"
    FOLDER = "folder"
    REPORT = "report"


def suite(
    kind: Annotated[SuiteKind, typer.Argument(help="What DIR is.", show_default=False)],
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="A checkout of KernelBench; a folder of problem files and task folders, or with a suite.toml; a "
            "suite.",
            show_default=False,
        ),
    ],
    level: Annotated[int, typer.Option(min=1, help="Level of KernelBench.")] = 1,
    ids: Annotated[str, typer.Option(metavar="1-49,51", help="Problems of that level; all where it is left out.")] = "",
    gpu: program.GpuOption = None,
    arch: program.ArchOption = None,
    model: program.ModelOption = None,
    author: program.AuthorOption = None,
    base_url: program.BaseUrlOption = None,
    baselines: program.BaselinesOption = program.BASELINES,
    attempts: program.AttemptsOption = program.SUITE_BUDGET.attempts,
    tokens: program.TokensOption = program.SUITE_BUDGET.tokens,
    dollars: program.DollarsOption = program.SUITE_BUDGET.dollars,
    seconds: program.SecondsOption = program.SUITE_BUDGET.seconds,
    enough: program.EnoughOption = Settings.good_enough,
    precision: program.PrecisionOption = None,
    fixed: program.FixedOption = None,
    allow_degenerate: program.AllowDegenerateOption = False,
    fresh: program.FreshOption = False,
    workers: program.WorkersOption = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run the tasks on this Ray cluster: HOST:PORT, or auto.")
    ] = None,
    spool: program.SpoolOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder of the suite and its report.")
    ] = None,
    as_json: program.JsonOption = False,
) -> None:
    """Make kernels for many tasks side by side and report on them: KernelBench, or a folder of tasks.

    Budgets are of each task. The same command goes on where it was stopped. `report DIR` writes the report of a suite
    again.
    """
    budget = Budget(attempts, tokens, dollars, seconds)
    settings = settings_of(author_name(model, author, os.environ), budget, base_url, spool, baselines=baselines)
    settings, target = replace(settings, good_enough=enough), wanted_gpu(gpu, arch)
    if kind is SuiteKind.REPORT:
        _close(SuiteFolder(folder), as_json)
        return
    name, title = folder.resolve().name, folder.resolve().name
    try:
        if kind is SuiteKind.KERNELBENCH:
            name, title = f"kernelbench-level{level}", f"KernelBench level {level}"
            tasks = kernelbench_tasks(folder, level, ids)
        elif ids:
            raise BadArgument(
                "--ids are numbers of KernelBench's problems; a folder's tasks are listed in its suite.toml"
            )
        else:
            tasks = folder_tasks(folder)
    except NoTasks as error:
        raise BadArgument(str(error)) from None
    fixed_ = tuple(filter(None, fixed or ()))
    requests = [
        replace(one.request, precision=precision, allow_degenerate=allow_degenerate, fixed=fixed_) for one in tasks
    ]
    tasks = tuple(replace(one, request=request) for one, request in zip(tasks, requests, strict=True))
    check_key(settings.author, settings.base_url, os.environ)
    place = SuiteFolder(out or Path(f"suite-{name}"))
    with ExitStack() as stack:
        cluster = _cluster(ray, settings.spool)
        stack.callback(cluster.close if cluster is not None else lambda: None)
        device = choose_device(target, settings.spool) if cluster is None else _cluster_device(cluster, target)
        wanted = new_suite(title, tasks, settings, device)
        wanted = replace(wanted, level=level if kind is SuiteKind.KERNELBENCH else None, fresh=fresh)
        try:
            begun = place.begin(wanted)
        except OtherSuite as error:
            raise BadArgument(str(error)) from None
        stack.enter_context(place.lock())
        _carry_out(place, begun, device, workers, cluster)
    _close(place, as_json)


def new_suite(title: str, tasks: tuple[SuiteTask, ...], settings: Settings, device: ChosenDevice) -> Suite:
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return Suite(title, tasks, settings, device.gpu, device.label, device.is_emulated, created, __version__)


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


def _carry_out(
    folder: SuiteFolder, suite: Suite, device: ChosenDevice, workers: int | None, cluster: RayCluster | None
) -> None:
    waiting = folder.waiting()
    console = stderr_console()
    done = len(suite.tasks) - len(waiting)
    display = SuiteDisplay(console, len(suite.tasks), done)
    if cluster is not None:
        gpu = "" if device.is_emulated else device.label
        pool: Pool = RayPool(folder, PROGRAM, cluster, gpu=gpu, size=workers, doing=display.doing)
    else:
        pool = local_pool(folder, workers, display)
    alone = "" if device.is_emulated else "; a GPU is used by one at a time"
    for title, text in (
        ("suite", f"{suite.title}: {len(suite.tasks)} tasks, {done} of them done"),
        ("author", f"{suite.settings.author}; {_budget_words(suite.settings, len(waiting))}"),
        ("device", device.words),
        ("workers", f"{pool.size} tasks at a time{alone}"),
        ("folder", str(folder.path)),
    ):
        console.print(Text.assemble((f"{title:<8}", "bold"), text), soft_wrap=True)
    carry_out_shown(folder, pool, display)


def carry_out_shown(folder: SuiteFolder, pool: Pool, display: SuiteDisplay) -> None:
    """Carry out what waits, and close the pool; Ctrl-C ends the command."""
    with closing(pool):
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

    def show(console: Console) -> None:
        for line in (*closing_words(report), *(f"wrote {file}" for file in files)):
            console.print(Text(line))

    deliver(report, as_json, show)
    exit_with(FAULT if any(one.status is Status.FAILED for one in report.tasks) else 0)


def find(
    model_name: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="PACKAGE.MODULE:NAME(ARGUMENTS), FILE.py:CLASS(ARGUMENTS), a kind of transformers model such as "
            "'llama(num_hidden_layers=4)', or a folder with a config.json.",
            show_default=False,
        ),
    ],
    shape: program.ShapeOption = None,
    set_: program.SetOption = None,
    gpu: program.GpuOption = None,
    make: Annotated[
        list[str] | None,
        typer.Option(
            "--make", metavar="REGION", help="Make a kernel for a region, by number or name, or `all`; may be repeated."
        ),
    ] = None,
    model: program.ModelOption = None,
    author: program.AuthorOption = None,
    base_url: program.BaseUrlOption = None,
    attempts: program.AttemptsOption = program.BUDGET.attempts,
    dollars: program.DollarsOption = program.BUDGET.dollars,
    seconds: program.SecondsOption = program.BUDGET.seconds,
    backward: program.BackwardOption = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Write the bars as a picture.")] = None,
    as_json: program.JsonOption = False,
) -> None:
    """Find the regions of a model that are worth a kernel; make kernels for them and try them in the model."""
    from tilewright.frontends.finding.command import FindOptions, find_in  # which imports torch

    making = {"model": model, "author": author, "base_url": base_url or "", "backward": backward}
    budget = {"attempts": attempts, "dollars": dollars, "seconds": seconds}
    shapes, numbers = pairs("--shape", shape), pairs("--set", set_)
    find_in(model_name, FindOptions(shapes, numbers, gpu, plot, as_json, tuple(make or ()), {**making, **budget}))

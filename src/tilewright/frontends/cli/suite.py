"""`tilewright suite` and `find`: kernels for many tasks side by side, and for the regions of a model.

`python -m tilewright.frontends.cli.suite FOLDER ID` is the process of one task: it makes the kernel in an ordinary run,
or continues the run that was begun, prints what it is doing, and writes the outcome into the suite's folder.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from tilewright import __version__, suites
from tilewright.child.family import kill_below
from tilewright.frontends.api import choices
from tilewright.frontends.api.judges import judges
from tilewright.frontends.api.kernel_arguments import named_gpu, pairs
from tilewright.frontends.api.reporter import NotAcceptedYet, Reporter, in_options
from tilewright.frontends.api.requests import read_task, resolved
from tilewright.frontends.api.running import Addition, KernelFound, MakeResult, resume, run_request
from tilewright.frontends.cli import terminal
from tilewright.frontends.cli.make import place_kernel
from tilewright.frontends.report.document import say_each
from tilewright.frontends.report.runs import dollars_words, verdict_words, why_words
from tilewright.frontends.report.suite import SuiteDisplay, closing_words, write_report
from tilewright.models import providers
from tilewright.playbook.errors import PlaybookProblem
from tilewright.records import PROFILES, Attempt, Budget, Run, Settings, Situation, Specification
from tilewright.reference import ReferenceProblem
from tilewright.reference.spares import want_spares
from tilewright.store import NoSuchRun, RunFolder, Store
from tilewright.suites.pools import LocalPool
from tilewright.suites.ray_cluster import NoRay, RayCluster, RayPool
from tilewright.tasks import TaskError
from tilewright.tasks.errors import BadArgument

PROGRAM = (sys.executable, "-m", "tilewright.frontends.cli.suite")
MOST_WORKERS = 6


class SuiteKind(str, Enum):
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
    gpu: terminal.GpuOption = None,
    arch: terminal.ArchOption = None,
    model: terminal.ModelOption = None,
    author: terminal.AuthorOption = None,
    base_url: terminal.BaseUrlOption = None,
    baselines: terminal.BaselinesOption = terminal.BASELINES,
    attempts: terminal.AttemptsOption = terminal.SUITE_BUDGET.attempts,
    tokens: terminal.TokensOption = terminal.SUITE_BUDGET.tokens,
    dollars: terminal.DollarsOption = terminal.SUITE_BUDGET.dollars,
    seconds: terminal.SecondsOption = terminal.SUITE_BUDGET.seconds,
    enough: terminal.EnoughOption = Settings.good_enough,
    precision: terminal.PrecisionOption = None,
    fixed: terminal.FixedOption = None,
    allow_degenerate: terminal.AllowDegenerateOption = False,
    fresh: terminal.FreshOption = False,
    workers: terminal.WorkersOption = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run the tasks on this Ray cluster: HOST:PORT, or auto.")
    ] = None,
    spool: terminal.SpoolOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder of the suite and its report.")
    ] = None,
    as_json: terminal.JsonOption = False,
) -> None:
    """Make kernels for many tasks side by side and report on them: KernelBench, or a folder of tasks.

    Budgets are of each task. The same command goes on where it was stopped. `report DIR` writes the report of a suite
    again.
    """
    budget = Budget(attempts, tokens, dollars, seconds)
    writer, target = choices.author_name(model, author, os.environ), terminal.wanted_gpu(gpu, arch)
    settings = choices.settings_of(writer, budget, base_url, spool, baselines.split(","))
    settings = replace(settings, good_enough=enough)
    if kind is SuiteKind.REPORT:
        _close(suites.SuiteFolder(folder), as_json)
        return
    name, title = folder.resolve().name, folder.resolve().name
    try:
        if kind is SuiteKind.KERNELBENCH:
            name, title = f"kernelbench-level{level}", f"KernelBench level {level}"
            tasks = suites.kernelbench_tasks(folder, level, ids)
        elif ids:
            raise BadArgument("--ids are numbers of KernelBench's problems; a folder's tasks are in its suite.toml")
        else:
            tasks = suites.folder_tasks(folder)
    except suites.NoTasks as error:
        raise BadArgument(str(error)) from None
    for_all: dict[str, Any] = {"precision": precision, "allow_degenerate": allow_degenerate}
    for_all["fixed"] = tuple(filter(None, fixed or ()))
    tasks = tuple(replace(one, request=replace(one.request, **for_all)) for one in tasks)
    choices.check_key(settings.author, settings.base_url, os.environ)
    place = suites.SuiteFolder(out or Path(f"suite-{name}"))
    with ExitStack() as stack:
        cluster = _cluster(ray, settings.spool)
        stack.callback(cluster.close if cluster is not None else lambda: None)
        device = choices.choose_device(target, settings.spool) if cluster is None else _cluster_device(cluster, target)
        wanted = new_suite(title, tasks, settings, device)
        wanted = replace(wanted, level=level if kind is SuiteKind.KERNELBENCH else None, fresh=fresh)
        try:
            begun = place.begin(wanted)
        except suites.OtherSuite as error:
            raise BadArgument(str(error)) from None
        stack.enter_context(place.lock())
        _carry_out(place, begun, device, workers, cluster)
    _close(place, as_json)


def new_suite(
    title: str, tasks: tuple[suites.SuiteTask, ...], settings: Settings, device: choices.ChosenDevice
) -> suites.Suite:
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return suites.Suite(title, tasks, settings, device.gpu, device.label, device.is_emulated, created, __version__)


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


def _cluster_device(cluster: RayCluster, gpu: str | None) -> choices.ChosenDevice:
    """A GPU of the cluster, with a worker on each; emulated on its nodes where it has none."""
    wanted = named_gpu(gpu) if gpu is not None else None
    found = [one for one in cluster.open_gpus() if wanted is None or choices.known_profile(one) == wanted]
    if not found:
        return choices.emulated_device((wanted or PROFILES["H200"]).name, f"the cluster has no {gpu or 'GPU'}")
    return choices.ChosenDevice(choices.known_profile(found[0]).name, found[0].name, spool="the cluster's")


def _carry_out(
    folder: suites.SuiteFolder,
    suite: suites.Suite,
    device: choices.ChosenDevice,
    workers: int | None,
    cluster: RayCluster | None,
) -> None:
    waiting, console = len(folder.waiting()), terminal.stderr_console()
    done = len(suite.tasks) - waiting
    display = SuiteDisplay(console, len(suite.tasks), done)
    if cluster is not None:
        gpu = "" if device.is_emulated else device.label
        pool: suites.Pool = RayPool(folder, PROGRAM, cluster, gpu=gpu, size=workers, doing=display.doing)
    else:
        pool = local_pool(folder, workers, display)
    alone = "" if device.is_emulated else "; a GPU is used by one at a time"
    for title, text in (
        ("suite", f"{suite.title}: {len(suite.tasks)} tasks, {done} of them done"),
        ("author", f"{suite.settings.author}; {_budget_words(suite.settings, waiting)}"),
        ("device", device.words),
        ("workers", f"{pool.size} tasks at a time{alone}"),
        ("folder", str(folder.path)),
    ):
        console.print(Text.assemble((f"{title:<8}", "bold"), text), soft_wrap=True)
    carry_out_shown(folder, pool, display)


def carry_out_shown(folder: suites.SuiteFolder, pool: suites.Pool, display: SuiteDisplay) -> None:
    """Carry out what waits, and close the pool; Ctrl-C ends the command."""
    message = "interrupted; the same command goes on where it stopped"
    with closing(pool), terminal.interruptible(message), display.live():
        suites.carry_out(folder, pool, display)


def _budget_words(settings: Settings, tasks: int) -> str:
    """The most that it may cost, said before anything is spent."""
    budget = settings.budget
    text = f"at most {budget.attempts} attempts a task"
    if settings.author == choices.PLAYBOOK:
        return text
    each, all_ = dollars_words(budget.dollars), dollars_words(tasks * budget.dollars)
    return f"{text}, {budget.tokens:,} tokens and, where the price is known, {each}: {all_} for {tasks} tasks"


def local_pool(folder: suites.SuiteFolder, workers: int | None, display: SuiteDisplay) -> LocalPool:
    """Processes of this machine, half as many as it has cores unless told otherwise."""
    cores = len(os.sched_getaffinity(0))
    return LocalPool(folder, PROGRAM, workers or min(MOST_WORKERS, max(1, cores // 2)), display.doing)


def _close(folder: suites.SuiteFolder, as_json: bool) -> None:
    """Write the report and say where it is; a task that a fault kept from being done ends the command with its code."""
    try:
        report, files = write_report(folder)
    except suites.OtherSuite as error:
        raise BadArgument(str(error)) from None
    terminal.deliver(report, as_json, say_each([*closing_words(report), *(f"wrote {file}" for file in files)]))
    terminal.exit_with(terminal.FAULT if any(one.status is suites.Status.FAILED for one in report.tasks) else 0)


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
    shape: terminal.ShapeOption = None,
    set_: terminal.SetOption = None,
    gpu: terminal.GpuOption = None,
    make: Annotated[
        list[str] | None,
        typer.Option(
            "--make", metavar="REGION", help="Make a kernel for a region, by number or name, or `all`; may be repeated."
        ),
    ] = None,
    model: terminal.ModelOption = None,
    author: terminal.AuthorOption = None,
    base_url: terminal.BaseUrlOption = None,
    attempts: terminal.AttemptsOption = terminal.BUDGET.attempts,
    dollars: terminal.DollarsOption = terminal.BUDGET.dollars,
    seconds: terminal.SecondsOption = terminal.BUDGET.seconds,
    backward: terminal.BackwardOption = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Write the bars as a picture.")] = None,
    as_json: terminal.JsonOption = False,
) -> None:
    """Find the regions of a model that are worth a kernel; make kernels for them and try them in the model."""
    from tilewright.frontends.finding.command import FindOptions, find_in  # which imports torch

    making = {"model": model, "author": author, "base_url": base_url or "", "backward": backward}
    budget = {"attempts": attempts, "dollars": dollars, "seconds": seconds}
    shapes, numbers = pairs("--shape", shape), pairs("--set", set_)
    find_in(model_name, FindOptions(shapes, numbers, gpu, plot, as_json, tuple(make or ()), {**making, **budget}))


def main(arguments: Sequence[str]) -> int:
    path, id = arguments
    want_spares()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    folder = suites.SuiteFolder(Path(path))
    suite = folder.suite()
    task = next(one for one in suite.tasks if one.id == id)
    author = suite.settings.author
    if author != choices.PLAYBOOK and providers()[author.partition(":")[0]].takes_path:
        # A relay or a replay has a folder for every task: its files have the same names in every run.
        own = re.sub(r"[^\w.-]", "_", task.id)
        author = f"{author}/{own}"
    folder.record(outcome(folder, replace(suite, settings=replace(suite.settings, author=author)), task))
    return 0


def _end_with_parent() -> None:
    """The parent holds the other end of the standard input for as long as it lives."""
    while os.read(0, 4096):
        pass
    kill_below(os.getpid())
    os._exit(1)


def outcome(folder: suites.SuiteFolder, suite: suites.Suite, task: suites.SuiteTask) -> suites.TaskRecord:
    """What becomes of a task; a fault is a record too, so that the other tasks go on."""
    began = time.monotonic()
    reporter = TaskTalk(folder, task)
    try:
        record = _recorded(folder, task, _made(folder, suite, task, reporter))
    except (PlaybookProblem, TaskError) as error:
        status = suites.Status.UNSUPPORTED if isinstance(error, PlaybookProblem) else suites.Status.REFUSED
        record = suites.TaskRecord(task.id, task.name, status, in_options(error))
    except (ReferenceProblem, NotAcceptedYet) as error:
        record = suites.TaskRecord(task.id, task.name, suites.Status.REFUSED, str(error))
    except Exception as error:
        if terminal.exit_code(error) is None:
            traceback.print_exc()
        message = str(error).strip() or type(error).__name__
        record = suites.TaskRecord(task.id, task.name, suites.Status.FAILED, " ".join(message.split())[:600])
    if record.status is suites.Status.FAILED:
        record = replace(record, run=reporter.run)
    return replace(record, seconds=time.monotonic() - began)


def _made(folder: suites.SuiteFolder, suite: suites.Suite, task: suites.SuiteTask, reporter: Reporter) -> MakeResult:
    """The run of a task at its end, begun or gone on with; or a kernel that the library has."""
    device = choices.choose_device(suite.gpu, suite.settings.spool)
    if device.is_emulated != suite.emulated:
        raise BadArgument(f"the suite was begun on {suite.device}, and here is {device.label}; go on with it there")
    judged, store, begun = partial(judges, log=folder.gpu_turns), Store(), None
    request = resolved(replace(task.request, gpu=device.gpu))
    if run := folder.run_of(task.id):
        with suppress(NoSuchRun):
            begun = store.open_run(run)
    if begun is not None:
        return resume(begun, Addition(), "", reporter, judged=judged)
    reporter.working("reading the task")
    given = read_task(store, request, suite.settings, device, suite.fresh)
    if given is not None and not suite.fresh:  # made before by this author, judged and timed on the same device
        found = store.library.find(given.hash, author=suite.settings.author, device=device.label)
        if found is not None and found.entry.measurement is not None:
            return KernelFound(found, False, suite.settings.licence)
    return run_request(request, suite.settings, device, reporter, fresh=True, given=given, judged=judged)


def _recorded(folder: suites.SuiteFolder, task: suites.SuiteTask, result: MakeResult) -> suites.TaskRecord:
    record, kernel = suites.TaskRecord(task.id, task.name, suites.Status.MADE), result.kernel
    if isinstance(result, KernelFound):
        entry = result.kernel.entry
        known = replace(record, run=entry.run, measurement=entry.measurement, from_library=True)
        record = replace(known, provisional=entry.provisional, degenerate=entry.degenerate)
    else:
        run, best = result.run, result.run.best
        record = replace(record, run=run.id, attempts=len(run.attempts))
        if best is None or kernel is None:
            return replace(record, status=suites.Status.NONE_PASSED, reason=_why(run))
        record = replace(record, summary=" ".join(best.summary.split()), measurement=best.measurement)
        record = replace(record, provisional=best.is_provisional, degenerate=run.task.degenerate)
    assert kernel is not None
    path = place_kernel(kernel, folder.kernel_path(task), result.licence)
    return replace(record, kernel=str(path.relative_to(folder.path)))


def _why(run: Run) -> str:
    """Why no attempt passed: how the run ended, and what was wrong with the last."""
    ended = run.ending_words or "the run was stopped"
    if not run.attempts:
        return ended
    verdict = run.attempts[-1].verdict
    return f"{ended}; the last attempt: {': '.join(filter(None, (verdict_words(verdict), why_words(verdict))))}"


class TaskTalk(Reporter):
    """Lines for the suite's display; the run's name goes into the suite's folder as soon as there is one."""

    def __init__(self, folder: suites.SuiteFolder, task: suites.SuiteTask) -> None:
        self._folder = folder
        self._task = task
        self._attempt = 0
        self.run = ""

    def accept(self, folder: RunFolder, specification: Specification) -> None:
        """Whoever lists words as a task of a suite takes them as the author reads them; the run keeps the reading."""

    def started(self, run: Run) -> None:
        self.run = run.id
        self._folder.note_run(self._task.id, run.id)

    def asking(self, situation: Situation) -> None:
        super().asking(situation)
        self._attempt = situation.number
        self.working(self.stage)

    def working(self, what: str) -> None:
        if what:
            print(f"attempt {self._attempt}: {what}" if self._attempt else what, flush=True)

    def attempted(self, run: Run, attempt: Attempt) -> None:
        self.working(verdict_words(attempt.verdict))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The process of one task of a suite: `python -m tilewright.frontends.cli.suite_task FOLDER ID`.

It makes the kernel as `tilewright make` does, in an ordinary run, and puts what became of it into the suite's folder. A
task whose run was begun before is gone on with. What it does it says in lines on its standard output. It ends with its
parent, whose end it notices by its standard input.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from tilewright.child.family import kill_below
from tilewright.frontends.api.choices import PLAYBOOK, ChosenDevice, choose_device
from tilewright.frontends.api.judges import judges
from tilewright.frontends.api.reporter import NotAcceptedYet, Reporter, in_options
from tilewright.frontends.api.requests import read_task, resolved
from tilewright.frontends.api.running import Addition, KernelFound, MakeResult, resume, run_request
from tilewright.frontends.cli.make import place_kernel
from tilewright.frontends.cli.terminal import exit_code
from tilewright.frontends.report.runs import verdict_words, why_words
from tilewright.models import providers
from tilewright.playbook.errors import PlaybookProblem
from tilewright.records import Attempt, Run, Settings, Situation, Specification
from tilewright.reference import ReferenceProblem
from tilewright.reference.spares import want_spares
from tilewright.store import LibraryKernel, NoSuchRun, RunFolder, Store
from tilewright.suites import Status, Suite, SuiteFolder, SuiteTask, TaskRecord
from tilewright.tasks import TaskError
from tilewright.tasks.errors import BadArgument

PROGRAM = (sys.executable, "-m", "tilewright.frontends.cli.suite_task")


def main(arguments: Sequence[str]) -> int:
    path, id = arguments
    want_spares()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    folder = SuiteFolder(Path(path))
    suite = folder.suite()
    task = next(one for one in suite.tasks if one.id == id)
    author = own_author(suite.settings.author, task)
    folder.record(outcome(folder, replace(suite, settings=replace(suite.settings, author=author)), task))
    return 0


def own_author(author: str, task: SuiteTask) -> str:
    """A relay or a replay has a folder of its own for every task: its files are called alike in every run."""
    takes_path = author != PLAYBOOK and providers()[author.partition(":")[0]].takes_path
    own = re.sub(r"[^\w.-]", "_", task.id)
    return f"{author}/{own}" if takes_path else author


def _end_with_parent() -> None:
    """The parent holds the other end of the standard input for as long as it lives."""
    while os.read(0, 4096):
        pass
    kill_below(os.getpid())
    os._exit(1)


def outcome(folder: SuiteFolder, suite: Suite, task: SuiteTask) -> TaskRecord:
    """What becomes of a task; a fault is a record too, so that the other tasks go on."""
    began = time.monotonic()
    reporter = TaskTalk(folder, task)
    try:
        record = _recorded(folder, task, _made(folder, suite, task, reporter))
    except PlaybookProblem as error:
        record = TaskRecord(task.id, task.name, Status.UNSUPPORTED, in_options(error))
    except TaskError as error:
        record = TaskRecord(task.id, task.name, Status.REFUSED, in_options(error))
    except (ReferenceProblem, NotAcceptedYet) as error:
        record = TaskRecord(task.id, task.name, Status.REFUSED, str(error))
    except Exception as error:
        if exit_code(error) is None:
            traceback.print_exc()
        said = str(error).strip() or type(error).__name__
        record = TaskRecord(task.id, task.name, Status.FAILED, " ".join(said.split())[:600])
    if record.status is Status.FAILED:
        record = replace(record, run=reporter.run)
    return replace(record, seconds=time.monotonic() - began)


def _made(folder: SuiteFolder, suite: Suite, task: SuiteTask, reporter: Reporter) -> MakeResult:
    """The run of a task at its end, begun or gone on with; or a kernel that the library has."""
    device = _device(suite)
    judged = partial(judges, log=folder.gpu_turns)
    request = resolved(replace(task.request, gpu=device.gpu))
    begun = _begun(folder.run_of(task.id))
    if begun is not None:
        return resume(begun, Addition(), "", reporter, judged=judged)
    reporter.working("reading the task")
    given = read_task(Store(), request, suite.settings, device, suite.fresh)
    if given is not None and not suite.fresh:
        found = _in_library(given.hash, suite.settings, device)
        if found is not None:
            return KernelFound(found, False, suite.settings.licence)
    return run_request(request, suite.settings, device, reporter, fresh=True, given=given, judged=judged)


def _device(suite: Suite) -> ChosenDevice:
    device = choose_device(suite.gpu, suite.settings.spool)
    if device.is_emulated != suite.emulated:
        raise BadArgument(f"the suite was begun on {suite.device}, and here is {device.label}; go on with it there")
    return device


def _begun(run: str) -> RunFolder | None:
    if run:
        with suppress(NoSuchRun):
            return Store().open_run(run)
    return None


def _in_library(task_hash: str, settings: Settings, device: ChosenDevice) -> LibraryKernel | None:
    """A kernel that this author made before, judged and timed on the same device."""
    found = Store().library.find(task_hash, author=settings.author, device=device.label)
    return found if found is not None and found.entry.measurement is not None else None


def _recorded(folder: SuiteFolder, task: SuiteTask, result: MakeResult) -> TaskRecord:
    if isinstance(result, KernelFound):
        return _found(folder, task, result.kernel)
    run = result.run
    if run.best is None or result.kernel is None:
        return TaskRecord(task.id, task.name, Status.NONE_PASSED, _why(run), run=run.id, attempts=len(run.attempts))
    path = place_kernel(result.kernel, folder.kernel_path(task), result.licence)
    return TaskRecord(
        task.id,
        task.name,
        Status.MADE,
        run=run.id,
        attempts=len(run.attempts),
        summary=" ".join(run.best.summary.split()),
        kernel=str(path.relative_to(folder.path)),
        measurement=run.best.measurement,
        provisional=run.best.is_provisional,
        degenerate=run.task.degenerate,
    )


def _found(folder: SuiteFolder, task: SuiteTask, kernel: LibraryKernel) -> TaskRecord:
    path, entry = place_kernel(kernel, folder.kernel_path(task)), kernel.entry
    return TaskRecord(
        task.id,
        task.name,
        Status.MADE,
        run=entry.run,
        kernel=str(path.relative_to(folder.path)),
        measurement=entry.measurement,
        provisional=entry.provisional,
        degenerate=entry.degenerate,
        from_library=True,
    )


def _why(run: Run) -> str:
    """Why no attempt passed: how the run ended, and what was wrong with the last."""
    ended = run.ending_words or "the run was stopped"
    if not run.attempts:
        return ended
    verdict = run.attempts[-1].verdict
    return f"{ended}; the last attempt: {': '.join(filter(None, (verdict_words(verdict), why_words(verdict))))}"


class TaskTalk(Reporter):
    """Lines for the suite's display; the run's name goes into the suite's folder as soon as there is one."""

    def __init__(self, folder: SuiteFolder, task: SuiteTask) -> None:
        self._folder = folder
        self._task = task
        self._attempt = 0
        self.run = ""

    def say(self, text: str, title: str = "") -> None: ...

    def remind(self, text: str) -> None: ...

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

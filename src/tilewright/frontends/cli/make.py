"""`tilewright make` and `resume`: progress and questions go to stderr, the result to stdout."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from tilewright.frontends.api import running
from tilewright.frontends.api.choices import PLAYBOOK, author_name, checked_url, choose_device, settings_of, spool_path
from tilewright.frontends.api.kernel_arguments import pairs
from tilewright.frontends.api.reporter import REMIND_SECONDS, NotAcceptedYet, Reporter, reminding, specification_blocks
from tilewright.frontends.cli import terminal
from tilewright.frontends.cli.words import settled_words
from tilewright.frontends.report import document as doc
from tilewright.frontends.report import runs
from tilewright.frontends.report.finished import (
    Finished,
    answer_blocks,
    end_of_run,
    finished,
    is_catalogued,
    made_before,
    made_by_run,
)
from tilewright.frontends.report.rendering import BAR_CELLS, cell_text, show
from tilewright.frontends.report.run_report import attempt_cells, attempt_heads
from tilewright.kernel_file import KernelFileError
from tilewright.records import (
    Attempt,
    Budget,
    Goal,
    Run,
    Settings,
    Situation,
    Specification,
    Task,
    tuned_path,
    write_reference,
)
from tilewright.store import LibraryEntry, LibraryKernel, Request, RunFolder, Store, write_text
from tilewright.tasks.errors import BadArgument

_ASKING = "the author is at work"
_STYLES = {runs.PROVISIONAL: "yellow", "cannot run here": "yellow", "seen before": "yellow"}
_WIDTHS = (3, 12, 15, 11, 7, 4, 8, BAR_CELLS)  # of columns while rows are still to come
_RANGED_RIGHT, _BAR_COLUMN = (0, 3, 4, 6), 7
_WIDE = 120  # terminals: narrower ones have no room for bars beside what an author says


@dataclass(frozen=True)
class Delivery:
    as_json: bool = False
    output: Path | None = None  # where it is wanted too
    output_is_new: bool = True  # said now, rather than when the run was begun
    author: str = ""  # the one named now; "" where nobody was

    @property
    def stored_output(self) -> str:
        """The output as a run remembers it: it may be resumed from another folder."""
        return os.path.abspath(self.output) if self.output else ""


# What `--json` prints.


@dataclass(frozen=True)
class MakeReport:
    run: Run
    folder: str
    best: int | None  # the number of the best attempt
    kernel: str | None  # its path
    summary: Finished | None = None  # of the kernel: speed, what it takes, gradients, the call


@dataclass(frozen=True)
class FoundReport:
    """Of a kernel that the library has already."""

    found: LibraryEntry
    kernel: str
    summary: Finished


@dataclass(frozen=True)
class BothReport:
    forward: MakeReport | FoundReport
    backward: MakeReport | FoundReport | None
    problem: str  # why there is no backward kernel; "" where there is one


@dataclass(frozen=True)
class SpecificationReport:
    """Of a specification that waits to be accepted."""

    run: str
    folder: str
    specification: Specification


def make(
    request: Annotated[
        str,
        typer.Argument(
            help="Words in quotes, FILE.py:FUNCTION, FILE.py:MODULE(ARGUMENTS), PACKAGE.MODULE:NAME(ARGUMENTS), a "
            "KernelBench file, or a task folder.",
            show_default=False,
        ),
    ],
    shape: terminal.ShapeOption = None,
    set_: terminal.SetOption = None,
    fill: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=KIND",
            help="What a tensor holds: normal, uniform:LOW:HIGH[:upper], integers:LOW:HIGH or index:DIM; may be "
            "repeated.",
        ),
    ] = None,
    gpu: terminal.GpuOption = None,
    arch: terminal.ArchOption = None,
    model: terminal.ModelOption = None,
    author: terminal.AuthorOption = None,
    base_url: terminal.BaseUrlOption = None,
    start: Annotated[Path | None, typer.Option(metavar="FILE.cu", help="Kernel file to improve.")] = None,
    against: Annotated[
        str, typer.Option(metavar="MODULE:FUNCTION", help="A further function to be compared with for speed.")
    ] = "",
    baselines: terminal.BaselinesOption = terminal.BASELINES,
    attempts: terminal.AttemptsOption = terminal.BUDGET.attempts,
    tokens: terminal.TokensOption = terminal.BUDGET.tokens,
    dollars: terminal.DollarsOption = terminal.BUDGET.dollars,
    seconds: terminal.SecondsOption = terminal.BUDGET.seconds,
    candidates: Annotated[int, typer.Option(min=1, help="Candidates for each step.")] = 1,
    enough: terminal.EnoughOption = Settings.good_enough,
    precision: terminal.PrecisionOption = None,
    goal: Annotated[Goal, typer.Option(help="What to be fast at.")] = Goal.THROUGHPUT,
    allow_library: Annotated[bool, typer.Option("--allow-library", help="Allow cuBLAS and the like.")] = False,
    allow_degenerate: terminal.AllowDegenerateOption = False,
    fixed: terminal.FixedOption = None,
    backward: terminal.BackwardOption = False,
    yes: terminal.YesOption = False,
    fresh: terminal.FreshOption = False,
    spool: terminal.SpoolOption = None,
    output: terminal.OutputOption = None,
    licence: terminal.LicenceOption = "",
    as_json: terminal.JsonOption = False,
) -> None:
    """Make a kernel: from words, a PyTorch function or module, a KernelBench file or a task folder."""
    tensors, numbers, values = (pairs(*one) for one in (("--shape", shape), ("--set", set_), ("--fill", fill)))
    sized = tuple(fixed or ())
    asked = Request(request, tensors, numbers, values, "", precision, goal, allow_library, sized, allow_degenerate)
    chosen = author_name(model, author, os.environ)
    if chosen == PLAYBOOK:
        asked = settled_words(asked, fresh or bool(start), Path())
    budget = Budget(attempts, tokens, dollars, seconds)
    try:
        text = terminal.read_kernel_file(start).text if start else ""
    except KernelFileError as error:
        raise BadArgument(f"--start {error}") from None
    settings = settings_of(chosen, budget, base_url, spool, baselines.split(","), against, licence)
    settings = replace(settings, candidates=candidates, good_enough=enough, backward=backward, start=text)
    delivery = Delivery(as_json, output, author=chosen if model or author else "")
    make_run(asked, settings, terminal.wanted_gpu(gpu, arch), fresh, yes, delivery)


def resume(
    run: terminal.RunArgument,
    hint: Annotated[str, typer.Option(metavar="TEXT", help="Something to tell the author.")] = "",
    attempts: Annotated[int | None, typer.Option(min=1, help="So many more attempts.")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="So many more tokens.")] = None,
    dollars: Annotated[float | None, typer.Option(min=0, help="So much more to spend.")] = None,
    seconds: Annotated[float | None, typer.Option(min=1, help="So much more time.")] = None,
    model: terminal.ModelOption = None,
    author: terminal.AuthorOption = None,
    base_url: terminal.BaseUrlOption = None,
    spool: terminal.SpoolOption = None,
    yes: terminal.YesOption = False,
    output: terminal.OutputOption = None,
    as_json: terminal.JsonOption = False,
) -> None:
    """Continue a run that was interrupted or has ended, with a hint or more budget."""
    chosen = author_name(model, author, os.environ) if model or author else ""
    url, place = checked_url(base_url), spool_path(spool)
    addition = running.Addition(attempts, tokens, dollars, seconds, hint, chosen, url, place)
    folder, delivery = Store().open_run(run), Delivery(as_json, output)
    if output is None and (stored := folder.header().settings.output):  # where the run was told to put it
        delivery = replace(delivery, output=Path(stored), output_is_new=False)
    check_output(delivery.output, "-o" if delivery.output_is_new else "the run's own -o")
    with terminal.interruptible():
        reporter = TerminalReporter(yes=yes, as_json=as_json)
        result = running.resume_with_backward(folder, addition, delivery.stored_output, reporter)
    _hand_over(result, delivery, reporter)


def make_run(request: Request, settings: Settings, gpu: str | None, fresh: bool, yes: bool, delivery: Delivery) -> None:
    """Make or find a kernel for a request, whose `gpu` is filled in; with `settings.backward` one for its gradients."""
    check_output(delivery.output)
    if settings.backward and delivery.output:
        check_output(Path(running.backward_output(str(delivery.output))))
    device = choose_device(gpu, settings.spool)
    request, settings = replace(request, gpu=device.gpu), replace(settings, output=delivery.stored_output)
    with terminal.interruptible():
        reporter = TerminalReporter(yes=yes, as_json=delivery.as_json)
        conducted = running.run_with_backward if settings.backward else running.run_request
        result: running.MakeResult | running.WithBackward = conducted(request, settings, device, reporter, fresh=fresh)
    _hand_over(result, delivery, reporter)


class TerminalReporter(Reporter):
    """Lines on stderr and, on a terminal, a live one; `yes` accepts every specification unseen."""

    def __init__(self, console: Console | None = None, *, yes: bool = False, as_json: bool = False) -> None:
        self._console = console or terminal.stderr_console()
        self._yes, self._as_json = yes, as_json
        self._run: Run | None = None
        self.shown: set[int] = set()  # attempts
        self._number = 0
        self._doing = ""
        self._characters = 0
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long the command has taken."""
        return time.monotonic() - self._began

    def say(self, text: str, title: str = "") -> None:
        self._console.print(Text.assemble((f"{title:<8}" if title else "", "bold"), text), soft_wrap=True)

    def remind(self, text: str) -> None:
        if not self._console.is_terminal:
            self.say(text)

    @contextmanager
    def live(self, what: str = "", every_s: float = REMIND_SECONDS) -> Iterator[None]:
        self.working(what)
        if not self._console.is_terminal:
            with reminding(self._still, every_s):
                yield
            return
        with Live(get_renderable=self._status, console=self._console, refresh_per_second=8, transient=True):
            yield

    def _still(self, seconds: float) -> None:
        """Without a terminal: what is going on. A model that is asked has words of its own (`following`)."""
        if self._doing and not self._doing.endswith(_ASKING):
            self._console.print(self._status(), soft_wrap=True)

    def accept(self, folder: RunFolder, specification: Specification) -> None:
        show(self._console, [doc.say(""), *specification_blocks(specification)])
        if self._yes or _confirmed():
            return
        if self._as_json:
            terminal.print_json(SpecificationReport(folder.id, str(folder.path), specification))
        run, words = folder.id, f"waits to be accepted with: tilewright resume {folder.id} --yes; or ask"
        if sys.stdin.isatty():
            words = "was not accepted; ask"
            if folder.untouched:
                folder.discard()
        raise NotAcceptedYet(f"the specification {words} again in other words", run, specification)

    def started(self, run: Run) -> None:
        self._run = run
        for row in runs.rows(run):
            self._print(row)
        super().started(run)

    def asking(self, situation: Situation) -> None:
        super().asking(situation)
        self._number = situation.number
        self.working(f"{self.stage}: {_ASKING}")

    def text(self, text: str) -> None:
        self._characters += len(text)

    def working(self, what: str) -> None:
        self._doing, self._characters = what, 0

    def attempted(self, run: Run, attempt: Attempt) -> None:
        self._run = run
        self._print(next(row for row in runs.rows(run) if row.attempt.number == attempt.number))

    def ended(self, run: Run) -> None:
        self._run = run
        self._doing = ""

    def _print(self, row: runs.Row) -> None:
        """A row of the table of attempts, as it is made."""
        run = self._run
        assert run is not None
        if not self.shown:
            heads = _row_line(attempt_heads(run), self._shows_bars)
            self._console.print(heads, style="bold", overflow="ellipsis", no_wrap=True)
        self.shown.add(row.attempt.number)
        cells = attempt_cells(replace(row, best=False), run)
        line = _row_line(cells if row.time_us is not None else (*cells[:3], row.summary), self._shows_bars)
        line.stylize("" if row.kept else "dim" if row.attempt.passed else _STYLES.get(row.verdict, "red"))
        cropped = self._console.is_terminal
        self._console.print(line, overflow="ellipsis" if cropped else None, no_wrap=True, soft_wrap=not cropped)
        for note in row.notes:
            self._console.print(Text(f"     by algebra: {note}"), soft_wrap=True)

    @property
    def _shows_bars(self) -> bool:
        return not self._console.is_terminal or self._console.width >= _WIDE

    def _status(self) -> Text:
        line, run = Text(overflow="ellipsis", no_wrap=True), self._run
        took = f"  {runs.seconds_words(self.seconds)}"
        if run is None:
            return line.append(f"{self._doing}{took}", style="dim")
        budget = run.settings.budget
        line.append(f"attempt {max(self._number, 1)} of {budget.attempts}  ", style="bold")
        line.append(self._doing)
        if self._characters:
            line.append(f" ({self._characters:,} characters)")
        if run.best is not None:
            line.append(f"  best {runs.time_words(run.best.measurement)}", style="green")
        if run.usage.output_tokens:
            line.append(f"  {runs.dollars_words(run.dollars)} of {runs.dollars_words(budget.dollars)}")
        return line.append(took, style="dim")


def _row_line(cells: Sequence[doc.Cell], bars: bool) -> Text:
    """Cells of the table of attempts at fixed widths; numbers are ranged right."""
    line = Text()
    for number, cell in enumerate(cells):
        width = _WIDTHS[number] if number < len(_WIDTHS) and number < len(cells) - 1 else 0
        if bars or number != _BAR_COLUMN:
            text = cell_text(cell).plain
            line.append(f"{text:>{width}}  " if number in _RANGED_RIGHT else f"{text:<{width}}  ")
    line.rstrip()
    return line


def _confirmed() -> bool:
    try:
        return sys.stdin.isatty() and typer.confirm("Is this what is meant?", err=True)
    except typer.Abort:
        return False


def _hand_over(
    result: running.MakeResult | running.WithBackward, delivery: Delivery, reporter: TerminalReporter
) -> None:
    """Write and show the results; exit with 1 without a kernel."""
    shown = reporter.shown
    if isinstance(result, running.WithBackward):
        report: object = _both_report(result, delivery, shown)
        complete = result.forward.kernel is not None and not result.problem
    else:
        report = _report(result, delivery, shown, took_s=reporter.seconds)
        complete = result.kernel is not None
    if delivery.as_json:
        terminal.print_json(report)
    terminal.exit_with(int(not complete))


def _both_report(both: running.WithBackward, delivery: Delivery, shown: set[int]) -> BothReport:
    complete = both.forward.kernel is not None and not both.problem
    gradients, there = both.backward_kernel, None
    apart = replace(delivery, output=Path(running.backward_output(str(delivery.output))) if delivery.output else None)
    if complete and both.backward is not None and gradients is not None:
        there = gradients.task(), _place(both.backward, apart) or gradients.path
    forward, backward = _report(both.forward, delivery, shown, backward=there, call=not complete), None
    console = terminal.stdout_console()
    if both.backward is not None:
        if not delivery.as_json:
            console.print()
        backward = _report(both.backward, apart, shown, call=not complete)
    if not delivery.as_json:
        console.print(Text(f"\n{both.words}", style="yellow" if both.problem else "bold"))
        if complete and forward.summary is not None:
            # The call that uses both kernels: the forward's file alone knows nothing of the backward's.
            terminal.display([doc.say(doc.Mark("call it:")), doc.Source(forward.summary.call)])
    return BothReport(forward, backward, both.problem)


def _report(
    result: running.MakeResult,
    delivery: Delivery,
    shown: set[int],
    *,
    backward: tuple[Task, Path] | None = None,
    call: bool = True,
    took_s: float | None = None,
) -> MakeReport | FoundReport:
    """The record of a result, which is shown too unless it is wanted as JSON; `call`: with a call of it.

    `shown`: attempts that were printed already; `took_s`: the whole command, where it made this alone.
    """
    path = _place(result, delivery)
    if isinstance(result, running.KernelFound):
        assert path is not None
        if backward is None and (known := result.kernel.backward()) is not None:
            backward = known.task(), known.path
        answers = finished(replace(made_before(result.kernel, path), backward=backward))
        if not delivery.as_json:
            licence = f"--license {result.licence} is recorded beside a copy; have one written with -o FILE.cu"
            blocks = [
                doc.say(runs.found_words(result.kernel.entry, delivery.author, "--fresh"), tone=doc.Tone.STRONG),
                doc.say(f"kernel: {path}", tone=doc.Tone.GOOD),
                *answer_blocks(answers, call=call),
                *doc.say_each([licence * bool(result.licence and delivery.output is None)], doc.Tone.FAIR),
            ]
            terminal.display(blocks)
        return FoundReport(result.kernel.entry, str(path), answers)
    run, summary = result.run, None
    if path is not None:
        summary = finished(replace(made_by_run(run, path, result.folder.request()), backward=backward))
    if not delivery.as_json:
        table = not shown.issuperset(one.number for one in run.attempts) or not _same_stream()
        terminal.display(end_of_run(run, summary, path, table=table, call=call, took_s=took_s))
    best = run.best.number if run.best else None
    return MakeReport(run, str(result.folder.path), best, str(path) if path else None, summary)


def _place(result: running.MakeResult, delivery: Delivery) -> Path | None:
    """Where its kernel is now, put where it is wanted; None where there is none."""
    if result.kernel is None:
        return None
    output = delivery.output
    if (
        isinstance(result, running.RunEnded)
        and result.before
        and output
        and output.exists()
        and not delivery.output_is_new
    ):
        # The run's own output may have been edited since: only the kernel itself is replaced.
        output = output if output.read_bytes() == result.kernel.text().encode() else None
    return place_kernel(result.kernel, output, result.licence)


def _same_stream() -> bool:
    """Whether what is said on stderr and the result on stdout are read together, in one terminal or file."""
    try:
        one, other = os.fstat(sys.stdout.fileno()), os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def place_kernel(kernel: LibraryKernel, output: Path | None, licence: str = "") -> Path:
    """The path of the kernel, which is copied to `output` if there is one; `licence` is stated for the copy.

    One that was made from words with the catalogue has its reference beside it, which `load` falls back to.
    """
    path, task = output or kernel.path, kernel.task()
    try:
        if output is not None:
            write_text(output, kernel.text())
            if tuned_path(kernel.path).exists():
                write_text(tuned_path(output), tuned_path(kernel.path).read_text("utf-8"))
            kernel.copy_provenance(output, licence)
        if is_catalogued(task, kernel.request()):
            write_reference(path, kernel.entry.kernel, task.reference, task.function)
    except OSError as error:
        raise terminal.NotDone(
            f"-o {path} cannot be written ({error.strerror}); the kernel is at {kernel.path}", terminal.FAULT
        ) from None
    return path


def check_output(output: Path | None, option: str = "-o") -> None:
    """An output that cannot be written is refused before anything is made; `said`: what to call it."""
    if output is None:
        return
    terminal.check_writable(option, output)
    folder = output.resolve().parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BadArgument(
            f"{option} {output}: nothing can be written in {folder} ({error.strerror}); give another file with -o"
        ) from None
    for path in (output, tuned_path(output)):
        if path.exists() and not os.access(path, os.W_OK):
            raise BadArgument(f"{option} {output}: {path} cannot be written; give another file with -o")

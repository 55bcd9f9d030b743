"""`tilewright show` and `tilewright runs`: what is on record, in words or as JSON."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.frontends.cli.terminal import print_exactly, print_json, stdout_console
from tilewright.frontends.report import run_report, runs
from tilewright.frontends.report.document import Mark, Source, Tone, say, say_each
from tilewright.frontends.report.finished import answer_blocks, finished, made_by_run
from tilewright.frontends.report.pictures import svg_plot
from tilewright.frontends.report.terminal import show
from tilewright.records import Attempt, Run
from tilewright.store import RunFolder, Store, line_authors, provenance_of, write_text
from tilewright.tasks.errors import BadArgument


@dataclass(frozen=True)
class ShowReport:
    """What `show --json` prints."""

    run: Run
    folder: str
    best: int | None
    kernel: str  # text of the best kernel; "" where none passed


@dataclass(frozen=True)
class AttemptReport:
    """What `show --attempt N --json` prints, and `--kernel`, `--diff N`, `--prompt N`, `--reply N` with it."""

    run: str
    attempt: Attempt
    kernel: str
    diff: str
    prompts: tuple[str, ...]
    replies: tuple[str, ...]


@dataclass(frozen=True)
class Wanted:
    """What of a run is to be shown; the whole in brief where nothing is said."""

    kernel: bool = False
    attempt: int | None = None
    diff: int | None = None
    prompt: int | None = None
    reply: int | None = None
    provenance: bool = False
    plot: Path | None = None

    @property
    def numbers(self) -> tuple[int, ...]:
        """The attempts that something of is wanted."""
        return tuple(one for one in (self.attempt, self.diff, self.prompt, self.reply) if one is not None)


def show_one(name: str, wanted: Wanted, as_json: bool) -> None:
    """One run, or the part of it that is wanted."""
    parts = wanted.kernel + wanted.provenance + len(wanted.numbers)
    if parts > 1:
        raise BadArgument(
            "--kernel, --provenance, --attempt, --diff, --prompt and --reply show different things; give one of them"
        )
    _check_plot(wanted.plot)
    folder = Store().open_run(name)
    run = folder.load()
    if wanted.plot is not None:
        write_text(wanted.plot, svg_plot(run))
    if as_json:
        _print_record(folder, run, wanted)
    elif parts:
        _print_part(folder, run, wanted)
    elif wanted.plot is None:
        _show_run(folder, run)
    else:
        print(f"wrote {wanted.plot}")


def _show_run(folder: RunFolder, run: Run) -> None:
    console, library = stdout_console(), Store().library
    show(console, run_report.run_report(run, folder.worker))
    if run.best is None:
        return
    path = folder.attempt(run.best.number).path / "kernel.cu"
    backward = library.backward_of(run.task.hash)
    made = replace(
        made_by_run(run, path, folder.request()), backward=(backward.task(), backward.path) if backward else None
    )
    made_there = [say(f"backward kernel: {runs.entry_words(backward.entry)}")] if backward else []
    show(console, [say(""), say(Mark(f"kernel: {path}")), *answer_blocks(finished(made)), *made_there])
    show(console, say_each([runs.waiting_words(run)], Tone.FAIR))


def _check_plot(plot: Path | None) -> None:
    if plot is None:
        return
    if plot.suffix.lower() != ".svg":
        raise BadArgument(f"--plot {plot}: the picture is SVG; give a name that ends in .svg")
    if not plot.resolve().parent.is_dir():
        raise BadArgument(f"--plot {plot}: there is no folder {plot.resolve().parent}")


def show_all(as_json: bool) -> None:
    listing = Store().runs()
    if as_json:
        print_json(listing)
    else:
        console = stdout_console()
        show(console, run_report.runs_report(listing, console.width))


def _print_record(folder: RunFolder, run: Run, wanted: Wanted) -> None:
    number = next(iter(wanted.numbers), None)
    if wanted.kernel or wanted.provenance:
        number = _best(run).number
    if wanted.provenance:
        print_json(provenance_of(folder))
        return
    if number is None:
        best = run.best
        kernel = folder.attempt(best.number).text("kernel.cu") if best else ""
        print_json(ShowReport(run, str(folder.path), best.number if best else None, kernel))
        return
    attempt, place = _attempt(run, number), folder.attempt(number)
    print_json(
        AttemptReport(
            run.id,
            attempt,
            place.find_text("kernel.cu") or "",
            run_report.diff_text(folder, attempt),
            prompts_of(folder, number),
            tuple(reply.text for reply in place.replies()),
        )
    )


def _print_part(folder: RunFolder, run: Run, wanted: Wanted) -> None:
    console = stdout_console()
    if wanted.kernel:
        print_exactly(folder.attempt(_best(run).number).text("kernel.cu"))
    elif wanted.provenance:
        best = _best(run)
        authors = line_authors(folder, run, best)
        kernel = folder.attempt(best.number).text("kernel.cu")
        show(console, run_report.provenance_report(provenance_of(folder), authors, kernel))
    elif wanted.diff is not None:
        show(console, [Source(run_report.diff_text(folder, _attempt(run, wanted.diff)), "diff")])
    elif wanted.prompt is not None:
        prompts = prompts_of(folder, wanted.prompt)
        if not prompts:
            raise BadArgument(f"attempt {wanted.prompt} of {run.id} asked no model")
        print_exactly("\n".join(prompts))
    elif wanted.reply is not None:
        replies = folder.attempt(wanted.reply).replies()
        if not replies:
            raise BadArgument(f"attempt {wanted.reply} of {run.id} has no reply of a model")
        print_exactly("\n".join(f"{reply.text.rstrip()}\n" for reply in replies))
    elif wanted.attempt is not None:
        attempt = _attempt(run, wanted.attempt)
        source = folder.attempt(attempt.number).find_text("kernel.cu") or ""
        show(console, run_report.attempt_report(run, attempt, source))


def prompts_of(folder: RunFolder, number: int) -> tuple[str, ...]:
    """What the author was asked in an attempt; 0 is the specification of a request in words."""
    place = folder.attempt(number)
    texts = (place.find_text(f"question-{k}.md") for k in range(1, 10))
    return tuple(text for text in texts if text is not None)


def _attempt(run: Run, number: int) -> Attempt:
    found = next((one for one in run.attempts if one.number == number), None)
    if found is None:
        raise BadArgument(f"run {run.id} has no attempt {number}; it has {len(run.attempts)}")
    return found


def _best(run: Run) -> Attempt:
    if run.best is None:
        raise BadArgument(f"no attempt of run {run.id} has passed, so it has no kernel; see --attempt N")
    return run.best

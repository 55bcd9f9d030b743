"""`tilewright show` and `tilewright runs`: what is on record, in words or as JSON."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from tilewright.frontends.cli.program import JsonOption, RunArgument, check_writable
from tilewright.frontends.cli.terminal import deliver, print_exactly, print_json, stdout_console
from tilewright.frontends.report import run_report
from tilewright.frontends.report.document import Mark, Source, Tone, say, say_each
from tilewright.frontends.report.finished import answer_blocks, finished, made_by_run
from tilewright.frontends.report.pictures import svg_plot
from tilewright.frontends.report.runs import entry_words, waiting_words
from tilewright.frontends.report.terminal import show as print_document
from tilewright.records import Attempt, Run
from tilewright.store import NEWEST, RunFolder, Store, line_authors, provenance_of, write_text
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


def runs(as_json: JsonOption = False) -> None:
    """List the runs of this machine, newest first."""
    listing = Store().runs()
    deliver(listing, as_json, lambda console: print_document(console, run_report.runs_report(listing, console.width)))


def show(
    run: RunArgument = NEWEST,
    number: Annotated[
        int | None,
        typer.Argument(metavar="N", min=1, help="One of its attempts, by number, in full.", show_default=False),
    ] = None,
    kernel: Annotated[bool, typer.Option("--kernel", help="Print the best kernel file.")] = False,
    attempt: Annotated[int | None, typer.Option(metavar="N", help="One attempt in full, as `show RUN N`.")] = None,
    diff: Annotated[int | None, typer.Option(metavar="N", help="What attempt N changed.")] = None,
    prompt: Annotated[
        int | None, typer.Option(metavar="N", help="The prompt of attempt N; 0: of the specification of words.")
    ] = None,
    reply: Annotated[
        int | None, typer.Option(metavar="N", help="The reply in attempt N; 0: with the specification of words.")
    ] = None,
    provenance: Annotated[bool, typer.Option("--provenance", help="Who wrote which line of the best kernel.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Write the progress as a picture.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a run: its task, a table of attempts and its progress; or a part of it, such as attempt N."""
    if number is not None and attempt not in (None, number):
        raise BadArgument(f"attempt {number} and --attempt {attempt} are two; give one of them")
    numbers = {"attempt": number or attempt, "diff": diff, "prompt": prompt, "reply": reply}
    parts = [name for name, one in numbers.items() if one is not None]
    parts += ["kernel"] * kernel + ["provenance"] * provenance
    if len(parts) > 1:
        raise BadArgument(
            "--kernel, --provenance, --attempt, --diff, --prompt and --reply show different things; give one of them"
        )
    check_writable("--plot", plot, ".svg")
    folder = Store().open_run(run)
    loaded = folder.load()
    if plot is not None:
        write_text(plot, svg_plot(loaded))
    part = next(iter(parts), "")
    wanted = next((one for one in numbers.values() if one is not None), None)
    if as_json:
        _print_record(folder, loaded, part, wanted)
    elif part:
        _print_part(folder, loaded, part, wanted or 0)
    elif plot is None:
        _print_whole(folder, loaded)
    else:
        print(f"wrote {plot}")


def _print_whole(folder: RunFolder, run: Run) -> None:
    console, library = stdout_console(), Store().library
    print_document(console, run_report.run_report(run, folder.worker))
    if run.best is None:
        return
    path = folder.attempt(run.best.number).path / "kernel.cu"
    backward = library.backward_of(run.task.hash)
    made = replace(
        made_by_run(run, path, folder.request()), backward=(backward.task(), backward.path) if backward else None
    )
    made_there = [say(f"backward kernel: {entry_words(backward.entry)}")] if backward else []
    print_document(console, [say(""), say(Mark(f"kernel: {path}")), *answer_blocks(finished(made)), *made_there])
    print_document(console, say_each([waiting_words(run)], Tone.FAIR))


def _print_record(folder: RunFolder, run: Run, part: str, number: int | None) -> None:
    if part in ("kernel", "provenance"):
        number = _best(run).number
    if part == "provenance":
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


def _print_part(folder: RunFolder, run: Run, part: str, number: int) -> None:
    console = stdout_console()
    if part == "kernel":
        print_exactly(folder.attempt(_best(run).number).text("kernel.cu"))
    elif part == "provenance":
        best = _best(run)
        authors = line_authors(folder, run, best)
        kernel = folder.attempt(best.number).text("kernel.cu")
        print_document(console, run_report.provenance_report(provenance_of(folder), authors, kernel))
    elif part == "diff":
        print_document(console, [Source(run_report.diff_text(folder, _attempt(run, number)), "diff")])
    elif part == "prompt":
        prompts = prompts_of(folder, number)
        if not prompts:
            raise BadArgument(f"attempt {number} of {run.id} asked no model")
        print_exactly("\n".join(prompts))
    elif part == "reply":
        replies = folder.attempt(number).replies()
        if not replies:
            raise BadArgument(f"attempt {number} of {run.id} has no reply of a model")
        print_exactly("\n".join(f"{reply.text.rstrip()}\n" for reply in replies))
    else:
        attempt = _attempt(run, number)
        source = folder.attempt(attempt.number).find_text("kernel.cu") or ""
        print_document(console, run_report.attempt_report(run, attempt, source))


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

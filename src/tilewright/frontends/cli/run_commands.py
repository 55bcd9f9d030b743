"""Commands on runs: making kernels, one or many, and looking at what became of them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tilewright.frontends.api.kernel_arguments import pairs
from tilewright.frontends.cli import program
from tilewright.frontends.cli.program import (
    BASELINES,
    BUDGET,
    SUITE_BUDGET,
    JsonOption,
    SetOption,
    ShapeOption,
    app,
    read_start,
    wanted_gpu,
)
from tilewright.records import Budget, Goal, Settings
from tilewright.store import NEWEST, Request
from tilewright.tasks.errors import BadArgument


@app.command()
def make(
    request: program.RequestArgument,
    shape: ShapeOption = None,
    set_: SetOption = None,
    fill: program.ValuesOption = None,
    gpu: program.GpuOption = None,
    arch: program.ArchOption = None,
    model: program.ModelOption = None,
    author: program.AuthorOption = None,
    base_url: program.BaseUrlOption = None,
    start: program.StartOption = None,
    against: program.AgainstOption = "",
    baselines: program.BaselinesOption = BASELINES,
    attempts: program.AttemptsOption = BUDGET.attempts,
    tokens: program.TokensOption = BUDGET.tokens,
    dollars: program.DollarsOption = BUDGET.dollars,
    seconds: program.SecondsOption = BUDGET.seconds,
    candidates: program.CandidatesOption = 1,
    enough: program.EnoughOption = Settings.good_enough,
    precision: program.PrecisionOption = None,
    goal: program.GoalOption = Goal.THROUGHPUT,
    allow_library: program.AllowLibraryOption = False,
    allow_degenerate: program.AllowDegenerateOption = False,
    fixed: program.FixedOption = None,
    backward: program.BackwardOption = False,
    yes: program.YesOption = False,
    fresh: program.FreshOption = False,
    spool: program.SpoolOption = None,
    output: program.OutputOption = None,
    licence: program.LicenceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Make a kernel: from words, a PyTorch function or module, a KernelBench file or a task folder."""
    from tilewright.frontends.api.choices import PLAYBOOK, author_name, checked_baselines, with_checked

    tensors, numbers, values = (pairs(*one) for one in (("--shape", shape), ("--set", set_), ("--fill", fill)))
    asked = Request(
        request, tensors, numbers, values, "", precision, goal, allow_library, tuple(fixed or ()), allow_degenerate
    )
    chosen = author_name(model, author, os.environ)
    if chosen == PLAYBOOK:
        from tilewright.frontends.cli.make import refuse_foreseen

        refuse_foreseen(asked, anew=fresh or bool(start))
    from tilewright.frontends.cli.make import Delivery, make_run  # which imports torch

    budget, begun = Budget(attempts, tokens, dollars, seconds), read_start(start) if start else ""
    settings = Settings(author=chosen, budget=budget, candidates=candidates, good_enough=enough, start=begun)
    settings = with_checked(settings, base_url=base_url, spool=spool, against=against, licence=licence)
    settings = replace(settings, baselines=checked_baselines(baselines.split(",")), backward=backward)
    delivery = Delivery(as_json, output, author=chosen if model or author else "")
    make_run(asked, settings, wanted_gpu(gpu, arch), fresh, yes, delivery)


@app.command()
def suite(
    kind: program.SuiteKindArgument,
    folder: program.SuiteFolderArgument,
    level: program.LevelOption = 1,
    ids: program.IdsOption = "",
    gpu: program.GpuOption = None,
    arch: program.ArchOption = None,
    model: program.ModelOption = None,
    author: program.AuthorOption = None,
    base_url: program.BaseUrlOption = None,
    baselines: program.BaselinesOption = BASELINES,
    attempts: program.AttemptsOption = SUITE_BUDGET.attempts,
    tokens: program.TokensOption = SUITE_BUDGET.tokens,
    dollars: program.DollarsOption = SUITE_BUDGET.dollars,
    seconds: program.SecondsOption = SUITE_BUDGET.seconds,
    enough: program.EnoughOption = Settings.good_enough,
    precision: program.PrecisionOption = None,
    fixed: program.FixedOption = None,
    allow_degenerate: program.AllowDegenerateOption = False,
    fresh: program.FreshOption = False,
    workers: program.WorkersOption = None,
    ray: program.RayOption = None,
    spool: program.SpoolOption = None,
    out: program.SuiteOutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make kernels for many tasks side by side and report on them: KernelBench, or a folder of tasks.

    Budgets are of each task. The same command goes on where it was stopped. `report DIR` writes the report of a suite
    again.
    """
    from tilewright.frontends.api.choices import author_name, checked_baselines, with_checked
    from tilewright.frontends.cli.suite import Wanted, suite_command

    chosen = author_name(model, author, os.environ)
    budget = Budget(attempts, tokens, dollars, seconds)
    settings = Settings(author=chosen, budget=budget, good_enough=enough)
    settings = with_checked(settings, base_url=base_url, spool=spool, against="", licence="")
    settings = replace(settings, baselines=checked_baselines(baselines.split(",")))
    tasks = Wanted(kind, folder, level, ids, wanted_gpu(gpu, arch), precision, allow_degenerate)
    suite_command(
        replace(tasks, fixed=tuple(fixed or ()), fresh=fresh, workers=workers, ray=ray, out=out, as_json=as_json),
        settings,
    )


@app.command()
def resume(
    run: program.RunArgument,
    hint: Annotated[str, typer.Option(metavar="TEXT", help="Something to tell the author.")] = "",
    attempts: Annotated[int | None, typer.Option(min=1, help="So many more attempts.")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="So many more tokens.")] = None,
    dollars: Annotated[float | None, typer.Option(min=0, help="So much more to spend.")] = None,
    seconds: Annotated[float | None, typer.Option(min=1, help="So much more time.")] = None,
    model: program.ModelOption = None,
    author: program.AuthorOption = None,
    base_url: program.BaseUrlOption = None,
    spool: program.SpoolOption = None,
    yes: program.YesOption = False,
    output: program.OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on with a run that was interrupted or has ended, with a hint or more budget."""
    from tilewright.frontends.api.choices import author_name, checked_url
    from tilewright.frontends.api.running import Addition
    from tilewright.frontends.cli.make import Delivery, resume_run

    chosen = author_name(model, author, os.environ) if model or author else ""
    place = str(spool.resolve()) if spool else ""
    addition = Addition(attempts, tokens, dollars, seconds, hint, chosen, checked_url(base_url), place)
    resume_run(run, addition, yes, Delivery(as_json, output))


@app.command()
def runs(as_json: JsonOption = False) -> None:
    """List the runs of this machine, newest first."""
    from tilewright.frontends.cli.show import show_all

    show_all(as_json)


@app.command()
def show(
    run: program.RunArgument = NEWEST,
    number: program.AttemptArgument = None,
    kernel: Annotated[bool, typer.Option("--kernel", help="Print the best kernel file.")] = False,
    attempt: Annotated[int | None, typer.Option(metavar="N", help="One attempt in full, as `show RUN N`.")] = None,
    diff: Annotated[int | None, typer.Option(metavar="N", help="What attempt N changed.")] = None,
    prompt: Annotated[int | None, typer.Option(metavar="N", help="What was asked in attempt N; 0: of words.")] = None,
    reply: Annotated[int | None, typer.Option(metavar="N", help="What was answered in attempt N; 0: to words.")] = None,
    provenance: Annotated[bool, typer.Option("--provenance", help="Who wrote which line of the best kernel.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Write the progress as a picture.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a run: its task, a table of attempts and its progress; or a part of it, such as attempt N."""
    from tilewright.frontends.cli.show import Wanted, show_one

    if number is not None and attempt not in (None, number):
        raise BadArgument(f"attempt {number} and --attempt {attempt} are two; give one of them")
    show_one(run, Wanted(kernel, number or attempt, diff, prompt, reply, provenance, plot), as_json)


@app.command()
def view(
    what: program.ViewedArgument = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to serve at; 0 for any that is free.")] = 8765,
    host: Annotated[
        str, typer.Option(help="Address to serve at; any but this machine's own needs --token.")
    ] = "127.0.0.1",
    token: Annotated[str, typer.Option(envvar="TILEWRIGHT_VIEW_TOKEN", help="What a browser must know.")] = "",
    export: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the pages as files instead.")] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Open no window.")] = False,
) -> None:
    """Serve pages on which runs can be watched and kernels compared, to a browser on this machine."""
    from tilewright.frontends.cli.view import ViewOptions
    from tilewright.frontends.cli.view import view as view_pages

    view_pages(what, ViewOptions(host, port, token, export, not no_browser))


@app.command()
def explain(
    run: program.RunArgument = NEWEST,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="FILE.html, all in one; or FILE.md, with its pictures."),
    ] = None,
) -> None:
    """Tell a run as a lesson for somebody new to CUDA: each step with why and what it gained, pictures, exercises."""
    from tilewright.frontends.cli.explain import explain_run

    explain_run(run, output)


@app.command()
def find(
    model_name: program.ModelArgument,
    shape: ShapeOption = None,
    set_: SetOption = None,
    gpu: program.GpuOption = None,
    make: program.MakeRegionOption = None,
    model: program.ModelOption = None,
    author: program.AuthorOption = None,
    base_url: program.BaseUrlOption = None,
    attempts: program.AttemptsOption = BUDGET.attempts,
    dollars: program.DollarsOption = BUDGET.dollars,
    seconds: program.SecondsOption = BUDGET.seconds,
    backward: program.BackwardOption = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Write the bars as a picture.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the regions of a model that are worth a kernel; make kernels for them and try them in the model."""
    from tilewright.frontends.finding.command import FindOptions, find_in

    making = {"model": model, "author": author, "base_url": base_url or "", "backward": backward}
    budget = {"attempts": attempts, "dollars": dollars, "seconds": seconds}
    shapes, numbers = pairs("--shape", shape), pairs("--set", set_)
    find_in(model_name, FindOptions(shapes, numbers, gpu, plot, as_json, tuple(make or ()), {**making, **budget}))

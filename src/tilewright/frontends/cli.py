"""The `tilewright` command: each command turns its arguments into one call, and a record into text or JSON.

Exit codes: 0 done; 1 the kernel was rejected (it does not build, does not apply, is wrong or at fault) or none came
about; 2 bad input; 3 a fault of the machine or of a service, or a kernel that cannot be emulated; 130 interrupted.
Errors are one clear message on stderr.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TextIO

import typer

from tilewright import __version__
from tilewright.frontends import options
from tilewright.frontends.build_report import report_build, show_build
from tilewright.frontends.check import CheckOptions, check_file
from tilewright.frontends.check_text import show_check
from tilewright.frontends.doctor import diagnose, show_facts
from tilewright.frontends.kernel_arguments import (
    SMALL_SHAPES,
    BadArgument,
    choose_profiles,
    complete_arguments,
    pairs,
    parse_arguments,
    parse_contents,
)
from tilewright.frontends.options import JsonOption, SetOption, ShapeOption
from tilewright.frontends.terminal import FAULT, error_text, exit_code, print_json, progress, stdout_console
from tilewright.kernel_file import KernelFile, KernelFileError, parse
from tilewright.records import (
    ARCHITECTURES,
    PROFILES,
    USUAL_BASELINES,
    Budget,
    BuildFailure,
    Emulation,
    Goal,
    Precision,
    Settings,
)
from tilewright.reference.spares import want_spares
from tilewright.store import NEWEST, Request
from tilewright.toolchain import sass_text

app = typer.Typer(
    name="tilewright",
    help="Describe a GPU operation; get one CUDA kernel file that is proved right and runs from PyTorch.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

FileArgument = Annotated[Path, typer.Argument(help="The kernel file.", show_default=False)]
_BASELINES = ",".join(USUAL_BASELINES)
_BUDGET = Budget()
_SUITE_BUDGET = Budget(attempts=4, seconds=900.0)  # of each task, which waits for its turns at the GPU too


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        print(f"tilewright {__version__}")
        raise typer.Exit


@app.command()
def build(
    file: FileArgument,
    arch: Annotated[
        list[str] | None,
        typer.Option(metavar="ARCH", help=f"Target architecture; may be repeated: {', '.join(ARCHITECTURES)}."),
    ] = None,
    gpu: Annotated[
        list[str] | None, typer.Option(metavar="GPU", help=f"Target GPU; may be repeated: {', '.join(PROFILES)}.")
    ] = None,
    shape: ShapeOption = None,
    set_: SetOption = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder for the cubin and PTX files.")] = None,
    sass: Annotated[bool, typer.Option("--sass", help="Print the machine code too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Build a kernel file for one or several GPUs; show its plan, resource use, occupancy and SASS highlights."""
    kernel_file = read_kernel_file(file)
    if output and output.exists() and not output.is_dir():
        raise BadArgument(f"-o {output}: a file; give the folder to write the cubin and PTX files into")
    profiles = choose_profiles(arch or [], gpu or [])
    given = parse_arguments(kernel_file.plan.op, shape or [], set_ or [])
    arguments, guessed = complete_arguments(kernel_file, given, profiles[0])
    report, builds = report_build(kernel_file, arguments, guessed, profiles)
    if output:
        output.mkdir(parents=True, exist_ok=True)
        for result in filter(None, builds):
            (output / f"{file.stem}.{result.arch}.cubin").write_bytes(result.cubin)
            (output / f"{file.stem}.{result.arch}.ptx").write_text(result.ptx)
    if as_json:
        print_json(report)
    else:
        console = stdout_console()
        show_build(console, kernel_file, report)
        for result in filter(None, builds) if sass else ():
            console.print(sass_text(result), markup=False, highlight=False)
    if not report.succeeded:
        raise typer.Exit(1)


@app.command()
def check(
    file: FileArgument,
    reference: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:FUNCTION", help="A PyTorch function of the op's parameters; results must agree."),
    ] = None,
    shape: ShapeOption = None,
    set_: SetOption = None,
    fill: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=KIND", help="What a tensor holds: normal, uniform:LOW:HIGH or integers:LOW:HIGH."),
    ] = None,
    schedules: Annotated[
        int, typer.Option(min=1, help="Orders of warps and blocks to try; all but the first are random.")
    ] = 3,
    seed: Annotated[int, typer.Option(help="Of the random schedules.")] = 0,
    gpu: Annotated[str, typer.Option(metavar="GPU", help=f"GPU to emulate: {', '.join(PROFILES)}.")] = "H200",
    blocks: Annotated[
        int | None, typer.Option(min=1, help="Run only so many blocks of each launch, evenly spread.")
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(min=0, help="Relative error to allow, in place of the tolerance made for each element."),
    ] = None,
    counters: Annotated[bool, typer.Option("--counters", help="List the file, each line with what it did.")] = False,
    seconds: Annotated[float, typer.Option(min=0.1, help="Limit on the emulated run, and on the reference.")] = 120.0,
    as_json: JsonOption = False,
) -> None:
    """Run a kernel file in the emulator: find out-of-bounds, races, uninitialised reads; compare with a reference."""
    kernel_file = read_kernel_file(file)
    if reference and blocks:
        raise BadArgument(
            "--blocks leaves most of the results unwritten, so there is nothing to compare; drop one of the two"
        )
    (profile,) = choose_profiles([], [gpu])
    op = kernel_file.plan.op
    given = parse_arguments(op, shape or [], set_ or [])
    arguments, guessed = complete_arguments(kernel_file, given, profile, SMALL_SHAPES)
    options = CheckOptions(
        gpu=profile,
        emulation=Emulation(schedules=schedules, seed=seed, sampled_blocks=blocks),
        reference=split_reference(reference) if reference else None,
        contents=parse_contents(op, fill or []),
        tolerance=tolerance,
        seconds=seconds,
        keep_counts=counters,
    )
    with progress() as say:
        report = check_file(kernel_file, arguments, guessed, options, say)
    if as_json:
        print_json(report)
    else:
        show_check(stdout_console(), kernel_file, report)
    if report.outcome.exit_status:
        raise typer.Exit(report.outcome.exit_status)


@app.command()
def lint(
    file: FileArgument,
    shape: ShapeOption = None,
    set_: SetOption = None,
    gpu: Annotated[str, typer.Option(metavar="GPU", help=f"GPU to build for: {', '.join(PROFILES)}.")] = "H200",
    as_json: JsonOption = False,
) -> None:
    """Read a kernel file and what the compiler makes of it: faults and slow habits by line, without running it."""
    from tilewright.frontends.lint_report import report_lint, show_failure, show_lint

    kernel_file = read_kernel_file(file)
    (profile,) = choose_profiles([], [gpu])
    given = parse_arguments(kernel_file.plan.op, shape or [], set_ or [])
    arguments, guessed = complete_arguments(kernel_file, given, profile)
    report = report_lint(kernel_file, arguments, guessed, profile)
    if as_json:
        print_json(report)
    elif isinstance(report, BuildFailure):
        show_failure(stdout_console(), report)
    else:
        show_lint(stdout_console(), kernel_file, report)
    if isinstance(report, BuildFailure) or report.has_errors:
        raise typer.Exit(1)


@app.command()
def audit(
    file: Annotated[
        Path, typer.Argument(help="A kernel file, or CUDA as it is found: a .cu or .py file.", show_default=False)
    ],
    reference: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:FUNCTION", help="A PyTorch function of the op's parameters; it decides."),
    ] = None,
    shape: ShapeOption = None,
    set_: SetOption = None,
    function: Annotated[str, typer.Option(metavar="NAME", help="Of a file with several launchers: this one.")] = "",
    include: options.IncludeOption = None,
    define: options.DefineOption = None,
    gpu: options.GpuOption = None,
    spool: options.SpoolOption = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE.md", help="Write the report as Markdown too.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write it as one HTML file too.")] = None,
    improve: Annotated[
        bool, typer.Option("--improve", help="Then have it improved: a run that starts from it, told what was found.")
    ] = False,
    model: options.ModelOption = None,
    author: options.AuthorOption = None,
    base_url: options.BaseUrlOption = None,
    attempts: options.AttemptsOption = _BUDGET.attempts,
    tokens: options.TokensOption = _BUDGET.tokens,
    dollars: options.DollarsOption = _BUDGET.dollars,
    seconds: options.SecondsOption = _BUDGET.seconds,
    output: options.OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Judge a kernel you have: is it right, where does its time go, what would mending it gain, line by line."""
    from tilewright.frontends.audit.command import Improvement, Renderings, audit_command
    from tilewright.frontends.audit.subject import Asked
    from tilewright.frontends.choices import author_name, with_checked
    from tilewright.frontends.make import Delivery

    improvement = None
    if improve:
        chosen, budget = author_name(model, author, os.environ), Budget(attempts, tokens, dollars, seconds)
        settings = Settings(author=chosen, budget=budget)
        settings = with_checked(settings, base_url=base_url, spool=spool, against="", licence="")
        improvement = Improvement(settings, Delivery(output=output, author=chosen if model or author else ""))
    elif model or author or output:
        raise BadArgument("--model, --author and -o say who improves the kernel and where it goes; give --improve too")
    known = split_reference(reference) if reference else None
    said = (tuple(shape or ()), tuple(set_ or ()), tuple(include or ()), tuple(define or ()))
    asked = Asked(file, function, known, *said)
    place = str(spool.resolve()) if spool else ""
    if status := audit_command(asked, gpu, place, Renderings(as_json, markdown, html), improvement):
        raise typer.Exit(status)


@app.command()
def bench(
    file: FileArgument,
    against: Annotated[
        str,
        typer.Option(
            metavar="NAME,FILE.cu",
            help="What to time it beside: eager, compile, max-autotune, library, kernel files of the same op. "
            "[default: eager,compile where there is a reference]",
        ),
    ] = "",
    reference: Annotated[
        str | None, typer.Option(metavar="FILE.py:FUNCTION", help="A PyTorch function of the op's parameters.")
    ] = None,
    shape: ShapeOption = None,
    set_: SetOption = None,
    gpu: options.GpuOption = None,
    spool: options.SpoolOption = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Write the bars as a picture.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Time a kernel file beside PyTorch and other kernel files: in turn, on a cold cache; modelled without a GPU."""
    from tilewright.frontends.bench.command import bench_command
    from tilewright.frontends.bench.contest import Asked

    known = split_reference(reference) if reference else None
    others = tuple(name for one in (against or _BASELINES * bool(known)).split(",") if (name := one.strip()))
    place = str(spool.resolve()) if spool else ""
    asked = Asked(file, others, known, tuple(shape or ()), tuple(set_ or ()))
    if status := bench_command(asked, gpu, place, plot, as_json):
        raise typer.Exit(status)


@app.command()
def make(
    request: options.RequestArgument,
    shape: ShapeOption = None,
    set_: SetOption = None,
    fill: options.ValuesOption = None,
    gpu: options.GpuOption = None,
    arch: options.ArchOption = None,
    model: options.ModelOption = None,
    author: options.AuthorOption = None,
    base_url: options.BaseUrlOption = None,
    start: options.StartOption = None,
    against: options.AgainstOption = "",
    baselines: options.BaselinesOption = _BASELINES,
    attempts: options.AttemptsOption = _BUDGET.attempts,
    tokens: options.TokensOption = _BUDGET.tokens,
    dollars: options.DollarsOption = _BUDGET.dollars,
    seconds: options.SecondsOption = _BUDGET.seconds,
    candidates: options.CandidatesOption = 1,
    enough: options.EnoughOption = Settings.good_enough,
    precision: options.PrecisionOption = Precision.DTYPE,
    goal: options.GoalOption = Goal.THROUGHPUT,
    allow_library: options.AllowLibraryOption = False,
    allow_degenerate: options.AllowDegenerateOption = False,
    fixed: options.FixedOption = None,
    backward: options.BackwardOption = False,
    yes: options.YesOption = False,
    fresh: options.FreshOption = False,
    spool: options.SpoolOption = None,
    output: options.OutputOption = None,
    licence: options.LicenceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Make a kernel: from words, a PyTorch function or module, a KernelBench file or a task folder."""
    from tilewright.frontends.choices import PLAYBOOK, author_name, checked_baselines, with_checked

    tensors, numbers, values = (pairs(*one) for one in (("--shape", shape), ("--set", set_), ("--fill", fill)))
    asked = Request(
        request, tensors, numbers, values, "", precision, goal, allow_library, tuple(fixed or ()), allow_degenerate
    )
    chosen = author_name(model, author, os.environ)
    if chosen == PLAYBOOK:
        from tilewright.frontends.foreseen import refuse_foreseen

        refuse_foreseen(asked, anew=fresh or bool(start))
    from tilewright.frontends.make import Delivery, make_run  # which imports torch

    budget, begun = Budget(attempts, tokens, dollars, seconds), read_start(start) if start else ""
    settings = Settings(author=chosen, budget=budget, candidates=candidates, good_enough=enough, start=begun)
    settings = with_checked(settings, base_url=base_url, spool=spool, against=against, licence=licence)
    settings = replace(settings, baselines=checked_baselines(baselines.split(",")), backward=backward)
    delivery = Delivery(as_json, output, author=chosen if model or author else "")
    make_run(asked, settings, wanted_gpu(gpu, arch), fresh, yes, delivery)


@app.command()
def suite(
    kind: options.SuiteKindArgument,
    folder: options.SuiteFolderArgument,
    level: options.LevelOption = 1,
    ids: options.IdsOption = "",
    gpu: options.GpuOption = None,
    arch: options.ArchOption = None,
    model: options.ModelOption = None,
    author: options.AuthorOption = None,
    base_url: options.BaseUrlOption = None,
    baselines: options.BaselinesOption = _BASELINES,
    attempts: options.AttemptsOption = _SUITE_BUDGET.attempts,
    tokens: options.TokensOption = _SUITE_BUDGET.tokens,
    dollars: options.DollarsOption = _SUITE_BUDGET.dollars,
    seconds: options.SecondsOption = _SUITE_BUDGET.seconds,
    enough: options.EnoughOption = Settings.good_enough,
    precision: options.PrecisionOption = Precision.DTYPE,
    fixed: options.FixedOption = None,
    allow_degenerate: options.AllowDegenerateOption = False,
    fresh: options.FreshOption = False,
    workers: options.WorkersOption = None,
    ray: options.RayOption = None,
    spool: options.SpoolOption = None,
    out: options.SuiteOutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make kernels for many tasks side by side and report on them: KernelBench, or a folder of tasks.

    Budgets are of each task. The same command goes on where it was stopped. `report DIR` writes the report of a suite
    again.
    """
    from tilewright.frontends.choices import author_name, checked_baselines, with_checked
    from tilewright.frontends.suite.command import Wanted, suite_command

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
    run: options.RunArgument,
    hint: Annotated[str, typer.Option(metavar="TEXT", help="Something to tell the author.")] = "",
    attempts: Annotated[int | None, typer.Option(min=1, help="So many more attempts.")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="So many more tokens.")] = None,
    dollars: Annotated[float | None, typer.Option(min=0, help="So much more to spend.")] = None,
    seconds: Annotated[float | None, typer.Option(min=1, help="So much more time.")] = None,
    model: options.ModelOption = None,
    author: options.AuthorOption = None,
    base_url: options.BaseUrlOption = None,
    spool: options.SpoolOption = None,
    yes: options.YesOption = False,
    output: options.OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on with a run that was interrupted or has ended, with a hint or more budget."""
    from tilewright.frontends.choices import author_name, checked_url
    from tilewright.frontends.conduct import Addition
    from tilewright.frontends.make import Delivery, resume_run

    chosen = author_name(model, author, os.environ) if model or author else ""
    place = str(spool.resolve()) if spool else ""
    addition = Addition(attempts, tokens, dollars, seconds, hint, chosen, checked_url(base_url), place)
    resume_run(run, addition, yes, Delivery(as_json, output))


@app.command()
def runs(as_json: JsonOption = False) -> None:
    """List the runs of this machine, newest first."""
    from tilewright.frontends.show import show_all

    show_all(as_json)


@app.command()
def show(
    run: options.RunArgument = NEWEST,
    kernel: Annotated[bool, typer.Option("--kernel", help="Print the best kernel file.")] = False,
    attempt: Annotated[int | None, typer.Option(metavar="N", help="One attempt in full.")] = None,
    diff: Annotated[int | None, typer.Option(metavar="N", help="What attempt N changed.")] = None,
    prompt: Annotated[int | None, typer.Option(metavar="N", help="What was asked in attempt N; 0: of words.")] = None,
    reply: Annotated[int | None, typer.Option(metavar="N", help="What was answered in attempt N; 0: to words.")] = None,
    provenance: Annotated[bool, typer.Option("--provenance", help="Who wrote which line of the best kernel.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Write the progress as a picture.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a run: its task, a table of attempts and its progress; or a part of it."""
    from tilewright.frontends.show import Wanted, show_one

    show_one(run, Wanted(kernel, attempt, diff, prompt, reply, provenance, plot), as_json)


@app.command()
def view(
    what: options.ViewedArgument = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to serve at; 0 for any that is free.")] = 8765,
    host: Annotated[
        str, typer.Option(help="Address to serve at; any but this machine's own needs --token.")
    ] = "127.0.0.1",
    token: Annotated[str, typer.Option(envvar="TILEWRIGHT_VIEW_TOKEN", help="What a browser must know.")] = "",
    export: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the pages as files instead.")] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Open no window.")] = False,
) -> None:
    """Serve pages on which runs can be watched and kernels compared, to a browser on this machine."""
    from tilewright.frontends.view.command import ViewOptions
    from tilewright.frontends.view.command import view as view_pages

    view_pages(what, ViewOptions(host, port, token, export, not no_browser))


@app.command()
def explain(
    run: options.RunArgument = NEWEST,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="FILE.html, all in one; or FILE.md, with its pictures."),
    ] = None,
) -> None:
    """Tell a run as a lesson for somebody new to CUDA: each step with why and what it gained, pictures, exercises."""
    from tilewright.frontends.explain.command import explain_run

    explain_run(run, output)


@app.command()
def find(
    model_name: options.ModelArgument,
    shape: ShapeOption = None,
    set_: SetOption = None,
    gpu: options.GpuOption = None,
    make: options.MakeRegionOption = None,
    model: options.ModelOption = None,
    author: options.AuthorOption = None,
    base_url: options.BaseUrlOption = None,
    attempts: options.AttemptsOption = _BUDGET.attempts,
    dollars: options.DollarsOption = _BUDGET.dollars,
    seconds: options.SecondsOption = _BUDGET.seconds,
    backward: options.BackwardOption = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Write the bars as a picture.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the regions of a model that are worth a kernel; make kernels for them and try them in the model."""
    from tilewright.frontends.finding.command import FindOptions, find_in

    making = {"model": model, "author": author, "base_url": base_url or "", "backward": backward}
    budget = {"attempts": attempts, "dollars": dollars, "seconds": seconds}
    shapes, numbers = pairs("--shape", shape), pairs("--set", set_)
    find_in(model_name, FindOptions(shapes, numbers, gpu, plot, as_json, tuple(make or ()), {**making, **budget}))


@app.command("import")
def import_(
    what: Annotated[
        Path, typer.Argument(help="A .cu file, a .py file with a CUDA extension, or a folder.", show_default=False)
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="K.cu", help="The kernel file to write, or a folder.")
    ] = None,
    function: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Import only this launcher; may be repeated.")
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:NAME", help="A function of the op's parameters, or the model it replaces."),
    ] = None,
    shape: ShapeOption = None,
    set_: SetOption = None,
    include: options.IncludeOption = None,
    define: options.DefineOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring CUDA as it is found into kernel files, checked; say what could not be carried."""
    from tilewright.frontends.importing import Wanted, import_command

    asked = split_reference(reference) if reference else None
    said = (tuple(shape or ()), tuple(set_ or ()), tuple(include or ()), tuple(define or ()))
    wanted = Wanted(what, output, tuple(function or ()), asked, *said)
    if status := import_command(wanted, as_json):
        raise typer.Exit(status)


@app.command()
def mcp(
    root: Annotated[Path, typer.Option(help="The folder that exports may be written below.")] = Path(),
    gpu: options.GpuOption = None,
    spool: options.SpoolOption = None,
) -> None:
    """Serve a coding agent over the Model Context Protocol, on stdin and stdout: the agent is the author."""
    from tilewright.frontends.agents.serving import serve_mcp

    serve_mcp(root, gpu, spool)


@app.command()
def skill(
    folder: Annotated[Path, typer.Argument(help="The folder that holds an agent's skills.", show_default=False)],
) -> None:
    """Write the Agent Skill by which a coding agent learns to drive Tilewright, into DIR/tilewright."""
    from tilewright.frontends.agents.skill_folder import write_skill

    print(f"wrote {write_skill(folder)}")


@app.command()
def export(
    what: options.ExportedArgument,
    to: options.TargetOption,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write.", show_default=False)],
    name: options.PackageOption = "",
    arch: options.ArchesOption = None,
    shape: ShapeOption = None,
    set_: SetOption = None,
    reference: Annotated[
        str | None, typer.Option(metavar="FILE.py:FUNCTION", help="A PyTorch function that does the same.")
    ] = None,
    layer: options.LayerOption = "",
    licence: options.LicenceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Write a finished kernel as a torch package, a project for the Hugging Face Hub, or plain CUDA sources."""
    from tilewright.frontends.exporting import Wishes, export_command

    known = split_reference(reference) if reference else None
    wishes = Wishes(to, output, name, tuple(arch or ()), tuple(shape or ()), tuple(set_ or ()), known, layer, licence)
    export_command(what, wishes, as_json)


@app.command()
def publish(
    what: Annotated[str, typer.Argument(help="An export --to hub, or a run.", metavar="DIR|RUN", show_default=False)],
    to: Annotated[str, typer.Option("--to", metavar="USER/NAME", help="Repository on the Hub.", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be uploaded; send nothing.")] = False,
    private: Annotated[bool, typer.Option("--private", help="Make the repository a private one.")] = False,
    licence: options.LicenceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Upload an exported kernel to the Hugging Face Hub; what the referee has not passed is refused."""
    from tilewright.frontends.publishing import publish_command

    publish_command(what, to, dry_run, private, licence, as_json)


@app.command()
def teach(
    runs: options.TaughtArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="The skill's folder.", show_default=False)
    ],
    model: Annotated[
        str | None,
        typer.Option(metavar="PROVIDER:NAME", help="Who writes the guidance; without one it is made of the records."),
    ] = None,
    base_url: options.BaseUrlOption = None,
    licence: options.LicenceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Make an Agent Skill of what runs showed: what paid, what failed and what mended it, examples that are tested."""
    from tilewright.frontends.choices import author_name, checked_url
    from tilewright.frontends.teaching.teach_command import teach_command

    name = author_name(model, None, os.environ) if model else ""
    teach_command(runs, output, name, checked_url(base_url), licence, as_json)


@app.command()
def dataset(
    runs: options.TaughtArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="A .jsonl or .parquet file.", show_default=False)
    ],
    passed: Annotated[bool, typer.Option("--passed", help="Only replies whose kernel passed.")] = False,
    licence: options.LicenceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Write the prompts and replies of runs, each with its verdict and speed, as records for fine-tuning."""
    from tilewright.frontends.teaching.dataset_command import dataset_command

    dataset_command(runs, output, licence, passed, as_json)


@app.command()
def exam(
    skill: Annotated[Path, typer.Argument(help="A skill's folder.", metavar="SKILL", show_default=False)],
    tasks: Annotated[
        Path,
        typer.Option(metavar="DIR", help="A folder of tasks, as `suite folder` takes it.", show_default=False),
    ],
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="PROVIDER:NAME", help="A student; may be repeated.", show_default=False),
    ] = None,
    base_url: options.BaseUrlOption = None,
    gpu: options.GpuOption = None,
    attempts: options.AttemptsOption = _SUITE_BUDGET.attempts,
    tokens: options.TokensOption = _SUITE_BUDGET.tokens,
    dollars: options.DollarsOption = _SUITE_BUDGET.dollars,
    seconds: options.SecondsOption = _SUITE_BUDGET.seconds,
    workers: options.WorkersOption = None,
    spool: options.SpoolOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Folder of the exam and its report.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure what a skill changes: students write kernels for held-out tasks, with it and without.

    Budgets are of each task, the same both ways. The same command goes on where it was stopped.
    """
    from tilewright.frontends.choices import with_checked
    from tilewright.frontends.teaching.exam_command import Wanted, exam_command

    settings = Settings(author="", budget=Budget(attempts, tokens, dollars, seconds))
    settings = with_checked(settings, base_url=base_url, spool=spool, against="", licence="")
    exam_command(Wanted(skill, tuple(model or ()), tasks, gpu, workers, output, as_json), settings)


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Say what this machine offers - GPU, driver, compiler, headers, keys by name, disk - and what would improve it."""
    facts = diagnose()
    if as_json:
        print_json(facts)
    else:
        show_facts(stdout_console(), facts)
    if any(fact.blocks for fact in facts):
        raise typer.Exit(3)


def wanted_gpu(gpu: str | None, arch: str | None) -> str | None:
    if gpu is not None and arch is not None:
        raise BadArgument("--gpu and --arch name two targets; drop one")
    return gpu or arch


def split_reference(text: str) -> tuple[Path, str]:
    path, colon, function = text.rpartition(":")
    if not colon or not path or not function.isidentifier():
        raise BadArgument(f"--reference {text}: write FILE.py:FUNCTION")
    if not Path(path).is_file():
        raise BadArgument(f"--reference {text}: there is no file {path}")
    return Path(path), function


def read_kernel_file(path: Path) -> KernelFile:
    if path.is_dir():
        raise BadArgument(f"{path}: a folder; give the path of one kernel file (.cu)")
    if not path.exists():
        raise BadArgument(f"{path}: no such file; give the path of a kernel file (.cu)")
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError:
        raise BadArgument(f"{path}: not UTF-8 text; save the kernel file as UTF-8") from None
    return parse(text, str(path))


def read_start(path: Path) -> str:
    try:
        return read_kernel_file(path).text
    except KernelFileError as error:
        raise BadArgument(f"--start {error}") from None


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning as one sentence for people, without the place in this program that gave it."""
    print(f"tilewright: {message}", file=sys.stderr)


def _settle_streams() -> None:
    """Streams that can be printed to, whoever started the command: one may be closed, or of a narrow encoding."""
    sys.stdout, sys.stderr = (stream or io.StringIO() for stream in (sys.stdout, sys.stderr))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def main() -> None:
    """Run the command; every expected failure is one message and an exit code, and only a fault has a traceback."""
    warnings.showwarning = _show_warning
    _settle_streams()
    want_spares()
    try:
        app()
    except (Exception, KeyboardInterrupt) as error:
        code = exit_code(error)
        if code is None:
            traceback.print_exc()
            print("tilewright: this is a fault of tilewright itself; please report what stands above", file=sys.stderr)
            sys.exit(FAULT)
        print(error_text(error), file=sys.stderr)
        sys.exit(code)

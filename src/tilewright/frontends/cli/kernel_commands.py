"""Commands on kernel files: build, check, lint, audit, bench, import."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tilewright.frontends.api.kernel_arguments import (
    SMALL_SHAPES,
    choose_profiles,
    complete_arguments,
    parse_arguments,
    parse_contents,
)
from tilewright.frontends.api.references import named_reference
from tilewright.frontends.cli import program
from tilewright.frontends.cli.build import report_build
from tilewright.frontends.cli.check import CheckOptions, check_file
from tilewright.frontends.cli.program import (
    BASELINES,
    BUDGET,
    FileArgument,
    JsonOption,
    SetOption,
    ShapeOption,
    app,
    read_kernel_file,
    split_reference,
)
from tilewright.frontends.cli.terminal import print_json, progress, stdout_console
from tilewright.frontends.report.checks import build_report, check_report
from tilewright.frontends.report.terminal import show
from tilewright.kernel_file import TunedChoices
from tilewright.records import ARCHITECTURES, PROFILES, Budget, BuildFailure, Emulation, Settings
from tilewright.tasks.errors import BadArgument
from tilewright.toolchain import sass_text


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
    report, builds = report_build(kernel_file, arguments, guessed, profiles, TunedChoices.load(file))
    if output:
        output.mkdir(parents=True, exist_ok=True)
        for result in filter(None, builds):
            (output / f"{file.stem}.{result.arch}.cubin").write_bytes(result.cubin)
            (output / f"{file.stem}.{result.arch}.ptx").write_text(result.ptx)
    if as_json:
        print_json(report)
    else:
        console = stdout_console()
        show(console, build_report(kernel_file, report))
        for result in filter(None, builds) if sass else ():
            console.print(sass_text(result), markup=False, highlight=False)
    if not report.succeeded:
        raise typer.Exit(1)


@app.command()
def check(
    file: FileArgument,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:FUNCTION",
            help="A PyTorch function of the op's parameters, a module (FILE.py:NAME(ARGUMENTS)), a KernelBench file or "
            "the run that made it; results must agree.",
        ),
    ] = None,
    shape: ShapeOption = None,
    set_: SetOption = None,
    fill: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=KIND", help="What a tensor holds: normal, uniform:LOW:HIGH[:upper] or integers:LOW:HIGH."
        ),
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
        contents=parse_contents(op, fill or []),
        tolerance=tolerance,
        seconds=seconds,
        keep_counts=counters,
    )
    with progress() as say, named_reference(reference, arguments) if reference else nullcontext() as known:
        report = check_file(kernel_file, arguments, guessed, replace(options, reference=known), say)
    if as_json:
        print_json(report)
    else:
        show(stdout_console(), check_report(kernel_file, report))
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
    from tilewright.frontends.cli.lint import report_lint
    from tilewright.frontends.report.checks import failure_report, lint_report

    kernel_file = read_kernel_file(file)
    (profile,) = choose_profiles([], [gpu])
    given = parse_arguments(kernel_file.plan.op, shape or [], set_ or [])
    arguments, guessed = complete_arguments(kernel_file, given, profile)
    report = report_lint(kernel_file, arguments, guessed, profile)
    if as_json:
        print_json(report)
    elif isinstance(report, BuildFailure):
        show(stdout_console(), failure_report(report))
    else:
        show(stdout_console(), lint_report(kernel_file, report))
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
    include: program.IncludeOption = None,
    define: program.DefineOption = None,
    gpu: program.GpuOption = None,
    spool: program.SpoolOption = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE.md", help="Write the report as Markdown too.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write it as one HTML file too.")] = None,
    improve: Annotated[
        bool, typer.Option("--improve", help="Then have it improved: a run that starts from it, told what was found.")
    ] = False,
    model: program.ModelOption = None,
    author: program.AuthorOption = None,
    base_url: program.BaseUrlOption = None,
    attempts: program.AttemptsOption = BUDGET.attempts,
    tokens: program.TokensOption = BUDGET.tokens,
    dollars: program.DollarsOption = BUDGET.dollars,
    seconds: program.SecondsOption = BUDGET.seconds,
    output: program.OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Judge a kernel you have: is it right, where does its time go, what would mending it gain, line by line."""
    from tilewright.frontends.api.choices import author_name, with_checked
    from tilewright.frontends.cli.audit import Asked, Improvement, Renderings, audit_command
    from tilewright.frontends.cli.make import Delivery

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
        str | None,
        typer.Option(
            metavar="FILE.py:FUNCTION", help="A PyTorch function of the op's parameters, or the run that made the file."
        ),
    ] = None,
    shape: ShapeOption = None,
    set_: SetOption = None,
    gpu: program.GpuOption = None,
    spool: program.SpoolOption = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Write the bars as a picture.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Time a kernel file beside PyTorch and other kernel files: in turn, on a cold cache; modelled without a GPU."""
    from tilewright.frontends.cli.bench import Asked, bench_command

    others = tuple(name for one in (against or BASELINES * bool(reference)).split(",") if (name := one.strip()))
    place = str(spool.resolve()) if spool else ""
    with named_reference(reference, {}) if reference else nullcontext() as known:
        asked = Asked(file, others, known, tuple(shape or ()), tuple(set_ or ()))
        status = bench_command(asked, gpu, place, plot, as_json)
    if status:
        raise typer.Exit(status)


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
    include: program.IncludeOption = None,
    define: program.DefineOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring CUDA as it is found into kernel files, checked; say what could not be carried."""
    from tilewright.frontends.cli.importing import Wanted, import_command

    asked = split_reference(reference) if reference else None
    said = (tuple(shape or ()), tuple(set_ or ()), tuple(include or ()), tuple(define or ()))
    wanted = Wanted(what, output, tuple(function or ()), asked, *said)
    if status := import_command(wanted, as_json):
        raise typer.Exit(status)

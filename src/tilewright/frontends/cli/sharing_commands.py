"""Commands that hand on what was made: to agents, packages, the Hub, other authors; and what this machine offers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tilewright.frontends.cli import program
from tilewright.frontends.cli.doctor import diagnose, show_facts
from tilewright.frontends.cli.program import SUITE_BUDGET, JsonOption, SetOption, ShapeOption, app, split_reference
from tilewright.frontends.cli.terminal import print_json, stdout_console
from tilewright.records import Budget, Settings


@app.command()
def mcp(
    root: Annotated[Path, typer.Option(help="The folder that exports may be written below.")] = Path(),
    gpu: program.GpuOption = None,
    spool: program.SpoolOption = None,
) -> None:
    """Serve a coding agent over the Model Context Protocol, on stdin and stdout: the agent is the author."""
    from tilewright.frontends.agents.tools import serve_mcp

    serve_mcp(root, gpu, spool)


@app.command()
def skill(
    folder: Annotated[Path, typer.Argument(help="The folder that holds an agent's skills.", show_default=False)],
) -> None:
    """Write the Agent Skill by which a coding agent learns to drive Tilewright, into DIR/tilewright."""
    from tilewright.frontends.agents.tools import write_skill

    print(f"wrote {write_skill(folder)}")


@app.command()
def export(
    what: program.ExportedArgument,
    to: program.TargetOption,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write.", show_default=False)],
    name: program.PackageOption = "",
    arch: program.ArchesOption = None,
    shape: ShapeOption = None,
    set_: SetOption = None,
    reference: Annotated[
        str | None, typer.Option(metavar="FILE.py:FUNCTION", help="A PyTorch function that does the same.")
    ] = None,
    layer: program.LayerOption = "",
    licence: program.LicenceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Write a finished kernel as a torch package, a project for the Hugging Face Hub, or plain CUDA sources."""
    from tilewright.frontends.cli.export import Wishes, export_command

    known = split_reference(reference) if reference else None
    wishes = Wishes(to, output, name, tuple(arch or ()), tuple(shape or ()), tuple(set_ or ()), known, layer, licence)
    export_command(what, wishes, as_json)


@app.command()
def publish(
    what: Annotated[str, typer.Argument(help="An export --to hub, or a run.", metavar="DIR|RUN", show_default=False)],
    to: Annotated[str, typer.Option("--to", metavar="USER/NAME", help="Repository on the Hub.", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be uploaded; send nothing.")] = False,
    private: Annotated[bool, typer.Option("--private", help="Make the repository a private one.")] = False,
    licence: program.LicenceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Upload an exported kernel to the Hugging Face Hub; what the referee has not passed is refused."""
    from tilewright.frontends.cli.export import publish_command

    publish_command(what, to, dry_run, private, licence, as_json)


@app.command()
def teach(
    runs: program.TaughtArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="The skill's folder.", show_default=False)
    ],
    model: Annotated[
        str | None,
        typer.Option(metavar="PROVIDER:NAME", help="Who writes the guidance; without one it is made of the records."),
    ] = None,
    base_url: program.BaseUrlOption = None,
    licence: program.LicenceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Make an Agent Skill of what runs showed: what paid, what failed and what mended it, examples that are tested."""
    from tilewright.frontends.api.choices import author_name, checked_url
    from tilewright.frontends.cli.teach import teach_command

    name = author_name(model, None, os.environ) if model else ""
    teach_command(runs, output, name, checked_url(base_url), licence, as_json)


@app.command()
def dataset(
    runs: program.TaughtArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="A .jsonl or .parquet file.", show_default=False)
    ],
    passed: Annotated[bool, typer.Option("--passed", help="Only replies whose kernel passed.")] = False,
    licence: program.LicenceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Write the prompts and replies of runs, each with its verdict and speed, as records for fine-tuning."""
    from tilewright.frontends.cli.teach import dataset_command

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
    base_url: program.BaseUrlOption = None,
    gpu: program.GpuOption = None,
    attempts: program.AttemptsOption = SUITE_BUDGET.attempts,
    tokens: program.TokensOption = SUITE_BUDGET.tokens,
    dollars: program.DollarsOption = SUITE_BUDGET.dollars,
    seconds: program.SecondsOption = SUITE_BUDGET.seconds,
    workers: program.WorkersOption = None,
    spool: program.SpoolOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Folder of the exam and its report.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure what a skill changes: students write kernels for held-out tasks, with it and without.

    Budgets are of each task, the same both ways. The same command goes on where it was stopped.
    """
    from tilewright.frontends.api.choices import with_checked
    from tilewright.frontends.cli.exam import Wanted, exam_command

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

"""A `BuildReport` as words and tables for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright.frontends.build_report import BuildReport, Built, LaunchReport, NotBuilt
from tilewright.kernel_file import KernelFile, print_plan
from tilewright.records import Diagnostic, Dim3

BAR_CELLS = 16


def show_build(console: Console, file: KernelFile, report: BuildReport) -> None:
    """The plan, one row per launch and GPU, then what the compiler had to say."""
    arguments = ", ".join(f"{name} = {text}" for name, text in report.arguments.items())
    guessed = "  (guessed; choose with --shape and --set)" if report.guessed else ""
    console.print(Text(f"{report.file}  {report.identity[:12]}", style="bold"))
    console.print(Text(print_plan(file.plan).rstrip(), style="cyan"))
    console.print(Text(f"at {arguments}{guessed}"), "")
    built = [target for target in report.targets if isinstance(target, Built)]
    if built:
        console.print(_resource_table(built))
        for each in built:
            console.print(Text(_plan_line(each)))
        console.print("")
        console.print(_sass_table(built))
    shown: set[Diagnostic] = set()
    for target in report.targets:
        if isinstance(target, NotBuilt):
            what = "not built" if target.applies else "does not apply"
            console.print(Text(f"{target.gpu} ({target.arch}): {what}: {target.reason}", style="red"))
        for diagnostic in target.diagnostics if isinstance(target, NotBuilt) else target.warnings:
            if diagnostic not in shown:  # the same complaint for every GPU is said once
                show_diagnostic(console, diagnostic)
            shown.add(diagnostic)


def show_diagnostic(console: Console, diagnostic: Diagnostic) -> None:
    """The message, the source line, and a caret under the column."""
    console.print(Text(str(diagnostic)))
    if diagnostic.source_line:
        console.print(Text(f"    {diagnostic.source_line}"))
        if diagnostic.column:
            console.print(Text("    " + " " * (diagnostic.column - 1) + "^", style="red"))
    for note in diagnostic.notes:
        console.print(Text(f"    {note}", style="dim"))


def _resource_table(built: list[Built]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in (
        "GPU",
        "target",
        "kernel",
        "grid x block",
        "registers",
        "spills",
        "shared",
        "occupancy",
        "limited by",
    ):
        table.add_column(heading, no_wrap=True)
    for target in built:
        for launch in target.launches:
            table.add_row(target.gpu, target.arch, *_resource_cells(launch))
    return table


def _resource_cells(launch: LaunchReport) -> tuple[str, ...]:
    resources = launch.resources
    spilled = resources.spill_store_bytes + resources.spill_load_bytes
    filled = round(launch.occupancy.fraction * BAR_CELLS)
    cluster = f" cluster {_dim3(launch.cluster)}" if launch.cluster else ""
    return (
        launch.kernel,
        f"{_dim3(launch.grid)} x {_dim3(launch.block)}{cluster}",
        str(resources.registers),
        f"{spilled} B" if spilled else "none",
        f"{resources.static_smem_bytes + launch.dynamic_smem_bytes} B",
        f"{'█' * filled}{'░' * (BAR_CELLS - filled)} {launch.occupancy.fraction:4.0%}",
        launch.occupancy.limiter.value,
    )


def _plan_line(target: Built) -> str:
    constants = ", ".join(f"{name} = {str(value).lower()}" for name, value in target.constants) or "none"
    buffers = ", ".join(f"{b.role} {b.name}: {b.tensor}" for b in target.buffers)
    library = f"; library {', '.join(target.library_calls)}" if target.library_calls else ""
    return (
        f"{target.gpu}: constants {constants}; {buffers}{library}; "
        f"cubin {target.cubin_bytes / 1024:.1f} KiB in {target.seconds:.3f} s by {target.compiler}"
    )


def _sass_table(built: list[Built]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("GPU", no_wrap=True)
    table.add_column("kernel", no_wrap=True)
    table.add_column("SASS highlights")
    for target in built:
        for launch in target.launches:
            counts = "  ".join(f"{name} {count}" for name, count in launch.sass.items()) or "-"
            table.add_row(target.gpu, launch.kernel, counts)
    return table


def _dim3(value: Dim3) -> str:
    sizes = list(value)
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    return str(sizes[0]) if len(sizes) == 1 else f"({', '.join(map(str, sizes))})"

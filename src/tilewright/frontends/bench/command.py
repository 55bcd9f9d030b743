"""`tilewright bench`: from arguments to a contest, and its record to a terminal, JSON or a picture."""

from __future__ import annotations

from pathlib import Path

from tilewright.frontends.bench.contest import Asked, bench
from tilewright.frontends.bench.words import bench_picture, show_bench
from tilewright.frontends.choices import choose_device
from tilewright.frontends.explain.command import check_page
from tilewright.frontends.terminal import print_json, progress, stdout_console
from tilewright.store import write_text


def bench_command(asked: Asked, gpu: str | None, spool: str, plot: Path | None, as_json: bool) -> int:
    """Returns the exit status: 1 where a kernel file is not right."""
    if plot is not None:
        check_page(plot, (".svg",), "--plot")
    device = choose_device(gpu, spool)
    with progress() as say:
        report = bench(asked, device, say)
    if plot is not None:
        write_text(plot, bench_picture(report))
    if as_json:
        print_json(report)
    else:
        show_bench(stdout_console(), report)
    return report.exit_status

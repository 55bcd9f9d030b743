"""Where a kernel comes from, in words: who wrote how much of it, what speaks for it, and each line with its author."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright.frontends.run_rows import time_words
from tilewright.records import UNSTATED, Provenance

_HASH_SHOWN = 12


def show_provenance(console: Console, made: Provenance, authors: Sequence[int], kernel: str) -> None:
    """`authors`: for every line of the kernel the attempt that wrote it."""
    licence = "nobody has stated one (--license)" if made.licence == UNSTATED else made.licence
    console.print(Text.assemble((made.op, "bold"), f"  run {made.run} of {made.created}, tilewright {made.tilewright}"))
    console.print(Text(f"kernel {made.kernel}, task {made.task_hash}; licence: {licence}"))
    where = f" on {', '.join(made.verified_on)}" if made.verified_on else ""
    worst = "" if made.worst_error is None else f", worst error {made.worst_error:.2f} of what is allowed"
    console.print(Text(f"right in {made.right_cases} cases{where}{worst}; {time_words(made.measurement)}"))
    if made.degenerate:
        console.print(Text(f"passing proves nothing: {made.degenerate}", style="yellow"))
    console.print()
    console.print(_table(made))
    console.print()
    for number, (author, line) in enumerate(zip(authors, kernel.splitlines(), strict=True), start=1):
        console.print(Text.assemble((f"#{author:<3}{number:>5}  ", "dim"), line), soft_wrap=True)


def _table(made: Provenance) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("#", "lines", "stage", "author", "prompt", "summary"):
        table.add_column(heading, justify="right" if heading in ("#", "lines") else "left")
    for one in made.contributions:
        table.add_row(
            str(one.attempt),
            str(sum(last - first + 1 for first, last in one.lines)),
            one.stage,
            one.author,
            one.prompts[-1][:_HASH_SHOWN] if one.prompts else "",
            Text(" ".join(one.summary.split())),
        )
    return table

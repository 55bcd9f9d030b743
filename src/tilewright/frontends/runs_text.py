"""`tilewright runs` as a table."""

from __future__ import annotations

from datetime import datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright.frontends.run_rows import dollars_words, time_words
from tilewright.records import Run
from tilewright.store import RunList


def show_runs(console: Console, listing: RunList) -> None:
    """One line for each run, newest first, then what waits to be accepted and what cannot be read."""
    if not (listing.runs or listing.waiting or listing.broken):
        console.print(Text('no runs yet; begin with: tilewright make "softmax over the last dimension"'))
        return
    if listing.runs:
        console.print(_table(listing))
    for one in listing.waiting:
        words = " ".join(one.request.text.split())
        worker = listing.workers.get(one.id)
        state = f"{worker} is on it" if worker else f"tilewright resume {one.id}"
        line = f"{one.id}  has no accepted specification yet: {words[:60]!r}; {state}"
        console.print(Text(line, style="yellow"))
    for broken in listing.broken:
        console.print(Text(f"{broken.path} cannot be read: {broken.problem}", style="red"))


def _table(listing: RunList) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("run", "when", "op", "GPU", "author", "attempts", "best", "cost", "state"):
        table.add_column(heading, justify="right" if heading in ("attempts", "best", "cost") else "left")
    for run in listing.runs:
        best = time_words(run.best.measurement) if run.best else "none passed" if run.attempts else ""
        table.add_row(
            Text(run.id, style="bold"),
            when(run.created),
            Text(run.task.name),
            run.task.gpu,
            Text(run.settings.author),
            str(len(run.attempts)),
            best,
            dollars_words(run.dollars),
            _state(run, listing.workers.get(run.id)),
        )
    return table


def _state(run: Run, worker: str | None) -> Text:
    if worker:
        return Text(f"{worker} is on it", style="green")
    return Text(run.ending.value) if run.ending else Text("may go on", style="yellow")


def when(created: str) -> str:
    """A time of the record in this machine's own zone, to the minute."""
    return datetime.fromisoformat(created).astimezone().strftime("%Y-%m-%d %H:%M")

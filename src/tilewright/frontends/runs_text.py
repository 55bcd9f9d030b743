"""`tilewright runs` as a table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from tilewright.frontends.run_rows import dollars_words, time_words
from tilewright.records import Run
from tilewright.store import RunList

_NUMBERS = ("attempts", "best", "cost")
_LEFT_OUT = ("op", "GPU", "cost", "author", "when", "attempts", "state", "best")  # the first goes first
_BREAKABLE = {"author": 20, "state": 20}  # such cells may go over several lines of at least this width


def show_runs(console: Console, listing: RunList) -> None:
    """One line for each run, newest first, then what waits to be accepted and what cannot be read."""
    if not (listing.runs or listing.waiting or listing.broken):
        console.print(Text('no runs yet; begin with: tilewright make "softmax over the last dimension"'))
        return
    if listing.runs:
        console.print(_table(listing, console.width))
    for one in listing.waiting:
        words = " ".join(one.request.text.split())
        worker = listing.workers.get(one.id)
        state = f"{worker} is on it" if worker else f"tilewright resume {one.id} --yes"
        line = f"{one.id}  {when(one.created)}  has no accepted specification yet: {words[:60]!r}; {state}"
        console.print(Text(line, style="yellow"), soft_wrap=True)
    for broken in listing.broken:
        console.print(Text(f"{broken.path} cannot be read: {broken.problem}", style="red"))


def _table(listing: RunList, width: int) -> Table:
    """Columns are left out until no cell but an author's or a state's must be broken; the run always stays."""
    rows = [_cells(run, listing.workers.get(run.id)) for run in listing.runs]
    headings = list(rows[0])
    for least in _LEFT_OUT:
        if sum(_needed(heading, rows) + 2 for heading in headings) <= width:
            break
        headings.remove(least)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        justify: JustifyMethod = "right" if heading in _NUMBERS else "left"
        table.add_column(heading, justify=justify, no_wrap=heading not in _BREAKABLE)
    for row in rows:
        table.add_row(*(row[heading] for heading in headings))
    return table


def _cells(run: Run, worker: str | None) -> dict[str, Text]:
    best = time_words(run.best.measurement) if run.best else "none passed" if run.attempts else ""
    return {
        "run": Text(run.id, style="bold"),
        "when": Text(when(run.created)),
        "op": Text(run.task.name),
        "GPU": Text(run.task.gpu),
        "author": Text(run.settings.author, overflow="fold"),
        "attempts": Text(str(len(run.attempts))),
        "best": Text(best),
        "cost": Text(dollars_words(run.dollars)),
        "state": _state(run, worker),
    }


def _needed(heading: str, rows: Sequence[dict[str, Text]]) -> int:
    """How wide a column must be."""
    return min(max(len(heading), *(row[heading].cell_len for row in rows)), _BREAKABLE.get(heading, 1000))


def _state(run: Run, worker: str | None) -> Text:
    if worker:
        return Text(f"{worker} is on it", style="green")
    return Text(run.ending.words) if run.ending else Text("may go on", style="yellow")


def when(created: str) -> str:
    """A time of the record in this machine's own zone, to the minute."""
    return datetime.fromisoformat(created).astimezone().strftime("%Y-%m-%d %H:%M")

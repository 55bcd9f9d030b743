"""What a run has come to: the table, the kernel, where it lies and how to call it."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from tilewright.frontends.making import Finished
from tilewright.frontends.run_rows import spend_words, time_words
from tilewright.frontends.show_text import show_attempts, show_measurement, state_words
from tilewright.kernel_file import tuned_path
from tilewright.records import Passed, Task
from tilewright.store import LibraryKernel, provenance_path, write_text


def show_finished(console: Console, done: Finished, path: Path | None) -> None:
    """The end of `make`: attempts, the best one's time, the kernel's path and a call of it."""
    run = done.run
    show_attempts(console, run)
    console.print()
    console.print(Text(f"{state_words(run)}; {spend_words(run)}"))
    if run.best is None or done.kernel is None:
        console.print(Text("no attempt passed, so there is no kernel", style="bold red"))
        console.print(
            Text(f"see why: tilewright show {run.id} --attempt N; go on: tilewright resume {run.id} --hint ...")
        )
        return
    if run.best.measurement is not None:
        show_measurement(console, run.best.measurement)
    if isinstance(run.best.verdict, Passed):
        for note in run.best.verdict.notes:
            console.print(Text(f"not covered: {note}", style="yellow"))
    console.print()
    _show_kernel(console, run.task, path or done.kernel.path)
    console.print(Text(f"more: tilewright show {run.id}", style="dim"))


def show_found(console: Console, kernel: LibraryKernel, path: Path | None) -> None:
    """A kernel that was made before."""
    entry = kernel.entry
    made = f"already made by run {entry.run} ({entry.author}, {time_words(entry.measurement)} on {entry.gpu})"
    console.print(Text(f"{made}; --fresh makes it anew", style="bold"))
    _show_kernel(console, kernel.task(), path or kernel.path)


def _show_kernel(console: Console, task: Task, path: Path) -> None:
    tensors = [one.name for one in task.tensors if not one.optional]
    numbers = [f"{one.name}={one.value!r}" for one in task.numbers if not one.default]
    arguments = ", ".join([*tensors, *numbers])
    results = ", ".join(one.name for one in task.outputs)
    assigned = f"{results} = " if results else ""
    console.print(Text(f"kernel: {path}", style="bold green"))
    console.print(Text(f'call it: {assigned}tilewright.load("{path}")({arguments})'))


def copy_kernel(kernel: LibraryKernel, target: Path) -> None:
    """Put the kernel at `target`, and beside it what lies beside it: the tuner's choice, where it comes from."""
    write_text(target, kernel.text())
    for beside in (tuned_path, provenance_path):
        if beside(kernel.path).exists():
            write_text(beside(target), beside(kernel.path).read_text("utf-8"))

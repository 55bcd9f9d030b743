"""What a run has come to: the table, the kernel, where it lies and how to call it."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from tilewright.frontends.author_choice import PLAYBOOK
from tilewright.frontends.found_words import found_words
from tilewright.frontends.making import Finished
from tilewright.frontends.run_rows import spend_words
from tilewright.frontends.show_text import show_attempts, show_measurement, show_notes, state_words
from tilewright.kernel_file import tuned_path
from tilewright.records import Run, Task
from tilewright.store import LibraryKernel, write_text


def show_finished(console: Console, done: Finished, path: Path | None) -> None:
    """The end of `make`: attempts, the best one's time, the kernel's path and a call of it."""
    run = done.run
    show_attempts(console, run)
    console.print()
    console.print(Text(f"{state_words(run)}; {spend_words(run)}"))
    if run.best is None or done.kernel is None:
        console.print(Text("no attempt passed, so there is no kernel", style="bold red"))
        _show_way_on(console, run)
        return
    if run.best.measurement is not None:
        show_measurement(console, run.best.measurement)
    show_notes(console, run.best)
    console.print()
    _show_kernel(console, run.task, path or done.kernel.path)
    console.print(Text(f"more: tilewright show {run.id}", style="dim"))


def _show_way_on(console: Console, run: Run) -> None:
    """What to look at and what to add where no attempt passed. The playbook reads no hints."""
    if run.attempts:
        console.print(Text(f"see why: tilewright show {run.id} --attempt {run.attempts[-1].number}"))
    addition = "--model PROVIDER:NAME" if run.settings.author == PLAYBOOK else "--hint ..."
    console.print(Text(f"go on: tilewright resume {run.id} {addition}"))


def show_found(console: Console, kernel: LibraryKernel, path: Path | None, wanted: str = "") -> None:
    """A kernel that was made before. `wanted`: the author named for this request, who was not asked."""
    console.print(Text(found_words(kernel.entry, wanted, "--fresh"), style="bold"))
    _show_kernel(console, kernel.task(), path or kernel.path)


def _show_kernel(console: Console, task: Task, path: Path) -> None:
    tensors = [one.name for one in task.tensors if not one.optional]
    numbers = [f"{one.name}={one.value!r}" for one in task.numbers if not one.default]
    arguments = ", ".join([*tensors, *numbers])
    results = ", ".join(one.name for one in task.outputs)
    assigned = f"{results} = " if results else ""
    console.print(Text(f"kernel: {path}", style="bold green"))
    console.print(Text(f'call it: {assigned}tilewright.load("{path}")({arguments})'))


def copy_kernel(kernel: LibraryKernel, target: Path, licence: str = "") -> None:
    """Put the kernel at `target`, and beside it what lies beside it: the tuner's choice, where it comes from.

    `licence`: the one stated for this copy, in place of the one on record.
    """
    write_text(target, kernel.text())
    if tuned_path(kernel.path).exists():
        write_text(tuned_path(target), tuned_path(kernel.path).read_text("utf-8"))
    kernel.copy_provenance(target, licence)

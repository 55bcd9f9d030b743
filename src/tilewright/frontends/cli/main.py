"""The `tilewright` command: each command turns its arguments into one call, and a record into text or JSON.

Exit codes: 0 done; 1 the kernel was rejected (it does not build, does not apply, is wrong or at fault) or none came
about; 2 bad input; 3 a fault of the machine or of a service, or a kernel that cannot be emulated; 130 interrupted.
Errors are one clear message on stderr. A command's module is imported when that command is called.
"""

from __future__ import annotations

import importlib
import io
import re
import sys
import warnings
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperCommand, TyperGroup

from tilewright import __version__

__all__ = ["COMMANDS", "app", "main"]

# name -> (the module with a function of that name, what the list of commands says)
COMMANDS = {
    "make": ("make", "Make a kernel from words, a PyTorch function or a module."),
    "resume": ("make", "Continue a run, with a hint or more budget."),
    "find": ("suite", "Find the regions of a model that are worth a kernel."),
    "suite": ("suite", "Make kernels for many tasks: KernelBench, or a folder."),
    "runs": ("view", "List the runs of this machine."),
    "show": ("view", "Show a run, or one of its attempts."),
    "view": ("view", "Serve runs as pages to a browser."),
    "explain": ("view", "Explain a run as a lesson for beginners in CUDA."),
    "check": ("check", "Run a kernel in the emulator with all checkers on."),
    "lint": ("check", "Read a kernel's compiled code for faults, without running it."),
    "audit": ("audit", "Report on a kernel: correctness, speed, what to improve."),
    "bench": ("bench", "Time a kernel beside PyTorch and other kernels."),
    "build": ("check", "Compile a kernel; show registers, occupancy and SASS."),
    "flatten": ("check", "Put what a source uses of the device library into it."),
    "import": ("importing", "Turn existing CUDA code into kernel files."),
    "export": ("export", "Write a torch package, a Hub project or plain CUDA."),
    "publish": ("export", "Upload a kernel to the Hugging Face Hub."),
    "mcp": ("teach", "Serve coding agents over the Model Context Protocol."),
    "skill": ("teach", "Write the Agent Skill for coding agents."),
    "teach": ("teach", "Write an Agent Skill from what runs have shown."),
    "dataset": ("teach", "Write prompts and replies of runs for fine-tuning."),
    "exam": ("teach", "Measure what a skill improves on held-out tasks."),
    "doctor": ("doctor", "Show what this machine offers, and what is missing."),
}


class Command(TyperCommand):
    """A command that takes an argument such as `-sum(x * y)` for what it is, not for a bundle of options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        takes_value = {
            name for one in self.params for name in one.opts if name[0] == "-" and not getattr(one, "is_flag", False)
        }
        options: list[str] = []
        texts: list[str] = []
        is_value = False
        for number, text in enumerate(args):
            if text == "--":
                texts += args[number + 1 :]
                break
            looks_like_text = re.match(r"-[^-].*[( *+/@]", text) and text[:2] not in takes_value
            (texts if looks_like_text and not is_value else options).append(text)
            is_value = text in takes_value and not is_value
        return super().parse_args(ctx, [*options, "--", *texts] if texts else options)


class Commands(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"tilewright.frontends.cli.{COMMANDS[cmd_name][0]}")
        one = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        function = getattr(module, f"{cmd_name}_command", None) or getattr(module, cmd_name)
        one.command(cmd_name, cls=Command)(function)
        return typer.main.get_command(one)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        names: Any = dict.fromkeys(COMMANDS)
        self.commands = names  # with which a misspelt one is compared
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="tilewright",
    cls=Commands,
    help="Describe a GPU operation; get one CUDA kernel file, verified against its PyTorch reference.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        print(f"tilewright {__version__}")
        raise typer.Exit
    from tilewright.reference.spares import want_spares

    want_spares()


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


def main() -> None:
    """Run the command; every expected failure is one message and an exit code, and only a fault has a traceback."""
    warnings.showwarning = _show_warning
    # Whoever started the command may have closed a stream, or given it a narrow encoding.
    sys.stdout, sys.stderr = (stream or io.StringIO() for stream in (sys.stdout, sys.stderr))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app(prog_name="tilewright")  # also as `python -m tilewright`
    except (Exception, KeyboardInterrupt) as error:
        from tilewright.frontends.cli.terminal import end_with

        end_with(error)

"""The `tilewright` command: each command turns its arguments into one call, and a record into text or JSON.

Exit codes: 0 done; 1 the kernel was rejected (it does not build, does not apply, is wrong or at fault) or none came
about; 2 bad input; 3 a fault of the machine or of a service, or a kernel that cannot be emulated; 130 interrupted.
Errors are one clear message on stderr.
"""

from __future__ import annotations

import io
import sys
import traceback
import warnings
from typing import TextIO

from tilewright.frontends.cli import kernel_commands, run_commands, sharing_commands
from tilewright.frontends.cli.program import app
from tilewright.frontends.cli.terminal import FAULT, error_text, exit_code
from tilewright.reference.spares import want_spares

__all__ = ["COMMANDS", "app", "main"]

COMMANDS = (kernel_commands, run_commands, sharing_commands)  # importing them adds their commands to the program


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


def _settle_streams() -> None:
    """Streams that can be printed to, whoever started the command: one may be closed, or of a narrow encoding."""
    sys.stdout, sys.stderr = (stream or io.StringIO() for stream in (sys.stdout, sys.stderr))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def main() -> None:
    """Run the command; every expected failure is one message and an exit code, and only a fault has a traceback."""
    warnings.showwarning = _show_warning
    _settle_streams()
    want_spares()
    try:
        app(prog_name="tilewright")  # also as `python -m tilewright`
    except (Exception, KeyboardInterrupt) as error:
        code = exit_code(error)
        if code is None:
            traceback.print_exc()
            print("tilewright: this is a fault of tilewright itself; please report what stands above", file=sys.stderr)
            sys.exit(FAULT)
        print(error_text(error), file=sys.stderr)
        sys.exit(code)

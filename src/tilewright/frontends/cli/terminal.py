"""What all commands share of the terminal: consoles, JSON on stdout, and errors as one sentence and an exit code.

An error that has no exit code here is a fault of this program: it shows its traceback, and ends with 3.
"""

from __future__ import annotations

import io
import json
import math
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from tilewright.devices.protocol import DeviceError
from tilewright.kernel_file import BadTunedRecord, KernelFileError
from tilewright.records import to_json
from tilewright.store import NoSuchRun, NotAccepted, StoreError
from tilewright.tasks.errors import BadArgument
from tilewright.toolchain import ToolchainError

PIPE_WIDTH = 160
INTERRUPTED = 130
FAULT = 3


def stdout_console() -> Console:
    """Plain text of fixed width when not a terminal, so that logs and pipes read well."""
    is_terminal = sys.stdout.isatty()
    return Console(width=None if is_terminal else PIPE_WIDTH, highlight=False, soft_wrap=not is_terminal)


def stderr_console() -> Console:
    is_terminal = sys.stderr.isatty()
    width = None if is_terminal else PIPE_WIDTH
    return Console(stderr=True, width=width, highlight=False, soft_wrap=not is_terminal)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Says on stderr what is going on, on a line that goes away; says nothing where nobody watches."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status("") as status:
        yield status.update


def plain_table(headings: Iterable[str], numbers: Collection[str] = (), no_wrap: bool = False) -> Table:
    """A table without rules; `numbers` are the headings of columns that are ranged right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in numbers else "left", no_wrap=no_wrap)
    return table


def deliver(record: object, as_json: bool, show: Callable[[Console], None]) -> None:
    """A command's result on stdout: as JSON, or as `show` writes it."""
    if as_json:
        print_json(record)
    else:
        show(stdout_console())


def exit_with(status: int) -> None:
    """End the command, unless it is to end with 0."""
    if status:
        raise typer.Exit(status)


def print_json(value: object) -> None:
    """One JSON document on stdout. Numbers that JSON cannot say become text: "NaN", "Infinity"."""
    print(json.dumps(finite(to_json(value)), indent=2, allow_nan=False))


def print_exactly(text: str) -> None:
    """A file's text on stdout, in UTF-8 whatever the terminal's encoding: it may be on its way into a file."""
    stream = sys.stdout
    if isinstance(stream, io.TextIOWrapper) and not stream.isatty():
        stream.flush()
        stream.buffer.write(text.encode("utf-8", "replace"))
    else:
        print(text, end="")


def finite(value: Any) -> Any:
    """The same JSON value with text in place of numbers that JSON cannot say."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


class NotDone(Exception):
    """A command that ends without a fault and without what was asked for; the message says why."""

    def __init__(self, message: str, code: int) -> None:
        self.code = code
        super().__init__(message)


def exit_code(error: BaseException) -> int | None:
    """The code of an expected error; None for any other."""
    if isinstance(error, NotDone):
        return error.code
    codes: tuple[tuple[int, tuple[type[BaseException], ...]], ...] = (
        (INTERRUPTED, (KeyboardInterrupt,)),
        (1, (KernelFileError,)),
        (2, (BadArgument, BadTunedRecord, NoSuchRun, NotAccepted)),
        (FAULT, (ToolchainError, DeviceError, StoreError, OSError)),
    )
    for code, errors in codes:
        if isinstance(error, errors):
            return code
    return _code_of_making(error)


def _code_of_making(error: BaseException) -> int | None:
    # Imported late: building and checking a file need none of these.
    from tilewright.exports.publish import HubFailed
    from tilewright.exports.writing import NotExportable, NotPublishable
    from tilewright.frontends.api.reporter import NotAcceptedYet
    from tilewright.models import BadModelName, BadPriceTable, MissingKey, MissingPackage, ModelError
    from tilewright.prompts.replies import ReplyProblem
    from tilewright.reference import ReferenceProblem
    from tilewright.tasks import RefusedRequest

    if isinstance(error, (RefusedRequest, ReferenceProblem, NotAcceptedYet, NotExportable, NotPublishable)):
        return 2
    if isinstance(error, (BadModelName, BadPriceTable, MissingKey, MissingPackage)):
        return 2
    if isinstance(error, ReplyProblem):
        return 1
    return FAULT if isinstance(error, (ModelError, HubFailed)) else None


def error_text(error: BaseException) -> str:
    """The one sentence to print, and how to go on where a run is under way."""
    if isinstance(error, KeyboardInterrupt):
        text = "tilewright: interrupted"
    elif isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        text = f"tilewright: {place}{error.strerror or error}"
    elif isinstance(error, KernelFileError):
        text = str(error)
    else:
        from tilewright.frontends.api.reporter import in_options
        from tilewright.tasks import RefusedRequest

        text = f"tilewright: {in_options(error) if isinstance(error, RefusedRequest) else error}"
    return "\n".join([text, *getattr(error, "__notes__", ())])


def end_with(error: BaseException) -> NoReturn:
    """End the program with an error's message and code, or with a traceback where the error is a fault of ours."""
    code = exit_code(error)
    if code is None:
        traceback.print_exception(error)
        print("tilewright: this is a fault of tilewright itself; please report what stands above", file=sys.stderr)
        sys.exit(FAULT)
    print(error_text(error), file=sys.stderr)
    sys.exit(code)

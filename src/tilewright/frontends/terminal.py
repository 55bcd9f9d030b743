"""What all commands share of the terminal: consoles, JSON on stdout, and options that several of them take."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console

from tilewright.records import to_json

PIPE_WIDTH = 160

JsonOption = Annotated[bool, typer.Option("--json", help="Print a machine-readable record instead of text.")]
ShapeOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=SIZES:DTYPE", help="A tensor, such as x=4096x1024:bf16; may be repeated."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A number, such as eps=1e-5 or stride=2,2; may be repeated."),
]


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


def print_json(value: object) -> None:
    """One JSON document on stdout. Numbers that JSON cannot say become text: "NaN", "Infinity"."""
    print(json.dumps(_plain(to_json(value)), indent=2, allow_nan=False))


def print_exactly(text: str) -> None:
    """A file's text on stdout, in UTF-8 whatever the terminal's encoding: it may be on its way into a file."""
    stream = sys.stdout
    if isinstance(stream, io.TextIOWrapper) and not stream.isatty():
        stream.flush()
        stream.buffer.write(text.encode("utf-8", "replace"))
    else:
        print(text, end="")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value

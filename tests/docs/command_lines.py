"""Command lines that pages show, held against the program's own commands and options."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from functools import cache
from typing import Any

import typer.main

from tilewright.frontends.cli.main import COMMANDS, app

PROGRAM = "tilewright"


def problems(line: str) -> Iterator[str]:
    """What is wrong with a line that calls `tilewright`: an unknown command or option, an option without its value."""
    words = shlex.split(line, comments=True)
    while words and "=" in words[0]:  # variables of the environment
        words = words[1:]
    if not words or words[0].removeprefix(".venv/bin/") != PROGRAM:
        return
    words = words[1:]
    if not words or words[0].startswith("-"):
        return
    command = _commands().get(words[0])
    if command is None:
        yield f"there is no command {words[0]}: {line}"
        return
    takes_value = {name: not one.is_flag for one in command.params for name in one.opts if name.startswith("-")}
    takes_value |= {"--help": False}
    rest = iter(words[1:])
    for word in rest:
        if not word.startswith("-"):
            continue
        name = word.split("=")[0] if word.startswith("--") else word
        if name not in takes_value:
            yield f"{words[0]} has no option {name}: {line}"
        elif takes_value[name] and "=" not in word and next(rest, "-").startswith("-"):
            yield f"{words[0]} {name} lacks its value: {line}"


@cache
def _commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return {name: group.get_command(None, name) for name in COMMANDS}

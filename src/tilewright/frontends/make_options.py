"""The options of `make` and `resume`: how they are written, and the records they become."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Annotated

import typer

from tilewright.frontends.arguments import BadArgument
from tilewright.records import ARCHITECTURES, PROFILES, Goal, Precision

RequestArgument = Annotated[
    str,
    typer.Argument(
        help="Words in quotes, FILE.py:FUNCTION, FILE.py:MODULE, a KernelBench file, or a task folder.",
        show_default=False,
    ),
]
RunArgument = Annotated[
    str, typer.Argument(help="A run: its name, the beginning of it, its folder, or `last`.", show_default=False)
]
ValuesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--fill",
        metavar="NAME=KIND",
        help="What a tensor holds: normal, uniform:LOW:HIGH, integers:LOW:HIGH or index:DIM; may be repeated.",
    ),
]
GpuOption = Annotated[
    str | None, typer.Option(metavar="GPU", help=f"GPU to write for: {', '.join(PROFILES)}.", show_default=False)
]
ArchOption = Annotated[
    str | None,
    typer.Option(metavar="ARCH", help=f"The same by architecture: {', '.join(ARCHITECTURES)}.", show_default=False),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        metavar="PROVIDER:NAME",
        help="Who writes: anthropic:claude-sonnet-5-5, openai:gpt-..., hf:ORG/NAME, relay:DIR and others.",
    ),
]
AuthorOption = Annotated[
    str | None, typer.Option(metavar="playbook", help="The built-in author, which needs no model.")
]
BaseUrlOption = Annotated[
    str | None, typer.Option(metavar="URL", help="The model's server, where it is not the provider's own.")
]
SpoolOption = Annotated[Path | None, typer.Option(metavar="DIR", help="Use the GPUs whose workers serve this folder.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE.cu", help="Write the finished kernel here too.")
]
LicenceOption = Annotated[
    str,
    typer.Option("--license", metavar="SPDX", help="Licence of the kernel, such as Apache-2.0; kept in its record."),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Accept the specification of words unseen.")]
FixedOption = Annotated[
    list[str] | None,
    typer.Option(metavar="DIM", help="A dimension that always has this size; may be repeated; `all` for all."),
]
PrecisionOption = Annotated[
    Precision, typer.Option(help="Arithmetic allowed inside: what the dtype promises, TF32, or 16 bits.")
]
GoalOption = Annotated[Goal, typer.Option(help="What to be fast at.")]


def pairs(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    """`NAME=VALUE`, repeated, as a dictionary."""
    made: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name or not value.strip():
            raise BadArgument(f"{option} {text}: write {option} NAME=VALUE")
        if name in made:
            raise BadArgument(f"{option} {text}: {name} is given twice")
        made[name] = value.strip()
    return made


def wanted_gpu(gpu: str | None, arch: str | None) -> str | None:
    if gpu is not None and arch is not None:
        raise BadArgument("--gpu and --arch name two targets; drop one")
    return gpu or arch


def checked_against(text: str, elsewhere: bool = False) -> str:
    """`MODULE:FUNCTION` whose module can be found from here, or nothing. It is imported only to be timed.

    Where that happens `elsewhere`, only the machine that times it can tell whether it is found.
    """
    if not text:
        return ""
    module, _, function = text.partition(":")
    if not function.isidentifier() or not all(name.isidentifier() for name in module.split(".")):
        raise BadArgument(f"--against {text}: write MODULE:FUNCTION")
    if not elsewhere and PathFinder.find_spec(module.partition(".")[0], [os.getcwd(), *sys.path]) is None:
        raise BadArgument(f"--against {text}: no module {module} is found here or in this environment")
    return text

"""What all commands share: the program they belong to, arguments and budgets they have in common, files they read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright import __version__
from tilewright.frontends.kernel_arguments import BadArgument
from tilewright.kernel_file import KernelFile, KernelFileError, parse
from tilewright.records import USUAL_BASELINES, Budget

app = typer.Typer(
    name="tilewright",
    help="Describe a GPU operation; get one CUDA kernel file that is proved right and runs from PyTorch.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

FileArgument = Annotated[Path, typer.Argument(help="The kernel file.", show_default=False)]
BASELINES = ",".join(USUAL_BASELINES)
BUDGET = Budget()
SUITE_BUDGET = Budget(attempts=4, seconds=900.0)  # of each task, which waits for its turns at the GPU too


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        print(f"tilewright {__version__}")
        raise typer.Exit


def wanted_gpu(gpu: str | None, arch: str | None) -> str | None:
    if gpu is not None and arch is not None:
        raise BadArgument("--gpu and --arch name two targets; drop one")
    return gpu or arch


def split_reference(text: str) -> tuple[Path, str]:
    path, colon, function = text.rpartition(":")
    if not colon or not path or not function.isidentifier():
        raise BadArgument(f"--reference {text}: write FILE.py:FUNCTION")
    if not Path(path).is_file():
        raise BadArgument(f"--reference {text}: there is no file {path}")
    return Path(path), function


def read_kernel_file(path: Path) -> KernelFile:
    if path.is_dir():
        raise BadArgument(f"{path}: a folder; give the path of one kernel file (.cu)")
    if not path.exists():
        raise BadArgument(f"{path}: no such file; give the path of a kernel file (.cu)")
    if path.suffix == ".py":
        raise BadArgument(f"{path}: Python; give a kernel file (.cu), or make one: tilewright make {path}:FUNCTION")
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError:
        raise BadArgument(f"{path}: not UTF-8 text; save the kernel file as UTF-8") from None
    return parse(text, str(path))


def read_start(path: Path) -> str:
    try:
        return read_kernel_file(path).text
    except KernelFileError as error:
        raise BadArgument(f"--start {error}") from None

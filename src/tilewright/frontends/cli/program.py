"""What all commands share: the program they belong to, arguments and budgets they have in common, files they read."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from tilewright import __version__
from tilewright.kernel_file import KernelFile, KernelFileError, parse
from tilewright.records import ARCHITECTURES, PROFILES, USUAL_BASELINES, Budget, Goal, Precision
from tilewright.tasks.errors import BadArgument

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


# -- the options of the commands, as typer takes them; those of one command alone stand in `cli` --


class SuiteKind(str, Enum):
    """What a suite's folder is."""

    KERNELBENCH = "kernelbench"
    FOLDER = "folder"
    REPORT = "report"


JsonOption = Annotated[bool, typer.Option("--json", help="Print a machine-readable record instead of text.")]
ShapeOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=SIZES:DTYPE", help="A tensor, such as x=4096x1024:bf16 or s=scalar:f32; may be repeated."
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A number, such as eps=1e-5 or stride=2,2; may be repeated."),
]
RequestArgument = Annotated[
    str,
    typer.Argument(
        help="Words in quotes, FILE.py:FUNCTION, FILE.py:MODULE(ARGUMENTS), PACKAGE.MODULE:NAME(ARGUMENTS), a "
        "KernelBench file, or a task folder.",
        show_default=False,
    ),
]
ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="PACKAGE.MODULE:NAME(ARGUMENTS), FILE.py:CLASS(ARGUMENTS), a kind of transformers model such as "
        "'llama(num_hidden_layers=4)', or a folder with a config.json.",
        show_default=False,
    ),
]
MakeRegionOption = Annotated[
    list[str] | None,
    typer.Option(
        "--make", metavar="REGION", help="Make a kernel for a region, by number or name, or `all`; may be repeated."
    ),
]
RunArgument = Annotated[
    str, typer.Argument(help="A run: its name, the beginning of it, its folder, or `last`.", show_default=False)
]
AttemptArgument = Annotated[
    int | None,
    typer.Argument(metavar="N", min=1, help="One of its attempts, by number, in full.", show_default=False),
]
TaughtArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN|DIR...", help="Runs, a suite's folder, or a folder of runs; as many as wanted.", show_default=False
    ),
]
ViewedArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN|DIR",
        help="A run, a suite's folder or a folder of runs; all runs of this machine where it is left out.",
        show_default=False,
    ),
]
StartOption = Annotated[Path | None, typer.Option(metavar="FILE.cu", help="Kernel file to improve.")]
AgainstOption = Annotated[
    str, typer.Option(metavar="MODULE:FUNCTION", help="A further function to be compared with for speed.")
]
BaselinesOption = Annotated[
    str,
    typer.Option(
        metavar="NAME,NAME",
        help="What a kernel is timed beside on a GPU: eager, compile, max-autotune, library (eager, with cuDNN's "
        "algorithms tried out).",
    ),
]
AttemptsOption = Annotated[int, typer.Option(min=1, help="Most attempts.")]
TokensOption = Annotated[int, typer.Option(min=1, help="Most tokens, in and out together.")]
DollarsOption = Annotated[float, typer.Option(min=0, help="Most to spend, where the price is known.")]
SecondsOption = Annotated[
    float, typer.Option(min=1, help="Most time for attempts; one under way is cut short, and goes on when resumed.")
]
CandidatesOption = Annotated[int, typer.Option(min=1, help="Candidates for each step.")]
EnoughOption = Annotated[float, typer.Option(min=0, help="End at this fraction of the roofline.")]
AllowLibraryOption = Annotated[bool, typer.Option("--allow-library", help="Allow cuBLAS and the like.")]
AllowDegenerateOption = Annotated[
    bool, typer.Option("--allow-degenerate", help="Take a reference whose answers prove nothing.")
]
BackwardOption = Annotated[bool, typer.Option("--backward", help="Make a kernel for its gradients too.")]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Make it anew, even if it was made before.")]
ValuesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--fill",
        metavar="NAME=KIND",
        help="What a tensor holds: normal, uniform:LOW:HIGH[:upper], integers:LOW:HIGH or index:DIM; may be repeated.",
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
    Precision | None,
    typer.Option(
        help="Arithmetic of kernel and baselines alike: dtype (as PyTorch by default: TF32 in f32 convolutions, f32 "
        "elsewhere), default-f32 (the same where PyTorch's own f32 convolutions are f32: no TF32), strict f32, TF32 in "
        "all products, or 16 bits. Left out, dtype or default-f32, by what PyTorch does on the GPU at hand.",
        show_default=False,
    ),
]
GoalOption = Annotated[Goal, typer.Option(help="What to be fast at.")]
ExportedArgument = Annotated[
    list[str],
    typer.Argument(help="A run, or one or several kernel files of one op.", metavar="RUN|K.cu", show_default=False),
]
TargetOption = Annotated[str, typer.Option("--to", help="What to write.", metavar="torch|hub|cuda", show_default=False)]
PackageOption = Annotated[str, typer.Option(metavar="NAME", help="Name of the package; the op's where it is left out.")]
ArchesOption = Annotated[
    list[str] | None,
    typer.Option(metavar="ARCH", help=f"Architecture to build for; may be repeated: {', '.join(ARCHITECTURES)}."),
]
LayerOption = Annotated[
    str, typer.Option(metavar="NAME", help="Of a Hub project: the layer that the op is, where it is not recognised.")
]
IncludeOption = Annotated[
    list[Path] | None,
    typer.Option("-I", "--include", metavar="DIR", help="Look here for headers; may be repeated."),
]
DefineOption = Annotated[
    list[str] | None, typer.Option("-D", "--define", metavar="NAME=VALUE", help="A macro that its build gives.")
]
SuiteKindArgument = Annotated[
    SuiteKind,
    typer.Argument(help="What DIR is.", show_default=False),
]
SuiteFolderArgument = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        help="A checkout of KernelBench; a folder of problem files and task folders, or with a suite.toml; a suite.",
        show_default=False,
    ),
]
LevelOption = Annotated[int, typer.Option(min=1, help="Level of KernelBench.")]
IdsOption = Annotated[str, typer.Option(metavar="1-49,51", help="Problems of that level; all where it is left out.")]
WorkersOption = Annotated[
    int | None, typer.Option(min=1, help="Tasks at a time; half the cores, at most 6, where it is left out.")
]
RayOption = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Run the tasks on this Ray cluster: HOST:PORT, or auto.")
]
SuiteOutOption = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Folder of the suite and its report.")
]

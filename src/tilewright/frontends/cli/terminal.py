"""What all commands share: options, files, consoles, JSON on stdout, error messages and exit codes."""

from __future__ import annotations

import io
import json
import math
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from tilewright.devices.protocol import DeviceError
from tilewright.frontends.api.kernel_arguments import GUESSED_SHAPES, SMALL_SHAPES, complete_arguments, parse_arguments
from tilewright.frontends.report.document import Block, Document
from tilewright.frontends.report.rendering import show
from tilewright.kernel_file import ArgumentValue, BadTunedRecord, KernelFile, KernelFileError, parse
from tilewright.records import (
    ARCHITECTURES,
    PROFILES,
    USUAL_BASELINES,
    Budget,
    GpuProfile,
    Precision,
    to_json,
)
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


def display(shown: Document | Iterable[Block]) -> None:
    """A report on stdout."""
    show(stdout_console(), shown)


def deliver(record: object, as_json: bool, shown: Document | Iterable[Block]) -> None:
    """A command's result on stdout: as JSON, or as a report."""
    if as_json:
        print_json(record)
    else:
        display(shown)


def exit_with(status: int) -> None:
    """End the command, unless it is to end with 0."""
    if status:
        raise typer.Exit(status)


def print_json(value: object) -> None:
    """One JSON document on stdout."""
    print(json_text(value, 2))


def json_text(value: object, indent: int = 1) -> str:
    """A record as JSON. Numbers that JSON cannot say become text: "NaN", "Infinity"."""
    return json.dumps(finite(to_json(value)), indent=indent, allow_nan=False)


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


@contextmanager
def interruptible(message: str = "interrupted") -> Iterator[None]:
    """Ctrl-C with how to go on; as it is, the command line's own machinery would take it."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise NotDone("; ".join([message, *getattr(error, "__notes__", ())]), INTERRUPTED) from None


def exit_code(error: BaseException) -> int | None:
    """The code of an expected error; None for any other."""
    if isinstance(error, NotDone):
        return error.code
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, KernelFileError):
        return 1
    if isinstance(error, (BadArgument, BadTunedRecord, NoSuchRun, NotAccepted)):
        return 2
    if isinstance(error, (ToolchainError, DeviceError, StoreError, OSError)):
        return FAULT
    # Imported late: building and checking a file need none of these.
    from tilewright.exports.publish import HubFailed
    from tilewright.exports.writing import NotExportable, NotPublishable
    from tilewright.frontends.api.reporter import NotAcceptedYet
    from tilewright.models import BadModelName, BadPriceTable, MissingKey, MissingPackage, ModelError
    from tilewright.prompts.replies import ReplyProblem
    from tilewright.reference import ReferenceProblem
    from tilewright.tasks import RefusedRequest

    refused = (RefusedRequest, ReferenceProblem, NotAcceptedYet, NotExportable, NotPublishable)
    if isinstance(error, (*refused, BadModelName, BadPriceTable, MissingKey, MissingPackage)):
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


BASELINES = ",".join(USUAL_BASELINES)
BUDGET = Budget()
_PLAN = re.compile(r"^\s*//!", re.MULTILINE)
_ALSO = {".markdown": ".md", ".htm": ".html"}
SUITE_BUDGET = Budget(attempts=4, seconds=900.0)  # of each task, which waits for its turns at the GPU too


def wanted_gpu(gpu: str | None, arch: str | None) -> str | None:
    if gpu is not None and arch is not None:
        raise BadArgument("--gpu and --arch name two targets; drop one")
    return gpu or arch


def read_text(path: Path, what: str = "the path of a kernel file (.cu)") -> str:
    """The text of a file that a person named; `what`: what to give in its place."""
    if path.is_dir():
        raise BadArgument(f"{path}: a folder; give {what}")
    if not path.exists():
        raise BadArgument(f"{path}: no such file; give {what}")
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        raise BadArgument(f"{path}: not UTF-8 text; save it as UTF-8") from None


def read_kernel_file(path: Path) -> KernelFile:
    text = read_text(path)
    if path.suffix == ".py":
        command = f"make one: tilewright make {path}:FUNCTION"
        if "cpp_extension" in text:
            command = f"import its kernels: tilewright import {path}"
        raise BadArgument(f"{path}: Python; give a kernel file (.cu), or {command}")
    return parse(text, str(path))


def is_plain_cuda(text: str) -> bool:
    """Whether a text has kernels and no launch plan."""
    return "__global__" in text and _PLAN.search(text) is None


@dataclass(frozen=True)
class Kernel:
    """A kernel file, or plain CUDA that was imported, and the call it is looked at with."""

    file: KernelFile
    arguments: dict[str, ArgumentValue]
    guessed: bool  # sizes that nobody gave were chosen
    note: str = ""  # of an import
    bare_pointers: tuple[str, ...] = ()  # of an import: tensors that nobody said the length of


def read_kernel(
    path: Path,
    shapes: Sequence[str] | None,
    numbers: Sequence[str] | None,
    gpu: GpuProfile,
    say: Callable[[str], None],
    *,
    small: bool = True,
) -> Kernel:
    """The kernel in a file, imported from plain CUDA, and its arguments: guessed `small` ones for the emulator."""
    guesses = SMALL_SHAPES if small else (GUESSED_SHAPES,)
    shapes, numbers = tuple(shapes or ()), tuple(numbers or ())
    if path.suffix == ".py" or not is_plain_cuda(read_text(path)):
        file = read_kernel_file(path)
        return Kernel(file, *complete_arguments(file, parse_arguments(file.plan.op, shapes, numbers), gpu, guesses))
    from tilewright.frontends.cli.importing import Wanted, import_one

    one = import_one(Wanted(path, shapes=shapes, numbers=numbers, is_checked=False), say)
    op, call = one.file.plan.op, (one.record.call_shapes, one.record.call_numbers)
    given = {**parse_arguments(op, *(call if shapes or numbers else ((), ()))), **parse_arguments(op, *one.specified)}
    try:
        arguments, guessed = complete_arguments(one.file, given, gpu, guesses)
    except BadArgument:
        arguments, guessed = complete_arguments(one.file, parse_arguments(op, *call), gpu, guesses)
    note = f"{path} is plain CUDA, imported as the kernel file {one.file.name}; to write it: tilewright import {path}"
    return Kernel(one.file, arguments, guessed, note, one.record.bare_pointers)


@contextmanager
def reference_of(
    text: str | None, arguments: Mapping[str, ArgumentValue], imported: Kernel | None = None
) -> Iterator[tuple[Path, str] | None]:
    """The file and the function of `--reference`, adapted to an `imported` kernel; None where it is left out."""
    if not text:
        yield None
        return
    from tilewright.frontends.api.requests import argument_words, named_reference

    with named_reference(text, *argument_words(arguments)) as (path, function), TemporaryDirectory() as folder:
        if imported is not None and imported.note:
            from tilewright.frontends.cli.judging import ADAPTED, for_op

            own = (read_text(path, "a Python file"), function, path.parent)
            source, name, _ = for_op(imported.file, own, imported.bare_pointers)
            if name == ADAPTED:
                path, function = Path(folder, "reference.py"), name
                path.write_text(source, "utf-8")
        yield path, function


def check_writable(option: str, path: Path | None, *endings: str) -> None:
    """Refuse a file that cannot be written, before anything is made for it."""
    if path is None:
        return
    ending = path.suffix.lower()
    if endings and _ALSO.get(ending, ending) not in endings:
        raise BadArgument(f"{option} {path}: give a name that ends in {' or '.join(endings)}")
    if path.is_dir():
        raise BadArgument(f"{option} {path}: a folder; give the name of a file")
    if not path.resolve().parent.is_dir():
        place = path.resolve().parent
        raise BadArgument(f"{option} {path}: there is no folder {place}; make it, or give another file with {option}")


JsonOption = Annotated[bool, typer.Option("--json", help="Print a machine-readable record instead of text.")]
FileArgument = Annotated[
    Path, typer.Argument(help="The kernel file, or plain CUDA, which is imported first.", show_default=False)
]
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
ReferenceOption = Annotated[
    str | None,
    typer.Option(
        metavar="REFERENCE",
        help="PyTorch code that computes the same: FILE.py:FUNCTION, FILE.py:MODULE(ARGUMENTS), "
        "PACKAGE.MODULE:NAME(ARGUMENTS), a KernelBench file, a task folder, or the run that made the kernel.",
    ),
]
RunArgument = Annotated[
    str, typer.Argument(help="A run: its name, the beginning of it, its folder, or `last`.", show_default=False)
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
EnoughOption = Annotated[float, typer.Option(min=0, help="End at this fraction of the roofline.")]
AllowDegenerateOption = Annotated[
    bool, typer.Option("--allow-degenerate", help="Accept a reference whose results prove nothing, such as a constant.")
]
BackwardOption = Annotated[bool, typer.Option("--backward", help="Make a backward kernel too, for the gradients.")]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Make a new kernel, even if the library has one.")]
EmulatedGpuOption = Annotated[str, typer.Option(metavar="GPU", help=f"GPU to build for: {', '.join(PROFILES)}.")]
GpuOption = Annotated[
    str | None, typer.Option(metavar="GPU", help=f"GPU to write for: {', '.join(PROFILES)}.", show_default=False)
]
ArchOption = Annotated[
    str | None,
    typer.Option(metavar="ARCH", help=f"The same by architecture: {', '.join(ARCHITECTURES)}.", show_default=False),
]
ArchesOption = Annotated[
    list[str] | None,
    typer.Option(metavar="ARCH", help=f"Architecture to build for; may be repeated: {', '.join(ARCHITECTURES)}."),
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
YesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Accept what the author takes the words to mean, without asking.")
]
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
IncludeOption = Annotated[
    list[Path] | None, typer.Option("-I", "--include", metavar="DIR", help="Look here for headers; may be repeated.")
]
DefineOption = Annotated[
    list[str] | None,
    typer.Option("-D", "--define", metavar="NAME=VALUE", help="Define a macro, as its build does; may be repeated."),
]
WorkersOption = Annotated[int | None, typer.Option(min=1, help="Tasks at a time. [default: half the cores, at most 6]")]

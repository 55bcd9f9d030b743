"""`tilewright import`: existing CUDA code into kernel files, each checked, and a reason for each that is refused."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from tilewright.devices.child_device import EmulatedDevice
from tilewright.frontends.api.kernel_arguments import pairs
from tilewright.frontends.cli import judging, terminal
from tilewright.frontends.cli.terminal import NotDone, deliver, exit_with, progress
from tilewright.frontends.report.checks import CheckOutcome
from tilewright.frontends.report.document import say_each
from tilewright.importing import importer
from tilewright.importing.calls import CallArgument
from tilewright.importing.launch_sites import launch_sites
from tilewright.importing.models import ExtensionCall, ModelAnswer, ModelRequest
from tilewright.importing.recording import HostChild
from tilewright.importing.shapes import OutOfBounds
from tilewright.importing.sizes import ROUND_SIZES, small_arguments, unchanged
from tilewright.importing.sources import ImportProblem, Source, read_source
from tilewright.kernel_file import KernelFile, parse
from tilewright.records import TensorSpec
from tilewright.reference import Reference, ReferenceProblem
from tilewright.tasks.errors import BadArgument

_MODEL_SECONDS = 180.0
_MOST_FILES = 200
NOT_COMPARED = "not compared"  # clean, but a reference was given that nothing was compared with
_GUESSED = "sizes and numbers were guessed, and indices drawn: say them with --shape and --set before you believe that"


@dataclass(frozen=True)
class ImportedFile:
    source: str
    function: str
    file: str
    op: str
    notes: tuple[str, ...]
    only_at_these_sizes: bool
    check: str  # an outcome of `check`, or why there was none
    reason: str
    at: tuple[str, ...]  # the arguments of the check
    compared: bool  # with a reference
    call_shapes: tuple[str, ...] = ()  # of the call it was made from: `x=64x256:f16`
    call_numbers: tuple[str, ...] = ()
    bare_pointers: tuple[str, ...] = ()  # behind which nobody says how much there is
    reference: str = ""  # a file with the function `imported_reference`, where one was wanted and the source has one


@dataclass(frozen=True)
class Refused:
    """One launcher, or file, that could not be carried, and the construct in the way."""

    source: str
    function: str
    reason: str


@dataclass(frozen=True)
class ImportReport:
    imported: tuple[ImportedFile, ...]
    refused: tuple[Refused, ...]

    @property
    def exit_status(self) -> int:
        wrong = (CheckOutcome.WRONG.value, CheckOutcome.FINDINGS.value, CheckOutcome.FAULTED.value)
        return int(not self.imported or any(one.check in (*wrong, NOT_COMPARED) for one in self.imported))


@dataclass(frozen=True)
class Wanted:
    what: Path
    output: Path | None = None
    functions: tuple[str, ...] = ()
    reference: tuple[Path, str] | None = None
    shapes: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    include: tuple[Path, ...] = ()
    defines: tuple[str, ...] = ()
    keep_references: bool = False  # beside the kernel files
    is_checked: bool = True  # in the emulator


def import_command(
    what: Annotated[
        Path, typer.Argument(help="A .cu file, a .py file with a CUDA extension, or a folder.", show_default=False)
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="K.cu", help="The kernel file to write, or a folder.")
    ] = None,
    function: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Import only this launcher; may be repeated.")
    ] = None,
    reference: terminal.ReferenceOption = None,
    shape: terminal.ShapeOption = None,
    set_: terminal.SetOption = None,
    include: terminal.IncludeOption = None,
    define: terminal.DefineOption = None,
    as_json: terminal.JsonOption = False,
) -> None:
    """Turn existing CUDA code into kernel files and check each; say what could not be imported.

    For a .py file with an extension, --reference may also be FILE.py:CLASS, the model that the extension replaces.
    """
    options = tuple(shape or ()), tuple(set_ or ()), tuple(include or ()), tuple(define or ())
    with progress() as say, launcher_reference(reference, what, options[0], options[1]) as known:
        report = import_files(Wanted(what, output, tuple(function or ()), known, *options), say)
    deliver(report, as_json, say_each(_lines(report)))
    exit_with(report.exit_status)


def launcher_reference(
    text: str | None, what: Path, shapes: tuple[str, ...], numbers: tuple[str, ...]
) -> AbstractContextManager[tuple[Path, str] | None]:
    """What `--reference` names for code whose parameters nobody knows yet."""
    if not text:
        return nullcontext()
    from tilewright.frontends.api.requests import named_reference, split_reference

    if what.suffix not in (".cu", ".cuh") and re.fullmatch(r".*\.py:\w+", text):
        return nullcontext(split_reference(text))  # perhaps the class that an extension replaces
    return named_reference(text, pairs("--shape", shapes), pairs("--set", numbers))


@dataclass(frozen=True)
class ImportedKernel:
    record: ImportedFile
    file: KernelFile
    specified: tuple[tuple[str, ...], tuple[str, ...]]  # `--shape` and `--set`, of parameters that the op has
    reference: str = ""  # text with the function `imported_reference`, where it is kept
    refused: tuple[Refused, ...] = ()


def import_one(wanted: Wanted, say: Callable[[str], None], choose: str = "", if_none: int = 1) -> ImportedKernel:
    """The only kernel of a source. `choose`: how to choose one of several; `if_none`: the exit code without any."""
    path = wanted.what
    with tempfile.TemporaryDirectory() as folder:
        report = import_files(replace(wanted, output=Path(folder)), say)
        if len(report.imported) > 1:
            names = ", ".join(one.function for one in report.imported)
            how = choose or f"import one of them with: tilewright import {path} --function NAME"
            raise BadArgument(f"{path}: {len(report.imported)} launchers; {how}: {names}")
        if not report.imported:
            reasons = "; ".join(one.reason for one in report.refused)
            if reasons.startswith("--"):  # an option is at fault, not the file
                raise BadArgument(reasons)
            problem = f"{path} could not be imported: {reasons.removeprefix(f'{path.name}: ')}"
            how = "" if choose else f"; it is plain CUDA, try: tilewright import {path}, with -I, -D or --function"
            raise NotDone(f"{problem}{how}", if_none)
        (one,) = report.imported
        text = Path(one.file).read_text("utf-8")
        reference = Path(one.reference).read_text("utf-8") if one.reference else ""
    file = parse(text, f"{one.function}.cu")
    of_op = _of_op("--shape", wanted.shapes, file), _of_op("--set", wanted.numbers, file)
    return ImportedKernel(one, file, of_op, reference, report.refused)


def _of_op(option: str, texts: tuple[str, ...], file: KernelFile) -> tuple[str, ...]:
    """What was said of the launcher's parameters, as far as the op has them: some become sizes of tensors."""
    names = {one.name for one in file.plan.op.parameters}
    known = names | judging.size_names(file).keys()
    for name in pairs(option, texts).keys() - known:
        raise BadArgument(f"{option} {name}: write one of {file.plan.op.name}'s parameters: {', '.join(sorted(known))}")
    return tuple(text for text in texts if text.partition("=")[0].strip() in names)


def import_files(wanted: Wanted, say: Callable[[str], None]) -> ImportReport:
    with HostChild() as child, EmulatedDevice(judging.GPU) as emulator:
        return _Importer(wanted, child, judging.reach(emulator), say).run()


class _Importer:
    def __init__(self, wanted: Wanted, child: HostChild, outside: OutOfBounds, say: Callable[[str], None]) -> None:
        self.wanted, self.child, self.outside, self.say = wanted, child, outside, say
        self.specified = _specified(wanted)
        self.include = _include(wanted)
        self.imported: list[ImportedFile] = []
        self.refused: list[Refused] = []

    def run(self) -> ImportReport:
        for path in _files(self.wanted.what):
            self.say(f"reading {path.name}")
            try:
                (self._python if path.suffix == ".py" else self._cuda)(path)
            except ImportProblem as problem:
                self.refused.append(Refused(str(path), "", str(problem)))
        if self.wanted.reference is not None and not any(one.compared for one in self.imported):
            clean, others = CheckOutcome.CLEAN.value, self.imported
            self.imported = [replace(one, check=NOT_COMPARED) if one.check == clean else one for one in others]
        return ImportReport(tuple(self.imported), tuple(self.refused))

    def _cuda(self, path: Path) -> None:
        source = self._linked(path)
        found = importer.launchers(source)
        found += [name for name in importer.other_launching_functions(source, found) if name not in found]
        hosts = {site.name: site.host.name for site in launch_sites(source)} | {name: name for name in found}
        asked = self.wanted.functions  # launchers, or launches of theirs that come in alone
        names = list(dict.fromkeys(hosts[name] for name in asked if hosts.get(name) in found)) if asked else found
        if not found:
            raise ImportProblem(f"{path.name}: no host function in it launches a kernel; a kernel file needs a launch")
        if not names:
            raise ImportProblem(f"{path.name}: --function names none of its launchers: {', '.join(found)}")
        self._one_output(len(names), names)
        for name in names:
            self._launcher(path, source, name, self.specified, self._reference_function())

    def _linked(self, path: Path) -> Source:
        """The source, with the files beside it that define kernels which it launches and only declares."""
        text = _text(path)
        source = read_source(path.name, text, path.parent, self.include, self.wanted.defines)
        for name in importer.launched_elsewhere(source):
            defined = re.compile(rf"__global__[^;{{}}]*\b{name}\s*\([^;{{}}]*\)\s*\{{")
            others = (one for one in sorted(path.parent.glob("*.cu")) if one != path and defined.search(_text(one)))
            text += "".join(f'\n#include "{other.name}"' for other in others if f'"{other.name}"' not in text)
        if text == _text(path):
            return source
        return read_source(path.name, f"{text}\n", path.parent, self.include, self.wanted.defines)

    def _python(self, path: Path) -> None:
        text = _text(path)
        if "cpp_extension" not in text:
            raise ImportProblem(f"{path.name}: it loads no CUDA extension (torch.utils.cpp_extension)")
        answer = self._recorded(path, text)
        if not answer.calls:
            reason = answer.problems[0] if answer.problems else "its forward calls no function of an extension"
            raise ImportProblem(f"{path.name}: {reason}")
        calls = {call.function: call for call in reversed(answer.calls)}
        chosen = [name for name in calls if not self.wanted.functions or name in self.wanted.functions]
        self._one_output(len(chosen), chosen)
        for name in reversed(chosen):
            call = calls[name]
            try:
                source = read_source(path.name, call.source, path.parent, self.include, self.wanted.defines)
            except ImportProblem as problem:
                self.refused.append(Refused(str(path), name, str(problem)))
                continue
            own = self._model_reference(path, text, call, answer.inputs) if answer.is_whole else None
            self._launcher(path, source, name, call.arguments, own or self._reference_function())
        self.refused += [Refused(str(path), "", one) for one in answer.problems]

    def _recorded(self, path: Path, text: str) -> ModelAnswer:
        name = "ModelNew" if "class ModelNew" in text else "Model"
        try:
            with Reference(judging.stand_ins(path) + text, name, folder=path.parent, programs=True) as reference:
                handler = "tilewright.importing.models:record_model"
                answer: ModelAnswer = reference.call(handler, ModelRequest(), ModelAnswer, _MODEL_SECONDS)
                return answer
        except ReferenceProblem as problem:
            raise ImportProblem(f"{path.name}: {problem}") from None

    def _launcher(
        self,
        path: Path,
        source: Source,
        name: str,
        specified: Mapping[str, CallArgument] | Sequence[CallArgument],
        reference: judging.OriginalReference | None,
    ) -> None:
        self.say(f"importing {name} of {path.name}")
        found, problems = importer.import_function(source, name, specified, self.child, judging.GPU, self.outside)
        if self.wanted.functions and name not in self.wanted.functions:
            found = [made for made in found if made.function in self.wanted.functions]
        lacks = f"; not found: {', '.join(source.missing)} (give -I FOLDER)" if source.missing else ""
        self.refused += [Refused(str(path), name, f"{problem}{lacks}") for problem in problems]
        self._one_output(len(found), [made.function for made in found])
        for made in found:
            output = self._place(made.function, path)
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(made.text, "utf-8")
            self.imported.append(self._checked(path, made, parse(made.text, str(output)), reference))

    def _checked(
        self, path: Path, made: importer.Imported, file: KernelFile, reference: judging.OriginalReference | None
    ) -> ImportedFile:
        record = ImportedFile(
            source=str(path),
            function=made.function,
            file=file.name,
            op=made.text.splitlines()[0].removeprefix("//!").strip().removeprefix("op").strip(),
            notes=made.notes,
            only_at_these_sizes=made.pinned,
            check="not checked",
            reason="no sizes small enough to emulate fit it" if self.wanted.is_checked else "",
            at=(),
            compared=False,
            call_shapes=_call_words(made, tensors=True),
            call_numbers=_call_words(made, tensors=False),
            bare_pointers=made.guessed_lengths,
        )
        if not self.wanted.is_checked:
            return record
        self.say(f"checking {Path(file.name).name}")
        own, refused = None, ""
        if reference is not None:
            try:
                own = judging.for_op(file, reference, made.guessed_lengths)
            except BadArgument as problem:
                refused = str(problem)
        flat = any(one.is_pointer for one in made.arguments)
        apart = flat and own is not None and reference is not None and judging.lacks_numbers(file, reference)
        arguments = small_arguments(file, made.arguments, judging.GPU, (unchanged,) if apart else ROUND_SIZES)
        outcome, reason, compared = record.check, record.reason, False
        if arguments is not None:
            outcome, reason, compared = judging.checked(file, arguments, own)
        is_guessed = outcome == CheckOutcome.FINDINGS.value and not (self.specified or compared)
        odd = [] if apart else judging.at_odd_sizes(file, made.arguments, arguments, own if compared else None)
        return replace(
            record,
            notes=(*made.notes, *((_GUESSED,) if is_guessed else ()), *odd),
            check=outcome,
            reason="; ".join(filter(None, (reason, refused))),
            at=tuple(f"{name} = {value}" for name, value in (arguments or {}).items()),
            compared=compared,
            reference=self._kept(path, file, reference if compared else None),
        )

    def _kept(self, made_from: Path, file: KernelFile, reference: judging.OriginalReference | None) -> str:
        """The source's own reference, once it has been compared with, without what loads the extension."""
        if reference is None or not self.wanted.keep_references or reference[1] != judging.ADAPTED:
            return ""
        place = Path(file.name).with_suffix(".reference.py")
        place.write_text(judging.without_extension(reference[0].removeprefix(judging.stand_ins(made_from))), "utf-8")
        return str(place)

    def _reference_function(self) -> judging.OriginalReference | None:
        if self.wanted.reference is None:
            return None
        path, function = self.wanted.reference
        return _text(path), function, path.parent

    def _model_reference(
        self, path: Path, text: str, call: ExtensionCall, inputs: Sequence[str]
    ) -> judging.OriginalReference | None:
        """The model that the extension replaces, as a function of the extension's arguments; None for no class."""
        name = "Model"
        if self.wanted.reference is not None:
            path, name = self.wanted.reference
            text = _text(path)
        if f"class {name}" not in text:
            return None
        return judging.stand_ins(path) + text + judging.adapter(name, call, inputs), judging.ADAPTED, path.parent

    def _one_output(self, count: int, names: Sequence[str]) -> None:
        if count > 1 and self.wanted.output is not None and self.wanted.output.suffix == ".cu":
            raise BadArgument(
                f"-o {self.wanted.output}: {count} launchers were found ({', '.join(names)}); choose one with "
                "--function, or give -o a folder"
            )

    def _place(self, name: str, source: Path) -> Path:
        output = self.wanted.output
        place = output if output is not None and output.suffix == ".cu" else (output or Path()) / f"{name}.cu"
        if place.exists() and place.resolve() == source.resolve():
            raise BadArgument(f"{place} is the file to be imported; give -o another name")
        return place


def _call_words(made: importer.Imported, tensors: bool) -> tuple[str, ...]:
    """The call's tensors as `--shape` takes them, or its numbers as `--set` does."""
    known = [one for one in made.arguments if one.kind != "stream" and one.value is not None]
    if tensors:
        return tuple(f"{one.name}={'x'.join(map(str, one.shape))}:{one.dtype}" for one in known if one.is_tensor)
    numbers = {one.name: one.value for one in known if not one.is_tensor}
    texts = {name: one if isinstance(one, tuple) else (str(one).lower(),) for name, one in numbers.items()}
    return tuple(f"{name}={','.join(map(str, text))}" for name, text in texts.items())


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError as error:
        raise BadArgument(f"{path} cannot be read: {error}") from None


def _files(what: Path) -> Iterator[Path]:
    if not what.exists():
        raise BadArgument(f"{what}: no such file; give a .cu or .py file, or a folder of them")
    if what.is_file():
        if what.suffix not in (".cu", ".cuh", ".py"):
            raise BadArgument(f"{what}: give a .cu or .py file, or a folder of them")
        yield what
        return
    found = sorted(path for path in what.rglob("*") if path.suffix in (".cu", ".py") and path.is_file())
    chosen = [path for path in found if path.suffix == ".cu" or "cpp_extension" in _text(path)]
    if not chosen:
        raise BadArgument(f"{what}: no .cu file and no .py file with a CUDA extension lies in it")
    if len(chosen) > _MOST_FILES:
        raise BadArgument(f"{what}: {len(chosen)} files; import at most {_MOST_FILES} at a time, folder by folder")
    yield from chosen


def _include(wanted: Wanted) -> list[Path]:
    """Where includes are looked for: as one says, and anywhere in a folder that is imported whole."""
    for folder in wanted.include:
        if not folder.is_dir():
            raise BadArgument(f"-I {folder}: no such folder; give the one that the build looks for headers in")
    if not wanted.what.is_dir():
        return list(wanted.include)
    headers = (path for path in wanted.what.rglob("*") if path.suffix in (".h", ".hpp", ".cuh", ".inl"))
    return [*wanted.include, *dict.fromkeys(sorted(path.parent for path in headers))]


def _specified(wanted: Wanted) -> dict[str, CallArgument]:
    specified: dict[str, CallArgument] = {}
    for name, text in pairs("--shape", wanted.shapes).items():
        try:
            spec = TensorSpec.parse(text)
        except ValueError as error:
            raise BadArgument(f"--shape {name}={text}: {error}") from None
        specified[name] = CallArgument(name, "tensor", spec.dtype.value if ":" in text else "", spec.shape)
    words = {"true": True, "false": False, "none": None}
    for name, text in pairs("--set", wanted.numbers).items():
        try:
            number = int(text) if text.lstrip("-").isdigit() else text in words or float(text)
        except ValueError:
            raise BadArgument(f"--set {name}={text}: write a number, true, false or none") from None
        specified[name] = CallArgument.of(name, words.get(text, number))
    return specified


def _lines(report: ImportReport) -> Iterator[str]:
    for one in report.imported:
        yield f"{one.file}  {one.op}"
        compared = ", equal to the reference" if one.compared and one.check == CheckOutcome.CLEAN.value else ""
        sizes = f" at {', '.join(one.at)}" if one.at else ""
        yield f"  {one.check}{compared}{sizes}" + (f": {one.reason}" if one.reason else "")
        if one.only_at_these_sizes:
            yield "  holds only at the sizes it was imported at"
        yield from (f"  {note}" for note in one.notes)
    for refused in report.refused:
        yield f"not imported: {f'{refused.source} {refused.function}'.strip()}: {refused.reason}"
    yield f"{len(report.imported)} imported, {len(report.refused)} not"

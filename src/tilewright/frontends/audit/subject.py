"""What is audited: a kernel file as it stands, or CUDA as it is found, imported into one first."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.frontends.imported_checks import ADAPTED, for_op, size_names
from tilewright.frontends.importing import ImportedFile, ImportReport, Wanted, import_files
from tilewright.frontends.kernel_arguments import BadArgument, complete_arguments, pairs, parse_arguments
from tilewright.frontends.terminal import FAULT, NotDone
from tilewright.kernel_file import ArgumentValue, Choice, KernelFile, TunedChoices, evaluate_tuned, parse
from tilewright.records import GpuProfile, ScalarType

Say = Callable[[str], None]
_BARE = "nobody says how much is there: such tensors are taken large, and the roofline counts them whole"
_PLAN = re.compile(r"^\s*//!", re.MULTILINE)


@dataclass(frozen=True)
class Asked:
    """As it was written on the command line."""

    file: Path
    function: str  # of the launchers of a file that is imported; "" for its only one
    reference: tuple[Path, str] | None
    shapes: tuple[str, ...]
    numbers: tuple[str, ...]
    include: tuple[Path, ...] = ()  # for a file that is imported
    defines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subject:
    file: KernelFile
    arguments: Mapping[str, ArgumentValue]
    guessed: bool
    imported_from: str = ""
    notes: tuple[str, ...] = ()
    guessed_lengths: frozenset[str] = frozenset()  # tensors behind plain pointers that nobody said the length of
    reference: str = ""  # text with the function `imported_reference`: the source's own, or one given, as the op's
    choice: Choice | None = None  # of its tuned constants, where one is recorded beside it that holds
    compared: str = ""  # by the import with the source's own reference, for where no task can be made of that


def read_subject(asked: Asked, gpu: GpuProfile, say: Say) -> Subject:
    """Raises `BadArgument`, `KernelFileError`, and `NotDone` with the reasons where nothing could be imported."""
    text = _text(asked.file)
    if asked.file.suffix == ".py" or not _PLAN.search(text):
        return _imported(asked, gpu, say)
    if asked.function:
        raise BadArgument(f"--function {asked.function}: {asked.file} is a kernel file; drop it")
    subject = _with_arguments(parse(text, str(asked.file)), asked, gpu, (), ())
    _, near = evaluate_tuned(subject.file, subject.arguments, gpu, TunedChoices.load(asked.file))
    if near is None:
        return subject
    shown = ", ".join(f"{name} = {value}" for name, value in near.winner.choice)
    note = f"timed with {shown}: {near.why(gpu)}; judged with the first choices of the file"
    return replace(subject, choice=near.choice, notes=(*subject.notes, note))


def _text(path: Path) -> str:
    if path.is_dir():
        raise BadArgument(f"{path}: a folder; give one file (.cu or .py)")
    if not path.exists():
        raise BadArgument(f"{path}: no such file; give a kernel file, or CUDA as it is found (.cu or .py)")
    if path.suffix not in (".cu", ".cuh", ".py"):
        raise BadArgument(f"{path}: give a .cu or .py file")
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        raise BadArgument(f"{path}: not UTF-8 text; save it as UTF-8") from None


def _with_arguments(
    file: KernelFile, asked: Asked, gpu: GpuProfile, sizes: tuple[str, ...], numbers: tuple[str, ...]
) -> Subject:
    """At the sizes that were said; else at those it was imported at; else at some that fit."""
    op = file.plan.op
    said = parse_arguments(op, asked.shapes, asked.numbers)
    known = {**parse_arguments(op, sizes, numbers), **said}
    arguments, guessed = complete_arguments(file, known, gpu)
    return Subject(file, arguments, guessed)


def _imported(asked: Asked, gpu: GpuProfile, say: Say) -> Subject:
    say(f"importing {asked.file.name}")
    functions = (asked.function,) if asked.function else ()
    with tempfile.TemporaryDirectory() as folder:
        said = (asked.reference, asked.shapes, asked.numbers, asked.include, asked.defines)
        wanted = Wanted(asked.file, Path(folder), functions, *said, keep_references=True)
        report = import_files(wanted, say)
        one = _only(asked, report)
        text = Path(one.file).read_text("utf-8")
        reference = Path(one.reference).read_text("utf-8") if one.reference else ""
    file = parse(text, f"{one.function}.cu")
    subject = _sized(file, _only_of(asked, file), gpu, one, any_said=bool(asked.shapes or asked.numbers))
    refused = tuple(f"not imported: {other.function or asked.file.name}: {other.reason}" for other in report.refused)
    pinned = ("it holds only at the sizes it was imported at",) if one.only_at_these_sizes else ()
    bare = (f"behind plain pointers {_BARE}",) if one.bare_pointers else ()
    return replace(
        subject,
        imported_from=str(asked.file),
        notes=(*one.notes, *pinned, *bare, *refused),
        guessed_lengths=frozenset(one.bare_pointers),
        reference=reference or _given_reference(asked, file, one.bare_pointers),
        compared=f"the import compared it with the source's own reference: {one.check}" if one.compared else "",
    )


def _given_reference(asked: Asked, file: KernelFile, guessed_lengths: tuple[str, ...]) -> str:
    """The reference that was given as a function of the op's parameters; "" where it is one as it stands."""
    if asked.reference is None:
        return ""
    path, function = asked.reference
    text, name, _ = for_op(file, (_text(path), function, path.parent), guessed_lengths)
    return text if name == ADAPTED else ""


def _sized(file: KernelFile, asked: Asked, gpu: GpuProfile, one: ImportedFile, any_said: bool) -> Subject:
    """At the sizes that the source's own call has; where those were tried out, rather at some of usual size."""
    recorded = asked.file.suffix == ".py"
    told = any(parameter.scalar is ScalarType.INT for parameter in file.plan.op.parameters)
    if not recorded and not any_said and not told:
        with contextlib.suppress(BadArgument):
            return _with_arguments(file, asked, gpu, (), one.call_numbers)
    own = asked if recorded else replace(asked, shapes=(), numbers=())  # else the call has what was said
    subject = _with_arguments(file, own, gpu, one.call_shapes, one.call_numbers)
    return replace(subject, guessed=not recorded and not any_said)


def _only(asked: Asked, report: ImportReport) -> ImportedFile:
    if len(report.imported) == 1:
        return report.imported[0]
    if report.imported:
        names = ", ".join(one.function for one in report.imported)
        raise BadArgument(f"{asked.file}: {len(report.imported)} launchers; choose one with --function: {names}")
    reasons = "; ".join(one.reason for one in report.refused)
    if reasons.startswith("--"):  # what was said is at fault, not the file
        raise BadArgument(reasons)
    raise NotDone(f"{asked.file} could not be imported: {reasons}", FAULT)


def _only_of(asked: Asked, file: KernelFile) -> Asked:
    """What was said of the launcher's parameters, as far as the op has them: some become sizes of tensors."""
    names = {one.name for one in file.plan.op.parameters}
    known = names | size_names(file).keys()

    def kept(option: str, texts: tuple[str, ...]) -> tuple[str, ...]:
        for name in pairs(option, texts).keys() - known:
            raise BadArgument(
                f"{option} {name}: write one of {file.plan.op.name}'s parameters: {', '.join(sorted(known))}"
            )
        return tuple(text for text in texts if text.partition("=")[0].strip() in names)

    return replace(asked, shapes=kept("--shape", asked.shapes), numbers=kept("--set", asked.numbers))

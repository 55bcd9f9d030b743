"""The input of an export: kernel files from a run or from files, with task, provenance and verification status."""

from __future__ import annotations

import contextlib
import itertools
import json
import keyword
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from tilewright.exports.writing import NotExportable
from tilewright.kernel_file import Arguments, KernelFile, Op, TunedChoices, parse, print_op
from tilewright.records import (
    UNSTATED,
    CaseStatus,
    Changed,
    Passed,
    Provenance,
    RecordError,
    Task,
    TensorSpec,
    from_json,
)
from tilewright.store import ChangedKernel, RunFolder, Store, provenance_of, provenance_path

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_LICENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+() -]{0,199}")
_TAKEN = {"torch", "tilewright", "kernels", "tests", "test", "setup"}
MOST_CALLS = 64


class Standing(str, Enum):
    """The verification status of what is exported."""

    VERIFIED = "verified"
    PROVISIONAL = "provisional"  # passed, but part of what runs at the task's sizes was not verified
    EARLIER = "earlier"  # verified by a version that did not check the task's own call
    DEGENERATE = "degenerate"  # passed, for a degenerate task
    FAILED = "failed"  # rejected
    EDITED = "edited"  # changed since it was verified
    UNJUDGED = "unjudged"  # never verified

    @property
    def words(self) -> str:
        return "verified" if self is Standing.VERIFIED else f"not verified: {_WHY_NOT_VERIFIED[self]}"


_WHY_NOT_VERIFIED = {
    Standing.PROVISIONAL: "something that runs at the task's own sizes was judged nowhere",
    Standing.EARLIER: "it was judged before the referee looked at what runs at the task's own sizes; have it judged "
    "again with: tilewright make REQUEST --start FILE.cu --attempts 1",
    Standing.DEGENERATE: "the task's answers prove nothing",
    Standing.FAILED: "the referee rejected it",
    Standing.EDITED: "the file was changed by hand since it was judged; check it with: tilewright check FILE.cu",
    Standing.UNJUDGED: "no run has judged this file",
}


@dataclass(frozen=True)
class Reference:
    """A PyTorch reference: its source, and the function in it."""

    source: str
    function: str


@dataclass(frozen=True)
class Source:
    """Kernel files of one op in the order of dispatch, and what is known of them."""

    files: tuple[KernelFile, ...]
    tuned: TunedChoices
    calls: tuple[Arguments, ...]  # to build for; the first is the task's own
    gpu: str
    standing: Standing
    task: Task | None = None
    provenance: Provenance | None = None
    reference: Reference | None = None
    licence: str = UNSTATED
    guessed: bool = False  # the shapes to build for were guessed
    backward: Source | None = None  # the backward kernel

    @property
    def op(self) -> Op:
        return self.files[0].plan.op

    def tensors(self, call: Arguments) -> tuple[tuple[str, TensorSpec], ...]:
        """The tensors of a call, by name."""
        regular = self.files[0].signature.arguments(call)
        given = ((one.name, regular[one.name]) for one in self.op.tensors)
        return tuple((name, spec) for name, spec in given if isinstance(spec, TensorSpec))


def from_run(folder: RunFolder) -> Source:
    """The best kernel of a run; if none passed, the last attempt's, marked as failed."""
    run = folder.load()
    best = run.best
    attempt = best or next((one for one in reversed(run.attempts) if one.kernel is not None), None)
    if attempt is None:
        raise NotExportable(f"run {run.id} has no kernel yet; go on with: tilewright resume {run.id}")
    file = parse(folder.attempt(attempt.number).text("kernel.cu"), f"{run.task.name}.cu")
    standing = Standing.VERIFIED
    if isinstance(attempt.verdict, Changed):
        standing = Standing.EDITED
    elif best is None:
        standing = Standing.FAILED
    elif run.task.degenerate:
        standing = Standing.DEGENERATE
    elif isinstance(best.verdict, Passed) and best.verdict.is_provisional:
        standing = Standing.PROVISIONAL
    elif isinstance(best.verdict, Passed) and not _saw_own_call(best.verdict, run.task):
        standing = Standing.EARLIER
    tuned = TunedChoices()
    if best is not None:
        tuned = tuned.with_winner_of(file, run.task, best)
    provenance = provenance_of(folder) if best is not None else None
    return Source(
        files=(file,),
        tuned=tuned,
        calls=sample_calls(run.task),
        gpu=run.task.gpu,
        standing=standing,
        task=run.task,
        provenance=provenance,
        reference=Reference(run.task.reference, run.task.function),
        licence=provenance.licence if provenance is not None else UNSTATED,
    )


def _saw_own_call(verdict: Passed, task: Task) -> bool:
    """Whether the task's own call was verified, at least in part. Newer verdicts name what was not verified."""
    return verdict.is_looked_at or any(
        one.status is CaseStatus.SAMPLED or (one.status is CaseStatus.RIGHT and one.case.sizes == task.sizes)
        for one in verdict.cases
    )


def from_files(paths: Sequence[Path], store: Store | None = None) -> Source:
    """Kernel files with their tuned choices and provenance files, which lead to the task in the library.

    The calls to build for come from that task; without one they must be given.
    """
    files = tuple(parse(_text(path), path.name) for path in paths)
    first = files[0]
    for file in files[1:]:
        if print_op(file.plan.op) != print_op(first.plan.op):
            raise NotExportable(f"{file.name} is another op than {first.name}; the `op` lines of one op's files agree")
    names = [path.name for path in paths]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise NotExportable(f"two of the files are called {twice}; an export keeps them side by side: rename one")
    tuned = TunedChoices()
    for path in paths:
        tuned = tuned.joined(TunedChoices.load(path))
    records = [_record(path) for path in paths]
    standings = [_standing(file, one) for file, one in zip(files, records, strict=True)]
    standing = next((one for one in standings if one is not Standing.VERIFIED), Standing.VERIFIED)
    known = records[0].provenance if records[0] is not None else None
    source = Source(files, tuned, (), "H200", standing, provenance=known)
    if known is None:
        return source
    source = replace(source, licence=known.licence)
    task = None
    with contextlib.suppress(ChangedKernel):  # that of the library; these files are what counts
        found = store.library.find(known.task_hash) if store is not None else None
        task = found.task() if found is not None else None
    if task is None or standing is Standing.EDITED:
        return source
    reference = Reference(task.reference, task.function)
    return replace(source, task=task, reference=reference, calls=sample_calls(task), gpu=task.gpu)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NotExportable(f"{path}: cannot be read as a kernel file ({error}); give a run or a .cu file") from None


@dataclass(frozen=True)
class _Record:
    """The provenance file of a kernel file."""

    provenance: Provenance
    earlier: bool  # see `is_earlier`


def _record(path: Path) -> _Record | None:
    beside = provenance_path(path)
    try:
        said = json.loads(beside.read_text("utf-8"))
        return _Record(from_json(Provenance, said), is_earlier(said))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecordError) as error:
        raise NotExportable(f"{beside}: not a record of where a kernel comes from ({error}); delete it") from None


def is_earlier(provenance: Mapping[str, Any]) -> bool:
    """Whether a stored provenance predates the check of the task's own call."""
    return "unjudged" not in provenance


def _standing(file: KernelFile, record: _Record | None) -> Standing:
    if record is None:
        return Standing.UNJUDGED
    known = record.provenance
    if not has_identity(file, known.kernel):
        return Standing.EDITED
    if known.degenerate:
        return Standing.DEGENERATE
    if record.earlier:
        return Standing.EARLIER
    return Standing.PROVISIONAL if known.unjudged or not known.verified_on else Standing.VERIFIED


def has_identity(file: KernelFile, recorded: str | None) -> bool:
    """Whether a file has the recorded identity, which is at least the first 20 digits of its hash."""
    return recorded is not None and len(recorded) >= 20 and file.identity.startswith(recorded)


def with_backward(source: Source, store: Store) -> Source:
    """The source with its backward kernel, if the library has one."""
    found = store.library.backward_of(source.task.hash) if source.task is not None else None
    if found is None or source.standing is Standing.EDITED:
        return source
    backward = from_files([found.path], store)
    return replace(source, backward=backward) if backward.task is not None else source


# -- calls --


def sample_calls(task: Task) -> tuple[Arguments, ...]:
    """Calls of a task: its own sizes, then each dynamic size smaller and larger, then pairs."""
    free = [one for one in task.free if one.varies]
    changes: list[dict[str, int]] = [{}]
    for one in free:
        own = one.size
        wanted = (own * 2, own // 2, own + 1, own + 4, own // 4, own * 4, 1, 64, 1024, 4096)
        sizes = dict.fromkeys(one.permitted(max(size, 1)) for size in wanted)
        changes += [{one.name: size} for size in sizes]
    for first, second in itertools.combinations(free, 2):
        changes.append({one.name: one.permitted(max(one.size // 2, 1)) for one in (first, second)})
    calls: list[Arguments] = []
    for change in changes[:MOST_CALLS]:
        complete = task.complete({**task.sizes, **change})
        if task.is_sound(complete):
            calls.append(task.arguments(complete))
    return tuple(calls)


# -- names --


def check_metadata(source: Source) -> None:
    """Refuse a licence or function name that could inject text into generated files."""
    if not _LICENCE.fullmatch(source.licence):
        raise NotExportable(f"the licence {source.licence!r} is no SPDX expression; give one with --license")
    if source.reference is not None and not source.reference.function.isidentifier():
        raise NotExportable(f"the reference's function {source.reference.function!r} is no name of Python")


def checked_name(name: str) -> str:
    """A name that may be a Python package, a C function and a folder; raises `NotExportable`."""
    if not _NAME.fullmatch(name):
        raise NotExportable(
            f"--name {name!r}: not a name for a package; write letters, digits and _, at most 64, a letter first"
        )
    if keyword.iskeyword(name) or name in sys.stdlib_module_names or name in _TAKEN or name in CPP_WORDS:
        raise NotExportable(f"the name {name} is taken by Python, C++ or torch; give another with --name")
    return name


_CPP_TEXT = (
    "alignas alignof and_eq asm auto bitand bitor bool case catch char class compl concept const constexpr const_cast "
    "decltype default delete do double dynamic_cast else enum explicit export extern false float for friend goto if "
    "inline int long main mutable namespace new noexcept not_eq nullptr operator or_eq private protected public "
    "register reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch "
    "template this thread_local throw true try typedef typeid typename union unsigned using virtual void "
    "volatile wchar_t while xor xor_eq stream workspace plan driver std size_t int64_t"
)
CPP_WORDS = frozenset(_CPP_TEXT.split())

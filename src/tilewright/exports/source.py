"""What is exported: kernel files with all that is known of them, from a run or from files, and how far it is judged."""

from __future__ import annotations

import itertools
import json
import keyword
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from tilewright.exports.writing import NotExportable
from tilewright.kernel_file import Arguments, KernelFile, Op, TunedChoices, parse, print_op
from tilewright.records import UNSTATED, CaseStatus, Passed, Provenance, RecordError, Task, TensorSpec, from_json
from tilewright.store import RunFolder, Store, provenance_of, provenance_path

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_LICENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+() -]{0,199}")
_TAKEN = {"torch", "tilewright", "kernels", "tests", "test", "setup"}
MOST_CALLS = 64


class Standing(str, Enum):
    """What the referee has said of what is exported."""

    VERIFIED = "verified"
    PROVISIONAL = "provisional"  # right wherever it was judged, and something that runs was judged nowhere
    EARLIER = "earlier"  # judged by a referee that did not yet look at the task's own call
    DEGENERATE = "degenerate"  # right, for a task whose answers prove nothing
    FAILED = "failed"  # the referee has rejected it
    EDITED = "edited"  # changed by hand since it was judged
    UNJUDGED = "unjudged"  # nothing is known

    @property
    def words(self) -> str:
        match self:
            case Standing.VERIFIED:
                return "verified"
            case Standing.PROVISIONAL:
                return "not verified: something that runs at the task's own sizes was judged nowhere"
            case Standing.EARLIER:
                return (
                    "not verified: it was judged before the referee looked at what runs at the task's own sizes; have "
                    "it judged again with: tilewright make REQUEST --start FILE.cu --attempts 1"
                )
            case Standing.DEGENERATE:
                return "not verified: the task's answers prove nothing"
            case Standing.FAILED:
                return "not verified: the referee rejected it"
            case Standing.EDITED:
                return "not verified: the file was changed by hand since it was judged"
            case Standing.UNJUDGED:
                return "not verified: no run has judged this file"


@dataclass(frozen=True)
class Reference:
    """PyTorch source that says what is right, and the function in it."""

    source: str
    function: str


@dataclass(frozen=True)
class Source:
    """Kernel files of one op in the order of dispatch, and what is on record of them."""

    files: tuple[KernelFile, ...]
    tuned: TunedChoices
    calls: tuple[Arguments, ...]  # to build for; the first is the one it was made for
    gpu: str
    standing: Standing
    task: Task | None = None
    provenance: Provenance | None = None
    reference: Reference | None = None
    licence: str = UNSTATED
    guessed: bool = False  # nobody said for which shapes to build
    backward: Source | None = None  # the kernel for its gradients, whose task says what it takes and gives

    @property
    def op(self) -> Op:
        return self.files[0].plan.op

    def tensors(self, call: Arguments) -> tuple[tuple[str, TensorSpec], ...]:
        """Those that a call gives, by name."""
        regular = self.files[0].signature.arguments(call)
        given = ((one.name, regular[one.name]) for one in self.op.tensors)
        return tuple((name, spec) for name, spec in given if isinstance(spec, TensorSpec))


def from_run(folder: RunFolder) -> Source:
    """The best kernel of a run; the last attempt's, marked as failed, where none passed."""
    run = folder.load()
    best = run.best
    attempt = best or next((one for one in reversed(run.attempts) if one.kernel is not None), None)
    if attempt is None:
        raise NotExportable(f"run {run.id} has no kernel yet; go on with: tilewright resume {run.id}")
    file = parse(folder.attempt(attempt.number).text("kernel.cu"), f"{run.task.name}.cu")
    standing = Standing.VERIFIED
    if best is None:
        standing = Standing.FAILED
    elif not is_the_kernel(file, best.kernel):
        standing = Standing.EDITED
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
        calls=calls_of(run.task),
        gpu=run.task.gpu,
        standing=standing,
        task=run.task,
        provenance=provenance,
        reference=Reference(run.task.reference, run.task.function),
        licence=provenance.licence if provenance is not None else UNSTATED,
    )


def _saw_own_call(verdict: Passed, task: Task) -> bool:
    """Whether the task's own call was judged, or a part of it, or seen. What a referee says today names what it did not
    see."""
    return verdict.is_looked_at or any(
        one.status is CaseStatus.SAMPLED or (one.status is CaseStatus.RIGHT and one.case.sizes == task.sizes)
        for one in verdict.cases
    )


def from_files(paths: Sequence[Path], store: Store | None = None) -> Source:
    """Kernel files with what lies beside them: a tuned choice, a provenance, and by it the task in the library.

    The calls to build for are those of that task; without one they are to be given.
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
    standing = _joined_standing(_standing(file, one) for file, one in zip(files, records, strict=True))
    known = records[0].provenance if records[0] is not None else None
    source = Source(files, tuned, (), "H200", standing, provenance=known)
    if known is None:
        return source
    source = replace(source, licence=known.licence)
    task = _task(known, store) if store is not None else None
    if task is None or standing is Standing.EDITED:
        return source
    reference = Reference(task.reference, task.function)
    return replace(source, task=task, reference=reference, calls=calls_of(task), gpu=task.gpu)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NotExportable(f"{path}: cannot be read as a kernel file ({error}); give a run or a .cu file") from None


@dataclass(frozen=True)
class _Record:
    """What lies beside a kernel file."""

    provenance: Provenance
    earlier: bool  # it was written before anybody asked what was judged nowhere


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
    """Whether a provenance, as it is written down, is of a time when nobody asked what was judged nowhere."""
    return "unjudged" not in provenance


def _standing(file: KernelFile, record: _Record | None) -> Standing:
    if record is None:
        return Standing.UNJUDGED
    known = record.provenance
    if not is_the_kernel(file, known.kernel):
        return Standing.EDITED
    if known.degenerate:
        return Standing.DEGENERATE
    if record.earlier:
        return Standing.EARLIER
    return Standing.PROVISIONAL if known.unjudged or not known.verified_on else Standing.VERIFIED


def is_the_kernel(file: KernelFile, recorded: str | None) -> bool:
    """Whether a file is the one on record, where identities are the first 20 digits of the hash."""
    return recorded is not None and len(recorded) >= 20 and file.identity.startswith(recorded)


def _joined_standing(standings: Iterable[Standing]) -> Standing:
    """Of several files: verified only where each is."""
    return next((one for one in standings if one is not Standing.VERIFIED), Standing.VERIFIED)


def _task(provenance: Provenance, store: Store) -> Task | None:
    found = store.library.find(provenance.task_hash)
    return found.task() if found is not None else None


def with_backward(source: Source, store: Store) -> Source:
    """The source with the kernel for its gradients, where the library has one."""
    found = store.library.backward_of(source.task.hash) if source.task is not None else None
    if found is None or source.standing is Standing.EDITED:
        return source
    backward = from_files([found.path], store)
    return replace(source, backward=backward) if backward.task is not None else source


# -- calls --


def calls_of(task: Task) -> tuple[Arguments, ...]:
    """Calls inside a task's domain: its own sizes, then each varying size on its own, smaller and larger, and pairs."""
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


def check_words(source: Source) -> None:
    """Refuse what stands in a record and would not be plain text in the files of an export."""
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

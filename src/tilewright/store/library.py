"""The local library: finished kernels by the hash of their task, found again at no cost by any later process.

    library/TASKHASH/RUN-N/  entry.json  task.json  request.json
                             NAME.cu  NAME.cu.tuned.json  NAME.cu.provenance.json

An entry is one attempt of one run, whole or absent, and never changed. The best entry is found at each look-up. The
provenance of a kernel, which attempt wrote which line, comes from the files of its run."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from tilewright.records import (
    ABSENT,
    BACKWARD,
    UNSTATED,
    Attempt,
    CaseStatus,
    Contribution,
    Measured,
    Measurement,
    Passed,
    Provenance,
    Run,
    Task,
    changed_since_verified,
    digest_of,
    formerly,
    label_says_emulated,
    not_as_judged,
    provenance_path,
    tuned_path,
)
from tilewright.store import durable
from tilewright.store.attempt_folder import KERNEL
from tilewright.store.durable import Damaged, StoreError
from tilewright.store.run_folder import REQUEST, TASK, Request, RunFolder

ENTRY = "entry.json"


class ChangedKernel(StoreError):
    """The file of a finished kernel was changed after it was verified."""


@formerly(derived={"emulated": label_says_emulated})
@dataclass(frozen=True)
class LibraryEntry:
    """A finished kernel and where it comes from."""

    task_hash: str
    op: str
    run: str
    attempt: int
    author: str
    gpu: str
    device: str  # that it was verified and timed on, as shown to people: "H200 (emulated)"
    emulated: bool
    measurement: Measurement | None
    kernel: str  # the file's identity
    created: str  # ISO 8601, UTC
    tilewright: str
    degenerate: str = ""  # of the task: why passing proves nothing
    provisional: bool = False  # not all that it does at the task's own sizes was judged; older entries do not say
    task_digest: str = ""  # SHA-256 of its task's file and of its tuned choices; older entries do not say
    tuned_digest: str = ""


@dataclass(frozen=True)
class LibraryKernel:
    """An entry and its files."""

    entry: LibraryEntry
    folder: Path

    @property
    def path(self) -> Path:
        """The kernel file; a tuned choice lies beside it where there is one."""
        return self.folder / f"{self.entry.op}.cu"

    def task(self) -> Task:
        task: Task = durable.read_record(self.folder / TASK, Task)
        return task

    def provenance(self) -> Provenance | None:
        """Its provenance; None for an entry of an earlier version."""
        return durable.find_record(provenance_path(self.path), Provenance)

    def copy_provenance(self, target: Path, licence: str = "") -> None:
        """Write its provenance beside a copy of the kernel; `licence` replaces the one on record."""
        found = self.provenance()
        if found is not None:
            durable.write_record(provenance_path(target), replace(found, licence=licence or found.licence))

    def backward(self) -> LibraryKernel | None:
        """The kernel for its gradients, where one was made."""
        return Library(self.folder.parent.parent).backward_of(self.entry.task_hash)

    def request(self) -> Request | None:
        return durable.find_record(self.folder / REQUEST, Request)

    def text(self) -> str:
        if said := self.changed:
            raise ChangedKernel(said)
        return self.path.read_bytes().decode("utf-8")

    @property
    def changed(self) -> str:
        """What to say of a file that is not the one that was verified; "" of one that is."""
        entry, verified = self.entry, "it is not verified any more"
        return (
            changed_since_verified(self.path, entry.kernel, entry.run)
            or not_as_judged(self.folder / TASK, entry.task_digest, verified)
            or not_as_judged(tuned_path(self.path), entry.tuned_digest, verified)
        )


class Library:
    """The library under one home."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, source: RunFolder, tuned: str | None = None) -> LibraryKernel:
        """Add the best kernel of a run; `tuned` is the text of the `.tuned.json` beside it."""
        run, provenance = source.load(), provenance_of(source)
        best, request = run.best, source.request()
        assert best is not None  # or it would have no provenance
        folder = self.path / run.task.hash / f"{run.id}-{best.number}"
        with contextlib.suppress(FileExistsError), durable.new_folder(folder) as filling:
            kernel_file = filling / f"{run.task.name}.cu"
            durable.write_text(kernel_file, source.attempt(best.number).text(KERNEL))
            if tuned is not None:
                durable.write_text(tuned_path(kernel_file), tuned)
            durable.write_record(provenance_path(kernel_file), provenance)
            durable.write_record(filling / TASK, run.task)
            if request is not None:
                durable.write_record(filling / REQUEST, request)
            digests = digest_of(filling / TASK), digest_of(tuned_path(kernel_file)) or ABSENT
            durable.write_record(filling / ENTRY, _entry(run, best, provenance.kernel, digests))
        made = LibraryKernel(durable.read_record(folder / ENTRY, LibraryEntry), folder)
        if made.changed:  # the run has it still
            durable.write_text(made.path, source.attempt(best.number).text(KERNEL))
            durable.write_record(folder / TASK, run.task)
            if tuned is not None:
                durable.write_text(tuned_path(made.path), tuned)
        return made

    def find(self, task_hash: str, *, author: str = "", device: str = "") -> LibraryKernel | None:
        """The best kernel of a task: a verified one before a provisional one, a measured one before a modelled one,
        then the fastest, then the newest. `author` and `device`: only by that author, only judged and timed there.

        A kernel whose file was changed is left out with a warning; raises `ChangedKernel` where there is no other.
        """
        found = [
            one
            for one in self._entries(self.path / task_hash)
            if author in ("", one.entry.author) and device in ("", one.entry.device)
        ]
        changed = {one.folder: said for one in found if (said := one.changed)}
        intact = [one for one in found if one.folder not in changed]
        if changed and not intact:
            raise ChangedKernel(f"{next(iter(changed.values()))}, or make it again with --fresh")
        for said in changed.values():
            warnings.warn(said, stacklevel=2)
        return min(intact, key=_rank) if intact else None

    def all(self) -> tuple[LibraryKernel, ...]:
        """The best kernel of every task; a warning for each that has none but changed files. It reads every entry."""
        made = []
        for folder in sorted(self.path.iterdir()) if self.path.is_dir() else []:
            try:
                found = self.find(folder.name) if folder.is_dir() else None
            except ChangedKernel as changed:
                warnings.warn(str(changed), stacklevel=2)
                continue
            made += [found] if found is not None else []
        return tuple(made)

    def backward_of(self, task_hash: str) -> LibraryKernel | None:
        """The best kernel for the gradients of a task; None where none was made."""
        for kernel in self.all():
            if not kernel.entry.op.endswith(BACKWARD):
                continue
            with contextlib.suppress(Damaged):
                derivative = kernel.task().derivative
                if derivative is not None and derivative.forward == task_hash:
                    return kernel
        return None

    def _entries(self, folder: Path) -> Iterator[LibraryKernel]:
        """Entries that can be read. Others are ignored, since they can be made again."""
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if not durable.is_unfinished(path):
                with contextlib.suppress(Damaged):
                    yield LibraryKernel(durable.read_record(path / ENTRY, LibraryEntry), path)


def _entry(run: Run, best: Attempt, kernel: str, digests: tuple[str, str]) -> LibraryEntry:
    return LibraryEntry(
        task_hash=run.task.hash,
        op=run.task.name,
        run=run.id,
        attempt=best.number,
        author=run.settings.author,
        gpu=run.task.gpu,
        device=run.environment.device,
        emulated=run.environment.emulated,
        measurement=best.measurement,
        kernel=kernel,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        tilewright=run.environment.tilewright,
        degenerate=run.task.degenerate,
        provisional=best.is_provisional,
        task_digest=digests[0],
        tuned_digest=digests[1],
    )


def _rank(kernel: LibraryKernel) -> tuple[bool, int, float, float]:
    measurement, provisional = kernel.entry.measurement, kernel.entry.provisional
    newness = -datetime.fromisoformat(kernel.entry.created).timestamp()
    if measurement is None:
        return (provisional, 2, 0.0, newness)
    return (provisional, 0 if isinstance(measurement, Measured) else 1, measurement.time_us, newness)


GIVEN = "given"
_SPDX = re.compile(r"SPDX-License-Identifier:\s*([\w.+() -]*[\w.+)])")


def provenance_of(folder: RunFolder) -> Provenance:
    """The provenance of the best kernel; raises `StoreError` if none has passed."""
    run = folder.load()
    best = run.best
    if best is None or best.kernel is None or not isinstance(best.verdict, Passed):
        raise StoreError(f"run {run.id} has no kernel that passed, so there is nothing to keep")
    verdict = best.verdict
    right = [one for one in verdict.cases if one.status is CaseStatus.RIGHT]
    ratios = [one.error_ratio for one in right if one.error_ratio is not None]
    return Provenance(
        op=run.task.name,
        kernel=best.kernel,
        task_hash=run.task.hash,
        run=run.id,
        created=run.created,
        tilewright=run.environment.tilewright,
        licence=_licence(run),
        contributions=_contributions(folder, run, best),
        verified_on=() if verdict.is_provisional else tuple(dict.fromkeys(one.device for one in right if one.device)),
        right_cases=len(right),
        worst_error=max(ratios, default=None),
        measurement=best.measurement,
        notes=verdict.notes,
        degenerate=run.task.degenerate,
        unjudged=verdict.unjudged,
    )


def line_authors(folder: RunFolder, run: Run, attempt: Attempt) -> list[int]:
    """For every line of an attempt's file the attempt that wrote it; 0 for the file given to start from."""
    authors: list[int] = []
    lines: list[str] = []
    for number, text in _lineage(folder, run, attempt):
        fresh = text.splitlines()
        authors = _inherited(lines, authors, fresh, number)
        lines = fresh
    return authors


def _contributions(folder: RunFolder, run: Run, best: Attempt) -> tuple[Contribution, ...]:
    authors = line_authors(folder, run, best)
    by_number = {one.number: one for one in run.attempts}
    made = []
    for number in sorted(set(authors)):
        ranges = _ranges([line for line, author in enumerate(authors, start=1) if author == number])
        attempt = by_number.get(number)
        if attempt is None:
            made.append(Contribution(0, "start", GIVEN, "the file given to start from", (), ranges))
            continue
        replies = folder.attempt(number).replies()
        author = replies[-1].model if replies else run.settings.author
        prompts = _prompts(folder, number)
        made.append(Contribution(number, attempt.stage.value, author, attempt.summary, prompts, ranges))
    return tuple(made)


def _prompts(folder: RunFolder, number: int) -> tuple[str, ...]:
    found = folder.attempt(number).question_texts()
    return tuple(hashlib.sha256(text.encode("utf-8", "replace")).hexdigest() for text in found)


def _lineage(folder: RunFolder, run: Run, last: Attempt) -> list[tuple[int, str]]:
    """The files that led to an attempt's, the oldest first."""
    by_number = {one.number: one for one in run.attempts}
    found: list[tuple[int, str]] = []
    one: Attempt | None = last
    while one is not None:
        text = folder.attempt(one.number).find_text(KERNEL)
        if text is not None:
            found.append((one.number, text))
        before = _repaired(run, one) if one.stage.is_repair else one.parent
        one = by_number.get(before) if before is not None else None
    if run.settings.start:
        found.append((0, run.settings.start))
    return found[::-1]


def _repaired(run: Run, repair: Attempt) -> int | None:
    """The attempt that a repair fixes: the last before it of an earlier step."""
    earlier = [one.number for one in run.attempts if one.number < repair.number and one.step < repair.step]
    return max(earlier, default=None)


def _inherited(before: Sequence[str], authors: Sequence[int], after: Sequence[str], number: int) -> list[int]:
    made = [number] * len(after)
    for one in difflib.SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks():
        made[one.b : one.b + one.size] = authors[one.a : one.a + one.size]
    return made


def _ranges(lines: Sequence[int]) -> tuple[tuple[int, int], ...]:
    ranges: list[tuple[int, int]] = []
    for line in lines:
        if ranges and ranges[-1][1] == line - 1:
            ranges[-1] = (ranges[-1][0], line)
        else:
            ranges.append((line, line))
    return tuple(ranges)


def _licence(run: Run) -> str:
    """The licence that the person gave, or that the file to start from states."""
    stated = _SPDX.search(run.settings.start)
    return run.settings.licence or (stated[1].strip() if stated else UNSTATED)

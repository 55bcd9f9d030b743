"""Who wrote which line of a run's best kernel, worked out from the run's own files."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Sequence

from tilewright.records import UNSTATED, Attempt, CaseStatus, Contribution, Passed, Provenance, Run
from tilewright.store.attempt_folder import KERNEL
from tilewright.store.durable import StoreError
from tilewright.store.run_folder import RunFolder

GIVEN = "given"
_SPDX = re.compile(r"SPDX-License-Identifier:\s*([\w.+() -]*[\w.+)])")


def provenance_of(folder: RunFolder) -> Provenance:
    """Of the best kernel so far; raises `StoreError` where none has passed."""
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
        before = _mended(run, one) if one.stage.is_repair else one.parent
        one = by_number.get(before) if before is not None else None
    if run.settings.start:
        found.append((0, run.settings.start))
    return found[::-1]


def _mended(run: Run, repair: Attempt) -> int | None:
    """The attempt that a repair mends: the last before it of an earlier step."""
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
    """What the person stated, or what the file given to start from says of itself."""
    stated = _SPDX.search(run.settings.start)
    return run.settings.licence or (stated[1].strip() if stated else UNSTATED)

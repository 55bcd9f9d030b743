"""What an attempt's page shows beside its record: its source line by line, its cases, findings, prompts and replies."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright import records
from tilewright.frontends.show import prompts_of
from tilewright.prompts.verdict_text import verdict_text
from tilewright.records import Attempt, Run
from tilewright.store import RunFolder, StoreError, line_authors
from tilewright.store.attempt_folder import KERNEL

_MOST_PARTIAL = 9  # questions of one attempt


@dataclass(frozen=True)
class SourceLine:
    number: int
    text: str
    author: int | None = None  # the attempt that wrote it; 0 for the file given to start from
    notes: tuple[str, ...] = ()  # what was found there


@dataclass(frozen=True)
class Texts:
    """What lies in an attempt's folder to be read."""

    kernel: str = ""
    prompts: tuple[str, ...] = ()
    replies: tuple[str, ...] = ()
    partial: str = ""  # of a reply that is coming in
    problem: str = ""  # why the others are missing

    def __bool__(self) -> bool:
        return self != Texts()


@dataclass(frozen=True)
class AttemptFacts:
    """`attempt` is None while it is unfinished; what has come in so far is there all the same."""

    number: int
    attempt: Attempt | None
    texts: Texts
    verdict: str
    cases: tuple[records.CaseResult, ...]
    findings: tuple[records.FindingRecord, ...]
    source: tuple[SourceLine, ...]


def attempt_facts(folder: RunFolder, run: Run, number: int) -> AttemptFacts:
    attempt = next((one for one in run.attempts if one.number == number), None)
    verdict = attempt.verdict if attempt else None
    texts = _texts(folder, number)
    return AttemptFacts(
        number=number,
        attempt=attempt,
        texts=texts,
        verdict=verdict_text(verdict, texts.kernel) if verdict else "",
        cases=() if verdict is None or isinstance(verdict, records.Unsupported) else verdict.cases,
        findings=_findings(verdict),
        source=source_lines(texts.kernel, _authors(folder, run, attempt), verdict),
    )


def _texts(folder: RunFolder, number: int) -> Texts:
    place = folder.attempt(number)
    try:
        return Texts(
            place.find_text(KERNEL) or "",
            prompts_of(folder, number),
            tuple(reply.text for reply in place.replies()),
            _partial(folder, number),
        )
    except (StoreError, OSError) as error:
        return Texts(problem=str(error))


def _partial(folder: RunFolder, number: int) -> str:
    texts = (folder.attempt(number).find_text(f"reply-{k}.partial.md") for k in range(1, _MOST_PARTIAL + 1))
    return next((text for text in texts if text), "")


def _authors(folder: RunFolder, run: Run, attempt: Attempt | None) -> list[int]:
    try:
        return line_authors(folder, run, attempt) if attempt else []
    except (StoreError, OSError):
        return []


def _findings(verdict: records.Verdict | None) -> tuple[records.FindingRecord, ...]:
    evidence = verdict.evidence if isinstance(verdict, records.Rejected) else None
    return evidence.findings if isinstance(evidence, records.Crashed) else ()


def source_lines(text: str, authors: list[int], verdict: records.Verdict | None) -> tuple[SourceLine, ...]:
    """Every line of a kernel file with who wrote it and what the verdict says of it."""
    notes: dict[int, list[str]] = {}
    lines = text.splitlines()
    for line, said in _said_of_lines(verdict, lines):
        notes.setdefault(line, []).append(said)
    known = authors if len(authors) == len(lines) else [None] * len(lines)
    return tuple(
        SourceLine(number, line, author, tuple(dict.fromkeys(notes.get(number, ()))))
        for number, (line, author) in enumerate(zip(lines, known, strict=True), start=1)
    )


def _said_of_lines(verdict: records.Verdict | None, lines: list[str]) -> list[tuple[int, str]]:
    said = [(one.line, one.kind.value) for one in _findings(verdict) if one.line is not None]
    said += [(one.other_line, f"other side of: {one.kind.value}") for one in _findings(verdict) if one.other_line]
    if isinstance(verdict, records.Passed):
        said += [(one.line, f"{one.why} in a judged case") for one in verdict.uncovered]
    evidence = verdict.evidence if isinstance(verdict, records.Rejected) else None
    match evidence:
        case records.NotBuilt(diagnostics=diagnostics):
            here = dict(enumerate(map(str.strip, lines), start=1))  # a message may be about a header's line
            said += [(one.line, one.message) for one in diagnostics if here.get(one.line) == one.source_line.strip()]
        case records.BadPlan(problems=problems):
            said += [(one.line, one.message) for one in problems if one.line]
        case records.Crashed(line=int(line), message=message, findings=()):
            said.append((line, message))
    return said

"""What runs show, from their records alone: correct kernels, failures and their repairs, and steps that paid.

Nothing is run and no model is asked. Texts are those of the runs, without paths and keys of this machine: absolute
paths become file names, and what looks like a key is removed. Only a path below a folder at the root of a file system
counts as a path, so `a /rows/columns` stays."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright import records
from tilewright.prompts.replies import table_line
from tilewright.prompts.verdict_text import verdict_text, verdict_words
from tilewright.records import Attempt, Measured, Passed, Rejected, Run, Task, TensorSpec
from tilewright.store import RunFolder, provenance_of

Clean = Callable[[str], str]

HIDDEN_PATH, HIDDEN_KEY = "PATH", "KEY"
_ROOTS = ("home", "Users", "root", "tmp", "var", "opt", "usr", "mnt", "media", "srv", "data", "scratch", "workspace")
_IN_A_PATH = r"[^\s\"'`<>|;,()\[\]{}*?\\:]"
_KEYS = re.compile(
    r"\b(?:sk-[\w-]{16,}|hf_\w{16,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|AKIA[0-9A-Z]{16}|xox[abp]-[\w-]{10,}|"
    r"eyJ[\w-]{16,}\.[\w-]{16,}\.[\w-]+)"
)


def cleaner(secrets: Iterable[str] = (), folders: Iterable[Path] = ()) -> Clean:
    """A function from a text to the same without paths of this machine, and without `secrets`.

    `folders` are hidden to the letter, blanks in their names included; so are those of the person and of the process.
    """
    here = (Path.home(), Path.cwd(), Path(tempfile.gettempdir()), *folders)
    named = sorted({str(one.resolve()) for one in here} | {str(one) for one in here}, key=len, reverse=True)
    exact = [re.escape(one) for one in named if one.count("/") > 1 and one.startswith("/")]
    roots = "|".join(sorted({re.escape(one) for one in (*_ROOTS, *os.listdir("/"))}, key=len, reverse=True))
    general = rf"/(?:{roots})(?=/)"
    path = re.compile(
        rf"(?:(?<![\w.~/)\]}}])|(?<=-[ILo]))(?:file://)?(?:{'|'.join((*exact, general))})(?!\w)(?:/{_IN_A_PATH}*)*"
    )
    hidden = [one for one in secrets if len(one) >= 8]

    def clean(text: str) -> str:
        for secret in hidden:
            text = text.replace(secret, HIDDEN_KEY)
        return path.sub(_file_name, _KEYS.sub(HIDDEN_KEY, text))

    return clean


def _file_name(found: re.Match[str]) -> str:
    """The file's name alone; a folder, which may name a person, has none. A full stop after it is kept."""
    text = found[0].rstrip("./")
    name = text.rpartition("/")[2]
    ending = "." * (len(found[0]) - len(found[0].rstrip(".")))
    return (name if re.fullmatch(r".+\.[A-Za-z]\w{0,7}", name) else HIDDEN_PATH) + ending


KERNEL = "kernel.cu"
_MOST_CHANGED_LINES = 60
_QUICK_ELEMENTS = 40_000  # of all inputs, in a case that is emulated again
_NO_FAULT = (
    records.Duplicate,
    records.NotFaster,
    records.NothingBetter,
    records.BadReply,
)  # of a kernel: nothing to learn from its text


@dataclass(frozen=True)
class TaughtRun:
    """A run that a skill was made of, and its task: an exam on the same task would prove nothing."""

    run: str
    task: str
    task_hash: str
    reference_hash: str  # of the reference's text, whatever the sizes
    author: str
    device: str
    created: str
    licence: str


@dataclass(frozen=True)
class Example:
    """A kernel that passed, to the letter, and what it was judged by."""

    run: str
    attempt: int
    task: Task
    identity: str  # of the kernel file, as the run has it
    kernel: str
    summary: str
    verdict: str  # where it was judged
    time: str  # "" where none is known
    sizes: dict[str, int]  # of a case that it was right in, small enough to be run again


@dataclass(frozen=True)
class Pitfall:
    """A kernel that failed: how, and what fixed it."""

    run: str
    attempt: int
    op: str
    kind: str
    words: str  # "wrong values: the last elements"
    summary: str  # what its author meant to do
    evidence: str
    mended_by: int | None  # the attempt; None where the run has no repair that passed
    remedy: str  # its author's summary of the fix
    change: str  # from the one file to the other


@dataclass(frozen=True)
class TriedStep:
    """A kernel that is right as far as it was judged, beside the best before it."""

    run: str
    attempt: int
    op: str
    kind: str
    summary: str
    gain: float  # the time before over its own
    kept: bool
    measured: bool  # on a GPU, not modelled
    change: str


@dataclass(frozen=True)
class Lessons:
    runs: tuple[TaughtRun, ...]
    examples: tuple[Example, ...]
    pitfalls: tuple[Pitfall, ...]
    steps: tuple[TriedStep, ...]


def lessons_of(folders: Iterable[RunFolder], clean: Clean) -> Lessons:
    """The lessons of all runs, in their order; the same kernel or fault appears once."""
    read = [_RunLessons(folder, clean) for folder in folders]
    examples = {one.identity: one for part in read for one in part.examples()}
    pitfalls = {(one.words, one.evidence, one.change): one for part in read for one in part.pitfalls()}
    steps = tuple(one for part in read for one in part.steps())
    return Lessons(tuple(part.taught() for part in read), tuple(examples.values()), tuple(pitfalls.values()), steps)


def reference_hash(task: Task) -> str:
    return hashlib.sha256(" ".join(task.reference.split()).encode()).hexdigest()[:20]


def licence_of(folder: RunFolder, run: Run) -> str:
    """The licence of what the run wrote, as the person gave it; `UNSTATED` if not given."""
    return provenance_of(folder).licence if run.best is not None else run.settings.licence or records.UNSTATED


class _RunLessons:
    def __init__(self, folder: RunFolder, clean: Clean) -> None:
        self._folder, self._clean = folder, clean
        self._run = folder.load()
        self._task = self._run.task

    def taught(self) -> TaughtRun:
        run = self._run
        return TaughtRun(
            run.id,
            self._task.name,
            self._task.hash,
            reference_hash(self._task),
            self._clean(run.settings.author),
            self._clean(run.environment.device),
            run.created,
            licence_of(self._folder, run),
        )

    def examples(self) -> list[Example]:
        """The best kernel, where it is verified and its text says nothing of this machine."""
        best = self._run.best
        if best is None or best.kernel is None or best.is_provisional or self._task.degenerate:
            return []
        text = self._kernel(best)
        if hashlib.sha256(text.encode(errors="replace")).hexdigest()[:20] != best.kernel:
            return []  # another file than was judged
        if self._clean(text) != text or self._clean(self._task.reference) != self._task.reference:
            return []  # without what it says of this machine it would be another
        time = time_words(best.measurement)
        sizes = telling_case(self._task, best.verdict)
        summary = self._said(best)
        return [
            Example(
                self._run.id,
                best.number,
                self._task,
                best.kernel,
                text,
                summary,
                judged_words(best.verdict),
                time,
                sizes,
            )
        ]

    def pitfalls(self) -> list[Pitfall]:
        return [self._pitfall(one) for one in self._run.attempts if _is_fault(one)]

    def _pitfall(self, failed: Attempt) -> Pitfall:
        mended = _mended_by(self._run.attempts, failed)
        text = self._kernel(failed)
        return Pitfall(
            self._run.id,
            failed.number,
            self._task.name,
            self._task.kind.value,
            self._clean(verdict_words(failed.verdict)),
            self._said(failed),
            self._clean(verdict_text(failed.verdict, text)),
            mended.number if mended else None,
            self._said(mended) if mended else "",
            self._clean(change_between(text, self._kernel(mended))) if mended else "",
        )

    def steps(self) -> list[TriedStep]:
        made, best = [], None
        for one in self._run.attempts:
            evidence = one.verdict.evidence if isinstance(one.verdict, Rejected) else None
            if isinstance(evidence, records.NotFaster) and best is not None:
                made.append(self._step(one, best, evidence.best_us / evidence.time_us))
            if not one.passed:
                continue
            if best is not None and best.time_us and one.time_us:
                made.append(self._step(one, best, best.time_us / one.time_us))
            best = one if self._run.takes(one, best) else best
        return made

    def _step(self, one: Attempt, before: Attempt, gain: float) -> TriedStep:
        change = self._clean(change_between(self._kernel(before), self._kernel(one)))
        kept, measured = self._run.takes(one, before), isinstance(before.measurement, Measured)
        name, kind = self._task.name, self._task.kind.value
        return TriedStep(self._run.id, one.number, name, kind, self._said(one), gain, kept, measured, change)

    def _kernel(self, attempt: Attempt) -> str:
        return self._folder.attempt(attempt.number).find_text(KERNEL) or ""

    def _said(self, attempt: Attempt) -> str:
        return table_line(self._clean(attempt.summary))


def _is_fault(attempt: Attempt) -> bool:
    return isinstance(attempt.verdict, Rejected) and not isinstance(attempt.verdict.evidence, _NO_FAULT)


def _mended_by(attempts: Sequence[Attempt], failed: Attempt) -> Attempt | None:
    """The first repair after it that passed, before anything else was begun."""
    for one in attempts[failed.number :]:
        if one.step == failed.step:
            continue
        if not one.stage.is_repair:
            return None
        if one.passed:
            return one
    return None


def change_between(before: str, after: str) -> str:
    """What was changed, as a diff with little around it; a long one is cut."""
    found = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=2))[2:]
    left = len(found) - _MOST_CHANGED_LINES
    return "\n".join(found[:_MOST_CHANGED_LINES] + ([f"({left} more lines)"] if left > 0 else []))


def time_words(measurement: records.Measurement | None) -> str:
    """`12.3 us measured on H200, 71% of the roofline, 1.8x eager`; a modelled time is called so."""
    if measurement is None:
        return ""
    measured = isinstance(measurement, Measured)
    said = f"{measurement.time_us:,.4g} us {'measured' if measured else 'modelled'} on {measurement.gpu}"
    said += f", {measurement.fraction:.0%} of the roofline"
    against = [
        f"{one.median_us / measurement.time_us:.2f}x {one.name}" for one in getattr(measurement, "baselines", ())
    ]
    return ", ".join([said, *against])


def judged_words(verdict: records.Verdict) -> str:
    if not isinstance(verdict, Passed):
        return verdict_words(verdict)
    right = [one for one in verdict.cases if one.status is records.CaseStatus.RIGHT]
    devices = ", ".join(dict.fromkeys(one.device for one in right if one.device))
    said = f"right in {len(right)} cases{f' on {devices}' if devices else ''}"
    return f"{said}, with at most {verdict.error_ratio:.2g} of the error allowed"


def telling_case(task: Task, verdict: records.Verdict) -> dict[str, int]:
    """The sizes of the largest plain case that was right and is quick to run again; {} where there is none."""
    cases = verdict.cases if isinstance(verdict, Passed) else ()
    plain = [one.case for one in cases if one.status is records.CaseStatus.RIGHT and not one.case.leading]
    plain = [one for one in plain if not one.layouts and not one.given]
    weighed = [(sum(spec.numel for spec in task.specs(one.sizes).values()), one.sizes) for one in plain]
    quick = [(elements, sizes) for elements, sizes in weighed if 0 < elements <= _QUICK_ELEMENTS]
    return dict(max(quick, key=lambda pair: pair[0])[1]) if quick else {}


def check_options(task: Task, sizes: dict[str, int]) -> list[str] | None:
    """The options of `tilewright check` for a call of the task at these sizes; None where it takes others."""
    made: list[str] = []
    for one in task.tensors:
        if one.memory_order or one.layout is not records.Layout.DENSE or isinstance(one.values, records.IndexValues):
            return None
        if isinstance(one.values, records.UniformValues):
            made += ["--fill", f"{one.name}=uniform:{one.values.low:g}:{one.values.high:g}"]
        elif isinstance(one.values, records.IntegerValues):
            made += ["--fill", f"{one.name}=integers:{one.values.low}:{one.values.high}"]
    for name, value in task.arguments(sizes).items():
        if isinstance(value, TensorSpec):
            made += ["--shape", f"{name}={'x'.join(map(str, value.shape))}:{value.dtype.value}"]
        elif value is not None:
            made += ["--set", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    return made if sizes else None

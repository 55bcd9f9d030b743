"""What an audit says of one kernel file: one record, which the terminal, Markdown, HTML and JSON all show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from tilewright.frontends.report.checks import arguments_line
from tilewright.frontends.report.document import (
    Block,
    Document,
    Excerpt,
    Fold,
    Line,
    Mark,
    Picture,
    Section,
    Source,
    Table,
    Tone,
    say,
)
from tilewright.frontends.report.glossary import Glossary
from tilewright.frontends.report.pictures import Roofline, roofline_picture
from tilewright.frontends.report.runs import microseconds, scatter_words, speedup_words, time_words
from tilewright.records import Measured, Modelled, ModelTerm


class Weight(str, Enum):
    """How grave a suggestion is; in this order they are shown."""

    WRONG = "wrong"  # seen to go wrong
    FAULT = "fault"  # read to go wrong, or seen to at odd sizes only
    COST = "cost"
    REMARK = "remark"


@dataclass(frozen=True)
class Suggestion:
    """One thing to mend. `line` and `source` are of the kernel file as it was audited."""

    weight: Weight
    what: str  # a rule of lint, what a checker found, a resource of the model
    kernel: str
    line: int | None
    source: str
    evidence: str
    why: str
    remedy: str
    gain: float | None = None  # times as fast, at most, in the model; None: it cannot tell


@dataclass(frozen=True)
class Correctness:
    """`passed` is None where nothing could run it. `judge`: who looked, at which sizes, against what."""

    passed: bool | None
    words: str
    judge: str
    text: str = ""  # the diagnosis
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Speed:
    """Where the time goes. Terms and lines are modelled from emulated counts also where the time is measured."""

    measurement: Measured | Modelled | None
    problem: str = ""  # why there is no time, or no model
    terms: tuple[ModelTerm, ...] = ()
    bound_by: str = ""
    reachable_us: float | None = None  # what the model gives the least traffic in one launch
    floor_is: str = ""  # what the roofline counts
    counters: tuple[str, ...] = ()  # the GPU's own, of the launch that takes longest
    evidence: str = ""  # a page: by launch and line
    roofline: Roofline | None = None

    @property
    def most_gain(self) -> float | None:
        """Times as fast as it is, were it at the roofline."""
        found = self.measurement
        return max(1.0, found.time_us / found.floor_us) if found and found.floor_us else None


@dataclass(frozen=True)
class Audit:
    file: str
    identity: str
    op: str
    gpu: str
    device: str  # "H200 (emulated); times are modelled, not measured"
    arguments: dict[str, str]
    guessed: bool
    imported_from: str  # "" where it was a kernel file
    notes: tuple[str, ...]  # of the import; what lint could not look at
    correctness: Correctness
    speed: Speed
    suggestions: tuple[Suggestion, ...]  # the most urgent first
    kind: str  # of work, "" where there is no reference to tell
    advice: tuple[str, ...]  # for that kind of work

    @property
    def exit_status(self) -> int:
        grave = any(one.weight in (Weight.WRONG, Weight.FAULT) for one in self.suggestions)
        if self.correctness.passed is False or grave:
            return 1
        return 3 if self.correctness.passed is None else 0


_TONES = {Weight.WRONG: Tone.BAD, Weight.FAULT: Tone.BAD, Weight.COST: Tone.FAIR, Weight.REMARK: Tone.STRONG}
_LITTLE = 1.01  # times as fast: less is nothing
_HINTED = 8
GAINS = "gains are modelled: the most that mending the one thing alone can bring"


def gain_words(gain: float | None) -> str:
    """`up to 1.95x`; empty where the model cannot tell."""
    if gain is None:
        return ""
    return f"up to {gain:.2f}x" if gain >= _LITTLE else "no gain alone"


def expectation_words(speed: Speed) -> str:
    """`at most 2.1x: floor 58 us of 122 us modelled`."""
    found, most = speed.measurement, speed.most_gain
    if found is None or most is None:
        return ""
    kind = "measured" if isinstance(found, Measured) else "modelled"
    floor, time = microseconds(found.floor_us), microseconds(found.time_us)
    return f"at most {most:.2g}x: floor {floor} us of {time} us {kind}"


def reach_words(speed: Speed) -> str:
    """What can be reached of the floor, as far as the model knows."""
    found = speed.measurement
    if found is None or speed.reachable_us is None or isinstance(found, Measured):
        return ""
    reach, ratio = microseconds(speed.reachable_us), found.time_us / speed.reachable_us
    if ratio <= 1.05:
        return f"the model gives the least traffic in one launch {reach} us: nothing worth a step is left"
    return f"the model gives the least traffic in one launch {reach} us: {ratio:.2g}x"


def baseline_words(speed: Speed) -> list[str]:
    found = speed.measurement
    if not isinstance(found, Measured):
        return []
    lines = [f"kernel {microseconds(found.time_us)} us ({scatter_words(found.kernel)})"]
    for one in found.baselines:
        ratio = speedup_words(one.median_us / found.time_us)
        lines.append(
            f"{one.name} {microseconds(one.median_us)} us ({scatter_words(one)}): the kernel is {ratio} as fast"
        )
    return [*lines, *found.notes]


def summary_words(audit: Audit) -> str:
    """One line on all of it."""
    counts = Counter(one.weight for one in audit.suggestions)
    parts = [
        f"{counts[weight]} {weight.value}{'s' if counts[weight] > 1 and weight is not Weight.WRONG else ''}"
        for weight in Weight
        if counts[weight]
    ]
    most = expectation_words(audit.speed)
    return "; ".join(part for part in (audit.correctness.words, ", ".join(parts), most) if part)


def hint_words(audit: Audit) -> str:
    """What an author is told of an audited file, in a few lines."""
    lines = [f"An audit of the file that this run starts from says: {summary_words(audit)}."]
    for one in audit.suggestions[:_HINTED]:
        place = f"line {one.line}" if one.line is not None else one.kernel
        gain = f" ({gain_words(one.gain)} in the model)" if one.gain and one.gain >= _LITTLE else ""
        remedy = f"; {one.remedy}" if one.remedy else ""
        lines.append(f"- {one.weight.value}: {one.what}, {place}: {one.evidence.splitlines()[0]}{remedy}{gain}")
    return "\n".join(lines)


def audit_report(audit: Audit, text: str) -> Document:
    """`text`: the kernel file's, which is folded away."""
    return _Writer(audit, text).report()


class _Writer:
    def __init__(self, audit: Audit, text: str) -> None:
        self._audit, self._text = audit, text
        self._words = Glossary()

    def report(self) -> Document:
        audit = self._audit
        sections = [
            Section("", tuple(self._short())),
            Section("Is it right?", tuple(self._correctness())),
            Section("How fast is it?", tuple(self._speed())),
            Section("What to do, the most urgent first", tuple(self._suggestions())),
        ]
        if audit.advice:
            said = tuple(self._words.say(line) for line in audit.advice)
            sections.append(Section(f"What pays for this kind of work: {audit.kind}", said))
        tone = {0: Tone.GOOD, 3: Tone.FAIR}.get(audit.exit_status, Tone.BAD)
        sections.append(Section("In short", (say(Mark(summary_words(audit), tone)), *self._evidence())))
        return Document(f"Audit of {audit.op} for {audit.gpu}", tuple(sections), self._words.entries())

    def _short(self) -> Iterator[Block]:
        audit = self._audit
        yield say(f"{audit.file}  {audit.identity[:12]}")
        if audit.imported_from:
            yield say(
                f"imported from {audit.imported_from} into a kernel file, whose lines are shown; "
                f"`tilewright import {audit.imported_from}` writes it"
            )
        yield say(arguments_line(audit.arguments, audit.guessed))
        yield say(audit.device)
        for note in audit.notes:
            yield self._words.say(note, tone=Tone.FAIR)

    def _correctness(self) -> Iterator[Block]:
        found = self._audit.correctness
        tone = {True: Tone.GOOD, False: Tone.BAD, None: Tone.FAIR}[found.passed]
        yield say(Mark(found.words, tone), f": by {found.judge}")
        if found.text:
            yield Source(found.text)
        for note in found.notes:
            yield self._words.say(note, tone=Tone.FAIR)

    def _speed(self) -> Iterator[Block]:
        speed = self._audit.speed
        said = time_words(speed.measurement) if speed.measurement else speed.problem
        yield self._words.say(f"{said}{f'; bound by {speed.bound_by}, as modelled' if speed.bound_by else ''}")
        lines = [speed.problem] if speed.measurement else []
        expectation = expectation_words(speed)
        lines += [f"{expectation} ({speed.floor_is})" if expectation else "", reach_words(speed)]
        lines += [*baseline_words(speed), *(f"counters: {one}" for one in speed.counters)]
        yield from (self._words.say(line) for line in lines if line)
        if speed.terms:
            yield self._words.say("The time that each resource alone would need, modelled from emulated counts:")
            rows = tuple((one.name, f"{one.time_us:.2f} us", one.detail) for one in speed.terms)
            yield Table(("resource", "alone", "of what"), rows, ("alone",))
        if speed.roofline is not None:
            says = f"{speed.roofline.intensity:.3g} operations for each byte, {speed.roofline.tflops:.3g} TFLOP/s"
            yield Picture("roofline", roofline_picture(speed.roofline), says)

    def _suggestions(self) -> Iterator[Block]:
        found = self._audit.suggestions
        yield self._words.say(f"{GAINS[:1].upper()}{GAINS[1:]}." if found else "Nothing was found to mend.")
        for number, one in enumerate(found, 1):
            where, gain = f" in {one.kernel}" if one.kernel else "", gain_words(one.gain)
            much = Tone.GOOD if one.gain and one.gain > _LITTLE else Tone.FAINT
            head = Mark(f"{number}. {one.weight.value}: {one.what}", _TONES[one.weight])
            yield say(head, where, Mark(f"  {gain}" if gain else "", much))
            if one.line is not None:
                yield Excerpt((Line(one.line, one.source),))
            yield self._words.say(f"  {one.evidence}")
            if one.why:
                yield self._words.say(f"  why: {one.why}", tone=Tone.FAINT)
            if one.remedy:
                yield self._words.say(f"  do:  {one.remedy}")

    def _evidence(self) -> Iterator[Block]:
        if self._audit.speed.evidence:
            yield Fold("Where the time goes, by launch and line", (Source(self._audit.speed.evidence),))
        numbered = "\n".join(f"{number:>4} | {line}" for number, line in enumerate(self._text.splitlines(), 1))
        yield Fold("The kernel file", (Source(numbered, "cuda"),))

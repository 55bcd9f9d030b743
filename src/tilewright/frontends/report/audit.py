"""What an audit says of one kernel file: one record, which the terminal, Markdown, HTML and JSON all show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from rich.console import Console
from rich.text import Text

from tilewright.frontends.report.checks import arguments_line, show_heading
from tilewright.frontends.report.document import Block, Fold, Lesson, Paragraph, Picture, Section, Source, Table
from tilewright.frontends.report.lesson import Glossary
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


# -- an audit in sentences that the terminal and the pages share, and the whole of it for a terminal --

_STYLES = {Weight.WRONG: "bold red", Weight.FAULT: "bold red", Weight.COST: "bold yellow", Weight.REMARK: "bold"}
_LITTLE = 1.01  # times as fast: less is nothing
_SHOWN_TERMS, _SHOWN_ADVICE, _SHOWN_TEXT = 5, 4, 12
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


def imported_words(audit: Audit) -> str:
    return (
        f"imported from {audit.imported_from} into a kernel file, whose lines are shown; "
        f"`tilewright import {audit.imported_from}` writes it"
    )


def hint_words(audit: Audit) -> str:
    """What an author is told of an audited file, in a few lines."""
    lines = [f"An audit of the file that this run starts from says: {summary_words(audit)}."]
    for one in audit.suggestions[:_HINTED]:
        place = f"line {one.line}" if one.line is not None else one.kernel
        gain = f" ({gain_words(one.gain)} in the model)" if one.gain and one.gain >= _LITTLE else ""
        remedy = f"; {one.remedy}" if one.remedy else ""
        lines.append(f"- {one.weight.value}: {one.what}, {place}: {one.evidence.splitlines()[0]}{remedy}{gain}")
    return "\n".join(lines)


# -- for a terminal --


def show_audit(console: Console, audit: Audit) -> None:
    show_heading(console, audit.file, audit.identity)
    if audit.imported_from:
        console.print(Text(imported_words(audit)))
    console.print(arguments_line(audit.arguments, audit.guessed))
    console.print(Text(audit.device))
    for note in audit.notes:
        console.print(Text(note, style="yellow"))
    _show_correctness(console, audit)
    _show_speed(console, audit.speed)
    if audit.suggestions:
        console.print(Text.assemble(("\nwhat to do, the most urgent first", "bold"), (f" ({GAINS})", "dim")))
    for number, one in enumerate(audit.suggestions, 1):
        _show_suggestion(console, number, one)
    if audit.advice:
        console.print(Text(f"\nwhat pays for this kind of work, {audit.kind}:", style="bold"))
        for line in audit.advice[:_SHOWN_ADVICE]:
            console.print(Text(f"  - {line}"))
        if len(audit.advice) > _SHOWN_ADVICE:
            console.print(Text("  - (more with --markdown or --html)", style="dim"))
    style = {0: "bold green", 3: "bold yellow"}.get(audit.exit_status, "bold red")
    console.print(Text(f"\n{summary_words(audit)}", style=style))


def _show_correctness(console: Console, audit: Audit) -> None:
    found = audit.correctness
    style = {True: "bold green", False: "bold red", None: "bold yellow"}[found.passed]
    console.print(Text.assemble(("\ncorrectness: ", "bold"), (found.words, style)))
    console.print(Text(f"  by {found.judge}"))
    lines = found.text.splitlines()
    for line in lines[:_SHOWN_TEXT]:
        console.print(Text(f"  {line}"))
    if len(lines) > _SHOWN_TEXT:
        console.print(Text(f"  ... {len(lines) - _SHOWN_TEXT} more lines with --markdown or --html", style="dim"))
    for note in found.notes:
        console.print(Text(f"  {note}", style="yellow"))


def _show_speed(console: Console, speed: Speed) -> None:
    said = time_words(speed.measurement) if speed.measurement else speed.problem
    bound = f"; bound by {speed.bound_by}, as modelled" if speed.bound_by else ""
    console.print(Text.assemble(("\nspeed: ", "bold"), f"{said}{bound}"))
    if speed.measurement and speed.problem:
        console.print(Text(f"  {speed.problem}"))
    if expectation := expectation_words(speed):
        console.print(Text(f"  {expectation} ({speed.floor_is})"))
    for line in (reach_words(speed), *baseline_words(speed), *(f"counters: {one}" for one in speed.counters)):
        if line:
            console.print(Text(f"  {line}"))
    if speed.terms:
        console.print(Text("  modelled time that each resource alone would need:", style="dim"))
    for term in speed.terms[:_SHOWN_TERMS]:
        console.print(Text(f"  {term.name:<22}{term.time_us:>9.2f} us   {term.detail}"))


def _show_suggestion(console: Console, number: int, one: Suggestion) -> None:
    where, gain = f" in {one.kernel}" if one.kernel else "", gain_words(one.gain)
    head = (f"{number:>2}. {one.weight.value}: {one.what}", _STYLES[one.weight])
    console.print(Text.assemble(head, where, (f"  {gain}", "bold green" if one.gain and one.gain > _LITTLE else "dim")))
    if one.line is not None:
        console.print(Text(f"    {one.line:>4} | {one.source}"))
    console.print(Text(f"      {one.evidence.splitlines()[0] if one.evidence else ''}"))
    if one.why:
        console.print(Text(f"      why: {one.why}", style="dim"))
    if one.remedy:
        console.print(Text(f"      do:  {one.remedy}"))


# -- an audit as a page: --


def audit_page(audit: Audit, text: str) -> Lesson:
    """`text`: the kernel file's."""
    return _Writer(audit, text).page()


class _Writer:
    def __init__(self, audit: Audit, text: str) -> None:
        self._audit, self._text = audit, text
        self._glossary = Glossary()

    def page(self) -> Lesson:
        audit = self._audit
        sections = [
            Section("In short", tuple(self._short())),
            Section("Is it right?", tuple(self._correctness())),
            Section("How fast is it?", tuple(self._speed())),
            *self._suggestions(),
        ]
        if audit.advice:
            said = tuple(self._words(line) for line in audit.advice)
            sections.append(Section(f"What pays for this kind of work: {audit.kind}", said))
        sections.append(Section("Evidence", tuple(self._evidence())))
        return Lesson(f"Audit of {audit.op} for {audit.gpu}", tuple(sections), self._glossary.entries())

    def _words(self, text: str) -> Paragraph:
        return Paragraph(tuple(self._glossary.linked(text[:1].upper() + text[1:])))

    def _short(self) -> Iterator[Block]:
        audit = self._audit
        yield self._words(f"{summary_words(audit)}.")
        guessed = " (guessed)" if audit.guessed else ""
        sizes = ", ".join(f"{name} = {text}" for name, text in audit.arguments.items())
        rows = [
            ("file", f"{audit.file}, {audit.identity[:12]}"),
            ("at", f"{sizes}{guessed}"),
            ("device", audit.device),
            ("correctness", audit.correctness.words),
            ("time", time_words(audit.speed.measurement)),
            ("expected gain", expectation_words(audit.speed) or "not known"),
            ("bound by", audit.speed.bound_by or "not known"),
        ]
        yield Table(("", ""), tuple(rows))
        if audit.imported_from:
            yield self._words(imported_words(audit))
        for note in audit.notes:
            yield self._words(note)

    def _correctness(self) -> Iterator[Block]:
        found = self._audit.correctness
        yield self._words(f"{found.words}: by {found.judge}.")
        if found.text:
            yield Source(found.text)
        for note in found.notes:
            yield self._words(note)

    def _speed(self) -> Iterator[Block]:
        speed = self._audit.speed
        if speed.problem:
            yield self._words(f"{speed.problem}.")
        if expectation := expectation_words(speed):
            yield self._words(f"{expectation} ({speed.floor_is}).")
        for line in (reach_words(speed), *baseline_words(speed), *(f"counters: {one}" for one in speed.counters)):
            if line:
                yield self._words(f"{line}.")
        if speed.terms:
            yield self._words("The time that each resource alone would need, modelled from emulated counts:")
            rows = tuple((one.name, f"{one.time_us:.2f} us", one.detail) for one in speed.terms)
            yield Table(("resource", "alone", "of what"), rows)
        if speed.roofline is not None:
            says = f"{speed.roofline.intensity:.3g} operations for each byte, {speed.roofline.tflops:.3g} TFLOP/s"
            yield Picture("roofline", roofline_picture(speed.roofline), says)

    def _suggestions(self) -> Iterator[Section]:
        found = self._audit.suggestions
        if not found:
            yield Section("What to do", (self._words("Nothing was found to mend."),))
            return
        rows = tuple(
            (str(number), one.weight.value, one.what, str(one.line or ""), gain_words(one.gain))
            for number, one in enumerate(found, 1)
        )
        yield Section(
            "What to do",
            (self._words(f"The most urgent first; {GAINS}."), Table(("", "weight", "what", "line", "gain"), rows)),
        )
        for number, one in enumerate(found, 1):
            yield Section(f"{number}. {one.what}", tuple(self._suggestion(one)), level=3)

    def _suggestion(self, one: Suggestion) -> Iterator[Block]:
        if one.line is not None:
            yield Source(f"{one.line:>4} | {one.source}", "cuda")
        gain = gain_words(one.gain)
        yield self._words(one.evidence + (f" ({gain})" if gain else ""))
        if one.why:
            yield self._words(f"Why: {one.why}.")
        if one.remedy:
            yield self._words(f"Do: {one.remedy}.")

    def _evidence(self) -> Iterator[Block]:
        if self._audit.speed.evidence:
            yield Fold("Where the time goes, by launch and line", (Source(self._audit.speed.evidence),))
        numbered = "\n".join(f"{number:>4} | {line}" for number, line in enumerate(self._text.splitlines(), 1))
        yield Fold("The kernel file", (Source(numbered, "cuda"),))

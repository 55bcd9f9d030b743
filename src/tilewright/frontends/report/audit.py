"""What an audit says of one kernel file, and `bench` of several beside PyTorch: records and their reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from tilewright.frontends.report import document as doc
from tilewright.frontends.report import pictures, runs
from tilewright.frontends.report.checks import KernelCall, arguments_line
from tilewright.records import Measured, Modelled, ModelTerm, Timing
from tilewright.records.measurement import Interval


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
    roofline: pictures.Roofline | None = None

    @property
    def most_gain(self) -> float | None:
        """Times as fast as it is, were it at the roofline."""
        timing = self.measurement
        return max(1.0, timing.time_us / timing.floor_us) if timing and timing.floor_us else None


@dataclass(frozen=True, kw_only=True)
class Audit(KernelCall):
    gpu: str
    device: str  # "H200 (emulated); times are modelled, not measured"
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


_TONES = {
    Weight.WRONG: doc.Tone.BAD,
    Weight.FAULT: doc.Tone.BAD,
    Weight.COST: doc.Tone.FAIR,
    Weight.REMARK: doc.Tone.STRONG,
}
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
    timing, most = speed.measurement, speed.most_gain
    if timing is None or most is None:
        return ""
    kind = runs.kind_words(isinstance(timing, Measured))
    floor, time = runs.microseconds(timing.floor_us), runs.microseconds(timing.time_us)
    return f"at most {most:.2g}x: floor {floor} us of {time} us {kind}"


def reach_words(speed: Speed) -> str:
    """What can be reached of the floor, as far as the model knows."""
    timing = speed.measurement
    if timing is None or speed.reachable_us is None or isinstance(timing, Measured):
        return ""
    reach, ratio = runs.microseconds(speed.reachable_us), timing.time_us / speed.reachable_us
    if ratio <= 1.05:
        return f"the model gives the least traffic in one launch {reach} us: nothing worth a step is left"
    return f"the model gives the least traffic in one launch {reach} us: {ratio:.2g}x"


def baseline_words(speed: Speed) -> list[str]:
    timing = speed.measurement
    if not isinstance(timing, Measured):
        return []
    lines = [f"kernel {runs.microseconds(timing.time_us)} us ({runs.scatter_words(timing.kernel)})"]
    for one in timing.baselines:
        ratio = runs.speedup_words(one.median_us / timing.time_us)
        time = f"{one.name} {runs.microseconds(one.median_us)} us ({runs.scatter_words(one)})"
        lines.append(f"{time}: the kernel is {ratio} as fast")
    return [*lines, *timing.notes]


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


def audit_report(audit: Audit, text: str) -> doc.Document:
    """`text`: the kernel file's, which is folded away."""
    words = doc.Glossary()
    parts: dict[str, Iterator[doc.Block]] = {
        "": _short(audit, words),
        "Is it right?": _correctness(audit.correctness, words),
        "How fast is it?": _speed(audit.speed, words),
        "What to do, the most urgent first": _suggestions(audit.suggestions, words),
    }
    if audit.advice:
        parts[f"What pays for this kind of work: {audit.kind}"] = (words.say(line) for line in audit.advice)
    parts["In short"] = _end(audit, text)
    sections = tuple(doc.Section(title, tuple(blocks)) for title, blocks in parts.items())
    return doc.Document(f"Audit of {audit.op} for {audit.gpu}", sections, words.entries())


def _short(audit: Audit, words: doc.Glossary) -> Iterator[doc.Block]:
    yield doc.say(f"{audit.file}  {audit.identity[:12]}")
    if audit.imported_from:
        yield doc.say(
            f"imported from {audit.imported_from} into a kernel file, whose lines are shown; "
            f"`tilewright import {audit.imported_from}` writes it"
        )
    yield from (doc.say(arguments_line(audit.arguments, audit.guessed)), doc.say(audit.device))
    yield from words.say_each(audit.notes, doc.Tone.FAIR)


def _correctness(correctness: Correctness, words: doc.Glossary) -> Iterator[doc.Block]:
    tone = {True: doc.Tone.GOOD, False: doc.Tone.BAD, None: doc.Tone.FAIR}[correctness.passed]
    yield doc.say(doc.Mark(correctness.words, tone), f": by {correctness.judge}")
    if correctness.text:
        yield doc.Source(correctness.text)
    yield from words.say_each(correctness.notes, doc.Tone.FAIR)


def _speed(speed: Speed, words: doc.Glossary) -> Iterator[doc.Block]:
    time = runs.time_words(speed.measurement) if speed.measurement else speed.problem
    yield words.say(f"{time}{f'; bound by {speed.bound_by}, as modelled' if speed.bound_by else ''}")
    expectation = expectation_words(speed)
    lines = [speed.problem if speed.measurement else "", f"{expectation} ({speed.floor_is})" if expectation else ""]
    lines += [reach_words(speed), *baseline_words(speed), *(f"counters: {one}" for one in speed.counters)]
    yield from words.say_each(lines)
    if speed.terms:
        yield words.say("The time that each resource alone would need, modelled from emulated counts:")
        rows = tuple((one.name, f"{one.time_us:.2f} us", one.detail) for one in speed.terms)
        yield doc.Table(("resource", "alone", "of what"), rows, ("alone",))
    if speed.roofline is not None:
        says = f"{speed.roofline.intensity:.3g} operations for each byte, {speed.roofline.tflops:.3g} TFLOP/s"
        yield doc.Picture("roofline", pictures.roofline_picture(speed.roofline), says)


def _suggestions(suggestions: tuple[Suggestion, ...], words: doc.Glossary) -> Iterator[doc.Block]:
    yield words.say(f"{GAINS[:1].upper()}{GAINS[1:]}." if suggestions else "Nothing was found to mend.")
    for number, one in enumerate(suggestions, 1):
        where, gain = f" in {one.kernel}" if one.kernel else "", gain_words(one.gain)
        much = doc.Tone.GOOD if one.gain and one.gain > _LITTLE else doc.Tone.FAINT
        head = doc.Mark(f"{number}. {one.weight.value}: {one.what}", _TONES[one.weight])
        yield doc.say(head, where, doc.Mark(f"  {gain}" if gain else "", much))
        if one.line is not None:
            yield doc.Excerpt((doc.Line(one.line, one.source),))
        yield words.say(f"  {one.evidence}")
        yield from words.say_each([f"  why: {one.why}" * bool(one.why)], doc.Tone.FAINT)
        yield from words.say_each([f"  do:  {one.remedy}" * bool(one.remedy)])


def _end(audit: Audit, text: str) -> Iterator[doc.Block]:
    tone = {0: doc.Tone.GOOD, 3: doc.Tone.FAIR}.get(audit.exit_status, doc.Tone.BAD)
    yield doc.say(doc.Mark(summary_words(audit), tone))
    if audit.speed.evidence:
        yield doc.Fold("Where the time goes, by launch and line", (doc.Source(audit.speed.evidence),))
    yield doc.Fold("The kernel file", (doc.Source(doc.numbered(text), "cuda"),))


# -- one kernel beside others --


@dataclass(frozen=True)
class BenchRow:
    """One contender. Without a GPU a time is modelled, and has no samples."""

    name: str
    time_us: float | None  # None: it has none
    times_as_long: float | None = None  # as the kernel takes
    interval: Interval | None = None  # where that lies, where it was measured
    timing: Timing | None = None
    judged: str = ""  # of a kernel file: whether it is right
    note: str = ""


@dataclass(frozen=True)
class BenchReport:
    file: str
    op: str
    gpu: str
    device: str
    measured: bool
    arguments: dict[str, str]
    guessed: bool
    floor_us: float
    rows: tuple[BenchRow, ...]  # the kernel first
    wrong: tuple[str, ...]  # kernel files that are not right
    notes: tuple[str, ...] = ()

    @property
    def exit_status(self) -> int:
        return int(bool(self.wrong) or self.rows[0].time_us is None)


def bench_report(report: BenchReport) -> Iterator[doc.Block]:
    yield doc.say(f"{report.op}: {runs.kind_words(report.measured)} times; shorter is better", tone=doc.Tone.STRONG)
    yield from (doc.say(arguments_line(report.arguments, report.guessed)), doc.say(report.device), doc.say(""))
    longest = max((row.time_us or 0.0 for row in report.rows), default=0.0)
    rows: list[tuple[doc.Cell, ...]] = []
    for row in report.rows:
        drawn: doc.Cell = doc.Bar(row.time_us / longest, not rows) if row.time_us and longest else ""
        tone = doc.Tone.BAD if row.name in report.wrong else doc.Tone.GOOD
        judged: doc.Cell = (doc.Mark(row.judged, tone),) if row.judged else ""
        rows.append((row.name, drawn, _row_words(row), judged, row.note))
    if longest:
        rows.append(
            ("roofline", doc.Bar(report.floor_us / longest), f"{runs.microseconds(report.floor_us)} us", "", "")
        )
    yield doc.Table(("", "", "", "", ""), tuple(rows))
    yield from doc.say_each(report.notes, doc.Tone.FAIR)


def _row_words(row: BenchRow) -> str:
    if row.time_us is None:
        return "no time"
    lying = f" ({runs.scatter_words(row.timing)})" if row.timing is not None else ""
    ratio = ""
    if row.times_as_long is not None:
        between = f" ({row.interval.low:.2f} to {row.interval.high:.2f})" if row.interval is not None else ""
        ratio = f", {row.times_as_long:.2f}x as long{between}"
    return f"{runs.microseconds(row.time_us)} us{lying}{ratio}"

"""An audit as a page: the records that Markdown and HTML are made of, with the roofline as a picture."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.frontends.audit.report import Audit, Suggestion
from tilewright.frontends.audit.words import (
    GAINS,
    baseline_words,
    expectation_words,
    gain_words,
    imported_words,
    reach_words,
    summary_words,
)
from tilewright.frontends.explain.glossary import Glossary
from tilewright.frontends.explain.lesson import Block, Fold, Lesson, Paragraph, Picture, Section, Source, Table
from tilewright.frontends.run_words import time_words
from tilewright.frontends.view.roofline_plot import roofline_picture


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

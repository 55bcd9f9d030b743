"""A run as rows: what each attempt was, how it compares with the best before it, and whether it was kept.

Tables, plots and live progress are all made of these rows. Nothing here knows a terminal.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tilewright.records import (
    Attempt,
    BadPlan,
    Crashed,
    Declined,
    Measured,
    Measurement,
    NotBuilt,
    Passed,
    Rejected,
    Run,
    Severity,
    Unsupported,
    Verdict,
    WrongValues,
)

_WHY_CHARACTERS = 100


@dataclass(frozen=True)
class Row:
    """One attempt in a few words. `gain`: the best time before it over its own; above 1 it is faster."""

    attempt: Attempt
    verdict: str
    time_us: float | None
    gain: float | None
    kept: bool  # it became the best when it was made
    best: bool  # it is the best of the whole run

    @property
    def summary(self) -> str:
        """The author's line, after a few words on why it failed where it did."""
        said, why = " ".join(self.attempt.summary.split()), why_words(self.attempt.verdict)
        return f"{why} ({said})" if why else said


def rows(run: Run) -> tuple[Row, ...]:
    """Every attempt of a run, in order."""
    made: list[Row] = []
    before: Attempt | None = None
    for position, attempt in enumerate(run.attempts):
        after = replace(run, attempts=run.attempts[: position + 1]).best
        made.append(_row(attempt, before, kept=after is attempt, best=attempt is run.best))
        before = after
    return tuple(made)


def _row(attempt: Attempt, before: Attempt | None, kept: bool, best: bool) -> Row:
    time_us = attempt.time_us
    earlier_us = before.time_us if before else None
    gain = earlier_us / time_us if earlier_us and time_us else None
    return Row(attempt, verdict_words(attempt.verdict), time_us, gain, kept, best)


def verdict_words(verdict: Verdict) -> str:
    """A word or two for a table."""
    match verdict:
        case Passed():
            return "passed"
        case Rejected():
            return verdict.reason
        case Unsupported():
            return "cannot run here"


def why_words(verdict: Verdict) -> str:
    """Why a candidate failed, in a few words; empty where its reason or the author's own line says it."""
    said = ""
    evidence = verdict.evidence if isinstance(verdict, Rejected) else None
    match evidence:
        case BadPlan(problems=(first, *_)):
            said = (f"line {first.line}: " if first.line else "") + first.message
        case NotBuilt(diagnostics=diagnostics, reason=reason):
            errors = [one for one in diagnostics if one.severity is Severity.ERROR]
            place = f"line {errors[0].line}: " if errors and errors[0].line else ""
            said = f"{place}{errors[0].message}" if errors else reason.value
        case Declined(message=message) | Crashed(message=message):
            said = message
        case WrongValues(outputs=(first, *_)):
            said = f"{first.output}: {first.description}"
    if isinstance(verdict, Unsupported):
        said = verdict.message
    return textwrap.shorten(said, _WHY_CHARACTERS, placeholder=" ...")


def time_words(measurement: Measurement | None) -> str:
    """`12.3 us`, or `12.3 us modelled`: a modelled time is never shown as a measured one."""
    if measurement is None:
        return "no time"
    modelled = "" if isinstance(measurement, Measured) else " modelled"
    return f"{microseconds(measurement.time_us)} us{modelled}"


def microseconds(time_us: float) -> str:
    if time_us >= 1000:
        return f"{time_us:,.0f}"
    return f"{time_us:.1f}" if time_us >= 10 else f"{time_us:.2f}"


def gain_words(gain: float | None) -> str:
    return "" if gain is None else f"{gain:.2f}x"


def dollars_words(dollars: float | None) -> str:
    if dollars is None:
        return "unknown cost"
    return f"${dollars:.2f}" if dollars == 0 or dollars >= 0.01 else f"${dollars:.4f}"


def seconds_words(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def spend_words(run: Run) -> str:
    """What a run has cost so far, of what it may."""
    budget, tokens = run.settings.budget, run.usage.all_input_tokens + run.usage.output_tokens
    parts = [f"{len(run.attempts)} of {budget.attempts} attempts"]
    if tokens:
        cut = run.cut.all_input_tokens + run.cut.output_tokens
        lost = f" (about {cut:,} in replies that were cut off)" if cut else ""
        parts += [f"{tokens:,} tokens{lost}", f"{dollars_words(run.dollars)} of {dollars_words(budget.dollars)}"]
    return ", ".join([*parts, seconds_words(run.seconds)])


def is_measured(attempts: Iterable[Attempt]) -> bool:
    """Whether the times of these attempts were measured on a GPU rather than modelled."""
    return any(isinstance(one.measurement, Measured) for one in attempts)

"""What was tried so far, one line per attempt, and how the best file stands."""

from __future__ import annotations

from collections import Counter

from tilewright.prompts.verdict_text import verdict_text, verdict_words
from tilewright.records import Attempt, Measured, Measurement, Modelled, Rejected, TuneResult, WrongValues

MOST_LINES = 10
MOST_CHOICES = 6
_SUMMARY_CHARACTERS = 110


def history_text(attempts: tuple[Attempt, ...], noise: float) -> str:
    """One line per attempt: what it was, what became of it; older ones in one line together. "" where there is none."""
    kept = kept_numbers(attempts, noise)
    older, recent = attempts[:-MOST_LINES], attempts[-MOST_LINES:]
    lines = [_condensed(older, kept)] if older else []
    by_number = {one.number: one for one in attempts}
    return "\n".join([*lines, *(_line(one, by_number, kept) for one in recent)])


def kept_numbers(attempts: tuple[Attempt, ...], noise: float) -> tuple[int, ...]:
    """The attempts that became the best when they were made, in order; the last of them is the best now."""
    kept: list[Attempt] = []
    for one in attempts:
        if one.passed and (not kept or one.beats(kept[-1], noise)):
            kept.append(one)
    return tuple(one.number for one in kept)


def standing_text(attempt: Attempt) -> str:
    """How the best file stands: where it is right, its time beside the floor, what the tuner tried."""
    parts = [verdict_text(attempt.verdict)]
    parts.append(measurement_text(attempt.measurement) if attempt.measurement else "No time is known for it.")
    if attempt.tune:
        parts.append(tune_text(attempt.tune))
    return "\n".join(part for part in parts if part)


def measurement_text(measurement: Measurement) -> str:
    """A measured or a modelled time in full; a modelled one is called so."""
    sizes = ", ".join(f"{name}={size}" for name, size in measurement.sizes.items())
    if isinstance(measurement, Measured):
        return _measured(measurement, sizes)
    return _modelled(measurement, sizes)


def tune_text(tune: TuneResult) -> str:
    """The best and the worst of what the tuner tried. "" where there was nothing to choose."""
    if len(tune.tried) < 2 and not tune.failed:
        return ""
    ranked = sorted(tune.tried, key=lambda pair: pair[1])
    shown = ranked if len(ranked) <= MOST_CHOICES else [*ranked[: MOST_CHOICES - 1], ranked[-1]]
    listed = "; ".join(f"{_choice(choice)}: {_time(time_us)}" for choice, time_us in shown)
    more = f"; {tune.failed} did not build or were wrong" if tune.failed else ""
    more += f"; {tune.skipped} were not tried" if tune.skipped else ""
    return f"Tuner: {_choice(tune.choice)} is in use. Of {len(tune.tried)} tried: {listed}{more}."


# -- lines --


def _line(one: Attempt, by_number: dict[int, Attempt], kept: tuple[int, ...]) -> str:
    origin = f" from #{one.parent}" if one.parent is not None else ""
    said = f"#{one.number} {one.stage.value}{origin}: {_shortened(one.summary) or 'no summary'}"
    if not one.passed:
        return f"{said} -> {verdict_words(one.verdict)}{_where(one)}"
    if one.time_us is None:
        return f"{said} -> right, no time{'' if one.number in kept else '; not kept'}"
    against = _last_before(one.number, kept, by_number)
    said += f" -> right, {_time(one.time_us)}{_label(one.measurement)}"
    if against is None or against.time_us is None:
        return said + (", kept" if one.number in kept else ", not kept")
    if one.number in kept:
        return f"{said}, {against.time_us / one.time_us:.2f}x as fast as #{against.number}, kept"
    return f"{said}, not faster than #{against.number} ({_time(against.time_us)}): reverted"


def _condensed(older: tuple[Attempt, ...], kept: tuple[int, ...]) -> str:
    counts = Counter("right" if one.passed else verdict_words(one.verdict).partition(":")[0] for one in older)
    best = [one for one in older if one.number in kept]
    outcome = ", ".join(f"{count} {what}" for what, count in counts.items())
    line = f"#{older[0].number}-#{older[-1].number}: {outcome}"
    if best:
        time = f", {_time(best[-1].time_us)}" if best[-1].time_us is not None else ""
        line += f"; best #{best[-1].number}{time}: {_shortened(best[-1].summary)}"
    return line


def _last_before(number: int, kept: tuple[int, ...], by_number: dict[int, Attempt]) -> Attempt | None:
    """The best when attempt `number` was made."""
    earlier = [one for one in kept if one < number]
    return by_number.get(earlier[-1]) if earlier else None


def _where(one: Attempt) -> str:
    verdict = one.verdict
    if isinstance(verdict, Rejected) and isinstance(verdict.evidence, WrongValues):
        return f" at {', '.join(f'{name}={size}' for name, size in verdict.evidence.case.sizes.items())}"
    return ""


def _measured(measurement: Measured, sizes: str) -> str:
    said = (
        f"Measured on {measurement.gpu} at {sizes}: {_time(measurement.time_us)}; the floor is "
        f"{_time(measurement.floor_us)}, so {measurement.fraction:.0%} of it is reached."
    )
    for one in measurement.baselines:
        said += f" {one.name}: {_time(one.median_us)}."
    return " ".join([said, *measurement.notes])


def _modelled(measurement: Modelled, sizes: str) -> str:
    """The time beside the floor. What makes it up is the profile, which is for the last stage."""
    return (
        f"Modelled (not measured) for {measurement.gpu} at {sizes}: {_time(measurement.time_us)}; the floor is "
        f"{_time(measurement.floor_us)} ({measurement.fraction:.0%})."
    )


def _label(measurement: Measurement | None) -> str:
    return " (modelled)" if isinstance(measurement, Modelled) else ""


def _choice(choice: tuple[tuple[str, int | bool], ...]) -> str:
    return (
        " ".join(f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in choice)
        or "no choice"
    )


def _time(microseconds: float | None) -> str:
    if microseconds is None:
        return "no time"
    return f"{microseconds:,.0f} us" if microseconds >= 1000 else f"{microseconds:.4g} us"


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SUMMARY_CHARACTERS else text[: _SUMMARY_CHARACTERS - 3].rstrip() + "..."

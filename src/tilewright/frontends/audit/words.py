"""An audit in sentences that the terminal and the pages share, and the whole of it for a terminal."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.text import Text

from tilewright.frontends.audit.report import Audit, Speed, Suggestion, Weight
from tilewright.frontends.build_report import arguments_line, show_heading
from tilewright.frontends.run_words import microseconds, scatter_words, speedup_words, time_words
from tilewright.records import Measured

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

"""What a tool answers: a text for the agent to read, and the same facts as JSON values."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from tilewright.frontends.report import run_report, runs
from tilewright.frontends.report.terminal import show
from tilewright.prompts.verdict_text import verdict_text
from tilewright.records import Attempt, Measured, Measurement, Question, Run, Specification, Stage
from tilewright.store import RunFolder

_WIDTH = 160
KERNEL = "kernel.cu"
ACCEPT = (
    "Nothing has been run. This reference decides what is right: show it to the person who asked, and if it is what is "
    "meant, call specify again with the same arguments and accept=true."
)


@dataclass(frozen=True)
class Answer:
    text: str
    facts: dict[str, Any] = field(default_factory=dict)


def printed(show: Callable[[Console], None]) -> str:
    """What the command line would print, as plain text."""
    stream = io.StringIO()
    show(Console(file=stream, width=_WIDTH, highlight=False, color_system=None, soft_wrap=True))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()).strip()


def measurement_facts(measurement: Measurement | None) -> dict[str, Any]:
    """`kind` keeps a modelled time apart from a measured one."""
    if measurement is None:
        return {"kind": "none"}
    facts: dict[str, Any] = {
        "kind": "measured" if isinstance(measurement, Measured) else "modelled",
        "time_us": measurement.time_us,
        "roofline_us": measurement.floor_us,
        "fraction_of_roofline": measurement.fraction,
        "gpu": measurement.gpu,
    }
    if isinstance(measurement, Measured):
        facts["baselines_us"] = {one.name: one.median_us for one in measurement.baselines}
    return facts


def _attempt_facts(row: runs.Row) -> dict[str, Any]:
    attempt = row.attempt
    return {
        "attempt": attempt.number,
        "stage": attempt.stage.value,
        "verdict": row.verdict,
        "passed": attempt.passed,
        "kept": row.kept,
        "summary": row.summary,
        **({"notes": list(attempt.notes)} if attempt.notes else {}),
        "measurement": measurement_facts(attempt.measurement if attempt.passed else None),
    }


def _run_facts(run: Run) -> dict[str, Any]:
    state = "ended" if run.ending else "open"
    return {"run": run.id, "op": run.task.name, "author": run.settings.author, "state": state}


def _diagnosis(folder: RunFolder, attempt: Attempt) -> str:
    """The whole verdict, as an author reads it."""
    return verdict_text(attempt.verdict, folder.attempt(attempt.number).find_text(KERNEL) or "")


def run_answer(
    folder: RunFolder, run: Run, question: Question | None, *, since: int = 0, brief: bool = False
) -> Answer:
    """The attempts of a run after number `since`, and the next question or why there is none.

    `brief` leaves out what is the same in every question of the run.
    """
    rows = runs.rows(run)
    fresh = [row for row in rows if row.attempt.number > since]
    parts = [f"Attempt {row.attempt.number}, {row.attempt.stage.value}: {runs.attempt_words(row)}." for row in fresh]
    stage = None if question is None else _stage(question)
    for row in fresh:
        if not row.attempt.passed and (stage is None or not stage.is_repair):  # the question of a repair has it
            parts.append(_diagnosis(folder, row.attempt))
    facts: dict[str, Any] = {
        "run": run.id,
        "op": run.task.name,
        "device": run.environment.device,
        "attempts": [_attempt_facts(row) | {"diagnosis": _diagnosis(folder, row.attempt)} for row in fresh],
        "best": next((_attempt_facts(row) for row in rows if row.best), None),
    }
    if question is None:
        facts |= {"state": "ended", "ending": run.ending.value if run.ending else ""}
        parts.append(_ended_text(run))
    else:
        number = int(question.id.partition("-")[0])
        facts |= {"state": "asks", "attempt": number, "stage": stage.value if stage else ""}
        facts["attempts_left"] = run.settings.budget.attempts - len(run.attempts)
        parts += [] if brief else [question.system]
        parts.append(question.messages[-1].text)
        parts.append(
            f'Reply with a call: submit_kernel(run="{run.id}", attempt={number}, summary=..., and kernel=... (the '
            "whole file) or edits=... (SEARCH/REPLACE edits of that file)). finish ends the run with its best file."
        )
    return Answer("\n\n".join(parts), facts)


def _stage(question: Question) -> Stage | None:
    """The stage of a question, which its first message names."""
    first = question.messages[0].text.partition("\n")[0]
    return next((one for one in Stage if first.endswith(f"stage: {one.value}.")), None)


def _ended_text(run: Run) -> str:
    ending = run.ending.words if run.ending else "it may go on"
    if run.best is None:
        return (
            f"The run has ended ({ending}), and no attempt passed. advise with more_attempts or a hint opens it again."
        )
    time = runs.time_words(run.best.measurement)
    provisional = runs.verdict_words(run.best.verdict) == runs.PROVISIONAL
    note = "; it is provisional: bench or verify it on a GPU before it is relied on" if provisional else ""
    return (
        f"The run has ended ({ending}). Its best file is that of attempt {run.best.number}, {time}{note}. export "
        "writes it; advise with more_attempts or a hint opens the run again."
    )


def specification_answer(specification: Specification, text: str) -> Answer:
    """What words are taken to mean, before anything runs."""
    facts = {
        "state": "to be accepted",
        "reference": specification.reference,
        "inputs": specification.description,
        "assumptions": list(specification.assumptions),
    }
    return Answer(f"{text}\n\n{ACCEPT}", facts)


def runs_answer(found: Sequence[Run], most: int) -> Answer:
    lines = [_run_line(one) for one in found[:most]] or ["no runs yet; specify begins one"]
    older = max(0, len(found) - most)
    lines += [f"and {older} older runs"] if older else []
    facts = [_run_facts(one) | {"attempts": len(one.attempts)} for one in found[:most]]
    return Answer("\n".join(lines), {"runs": facts, "older": older})


def _run_line(run: Run) -> str:
    best = runs.time_words(run.best.measurement) if run.best else "none passed"
    state = run.ending.words if run.ending else "may go on"
    return f"{run.id}  {run.task.name} on {run.environment.device}, {runs.attempts_words(run)}, {best}; {state}"


def history_answer(folder: RunFolder, run: Run) -> Answer:
    text = printed(lambda console: show(console, run_report.run_report(run, folder.worker)))
    attempts = [_attempt_facts(row) for row in runs.rows(run)]
    return Answer(text, _run_facts(run) | {"ending": run.ending.value if run.ending else "", "attempts": attempts})


def attempt_answer(folder: RunFolder, run: Run, attempt: Attempt) -> Answer:
    source = folder.attempt(attempt.number).find_text(KERNEL) or ""
    text = printed(lambda console: show(console, run_report.attempt_report(run, attempt, source)))
    row = runs.rows(run)[attempt.number - 1]
    facts = _attempt_facts(row) | {"run": run.id, "kernel": source, "diagnosis": _diagnosis(folder, attempt)}
    return Answer(f"{text}\n\nIts file:\n\n```cuda\n{source.rstrip()}\n```", facts)

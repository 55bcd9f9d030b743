"""What a tool answers: a text for the agent to read, and the same in short as JSON values."""

from __future__ import annotations

import io
from collections.abc import Callable
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


@dataclass(frozen=True)
class Answer:
    """`text` is what there is to read, `facts` what a program needs of it."""

    text: str
    facts: dict[str, Any] = field(default_factory=dict)


def printed(show: Callable[[Console], None]) -> str:
    """What the command line would print, as plain text."""
    stream = io.StringIO()
    show(Console(file=stream, width=_WIDTH, highlight=False, color_system=None, soft_wrap=True))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()).strip()


def measurement_facts(measurement: Measurement | None) -> dict[str, Any]:
    """A modelled time is never told as a measured one."""
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


def attempt_facts(row: runs.Row) -> dict[str, Any]:
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


def row_text(row: runs.Row) -> str:
    """`attempt 2, structure: passed, 8.76 us modelled, 1.63x, kept`."""
    words = [row.verdict]
    words += [runs.time_words(row.attempt.measurement)] if row.attempt.passed else []
    words += [runs.speedup_words(row.speedup)] if row.speedup is not None else []
    words += ["kept: it is the best so far"] if row.kept else []
    return f"Attempt {row.attempt.number}, {row.attempt.stage.value}: {', '.join(words)}."


def diagnosis(folder: RunFolder, attempt: Attempt) -> str:
    """The whole verdict, as an author reads it."""
    return verdict_text(attempt.verdict, folder.attempt(attempt.number).find_text(KERNEL) or "")


def standing(folder: RunFolder, run: Run, question: Question | None, since: int, *, brief: bool) -> Answer:
    """Where a run stands: the attempts after number `since`, and what is asked next or why nothing is.

    `brief` leaves out what is the same for every question of the run.
    """
    rows = runs.rows(run)
    fresh = [row for row in rows if row.attempt.number > since]
    parts = [row_text(row) for row in fresh]
    asked = None if question is None else run_stage(question)
    for row in fresh:
        if not row.attempt.passed and (asked is None or not asked.is_repair):  # a repair's question has it
            parts.append(diagnosis(folder, row.attempt))
    facts: dict[str, Any] = {
        "run": run.id,
        "op": run.task.name,
        "device": run.environment.device,
        "attempts": [attempt_facts(row) | {"diagnosis": diagnosis(folder, row.attempt)} for row in fresh],
        "best": next((attempt_facts(row) for row in rows if row.best), None),
    }
    if question is None:
        facts["state"] = "ended"
        facts["ending"] = run.ending.value if run.ending else ""
        parts.append(_ended_text(run))
    else:
        number = int(question.id.partition("-")[0])
        stage = asked.value if asked else ""
        facts |= {"state": "asks", "attempt": number, "stage": stage}
        facts["attempts_left"] = run.settings.budget.attempts - len(run.attempts)
        if not brief:
            parts.append(question.system)
        parts.append(question.messages[-1].text)
        parts.append(_how_to_send(run.id, number))
    return Answer("\n\n".join(parts), facts)


def run_stage(question: Question) -> Stage | None:
    """The stage that a question is of: its first message names it."""
    first = question.messages[0].text.partition("\n")[0]
    return next((one for one in Stage if first.endswith(f"stage: {one.value}.")), None)


def _how_to_send(run: str, number: int) -> str:
    return (
        f'Here a reply is a call: submit_kernel(run="{run}", attempt={number}, summary=..., and kernel=... (the whole '
        "file) or edits=... (SEARCH/REPLACE edits of the file shown)). finish ends the run with its best file."
    )


def _ended_text(run: Run) -> str:
    said = run.ending.words if run.ending else "it may go on"
    if run.best is None:
        return f"The run has ended ({said}), and no attempt passed. advise with more_attempts or a hint opens it again."
    time = runs.time_words(run.best.measurement)
    provisional = runs.verdict_words(run.best.verdict) == runs.PROVISIONAL
    noted = "; it is provisional: bench or verify it on a GPU before it is relied on" if provisional else ""
    return (
        f"The run has ended ({said}). Its best file is that of attempt {run.best.number}, {time}{noted}. export writes "
        "it; advise with more_attempts or a hint opens the run again."
    )


def specification_answer(specification: Specification, text: str) -> Answer:
    """What words are taken to mean, before anything is run."""
    facts = {
        "state": "to be accepted",
        "reference": specification.reference,
        "inputs": specification.description,
        "assumptions": list(specification.assumptions),
    }
    return Answer(f"{text}\n\n{ACCEPT}", facts)


ACCEPT = (
    "Nothing has been run. This reference decides what is right: show it to the person who asked, and if it is what is "
    "meant, call specify again with the same arguments and accept=true."
)


def history_answer(folder: RunFolder, run: Run) -> Answer:
    text = printed(lambda console: show(console, run_report.run_report(run, folder.worker)))
    facts = {
        "run": run.id,
        "op": run.task.name,
        "author": run.settings.author,
        "state": "ended" if run.ending else "open",
        "ending": run.ending.value if run.ending else "",
        "attempts": [attempt_facts(row) for row in runs.rows(run)],
    }
    return Answer(text, facts)


def attempt_answer(folder: RunFolder, run: Run, attempt: Attempt) -> Answer:
    source = folder.attempt(attempt.number).find_text(KERNEL) or ""
    text = printed(lambda console: show(console, run_report.attempt_report(run, attempt, source)))
    row = runs.rows(run)[attempt.number - 1]
    facts = attempt_facts(row) | {"run": run.id, "kernel": source, "diagnosis": diagnosis(folder, attempt)}
    return Answer(f"{text}\n\nIts file:\n\n```cuda\n{source.rstrip()}\n```", facts)

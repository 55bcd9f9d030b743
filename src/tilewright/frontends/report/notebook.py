"""Runs, kernels, verdicts and measurements as a notebook shows them: small, self-contained HTML.

Colours are the notebook's own, with a few of middle lightness beside them, so the same text reads on light and on dark.
Every text that somebody else wrote is escaped; there is no script, and nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from tilewright import records
from tilewright.frontends.report import runs
from tilewright.frontends.report.runs import microseconds
from tilewright.prompts.verdict_text import verdict_text
from tilewright.records import Measured, Measurement, Modelled, Run, Verdict
from tilewright.tasks import task_op_line

if TYPE_CHECKING:
    from tilewright.frontends.api.make import Made

_GOOD, _FAIR, _BAD, _BAR = "#2e9e5b", "#c07a1c", "#d0483a", "#4b86c6"
_STYLE = (
    "<style>.tilewright{font:13px/1.45 system-ui,sans-serif;max-width:60em;color:inherit}"
    ".tilewright table{border-collapse:collapse;margin:.4em 0;color:inherit;background:transparent}"
    ".tilewright :is(th,td){padding:2px 10px 2px 0;text-align:left;vertical-align:top;background:transparent;"
    "border:0;border-bottom:1px solid rgba(128,128,128,.3);color:inherit;white-space:normal}"
    ".tilewright th{white-space:nowrap}"
    ".tilewright .n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}"
    ".tilewright code,.tilewright pre{font:12px/1.45 ui-monospace,monospace;color:inherit;background:transparent}"
    ".tilewright pre{margin:.4em 0;padding:6px 8px;border:1px solid rgba(128,128,128,.3);border-radius:4px;"
    "overflow:auto;max-height:26em;white-space:pre-wrap}"
    ".tilewright .faint{opacity:.7}.tilewright .bar{display:inline-block;height:9px;border-radius:2px;"
    f"background:{_BAR};min-width:2px}}.tilewright .best{{background:{_GOOD}}}"
    ".tilewright summary{cursor:pointer}</style>"
)
_BAR_PIXELS = 180


def html_of(thing: object) -> str:
    """The HTML of anything that a notebook may be given."""
    match thing:
        case Run():
            return _whole(_run(thing))
        case Measured() | Modelled():
            return _whole(_measurement(thing))
        case records.Passed() | records.Rejected() | records.Unsupported():
            return _whole(f"<div>{_badge(thing)}</div>{_pre(verdict_text(thing))}")
        case _:
            return _whole(_pre(str(thing)))


def made_html(made: Made) -> str:
    """A finished kernel: what it computes, how it did, how it is called, and its file to be unfolded."""
    tensors = [one.name for one in made.task.tensors if not one.optional]
    results = ", ".join(one.name for one in made.task.outputs)
    call = f"{results} = f({', '.join(tensors)})" if results else f"f({', '.join(tensors)})"
    parts = [
        f"<div><b>{escape(task_op_line(made.task))}</b></div>",
        *_lines(runs.task_words(made.task, made.run.best if made.run else None)[1:]),
        f"<div class='faint'>by {escape(made.entry.author)} in run {escape(made.entry.run)}; called as "
        f"<code>{escape(call)}</code></div>",
    ]
    if made.entry.measurement is not None:
        parts.append(_measurement(made.entry.measurement))
    if made.run is not None:
        parts.append(_unfolded(runs.attempts_words(made.run), _attempts(made.run)))
    parts.append(_unfolded(made.kernel.name, _pre(_text_of(made))))
    return _whole("".join(parts))


def _text_of(made: Made) -> str:
    try:
        return made.kernel.read_text(encoding="utf-8")
    except OSError as error:
        return f"{made.kernel} cannot be read any more: {error.strerror}"


# -- a run --


def _run(run: Run) -> str:
    state = f"ended: {run.ending_words}" if run.ending else "may go on"
    head = f"<div><b>{escape(run.id)}</b> by {escape(run.settings.author)} on {escape(run.environment.device)}</div>"
    foot = f"<div class='faint'>{escape(state)}; {escape(runs.spend_words(run))}</div>"
    return head + "".join(_lines(runs.task_words(run.task, run.best))) + _attempts(run) + foot


def _attempts(run: Run) -> str:
    rows = runs.rows(run)
    if not rows:
        return "<div class='faint'>no attempt is finished yet</div>"
    kind = "measured" if runs.is_measured(run.attempts) else "modelled"
    longest = max((row.time_us or 0.0 for row in rows), default=0.0)
    cells = [
        (
            f"<td class='n'>{row.attempt.number}</td><td>{row.attempt.stage.value}</td>"
            f"<td>{_badge(row.attempt.verdict)}</td>"
            f"<td class='n'>{'' if row.time_us is None else microseconds(row.time_us)}</td>"
            f"<td>{_bar(row.time_us, longest, row.best)}</td>"
            f"<td class='n'>{runs.speedup_words(row.speedup)}</td>"
            f"<td>{'best' if row.best else 'kept' if row.kept else ''}</td><td>{escape(row.summary)}</td>"
        )
        for row in rows
    ]
    return _table(("", "stage", "verdict", f"{kind} us", "", "", "", "summary"), cells)


# -- a verdict --


def _badge(verdict: Verdict) -> str:
    words = runs.verdict_words(verdict)
    passed = isinstance(verdict, records.Passed)
    colour = _BAD if isinstance(verdict, records.Rejected) else _GOOD if words != runs.PROVISIONAL and passed else _FAIR
    return f"<b style='color:{colour}'>{escape(words)}</b>"


# -- a measurement --


def _measurement(found: Measurement) -> str:
    sizes = ", ".join(f"{name}={size}" for name, size in found.sizes.items())
    head = (
        f"<div><b>{escape(runs.time_words(found))}</b> on {escape(found.gpu)} at {escape(sizes)}, "
        f"{found.fraction:.0%} of the roofline ({microseconds(found.floor_us)} us)</div>"
    )
    return head + (_measured(found) if isinstance(found, Measured) else _modelled(found))


def _measured(found: Measured) -> str:
    timings = [found.kernel, *found.baselines, *([found.control] if found.control else [])]
    longest = max(one.median_us for one in timings)
    cells = []
    for one in timings:
        beside = "" if one is found.kernel else f"{one.median_us / found.time_us:.2f}x"
        cells.append(
            f"<td>{escape(one.name)}</td><td class='n'>{microseconds(one.median_us)}</td>"
            f"<td class='n faint'>{runs.scatter_words(one)}</td>"
            f"<td>{_bar(one.median_us, longest, one is found.kernel)}</td><td class='n'>{beside}</td>"
        )
    table = _table(("measured", "us", "95 % interval", "", "beside the kernel"), cells)
    notes = [*found.notes, *([runs.conditions_words(found.conditions)] if found.conditions else [])]
    return table + "".join(_lines(notes))


def _modelled(found: Modelled) -> str:
    longest = max((term.time_us for term in found.terms), default=0.0)
    cells = [
        f"<td>{escape(term.name)}</td><td class='n'>{microseconds(term.time_us)}</td>"
        f"<td>{_bar(term.time_us, longest, False)}</td><td class='faint'>{escape(term.detail)}</td>"
        for term in found.terms
    ]
    said = "<div class='faint'>modelled from emulated counts: it ranks kernels, and is no measurement</div>"
    return _table(("modelled", "us", "", ""), cells) + said


# -- pieces --


def _whole(content: str) -> str:
    return f"{_STYLE}<div class='tilewright'>{content}</div>"


def _table(headings: Iterable[str], rows: Iterable[str]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _bar(time_us: float | None, longest: float, best: bool) -> str:
    if time_us is None or not longest:
        return ""
    width = max(2, round(_BAR_PIXELS * time_us / longest))
    return f"<span class='bar{' best' if best else ''}' style='width:{width}px'></span>"


def _lines(texts: Iterable[str]) -> list[str]:
    return [f"<div class='faint'>{escape(text)}</div>" for text in texts]


def _pre(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def _unfolded(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"

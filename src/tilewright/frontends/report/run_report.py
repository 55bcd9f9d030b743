"""Reports of runs: all of them, one with its attempts, one attempt in full, its times, and who wrote its kernel."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from tilewright import records
from tilewright.frontends.report import document as doc
from tilewright.frontends.report import runs
from tilewright.frontends.report.runs import PROVISIONAL, Row, dollars_words, microseconds, spend_words, time_words
from tilewright.prompts.verdict_text import verdict_text, verdict_words
from tilewright.records import Attempt, Measured, Measurement, Modelled, Provenance, Run
from tilewright.store import RunFolder, RunList, StoreError
from tilewright.store.attempt_folder import KERNEL
from tilewright.tasks.errors import BadArgument

_HASH_SHOWN = 12
_TABLE_GAP = 2
_LEFT_OUT = ("op", "GPU", "cost", "author", "when", "attempts", "state", "best")  # the first goes first
_COLUMNS = ("run", "when", "op", "GPU", "author", "attempts", "best", "cost", "state")
_FIELDS = {"run": "name", "GPU": "gpu"}  # of `RunLine`, where they are called otherwise
_BREAKABLE = {"author": 20, "state": 20}  # such cells may go over several lines of at least this width

# -- the one table of attempts --


def attempts_table(run: Run, *, linked: bool = False) -> doc.Table | doc.Paragraph:
    """A row for each attempt, with a bar that is as long as the part of the roofline it reaches."""
    if not run.attempts:
        return doc.say("no attempt is finished yet")
    made = runs.rows(run)
    tones = tuple(doc.Tone.GOOD if row.best else doc.Tone.PLAIN if row.kept else doc.Tone.FAINT for row in made)
    cells = [attempt_cells(row, run) for row in made]
    if linked:
        cells = [((doc.Link(str(first), file=f"attempt-{first}.html"),), *others) for first, *others in cells]
    return doc.Table(attempt_heads(run), tuple(cells), ("#", *attempt_heads(run)[3:5], "roofline", "cost"), tones)


def attempt_heads(run: Run) -> tuple[str, ...]:
    kind = "measured us" if runs.is_measured(run.attempts) or not run.environment.emulated else "modelled us"
    cost = ("cost",) if _is_paid(run) else ()
    return ("#", "stage", "result", kind, "vs best", "", "roofline", "", *cost, "summary")


def attempt_cells(row: Row, run: Run) -> tuple[doc.Cell, ...]:
    """`speedup` is over the best attempt before it."""
    attempt, measurement = row.attempt, row.attempt.measurement if row.time_us is not None else None
    return (
        str(attempt.number),
        attempt.stage.value,
        row.verdict,
        "" if row.time_us is None else microseconds(row.time_us),
        runs.speedup_words(row.speedup),
        "best" if row.best else "kept" if row.kept else "",
        "" if measurement is None else f"{measurement.fraction:.0%}",
        "" if measurement is None else doc.Bar(min(measurement.fraction, 1.0), row.best),
        *((dollars_words(attempt.dollars) if attempt.replies else "",) if _is_paid(run) else ()),
        row.summary,
    )


def _is_paid(run: Run) -> bool:
    return any(one.replies for one in run.attempts)


# -- one run --


def run_report(run: Run, worker: str = "") -> list[doc.Block]:
    """Everything about a run that fits on a page. `worker`: the process that works on it now."""
    return [*run_head(run), doc.say(""), attempts_table(run), doc.say(""), standing_words(run, worker)]


def run_head(run: Run) -> Iterator[doc.Block]:
    """What was asked for, of whom and where."""
    yield doc.say(doc.Mark(run.id), f"  {when(run.created)}  by {run.settings.author}")
    asked = f": {' '.join(run.task.words.split())}" if run.task.words else ""
    yield doc.say(f"{run.task.name} for {run.task.gpu}{asked}")
    yield from doc.say_each((f"  {line}" for line in runs.task_words(run.task, run.best)), doc.Tone.FAINT)
    if run.task.degenerate:
        yield doc.say(f"  degenerate, so passing proves nothing: {run.task.degenerate}", tone=doc.Tone.FAIR)
    yield doc.say(f"on {run.environment.device}")
    yield from doc.say_each(f"hint after attempt {made}: {hint}" for made, hint in run.settings.hints)


def standing_words(run: Run, worker: str = "") -> doc.Paragraph:
    """Where a run stands, and what it has cost of what it may."""
    return doc.say(f"{state_words(run, worker)}; {spend_words(run)}")


def state_words(run: Run, worker: str = "") -> str:
    if worker:
        return f"being worked on by {worker}"
    if run.ending is None:
        return f"it may go on: tilewright resume {run.id}"
    return f"ended: {run.ending_words}"


# -- one attempt --


def attempt_report(run: Run, attempt: Attempt, source: str) -> doc.Document:
    """One attempt: what was asked, what it cost, the verdict in full with lines of its `source`, its times."""
    parent = f" from attempt {attempt.parent}" if attempt.parent else ""
    title = f"attempt {attempt.number} of {run.id}: {attempt.stage.value}{parent}"
    return doc.Document(title, (doc.Section("", tuple(attempt_blocks(attempt, source))),))


def attempt_blocks(attempt: Attempt, source: str) -> Iterator[doc.Block]:
    replies = f"{attempt.replies} {'reply' if attempt.replies == 1 else 'replies'}"
    cost = f"{replies}, {attempt.usage.tokens:,} tokens, {dollars_words(attempt.dollars)}, " if attempt.replies else ""
    yield doc.say(attempt.summary)
    yield from doc.say_each(f"by algebra: {note}" for note in attempt.notes)
    yield doc.say(f"{cost}{runs.seconds_words(attempt.seconds)}", tone=doc.Tone.FAINT)
    yield doc.say("")
    yield doc.Source(verdict_text(attempt.verdict, source))
    if attempt.tune is not None and len(attempt.tune.tried) > 1:
        yield doc.say("")
        yield doc.say("constants tried by the autotuner", tone=doc.Tone.STRONG)
        yield from _tune(attempt.tune)
    if attempt.measurement is not None:
        yield from (doc.say(""), *measurement_blocks(attempt.measurement))
    yield from doc.say_each([runs.unmeasured_words(attempt)], doc.Tone.FAIR)


def _tune(tune: records.TuneResult) -> Iterator[doc.Block]:
    """Every choice of constants with its time, the fastest first."""
    rows = []
    for choice, time_us in sorted(tune.tried, key=lambda one: one[1]):
        refused = next((one.verdict for one in tune.refused if one.choice == choice), None)
        note = "chosen" if choice == tune.choice else verdict_words(refused) if refused else ""
        rows.append((microseconds(time_us), ", ".join(f"{name}={value}" for name, value in choice), note))
    yield doc.Table(("us", "constants", ""), tuple(rows), ("us",))
    left = [f"{count} {what}" for count, what in ((tune.skipped, "not tried"), (tune.failed, "failed")) if count]
    yield from doc.say_each([", ".join(left)], doc.Tone.FAINT)


# -- times --


def measurement_blocks(timing: Measurement) -> Iterator[doc.Block]:
    """Every contender with where its median lies, or every resource with its modelled time."""
    sizes = ", ".join(f"{name}={size}" for name, size in timing.sizes.items())
    time, fraction = time_words(timing), runs.fraction_words(timing)
    yield doc.say(f"{time} on {timing.gpu} at {sizes}, {fraction}", tone=doc.Tone.STRONG)
    yield from _measured(timing) if isinstance(timing, Measured) else _modelled(timing)


def _measured(timing: Measured) -> Iterator[doc.Block]:
    timings = [timing.kernel, *timing.baselines, *([timing.control] if timing.control else [])]
    longest = max(one.median_us for one in timings)
    rows = []
    for one in timings:
        beside = ("", "")
        if one is not timing.kernel:
            ratio = timing.times_as_long(one)
            beside = f"{one.median_us / timing.time_us:.3f}x", f"{ratio.low:.3f} to {ratio.high:.3f}"
        drawn = doc.Bar(one.median_us / longest, one is timing.kernel)
        rows.append((one.name, microseconds(one.median_us), runs.scatter_words(one), drawn, *beside))
    heads = ("measured", "us", "95% interval", "", "over the kernel", "95% interval of it")
    yield doc.Table(heads, tuple(rows), ("us", "over the kernel"))
    notes = [f"kernel and baselines {timing.precision.words}"] if timing.precision is not None else []
    notes += [runs.conditions_words(timing.conditions)] if timing.conditions is not None else []
    yield from doc.say_each((*notes, *timing.notes), doc.Tone.FAINT)


def _modelled(timing: Modelled) -> Iterator[doc.Block]:
    longest = max((term.time_us for term in timing.terms), default=0.0) or 1.0
    rows = [(one.name, microseconds(one.time_us), doc.Bar(one.time_us / longest), one.detail) for one in timing.terms]
    yield doc.Table(("modelled", "us", "", "counted"), tuple(rows), ("us",))
    sampled = f"{timing.sampled_blocks} of {timing.grid_blocks:,} blocks sampled"
    rest = f"occupancy {timing.occupancy:.0%}, {timing.spill_bytes} bytes spilled"
    margin = f" (+- {timing.uncertainty:.0%})" if timing.uncertainty else ""
    caution = f"a modelled time{margin} ranks candidates and is no measurement"
    yield doc.say(f"{rest}, {sampled}; {caution}", tone=doc.Tone.FAINT)


def diff_text(folder: RunFolder, attempt: Attempt) -> str:
    """What an attempt changed in the file its author was given; the whole file where it was given none."""
    new = folder.attempt(attempt.number).find_text(KERNEL) or ""
    old = folder.attempt(attempt.parent).find_text(KERNEL) or "" if attempt.parent else ""
    return unified_diff(
        old, new, f"attempt {attempt.parent}" if attempt.parent else "nothing", f"attempt {attempt.number}"
    )


def unified_diff(old: str, new: str, old_name: str, new_name: str) -> str:
    """ "" where the texts are equal."""
    lines = difflib.unified_diff(old.splitlines(keepends=True), new.splitlines(keepends=True), old_name, new_name)
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


# -- where a kernel comes from --


def standing_blocks(made: Provenance) -> Iterator[doc.Block]:
    """What a kernel is, its licence, and how well it was checked."""
    licence = "nobody has stated one (--license)" if made.licence == records.UNSTATED else made.licence
    where = f" on {', '.join(made.verified_on)}" if made.verified_on else ""
    worst = "" if made.worst_error is None else f", worst error {made.worst_error:.2f} of what is allowed"
    yield doc.say(doc.Mark(made.op), f"  run {made.run} of {made.created}, tilewright {made.tilewright}")
    yield doc.say("kernel ", doc.Code(made.kernel), ", task ", doc.Code(made.task_hash), f"; licence: {licence}")
    yield doc.say(f"correct in {made.right_cases} cases{where}{worst}; {time_words(made.measurement)}")
    yield from doc.say_each((f"{PROVISIONAL}, not verified: {one}" for one in made.unjudged), doc.Tone.FAIR)
    yield from doc.say_each([f"passing proves nothing: {made.degenerate}" * bool(made.degenerate)], doc.Tone.FAIR)


def provenance_report(made: Provenance, authors: Sequence[int], kernel: str) -> list[doc.Block]:
    """`authors`: for every line of the kernel the attempt that wrote it."""
    contributions = tuple(
        (
            str(one.attempt),
            str(sum(last - first + 1 for first, last in one.lines)),
            one.stage,
            one.author,
            one.prompts[-1][:_HASH_SHOWN] if one.prompts else "",
            " ".join(one.summary.split()),
        )
        for one in made.contributions
    )
    numbered = enumerate(zip(authors, kernel.splitlines(), strict=True), start=1)
    heads = ("#", "lines", "stage", "author", "prompt", "summary")
    lines = "\n".join(f"#{author:<3}{number:>5}  {line}" for number, (author, line) in numbered)
    table = doc.Table(heads, contributions, ("#", "lines"))
    return [*standing_blocks(made), doc.say(""), table, doc.say(""), doc.Source(lines)]


# -- all runs --


@dataclass(frozen=True)
class RunLine:
    """A run in the list of runs. `problem`: why nothing else is known of it."""

    name: str
    created: str = ""
    when: str = ""
    op: str = ""
    gpu: str = ""
    author: str = ""
    attempts: int = 0
    best: str = ""
    best_us: float | None = None
    fraction: float | None = None  # of the roofline
    cost: str = ""
    dollars: float = 0.0
    state: str = ""
    problem: str = ""


def run_line(name: str, run: Run, worker: str | None) -> RunLine:
    best = run.best
    measurement = best.measurement if best else None
    result = time_words(measurement) if best else "none passed" if run.attempts else ""
    return RunLine(
        name=name,
        created=run.created,
        when=when(run.created),
        op=run.task.name,
        gpu=run.task.gpu,
        author=run.settings.author,
        attempts=len(run.attempts),
        best=f"{result}, {PROVISIONAL}" if best and best.is_provisional else result,
        best_us=measurement.time_us if measurement else None,
        fraction=measurement.fraction if measurement else None,
        cost=dollars_words(run.dollars),
        dollars=run.dollars or 0.0,
        state=f"{worker} is on it" if worker else run.ending.words if run.ending else "may go on",
    )


def runs_report(listing: RunList, width: int) -> Iterator[doc.Block]:
    """One line for each run, newest first, then what waits to be accepted and what cannot be read."""
    if not (listing.runs or listing.waiting or listing.broken):
        yield doc.say('no runs yet; begin with: tilewright make "softmax over the last dimension"')
    if listing.runs:
        yield _runs_table([run_line(run.id, run, listing.workers.get(run.id)) for run in listing.runs], width)
    for one in listing.waiting:
        words = " ".join(one.request.text.split())
        worker = listing.workers.get(one.id)
        state = f"{worker} is on it" if worker else f"tilewright resume {one.id} --yes"
        line = f"{one.id}  {when(one.created)}  has no accepted specification yet: {words[:60]!r}; {state}"
        yield doc.say(line, tone=doc.Tone.FAIR)
    yield from doc.say_each((f"{one.path} cannot be read: {one.problem}" for one in listing.broken), doc.Tone.BAD)


def _runs_table(lines: Sequence[RunLine], width: int) -> doc.Table:
    """Columns are left out until no cell but an author's or a state's must be broken; the run always stays."""
    columns = {head: [str(getattr(one, _FIELDS.get(head, head))) for one in lines] for head in _COLUMNS}
    for least in _LEFT_OUT:
        needed = (
            min(max(map(len, (head, *cells))), _BREAKABLE.get(head, width)) + _TABLE_GAP
            for head, cells in columns.items()
        )
        if sum(needed) <= width:
            break
        del columns[least]
    rows = tuple(zip(*columns.values(), strict=True))
    return doc.Table(tuple(columns), rows, ("attempts", "best", "cost"), whole=frozenset(columns.keys() - _BREAKABLE))


def when(created: str) -> str:
    """A time of the record in this machine's own zone, to the minute."""
    return datetime.fromisoformat(created).astimezone().strftime("%Y-%m-%d %H:%M")


def prompts_of(folder: RunFolder, number: int) -> tuple[str, ...]:
    """What the author was asked in an attempt; 0 is the specification of a request in words."""
    place = folder.attempt(number)
    texts = (place.find_text(f"question-{k}.md") for k in range(1, 10))
    return tuple(text for text in texts if text is not None)


# -- an attempt with its texts, for a page of its own --

_MOST_PARTIAL = 9  # questions of one attempt


def attempt_page(folder: RunFolder, run: Run, number: int) -> doc.Document:
    """An attempt with its file, what it changed, prompts and replies; of an unfinished one, what has come in so far."""
    attempt, place = next((one for one in run.attempts if one.number == number), None), folder.attempt(number)
    kernel, partial, problem = "", "", ""
    prompts: tuple[str, ...] = ()
    replies: tuple[str, ...] = ()
    try:
        kernel, prompts = place.find_text(KERNEL) or "", prompts_of(folder, number)
        replies = tuple(reply.text for reply in place.replies())
        coming = (place.find_text(f"reply-{k}.partial.md") for k in range(1, _MOST_PARTIAL + 1))
        partial = next((text for text in coming if text), "")
    except (StoreError, OSError) as error:
        problem = str(error)
    if not (attempt or kernel or prompts or replies or partial or problem):
        raise BadArgument(f"run {run.id} has no attempt {number}; it has {len(run.attempts)}")
    head = list(doc.say_each([problem], doc.Tone.BAD))
    sections = [doc.Section("The reply so far", (doc.Source(partial),))] if partial else []
    if attempt is not None:
        parent = f" from attempt {attempt.parent}" if attempt.parent else ""
        head.append(doc.say(doc.Mark(runs.verdict_words(attempt.verdict)), f" {attempt.stage.value}{parent}"))
        head.append(doc.say(doc.Link("What each line does, and the roofline", file=f"counters-{number}.html")))
        sections.append(doc.Section("Verdict", (*attempt_blocks(attempt, kernel), *_cases(attempt.verdict))))
    if kernel and attempt is not None and not problem:
        sections.append(doc.Section("What it changed", (doc.Source(diff_text(folder, attempt), "diff"),)))
    sections += [doc.Section("Kernel file", (doc.Source(doc.numbered(kernel), "cuda"),))] if kernel else []
    texts = {f"Prompt {k}": text for k, text in enumerate(prompts, 1)}
    texts |= {f"Reply {k}": text for k, text in enumerate(replies, 1)}
    folds = tuple(doc.Fold(title, (doc.Source(text),)) for title, text in texts.items())
    sections += [doc.Section("Prompts and replies", folds)] if folds else []
    title = f"Attempt {number} of {run.id}" if number else f"The specification of {run.id}"
    return doc.Document(title, (doc.Section("", tuple(head)), *sections))


def _cases(verdict: records.Verdict) -> Iterator[doc.Fold]:
    cases = () if isinstance(verdict, records.Unsupported) else verdict.cases
    rows = tuple(
        (str(one.case), one.status.value, one.device, "" if one.error_ratio is None else f"{one.error_ratio:.3f}")
        for one in cases
    )
    if rows:
        heads = ("case", "status", "on", "worst error over what is allowed")
        yield doc.Fold(f"Cases it was judged by: {len(rows)}", (doc.Table(heads, rows),))

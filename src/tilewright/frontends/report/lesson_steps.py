"""The steps of a run, each with what was changed, why, what the referee said and what it gained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilewright import records
from tilewright.frontends.report.document import Block, Fold, Paragraph, Section, Source, Table
from tilewright.frontends.report.glossary import RESOURCES, Glossary
from tilewright.frontends.report.run_report import diff_text
from tilewright.frontends.report.runs import Row, microseconds, rows, time_words, why_words
from tilewright.prompts.replies import whole_summary
from tilewright.prompts.verdict_text import verdict_text
from tilewright.records import Attempt, Measured, ModelTerm, Run, Stage
from tilewright.store import RunFolder
from tilewright.store.attempt_folder import KERNEL

_MOVED = 0.03  # of a term: less is not worth a line
_SAME = 0.005  # of a time: less is no difference

_STAGES = {
    Stage.DRAFT: "a first version",
    Stage.REPAIR_BUILD: "mending what did not compile",
    Stage.REPAIR_CRASH: "mending what crashed",
    Stage.REPAIR_WRONG: "mending wrong results",
    Stage.STRUCTURE: "another structure",
    Stage.PROFILED: "a change guided by counters",
}
_RAN_OUT = (
    "It was stopped at the limit of the time, the instructions or the memory that a case may take. So nobody knows "
    "whether it is right: it may never end, or do far more work than is needed."
)
_LESSONS: dict[type, str] = {
    records.BadReply: "The author's answer held no kernel file that could be read, so there was nothing to try.",
    records.BadPlan: "The launch plan at the top of the file, which says how many blocks and threads run, is wrong. "
    "That is found before anything is compiled.",
    records.NotBuilt: "The compiler refused it. CUDA is C++: every name and type is checked before anything runs.",
    records.Declined: "It says itself that it does not take some sizes that the task has to cover.",
    records.Crashed: "It did something a program must not do. In Python that would be an exception at a line; on a GPU "
    "it is silent, or the end of the process. The emulator names the line and the thread.",
    records.WrongValues: "It ran to its end, and its results are not those of the reference, by more than rounding "
    "explains.",
    records.Unstable: "Its results differ from run to run, so they depend on which thread happens to come first.",
    records.Impossible: "It was faster than the hardware can be, so it cannot have done the work.",
    records.Duplicate: "It is the same file as an earlier attempt, so it was not tried again.",
    records.NothingBetter: "The author looked for something better and found nothing, which is an answer too.",
    records.NotFaster: "It was quickly seen to be slower than the best so far, so the rest was spared.",
}  # fmt: skip


def step_sections(
    folder: RunFolder, run: Run, words: Glossary, terms: Mapping[int, tuple[ModelTerm, ...]]
) -> Iterator[Section]:
    """`terms`: of attempts by number, what the model says of them."""
    before: Attempt | None = None
    for row in rows(run):
        attempt = row.attempt
        kept = "the best" if row.best else "kept" if row.kept else "not kept"
        title = f"Step {attempt.number}: {_STAGES[attempt.stage]} ({kept})"
        blocks = [
            *_what(folder, attempt, words),
            *_verdict(folder, attempt, words),
            *_gain(row, before, words, terms),
        ]
        yield Section(title, tuple(blocks), level=3)
        before = attempt if row.kept else before


def _what(folder: RunFolder, attempt: Attempt, words: Glossary) -> Iterator[Block]:
    """What the author says it did, and the difference to the file that it was given."""
    if attempt.summary.strip():
        yield words.say("The author's own words on it:")
        yield words.quote(_own_words(folder, attempt))
    for note in attempt.notes:
        yield words.say(f"By algebra: {note}")
    given = attempt.parent or (attempt.number - 1 if attempt.stage.is_repair and attempt.number > 1 else None)
    if given is None or not folder.attempt(given).find_text(KERNEL):
        lines = len((folder.attempt(attempt.number).find_text(KERNEL) or "").splitlines())
        if lines:
            yield words.say(f"It was written from nothing: {lines} lines.")
        return
    changed = diff_text(folder, replace(attempt, parent=given))
    marks = [line[0] for line in changed.splitlines()[2:] if line]
    if not marks:
        yield words.say(f"The file is that of step {given}; nothing in it was changed.")
        return
    title = f"What it changed in step {given}: {marks.count('+')} lines new, {marks.count('-')} gone"
    yield Fold(title, (Source(changed, "diff"),))


def _own_words(folder: RunFolder, attempt: Attempt) -> str:
    """The whole sentence from the reply, where the record has as much of it as a table shows."""
    cut = attempt.summary.removesuffix("...")
    replies = folder.attempt(attempt.number).replies() if cut != attempt.summary else ()
    return next((said for one in replies if (said := whole_summary(one.text)).startswith(cut)), attempt.summary)


def _verdict(folder: RunFolder, attempt: Attempt, words: Glossary) -> Iterator[Block]:
    verdict = attempt.verdict
    if isinstance(verdict, records.Passed):
        ratios = [one.error_ratio for one in verdict.cases if one.error_ratio is not None]
        worst = f", the worst error {max(ratios):.0%} of what honest rounding allows" if ratios else ""
        cases = len(verdict.cases)
        yield words.say(
            f"Is it right? Yes: {cases} case{'s' if cases != 1 else ''} of different sizes and values{worst}."
        )
        return
    text = verdict_text(verdict, folder.attempt(attempt.number).find_text(KERNEL) or "")
    if isinstance(verdict, records.Unsupported):
        yield words.say("Is it right? Nobody can say here: it cannot be run on this machine.")
    else:
        ran_out = isinstance(verdict.evidence, records.Crashed) and verdict.evidence.ran_out
        lesson = _RAN_OUT if ran_out else _LESSONS.get(type(verdict.evidence), "")
        right = f" {len(verdict.cases)} cases were right before that." if verdict.cases else ""
        why = f" ({said})" if (said := why_words(verdict)) else ""
        yield words.say(f"Is it right? No: {verdict.reason}{why}. {lesson}{right}")
    yield Fold("The diagnosis, as the author was given it", (Source(text, "text"),))


def _gain(
    row: Row, before: Attempt | None, words: Glossary, terms: Mapping[int, tuple[ModelTerm, ...]]
) -> Iterator[Block]:
    attempt, measurement = row.attempt, row.attempt.measurement
    if measurement is None or not attempt.passed:
        return
    share = f"{measurement.fraction:.0%} of the roofline"
    said = f"Is it fast? {time_words(measurement)}, {share}."
    if before is not None and before.time_us and row.time_us:
        ratio = before.time_us / row.time_us
        change = f"{ratio:.2f} times as fast as" if ratio >= 1 else f"{1 / ratio:.2f} times as slow as"
        change = "no faster than" if abs(ratio - 1.0) < _SAME else change
        said += f" That is {change} step {before.number}, the best until then ({microseconds(before.time_us)} us)."
        if not row.kept:
            little = "That is too little to tell from noise, so it" if ratio >= 1.0 + _SAME else "It"
            said += f" {little} was put aside, and the next step began again from the best."
    yield words.say(said)
    if isinstance(measurement, Measured):
        others = [f"{one.name} {microseconds(one.median_us)} us" for one in measurement.baselines]
        if others:
            yield words.say(f"Measured in turn with: {', '.join(others)}.")
    yield from _tuned(attempt, before, words)
    own, earlier = terms.get(attempt.number, ()), terms.get(before.number, ()) if before else ()
    if own and earlier:
        yield from _changed_terms(own, earlier, words)


def _tuned(attempt: Attempt, before: Attempt | None, words: Glossary) -> Iterator[Block]:
    tune = attempt.tune
    if tune is None or len(tune.tried) < 2:
        return
    times = [time_us for _, time_us in tune.tried]
    spread = f"from {microseconds(min(times))} to {microseconds(max(times))} us"
    took = f"took {_constants(tune.choice)}"
    if tune.choice == tune.tried[0][0] and min(times) < times[0]:
        took = f"kept the file's first, {_constants(tune.choice)}, because none was clearly better"
    said = f"The autotuner tried {len(times)} choices of the file's constants ({spread}) and {took}."
    own, other = dict(tune.choice), before.tune.choice if before and before.tune else ()
    if before and any(own.get(name, value) != value for name, value in other):
        said += f" Step {before.number} has {_constants(other)}: part of what differs from it may be due to that."
    yield words.say(said)


def _constants(choice: tuple[tuple[str, int | bool], ...]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in choice)


def same_longest(steps: Sequence[tuple[ModelTerm, ...]]) -> ModelTerm | None:
    """The resource that takes longest in every step, if it takes as long in all of them."""
    found = [max(terms, key=lambda one: one.time_us) for terms in steps]
    if len(found) < 2 or len({one.name for one in found}) > 1:
        return None
    times = [one.time_us for one in found]
    return found[-1] if max(times) - min(times) <= _MOVED * max(times) else None


def _changed_terms(
    own: tuple[ModelTerm, ...], earlier: tuple[ModelTerm, ...], words: Glossary
) -> Iterator[Paragraph | Table]:
    """The resources whose times moved, the largest change first, and the one that takes longest."""
    then = {one.name: one for one in earlier}
    now = {one.name: one for one in own}
    names = list(dict.fromkeys((*now, *then)))
    times = {name: tuple(side[name].time_us if name in side else 0.0 for side in (then, now)) for name in names}
    moved = [name for name, (old, new) in times.items() if abs(new - old) > _MOVED * max(old, new, 1e-9)]
    moved.sort(key=lambda name: -abs(times[name][1] - times[name][0]))
    longest = max(own, key=lambda one: one.time_us).name
    if not moved:
        yield words.say("No resource of the model is used differently, so there is nothing to gain or lose.")
        return
    first = moved[0]
    old, new = times[first]
    verb = "less" if new < old else "more"
    yield words.say(f"What changed most: {verb} time for {first} ({RESOURCES.get(first, 'see the table')}).")
    rows_ = tuple(
        (
            words.cell(name),
            microseconds(times[name][0]),
            microseconds(times[name][1]),
            words.cell(now[name].detail if name in now else "not used any more"),
        )
        for name in (*moved, *([] if longest in moved else [longest]))
    )
    yield Table(("resource", "before, us", "now, us", "now"), rows_)

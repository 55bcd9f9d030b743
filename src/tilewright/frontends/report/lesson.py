"""From a run to a lesson: what is computed, how fast it could be, how the kernel does it, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from tilewright import records
from tilewright.devices.emulation.listing import WASTEFUL
from tilewright.frontends.report import document as doc
from tilewright.frontends.report import pictures, runs
from tilewright.frontends.report.emulated import Access, Counted, Look, NotCountable, count_lines, look_at
from tilewright.frontends.report.run_report import diff_text
from tilewright.measure.floor import peak_tflops
from tilewright.prompts.replies import whole_summary
from tilewright.prompts.verdict_text import verdict_text
from tilewright.records import LAUNCH_US, Attempt, Measured, Modelled, ModelTerm, Run, TouchRecord
from tilewright.store import RunFolder
from tilewright.store.attempt_folder import KERNEL

_MOST_ACCESSES = 6  # pictures of them
_MOST_LINES = 6  # that do most, in a table


def lesson_of(folder: RunFolder, run: Run, say: Callable[[str], None]) -> doc.Document:
    """The whole lesson. Emulation takes seconds, at most minutes."""
    return _Writer(folder, run, say).lesson()


class _Writer:
    def __init__(self, folder: RunFolder, run: Run, say: Callable[[str], None]) -> None:
        self._folder, self._run, self._say = folder, run, say
        self._words = doc.Glossary()
        self._best = run.best
        self._text = folder.attempt(self._best.number).text(KERNEL) if self._best else ""
        self._look: Look | None = None

    def lesson(self) -> doc.Document:
        run = self._run
        if self._best is not None:
            self._say("running the best kernel in the emulator")
            self._look = look_at(run, self._best, self._text)
        terms = self._terms()
        sections = [
            self._opening(),
            doc.Section("What is computed", tuple(self._task())),
            doc.Section("How fast could it be?", tuple(self._roofline())),
            *([doc.Section("Reading CUDA", tuple(self._key(key)))] if (key := tuple(doc.key_to(self._text))) else []),
            *([doc.Section("How the finished kernel shares out the work", tuple(self._shape()))] if self._look else []),
            doc.Section("How it came about, step by step", tuple(self._progress(terms))),
            *step_sections(self._folder, run, self._words, terms),
            *([doc.Section("Where the time goes now", tuple(self._costs()))] if self._best else []),
        ]
        return doc.Document(f"How {run.task.name} was made for {run.task.gpu}", tuple(sections), self._words.entries())

    # -- sections --

    def _opening(self) -> doc.Section:
        run, best = self._run, self._best
        reached = f"the best takes {runs.time_words(best.measurement)}" if best else "none passed"
        if best is not None and best.measurement is None:
            reached = f"the best passed, though {runs.unmeasured_words(best)}"
        made = f"This is run {run.id}: {runs.attempts_words(run)} by {run.settings.author}, of which {reached}."
        blocks = [self._words.text("opening"), self._words.say(made)]
        if not runs.is_measured(run.attempts):
            timed = any(one.measurement for one in run.attempts)
            blocks.append(self._words.text("modelled" if timed else "untimed"))
        return doc.Section("What this is", tuple(blocks))

    def _task(self) -> Iterator[doc.Block]:
        task = self._run.task
        if task.words.strip():
            yield self._words.text("words")
            yield self._words.quote(task.words)
        yield self._words.text("reference")
        yield doc.Source(task.reference, "python")
        rows = []
        for role, specs in (("read", task.specs()), ("written", task.output_specs())):
            for name, spec in specs.items():
                shape = " x ".join(map(str, spec.shape)) or "one number"
                rows.append((name, role, shape, spec.dtype.value, f"{spec.storage_bytes / 1e6:,.2f}"))
        yield doc.Table(("tensor", "is", "shape", "elements are", "MB"), tuple(rows))
        for line in runs.task_words(task, self._best)[2:]:
            yield self._words.say(f"{line[:1].upper()}{line[1:]}." if ": " in line else f"Sizes in a call: {line}.")

    def _roofline(self) -> Iterator[doc.Block]:
        task = self._run.task
        gpu, measurement = task.profile, self._best.measurement if self._best else None
        memory_us = task.moved_bytes / (gpu.bandwidth_gbs * 1e3) if gpu.bandwidth_gbs else 0.0
        megabytes, us = task.moved_bytes / 1e6, runs.microseconds(memory_us)
        yield self._words.text("bytes", megabytes=megabytes, gpu=gpu, us=us, launch=LAUNCH_US)
        if measurement is None:
            return
        floor_us, products_us = measurement.floor_us, measurement.floor_us - LAUNCH_US
        if products_us > 1.001 * memory_us:
            peak = peak_tflops(task, gpu)
            many = products_us * peak / 1e3
            yield self._words.text("products", billions=many, peak=peak, us=runs.microseconds(products_us))
        yield self._words.text(
            "floor", us=runs.microseconds(floor_us), time=runs.time_words(measurement), fraction=measurement.fraction
        )
        counted = self._look.counted if self._look else None
        if counted and counted.roofline and self._best:
            moved = next((one.detail for one in counted.terms if one.name == "device memory"), "")
            words = roofline_words(task.gpu, counted.roofline, moved, self._terms_of_best(self._best))
            yield doc.Picture("roofline", pictures.roofline_picture(counted.roofline), self._words.cell(words))

    def _key(self, key: tuple[tuple[str, str], ...]) -> Iterator[doc.Block]:
        yield self._words.text("cuda")
        rows_ = tuple(((doc.Code(written),), self._words.cell(meaning)) for written, meaning in key)
        yield doc.Table(("it is written", "and it says"), rows_)

    def _shape(self) -> Iterator[doc.Block]:
        look = self._look
        assert look is not None
        if look.problem:
            yield self._words.text("problem", problem=look.problem)
        for launch in look.launches:
            yield self._words.text("launch", **launch)
        if look.sizes:
            yield self._words.text("smaller", sizes=look.sizes)
        chosen = _chosen(look.touches)
        if chosen:
            yield self._words.text("requests", wasteful=WASTEFUL)
            yield doc.Items(tuple(map(self._access, chosen)))

    def _access(self, touch: TouchRecord) -> doc.Cell:
        lines = self._text.splitlines()
        line = touch.line if touch.line and touch.line <= len(lines) else None
        where = (f" Line {line}: ", doc.Code(lines[line - 1].strip())) if line else ()
        return (*self._words.linked(Access(touch).words), *where)

    def _progress(self, terms: dict[int, tuple[ModelTerm, ...]]) -> Iterator[doc.Block]:
        run = self._run
        yield self._words.text("steps")
        if len(run.attempts) > 1:
            kept = ", ".join(str(row.attempt.number) for row in runs.rows(run) if row.kept)
            says = f"Times by step; lower is better. Kept: {kept or 'none'}."
            yield doc.Picture("progress", pictures.svg_plot(run), says)
        if not run.attempts:
            yield self._words.say("No step of this run is finished.")
        if held := same_longest([found for found in terms.values() if found]):
            yield self._words.text("held", resource=held.name, us=runs.microseconds(held.time_us))

    def _terms(self) -> dict[int, tuple[ModelTerm, ...]]:
        """Of each attempt what the model says; of measured ones that were kept, by running them in the emulator."""
        made = {}
        for row in runs.rows(self._run):
            attempt = row.attempt
            if isinstance(attempt.measurement, Modelled):
                made[attempt.number] = self._modelled_terms(attempt, attempt.measurement)
            elif row.kept:
                made[attempt.number] = self._emulated_terms(attempt)
        return made

    def _emulated_terms(self, attempt: Attempt) -> tuple[ModelTerm, ...]:
        if self._look and attempt is self._best:
            return self._look.counted.terms if self._look.counted else ()
        self._say(f"running the kernel of step {attempt.number} in the emulator")
        try:
            return count_lines(self._run, attempt, self._folder.attempt(attempt.number).text(KERNEL)).terms
        except NotCountable:
            return ()

    def _costs(self) -> Iterator[doc.Block]:
        best = self._best
        assert best is not None
        terms = self._terms_of_best(best)
        if terms:
            yield self._words.text("costs")
            table = tuple(
                (
                    self._words.cell(one.name),
                    runs.microseconds(one.time_us),
                    self._words.cell(one.detail),
                    self._what_is(one),
                )
                for one in terms
            )
            yield doc.Table(("resource", "us", "counted", "what it is"), table)
        else:
            yield self._words.text("unknown")
        if self._look and self._look.counted:
            yield from self._lines(self._look.counted)
        yield doc.Fold("The finished kernel file", (doc.Source(doc.numbered(self._text), "cuda"),))

    def _what_is(self, term: ModelTerm) -> doc.Cell:
        return self._words.cell(doc.RESOURCES.get(term.name, ""))

    def _terms_of_best(self, best: Attempt) -> tuple[ModelTerm, ...]:
        measurement, counted = best.measurement, self._look.counted if self._look else None
        recorded = self._modelled_terms(best, measurement) if isinstance(measurement, Modelled) else ()
        found = recorded or (counted.terms if counted else ())
        return tuple(sorted(found, key=lambda one: -one.time_us))

    def _modelled_terms(self, attempt: Attempt, modelled: Modelled) -> tuple[ModelTerm, ...]:
        """As they are on record; of the best, with the words of today where the time is still the same."""
        counted = self._look.counted if self._look and attempt is self._best else None
        words = {(one.name, runs.microseconds(one.time_us)): one.detail for one in counted.terms} if counted else {}
        return tuple(
            replace(one, detail=words.get((one.name, runs.microseconds(one.time_us)), one.detail))
            for one in modelled.terms
        )

    def _lines(self, counted: Counted) -> Iterator[doc.Block]:
        source = self._text.splitlines()
        shares: dict[int, float] = {}
        costs: dict[int, str] = {}
        for launch in counted.launches:
            for line, one in launch.lines.items():
                if 0 < line <= len(source):
                    shares[line] = shares.get(line, 0.0) + launch.share * one.share
                    costs[line] = costs.get(line) or launch.costs.get(line, "")
        of = " Shares are of the instructions of all launches together." if len(counted.launches) > 1 else ""
        yield self._words.say(f"The lines that do most ({counted.seen}).{of}")
        shown = sorted(shares, key=lambda line: (-shares[line], line))[:_MOST_LINES]
        costly = any(costs[line] for line in shown)
        cells = []
        for line in shown:
            cell = (str(line), (doc.Code(source[line - 1].strip()),), f"{shares[line]:.0%}")
            cells.append((*cell, *([self._words.cell(costs[line])] * costly)))
        yield doc.Table(("line", "source", "instructions", *(["costs more than it needs"] * costly)), tuple(cells))


def roofline_words(gpu: str, roofline: pictures.Roofline, moved: str, terms: tuple[ModelTerm, ...]) -> str:
    """`moved`: how the bytes come about; `terms`: of the finished kernel, the longest first."""
    held, us, megabytes = _held_up(roofline, terms), runs.microseconds(roofline.floor_us), roofline.bytes / 1e6
    words, moved = doc.LESSON["roofline"], f" ({moved})" if moved else ""
    return words.format(roofline=roofline, gpu=gpu, held=held, us=us, megabytes=megabytes, moved=moved)


def _held_up(roofline: pictures.Roofline, terms: tuple[ModelTerm, ...]) -> str:
    """What takes longest: it need be neither memory nor arithmetic."""
    if not terms:
        return ""
    name, us = terms[0].name, runs.microseconds(terms[0].time_us)
    by_work = name == "tensor cores" or (name == "issue slots" and roofline.intensity >= roofline.ridge)
    key = "memory_holds" if name == "device memory" else "arithmetic_holds" if by_work else "other_holds"
    return doc.LESSON[key].format(name=name, us=us) + " "


def _chosen(touches: tuple[TouchRecord, ...]) -> list[TouchRecord]:
    """The first request for each tensor of each launch, once for reading and once for writing."""
    first: dict[tuple[int, str, bool], TouchRecord] = {}
    for one in touches:
        first.setdefault((one.launch_line, one.tensor, one.writes), one)
    return list(first.values())[:_MOST_ACCESSES]


# -- the steps, each with what was changed, why, what the referee said and what it gained --

_MOVED = 0.03  # of a term: less is not worth a line
_SAME = 0.005  # of a time: less is no difference


def step_sections(
    folder: RunFolder, run: Run, words: doc.Glossary, terms: Mapping[int, tuple[ModelTerm, ...]]
) -> Iterator[doc.Section]:
    """`terms`: of attempts by number, what the model says of them."""
    before: Attempt | None = None
    for row in runs.rows(run):
        attempt = row.attempt
        kept = "the best" if row.best else "kept" if row.kept else "not kept"
        title = f"Step {attempt.number}: {doc.STAGES[attempt.stage.value]} ({kept})"
        blocks = [*_what(folder, attempt, words), *_verdict(folder, attempt, words), *_gain(row, before, words, terms)]
        yield doc.Section(title, tuple(blocks), level=3)
        before = attempt if row.kept else before


def _what(folder: RunFolder, attempt: Attempt, words: doc.Glossary) -> Iterator[doc.Block]:
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
    yield doc.Fold(title, (doc.Source(changed, "diff"),))


def _own_words(folder: RunFolder, attempt: Attempt) -> str:
    """The whole sentence from the reply, where the record has as much of it as a table shows."""
    cut = attempt.summary.removesuffix("...")
    replies = folder.attempt(attempt.number).replies() if cut != attempt.summary else ()
    return next((own for one in replies if (own := whole_summary(one.text)).startswith(cut)), attempt.summary)


def _verdict(folder: RunFolder, attempt: Attempt, words: doc.Glossary) -> Iterator[doc.Block]:
    verdict = attempt.verdict
    if isinstance(verdict, records.Passed):
        ratios = [one.error_ratio for one in verdict.cases if one.error_ratio is not None]
        worst = f", the worst error {max(ratios):.0%} of what honest rounding allows" if ratios else ""
        cases = runs.number_of(len(verdict.cases), "case")
        yield words.say(f"Is it right? Yes: {cases} of different sizes and values{worst}.")
        return
    text = verdict_text(verdict, folder.attempt(attempt.number).find_text(KERNEL) or "")
    if isinstance(verdict, records.Unsupported):
        why = verdict.message if isinstance(verdict, records.Changed) else "it cannot be run on this machine."
        yield words.say(f"Is it right? Nobody can say here: {why}")
    else:
        ran_out = isinstance(verdict.evidence, records.Crashed) and verdict.evidence.ran_out
        lesson = doc.REJECTIONS.get("ran out" if ran_out else type(verdict.evidence).__name__, "")
        right = f" {len(verdict.cases)} cases were right before that." if verdict.cases else ""
        why = f" ({short})" if (short := runs.why_words(verdict)) else ""
        yield words.say(f"Is it right? No: {verdict.reason}{why}. {lesson}{right}")
    yield doc.Fold("The diagnosis, as the author was given it", (doc.Source(text, "text"),))


def _gain(
    row: runs.Row, before: Attempt | None, words: doc.Glossary, terms: Mapping[int, tuple[ModelTerm, ...]]
) -> Iterator[doc.Block]:
    attempt, measurement = row.attempt, row.attempt.measurement
    if measurement is None or not attempt.passed:
        return
    share = f"{measurement.fraction:.0%} of the roofline"
    text = f"Is it fast? {runs.time_words(measurement)}, {share}."
    if before is not None and before.time_us and row.time_us:
        ratio = before.time_us / row.time_us
        change = f"{ratio:.2f} times as fast as" if ratio >= 1 else f"{1 / ratio:.2f} times as slow as"
        change = "no faster than" if abs(ratio - 1.0) < _SAME else change
        text += f" That is {change} step {before.number}, the best until then ({runs.microseconds(before.time_us)} us)."
        if not row.kept:
            little = "That is too little to tell from noise, so it" if ratio >= 1.0 + _SAME else "It"
            text += f" {little} was put aside, and the next step began again from the best."
    yield words.say(text)
    if isinstance(measurement, Measured):
        others = [f"{one.name} {runs.microseconds(one.median_us)} us" for one in measurement.baselines]
        if others:
            yield words.say(f"Measured in turn with: {', '.join(others)}.")
    yield from _tuned(attempt, before, words)
    own, earlier = terms.get(attempt.number, ()), terms.get(before.number, ()) if before else ()
    if own and earlier:
        yield from _changed_terms(own, earlier, words)


def _tuned(attempt: Attempt, before: Attempt | None, words: doc.Glossary) -> Iterator[doc.Block]:
    tune = attempt.tune
    if tune is None or len(tune.tried) < 2:
        return
    times = [time_us for _, time_us in tune.tried]
    spread = f"from {runs.microseconds(min(times))} to {runs.microseconds(max(times))} us"
    took = f"took {runs.named_values(dict(tune.choice))}"
    if tune.choice == tune.tried[0][0] and min(times) < times[0]:
        took = f"kept the file's first, {runs.named_values(dict(tune.choice))}, because none was clearly better"
    text = f"The autotuner tried {len(times)} choices of the file's constants ({spread}) and {took}."
    own, other = dict(tune.choice), before.tune.choice if before and before.tune else ()
    if before and any(own.get(name, value) != value for name, value in other):
        earlier = f"Step {before.number} has {runs.named_values(dict(other))}"
        text += f" {earlier}: part of what differs from it may be due to that."
    yield words.say(text)


def same_longest(steps: Sequence[tuple[ModelTerm, ...]]) -> ModelTerm | None:
    """The resource that takes longest in every step, if it takes as long in all of them."""
    most = [max(terms, key=lambda one: one.time_us) for terms in steps]
    if len(most) < 2 or len({one.name for one in most}) > 1:
        return None
    times = [one.time_us for one in most]
    return most[-1] if max(times) - min(times) <= _MOVED * max(times) else None


def _changed_terms(
    own: tuple[ModelTerm, ...], earlier: tuple[ModelTerm, ...], words: doc.Glossary
) -> Iterator[doc.Paragraph | doc.Table]:
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
    yield words.say(f"What changed most: {verb} time for {first} ({doc.RESOURCES.get(first, 'see the table')}).")
    shown = (*moved, *([] if longest in moved else [longest]))
    details = {name: now[name].detail if name in now else "not used any more" for name in shown}
    rows = [(words.cell(name), *map(runs.microseconds, times[name]), words.cell(details[name])) for name in shown]
    yield doc.Table(("resource", "before, us", "now, us", "now"), tuple(rows))

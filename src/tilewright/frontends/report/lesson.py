"""From a run to a lesson: what is computed, how fast it could be, how the kernel does it, step by step, exercises."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from tilewright import records
from tilewright.devices.emulation.listing import WASTEFUL
from tilewright.frontends.report.document import (
    REJECTIONS,
    RESOURCES,
    STAGES,
    Block,
    Cell,
    Code,
    Document,
    Fold,
    Glossary,
    Paragraph,
    Picture,
    Section,
    Source,
    Table,
    key_to,
    numbered,
)
from tilewright.frontends.report.exercises import exercise_sections, exercises
from tilewright.frontends.report.facts import Counted, Look, NotCountable, count_lines, look_at
from tilewright.frontends.report.pictures import (
    Access,
    Roofline,
    access_picture,
    roofline_picture,
    svg_plot,
    tile_picture,
    tile_words,
)
from tilewright.frontends.report.run_report import diff_text
from tilewright.frontends.report.runs import (
    Row,
    attempts_words,
    is_measured,
    microseconds,
    number_of,
    rows,
    task_words,
    time_words,
    unmeasured_words,
    why_words,
)
from tilewright.measure.floor import peak_tflops
from tilewright.prompts.replies import whole_summary
from tilewright.prompts.verdict_text import verdict_text
from tilewright.records import LAUNCH_US, Attempt, Measured, Modelled, ModelTerm, Run, TensorSpec, TouchRecord
from tilewright.store import RunFolder
from tilewright.store.attempt_folder import KERNEL

Say = Callable[[str], None]
_MOST_ACCESSES = 6  # pictures of them
_MOST_LINES = 6  # that do most, in a table


def lesson_of(folder: RunFolder, run: Run, name: str, say: Say, place: str = "") -> Document:
    """The whole lesson. `name`: the run as the reader's commands call it, in the folder that `place` says in words.

    Emulation takes seconds, at most minutes.
    """
    return _Writer(folder, run, name, say, place).lesson()


class _Writer:
    def __init__(self, folder: RunFolder, run: Run, name: str, say: Say, place: str) -> None:
        self._folder, self._run, self._name, self._say, self._place = folder, run, name, say, place
        self._words = Glossary()
        self._best = run.best
        self._text = folder.attempt(self._best.number).text(KERNEL) if self._best else ""
        self._look: Look | None = None

    def lesson(self) -> Document:
        run = self._run
        if self._best is not None:
            self._say("running the best kernel in the emulator")
            self._look = look_at(run, self._best, self._text)
        terms = self._terms()
        sections = [
            self._opening(),
            Section("What is computed", tuple(self._task())),
            Section("How fast could it be?", tuple(self._roofline())),
            *([Section("Reading CUDA", tuple(self._key(key)))] if (key := tuple(key_to(self._text))) else []),
            *([Section("How the finished kernel shares out the work", tuple(self._shape()))] if self._look else []),
            Section("How it came about, step by step", tuple(self._progress(terms))),
            *step_sections(self._folder, run, self._words, terms),
            *([Section("Where the time goes now", tuple(self._costs()))] if self._best else []),
            *(self._practice(self._best) if self._best else ()),
        ]
        return Document(f"How {run.task.name} was made for {run.task.gpu}", tuple(sections), self._words.entries())

    # -- sections --

    def _opening(self) -> Section:
        run, best = self._run, self._best
        reached = f"the best takes {time_words(best.measurement)}" if best else "none passed"
        if best is not None and best.measurement is None:
            reached = f"the best passed, though {unmeasured_words(best)}"
        made = f"This is run {run.id}: {attempts_words(run)} by {run.settings.author}, of which {reached}."
        timed = any(one.measurement for one in run.attempts)
        modelled = "No GPU took part: each kernel was run in the emulator" + (
            ", and its time is modelled from what was counted there. Such times rank kernels; they are no measurements."
            if timed
            else ", and none was timed."
        )
        blocks = [
            self._words.say(
                "For somebody who knows Python and no CUDA. The lesson follows one kernel from its first version to "
                "its last, with what was tried in vain. Words that are linked are explained at the end."
            ),
            self._words.say(made),
        ]
        if not is_measured(run.attempts):
            blocks.append(self._words.say(modelled))
        return Section("What this is", tuple(blocks))

    def _task(self) -> Iterator[Block]:
        task = self._run.task
        if task.words.strip():
            yield self._words.say("It was asked for in these words:")
            yield self._words.quote(task.words)
        yield self._words.say("In PyTorch it is the following, and that is also what every kernel was compared with:")
        yield Source(task.reference, "python")
        rows_ = [_tensor_row(name, spec, "read") for name, spec in task.specs().items()]
        rows_ += [_tensor_row(name, spec, "written") for name, spec in task.output_specs().items()]
        yield Table(("tensor", "is", "shape", "elements are", "MB"), tuple(rows_))
        for line in task_words(task, self._best)[2:]:
            yield self._words.say(f"{line[:1].upper()}{line[1:]}." if ": " in line else f"Sizes in a call: {line}.")

    def _roofline(self) -> Iterator[Block]:
        task = self._run.task
        gpu, measurement = task.profile, self._best.measurement if self._best else None
        memory_us = task.moved_bytes / (gpu.bandwidth_gbs * 1e3) if gpu.bandwidth_gbs else 0.0
        yield self._words.say(
            f"Whatever the code looks like, each input has to be read once and each output written once: "
            f"{task.moved_bytes / 1e6:,.2f} MB. The bandwidth of {gpu.name}'s device memory is "
            f"{gpu.bandwidth_gbs:,.0f} GB/s, so that takes at least {microseconds(memory_us)} us. Starting a kernel "
            f"takes {LAUNCH_US:g} us more at the least."
        )
        if measurement is None:
            return
        floor_us, products_us = measurement.floor_us, measurement.floor_us - LAUNCH_US
        if products_us > 1.001 * memory_us:
            peak = peak_tflops(task, gpu)
            yield self._words.say(
                f"Its multiplications take longer than its bytes: about {products_us * peak / 1e3:,.3g} billion "
                f"operations at a peak of {peak:,.0f} trillion a second are {microseconds(products_us)} us."
            )
        yield self._words.say(
            f"So no kernel can take less than {microseconds(floor_us)} us: that is the roofline of this operation. The "
            f"best of this run takes {time_words(measurement)}, {measurement.fraction:.0%} of what is possible."
        )
        counted = self._look.counted if self._look else None
        if counted and counted.roofline and self._best:
            moved = next((one.detail for one in counted.terms if one.name == "device memory"), "")
            words = roofline_words(task.gpu, counted.roofline, moved, self._terms_of_best(self._best))
            yield Picture("roofline", roofline_picture(counted.roofline), self._words.cell(words))

    def _key(self, key: tuple[tuple[str, str], ...]) -> Iterator[Block]:
        yield self._words.say("CUDA is C++ with a few words more. Those that occur in the finished kernel:")
        rows_ = tuple(((Code(written),), self._words.cell(meaning)) for written, meaning in key)
        yield Table(("it is written", "and it says"), rows_)

    def _shape(self) -> Iterator[Block]:
        look = self._look
        assert look is not None
        if look.problem:
            yield self._words.say(f"The emulator could not look at all of it: {look.problem}.")
        for launch in look.launches:
            shared = f" and each block {launch.shared_bytes:,} bytes of shared memory" if launch.shared_bytes else ""
            warps = -(-launch.threads // 32)
            values = ", ".join(f"{name} = {value}" for name, value in launch.constants)
            constants = f", with {values} put in" if values else ""
            yield self._words.say(
                "One launch of ",
                Code(launch.kernel),
                f" runs {number_of(launch.blocks, 'block')} of {number_of(launch.threads, 'thread')}, that is "
                f"{number_of(warps, 'warp')} of 32. Line {launch.line} of the kernel file says so{constants}. "
                f"The compiler gave each thread {launch.registers} registers{shared}.",
            )
        if look.sizes:
            yield self._words.say(f"The pictures that follow are of a smaller call, {look.sizes}, which works alike.")
        for part in look.written:
            spec = look.specs.get(part.name)
            if spec is not None and look.launches:
                svg = tile_picture(part, spec, look.blocks)
                yield Picture(f"tile-{_plain_name(part.name)}", svg, self._words.cell(tile_words(part, spec)))
        chosen = _chosen(look.touches)
        if chosen:
            yield self._words.say(
                "A warp's 32 lanes ask for memory together. The pictures show the first such request for each tensor: "
                "which bytes each lane touches. Good requests are dense; bytes in red are moved and not used. One is "
                f"called coalesced if at most {WASTEFUL:g} times as many sectors move as could carry its bytes."
            )
        for number, touch in enumerate(chosen, start=1):
            svg = access_picture(touch, look.specs.get(touch.tensor))
            yield Picture(f"access-{number}-{_plain_name(touch.tensor)}", svg, self._access(touch))

    def _access(self, touch: TouchRecord) -> Cell:
        lines = self._text.splitlines()
        line = touch.line if touch.line and touch.line <= len(lines) else None
        where = (f" Line {line}: ", Code(lines[line - 1].strip())) if line else ()
        return (*self._words.linked(Access(touch).words), *where)

    def _progress(self, terms: dict[int, tuple[ModelTerm, ...]]) -> Iterator[Block]:
        run = self._run
        yield self._words.say(
            "Each step begins from the best kernel so far, and is kept only if it is right and faster. What is wrong "
            "is diagnosed and mended; what is slower is put aside."
        )
        if len(run.attempts) > 1:
            kept = ", ".join(str(row.attempt.number) for row in rows(run) if row.kept)
            yield Picture("progress", svg_plot(run), f"Times by step; lower is better. Kept: {kept or 'none'}.")
        if not run.attempts:
            yield self._words.say("No step of this run is finished.")
        if held := same_longest([found for found in terms.values() if found]):
            yield self._words.say(
                f"In every step {held.name} needs {microseconds(held.time_us)} us, by the model longer than anything "
                "else. The rest goes on at the same time and mostly hides behind it, so what else gets smaller shows "
                "little in the times."
            )

    def _practice(self, best: Attempt) -> Iterator[Section]:
        made = exercises(self._run, best, self._name, self._text, self._say)
        return exercise_sections(made, self._place, self._words)

    def _terms(self) -> dict[int, tuple[ModelTerm, ...]]:
        """Of each attempt what the model says; of measured ones that were kept, by running them in the emulator."""
        made = {}
        for row in rows(self._run):
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

    def _costs(self) -> Iterator[Block]:
        best = self._best
        assert best is not None
        terms = self._terms_of_best(best)
        if terms:
            yield self._words.say(
                "For each resource the time it alone would need, by the model. They overlap, so the sum is not the "
                "time; the largest is what holds the kernel up, and what a next step would have to make smaller."
            )
            table = tuple(
                (
                    self._words.cell(one.name),
                    microseconds(one.time_us),
                    *map(self._words.cell, (one.detail, RESOURCES.get(one.name, ""))),
                )
                for one in terms
            )
            yield Table(("resource", "us", "counted", "what it is"), table)
        else:
            yield self._words.say("That is not known: the emulator could not count what this kernel does.")
        if self._look and self._look.counted:
            yield from self._lines(self._look.counted)
        yield Fold("The finished kernel file", (Source(numbered(self._text), "cuda"),))

    def _terms_of_best(self, best: Attempt) -> tuple[ModelTerm, ...]:
        measurement, counted = best.measurement, self._look.counted if self._look else None
        recorded = self._modelled_terms(best, measurement) if isinstance(measurement, Modelled) else ()
        found = recorded or (counted.terms if counted else ())
        return tuple(sorted(found, key=lambda one: -one.time_us))

    def _modelled_terms(self, attempt: Attempt, modelled: Modelled) -> tuple[ModelTerm, ...]:
        """As they are on record; of the best, with the words of today where the time is still the same."""
        counted = self._look.counted if self._look and attempt is self._best else None
        words = {(one.name, microseconds(one.time_us)): one.detail for one in counted.terms} if counted else {}
        return tuple(
            replace(one, detail=words.get((one.name, microseconds(one.time_us)), one.detail)) for one in modelled.terms
        )

    def _lines(self, counted: Counted) -> Iterator[Block]:
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
        cells = tuple(
            (
                f"{line}",
                (Code(source[line - 1].strip()),),
                f"{shares[line]:.0%}",
                *([self._words.cell(costs[line])] * costly),
            )
            for line in shown
        )
        yield Table(("line", "source", "instructions", *(["costs more than it needs"] * costly)), cells)


def _tensor_row(name: str, spec: TensorSpec, role: str) -> tuple[str, ...]:
    shape = " x ".join(map(str, spec.shape)) or "one number"
    return name, role, shape, spec.dtype.value, f"{spec.storage_bytes / 1e6:,.2f}"


def roofline_words(gpu: str, found: Roofline, moved: str, terms: tuple[ModelTerm, ...]) -> str:
    """`moved`: how the bytes come about; `terms`: of the finished kernel, the longest first."""
    return (
        f"The kernel does {found.intensity:,.3g} operations for each byte it moves. Of memory and arithmetic, memory "
        f"takes longer below {found.ridge:,.3g} on {gpu}, and arithmetic above. {_held_up(found, terms)}The mark "
        f"over the dot is the roofline of this operation, {microseconds(found.floor_us)} us: the kernel reaches "
        f"{found.share_words} of it. The lines above it are what the hardware could do with the "
        f"{found.bytes / 1e6:,.3g} MB that are moved{f' ({moved})' if moved else ''}, without a launch."
    )


def _held_up(found: Roofline, terms: tuple[ModelTerm, ...]) -> str:
    """What takes longest: it need be neither memory nor arithmetic."""
    if not terms:
        return ""
    name, time_us = terms[0].name, terms[0].time_us
    if name == "device memory":
        return "Here memory holds it up. "
    if name == "tensor cores" or (name == "issue slots" and found.intensity >= found.ridge):
        return "Here arithmetic holds it up. "
    return f"Here neither holds the kernel up: what takes longest is {name}, {microseconds(time_us)} us. "


def _chosen(touches: tuple[TouchRecord, ...]) -> list[TouchRecord]:
    """The first request for each tensor of each launch, once for reading and once for writing."""
    first: dict[tuple[int, str, bool], TouchRecord] = {}
    for one in touches:
        first.setdefault((one.launch_line, one.tensor, one.writes), one)
    return list(first.values())[:_MOST_ACCESSES]


def _plain_name(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)


# -- the steps, each with what was changed, why, what the referee said and what it gained --

_MOVED = 0.03  # of a term: less is not worth a line
_SAME = 0.005  # of a time: less is no difference


def step_sections(
    folder: RunFolder, run: Run, words: Glossary, terms: Mapping[int, tuple[ModelTerm, ...]]
) -> Iterator[Section]:
    """`terms`: of attempts by number, what the model says of them."""
    before: Attempt | None = None
    for row in rows(run):
        attempt = row.attempt
        kept = "the best" if row.best else "kept" if row.kept else "not kept"
        title = f"Step {attempt.number}: {STAGES[attempt.stage.value]} ({kept})"
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
        cases = number_of(len(verdict.cases), "case")
        yield words.say(f"Is it right? Yes: {cases} of different sizes and values{worst}.")
        return
    text = verdict_text(verdict, folder.attempt(attempt.number).find_text(KERNEL) or "")
    if isinstance(verdict, records.Unsupported):
        why = verdict.message if isinstance(verdict, records.Changed) else "it cannot be run on this machine."
        yield words.say(f"Is it right? Nobody can say here: {why}")
    else:
        ran_out = isinstance(verdict.evidence, records.Crashed) and verdict.evidence.ran_out
        lesson = REJECTIONS.get("ran out" if ran_out else type(verdict.evidence).__name__, "")
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

"""From a run to a lesson: what is computed, how fast it could be, how the kernel does it, step by step, exercises."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import resources

from tilewright.devices.emulation.listing import WASTEFUL
from tilewright.frontends.report.access_pictures import Access, Look, access_picture, look_at, tile_picture, tile_words
from tilewright.frontends.report.document import (
    Block,
    Cell,
    Code,
    Entry,
    Fold,
    Lesson,
    Link,
    Paragraph,
    Picture,
    Quote,
    Section,
    Source,
    Span,
    Table,
)
from tilewright.frontends.report.exercises import Exercise, exercises
from tilewright.frontends.report.lesson_steps import TERMS, Prose, same_longest, step_sections
from tilewright.frontends.report.pictures import Roofline, roofline_picture, svg_plot
from tilewright.frontends.report.runs import (
    attempts_words,
    is_measured,
    microseconds,
    rows,
    task_words,
    time_words,
    unmeasured_words,
)
from tilewright.frontends.report.site_facts import Counted, NotCountable, count_lines
from tilewright.measure.floor import peak_tflops
from tilewright.records import LAUNCH_US, Attempt, Modelled, ModelTerm, Run, TensorSpec, TouchRecord
from tilewright.records.gpu import reached
from tilewright.store import RunFolder
from tilewright.store.attempt_folder import KERNEL

# -- a small key to CUDA for who reads Python: --

# How it is written -> the regular expression that finds it, and what it says.
_KEY: dict[str, tuple[str, str]] = {
    "//!": (r"^//!", "the launch plan, which is no CUDA: what the kernel takes and how it is started"),
    "__global__": (r"__global__", "before a function: the kernel itself, which a launch starts in every thread"),
    "__device__": (r"__device__", "before a function: called by code that runs on the GPU already"),
    "threadIdx.x": (r"\bthreadIdx\.", "the number of this thread in its block"),
    "blockIdx.x": (r"\bblockIdx\.", "the number of this block; .y and .z where blocks are numbered in a rectangle"),
    "blockDim.x, gridDim.x": (r"\b(?:blockDim|gridDim)\.", "how many threads a block has, how many blocks there are"),
    "__shared__": (r"__shared__", "an array in shared memory: one for each block, not for each thread"),
    "__syncthreads()": (r"__syncthreads\(", "a barrier: all threads of the block wait here for each other"),
    "__shfl_xor_sync(~0u, v, 16)": (
        r"__shfl_\w*sync",
        "a shuffle: each lane gets the v of another lane, here of the one whose number differs by that bit",
    ),
    "__reduce_max_sync": (r"__reduce_\w+_sync", "all lanes of a warp put a value in, and all get their maximum or sum"),
    "constexpr": (r"\bconstexpr\b", "known when the file is compiled; if constexpr leaves the other branch out whole"),
    "template <...>": (r"\btemplate\b", "written once, compiled for each type or number in the angle brackets"),
    "float2, uint4": (
        r"\b(?:u?int|float|u?short|u?char)[24]\b",
        "two or four numbers side by side (.x, .y, .z, .w), which one instruction moves",
    ),
    "__half, __nv_bfloat16": (r"__half|__nv_bfloat16", "16-bit floats; with a 2 at the end, two in one register"),
    "const float* p, p[i], *p": (r"\bconst\b[^=;]*\*", "an address; what is i elements on; what is there"),
    "reinterpret_cast<T*>(p)": (r"\breinterpret_cast\b", "the same address, read as elements of another type"),
    "__restrict__": (r"__restrict__", "a promise that no other pointer leads to the same memory"),
    "#pragma unroll": (r"#pragma unroll", "the loop that follows is written out, so that its turns can overlap"),
    "__launch_bounds__(n)": (r"__launch_bounds__", "blocks have at most n threads; registers are shared out by that"),
    "asm(...)": (r"\basm\b", "one of the GPU's own instructions; %0, %1 are the values listed after the colons"),
}  # fmt: skip


def key_to(text: str) -> Iterator[tuple[str, str]]:
    """What occurs in a kernel file, with what it means."""
    for written, (pattern, meaning) in _KEY.items():
        if re.search(pattern, text, re.MULTILINE):
            yield written, meaning


# -- the terms a lesson may use, each in a sentence or two; those that occur are printed, linked from their first use --

# Term -> what it is called in texts (a regular expression), and its meaning.
_TERMS: dict[str, list[str]] = tomllib.loads(
    resources.files("tilewright.frontends.report").joinpath("glossary.toml").read_text("utf-8")
)
_PATTERN = re.compile(
    r"(?<![\w.])(?:" + "|".join(f"(?P<t{n}>{form})" for n, (form, _) in enumerate(_TERMS.values())) + r")(?!\w)"
)


class Glossary:
    """Which terms a text has used so far."""

    def __init__(self) -> None:
        self._used: set[int] = set()

    def linked(self, text: str) -> Iterator[str | Link]:
        """The text with a link at the first use of each term."""
        done = 0
        for found in _PATTERN.finditer(text):
            number = _number(found)
            if number in self._used:
                continue
            self._used.add(number)
            if found.start() > done:
                yield text[done : found.start()]
            yield Link(found[0], _anchor(number))
            done = found.end()
        if done < len(text):
            yield text[done:]

    def entries(self) -> tuple[Entry, ...]:
        """The terms used, in the order of the alphabet; their meanings may use others, which are then among them."""
        meanings = [meaning for _, meaning in _TERMS.values()]
        known = reached(self._used, lambda number: map(_number, _PATTERN.finditer(meanings[number])))
        terms = [(number, term, meaning) for number, (term, (_, meaning)) in enumerate(_TERMS.items())]
        made = (Entry(_anchor(number), term, meaning) for number, term, meaning in terms if number in known)
        return tuple(sorted(made, key=lambda entry: entry.term.lower()))


def _number(found: re.Match[str]) -> int:
    assert found.lastgroup is not None
    return int(found.lastgroup[1:])


def _anchor(number: int) -> str:
    return f"term-{re.sub('[^a-z0-9]+', '-', list(_TERMS)[number].lower())}"


Say = Callable[[str], None]
_MOST_ACCESSES = 6  # pictures of them
_MOST_LINES = 6  # that do most, in a table


def lesson_of(folder: RunFolder, run: Run, name: str, say: Say, place: str = "") -> Lesson:
    """The whole lesson. `name`: the run as the reader's commands call it, in the folder that `place` says in words.

    Emulation takes seconds, at most minutes.
    """
    return _Writer(folder, run, name, say, place).lesson()


class _Writer:
    def __init__(self, folder: RunFolder, run: Run, name: str, say: Say, place: str) -> None:
        self._folder, self._run, self._name, self._say, self._place = folder, run, name, say, place
        self._glossary = Glossary()
        self._best = run.best
        self._text = folder.attempt(self._best.number).text(KERNEL) if self._best else ""
        self._look: Look | None = None

    def lesson(self) -> Lesson:
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
            *step_sections(self._folder, run, Prose(self._words, self._quote, self._cell), terms),
            *([Section("Where the time goes now", tuple(self._costs()))] if self._best else []),
            *self._exercises(),
        ]
        return Lesson(f"How {run.task.name} was made for {run.task.gpu}", tuple(sections), self._glossary.entries())

    def _words(self, *parts: str | Code) -> Paragraph:
        """A paragraph in which the first use of each term leads to the glossary."""
        spans: list[Span] = []
        for part in parts:
            spans += [part] if isinstance(part, Code) else self._glossary.linked(part)
        return Paragraph(tuple(spans))

    def _quote(self, text: str) -> Quote:
        return Quote(tuple(self._glossary.linked(text)))

    def _cell(self, text: str) -> Cell:
        return tuple(self._glossary.linked(text))

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
            self._words(
                "For somebody who knows Python and no CUDA. The lesson follows one kernel from its first version to "
                "its last, with what was tried in vain. Words that are linked are explained at the end."
            ),
            self._words(made),
        ]
        if not is_measured(run.attempts):
            blocks.append(self._words(modelled))
        return Section("What this is", tuple(blocks))

    def _task(self) -> Iterator[Block]:
        task = self._run.task
        if task.words.strip():
            yield self._words("It was asked for in these words:")
            yield self._quote(task.words)
        yield self._words("In PyTorch it is the following, and that is also what every kernel was compared with:")
        yield Source(task.reference, "python")
        rows_ = [_tensor_row(name, spec, "read") for name, spec in task.specs().items()]
        rows_ += [_tensor_row(name, spec, "written") for name, spec in task.output_specs().items()]
        yield Table(("tensor", "is", "shape", "elements are", "MB"), tuple(rows_))
        for line in task_words(task, self._best)[2:]:
            yield self._words(f"{line[:1].upper()}{line[1:]}." if ": " in line else f"Sizes in a call: {line}.")

    def _roofline(self) -> Iterator[Block]:
        task = self._run.task
        gpu, measurement = task.profile, self._best.measurement if self._best else None
        memory_us = task.moved_bytes / (gpu.bandwidth_gbs * 1e3) if gpu.bandwidth_gbs else 0.0
        yield self._words(
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
            yield self._words(
                f"Its multiplications take longer than its bytes: about {products_us * peak / 1e3:,.3g} billion "
                f"operations at a peak of {peak:,.0f} trillion a second are {microseconds(products_us)} us."
            )
        yield self._words(
            f"So no kernel can take less than {microseconds(floor_us)} us: that is the roofline of this operation. The "
            f"best of this run takes {time_words(measurement)}, {measurement.fraction:.0%} of what is possible."
        )
        counted = self._look.counted if self._look else None
        if counted and counted.roofline and self._best:
            moved = next((one.detail for one in counted.terms if one.name == "device memory"), "")
            words = roofline_words(task.gpu, counted.roofline, moved, self._terms_of_best(self._best))
            yield Picture("roofline", roofline_picture(counted.roofline), self._cell(words))

    def _key(self, key: tuple[tuple[str, str], ...]) -> Iterator[Block]:
        yield self._words("CUDA is C++ with a few words more. Those that occur in the finished kernel:")
        rows_ = tuple(((Code(written),), self._cell(meaning)) for written, meaning in key)
        yield Table(("it is written", "and it says"), rows_)

    def _shape(self) -> Iterator[Block]:
        look = self._look
        assert look is not None
        if look.problem:
            yield self._words(f"The emulator could not look at all of it: {look.problem}.")
        for launch in look.launches:
            shared = f" and each block {launch.shared_bytes:,} bytes of shared memory" if launch.shared_bytes else ""
            warps = -(-launch.threads // 32)
            values = ", ".join(f"{name} = {value}" for name, value in launch.constants)
            constants = f", with {values} put in" if values else ""
            yield self._words(
                "One launch of ",
                Code(launch.kernel),
                f" runs {_many(launch.blocks, 'block')} of {_many(launch.threads, 'thread')}, that is "
                f"{_many(warps, 'warp')} of 32. Line {launch.line} of the kernel file says so{constants}. "
                f"The compiler gave each thread {launch.registers} registers{shared}.",
            )
        if look.sizes:
            yield self._words(f"The pictures that follow are of a smaller call, {look.sizes}, which works alike.")
        for part in look.written:
            spec = look.specs.get(part.name)
            if spec is not None and look.launches:
                svg = tile_picture(part, spec, look.blocks)
                yield Picture(f"tile-{_plain_name(part.name)}", svg, self._cell(tile_words(part, spec)))
        chosen = _chosen(look.touches)
        if chosen:
            yield self._words(
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
        return (*self._glossary.linked(Access(touch).words), *where)

    def _progress(self, terms: dict[int, tuple[ModelTerm, ...]]) -> Iterator[Block]:
        run = self._run
        yield self._words(
            "Each step begins from the best kernel so far, and is kept only if it is right and faster. What is wrong "
            "is diagnosed and mended; what is slower is put aside."
        )
        if len(run.attempts) > 1:
            kept = ", ".join(str(row.attempt.number) for row in rows(run) if row.kept)
            yield Picture("progress", svg_plot(run), f"Times by step; lower is better. Kept: {kept or 'none'}.")
        if not run.attempts:
            yield self._words("No step of this run is finished.")
        if held := same_longest([found for found in terms.values() if found]):
            yield self._words(
                f"In every step {held.name} needs {microseconds(held.time_us)} us, by the model longer than anything "
                "else. The rest goes on at the same time and mostly hides behind it, so what else gets smaller shows "
                "little in the times."
            )

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
            yield self._words(
                "For each resource the time it alone would need, by the model. They overlap, so the sum is not the "
                "time; the largest is what holds the kernel up, and what a next step would have to make smaller."
            )
            table = tuple(
                (
                    self._cell(one.name),
                    microseconds(one.time_us),
                    *map(self._cell, (one.detail, TERMS.get(one.name, ""))),
                )
                for one in terms
            )
            yield Table(("resource", "us", "counted", "what it is"), table)
        else:
            yield self._words("That is not known: the emulator could not count what this kernel does.")
        if self._look and self._look.counted:
            yield from self._lines(self._look.counted)
        yield Fold("The finished kernel file", (Source(_numbered(self._text), "cuda"),))

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
                    costs[line] = costs.get(line) or one.costs
        of = " Shares are of the instructions of all launches together." if len(counted.launches) > 1 else ""
        yield self._words(f"The lines that do most ({counted.seen}).{of}")
        shown = sorted(shares, key=lambda line: (-shares[line], line))[:_MOST_LINES]
        costly = any(costs[line] for line in shown)
        cells = tuple(
            (f"{line}", (Code(source[line - 1].strip()),), f"{shares[line]:.0%}", *([self._cell(costs[line])] * costly))
            for line in shown
        )
        yield Table(("line", "source", "instructions", *(["costs more than it needs"] * costly)), cells)

    def _exercises(self) -> Iterator[Section]:
        if self._best is None:
            return
        made = exercises(self._run, self._best, self._name, self._text, self._say)
        if not made:
            return
        opening = self._words(
            "Each has its commands and an answer that was obtained by running them. ",
            f"Run them {self._place}. " if self._place else "",
            "The edit is made in a copy; the run stays as it is. ",
            Code("check"),
            " takes the first value of each ",
            Code("tune"),
            " line, so where the autotuner took another, ",
            Code("sed"),
            " first puts that one there.",
        )
        yield Section("Exercises", (opening,))
        for number, one in enumerate(made, start=1):
            yield Section(f"{number}. {one.title}", tuple(self._exercise(one)), level=3)

    def _exercise(self, one: Exercise) -> Iterator[Block]:
        yield self._words(one.question)
        if one.commands:
            yield Source("\n".join(one.commands), "sh")
        first, *rest = (self._words(text) for text in one.answer)
        yield Fold("Answer", (first, *([Source(one.output, "text")] if one.output else []), *rest))


# -- pieces --


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' if count != 1 else ''}"


def _numbered(text: str) -> str:
    return "".join(f"{number:4}  {line}" for number, line in enumerate(text.splitlines(keepends=True), start=1))


def _tensor_row(name: str, spec: TensorSpec, role: str) -> tuple[str, ...]:
    shape = " x ".join(map(str, spec.shape)) or "one number"
    return name, role, shape, spec.dtype.value, f"{spec.storage_bytes / 1e6:,.2f}"


def roofline_words(gpu: str, found: Roofline, moved: str, terms: tuple[ModelTerm, ...]) -> str:
    """`moved`: how the bytes come about; `terms`: of the finished kernel, the longest first."""
    return (
        f"The kernel does {found.intensity:,.3g} operations for each byte it moves. Of memory and arithmetic, memory "
        f"takes longer below {found.ridge:,.3g} on {gpu}, and arithmetic above. {_held_up(found, terms)}The roof in "
        f"the picture knows of no launch and no waiting: the kernel does {found.share_words} of what it allows "
        f"with the {found.bytes / 1e6:,.3g} MB that are moved{f' ({moved})' if moved else ''}. The percentage before "
        "the picture is of the fewest bytes and one launch."
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

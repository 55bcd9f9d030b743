"""Few and long rows, or rows in segments: every step that needs whole rows is a pass over pieces of them.

A pass has two launches. In the first, a block holds a piece of a row in registers and leaves what it comes to; in the
second, a block per row puts the pieces together. A last launch writes the elements. Where one sweep is all and leaves
numbers of rows, a block may go along a longer piece instead.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.playbook.cpp_pieces import BLOCK_REDUCE, LOAD_PAST, VECTOR
from tilewright.playbook.cpp_text import Text, indented
from tilewright.playbook.file_text import MOST_32_BIT, Fragment, KernelSignature, PlanLines, fragment, includes
from tilewright.playbook.row_kernel import RowKernel, each_element, repeats
from tilewright.playbook.row_program import Layout, ProgramInput, ProgramOutput, RowProgram
from tilewright.playbook.structures.sums import (
    CORRECTIONS,
    COUNT,
    HELPERS,
    TRIGGER,
    WAIT,
    About,
    Correction,
    Part,
    about,
    own_values,
    passes_of,
)

_HELD_BYTES = 256  # of a piece, in a thread's registers
_VAST = 1 << 28  # elements from which larger pieces pay
_TINY = 1 << 20  # elements of which none need be waited for
_COMBINING = 512  # threads that put the pieces of a row together
_WRITING = 128  # threads of a block that writes elements, a vector of every row each


def can_split(program: RowProgram) -> bool:
    """Whether one sweep is all, and its results are a few numbers per row."""
    return program.sweeps == 1 and not program.outputs_along


def pass_rows(program: RowProgram, op_line: str, looped: bool, quick: bool = True) -> Fragment:
    """`looped`: a block goes along its piece in place of holding it; only where `can_split`."""
    plan = PlanLines(program, op_line)
    kernels = _Passes(program, plan, looped, quick).kernels()
    taken = "goes along an equal, unbroken piece of a row" if looped else "holds a piece of a row in registers"
    header = (
        f"{program.name} where rows are few and long, or lie in segments: many blocks share a row.\n\nA block {taken}, "
        "reduces it, and leaves what it comes to; a second kernel, with a block for each row, puts the pieces together "
        "in f64 and in a fixed order, so runs repeat bit for bit."
    )
    if any(len(one) > 1 for one in passes_of(program)):
        header += (
            " What is summed up about the row's mean or greatest element is summed up about the piece's own at first, "
            "and corrected there: so the row is read once for both."
        )
    if program.outputs_along:
        header += " The last kernel writes the elements, from the end to the beginning: the end is still in the cache."
    return fragment(header, plan, includes(program), ["constexpr int WARPS = THREADS / 32;"], [VECTOR], *kernels)


class _Passes:
    """The kernels of one file, in the order of their launches."""

    def __init__(self, program: RowProgram, plan: PlanLines, looped: bool, quick: bool) -> None:
        self.program, self.plan, self.looped, self.quick = program, plan, looped, quick
        self.segments = program.layout is Layout.SEGMENTS
        length = program.task_inner if self.segments else program.task_cols
        self.ragged = length * program.widest.itemsize % 16 != 0  # so that a load is of one element
        self.grouped = bool(program.outputs_along and program.columns)  # whether rows are written TOGETHER
        self.helpers: list[str] = []
        self.texts: list[list[str]] = []
        self.wholes: list[Part] = []  # what is known of whole rows by now
        self.rows, self.cols = plan.sizes()
        self.pieces, self.vectors = plan.name("pieces"), plan.name("vectors")

    def kernels(self) -> list[list[str]]:
        self._plan()
        passes = passes_of(self.program)
        for number, levels in enumerate(passes):
            self._pass(levels, f"_{number + 1}" if len(passes) > 1 else "")
        if self.program.outputs_along:
            self._write()
        return [*([one] for one in dict.fromkeys(self.helpers)), *self.texts]

    def _plan(self) -> None:
        plan = self.plan
        plan.limits(self.rows, self.cols)
        inner = plan.inner() if self.segments else ""
        if self.looped:
            elements = self.program.task_rows * self.program.task_cols
            vast, tiny = elements >= _VAST, elements < _TINY
            plan.add("tune", "THREADS = 512 | 256 | 1024")
            steps = "64 | 32 | 16 | 4" if vast else "16 | 4 | 64"
            plan.add("tune", f"STEPS = {steps}", "loads of a thread and input")
            plan.add("const", f"BATCH = {2 if vast or tiny else 4}", "of them in flight together")
        else:
            plan.add("tune", "THREADS = 256 | 512 | 128")
            steps = "16 | 32 | 8 | 4 | 2" if self.ragged else "4 | 8 | 16 | 2"
            plan.add("tune", f"STEPS = {steps}", "vectors of a thread, all in flight together")
        plan.width(inner or self.cols)
        if self.segments:
            plan.add("const", f"SEGMENT = max({inner} / WIDTH, 1)", "vectors of a row that lie together")
        if not self.looped:
            held = sum(one.dtype.itemsize for one in self.program.streams)
            plan.add("need", f"STEPS * WIDTH * {held} <= {_HELD_BYTES} or STEPS == 2")
        plan.add("let", f"{self.vectors} = {self.cols} / WIDTH")
        plan.add("let", f"{self.pieces} = max(ceil_div({self.vectors}, THREADS * STEPS), 1)", "of a row")
        plan.add("need", f"{self.pieces} * {self.rows} <= {MOST_32_BIT}")
        if self.program.outputs_along:
            plan.read_once(f"{self.rows} * {self.cols}")
        if self._number == "unsigned":
            plan.add("need", f"{self.vectors} <= {MOST_32_BIT}", "so that a 32-bit division finds a segment")

    @property
    def _number(self) -> str:
        """Counts places in a row; of segments whose loads are of one element in 32 bits, or finding one takes longer
        than its load."""
        return "unsigned" if self.ragged and self.segments else "long long"

    # -- what every kernel has --

    def _kernel(self, wide: bool = False) -> RowKernel:
        """A new kernel in which the reductions of earlier passes are known."""
        kernel = RowKernel(self.program, self.quick)
        kernel.wide_sums = wide
        for one in self.wholes:
            kernel.row_known[one.index] = Text(kernel.namer.of(one.index))
        return kernel

    def _known(self, kernel: RowKernel) -> list[str]:
        """Lines that read what is known of the row."""
        return [f"const {one.type} {kernel.namer.of(one.index)} = {one.own}[row];" for one in self.wholes]

    def _signature(
        self,
        kernel: RowKernel,
        tensors: tuple[tuple[ProgramInput, ...], tuple[ProgramOutput, ...]],
        written: list[Part],
        read: list[Part],
        sizes: list[tuple[str, str]],
    ) -> KernelSignature:
        pairs = [(f"{one.type}* __restrict__ {one.own}", one.planned) for one in written]
        pairs += [(f"const {one.type}* __restrict__ {one.own}", one.planned) for one in (*read, *self.wholes)]
        program = replace(self.program, inputs=tensors[0], outputs=tensors[1])
        rest = KernelSignature.of(program, kernel.namer, [("long long cols", self.cols), *sizes])
        return KernelSignature([*(one for one, _ in pairs), *rest.declared], [*(one for _, one in pairs), *rest.given])

    def _source(self, kernel: RowKernel, one: ProgramInput) -> str:
        name = kernel.name(one.name)
        if one.spans:
            return kernel.span_pointer(one)
        start, along = kernel.row_start(one), ""
        if self.segments:
            start, along = name, " + row * SEGMENT" * one.is_whole
        return f"const auto* {name}_along = reinterpret_cast<const Vector<{one.dtype.cpp}>*>({start}){along};"

    def _target(self, kernel: RowKernel, one: ProgramOutput) -> str:
        start, along = f"{kernel.name(one.name)} + row * cols", ""
        if self.segments:
            start, along = kernel.name(one.name), " + row * SEGMENT"
        return f"auto* {kernel.target(one)} = reinterpret_cast<Vector<{one.dtype.cpp}>*>({start}){along};"

    def _at(self, one: ProgramInput | None = None) -> str:
        """Where a vector of the row is, by its place in the row."""
        if not self.segments or (one is not None and not one.is_whole):
            return "place"
        return "place / SEGMENT * rows * SEGMENT + place % SEGMENT"

    def _vector(self, kernel: RowKernel, one: ProgramInput) -> str:
        """The vector of an input at a place of the row."""
        if one.spans:
            return kernel.span_vector(one, "place")
        place = self._at(one)
        if self.looped and one.is_whole and place == "place":
            return kernel.fetched(f"{kernel.name(one.name)}_along", place)
        return f"{kernel.name(one.name)}_along[{place}]"

    def _add(self, kernel: RowKernel, text: list[str]) -> None:
        self.texts.append(text)
        reduce = BLOCK_REDUCE.replace("template <typename T, typename", "template <int WARPS, typename T, typename", 1)
        self.helpers += [*kernel.forms.helpers(), *kernel.reduction_helpers(), reduce]

    def _reads(self, kernel: RowKernel, *levels: int) -> tuple[ProgramInput, ...]:
        names = {name for level in levels for name in kernel.loaded(level, kernel.row_known)}
        return tuple(one for one in self.program.inputs if one.name in names)

    # -- pieces --

    def _pass(self, levels: tuple[int, ...], suffix: str) -> None:
        kernel = self._kernel()
        reductions = [index for level in levels for index in kernel.own_reductions(level)]
        parts = Part.of(kernel, self.plan, f"{self.rows}, {self.pieces}", reductions)
        read = self._reads(kernel, *levels)
        sizes = [("long long rows", self.rows)] * (self.segments or self.grouped) + [("int pieces", self.pieces)]
        signature = self._signature(kernel, (read, ()), parts, [], sizes)
        name = f"{self.program.name}_parts{suffix}"
        self.plan.launch(name, f"{self.pieces} * {self.rows}", "THREADS", signature.given)
        body = [*kernel.once(read), *self._part_body(kernel, read, levels, parts)]
        most = 1024 if self.looped else 512
        self.helpers += [LOAD_PAST] if any("load_past(" in line for line in body) else []
        self._add(kernel, signature.kernel(f"__launch_bounds__(THREADS, {most} / THREADS)", name, body))
        self._combine(levels, parts, suffix)

    def _part_body(
        self, kernel: RowKernel, read: tuple[ProgramInput, ...], levels: tuple[int, ...], parts: list[Part]
    ) -> list[str]:
        name = kernel.name
        held = [one for one in read if one.varies and (not one.spans or (self.looped and repeats(one)))]
        kernel.held_spans = frozenset(one.name for one in held if one.spans)
        lines = [
            TRIGGER,
            *self._which(),
            *self._known(kernel),
            *kernel.index_lines(*read),
            *(self._source(kernel, one) for one in read if one.varies),
            *kernel.partials("WARPS", levels),
        ]
        loads = [f"{name(one.name)}_held[k] = {self._vector(kernel, one)};" for one in held]
        count = "BATCH" if self.looped else "STEPS"
        loading = [f"Vector<{one.dtype.cpp}> {name(one.name)}_held[{count}];" for one in held]
        loading += self._each_step(loads)
        lines += [] if self.looped else loading
        for level in levels:
            lines += ["", *(own_values(kernel, level, "piece", COUNT) if level != levels[0] else [])]
            sweep = kernel.sweep(level, lambda one: name(one.name) + "_held[k].at[i]", "place * WIDTH + i", {})
            worked = self._each_step(each_element(sweep.element))
            if self.looped:
                loop = "for (int step = 0; step < STEPS; step += BATCH) {"
                worked = ["#pragma unroll 1", loop, *indented([*loading, *worked]), "}"]
            lines += [*sweep.before, *worked]
            lines += kernel.reduced(level, "block_reduce<WARPS>({v}, {v}_of_warps, {c})")
        self.helpers += [HELPERS] if any(COUNT in line for line in lines) else []
        place = "row * pieces + piece" if self.grouped else "blockIdx.x"
        stores = [f"{one.own}[{place}] = {kernel.namer.of(one.index)}{one.field};" for one in parts]
        return [*lines, "if (threadIdx.x == 0) {", *indented(stores), "}"]

    def _which(self) -> list[str]:
        """The block's row, and where its piece begins."""
        first = f"const {self._number} first = static_cast<{self._number}>({{}}) * THREADS * STEPS;"
        if not self.grouped:
            return [
                "const long long row = blockIdx.x / pieces, vectors = cols / WIDTH;",
                first.format("blockIdx.x % pieces"),
            ]
        return [
            "// Rows that are written together are read together, so that the end of them all is still in the cache.",
            "const unsigned together = static_cast<unsigned>(min(rows, static_cast<long long>(TOGETHER)));",
            "const unsigned group = blockIdx.x / (pieces * together) * together, within = blockIdx.x - group * pieces;",
            "const unsigned height = min(static_cast<unsigned>(rows) - group, together), piece = within / height;",
            "const long long row = group + within % height, vectors = cols / WIDTH;",
            first.format("piece"),
        ]

    def _each_step(self, inner: list[str]) -> list[str]:
        """For every vector of a thread that is held at the time."""
        step, count = ("(step + k)", "BATCH") if self.looped else ("k", "STEPS")
        place = f"const {self._number} place = first + {step} * THREADS + threadIdx.x;"
        work = [place, "if (place < vectors) {", *indented(inner), "}"]
        return ["#pragma unroll", f"for (int k = 0; k < {count}; ++k) {{", *indented(work), "}"]

    # -- pieces put together --

    def _combine(self, levels: tuple[int, ...], parts: list[Part], suffix: str) -> None:
        program, kernel = self.program, self._kernel(wide=True)
        last = levels[-1] + 1 == max(program.levels)
        wholes: list[Part] = []
        if program.outputs_along or not last:
            reductions = [index for level in levels for index in program.reductions_of(level)]
            wholes = [Part.whole(kernel, self.plan, index, self.rows) for index in reductions]
        tensors = (tuple(one for one in program.inputs if not one.varies), program.outputs_of_row) if last else ((), ())
        signature = self._signature(kernel, tensors, wholes, parts, [("int pieces", self.pieces)])
        name = f"{program.name}_whole{suffix}"
        self.plan.launch(name, self.rows, str(_COMBINING), signature.given, " pdl")
        lines = [*([TRIGGER] if program.outputs_along and last else []), WAIT, "const long long row = blockIdx.x;"]
        lines += [*self._known(kernel), *kernel.index_lines(*tensors[0])]
        lines += kernel.partials(str(_COMBINING // 32), levels)
        for level in levels:
            lines += self._combined(kernel, level, level != levels[0], parts)
        stores = [f"{one.own}[row] = {kernel.row_known[one.index].text};" for one in wholes]
        stores += kernel.row_results() if tensors[1] else []
        lines += ["if (threadIdx.x == 0) {", *indented(stores), "}"]
        self._add(kernel, signature.kernel(f"__launch_bounds__({_COMBINING})", name, lines))
        self.wholes += wholes

    def _combined(self, kernel: RowKernel, level: int, corrected: bool, parts: list[Part]) -> list[str]:
        lines: list[str] = []
        inner = ["const long long place = row * pieces + piece;"]
        for index in kernel.own_reductions(level):
            name, kind = kernel.namer.of(index), kernel.accumulator_type(index)
            one = about(self.program, index) if corrected else None
            if one is not None:
                earlier = next(part.own for part in parts if part.index == one.first)
                lines += kernel.row_scope((one.value,)) if one.value not in kernel.row_known else []
                left = self._corrected(kernel, one, Part.at("place", kind, index, parts), f"{earlier}[place]")
            else:
                left = Part.at("place", kind, index, parts)
            left = f"{kind}({left})" if kind == "double" and one is None else left
            lines.append(f"{kind} {name} = {kernel.start(index)};")
            inner.append(f"{name} = {kernel.combiner(index)}{{}}({name}, {left});")
        if any("moved_squares" in line for line in inner):
            lines.insert(0, "const long long vectors = cols / WIDTH;")
            first = "const long long first = static_cast<long long>(piece) * THREADS * STEPS;"
            inner[1:1] = [first, f"const float count = {COUNT};"]
        loop = f"for (int piece = threadIdx.x; piece < pieces; piece += {_COMBINING}) {{"
        lines += ["#pragma unroll 4", loop, *indented(inner), "}"]
        return lines + kernel.reduced(level, f"block_reduce<{_COMBINING // 32}>({{v}}, {{v}}_of_warps, {{c}})")

    def _corrected(self, kernel: RowKernel, one: About, own: str, earlier: str) -> str:
        whole = kernel.row_known[one.value].text
        self.helpers.append(CORRECTIONS[one.correction.value])
        if one.correction is Correction.MOMENTS:
            return f"moved_squares({own}, {earlier} / count, {whole}, count)"
        return f"moved_exponentials({own}, {earlier}, {whole})"

    # -- elements --

    def _write(self) -> None:
        program, kernel, plan = self.program, self._kernel(), self.plan
        number = program.sweeps - 1
        read = self._reads(kernel, number)
        if any(one.is_column for one in read):
            plan.add("tune", "TOGETHER = 16 | 8 | 4 | 1", "rows of a thread: what is the same for all is read once")
        else:
            plan.add("const", "TOGETHER = 1", "rows of a thread")
        chunks = plan.name("chunks")
        plan.add("let", f"{chunks} = ceil_div({self.vectors}, {_WRITING})")
        changed = tuple(one for one in program.inputs if one.in_place and one not in read)
        sizes = [("long long rows", self.rows), ("int chunks", chunks)]
        signature = self._signature(kernel, ((*read, *changed), program.outputs_along), [], [], sizes)
        name = f"{program.name}_elements"
        plan.launch(name, f"{chunks} * ceil_div({self.rows}, TOGETHER)", str(_WRITING), signature.given, " pdl")
        self._add(kernel, signature.kernel(f"__launch_bounds__({_WRITING})", name, self._write_body(kernel, read)))

    def _write_body(self, kernel: RowKernel, read: tuple[ProgramInput, ...]) -> list[str]:
        program, name = self.program, kernel.name
        streams = [one for one in read if one in program.streams]
        others = [one for one in read if one not in streams and not one.is_column]
        columns = [one for one in read if one.is_column]

        def load(one: ProgramInput) -> str:
            return f"{name(one.name)}_here{'' if one.is_column else '[k]'}.at[i]"

        sweep = kernel.sweep(program.sweeps - 1, load, "place * WIDTH + i", kernel.made_elements())
        loads = [
            *kernel.index_lines(*streams),
            *(self._source(kernel, one) for one in streams),
            *(f"{name(one.name)}_here[k] = {name(one.name)}_along[{self._at(one)}];" for one in streams),
        ]
        work = [
            *self._known(kernel),
            *kernel.index_lines(*others),
            *(self._source(kernel, one) for one in others if one.varies),
            *(self._target(kernel, one) for one in program.outputs_along),
            *sweep.before,
            *kernel.made_vectors(),
            *each_element(sweep.element),
            *(f"{kernel.target(one)}[{self._at()}] = {name(one.name)}_made;" for one in program.outputs_along),
        ]
        return [
            *kernel.once(read),
            WAIT,
            f"const long long block = gridDim.x - 1 - blockIdx.x, place = block % chunks * {_WRITING} + threadIdx.x;",
            "const long long first_row = block / chunks * TOGETHER;",
            "if (place >= cols / WIDTH) return;",
            *(
                f"const auto {name(one.name)}_here = "
                f"reinterpret_cast<const Vector<{one.dtype.cpp}>*>({name(one.name)})[place];"
                for one in columns
            ),
            *(f"Vector<{one.dtype.cpp}> {name(one.name)}_here[TOGETHER];" for one in streams),
            *(_each_row(loads) if streams else []),
            *_each_row(work),
        ]


def _each_row(inner: list[str]) -> list[str]:
    work = ["const long long row = first_row + k;", "if (row < rows) {", *indented(inner), "}"]
    return ["#pragma unroll", "for (int k = 0; k < TOGETHER; ++k) {", *indented(work), "}"]

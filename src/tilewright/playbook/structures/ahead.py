"""Long rows one after the other: a row in registers, and the next one already on its way to shared memory.

Loads never stop: while a row is reduced and written, the next one arrives. A block has a row, or the blocks of a
cluster share one and exchange once for every pass: what is about the row's mean or greatest element is summed up about
the block's own at first, and corrected.
"""

from __future__ import annotations

from tilewright.playbook.cpp_helpers import BLOCK_REDUCE, VECTOR
from tilewright.playbook.cpp_text import Text, indented
from tilewright.playbook.file_text import Fragment, KernelSignature, PlanLines, fragment, includes
from tilewright.playbook.row_kernel import RowKernel, each_element
from tilewright.playbook.row_program import ProgramInput, RowProgram
from tilewright.playbook.structures.about import CORRECTIONS, Correction, about, passes_of
from tilewright.playbook.structures.draft import LoopedRows, longer_rows

_HELD_BYTES = {512: 384, 1024: 192}  # of a row in a thread's registers, by the threads of a block
SHARE_BYTES = 512 * 384  # of a row in one block
_OF_BLOCK = {Correction.MOMENTS: "mean_of_block", Correction.EXPONENTIALS: "greatest_of_block"}

_COPY = """\
// Brings a vector to shared memory while the thread does other things.
template <typename T>
__device__ __forceinline__ void copy_ahead(T* to, const T* from) {
  if constexpr (sizeof(T) >= 4) {
    __pipeline_memcpy_async(to, from, sizeof(T));
  } else {
    *to = *from;  // too small for an asynchronous copy
  }
}
"""


_COPY_PART = """\
// The same for a vector of which only the columns from 0 to `cols` belong to the row.
template <typename T>
__device__ __forceinline__ void copy_ahead(Vector<T>* to, const Vector<T>* from, int column, int cols) {
  if (column >= 0 && column + WIDTH <= cols) {
    copy_ahead(to, from);
    return;
  }
  for (int i = 0; i < WIDTH; ++i) {
    if (column + i >= 0 && column + i < cols) copy_ahead(to->at + i, from->at + i);
  }
}
"""

_ELEMENTS = """\
// How many elements of the row lie in `share` vectors from `first` on.
__device__ __forceinline__ int elements_of(int first, int share, int shift, int cols) {
  return max(min((first + share) * WIDTH - shift, cols) - max(first * WIDTH - shift, 0), 0);
}
"""

_STORE_PART = """\
// Stores a vector of which only the columns from 0 to `cols` belong to the row.
template <typename T>
__device__ __forceinline__ void store(Vector<T>* to, const Vector<T>& made, int column, int cols) {
  if (column >= 0 && column + WIDTH <= cols) {
    *to = made;
    return;
  }
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) {
    if (column + i >= 0 && column + i < cols) to->at[i] = made.at[i];
  }
}
"""


def ahead_rows(program: RowProgram, op_line: str, clustered: bool, quick: bool = True) -> Fragment:
    kernel = RowKernel(program, quick)
    writer = _Ahead(kernel, clustered)
    plan = PlanLines(program, op_line)
    signature, name, longer = writer.plan(plan)
    text = signature.kernel("__launch_bounds__(THREADS)", name, writer.body())
    copies = [_COPY, _COPY_PART, _STORE_PART] if writer.shifts else [_COPY]
    helpers = [*kernel.forms.helpers(), *kernel.reduction_helpers(), BLOCK_REDUCE, *copies, *writer.helpers]
    helpers += [one for one in longer.helpers if one not in helpers]
    constants = ["constexpr int WARPS = THREADS / 32;"]
    more = ["cuda_pipeline.h"]
    if clustered:
        constants = ["namespace cg = cooperative_groups;", "", *constants]
        more.append("cooperative_groups.h")
    owner = "The blocks of a cluster share a row" if clustered else "A block has a row"
    header = (
        f"{program.name} for long rows: a row in registers, and the next one already on its way to shared memory.\n\n"
        f"{owner}, and goes on to others: every thread copies its vectors of the next row to shared memory while it "
        "works on this one, so that loads never stop. A thread only ever reads what it copied itself."
    )
    if clustered:
        header += (
            " What is summed up about the row's mean or greatest element is summed up about the block's own at first "
            "and then corrected: so the blocks exchange once, each writing to the shared memory of all."
        )
    if writer.shifts:
        header += (
            "\n\nRows that are not a whole number of 16-byte vectors begin inside one. Their vectors are those of "
            "memory, from `shift` elements before the row on; of the first and the last only its own elements count."
        )
    header += "\n\nRows too long for that are left to the second kernel, which goes along them element by element."
    pieces = [constants, [VECTOR], *([one] for one in dict.fromkeys(helpers)), text, longer.text]
    return fragment(header, plan, includes(program, *more), *pieces)


class _Ahead:
    def __init__(self, kernel: RowKernel, clustered: bool) -> None:
        self.kernel, self.program, self.clustered = kernel, kernel.program, clustered
        self.helpers: list[str] = []
        self.size = 16 // kernel.program.widest.itemsize
        plain = all(one.is_whole or not one.varies for one in self.program.inputs)
        self.shifts = self.program.task_cols % self.size != 0 and plain

    def plan(self, plan: PlanLines) -> tuple[KernelSignature, str, LoopedRows]:
        rows, cols = plan.sizes()
        vectors, share, held, walks, row_bytes = (
            plan.name(one) for one in ("vectors", "share", "held", "walks", "row_bytes")
        )
        plan.limits(rows, cols)
        plan.add("need", f"{cols} > 0" + (" and device.cc >= 90" if self.clustered else ""))
        blocks = "BLOCKS" if self.clustered else "1"
        if self.clustered:
            plan.add("tune", f"BLOCKS = {self._cluster_sizes()}", "of a cluster, which share a row")
        plan.add("tune", "THREADS = 512 | 1024")
        plan.add("tune", "WALK = 16 | 64 | 4", "rows that a block goes through, about")
        if self.shifts:
            plan.add("const", f"WIDTH = {self.size}", "elements per load")
            plan.add("const", f"SHIFTED = {cols} % WIDTH != 0", "rows begin inside a vector")
            plan.add("let", f"{vectors} = {cols} / WIDTH + (2 if SHIFTED else 0)")
        else:
            plan.width(cols)
            plan.add("let", f"{vectors} = {cols} / WIDTH")
        plan.add("let", f"{share} = ceil_div({vectors}, {blocks})")
        itemsizes = [one.dtype.itemsize for one in self.program.streams]
        plan.add("let", f"{row_bytes} = {' + '.join(f'round_up({share} * WIDTH * {one}, 16)' for one in itemsizes)}")
        most = f"{_HELD_BYTES[1024]} if THREADS == 1024 else {_HELD_BYTES[512]}"
        plan.add("const", f"HELD_BYTES = {most}", "of a row, in the registers of a thread")
        registers = f"ceil_div({share}, THREADS) * WIDTH * {sum(itemsizes)} <= HELD_BYTES"
        plan.add("let", f"{held} = {registers} and {row_bytes} + 4096 <= device.smem_block")
        last = "BLOCKS == 8 and THREADS == 512" if self.clustered else "THREADS == 512"
        plan.add("need", f"{held} or ({last})", "a row is held if any team can hold it")
        plan.add("const", f"VECTORS = ceil_div({share}, THREADS) if {held} else 1", "of a thread, each unrolled")
        plan.add("let", f"{walks} = min({rows}, max(ceil_div({rows}, WALK), device.sms / {blocks}))")
        sizes = [("long long rows", rows), ("int cols", cols), ("int share", share)]
        signature = KernelSignature.of(self.program, self.kernel.namer, sizes)
        name = f"{self.program.name}_ahead"
        attributes = (" cluster(BLOCKS)" if self.clustered else "") + f" when {held}"
        grid = f"{walks} * BLOCKS" if self.clustered else walks
        plan.launch(name, grid, f"THREADS, {row_bytes}", signature.given, attributes)
        longer = longer_rows(self.program, rows, cols, self.kernel.quick)
        longer.launch(plan, rows, "THREADS", held)
        return signature, name, longer

    def _cluster_sizes(self) -> str:
        """The smallest cluster that holds the row first."""
        row_bytes = self.program.task_cols * sum(one.dtype.itemsize for one in self.program.streams)
        best = next((blocks for blocks in (2, 4) if row_bytes <= blocks * SHARE_BYTES), 8)
        return " | ".join(str(one) for one in (best, *(other for other in (8, 4, 2) if other != best)))

    # -- kernel --

    def body(self) -> list[str]:
        kernel, streams = self.kernel, self.program.streams
        lines = ["extern __shared__ uint4 dynamic[];", "auto* room = reinterpret_cast<char*>(dynamic);"]
        for number, one in enumerate(streams):
            size = f"(share * WIDTH * {streams[number - 1].dtype.itemsize} + 15) / 16 * 16"
            lines += [f"room += {size};"] if number else []
            lines.append(f"auto* {kernel.name(one.name)}_next = reinterpret_cast<Vector<{one.dtype.cpp}>*>(room);")
        lines += self._places() + self._exchanged()
        inner = [
            *(["const int shift = static_cast<int>(row * cols % WIDTH);"] if self.shifts else []),
            "__pipeline_wait_prior(0);",
            *(f"Vector<{one.dtype.cpp}> {kernel.name(one.name)}_held[VECTORS];" for one in streams),
            *_each_vector([f"{self._held(one)} = {kernel.name(one.name)}_next[place];" for one in streams]),
            "if (const long long next = row + walks; next < rows) {",
            *indented(self._fetch("next")),
            "}",
            "",
            *kernel.index_lines(*(one for one in self.program.inputs if one not in streams)),
            *self._other_pointers(),
            *(line.replace("row * cols)", f"row * cols{self._back})") for line in self._targets()),
            *self._steps(),
            "turn ^= 1;",
        ]
        lines += ["{", *indented(self._fetch("start")), "}"]
        loop = "for (long long row = start; row < rows; row += walks) {"
        lines += ["int turn = 0;  // so that a quick warp does not write over what a slow one still reads"]
        lines += [loop, *indented(inner), "}"]
        return lines

    @property
    def _back(self) -> str:
        """From the beginning of a row to that of its first vector."""
        return " - shift" if self.shifts else ""

    def _targets(self) -> list[str]:
        return self.kernel.target_pointers(" + first" if self.clustered else "")

    @property
    def _begin(self) -> str:
        """The column of a vector's first element."""
        return f"{'(first + place)' if self.clustered else 'place'} * WIDTH{self._back}"

    def _places(self) -> list[str]:
        vectors = "(cols + WIDTH - 1) / WIDTH + SHIFTED" if self.shifts else "cols / WIDTH"
        if not self.clustered:
            return [f"const int count = {vectors};", "const long long start = blockIdx.x, walks = gridDim.x;"]
        return [
            "const auto cluster = cg::this_cluster();",
            "const int rank = cluster.block_rank(), first = rank * share;",
            "// The last blocks may have less, or nothing.",
            f"const int count = max(min(share, {vectors} - first), 0);",
            "const long long start = blockIdx.x / BLOCKS, walks = gridDim.x / BLOCKS;",
            "cluster.sync();  // every block must have begun before another writes to its shared memory",
        ]

    def _exchanged(self) -> list[str]:
        """Shared memory for exchanges between warps, and between the blocks of a cluster."""
        kernel = self.kernel
        lines = kernel.partials("2][WARPS")
        if self.clustered:
            lines += [
                f"__shared__ {kernel.accumulator_type(index)} {self._of_blocks(index)}[2][BLOCKS];"
                for index in kernel.all_reductions
            ]
        return lines

    def _of_blocks(self, index: int) -> str:
        return f"{self.kernel.namer.of(index)}_of_blocks"

    def _held(self, one: ProgramInput) -> str:
        return f"{self.kernel.name(one.name)}_held[k]"

    def _fetch(self, row: str) -> list[str]:
        """Copies of a row to shared memory, under way; `row` is the variable with its number."""
        kernel, lines = self.kernel, []
        first = " + first" if self.clustered else ""
        for one in self.program.streams:
            name = kernel.name(one.name)
            lines += [line.replace("(row)", f"({row})") for line in kernel.index_lines(one)]
            place = f"{name} + {f'{name}_row' if one.parts else row} * cols{self._back}"
            lines.append(
                f"const auto* {name}_along = reinterpret_cast<const Vector<{one.dtype.cpp}>*>({place}){first};"
            )
        names = [kernel.name(one.name) for one in self.program.streams]
        part = f", {self._begin}, cols" if self.shifts else ""
        lines += _each_vector([f"copy_ahead({name}_next + place, {name}_along + place{part});" for name in names])
        shift = [f"const int shift = static_cast<int>({row} * cols % WIDTH);"] if self.shifts else []
        return [*shift, *lines, "__pipeline_commit();"]

    def _other_pointers(self) -> list[str]:
        kernel, first = self.kernel, " + first" if self.clustered else ""
        lines = [
            f"const auto* {kernel.name(one.name)}_along = "
            f"reinterpret_cast<const Vector<{one.dtype.cpp}>*>({kernel.row_start(one)}){first};"
            for one in self.program.columns
        ]
        return [*lines, *kernel.span_pointers()]

    def _steps(self) -> list[str]:
        kernel, program, lines = self.kernel, self.program, []
        for levels in passes_of(program) if self.clustered else [(one,) for one in range(max(program.levels))]:
            for level in levels:
                lines += ["", *(self._of_block(level) if level != levels[0] else []), *self._sweep(level)]
                lines += kernel.reduced(level, "block_reduce({v}, {v}_of_warps[turn], {c})")
            lines += self._over_blocks(levels) if self.clustered else []
        if program.outputs_along:
            lines += ["", *self._sweep(program.sweeps - 1)]
        if program.outputs_of_row:
            guard = "rank == 0 && threadIdx.x == 0" if self.clustered else "threadIdx.x == 0"
            lines += ["", f"if ({guard}) {{", *indented(kernel.row_results()), "}"]
        return lines

    def _sweep(self, number: int) -> list[str]:
        kernel, program = self.kernel, self.program
        column = f"{self._begin} + i" if not self.shifts else "column"
        read = kernel.loaded(number, kernel.row_known)

        def load(one: ProgramInput) -> str:
            return f"{kernel.name(one.name)}_here.at[i]" if one.is_column else f"{self._held(one)}.at[i]"

        sweep = kernel.sweep(number, load, column, kernel.made_elements())
        inner = [
            f"const Vector<{one.dtype.cpp}> {kernel.name(one.name)}_here = {kernel.name(one.name)}_along[place];"
            for one in program.columns
            if one.name in read
        ]
        if number < program.sweeps - 1 or not program.outputs_along:
            return [*sweep.before, *_each_vector([*inner, *each_element(self._guarded(sweep.element))])]
        stores = [f"{kernel.target(one)}[place] = {kernel.name(one.name)}_made;" for one in program.outputs_along]
        if self.shifts:
            stores = [
                f"store({kernel.target(one)} + place, {kernel.name(one.name)}_made, {self._begin}, cols);"
                for one in program.outputs_along
            ]
        return [
            *sweep.before,
            *_each_vector([*inner, *kernel.made_vectors(), *each_element(sweep.element), *stores]),
        ]

    def _guarded(self, lines: list[str]) -> list[str]:
        """Of the first and the last vector, only what belongs to the row."""
        if not self.shifts:
            return lines
        column = f"const int column = {self._begin} + i;"
        return [column, "if (!SHIFTED || static_cast<unsigned>(column) < cols) {", *indented(lines), "}"]

    def _of_block(self, level: int) -> list[str]:
        """The block's own mean or greatest element, in place of the row's."""
        kernel, lines = self.kernel, []
        for one in filter(None, (about(self.program, index) for index in self.program.reductions_of(level))):
            if one.value in kernel.row_known and one.value != one.first:
                continue
            first, own = kernel.namer.of(one.first), kernel.namer.fresh(_OF_BLOCK[one.correction])
            if one.correction is Correction.MOMENTS:
                count = self._elements("first") if self.shifts else "count * WIDTH"
                lines.append(f"const float {own} = {first} / static_cast<float>(max({count}, 1));")
            else:
                lines.append(f"const float {own} = {first} == -INFINITY ? 0.0f : {first};  // inf - inf would be NaN")
            kernel.row_known[one.value] = Text(own)
        return lines

    def _elements(self, first: str) -> str:
        """How many elements of the row a block has whose vectors begin with this one."""
        if not self.shifts:
            return f"max(min(share, cols / WIDTH - {first}), 0) * WIDTH"
        self.helpers.append(_ELEMENTS)
        return f"elements_of({first}, share, shift, cols)"

    def _over_blocks(self, levels: tuple[int, ...]) -> list[str]:
        """What the blocks of the cluster come to together: each writes its own to all, and then all read at home."""
        kernel = self.kernel
        own = [index for level in levels for index in kernel.own_reductions(level)]
        pushes = [
            f"*cluster.map_shared_rank(&{self._of_blocks(index)}[turn][rank], threadIdx.x) = {kernel.namer.of(index)};"
            for index in own
        ]
        lines = ["if (threadIdx.x < BLOCKS) {", *indented(pushes), "}", "cluster.sync();"]
        for level in levels:
            for index in kernel.own_reductions(level):
                lines += self._over(index, level != levels[0])
            kernel.reduced(level, "")
        return lines

    def _over(self, index: int, corrected: bool) -> list[str]:
        kernel, name, of_blocks = self.kernel, self.kernel.namer.of(index), self._of_blocks(index)
        one = about(self.program, index) if corrected else None
        loop = "for (int block = {first}; block < BLOCKS; ++block) {{"
        if one is None:
            combined = f"  {name} = {kernel.combiner(index)}{{}}({name}, {of_blocks}[turn][block]);"
            return [f"{name} = {of_blocks}[turn][0];", "#pragma unroll", loop.format(first=1), combined, "}"]
        self.helpers.append(CORRECTIONS[one.correction.value])
        lines: list[str] = []
        if one.value != one.first:
            kernel.row_known.pop(one.value, None)
            lines += kernel.row_scope((one.value,))
        whole, earlier = kernel.row_known[one.value].text, f"{self._of_blocks(one.first)}[turn][block]"
        if one.correction is Correction.MOMENTS:
            body = [
                f"const int here = {self._elements('block * share')};",
                f"const float own = {earlier} / static_cast<float>(max(here, 1));",
                f"{name} += static_cast<float>(moved_squares({of_blocks}[turn][block], own, {whole}, here));",
            ]
        else:
            body = [
                f"const float own = {earlier};",
                f"{name} += static_cast<float>(moved_exponentials({of_blocks}[turn][block], own, {whole}));",
            ]
        return [*lines, f"{name} = 0.0f;", "#pragma unroll", loop.format(first=0), *indented(body), "}"]


def _each_vector(inner: list[str]) -> list[str]:
    place = "const int place = k * THREADS + threadIdx.x;"
    work = [place, "if (place < count) {", *indented(inner), "}"]
    return ["#pragma unroll", "for (int k = 0; k < VECTORS; ++k) {", *indented(work), "}"]

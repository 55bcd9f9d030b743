"""Rows of many megabytes in stages of shared memory, shared by blocks of the whole grid.

Pieces of all rows go round the blocks, so that each has as much to do as any other. A multiprocessor has room for a few
rows' pieces, and the more of these wait for what a row comes to, the fewer are on their way. So pieces are summed up as
they come, by warps that do nothing else; warps that write take them out of their stages before the row is known; and
what blocks come to is posted in words that say so themselves: a release waits for all that the multiprocessor stores
meanwhile, and took longer than a piece takes to come. Of 112 x 64 x 512 x 512 elements in f32, group norm took 3.71 ms
on an H200 in place of 4.19 to 4.23 by two teams of blocks that exchanged row after row. Rows of which the stages have
less than about three are better off elsewhere.
"""

from __future__ import annotations

from tilewright.playbook.cpp_pieces import BLOCK_REDUCE, COMBINERS, VECTOR
from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import Fragment, KernelSignature, PlanLines, fragment, includes
from tilewright.playbook.row_kernel import RowKernel, each_element
from tilewright.playbook.row_program import ProgramInput, RowProgram
from tilewright.playbook.structures.long_rows import LoopedRows, longer_rows
from tilewright.playbook.structures.stages import GRID_ELEMENTS, MOMENTS, POSTING, RING, Shares
from tilewright.playbook.structures.sums import own_values
from tilewright.playbook.structures.teams import BARRIERS, WARP_REDUCE

_STAGE_BYTES = 8192
_STAGES = 28  # in the 227 KB of a block
_HELD = 8  # pieces of a row that writing threads hold: 32 registers
GRID_STAGED_BYTES = _STAGE_BYTES * _STAGES  # of a row, in one block
_POSTED = ("float", "int")  # a word has 32 bits for a number
_WALK = "for (long long row = start; row < rows; row += walks) {"
_PIECES = ["#pragma unroll 1", "for (; piece < end; piece += BLOCKS) {"]
_PIECE = [
    "const int first = (piece - end + pieces) * STAGE;",
    "const int count = EVEN ? STAGE : min(STAGE, vectors - first);",
]
_TAKEN = ["__syncwarp();", "if (lane == 0) arrive(empty + at.stage);", "at.advance();"]
_NEXT_ROW = ["if (++turn == ROWS) turn = 0, phase ^= 1;"]


def can_post(program: RowProgram) -> bool:
    """Whether what blocks exchange are numbers of 32 bits."""
    kernel = RowKernel(program, quick=False)
    return all(kernel.accumulator_type(one) in _POSTED for one in kernel.all_reductions)


def grid_staged_rows(program: RowProgram, op_line: str, quick: bool = True) -> Fragment:
    kernel = RowKernel(program, quick)
    writer = _GridStages(kernel)
    plan = PlanLines(program, op_line)
    signature, name, longer = writer.plan(plan)
    text = signature.kernel("__launch_bounds__(96 + SUMMING + WRITING)", name, writer.body())
    helpers = [*kernel.forms.helpers(), COMBINERS["Sum"], *kernel.reduction_helpers(), BLOCK_REDUCE, WARP_REDUCE]
    helpers += [BARRIERS, RING, MOMENTS, GRID_ELEMENTS, POSTING]
    constants = [
        "constexpr int WARPS = THREADS / 32;",
        "constexpr int ROWS = STAGES + 2;  // more than have pieces in the ring",
        "constexpr int SHARES = (BLOCKS + 31) / 32;  // of what blocks posted, for a lane",
    ]
    pieces = [constants, [VECTOR], *([one] for one in dict.fromkeys([*helpers, *longer.helpers])), text, longer.text]
    return fragment(_header(program.name), plan, includes(program), *pieces)


def _header(name: str) -> str:
    return (
        f"{name} for long rows: pieces of a row, and of the next ones, in stages of shared memory.\n\nBlocks of the "
        "whole grid, which are all there at once, share a row, and go on to others; pieces go round the blocks. Of a "
        "block one warp sends for pieces, never more than PACE of them at a time. Some warps sum up each piece as it "
        "comes: what is about the row's mean about the thread's own at first, which is then corrected. One warp posts "
        "what the block's pieces of a row come to, one collects what all blocks posted. The rest take the pieces out "
        "of their stages, wait for what the row comes to, and write results. So several rows are under way at a time."
        "\n\nRows that are too long, or no whole number of 16-byte vectors, are left to the second kernel, which goes "
        "along them element by element."
    )


class _GridStages(Shares):
    @property
    def counts(self) -> bool:
        """Whether it matters how many elements a sum is of."""
        return any(self.corrected.values())

    # -- plan --

    def plan(self, plan: PlanLines) -> tuple[KernelSignature, str, LoopedRows]:
        rows, cols = plan.sizes()
        vectors, pieces, held, walks = (plan.name(one) for one in ("vectors", "pieces", "held", "walks"))
        size = 16 // self.program.widest.itemsize
        plan.limits(rows, cols)
        plan.add("need", f"{cols} > 0 and device.cc >= 90")
        plan.add("const", "THREADS = 512", "along a row that is not held")
        plan.add("const", f"STAGE = {_STAGE_BYTES // 16}", "vectors of a piece")
        plan.add("const", "SUMMING = 128", "threads that sum up")
        plan.add("const", "WRITING = 512", "threads that write results")
        plan.width(cols)
        plan.add("let", f"{vectors} = {cols} / WIDTH, {pieces} = ceil_div({vectors}, STAGE)")
        plan.add("tune", f"TEAMS = {self._team_counts()}", "of blocks on the whole GPU, each with rows of its own")
        plan.add("need", "TEAMS <= device.sms", "all blocks are there at once")
        plan.add("const", f"BLOCKS = max(min(device.sms / TEAMS, {pieces}), 1)", "which share a row")
        # Bytes: barriers of stages and of rows, and for each row what the warps have and what it comes to.
        beside = (1536 if self.counts else 1024) + 640 * len(self.own)
        plan.add("const", f"STAGES = (device.smem_block - {beside}) / (STAGE * 16)", "of the ring")
        plan.add("let", f"{held} = {pieces} <= BLOCKS * STAGES and WIDTH == {size}")
        plan.add("need", f"{held} or TEAMS == 1", "a row is held if any team can hold it")
        plan.add("const", f"HELD = min(ceil_div({pieces}, BLOCKS), {_HELD})", "pieces of a row in registers")
        plan.add("const", f"EVEN = 1 if {vectors} % STAGE == 0 else 0", "all pieces are whole")
        if self.spans:
            whole = " and ".join(f"{one} % (STAGE * WIDTH) == 0" for one in dict.fromkeys(self.spans.values()))
            plan.add("const", f"ALONE = EVEN if {whole} else 0", "one element of broadcast tensors for a piece")
        plan.add("tune", "PACE = 6 | 8 | 4", "pieces of a block that are on their way together")
        plan.read_once(f"{rows} * {cols}")
        plan.add("let", f"{walks} = min({rows}, TEAMS)")
        plan.add("need", f"{rows} * {pieces} <= 2000000000", "so that pieces can be counted")
        declared, given = [], []
        for one in self.own:
            given.append(plan.name(f"{self.names[one]}_of_blocks"))
            declared.append(f"unsigned long long* {self.names[one]}_of_blocks")
            plan.add("scratch", f"{given[-1]}: i64[{rows}, BLOCKS] zeroed", "words that say that they have a number")
        sizes = [("long long rows", rows), ("int cols", cols), ("int pieces", pieces)]
        rest = KernelSignature.of(self.program, self.kernel.namer, sizes)
        signature = KernelSignature([*declared, *rest.declared], [*given, *rest.given])
        name, block = f"{self.program.name}_staged", "96 + SUMMING + WRITING, STAGES * STAGE * 16"
        plan.launch(name, f"{walks} * BLOCKS", block, signature.given, f" cooperative when {held}")
        longer = longer_rows(self.program, rows, cols, self.kernel.quick)
        longer.launch(plan, rows, "THREADS", held)
        return signature, name, longer

    def _team_counts(self) -> str:
        """As many as have three rows and more in their rings first."""
        pieces = -(-self.program.task_cols * self.stream.dtype.itemsize // _STAGE_BYTES)
        return " | ".join(str(one) for one in (4, 2, 1) if 3 * pieces * one <= 132 * _STAGES or one == 1)

    # -- kernel --

    def body(self) -> list[str]:
        name = self.kernel.name(self.stream.name)
        shared = [f"__shared__ {self.kinds[one]} {self.names[one]}_of_warps[ROWS][SUMMING / 32];" for one in self.own]
        shared += [f"__shared__ {self.kinds[one]} {self.names[one]}_together[ROWS];" for one in self.own]
        return [
            "extern __shared__ __align__(128) uint4 dynamic[];  // bulk copies to other places take longer",
            f"auto* {name}_stages = reinterpret_cast<{self.vector}*>(dynamic);",
            "__shared__ unsigned long long full[STAGES], empty[STAGES], told[ROWS], known[ROWS];",
            *(["__shared__ float elements_of_warps[ROWS][SUMMING / 32];"] if self.counts else []),
            *shared,
            "const int rank = blockIdx.x % BLOCKS, vectors = cols / WIDTH, lane = threadIdx.x % 32, "
            "warp = threadIdx.x / 32;",
            "const long long start = blockIdx.x / BLOCKS, walks = gridDim.x / BLOCKS;",
            "if (threadIdx.x < STAGES) {",
            "  begin(full + threadIdx.x, 1);",
            "  begin(empty + threadIdx.x, (SUMMING + WRITING) / 32);",
            "}",
            "if (threadIdx.x < ROWS) {",
            "  begin(told + threadIdx.x, SUMMING / 32);",
            "  begin(known + threadIdx.x, 2);  // by the warps that post and collect",
            "}",
            "__syncthreads();",
            "Place at{0, 0};",
            "int piece = rank, end = 0, turn = 0, phase = 0;",
            "if (warp == 0) {",
            *indented(self._sending(name)),
            "  return;",
            "}",
            "if (warp == 1) {",
            *indented(self._posting()),
            "  return;",
            "}",
            "if (warp == 2) {",
            *indented(self._collecting()),
            "  return;",
            "}",
            "if (warp < 3 + SUMMING / 32) {",
            *indented(self._summing(name)),
            "  return;",
            "}",
            *self._writing(name),
        ]

    def _sending(self, name: str) -> list[str]:
        source = f"{name} + {f'{name}_row' if self.stream.parts else 'row'} * cols"
        each = [
            *_PIECE,
            "await_own(empty + at.stage, at.phase ^ 1);  // the first time at once",
            "if (sent < PACE) {",
            "  ++sent;",
            "} else {",
            "  await_own(full + late.stage, late.phase);",
            "  late.advance();",
            "}",
            f"expect_bytes(full + at.stage, count * sizeof({self.vector}));",
            f"bring({name}_stages + at.stage * STAGE, {name}_ahead + first, count * sizeof({self.vector}), "
            "full + at.stage);",
            "at.advance();",
        ]
        inner = [
            "end += pieces;",
            *self.kernel.index_lines(self.stream),
            f"const auto* {name}_ahead = reinterpret_cast<const {self.vector}*>({source});",
            *_PIECES,
            *indented(each),
            "}",
        ]
        return [
            "Place late{0, 0};  // the first stage that may be on its way",
            "int sent = 0;",
            _WALK.replace("row < rows", "lane == 0 && row < rows"),
            *indented(inner),
            "}",
        ]

    def _summing(self, name: str) -> list[str]:
        """What the block's pieces of a row come to, by warps."""
        kernel, names = self.kernel, self.names
        read: set[str] = set().union(*(kernel.loaded(level, kernel.row_known) for level in self.levels))
        load = f"{name}_held[k] = {name}_stages[at.stage * STAGE + within];"
        some = "min(max(count - begun + 31, 0) / 32, STAGE / SUMMING)"
        each = [
            *_PIECE,
            *self._alone(read),
            "await_own(full + at.stage, at.phase);",
            f"{self.vector} {name}_held[STAGE / SUMMING];",
            *self._each_vector([load]),
            *_TAKEN,
            *([f"const float elements = (EVEN ? STAGE / SUMMING : {some}) * WIDTH;"] if self.counts else []),
        ]
        for level in self.levels:
            each += ["", *(own_values(kernel, level, "thread", "fmaxf(elements, 1.0f)") if level else [])]
            before, loads, element = self._sweep(level, {})
            inner = [*loads, *each_element(element)]
            each += [*before, *self._each_vector(inner), *kernel.reduced(level, "")]
        before, after = [], []
        for one in self.plain:
            combiner = f"{kernel.combiner(one)}{{}}"
            before.append(f"{self.kinds[one]} {names[one]}_of_row = {kernel.start(one)};")
            each.append(f"{names[one]}_of_row = {combiner}({names[one]}_of_row, {names[one]});")
            after.append(f"const auto {names[one]} = warp_reduce({names[one]}_of_row, {combiner});")
        for how in filter(None, self.corrected.values()):
            first, second, row = names[how.first], names[how.second], f"{names[how.second]}_of_row"
            before.append(f"Moments {row}{{0.0f}};")
            each.append(f"if (piece - BLOCKS < end - pieces) {row}.pivot = mean_of_first_lane({first}, elements);")
            each.append(f"{row}.add({first}, {second}, elements);")
            after += [f"float {first}, {second};", f"{row}.finish({first}, {second}, elements_of_warp);"]
            del kernel.row_known[how.value]  # the thread's own mean
        told = [f"{names[one]}_of_warps[turn][thread / 32] = {names[one]};" for one in self.own]
        if self.counts:
            before.append("float elements_of_row = 0.0f;  // of the thread")
            each.append("elements_of_row += elements;")
            all = "EVEN ? elements_of_row * 32 : warp_reduce(elements_of_row, Sum{})"
            after.insert(0, f"const float elements_of_warp = {all};")
            told.append("elements_of_warps[turn][thread / 32] = elements_of_warp;")
        inner = [
            "end += pieces;",
            *self._pointers(read),
            *before,
            *_PIECES,
            *indented(each),
            "}",
            *after,
            "if (lane == 0) {",
            *indented([*told, "arrive(told + turn);"]),
            "}",
            *_NEXT_ROW,
        ]
        begun = "const int begun = thread / 32 * (STAGE * 32 / SUMMING) + lane;  // its first vector of a piece"
        return ["const int thread = threadIdx.x - 96;", begun, _WALK, *indented(inner), "}"]

    def _posting(self) -> list[str]:
        """What the warps of the block come to, to the other blocks."""
        names = self.names
        inner = ["await_own(told + turn, phase);"]
        if self.counts:
            inner.append("const float elements = lane < SUMMING / 32 ? elements_of_warps[turn][lane] : 0.0f;")
        for one in self.own:
            own = f"lane < SUMMING / 32 ? {names[one]}_of_warps[turn][lane] : {self.kernel.start(one)}"
            inner.append(f"{self.kinds[one]} {names[one]} = {own};")
        inner += self.put_together("elements", "warp_reduce(elements, Sum{})")
        posts = [f"post({names[one]}_of_blocks + row * BLOCKS + rank, {names[one]});" for one in self.own]
        inner += ["if (lane == 0) {", *indented([*posts, "arrive(known + turn);"]), "}", "__syncwarp();", *_NEXT_ROW]
        return [_WALK, *indented(inner), "}"]

    def _collecting(self) -> list[str]:
        """What all blocks come to, for the warps that write."""
        names = self.names
        words = [f"{names[one]}_words" for one in self.own]
        have = " & ".join(f"{one}[k]" for one in words)
        reads = [
            f"{word}[k] = posted({names[one]}_of_blocks + row * BLOCKS + block);"
            for word, one in zip(words, self.own, strict=True)
        ]
        asked = [
            "are_there = true;",
            "#pragma unroll",
            "for (int k = 0; k < SHARES; ++k) {",
            "  const int block = min(k * 32 + lane, BLOCKS - 1);",
            *indented(reads),
            "}",
            "#pragma unroll",
            f"for (int k = 0; k < SHARES; ++k) are_there = are_there && ({have} & 1);",
        ]
        before, each, after = self._of_blocks()
        known = [f"{names[one]}_together[turn] = {names[one]};" for one in self.own]
        inner = [
            "end += pieces;",
            "await_own(told + turn, phase);",
            *(f"unsigned long long {one}[SHARES];" for one in words),
            "bool are_there;",
            "do {",
            *indented(asked),
            "} while (!__all_sync(~0u, are_there));",
            *before,
            "#pragma unroll",
            "for (int k = 0; k < SHARES; ++k) {",
            "  const int block = k * 32 + lane;",
            "  if (block < BLOCKS) {",
            *indented(each, 2),
            "  }",
            "}",
            *after,
            "if (lane == 0) {",
            *indented([*known, "arrive(known + turn);"]),
            "}",
            "__syncwarp();",
            *_NEXT_ROW,
        ]
        return [_WALK, *indented(inner), "}"]

    def _of_blocks(self) -> tuple[list[str], list[str], list[str]]:
        """What lanes have of the blocks, put together: before their loop, in it and after it."""
        before: list[str] = []
        each: list[str] = []
        after: list[str] = []
        if self.counts:
            before.append("const float elements = elements_of(lane, end, pieces, vectors);")
            each.append("const float elements_there = elements_of(block, end, pieces, vectors);")
        for one in self.plain:
            name, combiner = self.names[one], f"{self.kernel.combiner(one)}{{}}"
            before.append(f"{self.kinds[one]} {name} = {self.kernel.start(one)};")
            each.append(f"{name} = {combiner}({name}, {self._posted(one)});")
            after.append(f"{name} = warp_reduce({name}, {combiner});")
        for how in filter(None, self.corrected.values()):
            first, second, row = self.names[how.first], self.names[how.second], f"{self.names[how.second]}_of_row"
            before.append(f"Moments {row}{{mean_of_first_lane({self._posted(how.first, '0')}, elements)}};")
            each.append(f"{row}.add({self._posted(how.first)}, {self._posted(how.second)}, elements_there);")
            after += [f"float {first}, {second};", f"{row}.finish({first}, {second}, cols);"]
        return before, each, after

    def _posted(self, one: int, place: str = "k") -> str:
        return f"number_in<{self.kinds[one]}>({self.names[one]}_words[{place}])"

    def _writing(self, name: str) -> list[str]:
        """Pieces of a row are held in registers until it is known what the row comes to."""
        kernel, program = self.kernel, self.program
        read = kernel.loaded(program.sweeps - 1, kernel.row_known)
        before, loads, element = self._sweep(program.sweeps - 1, kernel.made_elements())
        spans = [kernel.name(one) for one in self.spans if one in read]
        loads += [f"const float {one}_here = {one}_alone[k / EACH];" for one in spans]
        stores = [f"{kernel.target(one)}[place] = {kernel.name(one.name)}_made;" for one in program.outputs_along]
        load = f"{name}_held[h * EACH + k] = {name}_stages[at.stage * STAGE + begun + k * 32];"
        taken = [
            *(line.replace("piece", "piece + h * BLOCKS", 1) for line in _PIECE[:1]),
            *_PIECE[1:],
            *(one.removeprefix("const float ").replace("_here", "_alone[h]", 1) for one in self._alone(read)),
            "await_own(full + at.stage, at.phase);",
            "#pragma unroll",
            "for (int k = 0; k < EACH; ++k) {",
            f"  if (EVEN || begun + k * 32 < count) {load}",
            "}",
            *_TAKEN,
        ]
        place = "const int place = (piece + k / EACH * BLOCKS - end + pieces) * STAGE + begun + k % EACH * 32;"
        work = [*kernel.made_vectors(), *loads, *each_element(element), *stores]
        each = [
            *(f"float {one}_alone[HELD];" for one in spans),
            f"{self.vector} {name}_held[HELD * EACH];",
            "#pragma unroll",
            "for (int h = 0; h < HELD; ++h) {",
            "  if (piece + h * BLOCKS < end) {",
            *indented(taken, 2),
            "  }",
            "}",
            "await_own(known + turn, phase);",
            *(f"const {self.kinds[one]} {self.names[one]} = {self.names[one]}_together[turn];" for one in self.own),
            *before,
            "#pragma unroll",
            "for (int k = 0; k < HELD * EACH; ++k) {",
            f"  {place}",
            "  if (piece + k / EACH * BLOCKS < end && (EVEN || place < vectors)) {",
            *indented(work, 2),
            "  }",
            "}",
        ]
        if program.outputs_of_row:
            each += ["if (rank == 0 && thread == 0 && piece - BLOCKS < end - pieces) {"]
            each += [*indented(kernel.row_results()), "}"]
        inner = [
            "end += pieces;",
            *self._pointers(read),
            *kernel.target_pointers(),
            "#pragma unroll 1",
            "for (; piece < end; piece += HELD * BLOCKS) {",
            *indented(each),
            "}",
            "piece -= (piece - end) / BLOCKS * BLOCKS;",
            *_NEXT_ROW,
        ]
        begun = "const int begun = thread / 32 * EACH * 32 + lane;  // its first vector of a piece"
        first = ["constexpr int EACH = STAGE / WRITING;", "const int thread = threadIdx.x - 96 - SUMMING;", begun]
        return [*first, _WALK, *indented(inner), "}"]

    def _pointers(self, read: set[str]) -> list[str]:
        """Where the row begins in what is read besides the stages."""
        kernel = self.kernel
        others = [one for one in self.program.inputs if one is not self.stream and one.name in read]
        lines = kernel.index_lines(*others)
        for one in others:
            if one.spans:
                lines.append(kernel.span_pointer(one))
            elif one.is_column:
                start = f"reinterpret_cast<const Vector<{one.dtype.cpp}>*>({kernel.row_start(one)})"
                lines.append(f"const auto* {kernel.name(one.name)}_along = {start};")
        return lines

    def _alone(self, read: set[str]) -> list[str]:
        text = "const float {0}_here = ALONE ? {0}_along[first * WIDTH / {1}] : 0.0f;"
        return [text.format(self.kernel.name(one), span) for one, span in self.spans.items() if one in read]

    def _load(self, one: ProgramInput) -> str:
        kernel = self.kernel
        if one.name in self.spans:
            apart = kernel.span_load(one, "place * WIDTH + i")
            return f"(ALONE ? {kernel.name(one.name)}_here : {apart})"
        return f"{kernel.name(one.name)}_{'here.at[i]' if one.is_column else 'held[k].at[i]'}"

    def _sweep(self, number: int, made: dict[str, str]) -> tuple[list[str], list[str], list[str]]:
        """A pass over what the thread holds: what comes before, what is loaded for each vector, and each element."""
        kernel = self.kernel
        read = kernel.loaded(number, kernel.row_known)
        sweep = kernel.sweep(number, self._load, "place * WIDTH + i", made)
        loads = [
            f"const Vector<{one.dtype.cpp}> {kernel.name(one.name)}_here = {kernel.name(one.name)}_along[place];"
            for one in self.program.columns
            if one.name in read
        ]
        return sweep.before, loads, sweep.element

    def _each_vector(self, inner: list[str]) -> list[str]:
        """Something done for every vector of a piece that a summing thread has: those of a warp are neighbours."""
        place = ["const int place = first + within;"] if any("place" in line for line in inner) else []
        work = ["const int within = begun + k * 32;", "if (EVEN || within < count) {", *indented([*place, *inner]), "}"]
        return ["#pragma unroll", "for (int k = 0; k < STAGE / SUMMING; ++k) {", *indented(work), "}"]

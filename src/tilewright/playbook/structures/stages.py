"""A cluster of blocks shares a row, whose stages are brought by bulk copies while earlier ones are used."""

from __future__ import annotations

from tilewright.playbook.cpp_pieces import BLOCK_REDUCE, COMBINERS, VECTOR
from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import Fragment, KernelSignature, PlanLines, fragment, includes
from tilewright.playbook.row_kernel import RowKernel, each_element
from tilewright.playbook.row_program import ProgramInput, RowProgram
from tilewright.playbook.structures.ahead import OWNERS
from tilewright.playbook.structures.long_rows import LoopedRows, longer_rows
from tilewright.playbook.structures.sums import Correction, about, own_values, passes_of
from tilewright.playbook.structures.teams import BARRIERS, MESSAGES, WARP_REDUCE, Team, can_meet
from tilewright.playbook.templates import sections
from tilewright.records import DType

_CUDA = sections("structures/stage_helpers")

RING = _CUDA["ring"]
MOMENTS = _CUDA["moments"]
CLUSTER_ELEMENTS = _CUDA["cluster_elements"]
GRID_ELEMENTS = _CUDA["grid_elements"]
POSTING = _CUDA["posting"]


class Shares:
    """The sums of one pass over a row of which many have a share; tensors with one element for many columns."""

    def __init__(self, kernel: RowKernel) -> None:
        self.kernel, self.program = kernel, kernel.program
        (self.levels,) = passes_of(kernel.program)
        self.own = [index for level in self.levels for index in kernel.own_reductions(level)]
        second = set(kernel.own_reductions(self.levels[1])) if len(self.levels) > 1 else set()
        self.corrected = {one: about(kernel.program, one) if one in second else None for one in self.own}
        self.names = {one: kernel.namer.of(one) for one in self.own}
        self.kinds = {one: kernel.accumulator_type(one) for one in self.own}
        (self.stream,) = kernel.program.streams
        self.vector = f"Vector<{self.stream.dtype.cpp}>"
        # Tensors with one element for so many columns, by the constant that says how many.
        self.spans: dict[str, str] = {}
        for one in kernel.program.inputs:
            if len(one.spans) == 1 and one.spans[0].divisor and not one.spans[0].modulus and one.dtype is DType.F32:
                self.spans[one.name] = kernel.program.span_constants[one.spans[0].divisor]
        kernel.held_spans = frozenset(self.spans)

    @property
    def plain(self) -> list[int]:
        """The reductions that are put together as they are."""
        pairs = [how for how in self.corrected.values() if how is not None]
        return [one for one in self.own if not any(one in (how.first, how.second) for how in pairs)]

    def put_together(self, count: str, total: str) -> list[str]:
        """What lanes have, put together: `count` elements are a lane's, and `total` those of all."""
        lines: list[str] = []
        for one in self.plain:
            lines.append(f"{self.names[one]} = warp_reduce({self.names[one]}, {self.kernel.combiner(one)}{{}});")
        for how in filter(None, self.corrected.values()):
            first, second, own = self.names[how.first], self.names[how.second], f"{self.names[how.second]}_moments"
            lines += [
                f"Moments {own}{{mean_of_first_lane({first}, {count})}};",
                f"{own}.add({first}, {second}, {count});",
                f"{own}.finish({first}, {second}, {total});",
            ]
        return lines


# -- long rows held by the blocks of a cluster, each warp of which goes on as soon as it can --
# As `ahead`, with three kinds of warps. One sends for rows, stage by stage, by bulk copies: stages form a ring in
# shared memory, and of those on their way there are never more than PACE, or quick multiprocessors hold up those
# that a whole cluster waits for. One exchanges with the other blocks. The rest hold the row; they never wait for
# each other, but for a stage that comes and for what the row comes to. Of 112 x 64 x 512 x 512 elements in f32,
# instance norm took 3.7 ms on an H200 in place of 3.9.


_HELD_BYTES = 256  # of a row, in the registers of a thread: with two further warps it has 96 registers
_HOLDERS = 512
STAGED_BYTES = _HOLDERS * _HELD_BYTES  # of a row, in one block


def can_stage(program: RowProgram) -> bool:
    """Whether a row is one run of memory, its sums need one exchange, and what blocks exchange are plain numbers."""
    one = program.streams[0] if len(program.streams) == 1 else None
    if one is None or one.dtype.itemsize != program.widest.itemsize or not program.outputs_along:
        return False
    found = (about(program, index) for index in program.reductions)
    moments = all(each is None or each.correction is Correction.MOMENTS for each in found)
    return moments and len(passes_of(program)) == 1 and can_meet(program)


def staged_rows(program: RowProgram, op_line: str, quick: bool = True) -> Fragment:
    kernel = RowKernel(program, quick)
    writer = _Staged(kernel)
    plan = PlanLines(program, op_line)
    signature, name, longer = writer.plan(plan)
    text = signature.kernel("__launch_bounds__(THREADS + 64)", name, writer.body())
    helpers = [*kernel.forms.helpers(), COMBINERS["Sum"], *kernel.reduction_helpers(), BLOCK_REDUCE, WARP_REDUCE]
    helpers += [BARRIERS, RING, MOMENTS, CLUSTER_ELEMENTS, MESSAGES]
    constants = ["namespace cg = cooperative_groups;", "", "constexpr int WARPS = THREADS / 32;"]
    pieces = [constants, [VECTOR], *([one] for one in dict.fromkeys([*helpers, *longer.helpers])), text, longer.text]
    return fragment(_header(program.name), plan, includes(program, "cooperative_groups.h"), *pieces)


def _header(name: str) -> str:
    return (
        f"{name} for long rows: a row in registers, and the next ones on their way to shared memory at a pace.\n\n"
        f"{OWNERS[Team.CLUSTER]} on to others. One warp sends for them, stage by stage: stages of a row go round the "
        "blocks, and a ring of stages is all of shared memory. Never more than PACE of a block are on their way: "
        "enough for memory to be busy, and not so much that quick blocks hold up those that all wait for. Another warp "
        "exchanges with the other blocks, once for a row: what is summed up about the row's mean is summed up about "
        "the warp's own at first and then corrected. So warps that hold a row never wait for each other.\n\n"
        "Rows that are too long, or no whole number of 16-byte vectors, are left to the second kernel, which goes "
        "along them element by element."
    )


class _Staged(Shares):
    # -- plan --

    def plan(self, plan: PlanLines) -> tuple[KernelSignature, str, LoopedRows]:
        rows, cols = plan.sizes()
        vectors, rounds, held, walks = (plan.name(one) for one in ("vectors", "rounds", "held", "walks"))
        size = 16 // self.program.widest.itemsize
        plan.limits(rows, cols)
        plan.add("need", f"{cols} > 0 and device.cc >= 90")
        plan.add("const", f"THREADS = {_HOLDERS}", "that hold a row; beside them there are two warps")
        plan.add("const", "DEEP = 2", "vectors of each in a stage")
        plan.add("const", "STAGE = THREADS * DEEP")
        plan.width(cols)
        plan.add("let", f"{vectors} = {cols} / WIDTH")
        plan.add("tune", "BLOCKS = 8 | 4 | 2", "of a cluster, which share a row")
        plan.add("tune", "WALK = 8 | 16 | 4", "rows that a block goes through, about")
        plan.add("let", f"{rounds} = ceil_div({vectors}, BLOCKS * STAGE)", "stages of a block in a row")
        plan.add("let", f"{held} = {rounds} * DEEP * 16 <= {_HELD_BYTES} and WIDTH == {size}")
        plan.add("need", f"{held} or BLOCKS == 8", "a row is held if any team can hold it")
        plan.add("const", f"ROUNDS = {rounds} if {held} else 1", "each unrolled")
        plan.add("const", f"EVEN = 1 if {vectors} % (BLOCKS * STAGE) == 0 else 0", "all stages are full")
        if self.spans:
            whole = " and ".join(f"{one} % (THREADS * WIDTH) == 0" for one in dict.fromkeys(self.spans.values()))
            plan.add("const", f"ALONE = EVEN if {whole} else 0", "one element of broadcast tensors for all threads")
        plan.add("const", "STAGES = (device.smem_block - 8192) / (STAGE * 16)", "of the ring")
        plan.add("tune", "PACE = 4 | 3", "stages of a block that are on their way together")
        plan.read_once(f"{rows} * {cols}")
        plan.add("let", f"{walks} = min({rows}, max(ceil_div({rows}, WALK), device.sms / BLOCKS))")
        signature = KernelSignature.of(self.program, self.kernel.namer, [("long long rows", rows), ("int cols", cols)])
        name = f"{self.program.name}_staged"
        block = "THREADS + 64, STAGES * STAGE * 16"
        plan.launch(name, f"{walks} * BLOCKS", block, signature.given, f" cluster(BLOCKS) when {held}")
        longer = longer_rows(self.program, rows, cols, self.kernel.quick)
        longer.launch(plan, rows, "THREADS", held)
        return signature, name, longer

    # -- kernel --

    def body(self) -> list[str]:
        name = self.kernel.name(self.stream.name)
        shared = [f"__shared__ {self.kinds[one]} {self.names[one]}_of_warps[2][WARPS];" for one in self.own]
        shared += [f"__shared__ {self.kinds[one]} {self.names[one]}_together[2];" for one in self.own]
        shared += [f"__shared__ {self.kinds[one]} {self.names[one]}_of_blocks[2][BLOCKS];" for one in self.own]
        begun = ["begin(told + threadIdx.x, WARPS);", "begin(known + threadIdx.x, 1);"]
        begun.append("begin(met + threadIdx.x, 1 + BLOCKS);")
        return [
            "extern __shared__ __align__(128) uint4 dynamic[];  // bulk copies to other places take longer",
            f"auto* {name}_stages = reinterpret_cast<{self.vector}*>(dynamic);",
            "const auto cluster = cg::this_cluster();",
            "const int rank = cluster.block_rank(), vectors = cols / WIDTH;",
            "const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;",
            "const long long start = blockIdx.x / BLOCKS, walks = gridDim.x / BLOCKS;",
            "__shared__ unsigned long long full[STAGES], empty[STAGES], told[2], known[2], met[2];",
            "__shared__ float elements_of_warps[WARPS];",
            *shared,
            "if (threadIdx.x < STAGES) {",
            "  begin(full + threadIdx.x, 1);",
            "  begin(empty + threadIdx.x, WARPS);",
            "}",
            "if (threadIdx.x < 2) {",
            *indented(begun),
            "}",
            "const int first = rank * STAGE + threadIdx.x;",
            "float elements = ROUNDS * DEEP * WIDTH;  // of the thread",
            "if (!EVEN && warp < WARPS) {",
            "  elements = 0.0f;",
            *indented(self._each_vector(["elements += WIDTH;"])),
            "}",
            "const float elements_of_warp = EVEN ? elements * 32 : warp_reduce(elements, Sum{});",
            "if (lane == 0 && warp < WARPS) elements_of_warps[warp] = elements_of_warp;",
            "cluster.sync();  // every block must have begun before another sends to it",
            "if (warp == WARPS) {",
            *indented(self._sending(name)),
            "  return;",
            "}",
            "int turn = 0, phase = 0;  // two rows are under way at most",
            "if (warp > WARPS) {",
            *indented(self._exchanging()),
            "  return;",
            "}",
            *self._holding(name),
        ]

    def _sending(self, name: str) -> list[str]:
        """What one lane of the first further warp does: it sends for every stage of every row of the block."""
        source = f"{name} + {f'{name}_row' if self.stream.parts else 'row'} * cols"
        each = [
            "const int place = (round * BLOCKS + rank) * STAGE, length = EVEN ? STAGE : min(STAGE, vectors - place);",
            "if (length <= 0) break;",
            "await_own(empty + at.stage, at.phase ^ 1);  // the first time at once",
            "if (sent < PACE) {",
            "  ++sent;",
            "} else {",
            "  await_own(full + late.stage, late.phase);",
            "  late.advance();",
            "}",
            f"expect_bytes(full + at.stage, length * sizeof({self.vector}));",
            f"bring({name}_stages + at.stage * STAGE, {name}_ahead + place, length * sizeof({self.vector}), "
            "full + at.stage);",
            "at.advance();",
        ]
        return [
            "Place at{0, 0}, late{0, 0};  // the next stage to send for, and the first that may be on its way",
            "int sent = 0;",
            "for (long long row = start; lane == 0 && row < rows; row += walks) {",
            *indented(self.kernel.index_lines(self.stream)),
            f"  const auto* {name}_ahead = reinterpret_cast<const {self.vector}*>({source});",
            "#pragma unroll 1",
            "  for (int round = 0; round < ROUNDS; ++round) {",
            *indented(each, 2),
            "  }",
            "}",
        ]

    def _exchanging(self) -> list[str]:
        """What the other does: the sums of warps are put together, and then those of blocks."""
        names = self.names
        lines = ["const float elements_here = lane < WARPS ? elements_of_warps[lane] : 0.0f;"]
        lines += ["const float elements_of_block = warp_reduce(elements_here, Sum{});"]
        inner = ["await_own(told + turn, phase);"]
        for one in self.own:
            own, start = f"{names[one]}_of_warps[turn][lane]", self.kernel.start(one)
            inner.append(f"{self.kinds[one]} {names[one]} = lane < WARPS ? {own} : {start};")
        inner += self.put_together("elements_here", "elements_of_block")
        inner += self._sent()
        inner += self._of_blocks()
        known = [f"{names[one]}_together[turn] = {names[one]};" for one in self.own]
        inner += ["if (lane == 0) {", *indented([*known, "arrive(known + turn);"]), "}", "__syncwarp();"]
        inner += ["phase ^= turn;", "turn ^= 1;"]
        return [*lines, "for (long long row = start; row < rows; row += walks) {", *indented(inner), "}"]

    def _sent(self) -> list[str]:
        """By messages between the blocks of a cluster."""
        size = " + ".join(f"sizeof({self.names[one]})" for one in self.own)
        sends = [
            f"send(&{self.names[one]}_of_blocks[turn][rank], {self.names[one]}, met + turn, lane);" for one in self.own
        ]
        return [
            f"if (lane == 0) expect_bytes(met + turn, BLOCKS * ({size}));",
            "if (lane < BLOCKS) {",
            *indented([*sends, "arrive_in(lane, met + turn);"]),
            "}",
            "await(met + turn, phase);",
        ]

    def _of_blocks(self) -> list[str]:
        """What blocks left, by lanes that have some each."""
        before, each, after = [], [], []
        for one in self.plain:
            name, combiner = self.names[one], f"{self.kernel.combiner(one)}{{}}"
            before.append(f"{name} = {self.kernel.start(one)};")
            each.append(f"{name} = {combiner}({name}, {self._left(one)});")
            after.append(f"{name} = warp_reduce({name}, {combiner});")
        for how in filter(None, self.corrected.values()):
            first, second, row = self.names[how.first], self.names[how.second], f"{self.names[how.second]}_of_row"
            mean = f"{self._left(how.first, '0')} / elements_of(0, vectors)"
            before.append(f"Moments {row}{{pivot_of({mean})}};")
            each.append(f"const {self.kinds[how.second]} {second}_left = {self._left(how.second)};")
            each.append(f"{row}.add({self._left(how.first)}, {second}_left, elements_of(block, vectors));")
            after.append(f"{row}.finish({first}, {second}, cols);")
        loop = "for (int block = lane; block < BLOCKS; block += 32) {"
        return [*before, "#pragma unroll", loop, *indented(each), "}", *after]

    def _left(self, one: int, block: str = "block") -> str:
        return f"{self.names[one]}_of_blocks[turn][{block}]"

    def _holding(self, name: str) -> list[str]:
        kernel, program = self.kernel, self.program
        received = [
            "await_own(full + at.stage, at.phase);",
            "#pragma unroll",
            "for (int k = 0; k < DEEP; ++k) {",
            "  const int place = first + round * BLOCKS * STAGE + k * THREADS;",
            f"  const auto* from = {name}_stages + at.stage * STAGE + k * THREADS + threadIdx.x;",
            f"  if (EVEN || place < vectors) {name}_held[round * DEEP + k] = *from;",
            "}",
            "__syncwarp();",
            "if (lane == 0) arrive(empty + at.stage);",
            "at.advance();",
        ]
        inner = [
            f"{self.vector} {name}_held[ROUNDS * DEEP];",
            "#pragma unroll",
            "for (int round = 0; round < ROUNDS; ++round) {",
            "  if (EVEN || (round * BLOCKS + rank) * STAGE < vectors) {",
            *indented(received, 2),
            "  }",
            "}",
            "",
            *kernel.index_lines(*(one for one in program.inputs if one is not self.stream)),
            *(
                f"const auto* {kernel.name(one.name)}_along = "
                f"reinterpret_cast<const Vector<{one.dtype.cpp}>*>({kernel.row_start(one)});"
                for one in program.columns
            ),
            *kernel.span_pointers(),
            *kernel.target_pointers(),
            *self._alone(),
        ]
        for level in self.levels:
            inner += ["", *(own_values(kernel, level, "thread", "fmaxf(elements, 1.0f)") if level else [])]
            before, loads, element = self._sweep(level, {})
            inner += [*before, *self._each_vector([*loads, *each_element(element)]), *kernel.reduced(level, "")]
        inner += self.put_together("elements", "elements_of_warp")
        told = [f"{self.names[one]}_of_warps[turn][warp] = {self.names[one]};" for one in self.own]
        inner += [
            "if (lane == 0) {",
            *indented([*told, "arrive(told + turn);"]),
            "}",
            "await_own(known + turn, phase);",
        ]
        inner += [f"{self.names[one]} = {self.names[one]}_together[turn];" for one in self.own]
        for how in filter(None, self.corrected.values()):
            del kernel.row_known[how.value]  # the thread's own mean
        inner += ["", *self._results()]
        if program.outputs_of_row:
            inner += ["if (rank == 0 && threadIdx.x == 0) {", *indented(kernel.row_results()), "}"]
        inner += ["phase ^= turn;", "turn ^= 1;"]
        loop = "for (long long row = start; row < rows; row += walks) {"
        return ["Place at{0, 0};", loop, *indented(inner), "}"]

    def _alone(self) -> list[str]:
        """A lane has what belongs to one of the thread's vectors, so that nothing is loaded between results."""
        lines = []
        for one, span in self.spans.items():
            name = self.kernel.name(one)
            lines.append(f"const float {name}_of_lane = ALONE ? {name}_along[lane_place * WIDTH / {span}] : 0.0f;")
        place = "(lane / DEEP % ROUNDS * BLOCKS + rank) * STAGE + lane % DEEP * THREADS"
        each = f"const unsigned lane_place = {place};  // in the row"
        return [each, *lines] if lines else []

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
        shuffled = "const float {0}_here = ALONE ? __shfl_sync(~0u, {0}_of_lane, k) : 0.0f;"
        loads += [shuffled.format(kernel.name(one)) for one in self.spans if one in read]
        return sweep.before, loads, sweep.element

    def _results(self) -> list[str]:
        """The last pass. All results come first where they take no further registers: what is still loaded for them
        would wait behind their stores."""
        kernel, outputs, last = self.kernel, self.program.outputs_along, self.program.sweeps - 1
        if len(outputs) > 1 or not outputs[0].dtype is self.stream.dtype is DType.F32:
            before, loads, element = self._sweep(last, kernel.made_elements())
            stores = [f"{kernel.target(one)}[place] = {kernel.name(one.name)}_made;" for one in outputs]
            return [*before, *self._each_vector([*kernel.made_vectors(), *loads, *each_element(element), *stores])]
        held = f"{kernel.name(self.stream.name)}_held[k]"
        before, loads, element = self._sweep(last, {outputs[0].name: f"{held}.at[i]"})
        work = [*loads, *each_element([*element, f'asm volatile("" : "+f"({held}.at[i]));'])]
        return [
            *before,
            *self._each_vector(work),
            *self._each_vector([f"{kernel.target(outputs[0])}[place] = {held};"]),
        ]

    def _each_vector(self, inner: list[str]) -> list[str]:
        place = "const int place = first + k / DEEP * BLOCKS * STAGE + k % DEEP * THREADS;"
        work = [place, "if (EVEN || place < vectors) {", *indented(inner), "}"]
        return ["#pragma unroll", "for (int k = 0; k < ROUNDS * DEEP; ++k) {", *indented(work), "}"]

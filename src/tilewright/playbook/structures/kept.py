"""Rows in segments that are about as long as the whole chip holds: most of a row stays there, the rest in the cache.

All blocks of the grid share a row. Its first vectors stay in their registers, further ones in their shared memory; what
is left of it is read last, so that it is still in the cache when results are written. As those of a held vector are
stored, the same one of the next row is sent for. To send for what is left as well, to the cache, takes longer than to
wait for it: 64 channels of 64 x 512 x 512 elements in f32 took 3.00 ms on an H200, and 2.89 without.
"""

from __future__ import annotations

from tilewright.playbook.cpp_pieces import BLOCK_REDUCE, VECTOR
from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import MOST_32_BIT, Fragment, KernelSignature, PlanLines, fragment, includes
from tilewright.playbook.row_kernel import RowKernel, each_element
from tilewright.playbook.row_program import Layout, RowProgram
from tilewright.playbook.structures.ahead import COPY
from tilewright.playbook.structures.sums import Correction, about, own_values, passes_of
from tilewright.playbook.structures.teams import Exchange, Team, can_meet

_HELD_BYTES = 288  # of a row, in a thread's registers
_BATCH = 4  # vectors of a thread that are read together from the cache

_AT = """\
// Where a vector of a row is, by its place among the row's own, from where the row's first segment begins.
__device__ __forceinline__ long long at_segment(int place, long long rows) {
  return place / SEGMENT * rows * SEGMENT + place % SEGMENT;
}
"""


def can_keep(program: RowProgram) -> bool:
    """Whether rows are one tensor in segments, of which one pass is to find a few plain numbers."""
    varying = [one for one in program.inputs if one.varies]
    plain = len(varying) == 1 and varying[0].is_whole and not varying[0].in_place and bool(program.outputs_along)
    passes = passes_of(program)
    if program.layout is not Layout.SEGMENTS or not plain or len(passes) != 1 or not can_meet(program):
        return False
    second = [about(program, index) for index in program.reductions_of(1)] if len(passes[0]) > 1 else []
    return all(one is not None and one.correction is Correction.MOMENTS for one in second)


def kept_rows(program: RowProgram, op_line: str, quick: bool = True) -> Fragment:
    kernel = RowKernel(program, quick)
    writer = _Kept(kernel)
    plan = PlanLines(program, op_line)
    signature, name = writer.plan(plan)
    text = signature.kernel("__launch_bounds__(THREADS)", name, writer.body())
    helpers = [*kernel.forms.helpers(), *kernel.reduction_helpers(), BLOCK_REDUCE, COPY, _AT, *writer.exchange.helpers]
    header = (
        f"{program.name} for rows in segments that are about as long as the whole chip holds.\n\nAll blocks share a "
        "row, and go on to the next. HELD vectors of a thread stay in registers and KEPT in shared memory while the "
        "blocks put together what the row comes to; those that are left are read last, so that they are still in the "
        "cache when results are written. As a vector's results are stored, the same one of the next row is sent for."
    )
    constants = ["constexpr int WARPS = THREADS / 32;"]
    pieces = [constants, [VECTOR], *([one] for one in dict.fromkeys(helpers)), text]
    return fragment(header, plan, includes(program, "cuda_pipeline.h"), *pieces)


class _Kept:
    def __init__(self, kernel: RowKernel) -> None:
        self.kernel, self.program = kernel, kernel.program
        (self.stream,) = (one for one in self.program.inputs if one.varies)
        self.name, self.vector = kernel.name(self.stream.name), f"Vector<{self.stream.dtype.cpp}>"
        self.levels = passes_of(self.program)[0]
        self.exchange = Exchange(kernel, Team.GRID, shifts=False, by_message=False)

    def plan(self, plan: PlanLines) -> tuple[KernelSignature, str]:
        rows, cols = plan.sizes()
        vectors, share, walks, steps, room = (plan.name(one) for one in ("vectors", "share", "walks", "steps", "room"))
        plan.limits(rows, cols)
        inner = plan.inner()
        plan.add("need", f"{cols} > 0 and {cols} <= {MOST_32_BIT}", "so that a 32-bit division finds a segment")
        plan.add("const", "THREADS = 512, HOLDERS = THREADS - 32", "a warp is there for the exchange alone")
        plan.width(inner)
        plan.add("const", f"SEGMENT = max({inner} / WIDTH, 1)", "vectors of a row that lie together")
        plan.add("let", f"{vectors} = {cols} / WIDTH")
        plan.add("const", f"BLOCKS = max(min(device.sms, ceil_div({vectors}, HOLDERS)), 1)", "which share a row")
        plan.add("let", f"{share} = ceil_div({vectors}, BLOCKS), {steps} = max(ceil_div({share}, HOLDERS), 1)")
        size = f"WIDTH * {self.stream.dtype.itemsize}"
        plan.add("let", f"{room} = (device.smem_block - 4096) / (HOLDERS * {size})")
        plan.add("const", f"HELD = min({steps}, {_HELD_BYTES} / max({size}, 16))", "vectors of a thread in registers")
        plan.add("const", f"KEPT = min({steps} - HELD, {room})", "vectors of a thread in shared memory")
        plan.read_once(f"{rows} * {cols}")
        plan.add("let", f"{walks} = min({rows}, 1)")
        plan.add("need", f"{rows} * BLOCKS <= 2000000000", "so that the blocks that have come can be counted")
        declared, given = self.exchange.scratches(plan, walks)
        sizes = [("long long rows", rows), ("int cols", cols), ("int share", share)]
        rest = KernelSignature.of(self.program, self.kernel.namer, sizes)
        signature = KernelSignature([*declared, *rest.declared], [*given, *rest.given])
        name = f"{self.program.name}_kept"
        block = f"THREADS, max(KEPT * HOLDERS * {size}, 16)"
        plan.launch(name, f"{walks} * BLOCKS", block, signature.given, " cooperative")
        return signature, name

    # -- kernel --

    def body(self) -> list[str]:
        name, kernel = self.name, self.kernel
        others = (one for one in self.program.inputs if one is not self.stream)
        sent = [f"{name}_held[k] = {self._at('ahead')};"]
        inner = [
            "// Or whatever follows from these, such as where each vector lies, would take a register for all rows.",
            'asm volatile("" : "+r"(first), "+r"(share));',
            "__pipeline_wait_prior(0);",
            *self._pointer("along", "row"),
            *(
                f"auto* {kernel.target(one)} = reinterpret_cast<Vector<{one.dtype.cpp}>*>({kernel.name(one.name)}) + "
                "row * SEGMENT;"
                for one in self.program.outputs_along
            ),
            *kernel.index_lines(*others),
            *self._found(),
            *self.exchange.over(0),
            "",
            "const long long next = row + walks;",
            "const int next_count = next < rows ? count : 0;",
            *self._pointer("ahead", "next"),
            *self._written(),
            *self.exchange.turned(),
        ]
        rest = (one for level in self.levels[:-1] for one in kernel.own_reductions(level))
        return [
            *kernel.once(),
            "extern __shared__ uint4 dynamic[];",
            f"auto* {name}_kept = reinterpret_cast<{self.vector}*>(dynamic);",
            f"const Ahead<{self.vector}> {name}_copies({name}_kept);",
            *(line.replace("const int rank", "int rank") for line in self.exchange.places()),
            "// The last blocks may have less, or nothing.",
            "const int share_here = max(min(share, cols / WIDTH - first), 0);",
            "const int count = threadIdx.x < HOLDERS ? share_here : 0;",
            *self.exchange.room(),
            *(f"__shared__ {kernel.accumulator_type(one)} {kernel.namer.of(one)}_of_rest[2][WARPS];" for one in rest),
            f"{self.vector} {name}_held[HELD];",
            "{",
            *indented([*self._pointer("ahead", "start"), *self._each_held(sent), *self._each_kept([self._copy()])]),
            "  __pipeline_commit();",
            "}",
            "int turn = 0;  // so that a quick warp does not write over what a slow one still reads",
            "for (long long row = start; row < rows; row += walks) {",
            *indented(inner),
            "}",
        ]

    def _pointer(self, which: str, row: str) -> list[str]:
        start = f"reinterpret_cast<const {self.vector}*>({self.name}) + {row} * SEGMENT"
        return [f"const auto* {self.name}_{which} = {start};"]

    def _at(self, which: str) -> str:
        return f"{self.name}_{which}[at_segment(first + place, rows)]"

    def _copy(self) -> str:
        return f"{self.name}_copies.copy(place - HELD * HOLDERS, &{self._at('ahead')});"

    # -- what the row comes to --

    def _found(self) -> list[str]:
        """Reductions of what the block has, the second about the mean of what it holds; then about all of its own."""
        kernel, reduce = self.kernel, "block_reduce({v}, {v}_of_warps[turn], {c})"
        first, second = self.levels[0], self.levels[-1]
        lines = self._held_and_kept(first)
        if first == second:
            return [*lines, *self._rest(self._elements(first)), *kernel.reduced(first, reduce)]
        lines += kernel.reduced(first, reduce)
        counted = "static_cast<float>(max(min(share_here, (HELD + KEPT) * HOLDERS), 1) * WIDTH)"
        lines += ["", *own_values(kernel, second, "held", counted), *self._held_and_kept(second)]
        names = [(kernel.namer.of(one), one) for one in kernel.own_reductions(first)]
        for name, one in names:
            lines += [
                f"const {kernel.accumulator_type(one)} {name}_of_held = {name};",
                f"{name} = {kernel.start(one)};",
            ]
        lines += self._rest([*self._elements(first), *self._elements(second)])
        for name, one in names:
            combine = kernel.combiner(one) + "{}"
            lines.append(f"{name} = {combine}({name}_of_held, block_reduce({name}, {name}_of_rest[turn], {combine}));")
        lines += kernel.reduced(second, reduce)
        for found in filter(None, (about(self.program, index) for index in kernel.own_reductions(second))):
            squares, total = kernel.namer.of(found.second), kernel.namer.of(found.first)
            mean = kernel.namer.fresh("mean_of_block")
            lines.append(f"const float {mean} = {total} / static_cast<float>(max(share_here, 1) * WIDTH);")
            moved = f"moved_squares({squares}, {kernel.row_known[found.value].text}, {mean}, -share_here * WIDTH)"
            lines.append(f"{squares} = static_cast<float>({moved});")
        return lines

    def _held_and_kept(self, level: int) -> list[str]:
        held = self.kernel.sweep(level, lambda _: f"{self.name}_held[k].at[i]", "0", {})
        kept = self.kernel.sweep(level, lambda _: f"{self.name}_here.at[i]", "0", {})
        load = f"const {self.vector} {self.name}_here = {self._kept()};"
        inner = [load, *each_element(kept.element)]
        return [*held.before, *self._each_held(each_element(held.element)), *self._each_kept(inner)]

    def _elements(self, level: int) -> list[str]:
        return each_element(self.kernel.sweep(level, lambda _: f"{self.name}_here[k].at[i]", "0", {}).element)

    # -- results --

    def _written(self) -> list[str]:
        kernel, name, last = self.kernel, self.name, self.program.sweeps - 1
        before: list[str] = []

        def work(element: str) -> list[str]:
            sweep = kernel.sweep(last, lambda _: element, "0", kernel.made_elements())
            before.extend(sweep.before)
            stores = [
                f"{kernel.target(one)}[at_segment(first + place, rows)] = {kernel.name(one.name)}_made;"
                for one in self.program.outputs_along
            ]
            return [*kernel.made_vectors(), *each_element(sweep.element), *stores]

        ahead = ["if (place < next_count) {", f"  {name}_held[k] = {self._at('ahead')};", "}"]
        held = [*work(f"{name}_held[k].at[i]"), *ahead]
        kept = [f"const {self.vector} {name}_here = {self._kept()};", *work(f"{name}_here.at[i]")]
        kept += ["if (place < next_count) {", f"  {self._copy()}", "}"]
        rest = self._rest(work(f"{name}_here[k].at[i]"))
        lines = [*before, *rest, *self._each_kept(kept), "__pipeline_commit();", *self._each_held(held)]
        if self.program.outputs_of_row:
            lines += ["if (rank == 0 && threadIdx.x == 0) {", *indented(kernel.row_results()), "}"]
        return lines

    # -- loops --

    def _kept(self) -> str:
        return f"{self.name}_kept[place - HELD * HOLDERS]"

    def _each_held(self, inner: list[str]) -> list[str]:
        work = ["const int place = k * HOLDERS + threadIdx.x;", "if (place < count) {", *indented(inner), "}"]
        return ["#pragma unroll", "for (int k = 0; k < HELD; ++k) {", *indented(work), "}"]

    def _each_kept(self, inner: list[str]) -> list[str]:
        work = ["const int place = k * HOLDERS + threadIdx.x;", "if (place < count) {", *indented(inner), "}"]
        return ["#pragma unroll 4", "for (int k = HELD; k < HELD + KEPT; ++k) {", *indented(work), "}"]

    def _rest(self, inner: list[str]) -> list[str]:
        """Something done with the vectors that the block does not hold, a few of which are read together."""
        place = "const int place = begin + k * HOLDERS;"

        def each(lines: list[str]) -> list[str]:
            work = [place, "if (place < count) {", *indented(lines), "}"]
            return ["#pragma unroll", f"for (int k = 0; k < {_BATCH}; ++k) {{", *indented(work), "}"]

        body = [f"{self.vector} {self.name}_here[{_BATCH}];", *each([f"{self.name}_here[k] = {self._at('along')};"])]
        begin = "int begin = (HELD + KEPT) * HOLDERS + threadIdx.x"
        loop = f"for ({begin}; begin < count; begin += {_BATCH} * HOLDERS) {{"
        return ["#pragma unroll 1", loop, *indented([*body, *each(inner)]), "}"]

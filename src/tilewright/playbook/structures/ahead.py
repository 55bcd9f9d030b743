"""Long rows one after the other: a row in registers, and the next one already on its way to shared memory.

Loads never stop: while a row is reduced and written, the next one arrives. The blocks of a team share a row and
exchange once for every pass: see `teams`.
"""

from __future__ import annotations

from tilewright.playbook.cpp_pieces import BLOCK_REDUCE, REPACK, VECTOR
from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import MOST_32_BIT, Fragment, KernelSignature, PlanLines, fragment, includes
from tilewright.playbook.row_kernel import RowKernel, each_element
from tilewright.playbook.row_program import ProgramInput, Reduce, RowProgram
from tilewright.playbook.structures.long_rows import LoopedRows, longer_rows
from tilewright.playbook.structures.teams import Exchange, Team, can_meet
from tilewright.playbook.templates import sections

_CUDA = sections("structures/ahead")

_HELD_BYTES = 384  # of a row, in the registers of a thread
SHARE_BYTES = 512 * _HELD_BYTES  # in one block
_HOLDERS = 512 - 32  # threads of a block that hold a row where one warp exchanges
_MULTIPROCESSORS = 132  # of the GPU that choices are ordered for
_LINE_BYTES = 128

COPY = _CUDA["copy"]


OWNERS = {
    Team.CLUSTER: "The blocks of a cluster share a row, and go",
    Team.GRID: "Blocks of the whole grid, which are all there at once, share a row, and go",
}


def ahead_rows(program: RowProgram, op_line: str, team: Team, quick: bool = True) -> Fragment:
    kernel = RowKernel(program, quick)
    writer = _Ahead(kernel, team)
    plan = PlanLines(program, op_line)
    signature, name, longer = writer.plan(plan)
    text = signature.kernel("__launch_bounds__(THREADS)", name, writer.body())
    helpers = [*kernel.forms.helpers(), *kernel.reduction_helpers(), BLOCK_REDUCE, COPY, *writer.exchange.helpers]
    helpers += [_CUDA["division"]] if writer.shifts else []
    helpers += [REPACK] if any("repack(" in line for line in text) else []
    helpers += [one for one in longer.helpers if one not in helpers]
    constants = ["constexpr int WARPS = THREADS / 32;"]
    more = ["cuda_pipeline.h"]
    if team is Team.CLUSTER:
        constants = ["namespace cg = cooperative_groups;", "", *constants]
        more.append("cooperative_groups.h")
    pieces = [constants, [VECTOR], *([one] for one in dict.fromkeys(helpers)), text, longer.text]
    return fragment(_header(writer, team), plan, includes(program, *more), *pieces)


def _header(writer: _Ahead, team: Team) -> str:
    name = writer.program.name
    header = (
        f"{name} for long rows: a row in registers, and the next one already on its way to shared memory.\n\n"
        f"{OWNERS[team]} on to others: every thread copies its vectors of the next row to shared memory while it "
        "works on this one, so that loads never stop. A thread only ever reads what it copied itself."
    )
    if writer.paced:
        header += (
            " EARLY of them are sent for at once, the others as results are stored: enough for memory to be busy, and "
            "not so much that quick blocks hold up those that all wait for."
        )
    where = "to the shared memory of all" if team is Team.CLUSTER else "to global memory and all meeting there"
    header += (
        " What is summed up about the row's mean or greatest element is summed up about the block's own at first "
        f"and then corrected: so the blocks exchange once, each writing {where}."
    )
    if writer.exchange.by_ticket:
        header += " A cluster stays, and takes the next row that no other has taken."
    if writer.shifts:
        header += (
            "\n\nRows that are not a whole number of 16-byte vectors begin anywhere. Their vectors are those from the "
            "next 128-byte line of memory on; the elements before them and after them are one to a thread."
        )
    return (
        header + "\n\nRows too long for that are left to the second kernel, which goes along them element by element."
    )


class _Ahead:
    def __init__(self, kernel: RowKernel, team: Team) -> None:
        self.kernel, self.program, self.team = kernel, kernel.program, team
        self.size = 16 // kernel.program.widest.itemsize
        plain = all(one.is_whole or not one.varies for one in self.program.inputs)
        plain = plain and not any(isinstance(one, Reduce) and one.op.finds_place for one in self.program.values)
        self.shifts = self.program.task_cols % self.size != 0 and plain
        self.holders = "HOLDERS" if team is Team.GRID else "THREADS"
        self.paced = team is Team.GRID and bool(self.program.outputs_along)
        self.exchange = Exchange(kernel, team, self.shifts, self._by_message())

    def plan(self, plan: PlanLines) -> tuple[KernelSignature, str, LoopedRows]:
        rows, cols = plan.sizes()
        vectors, share, held, walks, row_bytes = (
            plan.name(one) for one in ("vectors", "share", "held", "walks", "row_bytes")
        )
        plan.limits(rows, cols)
        plan.add("need", f"{cols} > 0" + (" and device.cc >= 90" if self.team is Team.CLUSTER else ""))
        last = self._team_lines(plan)
        if self.shifts:
            plan.add("const", f"WIDTH = {self.size}", "elements per load")
            plan.add("const", f"LINE = {_LINE_BYTES // self.program.widest.itemsize}", "elements of 128 bytes")
        else:
            plan.width(cols)
        plan.add("let", f"{vectors} = {cols} / WIDTH")
        if self.team is Team.GRID:
            most = f"min(device.sms / TEAMS, ceil_div({vectors}, HOLDERS))"
            plan.add("const", f"BLOCKS = max({most}, 1)", "which share a row")
        plan.add("let", f"{share} = ceil_div({vectors}, BLOCKS)")
        itemsizes = [one.dtype.itemsize for one in self.program.streams]
        plan.add("let", f"{row_bytes} = {' + '.join(f'round_up({share} * WIDTH * {one}, 16)' for one in itemsizes)}")
        registers = f"ceil_div({share}, {self.holders}) * WIDTH * {sum(itemsizes)} <= {_HELD_BYTES}"
        plan.add("let", f"{held} = {registers} and {row_bytes} + 4096 <= device.smem_block")
        plan.add("need", f"{held} or {last}", "a row is held if any team can hold it")
        plan.add(
            "const",
            f"VECTORS = max(ceil_div({share}, {self.holders}), 1) if {held} else 1",
            "of a thread, each unrolled",
        )
        plan.read_once(f"{rows} * {cols}")
        teams = "TEAMS" if self.team is Team.GRID else f"max(ceil_div({rows}, WALK), device.sms / BLOCKS)"
        if self.exchange.by_ticket:
            teams = "max(device.sms / BLOCKS, 1)"
            plan.add("need", f"{rows} <= {MOST_32_BIT}", "so that rows can be counted as they are taken")
        plan.add("let", f"{walks} = min({rows}, {teams})")
        if self.team is Team.GRID:
            plan.add("need", f"{rows} * BLOCKS <= 2000000000", "so that the blocks that have come can be counted")
        declared, given = self.exchange.scratches(plan, walks)
        sizes = [("long long rows", rows), ("int cols", cols), ("int share", share)]
        rest = KernelSignature.of(self.program, self.kernel.namer, sizes)
        signature = KernelSignature([*declared, *rest.declared], [*given, *rest.given])
        name = f"{self.program.name}_ahead"
        attributes = " cluster(BLOCKS)" if self.team is Team.CLUSTER else " cooperative"
        plan.launch(name, f"{walks} * BLOCKS", f"THREADS, {row_bytes}", signature.given, f"{attributes} when {held}")
        longer = longer_rows(self.program, rows, cols, self.kernel.quick)
        longer.launch(plan, rows, "THREADS", held)
        return signature, name, longer

    def _team_lines(self, plan: PlanLines) -> str:
        """The choices of a team, and the condition for the one that holds the longest rows."""
        plan.add("const", "THREADS = 512")
        if self.team is Team.CLUSTER:
            plan.add("tune", f"BLOCKS = {self._cluster_sizes()}", "of a cluster, which share a row")
            if not self.exchange.by_ticket:
                plan.add("tune", "WALK = 4 | 16", "rows that a block goes through, about")
            return "BLOCKS == 8"
        plan.add("const", "HOLDERS = THREADS - 32", "those that hold a row: a warp is there for the exchange alone")
        plan.add("tune", f"TEAMS = {self._team_counts()}", "of blocks on the whole GPU, each with a row")
        if self.paced:
            plan.add("tune", "EARLY = 8 | 4 | 64", "vectors of a thread that are sent for at once")
        return "TEAMS == 1"

    def _by_message(self) -> bool:
        """Two blocks go on to the next row soon. With messages, and copies without a branch, L1 norm of 65,535 columns
        took 4.2 ms on an H200 (4.3 where a block goes through 16 rows, not 4), and 4.4 with the barrier and the branch;
        softmax of 393,216 columns, by eight, took 3.5 and 3.3, and 3.04 where clusters take rows in turn."""
        return self._smallest_cluster() == 2 and can_meet(self.program)

    def _smallest_cluster(self) -> int:
        return next((blocks for blocks in (2, 4) if self._row_bytes() <= blocks * SHARE_BYTES), 8)

    def _row_bytes(self) -> int:
        return self.program.task_cols * sum(one.dtype.itemsize for one in self.program.streams)

    def _cluster_sizes(self) -> str:
        """The smallest cluster that holds the row first."""
        best = self._smallest_cluster()
        return " | ".join(str(one) for one in (best, *(other for other in (8, 4, 2) if other != best)))

    def _team_counts(self) -> str:
        """As many as can hold a row each first: the smaller a team, the more rows are there while one is waited for."""
        blocks = -(-self._row_bytes() // (_HOLDERS * _HELD_BYTES))
        found = [one for one in (8, 4) if blocks * one <= _MULTIPROCESSORS]
        return " | ".join(map(str, (*found, 2, 1)))

    # -- kernel --

    def body(self) -> list[str]:
        kernel, streams = self.kernel, self.program.streams
        lines = ["extern __shared__ __align__(128) uint4 dynamic[];", "auto* room = reinterpret_cast<char*>(dynamic);"]
        for number, one in enumerate(streams):
            size = f"(share * WIDTH * {streams[number - 1].dtype.itemsize} + 15) / 16 * 16"
            lines += [f"room += {size};"] if number else []
            name = kernel.name(one.name)
            lines.append(f"auto* {name}_next = reinterpret_cast<Vector<{one.dtype.cpp}>*>(room);")
            lines.append(f"const Ahead<Vector<{one.dtype.cpp}>> {name}_copies({name}_next);")
        lines += self.exchange.places()
        if not self.shifts:
            count = "max(min(share, cols / WIDTH - first), 0)"
            count = f"threadIdx.x < HOLDERS ? {count} : 0" if self.team is Team.GRID else count
            lines += ["// The last blocks may have less, or nothing.", f"const int count = {count};"]
        lines += self.exchange.room()
        lines += [f"{one.dtype.cpp} {self._end(one)}_next;" for one in streams] if self.shifts else []
        lines += ["{", *indented(self._sent_for("start", "", "count")), "  __pipeline_commit();", "}"]
        lines += ["int turn = 0;  // so that a quick warp does not write over what a slow one still reads"]
        inner = [
            *self.exchange.taking(),
            "__pipeline_wait_prior(0);",
            *self._divided("here", "row", "count", "end"),
            *(f"Vector<{one.dtype.cpp}> {kernel.name(one.name)}_held[VECTORS];" for one in streams),
            *self._each_vector([f"{self._held(one)} = {kernel.name(one.name)}_next[place];" for one in streams]),
            *(f"const {one.dtype.cpp} {self._end(one)} = {self._end(one)}_next;" for one in streams if self.shifts),
            *([] if self.exchange.by_ticket else ["const long long next = row + walks;"]),
            *self._next_sent_for(),
            "__pipeline_commit();",
            "",
            *kernel.index_lines(*(one for one in self.program.inputs if one not in streams)),
            *self._other_pointers(),
            *self._targets(),
            *self._steps(),
            *self.exchange.turned(),
        ]
        step = "" if self.exchange.by_ticket else " row += walks"
        return [*lines, f"for (long long row = start; row < rows;{step}) {{", *indented(inner), "}"]

    def _end(self, one: ProgramInput) -> str:
        """The thread's own element of the ends of a row."""
        return f"{self.kernel.name(one.name)}_end"

    def _held(self, one: ProgramInput) -> str:
        return f"{self.kernel.name(one.name)}_held[k]"

    def _divided(self, name: str, row: str, count: str, end: str) -> list[str]:
        """Where a row begins inside a vector: how it is divided, and what the thread has of it."""
        if not self.shifts:
            return []
        column = f"rank == 0 ? {name}.end_column() : cols"
        held = f"{name}.vectors_of(rank, share)"
        held = f"threadIdx.x < HOLDERS ? {held} : 0" if self.team is Team.GRID else held
        return [f"const Division {name}({row}, cols);", f"const int {count} = {held}, {end} = {column};"]

    def _next_sent_for(self) -> list[str]:
        """The next row where there is one.

        A branch for all makes its copies ask what those of any row ask. But the compiler sums up a row before that
        branch, and copies begin later: see `_by_message`.
        """
        if self.paced or self.exchange.by_message:
            return self._sent_for("next", "EARLY" if self.paced else "", "next_count")
        return ["if (next < rows) {", *indented(self._sent_for("next", "", "count")), "}"]

    def _sent_for(self, row: str, early: str, count: str) -> list[str]:
        """A row's vectors, under way to shared memory; `row` is the variable with its number."""
        kernel, lines = self.kernel, self._divided("there", row, "there_count", "there_end")
        head = " + there.head" if self.shifts else ""
        for one in self.program.streams:
            name = kernel.name(one.name)
            lines += [line.replace("(row)", f"({row})") for line in kernel.index_lines(one)]
            start = f"{name} + {f'{name}_row' if one.parts else row} * cols"
            lines.append(
                f"const auto* {name}_ahead = reinterpret_cast<const Vector<{one.dtype.cpp}>*>({start}{head}) + first;"
            )
            if self.shifts:
                exists = "next < rows && there_end < cols" if count == "next_count" else "there_end < cols"
                lines.append(f"if ({exists}) {self._end(one)}_next = ({start})[there_end];")
        if count == "next_count":
            lines.append(f"const int next_count = next < rows ? {'there_count' if self.shifts else 'count'} : 0;")
        elif self.shifts:
            count = "there_count"
        return [*lines, *self._each_vector(self._copies(), count, early)]

    def _copies(self) -> list[str]:
        names = (self.kernel.name(one.name) for one in self.program.streams)
        return [f"{name}_copies.copy(place, {name}_ahead + place);" for name in names]

    def _other_pointers(self) -> list[str]:
        kernel = self.kernel
        lines = [
            f"const auto* {kernel.name(one.name)}_along = "
            f"reinterpret_cast<const Vector<{one.dtype.cpp}>*>({kernel.row_start(one)}) + first;"
            for one in self.program.columns
        ]
        return [*lines, *kernel.span_pointers()]

    def _targets(self) -> list[str]:
        lines = self.kernel.target_pointers(" + first")
        return [line.replace("row * cols)", "row * cols + here.head)") for line in lines] if self.shifts else lines

    def _steps(self) -> list[str]:
        kernel, program, lines = self.kernel, self.program, []
        for number, levels in enumerate(self.exchange.passes):
            for level in levels:
                lines += ["", *(self.exchange.own(level) if level != levels[0] else []), *self._sweep(level)]
                lines += kernel.reduced(level, "block_reduce({v}, {v}_of_warps[turn], {c})")
            lines += self.exchange.over(number)
        if program.outputs_along:
            lines += ["", *self._sweep(program.sweeps - 1)]
        if program.outputs_of_row:
            lines += ["", "if (rank == 0 && threadIdx.x == 0) {", *indented(kernel.row_results()), "}"]
        return lines

    def _sweep(self, number: int) -> list[str]:
        """A pass over what the block holds; the last writes results, and sends for the rest of the next row."""
        kernel, program = self.kernel, self.program
        read = kernel.loaded(number, kernel.row_known)
        last = number == program.sweeps - 1 and bool(program.outputs_along)

        def load(one: ProgramInput) -> str:
            return f"{kernel.name(one.name)}_here.at[i]" if one.is_column else f"{self._held(one)}.at[i]"

        column = "(first + place) * WIDTH + i"
        column = f"here.head + {column}" if self.shifts else column
        sweep = kernel.sweep(number, load, column, kernel.made_elements())
        inner = [
            *kernel.repacked(read),
            *(
                f"const Vector<{one.dtype.cpp}> {kernel.name(one.name)}_here = {kernel.name(one.name)}_along[place];"
                for one in program.columns
                if one.name in read
            ),
        ]
        inner += kernel.made_vectors() if last else []
        inner += each_element(sweep.element)
        if not last:
            return [*sweep.before, *self._each_vector(inner), *self._of_ends(number)]
        inner += [f"{kernel.target(one)}[place] = {kernel.name(one.name)}_made;" for one in program.outputs_along]
        rest = ["if (k >= EARLY && place < next_count) {", *indented(self._copies()), "}"] if self.paced else []
        late = ["if constexpr (EARLY < VECTORS) __pipeline_commit();"] if self.paced else []
        return [*sweep.before, *self._each_vector(inner, after=rest), *late, *self._of_ends(number)]

    def _of_ends(self, number: int) -> list[str]:
        """The same for the elements before and after the vectors, where there are any."""
        if not self.shifts:
            return []
        store = {one.name: f"{self.kernel.name(one.name)}[row * cols + end]" for one in self.program.outputs_along}
        sweep = self.kernel.sweep(number, self._end, "end", store)
        return ["if (end < cols) {", *indented(sweep.element), "}"]

    def _each_vector(
        self, inner: list[str], count: str = "count", early: str = "", after: list[str] | None = None
    ) -> list[str]:
        place = f"const int place = k * {self.holders} + threadIdx.x;"
        work = [place, f"if (place < {count}) {{", *indented(inner), "}", *(after or [])]
        few = f" && k < {early}" if early else ""
        return ["#pragma unroll", f"for (int k = 0; k < VECTORS{few}; ++k) {{", *indented(work), "}"]

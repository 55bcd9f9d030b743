"""Rows held in registers: read once, all loads in flight together, reduced where they are, written once."""

from __future__ import annotations

from enum import Enum

from tilewright.playbook.cpp_pieces import FOR_EACH_VECTOR, LANES_REDUCE, LOAD_PAST, REPACK, VECTOR
from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import (
    MOST_32_BIT,
    Fragment,
    KernelSignature,
    PlanLines,
    fragment,
    has_parts,
    includes,
)
from tilewright.playbook.row_kernel import RowKernel, each_element
from tilewright.playbook.row_program import ProgramInput, ProgramOutput, RowProgram
from tilewright.playbook.structures.long_rows import LoopedRows, longer_rows
from tilewright.playbook.structures.sums import NOTE, StripSums


class Team(str, Enum):
    """Who shares a row."""

    BLOCK = "block"  # WARPS warps, a block of their own
    LANES = "lanes"  # LANES lanes of a warp; many rows to a block
    PERSISTENT = "persistent"  # a block, for row after row: vectors along the columns stay in registers


_LONGER = "\n\nRows too long for registers are left to the second kernel, which goes along them element by element."
_HEADERS = {
    Team.BLOCK: (
        "{name}, with the row in registers: one read, one write.\n\nThe warps of a block share a row. It is loaded "
        "once, all loads in flight together, and stays in registers, so that every further step costs no memory "
        "traffic. Warps reduce by shuffles and exchange once through shared memory; while one block reduces, others "
        "load."
    ),
    Team.LANES: (
        "{name} for short rows: a few lanes of a warp share a row, and many rows form a block.\n\nThe row is loaded "
        "once and stays in registers. The lanes reduce by shuffles alone: no shared memory, no barrier, and the rows "
        "of a block never wait for each other."
    ),
    Team.PERSISTENT: (
        "{name}, with blocks that stay for many rows: what is the same for all rows is read once.\n\nThe grid fills "
        "the GPU and no more; each block takes row after row. Vectors along the columns stay in registers, and the "
        "next row is under way before this one is reduced."
    ),
}


_MOST_THREADS = {Team.BLOCK: 1024, Team.LANES: 32, Team.PERSISTENT: 1024}
_MOST_VECTORS = 32  # each is unrolled
_BUDGET_BYTES = {Team.BLOCK: 128, Team.LANES: 128, Team.PERSISTENT: 192}  # of the row, in a thread's registers


def held_bytes(program: RowProgram, team: Team) -> int:
    """Bytes that a thread holds for each element."""
    held = sum(one.dtype.itemsize for one in program.streams)
    if team is Team.PERSISTENT:
        held = 2 * held + sum(one.dtype.itemsize for one in program.columns) + 4 * len(program.column_sums)
    return max(held, 2)


def fits(program: RowProgram, team: Team, cols: int) -> bool:
    """Whether the largest team can hold a row of this length."""
    size = 16 // program.widest.itemsize
    width = size if cols % size == 0 else 1
    vectors = 1
    while vectors * _MOST_THREADS[team] * width < cols:
        vectors *= 2
    return vectors <= _MOST_VECTORS and vectors * width * held_bytes(program, team) <= _BUDGET_BYTES[team]


def stays_packed(program: RowProgram) -> bool:
    """Whether a row of small elements is all that a block holds of it, and not f32 values made of them too."""
    kernel = RowKernel(program, quick=True)
    made = any(kernel.choose_held(sweep) for sweep in range(program.sweeps))
    return not made and all(one.dtype.itemsize < 4 for one in program.streams)


def register_rows(
    program: RowProgram, op_line: str, team: Team, teams: tuple[int, ...], hints: bool = False, quick: bool = True
) -> Fragment:
    """A file in which `team` shares a row that it holds in registers.

    `teams` are the numbers of warps or lanes that the tuner is offered; the first that fits is the default.
    """
    kernel = RowKernel(program, quick)
    writer = _RegisterRows(kernel, team)
    plan = PlanLines(program, op_line)
    signature, kernel_name, longer, sums = writer.plan(plan, teams)
    text = signature.kernel(writer.bounds(), kernel_name, [*kernel.once(), *writer.body(hints, sums)])
    reduce = [LANES_REDUCE] if team is Team.LANES else []
    needed = [*kernel.forms.helpers(), *kernel.reduction_helpers(), *longer.helpers, *reduce, FOR_EACH_VECTOR]
    needed += [REPACK] if any("repack(" in line for line in text) else []
    needed += [LOAD_PAST] if kernel.reads_past else []
    helpers = ([one] for one in dict.fromkeys(needed))
    header = _HEADERS[team].format(name=program.name) + (NOTE if program.column_sums else "") + _LONGER
    pieces = (*helpers, text, longer.text, sums.text())
    return fragment(header, plan, includes(program), writer.constants(), [VECTOR], *pieces)


class _RegisterRows:
    def __init__(self, kernel: RowKernel, team: Team) -> None:
        self.kernel, self.program = kernel, kernel.program
        self.team = team

    # -- plan --

    def plan(self, plan: PlanLines, teams: tuple[int, ...]) -> tuple[KernelSignature, str, LoopedRows, StripSums]:
        rows, cols = plan.sizes()
        loads, held = plan.name("loads"), plan.name("held")
        plan.add("need", f"{cols} > 0" + (f" and {rows} <= {MOST_32_BIT}" if has_parts(self.program) else ""))
        plan.index_limit(cols)
        if self.program.outputs_along:
            plan.read_once(f"{rows} * {cols}")
        listed = " | ".join(str(one) for one in teams)
        if self.team is Team.LANES:
            plan.add("tune", f"LANES = {listed}", "of a warp that share a row")
            plan.add("tune", "BLOCK = 128 | 256", "threads")
            team, threads, grid, block = "LANES", "LANES", f"ceil_div({rows}, BLOCK / LANES)", "BLOCK"
        else:
            plan.add("tune", f"WARPS = {listed}", "that share a row")
            team, threads, grid, block = "WARPS", "WARPS * 32", rows, "WARPS * 32"
        if self.team is Team.PERSISTENT:
            plan.add("tune", "BLOCKS = 8 | 4 | 2 | 1", "on a multiprocessor, which registers must allow")
            plan.add("need", "BLOCKS * WARPS <= 32 and BLOCKS * WARPS >= 8")
            grid = f"min({rows}, device.sms * BLOCKS)"
        if self.program.column_sums:
            strips = plan.name("strips")
            plan.add("let", f"{strips} = {grid}", "of rows, each for a block that goes down it")
            grid = strips
        sums = StripSums.of(self.program, plan, grid, cols)
        plan.width(cols)
        plan.add("let", f"{loads} = next_pow2(ceil_div({cols}, {threads} * WIDTH))", "of a thread, for a whole row")
        most = f"{loads} * WIDTH * {held_bytes(self.program, self.team)} <= {_BUDGET_BYTES[self.team]}"
        plan.add("let", f"{held} = {loads} <= {_MOST_VECTORS} and {most}", "bytes of the row that a thread holds")
        plan.add("need", f"{held} or {team} == {max(teams)}", "a row is held if any team can hold it")
        plan.add("const", f"VECTORS = {loads} if {held} else 1", "loads per thread, each unrolled")
        plan.add(
            "const", f"FULL = {cols} == {threads} * WIDTH * VECTORS", "every load of every thread is inside the row"
        )
        sizes = [("long long rows", rows), ("int cols", cols)][self.team is Team.BLOCK :]
        signature = KernelSignature.of(self.program.without_sums, self.kernel.namer, sizes)
        signature = sums.with_parts(self.kernel, signature)
        kernel_name = f"{self.program.name}_{'held' if self.team is not Team.LANES else 'short'}_rows"
        longer = longer_rows(self.program, rows, cols, self.kernel.quick, sums)
        plan.launch(kernel_name, grid, block, signature.given, f" when {held}")
        longer.launch(plan, grid if self.program.column_sums else rows, block, held)
        sums.launch(plan)
        return signature, kernel_name, longer, sums

    def bounds(self) -> str:
        if self.team is Team.LANES:
            return "__launch_bounds__(BLOCK, 1024 / BLOCK)"
        # Packed rows leave registers for more; but not where column vectors are there with them.
        warps = "(VECTORS == 8 && WARPS >= 8 ? 40 : 32)" if self._repacks and not self.program.columns else "32"
        blocks = "BLOCKS" if self.team is Team.PERSISTENT else f"{warps} / WARPS"
        return f"__launch_bounds__(WARPS * 32, {blocks})"

    @property
    def _repacks(self) -> bool:
        """Whether vectors of small elements stay packed between sweeps; lanes hold little."""
        small = any(one.dtype.itemsize < 4 for one in self.program.streams)
        return small and self.team is Team.BLOCK and self.program.sweeps > 1

    def constants(self) -> list[str]:
        if self.team is Team.LANES:
            return ["constexpr int THREADS_PER_ROW = LANES, THREADS = BLOCK, WARPS = BLOCK / 32;"]
        return ["constexpr int THREADS_PER_ROW = WARPS * 32, THREADS = WARPS * 32;"]

    # -- kernel --

    def body(self, hints: bool, sums: StripSums) -> list[str]:
        thread = "threadIdx.x % LANES" if self.team is Team.LANES else "threadIdx.x"
        lines = [f"const int thread = {thread}, vectors = cols / WIDTH;"]
        if self.team is Team.BLOCK:
            lines.append("const long long row = blockIdx.x;")
        elif self.team is Team.LANES:
            lines += [
                "const long long wanted = blockIdx.x * static_cast<long long>(BLOCK / LANES) + threadIdx.x / LANES;",
                "// The last block may have lanes without a row. They join the last one, as shuffles need the "
                "whole warp.",
                "const bool inside = wanted < rows;",
                "const long long row = inside ? wanted : rows - 1;",
            ]
        if self.team is Team.PERSISTENT:
            return lines + self._persistent(hints, sums)
        lines += self.kernel.index_lines(*self.program.inputs) + self.kernel.pointers() + self._shared("WARPS")
        lines += ["", *self._declared("held"), *self._loads("held"), *self._steps(hints)]
        return lines

    def _shared(self, count: str) -> list[str]:
        return [] if self.team is Team.LANES else self.kernel.partials(count)

    def _declared(self, what: str) -> list[str]:
        start = " = {}" if self._guards_loads() else ""
        return [
            f"Vector<{one.dtype.cpp}> {self.kernel.name(one.name)}_{what}[VECTORS]{start};"
            for one in self.program.streams
        ]

    def _guards_loads(self) -> bool:
        """Lanes without a row must not read a row that its owner may just be changing."""
        return self.team is Team.LANES and any(one.in_place for one in self.program.inputs)

    def _loads(self, what: str) -> list[str]:
        names = [self.kernel.name(one.name) for one in self.program.streams]
        several = [f"{name}_{what}[k] = {self.kernel.fetched(f'{name}_along', 'place')};" for name in names]
        inner = " ".join(several)
        if not names:
            return []
        guard = "if (inside) " if self._guards_loads() else ""
        line = f"{guard}for_each_vector(thread, vectors, [&](int k, int place) {{ {inner} }});"
        if len(line) <= 112:
            return [line]
        return [f"{guard}for_each_vector(thread, vectors, [&](int k, int place) {{", *indented(several), "});"]

    def _steps(self, hints: bool) -> list[str]:
        """Every sweep over the registers, and the results."""
        kernel, lines = self.kernel, []
        call = "lanes_reduce({v}, {c})" if self.team is Team.LANES else "block_reduce({v}, {p}, {c})"
        for number in range(self.program.sweeps):
            lines += ["", *self._sweep(number, hints)]
            partial = "{v}_of_warps[turn]" if self._alternates() else "{v}_of_warps"
            lines += kernel.reduced(number, call.replace("{p}", partial))
        if self.program.outputs_of_row:
            guard = "inside && thread == 0" if self.team is Team.LANES else "thread == 0"
            lines += ["", f"if ({guard}) {{", *indented(kernel.row_results()), "}"]
        return lines

    def _sweep(self, number: int, hints: bool) -> list[str]:
        kernel, last = self.kernel, number == self.program.sweeps - 1
        hold = kernel.choose_held(number)
        read = kernel.loaded(number, {*kernel.row_known, *kernel.held})
        store = kernel.made_elements()
        store |= {one.name: f"{kernel.name(one.name)}_sum[k][i]" for one in self.program.column_sums}
        sweep = kernel.sweep(number, self._load, "place * WIDTH + i", store, hold)
        inner = kernel.repacked(read) if self._repacks else []
        if self.team is not Team.PERSISTENT:
            for one in self.program.columns:
                if one.name in read:
                    name = kernel.name(one.name)
                    inner.append(f"const Vector<{one.dtype.cpp}> {name}_here = {name}_along[place];")
        inner += [*(kernel.made_vectors() if last else []), *each_element(sweep.element)]
        for output in self.program.outputs_along if last else ():
            guard = "if (inside) " if self.team is Team.LANES else ""
            inner.append(f"{guard}{self._stored(output, hints)}")
        k = "int k" if any("[k]" in line for line in inner) else "int"
        place = "int place" if any("place" in line for line in inner) else "int"
        return [*sweep.before, f"for_each_vector(thread, vectors, [&]({k}, {place}) {{", *indented(inner), "});"]

    def _stored(self, output: ProgramOutput, hints: bool) -> str:
        target, made = self.kernel.target(output), f"{self.kernel.name(output.name)}_made"
        if not hints or output.dtype.itemsize != self.program.widest.itemsize:
            return f"{target}[place] = {made};"
        pair = f"reinterpret_cast<uint4*>({target}) + place, *reinterpret_cast<const uint4*>(&{made})"
        return f"if constexpr (WIDTH == 1) {target}[place] = {made}; else __stcs({pair});"

    def _load(self, one: ProgramInput) -> str:
        name = self.kernel.name(one.name)
        held = not one.is_column or self.team is Team.PERSISTENT
        return f"{name}_held[k].at[i]" if held else f"{name}_here.at[i]"

    # -- persistent --

    def _alternates(self) -> bool:
        """With a single exchange per row, a fast warp could overwrite what a slow one still reads: take turns."""
        return self.team is Team.PERSISTENT and len(self.program.reductions) == 1

    def _persistent(self, hints: bool, sums: StripSums) -> list[str]:
        columns, streams = self.program.columns, self.program.streams
        name = self.kernel.name
        lines = self._shared("2][WARPS" if self._alternates() else "WARPS")
        lines += [f"Vector<{one.dtype.cpp}> {name(one.name)}_held[VECTORS];" for one in columns]
        lines += ["for_each_vector(thread, vectors, [&](int k, int place) {"] if columns else []
        lines += [
            f"  {name(one.name)}_held[k] = reinterpret_cast<const Vector<{one.dtype.cpp}>*>({name(one.name)})[place];"
            for one in columns
        ]
        lines += ["});"] if columns else []
        lines += [f"float {name(one.name)}_sum[VECTORS][WIDTH] = {{}};" for one in self.program.column_sums]
        lines += self._declared("next")
        lines += ["long long row = blockIdx.x;", *self._fetch(), ""]
        lines += ["int turn = 0;"] if self._alternates() else []
        loop = ["for (; row < rows; row += gridDim.x) {"]
        inner = self._declared("held")
        names = [name(one.name) for one in streams]
        if names:
            moved = " ".join(f"{one}_held[k] = {one}_next[k];" for one in names)
            inner.append(f"for_each_vector(thread, vectors, [&](int k, int) {{ {moved} }});")
            inner += ["if (row + gridDim.x < rows) {", *indented(self._fetch("row + gridDim.x")), "}"]
        inner += self.kernel.index_lines(*(one for one in self.program.inputs if not one.varies or one.spans))
        inner += self.kernel.span_pointers()
        inner += self.kernel.target_pointers() + self._steps(hints)
        inner += ["turn ^= 1;"] if self._alternates() else []
        return lines + loop + indented(inner) + ["}", *self._left_sums(sums)]

    def _left_sums(self, sums: StripSums) -> list[str]:
        """What a block's rows come to, put where the strips are added."""
        stores = [
            f"{own}[strip + place * WIDTH + i] = {self.kernel.name(name)}_sum[k][i];"
            for name, own in sums.names(self.kernel).items()
        ]
        if not stores:
            return []
        strip = "const long long strip = blockIdx.x * static_cast<long long>(cols);"
        visit = "for_each_vector(thread, vectors, [&](int k, int place) {"
        return [strip, visit, *indented(each_element(stores)), "});"]

    def _fetch(self, row: str = "row") -> list[str]:
        """Loads of a row into the registers of the next one."""
        name = self.kernel.name
        lines: list[str] = []
        for one in self.program.streams:
            if one.parts:
                lines += [line.replace("(row)", f"({row})") for line in self.kernel.index_lines(one)]
                place = f"{name(one.name)} + {name(one.name)}_row * cols"
            else:
                place = f"{name(one.name)} + ({row}) * cols" if row != "row" else f"{name(one.name)} + row * cols"
            lines.append(
                f"const auto* {name(one.name)}_along = reinterpret_cast<const Vector<{one.dtype.cpp}>*>({place});"
            )
        loads = self._loads("next")
        return ["{", *indented(lines + loads), "}"] if row == "row" else lines + loads

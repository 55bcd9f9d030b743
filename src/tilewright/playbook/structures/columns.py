"""Reductions over the first or the middle dimensions: neighbours in memory belong to different rows.

A thread owns WIDTH neighbouring rows, so that it moves 16-byte vectors, and goes down their columns. What belongs to a
row is an array of WIDTH in a thread.
"""

from __future__ import annotations

from tilewright.playbook.cpp_pieces import VECTOR
from tilewright.playbook.cpp_text import CHEAP, Text, indented
from tilewright.playbook.file_text import MOST_32_BIT, Fragment, KernelSignature, PlanLines, fragment, includes
from tilewright.playbook.row_kernel import RowKernel, each_element
from tilewright.playbook.row_program import Pointwise, ProgramInput, Reduction, RowProgram
from tilewright.playbook.templates import sections

_CUDA = sections("structures/columns")

_HELD_BYTES = 128  # of a thread's columns, in registers
_LOADED_BYTES = 64  # of a stream that a thread asks for before it uses any
_COMPUTED_BYTES = 4  # f32
_MOST_TEAMS = 16
_MOST_NARROW_TEAMS = 32
_MULTIPROCESSORS = 132


class ColumnKernel(RowKernel):
    """A kernel in which a thread has WIDTH rows; `first_row` is the number of the first."""

    held_count = "FEATURES"

    def accumulator(self, index: int) -> str:
        return f"{self.namer.of(index)}[i]"

    def part(self, index: int) -> str:
        return f"{self.namer.of(index)}_part[i]"

    def declared(self, index: int) -> list[str]:
        name, start = self.namer.of(index), self.start(index)
        line = f"{self.accumulator_type(index)} {name}[WIDTH]"
        if start in ("0", "0.0f"):
            return [f"{line} = {{}};"]
        return [f"{line};", "#pragma unroll", f"for (int i = 0; i < WIDTH; ++i) {name}[i] = {start};"]

    def part_lines(self, number: int) -> tuple[list[str], list[str]]:
        sums = [one for one in self.own_reductions(number) if self._reduce(one).op is Reduction.SUM]
        declared = [f"{self.accumulator_type(one)} {self.namer.of(one)}_part[WIDTH] = {{}};" for one in sums]
        added = [f"{self.accumulator(one)} += {self.part(one)};" for one in sums]
        return declared, each_element(added) if added else []

    def row_scope(self, targets: tuple[int, ...]) -> list[str]:
        if not targets:
            return []
        lines, texts = self.statements.write(targets, self.row_known, self.row_load)
        arrays = {one: self.namer.fresh(f"{self.namer.of(one)}_here") for one in targets}
        declared = [f"{self.program.kinds[one].cpp} {arrays[one]}[WIDTH];" for one in targets]
        lines += [f"{arrays[one]}[i] = {texts[one].text};" for one in targets]
        self.row_known |= {one: Text(f"{arrays[one]}[i]") for one in targets}
        return [*declared, *self._each_row(lines)]

    def span_pointer(self, input: ProgramInput) -> str:
        """Elements, also of a tensor that repeats: a vector is of rows here."""
        return f"const {input.dtype.cpp}* {self.name(input.name)}_along = {self.row_start(input)};"

    def combined(self, number: int) -> list[str]:
        """After a sweep: the teams' parts put together."""
        self.reduced(number, "")
        return [
            f"team_reduce({self.namer.of(index)}, room, {self.combiner(index)}{{}});"
            for index in self.own_reductions(number)
        ]

    def each_result(self, guard: str) -> list[str]:
        """The results with one element per row, for rows of which `guard` holds."""
        return self._each_row(self.row_results(), guard)

    def _each_row(self, lines: list[str], guard: str = "") -> list[str]:
        if any("row" in line for line in lines):
            own = (one for one in self.program.inputs if not one.varies and one.parts)
            lines = ["const long long row = first_row + i;", *self.index_lines(*own), *lines]
        return each_element([f"if ({guard}) {{", *indented(lines), "}"] if guard else lines)


def fits_tile(program: RowProgram, cols: int) -> bool:
    """Whether the teams of a block can hold whole columns of this length."""
    return -(-cols // _most_teams(program)) * _held_bytes(program, _width(program)) <= _HELD_BYTES


def pays_in_tiles(program: RowProgram) -> bool:
    """Whether one sweep in 16 bits is better made by whole tiles than in pieces, which take two launches and more
    registers: where there are enough of them, and rows are whole vectors."""
    width = _width(program)
    narrow = program.widest.itemsize < _COMPUTED_BYTES and program.task_inner % width == 0
    return narrow and program.task_rows >= _MULTIPROCESSORS * 16 * width


def _stays_narrow(program: RowProgram) -> bool:
    """Whether columns are held in 16 bits alone: what a sweep makes of them, at most exponentials, is made again."""
    kernel = RowKernel(program, quick=True)
    reduced = {one for sweep in range(program.sweeps - 1) for one in kernel.targets(sweep)}
    made = (program.values[one] for one in kernel.statements.closure(tuple(reduced), set()) if program.varies[one])
    ops = {one.op for one in made if isinstance(one, Pointwise)}
    return ops <= CHEAP | {"exp"} and all(one.dtype.itemsize < _COMPUTED_BYTES for one in program.streams)


def _most_teams(program: RowProgram) -> int:
    return _MOST_NARROW_TEAMS if _stays_narrow(program) else _MOST_TEAMS


def column_tiles(program: RowProgram, op_line: str, held: bool, quick: bool = True) -> Fragment:
    """A block has LANES * WIDTH neighbouring rows, and TEAMS teams of threads share their columns.

    `held`: the columns stay in registers, and are read once; otherwise every sweep reads them again.
    """
    kernel = ColumnKernel(program, quick)
    plan = PlanLines(program, op_line)
    rows, cols = plan.sizes()
    inner, tiles = plan.inner(), plan.name("tiles")
    plan.limits(rows, cols)
    plan.add("need", f"{cols} > 0 and {cols} <= {MOST_32_BIT}")
    lanes, teams = _holding(program) if held else _shared_by_many(program)
    plan.add("tune", f"LANES = {_listed(lanes)}", "threads side by side, each with a vector of rows")
    plan.add("tune", f"TEAMS = {_listed(teams)}", "that share the columns")
    plan.add("need", "LANES * TEAMS <= 1024")
    size = _width(program)
    plan.add("const", f"WIDTH = {size} if {inner} % {size} == 0 else 1", "rows of a thread")
    if held:
        plan.add("const", f"FEATURES = ceil_div({cols}, TEAMS)", "columns of a thread")
        per_row = _held_bytes(program, 1)
        plan.add("need", f"FEATURES * WIDTH * {per_row} <= {_HELD_BYTES} or TEAMS == {_most_teams(program)}")
        plan.add("need", "FEATURES <= 128", "each is unrolled")
    plan.add("let", f"{tiles} = ceil_div({inner}, LANES * WIDTH)", "blocks side by side")
    if held and program.outputs_along:
        plan.read_once(f"{rows} * {cols}")
    sizes = [("int cols", cols), ("long long inner", inner), ("int tiles", tiles)]
    signature = KernelSignature.of(program, kernel.namer, sizes)
    name = f"{program.name}_tiles"
    plan.launch(name, f"{rows} / max({inner}, 1) * {tiles}", "dim3(LANES, TEAMS)", signature.given)
    # What is held fits 64 registers, and with one more half of the threads would have none.
    bounds = "LANES * TEAMS, 1024 / (LANES * TEAMS)" if held else "LANES * TEAMS"
    text = signature.kernel(f"__launch_bounds__({bounds})", name, _tile_body(kernel, held))
    where = "It stays in registers" if held else "Every step reads it again, mostly from the cache"
    header = (
        f"{program.name}, with reductions across memory: neighbours belong to different rows.\n\nA block has a tile of "
        "LANES * WIDTH rows side by side, so that whole lines of memory are read, and TEAMS teams that share their "
        f"columns. {where}; the teams exchange each reduction once through shared memory. Where rows side by side are "
        "not a whole number of 16-byte vectors, WIDTH is 1 and the same code moves single elements."
    )
    helpers = [*kernel.forms.helpers(), *without_shuffles(kernel), _CUDA["team_reduce"]]
    helpers += [_CUDA["renew"]] if held and _stays_narrow(program) else []
    return fragment(header, plan, includes(program), [VECTOR], *([one] for one in helpers), text)


def _width(program: RowProgram) -> int:
    """Rows of a thread: 16 bytes of the widest tensor, but no more than 16 bytes of the f32 that all is computed in."""
    return 16 // max(program.widest.itemsize, _COMPUTED_BYTES)


def _held_bytes(program: RowProgram, rows: int) -> int:
    """Of registers for a column of so many rows."""
    least = 1 if _stays_narrow(program) else _COMPUTED_BYTES
    return rows * sum(max(one.dtype.itemsize, least) for one in program.streams)


def without_shuffles(kernel: RowKernel) -> list[str]:
    return [one for one in kernel.reduction_helpers() if "__shfl" not in one]


def _listed(choices: tuple[int, ...]) -> str:
    return " | ".join(str(one) for one in choices)


def _shared_by_many(program: RowProgram) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Lanes and teams, the best first: tiles as wide as leaves every multiprocessor one, and at least a line wide. In
    16 bits small blocks have won, whose threads have 16 columns."""
    tiles = program.task_rows // _width(program) / _MULTIPROCESSORS
    if program.widest.itemsize < _COMPUTED_BYTES:
        lanes = 32 if tiles >= 32 else 16
        best = next((one for one in (4, 8, 16) if one * 16 >= program.task_cols), 512 // lanes)
        return (lanes, 64), (best, *(one for one in (4, 8, 16, 32) if one != best and one * lanes <= 1024))
    lanes = next((one for one in (64, 32, 16) if one <= tiles), 8)
    if lanes == 64:
        return (64, 32, 128), (8, 4, 16)
    return (lanes, 2 * lanes), (512 // lanes, 256 // lanes, 1024 // lanes)


def _holding(program: RowProgram) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Lanes and teams, the best first: the fewest teams that can hold the task's columns in 128 bytes each. Where loads
    are of one element, small blocks with half of that have won: more of them are at different steps."""
    size = _width(program)
    narrow = program.task_inner % size != 0
    wanted = program.task_cols * _held_bytes(program, 2 if narrow else size) / _HELD_BYTES
    most = _most_teams(program)
    powers = [one for one in (1, 2, 4, 8, 16, 32) if one <= most]
    best = next((one for one in powers if one >= wanted), most)
    teams = (best, *(one for one in powers if one != best and (one >= best / 2 or one == most)))
    lanes = max(256 // best, 32) if narrow else 16 if best == 32 else 32 if _stays_narrow(program) else 64
    return (lanes, *(one for one in (64, 32, 128) if one != lanes)), teams


def _tile_body(kernel: ColumnKernel, held: bool) -> list[str]:
    program, name = kernel.program, kernel.name
    whole = [one for one in program.inputs if one.is_whole]
    lines = [
        *(kernel.once() if held else []),
        "__shared__ long long room[TEAMS * LANES * WIDTH];",
        "const long long outer = blockIdx.x / tiles, place = blockIdx.x % tiles * LANES + threadIdx.x;",
        "const long long step = inner / WIDTH, first_row = outer * inner + place * WIDTH;",
        "const bool inside = place < step;",
    ]
    for one in whole:
        pointer = f"reinterpret_cast<const Vector<{one.dtype.cpp}>*>({name(one.name)})"
        lines.append(f"const auto* {name(one.name)}_along = {pointer} + outer * cols * step + place;")
    for output in program.outputs_along:
        pointer = f"reinterpret_cast<Vector<{output.dtype.cpp}>*>({name(output.name)})"
        lines.append(f"auto* {kernel.target(output)} = {pointer} + outer * cols * step + place;")
    spans = [one for one in program.inputs if one.spans]  # they have no part of the rows side by side
    lines += [line.replace("(row)", "(first_row)") for line in kernel.index_lines(*spans)]
    lines += kernel.span_pointers()
    streams = {one.name for one in program.streams}
    if held:
        lines += [f"Vector<{one.dtype.cpp}> {name(one.name)}_held[FEATURES] = {{}};" for one in program.streams]
        loads = [f"{name(one.name)}_held[k] = {name(one.name)}_along[column * step];" for one in program.streams]
        lines += ["", *_each_feature(program, held, loads)] if loads else []
    for number in range(program.sweeps):
        lines += ["", *_tile_sweep(kernel, number, held, streams), *kernel.combined(number)]
        lines += _renewed(kernel, number) if held else []
    if program.outputs_of_row:
        lines += ["", "if (inside && threadIdx.y == 0) {", *indented(kernel.each_result("")), "}"]
    return lines


def _tile_sweep(kernel: ColumnKernel, number: int, held: bool, streams: set[str]) -> list[str]:
    program, name = kernel.program, kernel.name
    hold = kernel.choose_held(number) if held and not _stays_narrow(program) else ()
    read = kernel.loaded(number, kernel.row_known)

    def load(one: ProgramInput) -> str:
        if one.is_column:
            return f"{name(one.name)}[column]"
        return f"{name(one.name)}_held[k].at[i]" if held else f"{name(one.name)}_here.at[i]"

    sweep = kernel.sweep(number, load, "column", kernel.made_elements(), hold)
    last = number == program.sweeps - 1
    inner: list[str] = []
    if not held:
        inner += [
            f"const Vector<{one.dtype.cpp}> {name(one.name)}_here = {name(one.name)}_along[column * step];"
            for one in program.inputs
            if one.name in read & streams
        ]
    inner += [*(kernel.made_vectors() if last else []), *each_element(sweep.element)]
    if last:
        inner += [f"{kernel.target(one)}[column * step] = {name(one.name)}_made;" for one in program.outputs_along]
    return [*(_inside(sweep.before)), *_each_feature(program, held, inner)]


def _renewed(kernel: ColumnKernel, number: int) -> list[str]:
    """After a sweep: what later ones read is all that is held from it."""
    program = kernel.program
    later = {one for after in range(number + 1, program.sweeps) for one in kernel.loaded(after, kernel.row_known)}
    names = [kernel.name(one.name) for one in program.streams if one.name in later]
    if not names or not _stays_narrow(program):
        return []
    renewed = [f"renew({name}_held[k]);" for name in names]
    return ["#pragma unroll", "for (int k = 0; k < FEATURES; ++k) {", *indented(renewed), "}"]


def _inside(lines: list[str]) -> list[str]:
    """Values of rows are read only where there are rows."""
    return [line.replace("i < WIDTH;", "i < WIDTH && inside;") if " row" in "".join(lines) else line for line in lines]


def _each_feature(program: RowProgram, held: bool, inner: list[str]) -> list[str]:
    if held:
        guarded = [
            "const int column = k * TEAMS + threadIdx.y;",
            "if (inside && column < cols) {",
            *indented(inner),
            "}",
        ]
        return ["#pragma unroll", "for (int k = 0; k < FEATURES; ++k) {", *indented(guarded), "}"]
    loop = "for (int column = threadIdx.y; column < cols && inside; column += TEAMS) {"
    bytes_of_load = _width(program) * program.widest.itemsize
    return [f"#pragma unroll {_LOADED_BYTES // bytes_of_load}", loop, *indented(inner), "}"]

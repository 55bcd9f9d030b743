"""What the kernels for rows have in common: sweeps along a row, reductions between them, results at the end."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tilewright.playbook import row_program
from tilewright.playbook.cpp_pieces import CANDIDATE, COMBINERS, PAST_BYTES, SHUFFLE, SHUFFLE_CANDIDATE, SMALL_COMBINERS
from tilewright.playbook.cpp_text import CHEAP, EQUALITY, Forms, LoadText, Namer, Statements, Text, indented, write_text
from tilewright.playbook.row_program import Layout, NumberKind, Reduce, Reduction, RowProgram


@dataclass(frozen=True)
class Sweep:
    """One pass along the row as text: what comes before the loop, and what is done with each element."""

    before: list[str]
    element: list[str]


class RowKernel:
    """The state of one kernel being written: which values have names, and which are held from sweep to sweep."""

    held_count = "VECTORS"  # of a thread's vectors of a row

    def __init__(self, program: RowProgram, quick: bool) -> None:
        self.program = program
        self.quick = quick
        self.namer = Namer(program)
        self.forms = Forms(program, self.namer, quick)
        self.statements = Statements(program, self.forms, self.namer)
        self.row_known: dict[int, Text] = {}
        self.held: dict[int, str] = {}  # element values kept in registers between sweeps, and their arrays
        self.held_spans: frozenset[str] = frozenset()  # tensors that repeat along the row, loaded as others are
        self.wide_sums = False  # whether sums are kept in f64: for very long rows in a simple loop

    # -- names of tensors in the kernel --

    def name(self, tensor: str) -> str:
        return self.namer.tensors[tensor]

    def helper_pieces(self) -> list[list[str]]:
        """The functions that the kernel calls, each a piece of the file."""
        return [[one] for one in self.forms.helpers()]

    # -- sweeps --

    def targets(self, sweep: int) -> tuple[int, ...]:
        """The element values a sweep is there for."""
        reduced = tuple(self._reduce(one).argument for one in self.program.reductions_of(sweep))
        last = sweep == self.program.sweeps - 1
        written = (*self.program.outputs_along, *self.program.column_sums)
        return reduced + (tuple(one.value for one in written) if last else ())

    def choose_held(self, sweep: int) -> tuple[int, ...]:
        """Element values of this sweep that a later one needs and that cost more to find again than to keep."""
        known = {*self.row_known, *self.held}
        here = self.statements.closure(self.targets(sweep), known)
        later: set[int] = set()
        for after in range(sweep + 1, self.program.sweeps):
            later |= self.statements.closure(self.targets(after), known)
        wanted = {one for index in later - here for one in self.program.arguments(index)}
        wanted |= {one for after in range(sweep + 1, self.program.sweeps) for one in self.targets(after)}
        frontier = [one for one in sorted(here & wanted) if self.program.varies[one] and one not in self.held]
        return tuple(one for one in frontier if self._is_dear(one, known))

    def _is_dear(self, index: int, known: set[int]) -> bool:
        if not isinstance(self.program.values[index], row_program.Pointwise):
            return False
        inner = self.statements.closure((index,), known)
        made = [self.program.values[one] for one in inner if self.program.varies[one]]
        whole = {one.name for one in self.program.streams}
        loads = sum(isinstance(one, row_program.Load) and one.input in whole for one in made)
        return loads > 1 or any(isinstance(one, row_program.Pointwise) and one.op not in CHEAP for one in made)

    def sweep(
        self,
        number: int,
        load: LoadText,
        column: str,
        store: dict[str, str],
        hold: tuple[int, ...] = (),
        in_parts: bool = False,
    ) -> Sweep:
        """The text of a sweep. `store` has an lvalue for every output along the row and for every sum over rows, to
        which an element is added; `column` is the element's place.

        With `in_parts`, sums go to a part that the loop around it declares and adds: see `part_lines`.
        """
        targets = self.targets(number)
        before = self.row_scope(self.statements.row_values(targets, self.known()))
        for index in self.own_reductions(number):
            before += self.declared(index)
        known = self.known()

        def own(one: row_program.ProgramInput) -> str:
            return self.span_load(one, column) if one.spans and one.name not in self.held_spans else load(one)

        lines, texts = self.statements.write(targets, known, own, frozenset(hold))
        for index in hold:
            array = self.namer.fresh(f"{self.namer.of(index)}_held")
            before.append(f"{self.program.kinds[index].cpp} {array}[{self.held_count}][WIDTH];")
            lines.append(f"{array}[k][i] = {texts[index].text};")
            self.held[index] = f"{array}[k][i]"
        for index in self.own_reductions(number):
            lines.append(self._accumulate(index, texts[self._reduce(index).argument], column, in_parts))
        if number == self.program.sweeps - 1:
            for one in self.program.outputs_along:
                lines.append(f"{store[one.name]} = {write_text(one.dtype, texts[one.value])};")
            for one in self.program.column_sums:
                lines.append(f"{store[one.name]} += {texts[one.value].text};")
        return Sweep(before, lines)

    def known(self) -> dict[int, Text]:
        return {**self.row_known, **{index: Text(text) for index, text in self.held.items()}}

    def row_scope(self, targets: tuple[int, ...]) -> list[str]:
        """Statements for values of the row; they stay known."""
        lines, texts = self.statements.write(targets, self.row_known, self.row_load, frozenset(targets))
        self.row_known |= {one: texts[one] for one in targets}
        return lines

    def reduced(self, number: int, call: str) -> list[str]:
        """After a sweep: the threads' parts combined by `call`, in which {v} is the variable and {c} the combiner.

        Without a call, a thread has the whole row.
        """
        lines = []
        for index in self.own_reductions(number):
            name, op = self.accumulator(index), self._reduce(index).op
            lines += [f"{name} = {call.format(v=name, c=self.combiner(index) + '{}')};"] if call else []
            if op.finds_place:
                self.row_known[index] = Text(f"{name}.index")
            elif self.accumulator_type(index) == "double":
                self.row_known[index] = Text(f"static_cast<float>({name})")
            elif op in (Reduction.ANY, Reduction.ALL):
                self.row_known[index] = Text(f"{name} != 0", EQUALITY)
            else:
                self.row_known[index] = Text(name)
        for index in self.program.reductions_of(number):
            twin = self._twin(index)
            if twin is not None:
                self.row_known[index] = Text(f"{self.accumulator(twin)}.value")
        return lines

    def own_reductions(self, number: int) -> tuple[int, ...]:
        """The reductions of a sweep, without a maximum whose place is looked for anyway."""
        return tuple(index for index in self.program.reductions_of(number) if self._twin(index) is None)

    @property
    def all_reductions(self) -> tuple[int, ...]:
        return tuple(index for index in self.program.reductions if self._twin(index) is None)

    def _twin(self, index: int) -> int | None:
        """The reduction that finds the place of this maximum or minimum, and so its value too."""
        one = self._reduce(index)
        wanted = {
            Reduction.MAXIMUM: Reduction.ARGMAX,
            Reduction.MINIMUM: Reduction.ARGMIN,
        }.get(one.op)
        if wanted is None or self.program.kinds[one.argument] is not NumberKind.FLOAT:
            return None
        twins = (other for other in self.program.reductions if self._reduce(other) == Reduce(wanted, one.argument))
        return next(twins, None)

    def part_lines(self, number: int) -> tuple[list[str], list[str]]:
        """Declarations of the parts of sums, and their additions: several short chains round less than one long one."""
        sums = [one for one in self.own_reductions(number) if self._reduce(one).op is Reduction.SUM]
        names = [(self.accumulator_type(one), self.namer.of(one)) for one in sums]
        return [f"{kind} {name}_part = 0;" for kind, name in names], [f"{name} += {name}_part;" for _, name in names]

    def row_results(self) -> list[str]:
        """Statements that write the outputs with one element per row, for one thread."""
        targets = tuple(one.value for one in self.program.outputs_of_row)
        lines, texts = self.statements.write(targets, self.row_known, self.row_load)
        for one in self.program.outputs_of_row:
            lines.append(f"{self.name(one.name)}[row] = {write_text(one.dtype, texts[one.value])};")
        return lines

    # -- rows of tensors --

    def index_lines(self, *inputs: row_program.ProgramInput) -> list[str]:
        """The rows of tensors that have some of the row dimensions."""
        lines: list[str] = []
        for one in inputs:
            name, text = self.name(one.name), ""
            for number, part in enumerate(one.parts or ()):
                piece = "static_cast<unsigned>(row)"
                piece += f" / {name}_divisor_{number}" if part.divisor else ""
                piece += f" % {name}_modulus_{number}" if part.modulus else ""
                text = piece if not text else f"({text}) * {name}_modulus_{number} + {piece}"
            lines += [f"const long long {name}_row = {text};"] if one.parts else []
        return lines

    def row_of(self, input: row_program.ProgramInput) -> str:
        """The number of the input's own row."""
        if input.parts is None:
            return "row"
        return f"{self.name(input.name)}_row" if input.parts else "0"

    def row_start(self, input: row_program.ProgramInput) -> str:
        """The address of the input's own row."""
        name, row = self.name(input.name), self.row_of(input)
        length = f"{name}_cols" if input.spans else "cols"
        return name if row == "0" else f"{name} + {row} * {length}"

    def element_start(self, tensor: row_program.ProgramInput | row_program.ProgramOutput) -> str:
        """The address of the row's first element, wherever its other elements lie."""
        if isinstance(tensor, row_program.ProgramInput) and not tensor.is_whole:
            return self.row_start(tensor)
        name = self.name(tensor.name)
        starts = {Layout.COLUMNS: "row / inner * cols * inner + row % inner", Layout.SEGMENTS: "row * inner"}
        return f"{name} + {starts.get(self.program.layout, 'row * cols')}"

    def element_place(self, tensor: row_program.ProgramInput | row_program.ProgramOutput) -> str:
        """How far from there an element is, by its column."""
        if isinstance(tensor, row_program.ProgramInput) and not tensor.is_whole:
            return "column"
        segment = "column / inner * rows * inner + column % inner"
        return {Layout.COLUMNS: "column * inner", Layout.SEGMENTS: segment}.get(self.program.layout, "column")

    def row_load(self, input: row_program.ProgramInput) -> str:
        """How inputs without columns are read."""
        return f"{self.name(input.name)}[{self.row_of(input)}]"

    # -- vectors --

    def once(self, inputs: tuple[row_program.ProgramInput, ...] | None = None) -> list[str]:
        """Lines that say what a kernel with these inputs, or with all, reads once; where it writes no less."""
        given = self.program.inputs if inputs is None else inputs
        given = given if self.program.outputs_along else ()
        names = [self.name(one.name) for one in given if one.is_whole and not one.in_place]
        return [f"{name} = read_once({name});" for name in names]

    @property
    def reads_past(self) -> bool:
        """Whether elements are read once and leave but numbers of rows, and are few enough: see `LOAD_PAST`."""
        program = self.program
        size = sum(one.dtype.itemsize for one in program.streams)
        few = program.task_rows * program.task_cols * size in PAST_BYTES
        return few and program.sweeps == 1 and not program.outputs_along and not program.column_sums

    def fetched(self, vectors: str, place: str) -> str:
        """A vector of a tensor of which every element is read once."""
        return f"load_past({vectors} + {place})" if self.reads_past else f"{vectors}[{place}]"

    def repacked(self, read: Collection[str]) -> list[str]:
        """Lines before a sweep's elements by which held vectors of small elements that it reads stay packed."""
        small = (one for one in self.program.streams if one.dtype.itemsize < 4 and one.name in read)
        return [f"repack({self.name(one.name)}_held[k]);" for one in small]

    def pointers(self, first: str = "") -> list[str]:
        """Where the row begins in every tensor that has columns, as vectors; `first` is added to each."""
        lines = [
            f"const auto* {self.name(one.name)}_along = "
            f"reinterpret_cast<const Vector<{one.dtype.cpp}>*>({self.row_start(one)}){first};"
            for one in self.program.inputs
            if one.varies and not one.spans
        ]
        return [*lines, *self.span_pointers(), *self.target_pointers(first)]

    def span_pointers(self) -> list[str]:
        """Where the row begins in tensors that have some of the columns' dimensions."""
        return [self.span_pointer(one) for one in self.program.inputs if one.spans]

    def span_pointer(self, input: row_program.ProgramInput) -> str:
        name, start = self.name(input.name), self.row_start(input)
        if repeats(input):
            return f"const auto* {name}_along = reinterpret_cast<const Vector<{input.dtype.cpp}>*>({start});"
        return f"const {input.dtype.cpp}* {name}_along = {start};"

    def span_load(self, input: row_program.ProgramInput, column: str) -> str:
        """The element of such a tensor that belongs to a column.

        The elements of a vector have neighbours where it repeats: `PlanLines.width` sees to that. Where it has one for
        so many columns, they have it in common if those are whole vectors, and mostly if not.
        """
        constants, name = self.program.span_constants, self.name(input.name)
        vector = column.removesuffix(" * WIDTH + i")
        if vector != column and repeats(input):
            return f"{self.span_vector(input, vector)}.at[i]"
        start, divisor = column, input.spans[-1].divisor
        if vector != column and divisor:
            if input.spans == (row_program.RowPart(divisor, ""),):
                return f"{self.forms.helper('span')}<{constants[divisor]}>({name}_along, {vector} * WIDTH, i)"
            start = f"{vector} * WIDTH + ({constants[divisor]} % WIDTH ? i : 0)"
        text = ""
        for one in input.spans:
            piece = f"static_cast<unsigned>({start})"
            piece += f" / {constants[one.divisor]}" if one.divisor else ""
            piece += f" % {constants[one.modulus]}" if one.modulus else ""
            text = piece if not text else f"({text}) * {constants[one.modulus]} + {piece}"
        return f"{name}_along[{text}]"

    def span_vector(self, input: row_program.ProgramInput, place: str) -> str:
        """The whole vector of a tensor that repeats along the row."""
        length = self.program.span_constants[input.spans[0].modulus]
        return f"{self.name(input.name)}_along[static_cast<unsigned>({place}) % ({length} / WIDTH)]"

    def target_pointers(self, first: str = "") -> list[str]:
        return [
            f"auto* {self.target(one)} = "
            f"reinterpret_cast<Vector<{one.dtype.cpp}>*>({self.name(one.name)} + row * cols){first};"
            for one in self.program.outputs_along
        ]

    def target(self, output: row_program.ProgramOutput) -> str:
        """The pointer to an output's row; an input changed in place has one to read by too."""
        return f"{self.name(output.name)}_{'target' if output.in_place else 'along'}"

    def made_vectors(self) -> list[str]:
        """Declarations of the vectors that results are put together in."""
        return [f"Vector<{one.dtype.cpp}> {self.name(one.name)}_made;" for one in self.program.outputs_along]

    def made_elements(self) -> dict[str, str]:
        """Their elements, for `sweep` to store to."""
        return {one.name: f"{self.name(one.name)}_made.at[i]" for one in self.program.outputs_along}

    def loaded(self, number: int, known: Collection[int]) -> set[str]:
        """The inputs that a sweep reads where these values are known."""
        inner = self.statements.closure(self.targets(number), set(known))
        return {
            value.input for value in (self.program.values[one] for one in inner) if isinstance(value, row_program.Load)
        }

    # -- reductions --

    def partials(self, count: str, levels: Collection[int] | None = None) -> list[str]:
        """Shared memory for the exchange between warps, `count` elements for each reduction of all or some levels."""
        some = self.all_reductions
        if levels is not None:
            some = tuple(index for level in levels for index in self.own_reductions(level))
        kinds = ((self.accumulator_type(index), self.namer.of(index)) for index in some)
        return [f"__shared__ {kind} {name}_of_warps[{count}];" for kind, name in kinds]

    def accumulator(self, index: int) -> str:
        """Where a thread keeps its part of a reduction."""
        return self.namer.of(index)

    def part(self, index: int) -> str:
        """Where it keeps the part of a few elements: see `part_lines`."""
        return f"{self.namer.of(index)}_part"

    def declared(self, index: int) -> list[str]:
        return [f"{self.accumulator_type(index)} {self.namer.of(index)} = {self.start(index)};"]

    def accumulator_type(self, index: int) -> str:
        op = self._reduce(index).op
        if op.finds_place:
            return "Candidate"
        if op is Reduction.SUM and self.wide_sums and self.program.kinds[index] is NumberKind.FLOAT:
            return "double"
        return "int" if op in (Reduction.ANY, Reduction.ALL) else self.program.kinds[index].cpp

    def reduction_helpers(self) -> list[str]:
        ops = [self._reduce(index).op for index in self.all_reductions]
        places = any(op.finds_place for op in ops)
        names = dict.fromkeys(self.combiner(index) for index in self.all_reductions)
        table = SMALL_COMBINERS if self.program.widest.itemsize < 4 else COMBINERS
        combiners = [table[name] for name in names]
        return [CANDIDATE] * places + combiners + [SHUFFLE] + [SHUFFLE_CANDIDATE] * places

    def combiner(self, index: int) -> str:
        return self._reduce(index).op.value.capitalize()

    def start(self, index: int) -> str:
        op, is_float = self._reduce(index).op, self.program.kinds[index] is NumberKind.FLOAT
        if op in (Reduction.ARGMAX, Reduction.ARGMIN):
            # Element 0 as the worst value is a safe start: it can only win where all are that, and there it is right.
            return "{-INFINITY, 0}" if op is Reduction.ARGMAX else "{INFINITY, 0}"
        table = {
            Reduction.SUM: ("0.0f", "0"),
            Reduction.PRODUCT: ("1.0f", "1"),
            Reduction.MAXIMUM: ("-INFINITY", "-0x7fffffffffffffffll - 1"),
            Reduction.GREATEST: ("-INFINITY", "-0x7fffffffffffffffll - 1"),
            Reduction.MINIMUM: ("INFINITY", "0x7fffffffffffffffll"),
            Reduction.ANY: ("0", "0"),
            Reduction.ALL: ("1", "1"),
        }
        return table[op][not is_float]

    def _accumulate(self, index: int, text: Text, column: str, in_parts: bool) -> str:
        op, name = self._reduce(index).op, self.accumulator(index)
        if op is Reduction.SUM:
            return f"{self.part(index) if in_parts else name} += {text.text};"
        if op is Reduction.PRODUCT:
            return f"{name} *= {text.text};"
        if op is Reduction.GREATEST:
            return f"{name} = fmaxf({name}, {text.text});"
        if op is Reduction.ANY:
            return f"{name} |= {text.text};"
        if op is Reduction.ALL:
            return f"{name} &= {text.text};"
        if op.finds_place:
            return f"{name}.meet<{self.combiner(index)}>({text.text}, {column});"
        return f"{name} = {self.combiner(index)}{{}}({name}, {text.text});"

    def _reduce(self, index: int) -> Reduce:
        value = self.program.values[index]
        assert isinstance(value, Reduce)
        return value


def repeats(input: row_program.ProgramInput) -> bool:
    """Whether a tensor has the last of the columns' dimensions and no other: it repeats along the row."""
    return len(input.spans) == 1 and not input.spans[0].divisor and bool(input.spans[0].modulus)


def each_element(lines: list[str]) -> list[str]:
    """What is done with each element of a vector."""
    return ["#pragma unroll", "for (int i = 0; i < WIDTH; ++i) {", *indented(lines), "}"]

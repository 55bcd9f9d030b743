"""What is done with each sum, as a device function of its own: the same text in every kernel that stores sums."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.playbook.cpp_pieces import EXACT_HELPERS, QUICK_HELPERS, STEADY_HELPERS
from tilewright.playbook.cpp_text import Forms, Namer, Statements, Text, indented
from tilewright.playbook.gemms.convolution_program import Convolution
from tilewright.playbook.gemms.program import Gemm, Triangle
from tilewright.playbook.row_program import Load, NumberKind, Pointwise, ProgramInput, RowProgram
from tilewright.playbook.templates import sections
from tilewright.records import DType

_CUDA = sections("gemms/epilogue_text")

# Names of the kernels' own text, which no parameter of theirs has.
RESERVED_WORDS = """
a a_batch a_big a_copy a_next a_part a_pitch a_slot a_slots a_small a_tile add address any_small arrivals at at_k
at_row b b0 b1 b_batch b_big b_copy b_half b_next b_part b_pitch b_slot b_slots b_small b_tile back barrier batch
begin big bit block_sum blocks both box buffer buffers bytes c c_buffers chunk column0 columns commit consumer
copied copy copy_slot copy_step descriptor done exponent fetch few finish finish_rounded finished first_flag flags
flags_n from full given go_on greatest greatest_of group group_rows groups h high high_column high_row highest holds
in_group inner inner0 inners inside is_too_wide is_wide j job jobs k k0 k_begin k_end keep kept kept_empty kept_full
lane largest largest_bits largest_of last later lead least left length line line0 lines load load_b load_parts
load_tiles look looked losing low low_column low_row m m0 m_of_row m_tile made magnitude_bits make_tiles matrix
matrix_pitch mine mma more most my_column my_columns my_row my_scales n n0 n_of_lane next_a next_b next_slot
not_a_number number o of_column of_columns of_groups of_rows of_strip of_warps offset one other out p pack pair_at
parity part part_slots parts parts_pitch piece pieces pitch place power product q quad r rank read result rounded
row0 row_at row_scale row_scales s scale scale_of scale_with_room scaled scales set share shared shared_float4 slot
slots small some some_total source split split_done spread stage stages steps store stride strip strips sum sums
swizzle t take_least taken team_max team_sum tf32 thread tile tiles tiles_m tiles_n to to_column to_row told
too_wide total turn two_pairs unpack upper used v w wait warp warp_m warp_n warpgroup weight weights which wide x y
z zero zeros
"""
RESERVED = frozenset(RESERVED_WORDS.split())


# Products finish their sums while nothing is multiplied, so what that costs shows. For results in bf16, whose roundings
# are eight times its error.
_GELU_OF_SUM = _CUDA["gelu_of_sum"]


@dataclass(frozen=True)
class EpilogueInput:
    """A tensor that the function takes an element of."""

    value: str  # the function's name for that element
    name: str  # of the kernel's pointer
    place: str  # which element goes with a sum: row, column, at (of row and column), channel, or 0
    cast: str  # to what the function takes; "" where that is what the tensor has
    type: str  # of the tensor's elements

    def element(self, place: str) -> str:
        return self.given(f"{self.name}[{place}]")

    def given(self, element: str) -> str:
        """An element as the function takes it."""
        return f"{self.cast}({element})" if self.cast else element


@dataclass(frozen=True)
class EpilogueText:
    """The function's text, the parameters that a kernel needs for it, and how it is called."""

    helpers: list[list[str]]  # pieces of the file that the function calls
    function: list[str]  # empty where sums are stored as they are
    parameters: list[tuple[str, str]]  # of the kernel: declarations, and plan expressions for them
    inputs: tuple[EpilogueInput, ...]
    numbers: tuple[str, ...]  # that the kernel hands on
    name: str = "finish"
    late: EpilogueText | None = None  # the same of sums that were rounded to the result's type where PyTorch does so
    added: EpilogueInput | None = None  # what is added to sums before that, for every column

    @property
    def takes(self) -> set[str]:
        """Which places a call names: row, column, at, channel."""
        return {one.place for one in self.inputs}

    def call(self, sum: str, column: str = "column", at: str = "at", channel: str = "channel") -> str:
        """The finished value of a sum. `row` counts rows of all matrices, `at` is row * n + column."""
        places = {"row": "row", "column": column, "at": at, "channel": channel, "0": "0"}
        return self.of(sum, *(one.element(places[one.place]) for one in self.inputs))

    def of(self, sum: str, *values: str) -> str:
        """The same, of the elements that go with the sum."""
        return f"{self.name}({', '.join([sum, *values, *self.numbers])})" if self.function else sum

    # Several sums at once: elements of whole tensors are read for all of them before the first is used.

    @property
    def _whole(self) -> list[EpilogueInput]:
        return [one for one in self.inputs if one.place == "at"]

    def arrays(self, several: str) -> list[str]:
        """For the elements that go with several sums, such as `[8]`."""
        return [f"{one.type} {one.value}_there{several};" for one in self._whole]

    def pointers(self, address: str) -> list[str]:
        """Where the elements begin that go with some sums: an expression in which @ stands for the tensor."""
        return [f"const {one.type}* {one.value}_from = {address.replace('@', one.name)};" for one in self._whole]

    def reads(self, index: str, condition: str, offset: str) -> list[str]:
        """Those of one sum, if there is such a sum."""
        return [
            f"{one.value}_there{index} = {condition} ? {one.value}_from[{offset}] : static_cast<{one.type}>(0.0f);"
            for one in self._whole
        ]

    def call_read(self, sum: str, index: str) -> str:
        """The finished value of a sum whose elements of whole tensors have been read."""
        return self.of(
            sum,
            *(
                one.given(f"{one.value}_there{index}") if one.place == "at" else one.element(one.place)
                for one in self.inputs
            ),
        )


PLAIN = EpilogueText([], [], [], (), ())  # sums are stored as they are


def epilogue_text(
    contraction: Gemm | Convolution, suffix: str = "", reserved: frozenset[str] = RESERVED
) -> EpilogueText:
    """The epilogue in C++; quick forms of functions only where results have 16 bits. `suffix`: of kernels' pointers;
    `reserved`: names of the kernels' own text."""
    program = contraction.epilogue
    if contraction.is_plain:
        return PLAIN
    namer = Namer(program, reserved)
    forms = Forms(program, namer, quick=True)
    inputs = _epilogue_inputs(contraction, namer, suffix)
    numbers = [
        (program.kinds[program.values.index(number)].cpp, name, number.expression)
        for number, name in namer.parameters.items()
    ]
    writer = Statements(program, forms, namer)
    function = _function(writer, "finish", contraction.sum_value, inputs, numbers)
    helpers = forms.helpers()
    if program.outputs[0].dtype is DType.BF16:
        helpers = [_GELU_OF_SUM if one == QUICK_HELPERS["gelu"] else one for one in helpers]
    if isinstance(contraction, Convolution):
        helpers = steady_helpers(contraction, helpers)
    rounded, column = _rounded_first(contraction)
    used = {value: one for value, one in inputs.items() if value in _needed(program, program.outputs[0].value, rounded)}
    names = tuple(name for _, name, _ in numbers)
    late = PLAIN
    if rounded != program.outputs[0].value:
        late_function = _function(writer, "finish_rounded", rounded, used, numbers)
        late = EpilogueText([], late_function, [], tuple(used.values()), names, "finish_rounded")
    tensors = zip(contraction.epilogue_inputs, inputs.values(), strict=True)
    return EpilogueText(
        [[one] for one in helpers],
        function,
        [
            *((f"const {one.dtype.cpp}* __restrict__ {text.name}", one.name) for one, text in tensors),
            *((f"{kind} {name}", expression) for kind, name, expression in numbers),
        ],
        tuple(inputs.values()),
        names,
        late=late,
        added=inputs.get(column),
    )


def _epilogue_inputs(contraction: Gemm | Convolution, namer: Namer, suffix: str) -> dict[int, EpilogueInput]:
    """The tensors that are read besides the sum, by their values."""
    program, found = contraction.epilogue, {}
    for one in contraction.epilogue_inputs:
        value, name = program.values.index(Load(one.name)), namer.tensors[one.name]
        kind = program.kinds[value].cpp
        cast = "" if kind == one.dtype.cpp else f"static_cast<{kind}>"
        found[value] = EpilogueInput(name, f"{name}{suffix}", _place(one), cast, one.dtype.cpp)
    return found


_NOTES = {
    "finish": "// What becomes of a sum before it is stored.",
    "finish_rounded": "// What is left of that for a sum that has been rounded, as PyTorch rounds it there.",
}


def _function(
    writer: Statements, name: str, sum_value: int, inputs: dict[int, EpilogueInput], numbers: list[tuple[str, str, str]]
) -> list[str]:
    """The function `name`, of the value that stands for the sum and what else it needs."""
    program = writer.program
    target = program.outputs[0].value
    known = {sum_value: Text("sum")} | {value: Text(one.value) for value, one in inputs.items()}
    parameters = ["float sum", *(f"{program.kinds[value].cpp} {one.value}" for value, one in inputs.items())]
    parameters += [f"{kind} {number}" for kind, number, _ in numbers]
    lines, texts = writer.write((target,), known, _nothing_else)
    cast = "" if program.kinds[target] is NumberKind.FLOAT else "(float)"
    return [
        _NOTES[name],
        *_wrapped(f"__device__ __forceinline__ float {name}({', '.join(parameters)}) {{"),
        *indented([*lines, f"return {cast}{texts[target].text};"]),
        "}",
    ]


def _needed(program: RowProgram, target: int, known: int) -> set[int]:
    """The values that the target needs where one is known."""
    found: set[int] = set()
    left = [target]
    while left:
        value = left.pop()
        if value != known and value not in found:
            found.add(value)
            left += program.arguments(value)
    return found


def _rounded_first(contraction: Gemm | Convolution) -> tuple[int, int]:
    """The value that PyTorch rounds to 16 bits first: the sum, or what a linear layer makes of it, the sum with
    something added for every column; and that something's value, or -1."""
    program, sum = contraction.epilogue, contraction.sum_value
    users = [index for index, _ in enumerate(program.values) if sum in program.arguments(index)]
    columns = [program.values.index(Load(one.name)) for one in contraction.epilogue_inputs if one.is_column]
    if len(users) == 1:
        user = program.values[users[0]]
        for column in columns:
            if isinstance(user, Pointwise) and user.op == "add" and set(user.arguments) == {sum, column}:
                return users[0], column
    return sum, -1


def steady_helpers(convolution: Convolution, helpers: list[str]) -> list[str]:
    """Functions for what is done with a convolution's sums: without branches, as exact as those are."""
    steady = {EXACT_HELPERS[name]: text for name, text in STEADY_HELPERS.items()}
    if not (convolution.is_exact or convolution.is_depthwise):
        steady[EXACT_HELPERS["gelu"]] = QUICK_HELPERS["gelu"].replace("a 16-bit result", "a sum of TF32 products")
    return [steady.get(one, one) for one in helpers]


def _nothing_else(one: ProgramInput) -> str:
    raise AssertionError(f"{one.name} is a parameter")


def kept_sum(product: Gemm, sum: str, row: str, column: str) -> str:
    """The sum, or 0 where the product is not kept."""
    kept = product.kept
    if kept is None:
        return sum
    sign = ">=" if kept.triangle is Triangle.UPPER else "<="
    return f"{column} - {row} {sign} {kept.diagonal} ? {sum} : 0.0f"


def skipped_tile(product: Gemm, rows: str, columns: str) -> str:
    """A condition on m0 and n0: nothing of the tile is kept; "" where all of the product is."""
    kept = product.kept
    if kept is None:
        return ""
    if kept.triangle is Triangle.UPPER:
        return f"n0 + {columns} - 1 - m0 < {kept.diagonal}"
    return f"n0 - (m0 + {rows} - 1) > {kept.diagonal}"


def _place(one: ProgramInput) -> str:
    """Which element of an input goes with a sum."""
    if one.is_whole:
        return "at"
    if one.is_column:
        return "column"
    if one.parts:
        return "channel"
    return "row" if one.parts is None else "0"


def _wrapped(head: str) -> list[str]:
    """A function's head in lines that fit."""
    if len(head) <= 120:
        return [head]
    name, _, rest = head.partition("(")
    pieces = rest.split(", ")
    lines, line = [], f"{name}("
    for piece in pieces:
        more = piece if piece.endswith("{") else f"{piece},"
        if len(line) + len(more) + 1 > 120:
            lines.append(line.rstrip())
            line = "    "
        line += ("" if line.endswith(("(", "    ")) else " ") + more
    return [*lines, line]

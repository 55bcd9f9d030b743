"""What is done with each sum, as a device function of its own: the same text in every kernel that stores sums."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.playbook.cpp_text import Forms, Namer, Statements, Text, indented
from tilewright.playbook.products.program import Contraction
from tilewright.playbook.row_program import ProgramInput

# Names of the kernels' own text, which no parameter of theirs has.
RESERVED_WORDS = """
a a_batch a_big a_copy a_next a_part a_pitch a_slot a_slots a_small a_tile add address any_small arrivals at at_k
at_row b b0 b1 b_batch b_big b_copy b_half b_next b_part b_pitch b_slot b_slots b_small b_tile barrier batch big
block_sum blocks both box buffer buffers bytes c c_buffers chunk column0 commit consumer copied copy copy_slot
copy_step descriptor exponent fetch few finish finished first_flag flags flags_n from full given group group_rows h
high high_column high_row highest holds in_group inner inner0 inners inside is_too_wide j job k k0 k_begin k_end keep
lane largest largest_bits largest_of lead least length line line0 lines load load_parts look losing low low_column
low_row m m0 m_of_row m_tile made magnitude_bits matrix matrix_pitch mine mma more my_column my_row my_scales n n0
n_of_lane next_slot not_a_number number o of_warps offset one other out p pack pair_at parity parts parts_pitch piece
pieces pitch product q quad r rounded row0 row_scale row_scales s scale scale_of scaled scales set shared
shared_float4 slot slots small some source split spread stage stages steps store stride sum sums swizzle t team_max
team_sum tf32 tile tiles tiles_m tiles_n to to_column to_row too_wide total used v w wait warp warp_m warp_n weight
weights which wide x y z zero zeros
"""
RESERVED = frozenset(RESERVED_WORDS.split())


@dataclass(frozen=True)
class FinishText:
    """The function's text, the parameters that a kernel needs for it, and how it is called."""

    helpers: list[list[str]]  # pieces of the file that the function calls
    function: list[str]  # empty where sums are stored as they are
    declared: list[str]  # parameters of the kernel
    given: list[str]  # plan expressions for them
    names: list[str]  # of the parameters, as the kernel hands them on
    takes: tuple[str, ...]  # which places the function takes: row, column, at

    def call(self, sum: str, row: str = "row", column: str = "column", at: str = "at") -> str:
        """The finished value of a sum. `row` counts rows of all matrices, `at` is row * n + column."""
        if not self.function:
            return sum
        places = {"row": row, "column": column, "at": at}
        return f"finish({', '.join([sum, *(places[one] for one in self.takes), *self.names])})"


def finish_text(contraction: Contraction, quick: bool = True) -> FinishText:
    """The finish in C++; quick forms of functions only where results have 16 bits."""
    program = contraction.finish
    if contraction.is_plain:
        return FinishText([], [], [], [], [], ())
    namer = Namer(program, RESERVED)
    forms = Forms(program, namer, quick)
    statements = Statements(program, forms, namer)
    lines, texts = statements.write(
        (contraction.output.value,),
        {contraction.sum_value: Text("sum")},
        lambda one: f"{namer.tensors[one.name]}[{_place(one)}]",
    )
    takes = tuple(
        place for place in ("row", "column", "at") if any(_place(one) == place for one in contraction.finish_inputs)
    )
    pairs = [
        (f"const {one.dtype.cpp}* __restrict__", namer.tensors[one.name], one.name) for one in contraction.finish_inputs
    ]
    pairs += [
        (program.kinds[program.values.index(number)].cpp, name, number.expression)
        for number, name in namer.parameters.items()
    ]
    kinds = {"row": "long long row", "column": "int column", "at": "long long at"}
    parameters = ["float sum", *(kinds[one] for one in takes), *(f"{kind} {name}" for kind, name, _ in pairs)]
    head = f"__device__ __forceinline__ float finish({', '.join(parameters)}) {{"
    function = [
        "// What becomes of a sum before it is stored.",
        *_wrapped(head),
        *indented([*lines, f"return {texts[contraction.output.value].text};"]),
        "}",
    ]
    return FinishText(
        [[one] for one in forms.helpers()],
        function,
        [f"{kind} {name}" for kind, name, _ in pairs],
        [expression for _, _, expression in pairs],
        [name for _, name, _ in pairs],
        takes,
    )


def _place(one: ProgramInput) -> str:
    """Which element of an input goes with a sum."""
    if one.is_whole:
        return "at"
    if one.is_column:
        return "column"
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

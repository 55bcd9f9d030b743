"""What is done with each sum, as a device function of its own: the same text in every kernel that stores sums."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.playbook.cpp_text import Forms, Namer, Statements, Text, indented
from tilewright.playbook.products.program import Contraction
from tilewright.playbook.row_program import ProgramInput

# Names of the kernels' own text, which no parameter of theirs has.
RESERVED_WORDS = """
a b c m n k sum sums at finish batch tile tiles slot slots stage stages copy copied group in_group group_rows from to
pitch a_pitch b_pitch a_batch b_batch m0 n0 k0 k_begin k_end piece pieces buffer lane warp warp_m warp_n shared steps
x y z more fetch keep my_row my_column a_tile b_tile a_next b_next load_parts a_part b_part copy_step a_copy b_copy
inside zero next_slot copy_slot set spread chunk tiles_m tiles_n at_row matrix both big small product total
weight weights
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

"""Small rewrites of a row program that no result depends on."""

from __future__ import annotations

from dataclasses import replace

from tilewright.playbook.row_program import Kind, Pointwise, Reduce, RowProgram, Value


def simplify(program: RowProgram) -> RowProgram:
    """Where results have 16 bits, divide each element by a value of the row through one reciprocal per row."""
    if not program.is_sixteen_bit:
        return program
    values: list[Value] = []
    kinds: list[Kind] = []
    places: dict[int, int] = {}

    def add(value: Value, kind: Kind) -> int:
        values.append(value)
        kinds.append(kind)
        return len(values) - 1

    inverses: dict[int, int] = {}
    for index, value in enumerate(program.values):
        if isinstance(value, Pointwise):
            arguments = tuple(places[one] for one in value.arguments)
            by_row = value.op == "div" and program.varies[value.arguments[0]] and not program.varies[value.arguments[1]]
            if by_row:
                divisor = arguments[1]
                if divisor not in inverses:
                    inverses[divisor] = add(Pointwise("reciprocal", (divisor,)), Kind.FLOAT)
                places[index] = add(Pointwise("mul", (arguments[0], inverses[divisor])), Kind.FLOAT)
            else:
                places[index] = add(Pointwise(value.op, arguments), program.kinds[index])
        elif isinstance(value, Reduce):
            places[index] = add(Reduce(value.op, places[value.argument]), program.kinds[index])
        else:
            places[index] = add(value, program.kinds[index])
    outputs = tuple(replace(one, value=places[one.value]) for one in program.outputs)
    return replace(program, values=tuple(values), kinds=tuple(kinds), outputs=outputs)

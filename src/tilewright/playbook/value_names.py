"""Names for the values of a kernel, after what they are."""

from __future__ import annotations

from tilewright.playbook.row_program import (
    COLS,
    Constant,
    LaunchNumber,
    Load,
    Pointwise,
    Reduce,
    Reduction,
    RowProgram,
    Value,
)

# Words of C++ and CUDA, and of the kernels' own text: no tensor or value is called so there.
_TAKEN_WORDS = """
room turn wanted piece pieces met than vectors
alignas alignof and asm auto bool break case catch char class const constexpr continue decltype default delete
do double else enum explicit export extern false float for friend goto if inline int long mutable namespace
new noexcept not nullptr operator or private protected public register return short signed sizeof static
struct switch template this throw true try typedef typename union unsigned using virtual void volatile while
xor half k i row rows cols column columns place vectors thread lane warp first count start share rank value
partial combine visit inside dynamic cluster blockIdx threadIdx blockDim gridDim cg n part split splits end
step element next held loaded max min abs exp log sin cos tan pow sqrt tanh erf floor ceil round
"""
TAKEN = frozenset(_TAKEN_WORDS.split())

_OF_OP = {
    "exp": "exponential",
    "rsqrt": "scale",
    "reciprocal": "inverse",
    "sqrt": "root",
    "sub": "difference",
    "add": "total",
    "mul": "product",
    "div": "quotient",
    "log": "logarithm",
    "abs": "size",
    "neg": "negated",
    "where": "chosen",
    "to_float": "as_float",
    "to_int": "as_int",
    "to_bool": "flag",
    "clamp_min": "clamped",
    "clamp_max": "clamped",
}

_OF_REDUCTION = {
    Reduction.SUM: "sum",
    Reduction.PRODUCT: "product",
    Reduction.MAXIMUM: "greatest",
    Reduction.GREATEST: "greatest",
    Reduction.MINIMUM: "least",
    Reduction.ANY: "found_any",
    Reduction.ALL: "found_all",
    Reduction.ARGMAX: "best",
    Reduction.ARGMIN: "best",
}


class Namer:
    """Gives each value a name of its own in one kernel."""

    def __init__(self, program: RowProgram) -> None:
        self._program = program
        self._taken = set(TAKEN)
        self._names: dict[int, str] = {}
        self.tensors = {one.name: self.fresh(one.name) for one in program.inputs}
        self.tensors |= {one.name: self.fresh(one.name) for one in program.outputs if not one.in_place}
        numbers = sorted({one for one in program.values if isinstance(one, LaunchNumber)}, key=lambda one: one.name)
        self.parameters = {one: "cols" if one == COLS else self.fresh(one.name) for one in numbers}

    def fresh(self, wanted: str) -> str:
        """The wanted name, or the wanted name with a number."""
        name, number = wanted, 2
        if wanted in TAKEN:
            name = wanted = f"{wanted}_given"
        while name in self._taken:
            name, number = f"{wanted}_{number}", number + 1
        self._taken.add(name)
        return name

    def of(self, index: int) -> str:
        if index not in self._names:
            self._names[index] = self.fresh(self._wanted(index))
        return self._names[index]

    def _wanted(self, index: int) -> str:
        value = self._program.values[index]
        if isinstance(value, Load):
            return f"{self.tensors[value.input]}_value"
        if isinstance(value, Reduce):
            squares = value.op is Reduction.SUM and self._is_square(value.argument)
            return "squares" if squares else _OF_REDUCTION[value.op]
        if isinstance(value, Pointwise):
            return self._wanted_pointwise(value)
        return "number"

    def _wanted_pointwise(self, value: Pointwise) -> str:
        first = self._value(value.arguments[0])
        if value.op == "to_float" and first == COLS:
            return "length"
        second = self._value(value.arguments[1]) if len(value.arguments) > 1 else None
        if value.op == "div" and isinstance(first, Reduce) and first.op is Reduction.SUM and self._is_count(second):
            if not self._is_square(first.argument):
                return "mean"
            factor = self._value(self._program.arguments(first.argument)[0])
            centered = isinstance(factor, Pointwise) and factor.op == "sub"
            return "variance" if centered else "mean_square"
        if value.op == "sub" and isinstance(second, Pointwise) and second.op == "div":
            return "centered"
        if value.op == "sub" and isinstance(second, Reduce):
            return "shifted"
        return _OF_OP.get(value.op, "flag" if value.op in ("lt", "le", "gt", "ge", "eq", "ne") else f"{value.op}_value")

    def _value(self, index: int) -> Value:
        return self._program.values[index]

    def _is_square(self, index: int) -> bool:
        value = self._value(index)
        return isinstance(value, Pointwise) and value.op == "mul" and len(set(value.arguments)) == 1

    def _is_count(self, value: Value | None) -> bool:
        if isinstance(value, Pointwise) and value.op in ("to_float", "sub"):
            return self._is_count(self._value(value.arguments[0]))
        return value == COLS or (isinstance(value, Constant) and value.value == 1.0)

"""The values of a row program in C++: names after what they are, operations as operators, functions of the language or
ours, and statements, scope by scope."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilewright.playbook import row_program
from tilewright.playbook.cpp_pieces import EXACT_HELPERS, QUICK_HELPERS
from tilewright.playbook.elementwise import TABLE
from tilewright.playbook.row_program import LaunchNumber, NumberKind, Reduce, Reduction, RowProgram
from tilewright.records import DType
from tilewright.records.gpu import reached

_INLINE_LENGTH = 48  # a longer expression gets a name
_INLINE_LOAD_LENGTH = 20  # and a longer load too, where there are several

LoadText = Callable[[row_program.ProgramInput], str]

# Precedences, as C++ has them; higher binds tighter.
TERNARY, OR, AND, BITS, EQUALITY, ORDER, SUM, PRODUCT, UNARY, PRIMARY = range(10)


@dataclass(frozen=True)
class Text:
    """An expression and how tightly its outermost operator binds."""

    text: str
    precedence: int = PRIMARY

    def within(self, precedence: int) -> str:
        """The expression as an operand of an operator of this precedence."""
        return self.text if self.precedence >= precedence else f"({self.text})"


_PRECEDENCES = {"+": SUM, "-": SUM, "*": PRODUCT, "/": PRODUCT, "==": EQUALITY, "!=": EQUALITY, "&&": AND, "||": OR}
_PRECEDENCES |= dict.fromkeys(("<", "<=", ">", ">="), ORDER)
_SIGNS = {one.name: one.loops[4:-4] for one in TABLE if one.loops[:4] == "{0} " and one.loops[-4:] == " {1}"}
_INFIX = {name: (sign, _PRECEDENCES[sign]) for name, sign in _SIGNS.items() if sign in _PRECEDENCES}
_INFIX |= {"xor": ("!=", EQUALITY)}  # of booleans
# Of whole numbers, with brackets around every operand that has an operator: hardly anyone knows their precedences.
_BITWISE = {"bit_and": "&", "bit_or": "|", "bit_xor": "^", "left_shift": "<<", "right_shift": ">>"}

_LANGUAGE = {one.name: one.rows for one in TABLE if one.rows}

_CASTS = {"to_float": "float", "to_int": "long long"}
# What a narrower type keeps of a whole number; computed with it is as wide as before.
_NARROWED = {"to_i32": "int", "to_i16": "short", "to_i8": "signed char", "to_u8": "unsigned char"}

_LOGARITHMS = ("log", "divergence")
# All others are too dear to be done twice where the result can be kept.
CHEAP = frozenset(one.name for one in TABLE if one.cheap)
CHEAP |= frozenset((*_BITWISE, *_CASTS, *_NARROWED, "xor", "bit_not", "clamp_min", "clamp_max"))


# -- names --

# Words of C++ and CUDA, and of the kernels' own text: no tensor or value is called so there.
_TAKEN_WORDS = """
room turn wanted piece pieces met than vectors here there arrived phase counted own begin ahead together group height
within send await read_once to_stay block meet rows_taken first_rows rows_ahead ticket first_y from_y  at late sent
full empty told known elements from word repack words load_past
barriers_of_parts barrier_init barrier_wait barrier_arrive_expecting copy_rows store_together into_vector row_is_used
Vector Ahead Division Candidate Sum Product Maximum Minimum Greatest Any All Argmax Argmin
alignas alignof and asm auto bool break case catch char class const constexpr continue decltype default delete
do double else enum explicit export extern false float for friend goto if inline int long mutable namespace
new noexcept not nullptr operator or private protected public register return short signed sizeof static
struct switch template this throw true try typedef typename union unsigned using virtual void volatile while
xor half k i row rows cols column columns place vectors thread lane warp first count start share rank value
partial combine visit inside dynamic cluster blockIdx threadIdx blockDim gridDim cg n part split splits end
step element next held loaded max min abs exp log sin cos tan pow sqrt tanh erf floor ceil round
"""
TAKEN = frozenset(_TAKEN_WORDS.split())

_OF_OP = {one.name: one.word for one in TABLE if one.word} | dict.fromkeys(("clamp_min", "clamp_max"), "clamped")

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
    """Gives each value a name of its own in one kernel, whose own text has the `reserved` ones."""

    def __init__(self, program: RowProgram, reserved: frozenset[str] = frozenset()) -> None:
        self._program = program
        self._taken = {*TAKEN, *reserved}
        self._names: dict[int, str] = {}
        self.tensors = {one.name: self.fresh(one.name) for one in program.inputs}
        self.tensors |= {one.name: self.fresh(one.name) for one in program.outputs if not one.in_place}
        numbers = sorted({one for one in program.values if isinstance(one, LaunchNumber)}, key=lambda one: one.name)
        self.parameters = {one: "cols" if one == row_program.COLS else self.fresh(one.name) for one in numbers}

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
        if isinstance(value, row_program.Load):
            return f"{self.tensors[value.input]}_value"
        if isinstance(value, Reduce):
            squares = value.op is Reduction.SUM and self._is_square(value.argument)
            return "squares" if squares else _OF_REDUCTION[value.op]
        if isinstance(value, row_program.Pointwise):
            return self._wanted_pointwise(value)
        return "number"

    def _wanted_pointwise(self, value: row_program.Pointwise) -> str:
        first = self._value(value.arguments[0])
        if value.op == "to_float" and first == row_program.COLS:
            return "length"
        second = self._value(value.arguments[1]) if len(value.arguments) > 1 else None
        if value.op == "div" and isinstance(first, Reduce) and first.op is Reduction.SUM and self._is_count(second):
            if not self._is_square(first.argument):
                return "mean"
            factor = self._value(self._program.arguments(first.argument)[0])
            centered = isinstance(factor, row_program.Pointwise) and factor.op == "sub"
            return "variance" if centered else "mean_square"
        if value.op == "sub" and isinstance(second, row_program.Pointwise) and second.op == "div":
            return "centered"
        if value.op == "sub" and isinstance(second, Reduce):
            return "shifted"
        return _OF_OP.get(value.op, f"{value.op}_value")

    def _value(self, index: int) -> row_program.Value:
        return self._program.values[index]

    def _is_square(self, index: int) -> bool:
        value = self._value(index)
        return isinstance(value, row_program.Pointwise) and value.op == "mul" and len(set(value.arguments)) == 1

    def _is_count(self, value: row_program.Value | None) -> bool:
        if isinstance(value, row_program.Pointwise) and value.op in ("to_float", "sub"):
            return self._is_count(self._value(value.arguments[0]))
        return value == row_program.COLS or (isinstance(value, row_program.Constant) and value.value == 1.0)


# -- expressions --


class Forms:
    """Writes single operations, and remembers which helper functions they need."""

    def __init__(self, program: RowProgram, namer: Namer, quick: bool) -> None:
        self._program = program
        self._namer = namer
        self._quick = quick and program.is_sixteen_bit
        self._quick_logarithms = quick and has_quick_logarithms(program)
        self._helpers: list[str] = []

    def helpers(self) -> list[str]:
        """The texts of the helper functions used so far."""
        table = {**EXACT_HELPERS, **QUICK_HELPERS} if self._quick else EXACT_HELPERS
        return [table[name] for name in self._helpers]

    def helper(self, name: str) -> str:
        if name not in self._helpers:
            self._helpers.append(name)
        return f"{name}_of"

    def leaf(self, index: int) -> Text | None:
        """A constant or a parameter; None for anything else."""
        value = self._program.values[index]
        if isinstance(value, row_program.Constant):
            return literal(value.value, self._program.kinds[index])
        return Text(self._namer.parameters[value]) if isinstance(value, LaunchNumber) else None

    def pointwise(self, index: int, arguments: list[Text]) -> Text:
        value = self._program.values[index]
        assert isinstance(value, row_program.Pointwise)
        op, first = value.op, arguments[0]
        if op == "div" and self._has_row_divisor(value):
            return Text(f"{self.helper('quotient')}({first.text}, {arguments[1].text})")
        if op in _INFIX:
            sign, precedence = _INFIX[op]
            return Text(f"{first.within(precedence)} {sign} {arguments[1].within(precedence + 1)}", precedence)
        if op in _BITWISE:
            return Text(f"{first.within(UNARY)} {_BITWISE[op]} {arguments[1].within(UNARY)}", BITS)
        if op in ("neg", "bit_not"):
            return Text(f"{'-' if op == 'neg' else '~'}{first.within(PRIMARY)}", UNARY)
        if op == "not":
            return Text(f"!{first.within(PRIMARY)}", UNARY)
        if op == "where":
            middle, last = arguments[1].within(OR), arguments[2].within(OR)
            return Text(f"{first.within(OR)} ? {middle} : {last}", TERNARY)
        if op == "to_bool":
            return Text(f"{first.within(ORDER)} != 0", EQUALITY)
        if op in _CASTS:
            return Text(f"static_cast<{_CASTS[op]}>({first.text})")
        if op in _NARROWED:
            return Text(f"{self.helper('narrow')}<{_NARROWED[op]}>({first.text})")
        if op == "abs" and self._program.kinds[index] is NumberKind.FLOAT:
            return Text(f"fabsf({first.text})")
        if op == "reciprocal":
            return Text(f"1.0f / {first.within(UNARY)}", PRODUCT)
        listed = ", ".join(one.text for one in arguments)
        summed = op in _LOGARITHMS and self._quick_logarithms and self._program.varies[index]
        if summed and op == "divergence":
            self.helper(op)  # which the quick one calls for odd numbers
            op = "summed_divergence"
        if (self._quick and op in QUICK_HELPERS) or op not in _LANGUAGE or summed:
            return Text(f"{self.helper(op)}({listed})")
        return Text(f"{_LANGUAGE[op]}({listed})")

    def _has_row_divisor(self, value: row_program.Pointwise) -> bool:
        """Whether elements are divided by what their row comes to, and a division takes longer than memory: with
        results of 4 bytes it does not."""
        program, (first, second) = self._program, value.arguments
        small = program.outputs_along and all(one.dtype.itemsize < 4 for one in program.outputs_along)
        by_row = program.levels[second] > 0 and program.varies[first] and not program.varies[second]
        return bool(small) and by_row and program.layout is row_program.Layout.ROWS


def has_quick_logarithms(program: RowProgram) -> bool:
    """Whether there are logarithms of elements that are but added up: then the last places of each are not seen."""
    reductions = [one for one in program.values if isinstance(one, Reduce)]
    logarithms = any(isinstance(one, row_program.Pointwise) and one.op in _LOGARITHMS for one in program.values)
    return logarithms and not program.outputs_along and all(one.op is Reduction.SUM for one in reductions)


def literal(value: int | float | bool, kind: NumberKind) -> Text:
    if kind is NumberKind.BOOL:
        return Text("true" if value else "false")
    if kind is NumberKind.INT:
        return Text(f"{int(value)}ll", UNARY if value < 0 else PRIMARY)
    number = float(value)
    if math.isnan(number):
        return Text("NAN")
    if math.isinf(number) or abs(number) > 3.5e38:
        return Text("INFINITY" if number > 0 else "-INFINITY", PRIMARY if number > 0 else UNARY)
    shown = f"{number:.9g}"
    if not any(mark in shown for mark in ".e"):
        shown += ".0"
    return Text(f"{shown}f", UNARY if number < 0 else PRIMARY)


# -- statements --


class Statements:
    """Writes values as they are needed: each once per scope, short ones that are used once inside their user."""

    def __init__(self, program: RowProgram, forms: Forms, namer: Namer) -> None:
        self.program = program
        self.forms = forms
        self.namer = namer
        self._inputs = {one.name: one for one in program.inputs}

    def write(
        self, targets: tuple[int, ...], known: dict[int, Text], load: LoadText, named: frozenset[int] = frozenset()
    ) -> tuple[list[str], dict[int, Text]]:
        """Statements after which every target has the text returned. `known` values are at hand; `named` get a name."""
        order = self._order(targets, known)
        uses = Counter(targets)
        for index in order:
            uses.update(self.program.arguments(index))
        loads = sum(isinstance(self.program.values[index], row_program.Load) for index in order)
        lines: list[str] = []
        texts = dict(known)
        for index in order:
            text = self._text(index, texts, load)
            simple = self.forms.leaf(index) is not None
            longest = _INLINE_LENGTH
            if loads > 1 and isinstance(self.program.values[index], row_program.Load):
                longest = _INLINE_LOAD_LENGTH
            if simple or (uses[index] == 1 and len(text.text) <= longest and index not in named):
                texts[index] = text
                continue
            name = self.namer.of(index)
            lines.append(f"const {self.program.kinds[index].cpp} {name} = {text.text};")
            texts[index] = Text(name)
        return lines, texts

    def row_values(self, targets: tuple[int, ...], known: dict[int, Text]) -> tuple[int, ...]:
        """The values of the row that element values need, and that no scope has yet."""
        found: list[int] = []
        for index in self._order(targets, known):
            if not self.program.varies[index] and self.forms.leaf(index) is None:
                found.append(index)
        inner = {one for index in found for one in self.program.arguments(index)}
        direct = {
            one
            for index in self._order(targets, known)
            if self.program.varies[index]
            for one in self.program.arguments(index)
        }
        return tuple(index for index in found if index in direct or index in targets or index not in inner)

    def closure(self, targets: tuple[int, ...], known: set[int]) -> set[int]:
        return set(self._order(targets, {index: Text("") for index in known}))

    def _order(self, targets: tuple[int, ...], known: dict[int, Text]) -> list[int]:
        def unknown(some: tuple[int, ...]) -> list[int]:
            return [one for one in some if one not in known]

        return sorted(reached(unknown(targets), lambda index: unknown(self.program.arguments(index))))

    def _text(self, index: int, texts: dict[int, Text], load: LoadText) -> Text:
        leaf = self.forms.leaf(index)
        if leaf is not None:
            return leaf
        value = self.program.values[index]
        if isinstance(value, row_program.Load):
            return read_text(self._inputs[value.input].dtype, load(self._inputs[value.input]))
        assert isinstance(value, row_program.Pointwise), f"value {index} is not known yet"
        return self.forms.pointwise(index, [texts[one] for one in value.arguments])


def read_text(dtype: DType, element: str) -> Text:
    """An element as the kind of number a kernel computes with."""
    if dtype in (DType.F32, DType.I64, DType.BOOL):
        return Text(element)
    return Text(f"static_cast<{'float' if dtype.is_float else 'long long'}>({element})")


def write_text(dtype: DType, text: Text) -> str:
    """A computed number as an element."""
    if dtype in (DType.F32, DType.I64, DType.BOOL):
        return text.text
    return f"static_cast<{dtype.cpp}>({text.text})"


def indented(lines: list[str], depth: int = 1) -> list[str]:
    return [("  " * depth + line if line and not line.startswith("#") else line) for line in lines]


def worded(text: str, words: Mapping[str, str | list[str]]) -> str:
    """The text with others in the places of words that begin with @, and so on in those. A line that is nothing but
    such a word gives way to as many as there are, as far in as the word is."""

    def meaning(word: str) -> str:
        given = words[word]
        return worded(given if isinstance(given, str) else "\n".join(given), words)

    lines: list[str] = []
    for line in text.splitlines():
        alone = re.fullmatch(r"( *)@(\w+)", line)
        if alone and alone[2] in words:
            lines += indented(meaning(alone[2]).splitlines(), len(alone[1]) // 2)
        else:
            lines.append(re.sub(r"@(\w+)", lambda found: meaning(found[1]) if found[1] in words else found[0], line))
    return "\n".join(lines)

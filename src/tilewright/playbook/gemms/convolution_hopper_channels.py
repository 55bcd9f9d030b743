"""Work over all channels of a position, as text: on the sums in registers, before anything is stored.

A tile that has all filters has all channels of its positions, but they lie in many places: a lane has some of a
position's rows, eight lanes of a warp have others, and so do four warps. What each lane has comes first, then shuffles
in which a lane keeps half of its positions at every step, then the warps' parts in shared memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property

from tilewright.playbook.cpp_pieces import COMBINERS
from tilewright.playbook.cpp_text import Forms, Namer, Statements, Text, indented, worded, write_text
from tilewright.playbook.gemms.convolution_hopper_geometry import Geometry
from tilewright.playbook.gemms.convolution_program import Convolution
from tilewright.playbook.gemms.epilogue_text import EpilogueText, steady_helpers
from tilewright.playbook.row_kernel import RowKernel
from tilewright.playbook.row_program import (
    COLS,
    LaunchNumber,
    Load,
    NumberKind,
    ProgramInput,
    Reduce,
    Reduction,
    RowProgram,
)
from tilewright.playbook.templates import sections

_CUDA = sections("gemms/convolution_hopper_channels")

MOST_ROWS = 256  # of filters and phases: four times 64 by a quarter of the positions
_MOST_REDUCTIONS = 4
_REDUCTIONS = {Reduction.SUM, Reduction.PRODUCT, Reduction.MAXIMUM, Reduction.MINIMUM, Reduction.GREATEST}


def can_follow(convolution: Convolution, across: RowProgram) -> bool:
    """Whether work on rows of channels can be done before the convolution's results are stored."""
    own = convolution.epilogue.outputs[0].name
    geometry = Geometry(convolution)
    if convolution.groups > 1 or convolution.filters.size * geometry.rows_of_filter > MOST_ROWS:
        return False
    if any(one.varies or one.parts is None for one in convolution.epilogue_inputs):
        return False
    others = [one for one in across.inputs if one.name != own]
    lie = all((one.is_column or not one.varies) and one.parts == () and one.dtype.is_float for one in others)
    reductions = [across.values[index] for index in across.reductions]
    plain = all(isinstance(one, Reduce) and one.op in _REDUCTIONS for one in reductions)
    kinds = {across.kinds[index] for index in (*across.reductions, *(one.value for one in across.outputs))}
    numbers = (one for one in across.values if isinstance(one, LaunchNumber))
    return (
        lie
        and plain
        and kinds == {NumberKind.FLOAT}
        and 0 < len(reductions) <= _MOST_REDUCTIONS
        and len(across.outputs) == 1
        and not (across.outputs[0].in_place or across.outputs[0].over_rows)
        and not any(f"{own}." in one.expression for one in numbers)
    )


class ChannelsText:
    """What follows the sums of a convolution over channels, for its kernels."""

    def __init__(self, geometry: Geometry, epilogue: EpilogueText, reserved: frozenset[str]) -> None:
        across = geometry.convolution.across
        assert across is not None
        self.geometry, self.program, self._epilogue = geometry, across, epilogue
        self._own = geometry.convolution.epilogue.outputs[0].name
        taken = {*epilogue.numbers, *(name for one in epilogue.inputs for name in (one.name, one.value))}
        self._reserved = reserved | taken
        self._names = _Channels(across, self._own, self._reserved).namer

    @property
    def _others(self) -> list[ProgramInput]:
        read = {one.input for one in self.program.values if isinstance(one, Load)}
        return [one for one in self.program.inputs if one.name != self._own and one.name in read]

    @property
    def parameters(self) -> list[tuple[str, str]]:
        """Of the kernels, beside those for the finish."""
        tensors = [
            (f"const {one.dtype.cpp}* __restrict__ {self._names.tensors[one.name]}", one.name) for one in self._others
        ]
        program = self.program
        numbers = [
            (f"{program.kinds[program.values.index(one)].cpp} {name}", "@filters" if one == COLS else one.expression)
            for one, name in self._names.parameters.items()
        ]
        return tensors + numbers

    @property
    def is_reduced(self) -> bool:
        """Whether a single number is stored for a position."""
        return not self.program.outputs[0].varies

    @property
    def kept(self) -> int:
        """Numbers that are kept of every position while its channels are worked on."""
        return len(self.program.reductions)

    @cached_property
    def helpers(self) -> list[list[str]]:
        """Functions that the kernels call, without those that the finish has."""
        kernel = _Channels(self.program, self._own, self._reserved)
        for number in range(self.program.sweeps):
            kernel.sweep_lines(number)
        kernel.result_lines()
        had = {_signature(one) for piece in self._epilogue.helpers for one in piece}
        helpers = steady_helpers(self.geometry.convolution, kernel.forms.helpers())
        pieces = [one for one in helpers if _signature(one) not in had]
        names = dict.fromkeys(kernel.combiner(index) for index in kernel.program.reductions)
        return [[one] for one in (*pieces, *(_EXTREMES.get(name, COMBINERS[name]) for name in names))]

    # -- in the product --

    def functions(self) -> str:
        return _CUDA["over_lanes"]

    def product_text(self) -> str:
        """What a consumer does with its sums; where a result remains for every channel, those are in place of them."""
        kernel = _Channels(self.program, self._own, self._reserved)
        order = self.program.reductions
        lines, scope = _CUDA["rows_of_lane"].splitlines(), list[str]()
        for number in range(self.program.sweeps):
            before = [_COLUMN] if number else []
            before += [_kept(kernel, one) for level in range(number) for one in kernel.own_reductions(level)]
            more, element = kernel.sweep_lines(number)
            scope += more
            own = kernel.own_reductions(number)
            finished = ["float& value = sum[r / 2][c / 2 * 4 + r % 2 * 2 + c % 2];"]
            finished += [f"value = {self._epilogue.call('value')};"] if number == 0 and self._epilogue.function else []
            words = {
                "known": _used([*before, *scope], element),
                "parts": [f"float {kernel.part(one)}[COLUMNS];" for one in own],
                "begun": [line for one in own for line in kernel.declared(one)],
                "element": [*finished, *element],
                "kept": [f"{kernel.part(one)}[c] = {kernel.accumulator(one)};" for one in own],
                "combined": [
                    f"over_channels({kernel.part(one)}, {kernel.combiner(one)}{{}}, of_warps, "
                    f"of_columns + {order.index(one)} * COLUMN_VALUES, consumer);"
                    for one in own
                ],
            }
            lines += worded(_CUDA["sweep"], words).splitlines()
        if self.is_reduced:
            known = [_kept(kernel, one) for one in order]
            made, stored = kernel.result_lines()
            words = {"made": _used([*known, *scope, *made], [stored]), "stored": [stored]}
            lines += worded(_CUDA["store_columns"], words).splitlines()
        return "\n".join(lines)

    # -- where results are made again --

    def again_text(self) -> str:
        """The same for one position, whose channels a warp has: `value` has those of a lane, each 32nd."""
        kernel = _Channels(self.program, self._own, self._reserved)
        lines: list[str] = []
        output = self.program.outputs[0]
        for number in range(self.program.sweeps):
            scope, element = kernel.sweep_lines(number)
            own = kernel.own_reductions(number)
            first = [f"value = {self._epilogue.call('value')};"] if number == 0 and self._epilogue.function else []
            last = number == self.program.sweeps - 1 and output.varies
            stored = [f"y[first_at + channel * s.plane()] = {write_text(output.dtype, Text('value'))};"] if last else []
            text = worded(_CUDA["sweep_again"], {"element": [*first, *element, *stored]})
            lines += [*scope, *(line for one in own for line in kernel.declared(one)), *text.splitlines()]
            lines += [
                f"{kernel.accumulator(one)} = over_warp({kernel.accumulator(one)}, {kernel.combiner(one)}{{}});"
                for one in own
            ]
        if self.is_reduced:
            made, value = kernel.result_lines()
            place = "first_at - image * (filters - 1) * s.plane()"
            lines += ["if (lane == 0) {", *indented([*made, f"y[{place}] = {value};"]), "}"]
        return "\n".join(lines)


class _Channels(RowKernel):
    """The state of the work on rows of channels, an element of which is in `value`."""

    def __init__(self, program: RowProgram, own: str, reserved: frozenset[str]) -> None:
        super().__init__(program, quick=True)
        self.namer = Namer(program, reserved)
        self.forms = Forms(program, self.namer, quick=True)
        self.statements = Statements(program, self.forms, self.namer)
        self._own = own

    def sweep_lines(self, number: int) -> tuple[list[str], list[str]]:
        """What is found for a position before a sweep, and what is done with each of its channels."""
        targets = self.targets(number)
        scope = self.row_scope(self.statements.row_values(targets, self.known()))
        hold = self._replaces(number)
        lines, texts = self.statements.write(targets, self.known(), self._load, frozenset(hold))
        for index in self.own_reductions(number):
            lines.append(self._accumulate(index, texts[self._reduce(index).argument], "", False))
        last = number == self.program.sweeps - 1
        made = [one.value for one in self.program.outputs_along] if last else list(hold)
        lines += [f"value = {texts[one].text};" for one in made if texts[one].text != "value"]
        self.held |= dict.fromkeys(hold, "value")
        self.reduced(number, "")
        return scope, lines

    def result_lines(self) -> tuple[list[str], str]:
        """Statements for what is stored for a position, and its text."""
        targets = tuple(one.value for one in self.program.outputs_of_row)
        lines, texts = self.statements.write(targets, self.row_known, self.row_load)
        stored = [write_text(one.dtype, texts[one.value]) for one in self.program.outputs_of_row]
        return lines, stored[0] if stored else ""

    def _replaces(self, number: int) -> tuple[int, ...]:
        """A value that is dear, and takes the place of what it was made from where nothing later needs that."""
        held = self.choose_held(number)
        if len(held) != 1:
            return ()
        later = [one for after in range(number + 1, self.program.sweeps) for one in self.targets(after)]
        inner = self.statements.closure(tuple(later), {*self.row_known, *held})
        reads = (self.program.values[one] for one in inner)
        return () if Load(self._own) in reads else held

    def _load(self, one: ProgramInput) -> str:
        if one.name == self._own:
            return "value"
        return f"{self.name(one.name)}[channel]" if one.varies else self.row_load(one)


def _kept(kernel: RowKernel, index: int) -> str:
    """What a reduction has come to, for a position."""
    place = kernel.program.reductions.index(index)
    return f"const float {kernel.accumulator(index)} = of_columns[{place} * COLUMN_VALUES + column];"


def _used(lines: list[str], after: list[str]) -> list[str]:
    """Declarations without those that neither later ones nor the lines after them use."""
    found: list[str] = []
    for line in reversed(lines):
        name = line.partition(" = ")[0].split()[-1]
        if any(re.search(rf"\b{name}\b", one) for one in (*found, *after)):
            found.insert(0, line)
    return found


def _signature(helper: str) -> str:
    """The line that names a function of the file's own."""
    named: Iterable[str] = (line for line in helper.splitlines() if line.startswith("__device__"))
    return next(iter(named), helper)


_EXTREMES = {
    name: worded(_CUDA["extreme"], {"name": name, "form": form}) + "\n"
    for name, form in (("Maximum", "max"), ("Minimum", "min"))
}
_COLUMN = "const int column = lane / 4 % ROWS_OF_FILTER * POSITIONS + c / 2 * 8 + lane % 4 * 2 + c % 2;"
OVER_WARP = _CUDA["over_warp"]

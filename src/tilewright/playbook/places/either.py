"""Reads of which one or the other is made, such as those of the other half of a row: one load from a chosen place."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import permutations

from tilewright.playbook.cpp_text import Text
from tilewright.playbook.places.indices import Condition, Index, Variable
from tilewright.playbook.places.program import PlacedProgram, places_of
from tilewright.playbook.places.reader import Leaf, Position, Read
from tilewright.playbook.places.sizes import Size
from tilewright.playbook.places.text import Held, PlacedKernel
from tilewright.playbook.places.vectors import Known, Mode, zero_of
from tilewright.playbook.row_program import LaunchNumber, Load, Pointwise


@dataclass(frozen=True)
class EitherHeld(Held):
    """Vectors of which two reads of a tensor share one, where one is made below a bound and the other from there on.

    Two loads to the same registers would wait for each other, and registers of their own are twice as many.
    """

    @cached_property
    def others(self) -> dict[str, str]:
        """The second of two reads, by the first."""
        found: dict[str, str] = {}
        for first, second in permutations(self.reads, 2):
            taken = {*found, *found.values()}
            whole = self.kernel.modes[first] is self.kernel.modes[second] is Mode.VECTOR
            if whole and not taken & {first, second} and _exclude(self.reads[first], self.reads[second]):
                found[first] = second
        return found

    @cached_property
    def firsts(self) -> dict[str, str]:
        return {second: first for first, second in self.others.items()}

    @cached_property
    def guarded(self) -> set[str]:
        """Those of them whose zeros matter where the other is made."""
        pairs = self.others.items()
        return {
            name for first, second in pairs for name in _seen_beyond(self.kernel.program, self.reads, first, second)
        }

    @property
    def own(self) -> list[str]:
        """The reads that have vectors."""
        return [name for name in self.reads if name not in self.firsts]

    def declaration(self, name: str, count: str = "") -> str:
        """Zeros, where it is not always read."""
        read = self.reads[name]
        zeros = " = {}" if read.conditions and name not in self.others else ""
        return f"Vector<{read.dtype.cpp}> {self.name(name)}{count}{zeros};"

    def filled(self, name: str, known: Known) -> list[str]:
        """The declaration and the load of a vector."""
        loads = self.load(name, known)
        if self.reads[name].conditions and name not in self.others:
            return [self.declaration(name), *loads]
        return [f"const Vector<{self.reads[name].dtype.cpp}> {loads[0]}"]

    def load(self, name: str, known: Known) -> list[str]:
        """Statements that fill the vector of a read."""
        kernel, read, target = self.kernel, self.reads[name], f"{self.name(name)}{self.at}"
        if name not in self.others:
            return kernel.load_vector(read, kernel.modes[name], known, target)
        pointer, place = kernel.at(read.tensor, read.place, known)
        _, other = kernel.at(read.tensor, self.reads[self.others[name]].place, known)
        chosen = f"({kernel.test(read.conditions, known)} ? {place} : {other})"
        return [f"{target} = *reinterpret_cast<const Vector<{read.dtype.cpp}>*>({pointer} + {chosen});"]

    def element(self, name: str, leaf: Leaf, known: Known) -> str:
        text = super().element(self.firsts.get(name, name), leaf, known)
        if name not in self.guarded:
            return text
        read = self.reads[name]
        return f"({self.kernel.test(read.conditions, known)} ? {text} : {zero_of(read.dtype.cpp)})"


def _exclude(first: Read, second: Read) -> bool:
    """Whether of two reads of a tensor the first is made below a bound, and the second from there on."""
    if first.tensor != second.tensor or len(first.conditions) != 1 or len(second.conditions) != 1:
        return False
    (below,), (above,) = first.conditions, second.conditions
    return below.index == above.index and below.low is None and above.high is None and below.high == above.low


def _comparison(program: PlacedProgram, number: int) -> tuple[Index, str, bool] | None:
    """The place, the plan's text of the bound, and whether a value says that it is below; None for any other value."""
    value = program.values[number]
    if not isinstance(value, Pointwise) or value.op not in ("lt", "ge"):
        return None
    place, limit = (program.values[one] for one in value.arguments)
    leaf = program.leaves[place.input] if isinstance(place, Load) else None
    if not isinstance(leaf, Position) or not isinstance(limit, LaunchNumber):
        return None
    return leaf.place, limit.expression, value.op == "lt"


def _seen_beyond(program: PlacedProgram, reads: dict[str, Read], first: str, second: str) -> set[str]:
    """Those of two reads that results need other than on their side of a choice by the bound between them."""
    (below,) = reads[first].conditions
    assert below.high is not None
    found: set[str] = set()
    seen: set[tuple[int, bool | None]] = set()
    left: list[tuple[int, bool | None]] = [(one, None) for one in program.targets]
    while left:
        number, side = left.pop()
        if (number, side) in seen:
            continue
        seen.add((number, side))
        value = program.values[number]
        if isinstance(value, Load) and value.input == (second if side else first if side is False else value.input):
            found |= {value.input} & {first, second}
        if isinstance(value, Load):
            left += [(one.value, None) for place in places_of(program.leaves[value.input]) for one in place.lookups]
        if not isinstance(value, Pointwise):
            continue
        test = _comparison(program, value.arguments[0]) if value.op == "where" else None
        if side is None and test is not None and test[:2] == (below.index, below.high.text):
            left += [(value.arguments[1], test[2]), (value.arguments[2], not test[2])]
        else:
            left += [(one, side) for one in value.arguments]
    return found


def decided_tests(
    kernel: PlacedKernel, reads: dict[str, Read], turning: Variable | None = None
) -> tuple[list[str], Known]:
    """Statements for comparisons of places with bounds of reads: where those are whole vectors, so are both sides of a
    bound, and all elements of a vector have the answer in common. None that asks for the turning variable."""
    program = kernel.program
    bounds: dict[tuple[Index, str], Size] = {}
    for condition in (one for read in reads.values() for one in read.conditions):
        ends = (one for one in (condition.low, condition.high) if one is not None)
        bounds |= {(condition.index, one.text): one for one in ends}
    lines: list[str] = []
    known: Known = {}
    for number in sorted(program.live):
        found = _comparison(program, number) if kernel.rows.varies[number] else None
        bound = bounds.get(found[:2]) if found is not None else None
        if found is None or bound is None or (turning is not None and found[0].mentions(turning)):
            continue
        test = Condition(found[0], None, bound) if found[2] else Condition(found[0], bound, None)
        known[number] = Text(kernel.namer.fresh("below" if found[2] else "beyond"))
        lines.append(f"const bool {known[number].text} = {kernel.test((test,), {})};")
    return lines, known

"""Placed elements as C++: places, loads one by one and by vectors, and the numbers that a launch must give for them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.playbook.cpp_text import Forms, Namer, Statements, Text, write_text
from tilewright.playbook.file_text import KernelSignature, PlanLines
from tilewright.playbook.places.indices import Atom, Condition, Index, Lookup, Quotient, Variable
from tilewright.playbook.places.program import PlacedProgram, Written, places_of
from tilewright.playbook.places.reader import Leaf, Position, Read, Whole
from tilewright.playbook.places.sizes import Size
from tilewright.playbook.places.vectors import Element, Known, Mode, alignment, each_element, zero_of
from tilewright.playbook.row_program import COLS, LaunchNumber, Load, ProgramInput
from tilewright.records import DType

_LONGEST_LINE = 120


class PlacedKernel:
    """One kernel being written. The innermost loop variable is `vector`, if a thread has several elements along it."""

    def __init__(
        self,
        program: PlacedProgram,
        plan: PlanLines,
        vector: Variable | None,
        quick: bool = True,
        width: int = 0,
        reserved: frozenset[str] = frozenset(),
    ) -> None:
        self.program = program
        self.plan = plan
        self.vector = vector
        rows = program.as_rows(vector)
        self.namer = Namer(rows, reserved)
        self.forms = Forms(rows, self.namer, quick)
        self.statements = Statements(rows, self.forms, self.namer)
        self.rows = rows
        self.pointers: dict[str, str] = {}
        self._sizes: dict[tuple[str, str], str] = {}  # parameters, by plan text and type
        self._variables: dict[Variable, str] = {}
        self.width = width or 16 // max((one.itemsize for one in self._vector_dtypes()), default=4)
        self.modes = {name: self._mode(name, leaf) for name, leaf in program.leaves.items() if isinstance(leaf, Read)}

    # -- vectors --

    def _vector_dtypes(self) -> list[DType]:
        reads = [one.dtype for one in self.program.reads.values() if self.vector and one.place.mentions(self.vector)]
        return [*reads, *(one.dtype for one in self.program.outputs)]

    def _mode(self, name: str, read: Read) -> Mode:
        if self.vector is None:
            return Mode.EACH
        varying = self.program.varying(self.vector)
        if not varying[name]:
            return Mode.SAME
        lookups = tuple(one.value for place in places_of(read) for one in place.lookups)
        if any(varying[leaf] for leaf in self.program.leaves_of(lookups)):
            return Mode.EACH  # each element of a vector is looked up by itself
        factor = read.place.factor(self.vector)
        found = alignment(read, self.vector)
        if found is None or factor is None or not found.holds(self.width):
            return Mode.EACH
        return Mode.VECTOR if factor.is_always(1) else Mode.REVERSED

    def alignment_sizes(self) -> list[Size]:
        """What must be multiples of WIDTH for whole vectors: the length of what they go along, and where reads and
        results that are made of vectors begin."""
        assert self.vector is not None
        sizes: list[Size] = [self.vector.size]
        for name, mode in self.modes.items():
            read = self.program.leaves[name]
            if mode in (Mode.VECTOR, Mode.REVERSED) and isinstance(read, Read):
                found = alignment(read, self.vector)
                assert found is not None
                sizes += found.sizes
        for one in self.program.outputs:
            along = one.place.factor(self.vector)
            if along is not None:
                sizes += [factor for atom, factor in one.place.terms if atom != self.vector]
                sizes.append(one.place.constant.plus(self._one) if along.own < 0 else one.place.constant)
        kept: list[Size] = []
        for size in sizes:
            always = size.literal is not None and size.literal % self.width == 0
            inferred = any(one.divides(size) and one.text in size.text for one in kept)
            if not always and size not in kept and not inferred:
                kept.append(size)
        return kept

    @property
    def _one(self) -> Size:
        return Size((1,) * len(self.program.variables[0].size.values), "1")

    # -- names --

    def pointer(self, tensor: str) -> str:
        if tensor not in self.pointers:
            is_result = any(one.name == tensor for one in self.program.outputs)
            self.pointers[tensor] = self.namer.tensors[tensor] if is_result else self.namer.fresh(tensor)
        return self.pointers[tensor]

    def variable(self, variable: Variable) -> str:
        if variable not in self._variables:
            self._variables[variable] = self.namer.fresh(variable.name)
        return self._variables[variable]

    def size(self, size: Size, kind: str = "long long") -> str:
        """A number of the plan in the kernel: itself, or a parameter."""
        if size.literal is not None:
            return f"{size.literal}ll" if kind == "long long" else str(size.literal)
        key = (size.text, kind)
        if key not in self._sizes:
            self._sizes[key] = self.namer.fresh(f"{size.name[:36]}_{'size' if kind == 'long long' else 'count'}")
        return self._sizes[key]

    def signature(self, outputs: tuple[str, ...], more: list[tuple[str, str]]) -> KernelSignature:
        """Tensors mentioned, results, what a structure adds as (declaration, plan expression), and numbers."""
        types = {one.tensor: one.dtype for one in self.program.leaves.values() if isinstance(one, Read)}
        results = {one.name: one.dtype for one in self.program.outputs}
        pairs = [
            (f"const {types[name].cpp}* __restrict__ {cpp}", name)
            for name, cpp in self.pointers.items()
            if name not in outputs
        ]
        pairs += [(f"{results[name].cpp}* __restrict__ {self.pointer(name)}", name) for name in outputs]
        pairs += more
        pairs += [(f"{kind} {name}", text) for (text, kind), name in self._sizes.items()]
        values, kinds = self.program.values, self.program.kinds
        used = {values[index] for index in self.program.live}
        pairs += [
            (f"{kinds[values.index(parameter)].cpp} {name}", parameter.expression)
            for parameter, name in self.namer.parameters.items()
            if parameter != COLS and parameter in used and isinstance(parameter, LaunchNumber)
        ]
        return KernelSignature([one for one, _ in pairs], [one for _, one in pairs])

    # -- places --

    def at(self, tensor: str, place: Index, known: Known, shift: str = "") -> tuple[str, str]:
        """The pointer from which a place is counted, and the text of the place."""
        return self.pointer(tensor), self.index(place, known, shift)

    def index(self, index: Index, known: Known, shift: str = "", kind: str = "long long") -> str:
        """The text of a place; `shift` is added to the variable that vectors go along."""
        parts: list[str] = []
        for atom, factor in index.terms:
            text = self._atom(atom, known, shift)
            if factor.is_always(1):
                parts.append(text)
            elif factor.is_always(-1):
                parts.append(f"-{text}")
            else:
                parts.append(f"{self.size(factor, kind)} * {text}")
        if not index.constant.is_always(0) or not parts:
            parts.append(self.size(index.constant, kind))
        return " + ".join(parts).replace("+ -", "- ")

    def _atom(self, atom: Atom, known: Known, shift: str) -> str:
        if isinstance(atom, Variable):
            name = self.variable(atom)
            return f"({name} + {shift})" if shift and atom == self.vector else name
        if isinstance(atom, Lookup):
            text = known[atom.value].text
            if atom.size is None:
                return text if text.isidentifier() else f"({text})"
            return f"({text} < 0 ? {text} + {self.size(atom.size)} : {text})"
        sign = "/" if isinstance(atom, Quotient) else "%"
        inner = self.index(atom.index, known, shift)
        return f"({inner if inner.isidentifier() else f'({inner})'} {sign} {self.size(atom.divisor, 'int')})"

    def test(self, conditions: tuple[Condition, ...], known: Known, shift: str = "") -> str:
        tests: list[str] = []
        for one in conditions:
            place = self.index(one.index, known, shift)
            tests += [f"{place} >= {self.size(one.low)}"] if one.low is not None else []
            tests += [f"{place} < {self.size(one.high)}"] if one.high is not None else []
        return " && ".join(tests)

    # -- loads --

    def value_of(self, leaf: str) -> int:
        """The number of the value that is a leaf's."""
        values = enumerate(self.program.values)
        return next(index for index, value in values if isinstance(value, Load) and value.input == leaf)

    def held(self, targets: tuple[int, ...], at: str = "") -> Held:
        """What these values need of reads that are vectors; `at` says which of a thread's vectors is meant."""
        leaves = self.program.leaves_of(targets)
        whole = (Mode.VECTOR, Mode.REVERSED)
        reads = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, Read) and self.modes[name] in whole}
        return Held(self, reads, at)

    def load_alone(self, name: str, leaf: Leaf, known: Known) -> str:
        return self.load(leaf, known)

    def load(self, leaf: Leaf, known: Known, shift: str = "") -> str:
        """A leaf's element by itself."""
        if isinstance(leaf, Position):
            return f"static_cast<long long>({self.index(leaf.place, known, shift)})"
        assert isinstance(leaf, Read), "a family knows its own"
        pointer, place = self.at(leaf.tensor, leaf.place, known, shift)
        element = f"{pointer}[{place}]"
        if not leaf.conditions:
            return element
        return f"({self.test(leaf.conditions, known, shift)} ? {element} : {zero_of(leaf.dtype.cpp)})"

    def load_vector(self, read: Read, mode: Mode, known: Known, target: str) -> list[str]:
        """Statements that fill a declared vector."""
        shift = "WIDTH - 1" if mode is Mode.REVERSED else ""
        pointer, place = self.at(read.tensor, read.place, known, shift)
        kind = f"Vector<{read.dtype.cpp}>"
        text = f"{target} = *reinterpret_cast<const {kind}*>({pointer} + {place});"
        if not read.conditions:
            return [text]
        return [f"if ({self.test(read.conditions, known)}) {text}"]

    # -- statements --

    def write(
        self,
        targets: tuple[int, ...],
        known: Known,
        load: Element,
        named: frozenset[int] = frozenset(),
    ) -> tuple[list[str], Known]:
        """Statements after which every target has a text; what places are looked up by comes first."""
        lines: list[str] = []
        needed = [index for index in self.lookups(targets, known) if index not in known]
        for index in needed:
            more, texts = self.write((index,), known, load, frozenset((index,)))
            lines += more
            known = {**known, **{one: text for one, text in texts.items() if one == index or text.text.isidentifier()}}
        leaves = self.program.leaves

        def text_of(one: ProgramInput) -> str:
            return load(one.name, leaves[one.name], known)

        more, texts = self.statements.write(targets, known, text_of, named)
        return [*lines, *more], texts

    def lookups(self, targets: tuple[int, ...], known: Known) -> list[int]:
        """The values by which places are looked up that these need next."""
        direct = self.statements.closure(targets, set(known))
        found: list[int] = []
        for index in sorted(direct):
            value = self.program.values[index]
            leaf = self.program.leaves[value.input] if isinstance(value, Load) else None
            if leaf is not None and not isinstance(leaf, Whole):
                found += [one.value for place in places_of(leaf) for one in place.lookups]
        return list(dict.fromkeys(found))

    def store_each(self, known: Known) -> list[str]:
        """Statements that make and store the results' elements at the loop variables."""
        outputs = self.program.outputs
        lines, texts = self.write(tuple(one.value for one in outputs), known, self.load_alone)
        for one in outputs:
            pointer, place = self.at(one.name, one.place, known)
            lines.append(f"{pointer}[{place}] = {self.stored(one, texts[one.value])};")
        return lines

    def store_vectors(self, known: Known, element: Element) -> list[str]:
        """The same for a vector of them each, from its end where a result lies the other way."""
        outputs = self.program.outputs
        turned = {one.name for one in outputs if self._lies_backwards(one)}
        lines = [f"Vector<{one.dtype.cpp}> {self.pointer(one.name)}_made;" for one in outputs]
        inner, texts = self.write(tuple(one.value for one in outputs), known, element)
        for one in outputs:
            i = "WIDTH - 1 - i" if one.name in turned else "i"
            inner.append(f"{self.pointer(one.name)}_made.at[{i}] = {self.stored(one, texts[one.value])};")
        lines += each_element(inner)
        for one in outputs:
            place = self.index(one.place, known, "WIDTH - 1" if one.name in turned else "")
            name = self.pointer(one.name)
            lines.append(f"*reinterpret_cast<Vector<{one.dtype.cpp}>*>({name} + {place}) = {name}_made;")
        return lines

    def _lies_backwards(self, output: Written) -> bool:
        along = output.place.factor(self.vector) if self.vector is not None else None
        return along is not None and along.own < 0

    def launched(
        self,
        suffix: str,
        grid: str,
        block: str,
        bounds: str,
        body: list[str],
        more: list[tuple[str, str]],
        outputs: tuple[str, ...] | None = None,
        rest: str = "",
        once: bool = False,
    ) -> list[str]:
        """The kernel's text, with its launch in the plan, of which `rest` is the end; `outputs` where it writes other
        tensors than the program's results. `once`: what it reads by vectors it reads once."""
        if outputs is None:
            outputs = tuple(one.name for one in self.program.outputs)
        signature = self.signature(outputs, more)
        name = f"{self.program.name}_{suffix}"
        self.plan.launch(name, grid, block, signature.given, rest)
        lines = [f"{one} = read_once({one});" for one in self.read_by_vectors()] if once else []
        return kernel_lines(signature, f"__launch_bounds__({bounds})", name, [*lines, *body])

    def read_by_vectors(self) -> list[str]:
        """The tensors whose places no other tensor decides, under their names in the kernel."""
        whole = [name for name, mode in self.modes.items() if mode in (Mode.VECTOR, Mode.REVERSED)]
        reads = [one for name in whole if isinstance(one := self.program.leaves[name], Read) and not one.place.lookups]
        return list(dict.fromkeys(self.pointers[one.tensor] for one in reads if one.tensor in self.pointers))

    # -- what threads own --

    def split(self, variables: tuple[Variable, ...], flat: str, turning: Variable | None = None) -> list[str]:
        """The variables, outermost first, from a number that counts through all of them; through `groups` of the
        turning one, each of TURNS places from `first_turn` on."""
        lines: list[str] = []
        for place, variable in enumerate(reversed(variables)):
            source = flat if place == 0 else "rest"
            last = place == len(variables) - 1
            size = "groups" if variable == turning else "" if last else self.size(variable.size, "int")
            number = f"static_cast<int>({source if last else f'{source} % {size}'})"
            name = "first_turn" if variable == turning else self.variable(variable)
            lines.append(f"const int {name} = {number}{' * TURNS' if variable == turning else ''};")
            if not last:
                lines.append(f"{'auto rest' if place == 0 else 'rest'} = {source} / {size};")
        return lines

    def stored(self, output: Written, text: Text) -> str:
        return write_text(output.dtype, text)


def product_text(variables: tuple[Variable, ...]) -> str:
    """How many elements the variables go through, as the plan says it."""
    texts = [f"({one.size.text})" if " " in one.size.text else one.size.text for one in variables]
    return " * ".join(texts) or "1"


def kernel_lines(signature: KernelSignature, qualifiers: str, name: str, body: list[str]) -> list[str]:
    """A kernel whose lines are short enough to read."""
    return [part for line in signature.kernel(qualifiers, name, body) for part in _short(line)]


def _short(line: str) -> list[str]:
    """A long statement on several lines; one with a string or a remark stays as it is."""
    if len(line) <= _LONGEST_LINE or '"' in line or "//" in line:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(
        line.strip(),
        _LONGEST_LINE,
        initial_indent=indent,
        subsequent_indent=f"{indent}    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


@dataclass(frozen=True)
class Held:
    """Vectors of reads in a thread's registers, called after what they are of: `x_here[k]`."""

    kernel: PlacedKernel
    reads: dict[str, Read]
    at: str

    def name(self, name: str, which: str = "here") -> str:
        return f"{self.kernel.namer.tensors[name]}_{which}"

    def declared(self, *names: str) -> list[str]:
        """A declaration for each read; `names` such as `here[VECTORS]`."""
        return [
            f"Vector<{read.dtype.cpp}> {', '.join(self.name(name, one) for one in names)};"
            for name, read in self.reads.items()
        ]

    def loads(self, which: str = "here") -> list[str]:
        """Statements that fill the vectors; what their places are looked up by comes first."""
        places = (place for read in self.reads.values() for place in places_of(read))
        wanted = tuple(dict.fromkeys(one.value for place in places for one in place.lookups))
        lines, known = self.kernel.write(wanted, {}, self.kernel.load_alone, frozenset(wanted))
        for name, read in self.reads.items():
            lines += self.kernel.load_vector(read, self.kernel.modes[name], known, f"{self.name(name, which)}{self.at}")
        return lines

    def element(self, name: str, leaf: Leaf, known: Known) -> str:
        """Element i of a leaf, inside the loop over a vector."""
        if name not in self.reads:
            return self.kernel.load(leaf, known, "i")
        i = "WIDTH - 1 - i" if self.kernel.modes[name] is Mode.REVERSED else "i"
        return f"{self.name(name)}{self.at}.at[{i}]"


def width_line(plan: PlanLines, *kernels: PlacedKernel, more: Iterable[Size] = ()) -> None:
    """WIDTH: as many elements as 16 bytes hold, where rows and all of these sizes are whole vectors."""
    width = kernels[0].width
    sizes = dict.fromkeys(size for kernel in kernels for size in kernel.alignment_sizes())
    sizes |= dict.fromkeys(size for size in more if size.literal is None or size.literal % width)
    texts = (f"({size.text})" if " " in size.text else size.text for size in sizes)
    tests = " and ".join(f"{text} % {width} == 0" for text in texts)
    if tests:
        plan.add("const", f"WIDTH = {width} if {tests} else 1", "elements of a load")
    else:
        plan.add("const", f"WIDTH = {width}", "elements of a 16-byte load")

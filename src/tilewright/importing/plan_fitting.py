"""From the calls of a launcher to a plan: symbols, launches and buffers as text.

Everything a plan says was the same function of the sizes in every call; where no expression was found, the plan is
pinned to the sizes of the first call, and says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.importing.calls import BARE_ELEMENTS, CallSpec, Given
from tilewright.importing.entries import entries, flat_names
from tilewright.importing.fitting import Fitter, Term
from tilewright.importing.recording import Pointer, Run, TemplateType
from tilewright.importing.records import ImportProblem
from tilewright.importing.sources import Kind, Source
from tilewright.kernel_file.cpp_tokens import CppToken
from tilewright.kernel_file.words import TAKEN

# -- a plan in the making: --

_TIE = re.compile(r"\w+\.shape\[\d+\] == \w+\.shape\[\d+\]")


@dataclass
class PlanText:
    """The parts of a plan, before it is known which tensors are written."""

    name: str
    parameters: list[Given]
    results: list[str] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)
    sizes: list[tuple[str, str]] = field(default_factory=list)  # numbers of the launcher that are sizes of tensors
    lets: list[tuple[str, str]] = field(default_factory=list)
    buffers: list[str] = field(default_factory=list)
    launches: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what the plan does not carry

    def text(self, written: frozenset[str] | None = None) -> str:
        """The plan; `written`: the tensors changed in place (None: not known yet, so all might be)."""
        names = []
        for one in self.parameters:
            if not one.is_passed:  # a plan's launches are on the caller's stream
                continue
            if one.kind in ("int", "float", "bool"):
                names.append(f"{one.name}: {one.kind}")
            elif one.value is None:
                names.append(f"{one.name}?")
            else:
                names.append(one.name + ("!" if written is None or one.name in written else ""))
        results = f" -> {', '.join(self.results)}" if self.results else ""
        lines = [f"op      {self.name}({', '.join(names)}){results}"]
        kinds = [need for need in self.needs if ".dtype" in need]
        lines += [f"need    {need}" for need in kinds]
        lines += _lets(self.sizes)
        lines += [f"need    {need}" for need in self.needs if need not in kinds]
        lines += _lets(self.lets)
        lines += self.buffers
        lines += self.launches
        return "".join(f"//! {line}\n" for line in lines)

    def with_bare(self, known: Container[str]) -> PlanText:
        """The plan with tensors whose sizes it never reads as what they are, pointers; those `known` have a shape."""
        said = [text for _, text in self.lets] + self.buffers + self.launches
        ties = [need for need in self.needs if _TIE.fullmatch(need)]
        said += [need for need in self.needs if need not in ties and ".dtype" not in need]
        read = {name for text in said for name in re.findall(r"(\w+)\.(?:shape|numel)", text)}
        bare = [one for one in self.parameters if one.has_shape and one.name not in read and one.name not in known]
        kinds = {f"{one.name}.dtype == {one.dtype} and {one.name}.ndim == {len(one.shape)}": one for one in bare}
        gone = {need for need in ties if any(f"{one.name}.shape" in need for one in bare)}
        needs = [f"{kinds[need].name}.dtype == {kinds[need].dtype}" if need in kinds else need for need in self.needs]
        large = {one.name: replace(one, shape=(BARE_ELEMENTS,), is_bare=True) for one in bare}
        parameters = [large.get(one.name, one) for one in self.parameters]
        return replace(self, parameters=parameters, needs=[need for need in needs if need not in gone])

    def with_lengths(self, shapes: Mapping[str, Sequence[str]]) -> PlanText:
        """The plan with what is known of pointers as needs."""
        numbers = self._numbers()
        least = {name: math.prod(_values(shape, numbers)) for name, shape in shapes.items()}
        parameters = [
            replace(one, shape=(max(least[one.name], *one.shape),)) if one.name in least else one
            for one in self.parameters
        ]
        told = [f"{name}.numel >= {' * '.join(shape)}" for name, shape in shapes.items()]
        return replace(self, parameters=parameters, needs=[*self.needs, *told])

    def _numbers(self) -> dict[str, int]:
        return {one.name: int(one.value) for one in self.parameters if one.kind == "int" and isinstance(one.value, int)}

    def with_shapes(self, shapes: Mapping[str, Sequence[str]]) -> PlanText:
        """The plan with tensors in place of plain pointers, each size a name or some times one; numbers that are
        sizes of tensors are read off them."""
        sizes: dict[str, str] = {}
        needs = list(self.needs)
        for tensor, shape in shapes.items():
            dtype = next(one.dtype for one in self.parameters if one.name == tensor)
            needs[needs.index(f"{tensor}.dtype == {dtype}")] += f" and {tensor}.ndim == {len(shape)}"
            sizes |= {
                one: f"{tensor}.shape[{d}]" for d, one in enumerate(shape) if one.isidentifier() and one not in sizes
            }
        for tensor, shape in shapes.items():
            texts = [(f"{tensor}.shape[{d}]", one) for d, one in enumerate(shape)]
            others = [f"{text} == {one}" for text, one in texts if sizes.get(one) != text]
            needs += [" and ".join(others)] if others else []
        numbers = self._numbers()
        parameters = [
            replace(one, shape=_values(shapes[one.name], numbers), is_bare=False) if one.name in shapes else one
            for one in self.parameters
            if one.name not in sizes
        ]
        return replace(self, parameters=parameters, needs=needs, sizes=list(sizes.items()))


def _lets(pairs: Sequence[tuple[str, str]]) -> list[str]:
    texts = [f"{name} = {text}" for name, text in pairs]
    return [f"let     {', '.join(texts[start : start + 4])}" for start in range(0, len(texts), 4)]


def _values(shape: Sequence[str], numbers: Mapping[str, int]) -> tuple[int, ...]:
    """`C * 3` and its like at the numbers of a call."""
    return tuple(math.prod(int(numbers.get(one, one)) for one in text.split(" * ")) for text in shape)


class PlanFitter:
    """Makes the plan of one launcher from its calls."""

    def __init__(self, name: str, source: Source, entry: str, calls: Sequence[CallSpec], runs: Sequence[Run]) -> None:
        self.source = source
        self.first = runs[0]
        self.entries = entries(source, self.first.launches)
        alike = [i for i, run in enumerate(runs) if not run.error and run.structure == self.first.structure]
        self.runs = [runs[i] for i in alike]
        self.calls = [calls[i] for i in alike]
        # Nothing launched is nothing to do: no other regime.
        self.others = [calls[i] for i, run in enumerate(runs) if run.launches and not run.error and i not in set(alike)]
        self.refused = [calls[i] for i, run in enumerate(runs) if run.error]
        self.given = calls[0].arguments
        self.plan = PlanText(name, list(self.given))
        tensors = (one for one in self.given if one.is_tensor and one.value is not None)
        self.names = {number: one.name for number, one in enumerate(tensors)}  # of tensors by number
        self.pinned = False
        self.aliases: dict[str, str] = {}  # parameters of kernels to what the plan passes for them
        self._named: list[Term] = []  # sizes that have a name of their own
        self._literals = literals(source)
        self._edges = edges(source, entry)
        lists = [f"{one.name} = {one.value}" for one in self.given if one.kind == "ints"]
        self.plan.notes += [f"it holds for {one} only: a plan takes no lists" for one in lists]

    def fit(self) -> PlanText:
        self._needs()
        self._regime()
        self._fitter = Fitter(self._symbols(), self._literals, self._edges)
        self._lets()
        self._fitter = Fitter(self._symbols(), self._literals, self._edges)
        self._buffers()
        for index in range(len(self.first.launches)):
            self.plan.launches.append(self._launch(index))
        if self.pinned:
            self._pin()
        return self.plan

    # -- sizes --

    def _symbols(self) -> list[Term]:
        return [*self._named, *symbols_of(self.calls)]

    def _needs(self) -> None:
        for one in self.given:
            if one.is_bare:
                self.plan.needs.append(f"{one.name}.dtype == {one.dtype}")
            elif one.has_shape:
                self.plan.needs.append(f"{one.name}.dtype == {one.dtype} and {one.name}.ndim == {len(one.shape)}")
            elif one.is_tensor:
                self.plan.needs.append(f"not has({one.name})")
        self.plan.needs += map(str, self.calls[0].relations)
        ties = self.calls[0].ties
        for (name, dimension), (other, other_dimension) in ties:
            self.plan.needs.append(f"{name}.shape[{dimension}] == {other}.shape[{other_dimension}]")

    def _regime(self) -> None:
        """Sizes at which the launcher does something else, as a need where one tells them apart."""
        for others, what in ((self.others, "launches other kernels"), (self.refused, "refuses to run")):
            if not others:
                continue
            found = separating_need(self.calls, others, self._literals)
            if found is not None:
                self.plan.needs.append(found)
            elif others is self.others:
                self.pinned = True
                self.plan.notes.append(f"at other sizes it {what}, and no simple condition tells which")
            else:
                self.plan.notes.append(
                    f"the original {what} at some sizes, such as {others[0].sizes_text}; no simple condition tells "
                    "which, so the kernel file takes them: add `need` lines where it should not"
                )

    def _lets(self) -> None:
        """Kernel parameters that are sizes give those sizes their names."""
        taken = {one.name for one in self.given} | TAKEN
        for index, launch in enumerate(self.first.launches):
            for position, value in enumerate(launch.arguments):
                name = self.kernel_parameters(launch.kernel, position)
                if isinstance(value, bool) or not isinstance(value, int) or name in taken or not name.isidentifier():
                    continue
                term = self._fit(lambda run, i=index, p=position: run.launches[i].arguments[p])  # type: ignore[misc]
                if term is None or term.text.isdigit() or term.text.isidentifier():
                    continue
                if any(text == term.text for _, text in self.plan.lets):
                    continue
                taken.add(name)
                self.plan.lets.append((name, term.text))
                self._named.append(Term(name, term.values))

    def kernel_parameters(self, kernel: str, position: int) -> str:
        for item in self.source.of_kind(Kind.KERNEL):
            if item.name == kernel:
                names = flat_names(self.source, item)
                return names[position] if position < len(names) else ""
        return ""

    def _fit(self, value: Callable[[Run], object]) -> Term | None:
        values = [value(run) for run in self.runs]
        if not all(isinstance(v, int) for v in values):
            return None
        return self._fitter.fit(tuple(int(v) for v in values))  # type: ignore[call-overload]

    def _number(self, what: str, value: Callable[[Run], object]) -> str:
        term = self._fit(value)
        if term is not None:
            return term.text
        self.pinned = True
        self.plan.notes.append(f"{what} was not recovered as an expression of the sizes")
        return str(value(self.first))

    # -- buffers --

    def _buffers(self) -> None:
        returned: dict[int, int] = {}
        for position, result in enumerate(self.first.results):
            if result is None:
                raise ImportProblem(f"{self.plan.name} returns something that is no tensor")
            if result.tensor in self.names:
                continue  # an input handed back: changed in place, or untouched
            if not result.is_whole:
                raise ImportProblem(f"{self.plan.name} returns part of a tensor, or a strided view of one")
            returned.setdefault(result.tensor, position)
        used = {a.tensor for launch in self.first.launches for a in launch.arguments if isinstance(a, Pointer)}
        for number, buffer in self.first.allocated.items():
            if number not in used and number not in returned:
                continue
            if number not in used:
                raise ImportProblem(f"{self.plan.name} returns a tensor that no kernel writes")
            is_result = number in returned
            name = self._new_name(number, "y" if is_result else "scratch")
            sizes = self._sizes(name, number, returned.get(number))
            word = "out" if is_result else "scratch"
            zero = " zeroed" if buffer.is_zero else ""
            self.plan.buffers.append(f"{word:7} {name}: {buffer.dtype}[{sizes}]{zero}")
            if is_result:
                self.plan.results.append(name)

    def _sizes(self, name: str, number: int, position: int | None) -> str:
        """The dimensions of a buffer; `position` among the results."""
        rank = len(_shape(self.first, number, position))
        what = [f"dimension {d} of {name}" for d in range(rank)]
        return ", ".join(self._number(what[d], lambda run, d=d: _shape(run, number, position)[d]) for d in range(rank))  # type: ignore[misc]

    def _new_name(self, number: int, fallback: str) -> str:
        """The kernel's own name for a buffer, where it is free."""
        taken = {
            *self.names.values(),
            *(name for name, _ in self.plan.lets),
            *(one.name for one in self.given),
            *TAKEN,
        }
        wished = fallback
        for launch in self.first.launches:
            for position, value in enumerate(launch.arguments):
                if isinstance(value, Pointer) and value.tensor == number:
                    wished = self.kernel_parameters(launch.kernel, position) or wished
        name = wished
        suffix = 2
        while name in taken:
            name, suffix = f"{wished}_{suffix}", suffix + 1
        self.names[number] = name
        return name

    # -- launches --

    def _launch(self, index: int) -> str:
        launch = self.first.launches[index]
        place = f"{self.source.name}:{launch.line}: the launch of {launch.kernel}"
        own = launch.own_names
        template = [self._template(place, index, i) for i in range(len(launch.template)) if i not in own]
        shown = f"<{', '.join(template)}>" if template else ""
        grid = self._dim3(f"{place}: its grid", lambda run: run.launches[index].grid)
        block = self._dim3(f"{place}: its block", lambda run: run.launches[index].block)
        smem = self._number(f"{place}: its shared memory", lambda run: run.launches[index].smem)
        config = f"{grid}, {block}" + (f", {smem}" if smem != "0" else "")
        arguments = [self._argument(place, index, i) for i in range(len(launch.arguments))]
        for position, text in enumerate(arguments):
            if text.isidentifier():
                self.aliases.setdefault(self.kernel_parameters(launch.kernel, position), text)
        entry = self.entries[index]
        name = f"{self.source.scope(launch.kernel)}{entry.name if entry is not None else launch.kernel}"
        line = f"launch  {name}{shown}<<<{config}>>>({', '.join(arguments)})"
        return line if len(line) < 110 else line.replace(">>>(", ">>>(\n//!             ", 1)

    def _template(self, place: str, index: int, position: int) -> str:
        value = self.first.launches[index].template[position]
        if isinstance(value, TemplateType):
            return value.name
        if isinstance(value, bool):
            return self._bool(place, lambda run: run.launches[index].template[position])
        text = self._number(f"{place}: a template argument", lambda run: run.launches[index].template[position])
        return text if " if " not in text else f"({text})"

    def _dim3(self, what: str, value: Callable[[Run], tuple[int, ...]]) -> str:
        sizes = [self._number(what, lambda run, d=d: value(run)[d]) for d in range(3)]  # type: ignore[misc]
        while len(sizes) > 1 and sizes[-1] == "1":
            sizes.pop()
        sizes = [f"({one})" if " if " in one else one for one in sizes]
        return sizes[0] if len(sizes) == 1 else f"dim3({', '.join(sizes)})"

    def _bool(self, what: str, value: Callable[[Run], object]) -> str:
        values = [value(run) for run in self.runs]
        if len(set(values)) == 1:
            return "true" if values[0] else "false"
        for position, one in enumerate(self.given):
            if one.kind == "bool" and [call.arguments[position].value for call in self.calls] == values:
                return one.name
        found = condition(self._fitter.products, [bool(one) for one in values], self._literals)
        if found is not None:
            return f"({found})"
        self.pinned = True
        self.plan.notes.append(f"{what}: a bool was not recovered")
        return "true" if values[0] else "false"

    def _argument(self, place: str, index: int, position: int) -> str:
        value = self.first.launches[index].arguments[position]
        what = f"{place}: argument {position + 1}"
        if value is None:
            return "none"
        if isinstance(value, str):
            raise ImportProblem(f"{what} is a struct; kernels take pointers and numbers")
        if isinstance(value, Pointer):
            return self._pointer(what, value, index, position)
        if isinstance(value, bool):
            return self._bool(what, lambda run: run.launches[index].arguments[position])
        if isinstance(value, float):
            return self._float(what, index, position)
        return self._number(what, lambda run: run.launches[index].arguments[position])

    def _pointer(self, what: str, value: Pointer, index: int, position: int) -> str:
        if value.offset_bytes:
            raise ImportProblem(f"{what} points into the middle of a tensor; a plan passes whole tensors")
        seen = {
            one.tensor if isinstance(one := run.launches[index].arguments[position], Pointer) else -1
            for run in self.runs
        }
        if seen != {value.tensor} or value.tensor not in self.names:
            raise ImportProblem(f"{what} is not the same tensor in every call")
        return self.names[value.tensor]

    def _float(self, what: str, index: int, position: int) -> str:
        values = [run.launches[index].arguments[position] for run in self.runs]
        if len(set(values)) == 1:
            return repr(values[0])
        numbers = [v for v in values if isinstance(v, float)]
        for number, one in enumerate(self.given):
            if one.kind == "float" and _close(numbers, [float(c.arguments[number].value or 0) for c in self.calls]):  # type: ignore[arg-type]
                return one.name
        for term in self._fitter.products:
            for text, make in _FLOAT_FORMS:
                if min(term.values) > 0 and _close(numbers, [make(v) for v in term.values]):
                    return text.format(term.text if term.is_atom else f"({term.text})")
        self.pinned = True
        self.plan.notes.append(f"{what}, a float, was not recovered as an expression of the sizes")
        return repr(values[0])

    def _pin(self) -> None:
        """The plan holds where everything is as in the first call."""
        for one in self.given:
            if one.has_shape:
                pins = [f"{one.name}.shape[{d}] == {size}" for d, size in enumerate(one.shape)]
                self.plan.needs.append(" and ".join(pins))
            elif one.kind in ("int", "bool"):
                self.plan.needs.append(f"{one.name} == {str(one.value).lower()}")
        self.plan.needs = [need for need in self.plan.needs if need]


_FLOAT_FORMS: tuple[tuple[str, Callable[[int], float]], ...] = (
    ("1.0 / {}", lambda n: 1.0 / n),
    ("1.0 / sqrt({})", lambda n: 1.0 / math.sqrt(n)),
    ("sqrt({})", math.sqrt),
    ("1.0 * {}", float),
)


def _shape(run: Run, number: int, position: int | None) -> tuple[int, ...]:
    result = run.results[position] if position is not None else None
    return result.shape if result is not None else run.allocated[number].shape


def _close(ones: Sequence[float], others: Sequence[float]) -> bool:
    return len(ones) == len(others) and all(
        math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-30) for a, b in zip(ones, others, strict=True)
    )


def literals(source: Source) -> list[int]:
    """The numbers that a source mentions."""
    found = {_number(token) for tokens in (source.cpp.code, *source.cpp.directives) for token in tokens}
    return sorted(n for n in found if 1 < n <= 1 << 20)


def edges(source: Source, entry: str) -> list[int]:
    """Sizes at which a launcher may turn to something else: what it compares with, and small multiples of that."""
    found = set()
    for item in source.reachable([entry], source.of_kind(Kind.HOST, Kind.MACRO)):
        tokens = item.tokens
        for index, token in enumerate(tokens):
            if number := _number(token):
                around = {tokens[i].text for i in (index - 1, index + 1) if 0 <= i < len(tokens)}
                if around & {"<", "<=", ">", ">=", "==", "case"}:
                    found |= {n for factor in (1, 2, 4, 8) for n in (number * factor, number * factor + factor - 1)}
    return sorted(n for n in found if 1 < n <= 1 << 17)


def _number(token: CppToken) -> int:
    digits = token.text.rstrip("uUlL")
    return int(digits) if token.kind == "number" and digits.isdigit() else 0


def symbols_of(calls: Sequence[CallSpec]) -> list[Term]:
    """Every size that a plan can name, with its value in each call."""
    terms = []
    for position, one in enumerate(calls[0].arguments):
        rows = [call.arguments[position] for call in calls]
        if one.has_shape:
            shapes = [row.shape for row in rows]
            texts = [f"{one.name}.shape[{d}]" for d in range(len(one.shape))]
            terms += [Term(t, tuple(s[d] for s in shapes)) for d, t in enumerate(texts)]
            if len(one.shape) > 1:
                terms.append(Term(f"{one.name}.numel", tuple(math.prod(s) for s in shapes)))
        elif one.kind == "int":
            terms.append(Term(one.name, tuple(row.value if isinstance(row.value, int) else 0 for row in rows)))
    terms.append(Term("device.sms", tuple(call.multiprocessors for call in calls)))
    return terms


def separating_need(inside: Sequence[CallSpec], outside: Sequence[CallSpec], literals: Sequence[int]) -> str | None:
    """A condition that holds in all of some calls and in none of others."""
    flags = [True] * len(inside) + [False] * len(outside)
    return condition(Fitter(symbols_of([*inside, *outside])).products, flags, literals)


def condition(terms: Sequence[Term], flags: Sequence[bool], literals: Sequence[int]) -> str | None:
    """What the terms say where a flag is set, and only there."""
    for term in terms[:200]:
        ins, outs = ([v for v, flag in zip(term.values, flags, strict=True) if flag is side] for side in (True, False))
        for c in sorted({2, 4, 8, 16, 32, 64, 128, *literals}):
            if all(v % c == 0 for v in ins) and all(v % c for v in outs):
                return f"{term.factor} % {c} == 0"
        edges = [c for c in literals if max(ins) <= c < min(outs)]
        if max(ins) < min(outs):
            return f"{term.text} <= {edges[0] if edges else max(ins)}"
        edges = [c for c in literals if max(outs) < c <= min(ins)]
        if max(outs) < min(ins):
            return f"{term.text} >= {edges[0] if edges else min(ins)}"
        if len(set(ins)) == 1 and ins[0] not in outs:
            return f"{term.text} == {ins[0]}"
    return None

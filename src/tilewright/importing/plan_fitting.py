"""Fits a launch plan to the recorded calls of a launcher.

A number in the plan is an expression of the sizes that holds in every call. If none is found for some number, the plan
is pinned to the sizes of the first call, and a note says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.importing.calls import POINTER_ELEMENTS, CallArgument, CallSpec
from tilewright.importing.fitting import Fitter, Term
from tilewright.importing.recording import Pointer, Run, TemplateType
from tilewright.importing.sources import ImportProblem, Kind, Source
from tilewright.importing.wrappers import flat_names, wrapper_kernels
from tilewright.kernel_file.cpp_tokens import CppToken
from tilewright.kernel_file.words import TAKEN

_TIE = re.compile(r"\w+\.shape\[\d+\] == \w+\.shape\[\d+\]")


@dataclass
class PlanText:
    """The parts of a plan. Which tensors are written is known only after the build."""

    name: str
    parameters: list[CallArgument]
    results: list[str] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)
    sizes: list[tuple[str, str]] = field(default_factory=list)  # launcher numbers that are tensor sizes
    lets: list[tuple[str, str]] = field(default_factory=list)
    buffers: list[str] = field(default_factory=list)
    launches: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what the plan leaves out

    def text(self, written: frozenset[str] | None = None) -> str:
        """The plan's text. `written`: the tensors changed in place; None: unknown, so all are marked."""
        names = []
        for one in self.parameters:
            if not one.is_passed:  # plans launch on the caller's stream
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

    def with_pointers(self, known: Container[str]) -> PlanText:
        """The plan with tensors whose sizes it never reads turned into plain pointers, except those in `known`."""
        texts = [text for _, text in self.lets] + self.buffers + self.launches
        equal_sizes = [need for need in self.needs if _TIE.fullmatch(need)]
        texts += [need for need in self.needs if need not in equal_sizes and ".dtype" not in need]
        read = {name for text in texts for name in re.findall(r"(\w+)\.(?:shape|numel)", text)}
        bare = [one for one in self.parameters if one.has_shape and one.name not in read and one.name not in known]
        kinds = {f"{one.name}.dtype == {one.dtype} and {one.name}.ndim == {len(one.shape)}": one for one in bare}
        gone = {need for need in equal_sizes if any(f"{one.name}.shape" in need for one in bare)}
        needs = [f"{kinds[need].name}.dtype == {kinds[need].dtype}" if need in kinds else need for need in self.needs]
        large = {one.name: replace(one, shape=(POINTER_ELEMENTS,), is_pointer=True) for one in bare}
        parameters = [large.get(one.name, one) for one in self.parameters]
        return replace(self, parameters=parameters, needs=[need for need in needs if need not in gone])

    def with_lengths(self, shapes: Mapping[str, Sequence[str]]) -> PlanText:
        """The plan with `need NAME.numel >= ...` for pointers whose extent is known."""
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
        """The plan with tensors in place of plain pointers. Numbers that are sizes are read from the tensors."""
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
            replace(one, shape=_values(shapes[one.name], numbers), is_pointer=False) if one.name in shapes else one
            for one in self.parameters
            if one.name not in sizes
        ]
        return replace(self, parameters=parameters, needs=needs, sizes=list(sizes.items()))


def _lets(pairs: Sequence[tuple[str, str]]) -> list[str]:
    texts = [f"{name} = {text}" for name, text in pairs]
    return [f"let     {', '.join(texts[start : start + 4])}" for start in range(0, len(texts), 4)]


def _values(shape: Sequence[str], numbers: Mapping[str, int]) -> tuple[int, ...]:
    """The values of sizes such as `C * 3`."""
    return tuple(math.prod(int(numbers.get(one, one)) for one in text.split(" * ")) for text in shape)


class PlanFitter:
    """Fits the plan of one launcher."""

    def __init__(self, name: str, source: Source, entry: str, calls: Sequence[CallSpec], runs: Sequence[Run]) -> None:
        self.source = source
        self.first = runs[0]
        self.wrappers = wrapper_kernels(source, self.first.launches)
        alike = [i for i, run in enumerate(runs) if not run.error and run.structure == self.first.structure]
        self.runs = [runs[i] for i in alike]
        self.calls = [calls[i] for i in alike]
        # A call that launches nothing has nothing to do, so it is not another code path.
        self.others = [calls[i] for i, run in enumerate(runs) if run.launches and not run.error and i not in set(alike)]
        self.refused = [calls[i] for i, run in enumerate(runs) if run.error]
        self.given = calls[0].arguments
        self.plan = PlanText(name, list(self.given))
        tensors = (one for one in self.given if one.is_tensor and one.value is not None)
        self.names = {number: one.name for number, one in enumerate(tensors)}  # tensor number -> name
        self.pinned = False
        self.aliases: dict[str, str] = {}  # kernel parameter -> the plan's argument
        self._named: list[Term] = []  # sizes named by a `let`
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

    def _symbols(self) -> list[Term]:
        return [*self._named, *symbols_of(self.calls)]

    def _needs(self) -> None:
        for one in self.given:
            if one.is_pointer:
                self.plan.needs.append(f"{one.name}.dtype == {one.dtype}")
            elif one.has_shape:
                self.plan.needs.append(f"{one.name}.dtype == {one.dtype} and {one.name}.ndim == {len(one.shape)}")
            elif one.is_tensor:
                self.plan.needs.append(f"not has({one.name})")
        self.plan.needs += map(str, self.calls[0].relations)
        for (name, dimension), (other, other_dimension) in self.calls[0].shared_sizes:
            self.plan.needs.append(f"{name}.shape[{dimension}] == {other}.shape[{other_dimension}]")

    def _regime(self) -> None:
        """Exclude sizes at which the launcher launches other kernels or fails, by a `need` if one separates them."""
        for others, what in ((self.others, "launches other kernels"), (self.refused, "refuses to run")):
            if not others:
                continue
            found = separating_need(self.calls, others, self._literals)
            if found is not None:
                self.plan.needs.append(found)
            elif others is self.others:
                self.pinned = True
                self.plan.notes.append(f"at other sizes it {what}, and no simple condition separates them")
            else:
                self.plan.notes.append(
                    f"the original {what} at some sizes, such as {others[0].sizes_text}; no simple condition separates "
                    "them, so the kernel file accepts them: add `need` lines to exclude them"
                )

    def _lets(self) -> None:
        """Name sizes after the kernel parameters they are passed to."""
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

    def _buffers(self) -> None:
        returned: dict[int, int] = {}
        for position, result in enumerate(self.first.results):
            if result is None:
                raise ImportProblem(f"{self.plan.name} returns something other than tensors")
            if result.tensor in self.names:
                continue  # an input, returned as it is or changed in place
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
        """The dimensions of a buffer; `position`: its position among the results, if it is one."""
        rank = len(_shape(self.first, number, position))
        what = [f"dimension {d} of {name}" for d in range(rank)]
        return ", ".join(self._number(what[d], lambda run, d=d: _shape(run, number, position)[d]) for d in range(rank))  # type: ignore[misc]

    def _new_name(self, number: int, fallback: str) -> str:
        """Name a buffer after the kernel parameter it is passed to, if that name is free."""
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

    def _launch(self, index: int) -> str:
        launch = self.first.launches[index]
        place = f"{self.source.name}:{launch.line}: the launch of {launch.kernel}"
        own = launch.own_template_arguments
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
        wrapper = self.wrappers[index]
        name = f"{self.source.scope(launch.kernel)}{wrapper.name if wrapper is not None else launch.kernel}"
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
        """Require all sizes and numbers to be those of the first call."""
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
    """The integer literals of a source."""
    found = {_number(token) for tokens in (source.cpp.code, *source.cpp.directives) for token in tokens}
    return sorted(n for n in found if 1 < n <= 1 << 20)


def edges(source: Source, entry: str) -> list[int]:
    """Sizes at which a launcher may branch: the literals it compares with, and small multiples of them."""
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
    """A condition that holds in all calls `inside` and in none `outside`."""
    flags = [True] * len(inside) + [False] * len(outside)
    return condition(Fitter(symbols_of([*inside, *outside])).products, flags, literals)


def condition(terms: Sequence[Term], flags: Sequence[bool], literals: Sequence[int]) -> str | None:
    """A condition on a term that holds exactly where the flag is set."""
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

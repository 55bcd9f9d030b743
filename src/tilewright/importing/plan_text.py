"""A plan in the making: its parts, and their text once it is known which tensors are written."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.importing.calls import BARE_ELEMENTS, Given

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

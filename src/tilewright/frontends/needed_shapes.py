"""What a file's `need` lines say of its tensors, read from the plan: dtypes, how many dimensions, which sizes are
numbers and which are the same. It is what a person who gave no shapes is told, and what better guesses are made of."""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.kernel_file import ArgumentValue, KernelFile, syntax
from tilewright.records import DType, TensorSpec

_Term = tuple[str, int]  # a tensor and one of its dimensions


@dataclass
class NeededShapes:
    """What is known of each tensor; what is not known is missing."""

    dtypes: dict[str, DType] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)
    _same: dict[_Term, _Term] = field(default_factory=dict)
    _numbers: dict[_Term, int] = field(default_factory=dict)

    def guess(self, names: Sequence[str], dtype: DType, shapes: Sequence[tuple[int, ...]]) -> list[TensorSpec]:
        """Tensors that are as is needed, and otherwise of this dtype and like those of `shapes`."""
        usual = {len(one): one for one in reversed(shapes)}  # of several the first
        made: dict[_Term, int] = {}
        specs = []
        for name in names:
            rank = self.ranks.get(name, 2)
            like = usual[rank] if rank in usual else (*usual[4], *usual[4][-1:] * (rank - 4))
            sizes = [made.setdefault(self._first((name, at)), like[at]) for at in range(rank)]
            sizes = [self._numbers.get(self._first((name, at)), size) for at, size in enumerate(sizes)]
            specs.append(TensorSpec.contiguous(self.dtypes.get(name, dtype), tuple(sizes)))
        return specs

    def words(self, names: Sequence[str]) -> str:
        """The options to give: `--shape x=AxBxCxD:f32 --shape weight=ExBx3x3:f32`; letters stand for sizes."""
        letters: dict[_Term, str] = {}
        unused = iter(string.ascii_uppercase)
        options = []
        for name in names:
            sizes = "ROWSxCOLS" if name not in self.ranks else ""
            for at in range(self.ranks.get(name, 0)):
                first = self._first((name, at))
                if first in self._numbers:
                    letters[first] = str(self._numbers[first])
                elif first not in letters:
                    letters[first] = next(unused, "N")
                sizes += f"{'x' if sizes else ''}{letters[first]}"
            dtype = self.dtypes.get(name)
            options.append(f"--shape {name}={sizes}:{dtype.value if dtype else 'DTYPE'}")
        return " ".join(options)

    # -- what is put together --

    def _first(self, term: _Term) -> _Term:
        """The dimension that stands for all that are the same as this one."""
        while term in self._same:
            term = self._same[term]
        return term

    def set_equal(self, one: syntax.Expr, other: syntax.Expr) -> None:
        """Take note of `one == other`, where it says something of a tensor."""
        match one, other:
            case syntax.Literal(), _ if not isinstance(other, syntax.Literal):
                self.set_equal(other, one)
            case syntax.Attribute(base=syntax.Name(id=name), name="dtype"), syntax.Literal(value=DType() as dtype):
                self.dtypes.setdefault(name, dtype)
            case syntax.Attribute(base=syntax.Name(id=name), name="ndim"), syntax.Literal(value=int() as rank):
                self.ranks.setdefault(name, rank)
            case _:
                self._set_sizes(_term(one), _term(other), other)

    def _set_sizes(self, one: _Term | None, other: _Term | None, value: syntax.Expr) -> None:
        if one is None:
            return
        one = self._first(one)
        if other is not None and self._first(other) != one:
            first = self._first(other)
            self._same[first] = one
            if first in self._numbers:
                self._numbers.setdefault(one, self._numbers[first])
        elif isinstance(value, syntax.Literal) and isinstance(value.value, int):
            self._numbers.setdefault(one, value.value)


def needed_shapes(file: KernelFile, given: Mapping[str, ArgumentValue]) -> NeededShapes:
    """What the plan's `need` lines say, `given` tensors known."""
    found = NeededShapes()
    for name, spec in given.items():
        if isinstance(spec, TensorSpec):
            found.dtypes[name], found.ranks[name] = spec.dtype, spec.ndim
            for at, size in enumerate(spec.shape):
                found._numbers[name, at] = size
    for directive in file.plan.directives:
        for part in _parts(directive.condition) if isinstance(directive, syntax.Need) else ():
            if isinstance(part, syntax.Compare) and part.operator == "==":
                found.set_equal(part.left, part.right)
    return found


def _parts(condition: syntax.Expr) -> Iterator[syntax.Expr]:
    if isinstance(condition, syntax.Logical) and condition.operator == "and":
        yield from _parts(condition.left)
        yield from _parts(condition.right)
    else:
        yield condition


def _term(node: syntax.Expr) -> _Term | None:
    match node:
        case syntax.Index(
            base=syntax.Attribute(base=syntax.Name(id=name), name="shape"),
            position=syntax.Literal(value=int() as at),
        ) if at >= 0:
            return name, at
    return None

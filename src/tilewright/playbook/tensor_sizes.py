"""The tensors of a request in words: their names, their dimensions, and the sizes of these.

Shapes that were given win over sizes in the words, and these over the usual ones. Every tensor that was given must fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilewright.playbook.dimension_words import LAST
from tilewright.playbook.errors import NotUnderstood
from tilewright.playbook.named_operation import ALL, LEADING, UNKNOWN, DimensionOf, Effect, Tensor
from tilewright.playbook.number_sense import check_numbers
from tilewright.playbook.phrases import Clause
from tilewright.playbook.sentences import WordsRequest
from tilewright.playbook.tensor_words import USUAL_SIZES
from tilewright.records import TensorSpec
from tilewright.tasks.errors import ArgumentKind, GivenArgument, Remedy, RemedyKind

_USUAL_SHAPE = "4096x1024:bf16"
_IN_BATCH = 16  # of dimensions before the rows
_IN_BATCHES = 1024  # rows and columns of each of many matrices
_IMAGE = ("batch", "channels", "height", "width")
# What a name stands for where no dimension is called that.
_STANDS_FOR = {
    "batch": ("rows",),
    "tokens": ("rows", "sequence"),
    "sequence": ("rows",),
    "features": ("cols",),
    "hidden": ("cols", "features"),
    "classes": ("cols",),
    "vocabulary": ("classes", "cols"),
    "n": ("elements",),
}
_BY_RANK = {1: ("cols",), 2: ("rows", "cols"), 3: ("batch", "rows", "cols")}


@dataclass(frozen=True)
class Step:
    """A clause, and what the reference calls the tensors and numbers of its operation."""

    clause: Clause
    names: tuple[tuple[str, str], ...]


class TensorSizes:
    def __init__(self, request: WordsRequest, given: Mapping[str, TensorSpec]) -> None:
        self.request = request
        self.given = given
        self.reshaped = False
        operation = request.clauses[0].operation
        first = operation.takes or Tensor("x")
        first = replace(first, name=dict(request.clauses[0].called).get(first.name, first.name))
        self.steps = _named_steps(request.clauses, first.name)
        self.sizes: dict[str, int] = {}
        self.even: set[str] = set()
        self.values: list[tuple[Clause, tuple[DimensionOf, ...]]] = []  # every step, and what is at hand there
        self.first = replace(first, dimensions=self._first_dimensions(first))
        self.tensors: tuple[Tensor, ...] = (self.first, *self._extras())
        if unknown := [one for one in given if one not in {tensor.name for tensor in self.tensors}]:
            found = f"the task has no such tensor; it has {', '.join(one.name for one in self.tensors)}"
            raise NotUnderstood(found, given=GivenArgument(ArgumentKind.SHAPE, unknown[0]))
        self._set_sizes()
        for clause, value in self.values:
            check_numbers(clause, tuple(self._size(one) for one in value))

    @property
    def dimensions(self) -> dict[str, int]:
        """Every dimension with its size, in the order of the tensors."""
        named = [one for tensor in self.tensors for one in tensor.dimensions or () if not str(one).isdigit()]
        return {str(one): self.sizes[str(one)] for one in named}

    # -- dimensions --

    def _first_dimensions(self, first: Tensor) -> tuple[str, ...]:
        layout = self._layout()
        shape = self._first_shape(first)
        rank = len(shape) if shape is not None else max(len(layout), self._least_rank(), self._named_rank(layout))
        if shape is not None and (not shape or 0 in shape):
            found = f"{first.name} needs at least one dimension, and no size of 0"
            raise NotUnderstood(found, Remedy(RemedyKind.GIVE_SHAPE, first.name, _USUAL_SHAPE))
        if shape is None and rank > max(len(layout), len(_IMAGE)):
            such = "x".join(map(str, (*(4,) * (rank - 2), 64, 1024)))
            remedy = Remedy(RemedyKind.GIVE_SHAPE, first.name, such)
            raise NotUnderstood(f"{first.name} has {rank} dimensions or more, and no size of them is said", remedy)
        dimensions = self._of_rank(first.name, layout, rank)
        if shape is not None:
            self.sizes.update(zip(dimensions, shape, strict=True))
            if any(self.sizes[name] != size for name, size in zip(dimensions, shape, strict=True)):
                said = "x".join(map(str, shape))
                raise NotUnderstood(f"{first.name} is square in {self.request.clauses[0].says}, and {said} is not")
        return dimensions

    def _layout(self) -> tuple[str, ...]:
        """The dimensions that the first step with an opinion expects, as long as those before it keep the shape."""
        for clause in self.request.clauses:
            takes = clause.operation.takes
            if takes is not None and takes.dimensions is not None:
                return tuple(str(one) for one in takes.dimensions)
            if clause.operation.effect in (Effect.REDUCES, Effect.RESHAPES):
                break
        images = any(one.axis.said.endswith("channels") or "spatial" in one.axis.said for one in self.request.clauses)
        unsaid = not self.request.sizes and not self.given
        images = images or (unsaid and self._least_rank() == len(_IMAGE))
        return _IMAGE if images else _BY_RANK[2]

    def _least_rank(self) -> int:
        return max(one.axis.least_rank for one in self.request.clauses)

    def _named_rank(self, layout: tuple[str, ...]) -> int:
        """ "batch 8, sequence length 512, hidden size 768" are three dimensions of rows."""
        named = {name for name, _ in self.request.named}
        return 3 if layout == _BY_RANK[2] and "batch" in named and named & {"sequence", "rows", "tokens"} else 1

    def _first_shape(self, first: Tensor) -> tuple[int, ...] | None:
        if first.name in self.given:
            return self.given[first.name].shape
        if self.request.sizes:
            return self._said_shape(self.request.sizes[0])
        for step in self.steps:
            for extra in step.clause.operation.tensors:
                name = dict(step.names)[extra.name]
                if extra.dimensions is None and name in self.given:
                    return self.given[name].shape
            if step.clause.operation.effect in (Effect.REDUCES, Effect.RESHAPES):
                break
        return None

    def _said_shape(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Sizes as said; of a product of two matrices one size, or three equal ones, are those of both."""
        layout = self._layout()
        product = set(layout) == {"m", "k"}
        if len(sizes) == 1 and (product or (len(layout) == 2 and len(set(layout)) == 1)):
            return (*sizes, *sizes)
        if len(sizes) != 3 or not product:
            return self._with_named(layout, sizes)
        if len(set(sizes)) > 1:
            one, two, three = sizes
            raise NotUnderstood(
                f"{one}x{two}x{three} of a product has several readings; say both operands, such as {one}x{two} by "
                f"{two}x{three}, or m={one} n={two} k={three}"
            )
        return sizes[:2]

    def _with_named(self, dimensions: tuple[str, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
        """ "batch 32, 512x512": the sizes of the last dimensions, where those before them are said by name."""
        named = dict(self.request.named)
        before = dimensions[: max(len(dimensions) - len(sizes), 0)]
        return (*(named[one] for one in before), *sizes) if all(one in named for one in before) else sizes

    def _of_rank(self, name: str, layout: tuple[str, ...], rank: int) -> tuple[str, ...]:
        if rank == len(layout):
            return layout
        if layout in (_BY_RANK[2], ("elements",)):
            return _BY_RANK.get(rank) or (*(f"batch_{place}" for place in range(1, rank - 1)), "rows", "cols")
        batched = rank == len(layout) + 1 and layout[0] != "batch"
        if batched and not any(one.operation.name == "outer_product" for one in self.request.clauses):
            return ("batch", *layout)
        raise NotUnderstood(
            f"{name} has {rank} dimensions, and {self.request.clauses[0].says} takes {', '.join(layout)}",
            Remedy(RemedyKind.GIVE_SHAPE, name, "x".join(str(USUAL_SIZES[one]) for one in layout)),
        )

    def _extras(self) -> list[Tensor]:
        """The tensors that steps bring, each with the dimensions that the value at hand has there."""
        assert self.first.dimensions is not None
        value: tuple[DimensionOf, ...] = self.first.dimensions
        found = []
        before: Clause | None = None
        for step in self.steps:
            operation, clause = step.clause.operation, step.clause
            self._check_follows(clause, before, value)
            self.values.append((clause, value))
            if operation.even is not None:
                self.even.add(str(value[operation.even]))
            for extra in operation.tensors:
                dimensions = value if extra.dimensions is None else _resolved(extra.dimensions, value, clause.numbers)
                if dimensions is None or UNKNOWN in dimensions:
                    raise _cannot_follow(clause, before)
                found.append(replace(extra, name=dict(step.names)[extra.name], dimensions=dimensions))
            value, changed = self._result(clause, value)
            before = clause if changed else before
            self.reshaped = self.reshaped or changed
        return found

    def _check_follows(self, clause: Clause, before: Clause | None, value: tuple[DimensionOf, ...]) -> None:
        operation = clause.operation
        if before is not None and before.operation.results:
            raise NotUnderstood(
                f'"{clause.says}" cannot follow "{before.says}", which has several results; leave one of them out',
                Remedy(RemedyKind.CHOOSE_MODEL),
            )
        if operation.takes is not None and operation.takes.dtype and clause is not self.steps[0].clause:
            raise NotUnderstood(
                f'"{clause.says}" takes {operation.takes.dtype}, which no step gives; put it first',
                Remedy(RemedyKind.CHOOSE_MODEL),
            )
        vectors = any(one.dimensions == (-1,) for one in operation.tensors)  # one element per column
        whole = vectors or operation.effect in (Effect.WHOLE_ROW, Effect.REDUCES)
        if before is not None and whole and before.operation.effect is Effect.REDUCES and before.axis.is_last:
            raise _cannot_follow(clause, before)
        if operation.goes_over and clause.axis is LAST and not value:
            raise _cannot_follow(clause, before)
        if operation.goes_over and clause.axis.least_rank > len(value):
            raise NotUnderstood(
                f'"{clause.axis.said}" is said of {clause.says}, and there the value has {len(value)} dimensions only'
            )
        if operation.takes is not None and before is not None and len(value) < len(operation.takes.dimensions or ()):
            raise _cannot_follow(clause, before)

    def _result(self, clause: Clause, value: tuple[DimensionOf, ...]) -> tuple[tuple[DimensionOf, ...], bool]:
        operation = clause.operation
        if operation.effect is Effect.REDUCES:
            gone = {one % len(value) for one in clause.axis.dimensions} or set(range(len(value)))
            return tuple(one for place, one in enumerate(value) if place not in gone), True
        if operation.gives is None:
            return value, bool(operation.results)
        gives = operation.gives
        if gives[:1] == (ALL,):
            return (*value, *gives[1:]), True
        if gives[:1] == (LEADING,):
            kept = value[: len(value) - len(gives) + 1]
            return (*kept, *(_resolved(gives[1:], value) or ())), True
        return _resolved(gives, value) or (), True

    # -- sizes --

    def _set_sizes(self) -> None:
        """Shapes that were given first, then what the words say, then the usual."""
        if len(self.request.sizes) > len(self.tensors):
            raise NotUnderstood("the words name several sizes", Remedy(RemedyKind.GIVE_SHAPE_OF_EACH))
        for tensor in self.tensors:
            if tensor.name in self.given:
                self._fit(tensor, self.given[tensor.name].shape)
        known = {str(one) for tensor in self.tensors for one in tensor.dimensions or ()}
        for name, size in self.request.named:
            dimension = self._called(name, known)
            if dimension not in known:
                raise NotUnderstood(
                    f"{'dim' if name == 'features' else name}={size} is said, and the dimensions are {_listed(known)}; "
                    "name one of these"
                )
            if self.sizes.setdefault(dimension, size) != size and not self.given:
                raise NotUnderstood(f"{name} is said to be {self.sizes[dimension]} and {size}; say one")
        for tensor, shape in zip(self.tensors, self.request.sizes, strict=False):
            if tensor.name not in self.given and tensor is not self.first:  # whose sizes are set already
                weight = (tensor.dimensions or ())[-1:] == (self.first.dimensions or ())[-1:]  # [out, in]
                inner = self.sizes.get(str((self.first.dimensions or ("",))[-1]))
                turned = weight and len(shape) == 2 and shape[0] == inner != shape[1]
                whole = self._with_named(tuple(map(str, tensor.dimensions or ())), shape)
                self._fit(tensor, shape[::-1] if turned else whole)
        for name in known:
            if not name.isdigit() and name not in self.sizes:
                self.sizes[name] = self._usual(name)
        heads, shared = self.sizes.get("heads", 0), self.sizes.get("kv_heads", 1)
        if heads % shared:
            raise NotUnderstood(f"{heads} heads cannot share the keys of {shared} in equal groups; say other numbers")
        for name in self.even:
            if self.sizes[name] % 2:
                raise NotUnderstood(f"{name} is {self.sizes[name]}, and must be even; give another size")

    def _called(self, name: str, known: set[str]) -> str:
        """The dimension that a name stands for; a sequence is that of the rows only beside their columns."""
        columns = {"features", "hidden", "cols"} & {one for one, _ in self.request.named}
        if name in known or (name == "sequence" and not columns):
            return name
        return next((one for one in _STANDS_FOR.get(name, ()) if one in known), name)

    def _size(self, dimension: DimensionOf) -> int | None:
        text = str(dimension)
        return int(text) if text.isdigit() else self.sizes.get(text)

    def _usual(self, name: str) -> int:
        """The usual size; the columns of a product that was said to be square are as many."""
        rows = self.sizes.get("m")
        square = set(self.first.dimensions or ()) == {"m"}  # or a vector, or a diagonal
        inner = rows if square else self.sizes.get("k")
        if name == "n" and rows is not None and inner is not None and self.request.sizes:
            if rows != inner:
                raise NotUnderstood(
                    f"{rows}x{inner} is one operand of the product; say the other too, such as {rows}x{inner} by "
                    f"{inner}x{rows}"
                )
            return rows
        if name in ("m", "n", "k") and "batch" in (self.first.dimensions or ()):
            return _IN_BATCHES
        if name == "keys" and "sequence" in self.sizes:
            return self.sizes["sequence"]
        return USUAL_SIZES.get(name, _IN_BATCH)

    def _fit(self, tensor: Tensor, shape: tuple[int, ...]) -> None:
        dimensions = [str(one) for one in tensor.dimensions or ()]
        if len(shape) == len(dimensions):
            for name, size in zip(dimensions, shape, strict=True):
                if not name.isdigit():
                    self.sizes.setdefault(name, size)
        wanted = tuple(
            int(one) if one.isdigit() else self.sizes.get(one) or USUAL_SIZES.get(one, _IN_BATCH) for one in dimensions
        )
        if wanted != shape:
            first = "x".join(str(self.sizes.get(str(one), "?")) for one in self.first.dimensions or ())
            raise NotUnderstood(
                f"{tensor.name} goes with {self.first.name}, which is {first}, and so has the shape "
                f"{'x'.join(map(str, wanted))}",
                given=GivenArgument(ArgumentKind.SHAPE, tensor.name, "x".join(map(str, shape))),
            )


def _resolved(
    dimensions: tuple[DimensionOf, ...], value: tuple[DimensionOf, ...], numbers: tuple[str, ...] = ()
) -> tuple[DimensionOf, ...] | None:
    """Numbers in place of which the value's dimensions stand, and {0} for a number that was said; None where the value
    has not so many."""
    found: list[DimensionOf] = []
    for one in dimensions:
        if isinstance(one, int) and not -len(value) <= one < len(value):
            return None
        found.append(value[one] if isinstance(one, int) else one.format(*numbers))
    return tuple(found)


def _cannot_follow(clause: Clause, before: Clause | None) -> NotUnderstood:
    if before is None:
        return NotUnderstood(f'"{clause.says}" needs more dimensions than there are; give a shape with more')
    leaves = "leaves one element per row" if before.operation.effect is Effect.REDUCES else "changes the shape"
    return NotUnderstood(
        f'"{clause.says}" cannot follow "{before.says}", which {leaves}; put it first', Remedy(RemedyKind.CHOOSE_MODEL)
    )


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(one for one in names if one and not one.isdigit()))


def _named_steps(clauses: tuple[Clause, ...], first: str) -> tuple[Step, ...]:
    """For every clause: what its operation calls its tensors and numbers, and what the reference calls them."""
    taken = {first}
    found = []
    for clause in clauses:
        names: dict[str, str] = {}
        for extra in clause.operation.extras:
            wanted = dict(clause.called).get(extra.name, extra.name)
            name, number = wanted, 2
            while name in taken:
                name, number = f"{wanted}_{number}", number + 1
            taken.add(name)
            names[extra.name] = name
        found.append(Step(clause, tuple(names.items())))
    return tuple(found)

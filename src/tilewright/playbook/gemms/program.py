"""A GEMM: the record from which every product of matrices is written, and how operands lie in memory.

    c[batch, m, n] = epilogue(sum over k of a[batch, m, k] * b[batch, k, n])

Sizes are plan expressions with their values at the task's own sizes, and `epilogue` is what is done with each sum
before it is stored: a pointwise program in which one input stands for the sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from tilewright.playbook.errors import NoMatch
from tilewright.playbook.gemms.graph import MADE, RESHAPES, TURNS, Graph
from tilewright.playbook.row_program import Load, ProgramInput, ProgramOutput, RowProgram
from tilewright.playbook.tracing import Items, Node, TracedNode
from tilewright.records import DType, Precision


@dataclass(frozen=True)
class Extent:
    """How long something is: a plan expression, and its value at the task's own sizes."""

    expression: str
    size: int

    @property
    def is_one(self) -> bool:
        """Whether it is 1 at every size."""
        return self.expression == "1"


@dataclass(frozen=True)
class Operand:
    """A matrix, or a batch of them, as it lies in memory: rows of neighbouring elements, `pitch` apart.

    `a` has the axes m and k, `b` has n and k. A vector has its elements along k and pitch k.
    """

    tensor: str  # an input of the task, or a scratch tensor of the plan
    dtype: DType
    along_k: bool  # neighbours in memory are neighbours along k; else along m or n
    pitch: Extent  # elements from one row of neighbours to the next
    batch_pitch: Extent  # elements from one matrix of the batch to the next; "0": all share one


class Triangle(str, Enum):
    """The part of each matrix of sums that is kept; the rest is 0, whatever the operands hold."""

    UPPER = "upper"  # n >= m
    LOWER = "lower"  # n <= m


@dataclass(frozen=True)
class Kept:
    """`UPPER`: n - m >= diagonal; `LOWER`: n - m <= diagonal."""

    triangle: Triangle
    diagonal: int = 0


class Rounded(str, Enum):
    """What PyTorch rounds first to the result's type: a kernel may keep that in as few bits, and nothing earlier."""

    SUM = "sum"
    ADDED = "added"  # the sum with what one call adds to it, as a linear layer does
    LATER = "later"  # something later, of sums in f32


class Sums:
    """What makes sums and finishes each before it is stored."""

    epilogue: RowProgram
    sum_name: str  # the input of `epilogue` that stands for the sum

    @property
    def output(self) -> ProgramOutput:
        return self.epilogue.outputs[0]

    @cached_property
    def sum_value(self) -> int:
        """The value of `epilogue` that is the sum itself."""
        return self.epilogue.values.index(Load(self.sum_name))

    @property
    def is_plain(self) -> bool:
        """Whether the sums are stored as they are."""
        return self.epilogue.outputs[0].value == self.sum_value

    @property
    def epilogue_inputs(self) -> tuple[ProgramInput, ...]:
        """The tensors that `epilogue` reads besides the sum."""
        return tuple(one for one in self.epilogue.inputs if one.name != self.sum_name)


@dataclass(frozen=True)
class Gemm(Sums):
    """One product with what is done to its sums.

    The rows of `epilogue` are those of all matrices of the batch, batch * m, and its columns are n: an input of it is
    `is_whole` ([batch, m, n]), `is_column` ([n]), one element per row ([batch, m]: parts None and not varies), or a
    single number (parts () and not varies). It has one output, the tensor that is written, [batch, m, n] row-major.
    """

    batch: Extent
    m: Extent
    n: Extent
    k: Extent
    a: Operand
    b: Operand
    epilogue: RowProgram
    sum_name: str
    precision: Precision
    kept: Kept | None = None
    greatest: str = ""  # a tensor for the greatest of each 64 neighbouring results of a row, which is written too
    weighs: str = ""  # `a` has scores, and this is that tensor of theirs: their softmax is multiplied
    empty_rows: bool = False  # and that of a row of minus infinities is zeros
    rounded: Rounded = Rounded.SUM

    @property
    def is_batched(self) -> bool:
        return not self.batch.is_one

    @property
    def element(self) -> DType:
        """The element type of the operands; structures for tensor cores take operands of one type."""
        return self.a.dtype

    @property
    def has_one_element_type(self) -> bool:
        return self.a.dtype is self.b.dtype

    @property
    def is_strict(self) -> bool:
        """f32 operands whose products may not be rounded to fewer bits."""
        return DType.F32 in (self.a.dtype, self.b.dtype) and not self.precision.rounds_products

    @property
    def multiplications(self) -> int:
        """At the task's own sizes."""
        return self.batch.size * self.m.size * self.n.size * self.k.size


# -- how the operands of products lie in memory: views of a tensor, followed down to the tensor itself --


_WIDER = {"bfloat16": ("float32",), "float16": ("float32",)}
DTYPES = {"float32": DType.F32, "float16": DType.F16, "bfloat16": DType.BF16}

Group = tuple[int, ...]  # dimensions of the tensor that lie side by side and are seen as one; (): one element, repeated


@dataclass(frozen=True)
class View:
    """Dimensions as somebody sees them, each a group of a tensor's own; and the sizes of both at every probe."""

    base: int  # the node that is a tensor in memory
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Tensor:
    """A tensor in memory: its name in the plan, and for each dimension its size."""

    name: str
    dtype: DType
    extents: tuple[Extent, ...]

    def extent(self, group: Group) -> Extent:
        """Of dimensions taken together."""
        return together([self.extents[one] for one in group])


def together(extents: list[Extent]) -> Extent:
    """How many elements dimensions have together."""
    wide = [one for one in extents if not one.is_one]
    return Extent(" * ".join(one.expression for one in wide) or "1", math.prod(one.size for one in wide))


def view_of(graph: Graph, index: int, tensors: Mapping[int, Tensor]) -> View | None:
    """The node as a view of a tensor in memory; None where it is computed."""
    if index in tensors:
        return View(index, tuple((place,) for place in range(len(graph.shape(index)))))
    node = graph.nodes[index]
    first = node.arguments[0] if node.arguments else None
    if not isinstance(first, Node) or node.target in MADE:
        return None
    below = view_of(graph, first.index, tensors)
    if below is None:
        return None
    if node.target in ("_to_copy", "convert_element_type"):
        wider = graph.dtype(index) in _WIDER.get(graph.dtype(first.index), ())
        return below if wider or graph.dtype(index) == graph.dtype(first.index) else None
    groups = _groups(graph, node, index, first.index, below)
    return None if groups is None else View(below.base, groups)


def _groups(graph: Graph, node: TracedNode, index: int, before: int, below: View) -> tuple[Group, ...] | None:
    groups = below.groups
    if node.target in TURNS:
        rank = len(groups)
        order = list(range(rank))[::-1]
        if node.target == "transpose":
            order = list(range(rank))
            one, other = (int(str(value)) % rank for value in node.arguments[1:3])
            order[one], order[other] = other, one
        elif node.target == "permute":
            assert isinstance(node.arguments[1], Items)
            order = [int(str(value)) % rank for value in node.arguments[1].values]
        return tuple(groups[place] for place in order)
    if node.target == "expand":
        shape, old = graph.shape(index), graph.shape(before)
        missing = len(shape) - len(old)
        kept = [groups[place] if old[place] == shape[place + missing] else () for place in range(len(old))]
        return ((),) * missing + tuple(kept)
    if node.target in RESHAPES:
        base_sizes = graph.sizes(below.base)
        return _regrouped(groups, base_sizes, graph.sizes(before), graph.sizes(index))
    return None


def _regrouped(
    groups: tuple[Group, ...],
    base_sizes: tuple[tuple[int, ...], ...],
    old: tuple[tuple[int, ...], ...],
    new: tuple[tuple[int, ...], ...],
) -> tuple[Group, ...] | None:
    """Dimensions after a reshape that joins neighbours, or parts what was joined; None for any other."""
    ones = tuple(1 for _ in (old or new or ((1,),))[0])
    # What is repeated has no place in memory to be joined by: it stays a dimension of its own.
    waiting: list[int | None] = []
    for group, size in zip(groups, old, strict=True):
        waiting += [one for one in group if base_sizes[one] != ones] if group or size == ones else [None]
    repeated = iter([size for group, size in zip(groups, old, strict=True) if not group and size != ones])
    found: list[Group] = []
    for size in new:
        group = ()
        reached = ones
        while reached != size:
            if not waiting or (group and waiting[0] != _next_in_memory(group[-1], base_sizes, ones)):
                return None
            first = waiting.pop(0)
            if first is None:
                if next(repeated) != size or reached != ones:
                    return None
                break
            reached = tuple(a * b for a, b in zip(reached, base_sizes[first], strict=True))
            group = (*group, first)
            if any(a > b for a, b in zip(reached, size, strict=True)):
                return None
        found.append(group)
    return None if waiting else tuple(found)


def _next_in_memory(place: int, base_sizes: tuple[tuple[int, ...], ...], ones: tuple[int, ...]) -> int:
    """The dimension of more than one element that follows."""
    return next((one for one in range(place + 1, len(base_sizes)) if base_sizes[one] != ones), -1)


@dataclass(frozen=True)
class Axes:
    """The groups of a tensor's dimensions that are an operand's batch, rows (m or n) and k."""

    batch: Group
    rows: Group
    k: Group


def operand(tensor: Tensor, axes: Axes, place: str) -> Operand:
    """How an operand lies in memory. `place` names it in a refusal."""
    innermost = _innermost(tensor)
    one = Extent("1", 1)
    rows, k = tensor.extent(axes.rows), tensor.extent(axes.k)
    if rows.is_one or k.is_one:
        # One row of neighbours: a vector, of which only the pitch along itself matters.
        along, across = (axes.rows, True) if k.is_one else (axes.k, False)
        if not _is_inner(along, innermost, tensor):
            raise NoMatch
        pitch = one if across else k
        return Operand(tensor.name, tensor.dtype, True, pitch, _stride(tensor, axes.batch))
    along_k = _is_inner(axes.k, innermost, tensor)
    if not along_k and not _is_inner(axes.rows, innermost, tensor):
        raise NoMatch
    pitch = _stride(tensor, axes.rows if along_k else axes.k)
    return Operand(tensor.name, tensor.dtype, along_k, pitch, _stride(tensor, axes.batch))


def _innermost(tensor: Tensor) -> int:
    """The last dimension with more than one element."""
    places = [place for place, one in enumerate(tensor.extents) if not one.is_one]
    return places[-1] if places else -1


def _is_inner(group: Group, innermost: int, tensor: Tensor) -> bool:
    places = [one for one in group if not tensor.extents[one].is_one]
    return not places or places[-1] == innermost


def _stride(tensor: Tensor, group: Group) -> Extent:
    """Elements between neighbours along dimensions taken together."""
    places = [one for one in group if not tensor.extents[one].is_one]
    if not places:
        return Extent("0", 0)
    return tensor.extent(tuple(range(places[-1] + 1, len(tensor.extents))))

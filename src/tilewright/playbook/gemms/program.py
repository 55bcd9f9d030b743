"""A contraction: the record from which every product of matrices is written.

    c[batch, m, n] = epilogue(sum over k of a[batch, m, k] * b[batch, k, n])

Operands say how they lie in memory, sizes are plan expressions with their values at the task's own sizes, and
`epilogue` is what is done with each sum before it is stored: a pointwise program in which one input stands for the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from tilewright.playbook.row_program import Load, ProgramInput, ProgramOutput, RowProgram
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

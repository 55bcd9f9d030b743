"""A convolution: the record from which every structure for convolutions is written.

    y[n, f, p] = finish(sum over c and t of x[n, c, p * stride - padding + t * dilation] * w[f, c, t])

where c runs over the channels of f's group; p and t have one to three dimensions, and elements outside x count as 0.
A transposed convolution is the other way round: x[n, c, q] * w[c, f, t] is added to y at q * stride - padding + t *
dilation. Tensors are row-major: x is [batch, groups * channels, lengths], y is [batch, groups * filters, results], w is
[groups * filters, channels, taps], or where it is transposed [groups * channels, filters, taps].
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.playbook.gemms.program import Extent, Sums
from tilewright.playbook.row_program import ProgramOutput, RowProgram
from tilewright.records import DType, Precision


@dataclass(frozen=True)
class Window:
    """One dimension along which the window moves."""

    length: Extent  # of x
    results: Extent  # of y
    taps: int
    stride: int
    padding: int
    dilation: int

    def constants(self, axis: str, taps: str = "TAPS", padding: str = "PADDING") -> str:
        """What a kernel calls them."""
        named = {taps: self.taps, "STRIDE": self.stride, padding: self.padding, "DILATION": self.dilation}
        return f"constexpr int {', '.join(f'{name}_{axis.upper()} = {number}' for name, number in named.items())};"


@dataclass(frozen=True)
class Convolution(Sums):
    """One convolution with what is done to its sums.

    The rows of `finish` are batch * groups * filters, its columns the positions of the result: an input of it is whole
    (an element for every result), has an element for every row or for every channel of the result (one `RowPart` with
    the channels as modulus, not varying), or is a single number. A bias is such an input.

    Work over all channels of a position may follow in the same kernel: `across` has a row for every position, channels
    as its columns, and an input with the name of what `finish` would store. Its result is stored in place of that.
    """

    batch: Extent
    groups: int
    channels: Extent  # of x, in each group
    filters: Extent  # of y, in each group
    windows: tuple[Window, ...]
    x: str  # an input of the task, or a scratch tensor of the plan
    weight: str
    element: DType  # of both
    transposed: bool
    finish: RowProgram
    sum_name: str
    precision: Precision
    across: RowProgram | None = None

    @property
    def output(self) -> ProgramOutput:
        return (self.across or self.finish).outputs[0]

    @property
    def is_depthwise(self) -> bool:
        """Whether every result is made from one channel."""
        return self.channels.is_one

    def plain_padding(self, window: Window) -> int:
        """Zeros before the first element that a window sees: transposed, with stride 1, taps go backwards."""
        return (window.taps - 1) * window.dilation - window.padding if self.transposed else window.padding

    @property
    def taps(self) -> int:
        """Of the window in all its dimensions."""
        return math.prod(one.taps for one in self.windows)

    @property
    def is_exact(self) -> bool:
        """f32 operands that may not be rounded to TF32."""
        return self.element is DType.F32 and not self.precision.rounds_convolutions

    @property
    def multiplications(self) -> int:
        """At the task's own sizes."""
        ends = math.prod((one.length if self.transposed else one.results).size for one in self.windows)
        return self.batch.size * self.groups * self.channels.size * self.filters.size * self.taps * ends

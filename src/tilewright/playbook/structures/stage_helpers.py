"""What rows in stages have in common: device functions as text, and what shares of a row come to."""

from __future__ import annotations

from tilewright.playbook.row_kernel import RowKernel
from tilewright.playbook.structures.about import about, passes_of
from tilewright.playbook.templates import sections
from tilewright.records import DType

_CUDA = sections("structures/stage_helpers")

RING = _CUDA["ring"]
MOMENTS = _CUDA["moments"]
CLUSTER_ELEMENTS = _CUDA["cluster_elements"]
GRID_ELEMENTS = _CUDA["grid_elements"]
POSTING = _CUDA["posting"]


class Shares:
    """The sums of one pass over a row of which many have a share; tensors with one element for many columns."""

    def __init__(self, kernel: RowKernel) -> None:
        self.kernel, self.program = kernel, kernel.program
        (self.levels,) = passes_of(kernel.program)
        self.own = [index for level in self.levels for index in kernel.own_reductions(level)]
        second = set(kernel.own_reductions(self.levels[1])) if len(self.levels) > 1 else set()
        self.corrected = {one: about(kernel.program, one) if one in second else None for one in self.own}
        self.names = {one: kernel.namer.of(one) for one in self.own}
        self.kinds = {one: kernel.accumulator_type(one) for one in self.own}
        (self.stream,) = kernel.program.streams
        self.vector = f"Vector<{self.stream.dtype.cpp}>"
        # Tensors with one element for so many columns, by the constant that says how many.
        self.spans: dict[str, str] = {}
        for one in kernel.program.inputs:
            if len(one.spans) == 1 and one.spans[0].divisor and not one.spans[0].modulus and one.dtype is DType.F32:
                self.spans[one.name] = kernel.program.span_constants[one.spans[0].divisor]
        kernel.held_spans = frozenset(self.spans)

    @property
    def plain(self) -> list[int]:
        """The reductions that are put together as they are."""
        pairs = [how for how in self.corrected.values() if how is not None]
        return [one for one in self.own if not any(one in (how.first, how.second) for how in pairs)]

    def put_together(self, count: str, total: str) -> list[str]:
        """What lanes have, put together: `count` elements are a lane's, and `total` those of all."""
        lines: list[str] = []
        for one in self.plain:
            lines.append(f"{self.names[one]} = warp_reduce({self.names[one]}, {self.kernel.combiner(one)}{{}});")
        for how in filter(None, self.corrected.values()):
            first, second, own = self.names[how.first], self.names[how.second], f"{self.names[how.second]}_moments"
            lines += [
                f"Moments {own}{{mean_of_first_lane({first}, {count})}};",
                f"{own}.add({first}, {second}, {count});",
                f"{own}.finish({first}, {second}, {total});",
            ]
        return lines

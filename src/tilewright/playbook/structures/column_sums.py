"""Sums over rows, such as the gradients of weights: every strip of rows leaves its own, and a second launch adds them.

A strip is what one block goes down. Each of its threads adds up the columns it owns, in f32 and in the order of the
rows; the second kernel adds the strips in a fixed order. So runs repeat bit for bit, and nothing is added atomically.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.playbook.cpp_text import Text, write_text
from tilewright.playbook.file_text import KernelSignature, PlanLines
from tilewright.playbook.row_kernel import RowKernel
from tilewright.playbook.row_program import RowProgram

NOTE = (
    "\n\nWhat is summed over all rows is summed over a strip of them first, by the block that goes down the strip; the "
    "last kernel adds the strips in a fixed order, so runs repeat bit for bit."
)
_TILE = 32  # columns of a block that adds strips, and strips that it reads at a time


@dataclass(frozen=True)
class StripSums:
    """The scratch buffers that strips leave their sums in, by their names in the plan: one for every sum."""

    program: RowProgram
    strips: str  # how many there are, and the length of a row, by their names in the plan
    cols: str
    planned: tuple[str, ...]

    @classmethod
    def of(cls, program: RowProgram, plan: PlanLines, strips: str, cols: str) -> StripSums:
        planned = tuple(plan.name(f"{one.name}_parts") for one in program.column_sums)
        for name in planned:
            plan.add("scratch", f"{name}: f32[{strips}, {cols}]", "what each strip of rows comes to")
        return cls(program, strips, cols, planned)

    def names(self, kernel: RowKernel) -> dict[str, str]:
        """What the buffers are called in a kernel, by the outputs that they belong to."""
        return {one.name: f"{kernel.name(one.name)}_parts" for one in self.program.column_sums}

    def with_parts(self, kernel: RowKernel, signature: KernelSignature) -> KernelSignature:
        """The parameters of a kernel that writes the strips' sums too."""
        declared = [f"float* __restrict__ {name}" for name in self.names(kernel).values()]
        return KernelSignature([*declared, *signature.declared], [*self.planned, *signature.given])

    def launch(self, plan: PlanLines) -> None:
        """The last launch, which adds the strips."""
        given = [*self.planned, *(one.name for one in self.program.column_sums), self.strips, self.cols]
        if self.planned:
            plan.launch(self._name, f"ceil_div({self.cols}, {_TILE})", f"dim3({_TILE}, {_TILE})", given)

    def text(self) -> list[str]:
        """The kernel that adds the strips: a block has 32 columns, and each warp reads every 32nd strip of them."""
        if not self.planned:
            return []
        kernel, sums = RowKernel(self.program, quick=False), self.program.column_sums
        owned = self.names(kernel)
        declared = [f"const float* __restrict__ {name}" for name in owned.values()]
        declared += [f"{one.dtype.cpp}* __restrict__ {kernel.name(one.name)}" for one in sums]
        signature = KernelSignature([*declared, "int strips", "long long cols"], [])
        body = [
            f"__shared__ float held[{_TILE}][{_TILE} + 1];  // one more, so that a column lies in different banks",
            f"const long long first = blockIdx.x * static_cast<long long>({_TILE});",
            "const long long column = first + threadIdx.x, added = first + threadIdx.y;",
        ]
        for number, one in enumerate(sums):
            stored = write_text(one.dtype, Text("sum"))
            body += ["__syncthreads();"] if number else []
            body += [
                f"{'' if number else 'float '}sum = 0.0f;",
                f"for (int strip = threadIdx.y; strip < strips && column < cols; strip += {_TILE}) {{",
                f"  sum += {owned[one.name]}[strip * cols + column];",
                "}",
                "held[threadIdx.y][threadIdx.x] = sum;",
                "__syncthreads();",
                "sum = held[threadIdx.x][threadIdx.y];  // a warp has the parts of one column now",
                "unrolled for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);",
                f"if (threadIdx.x == 0 && added < cols) {kernel.name(one.name)}[added] = {stored};",
            ]
        return signature.kernel(f"__launch_bounds__({_TILE * _TILE})", self._name, body)

    @property
    def _name(self) -> str:
        return f"{self.program.name}_sums"

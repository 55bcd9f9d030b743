"""Means of what the taps of a convolution see: all that is left of its input where the mean of its results is wanted.

m[outer, t, inner] = (sum of x[outer, q, inner] over the q that tap t multiplies for some result) / results
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from tilewright.playbook.catalogue import Schedule
from tilewright.playbook.cpp_text import indented
from tilewright.playbook.file_text import MOST_32_BIT, Fragment, KernelSignature, PlanLines, fragment, includes
from tilewright.playbook.gemms.convolution_program import Window
from tilewright.playbook.gemms.program import Extent, Tensor
from tilewright.playbook.row_program import Layout, ProgramInput, ProgramOutput, RowProgram
from tilewright.playbook.templates import sections

_CUDA = sections("gemms/convolution_means")

_AXES = ("z", "y", "x")

_BLOCK_SUM = _CUDA["block_sum"]


@dataclass(frozen=True)
class MeansStage:
    """The stage: x and the tensor of means, the dimensions that are gone through, and those around them."""

    x: Tensor
    made: Tensor
    outer: Extent
    inner: Extent
    windows: tuple[Window, ...]
    transposed: bool
    name: str  # of the task

    @property
    def simple(self) -> Schedule:
        summary = "means of what each tap sees, in one pass"
        return Schedule(self._program, "tap-means", summary, partial(_written, self))

    @property
    def best(self) -> Schedule:
        return self.simple

    @property
    def elements(self) -> int:
        return math.prod(one.size for one in self.x.extents)

    @property
    def _program(self) -> RowProgram:
        """For those who ask about tensors alone."""
        given = ProgramInput(self.x.name, self.x.dtype, True, None)
        made = ProgramOutput(self.made.name, self.made.dtype, 0, True)
        sizes = self.outer.expression, self.inner.expression, self.outer.size, self.inner.size
        return RowProgram(self.name, (given,), (made,), (), (), (), (), *sizes, Layout.ROWS)

    @property
    def outputs(self) -> tuple[ProgramOutput, ...]:
        return self._program.outputs


def _written(stage: MeansStage, op_line: str) -> Fragment:
    plan = PlanLines(stage._program, op_line)
    axes = dict(zip(_AXES[-len(stage.windows) :], stage.windows, strict=True))
    alone = not stage.inner.is_one  # a thread for each row of what is summed
    plan.add("const", "THREADS = 256")
    results = " * ".join(one.results.expression for one in axes.values())
    lengths = " * ".join(one.length.expression for one in axes.values())
    plan.add("need", f"{lengths} <= {MOST_32_BIT}", "places of a plane fit an int")
    pairs = [
        (f"const {stage.x.dtype.cpp}* __restrict__ x", stage.x.name),
        ("float* __restrict__ means", stage.made.name),
        *((f"int length_{axis}", one.length.expression) for axis, one in axes.items()),
        *((f"int results_{axis}", one.results.expression) for axis, one in axes.items()),
        ("float share", f"1.0 / ({results})"),
    ]
    count = stage.outer.expression
    if alone:
        pairs += [
            ("long long inner", stage.inner.expression),
            ("long long rows", f"{count} * {stage.inner.expression}"),
        ]
        count = f"ceil_div({count} * {stage.inner.expression}, THREADS)"
    signature = KernelSignature([one for one, _ in pairs], [other for _, other in pairs])
    plan.launch("tap_means", count, "THREADS", signature.given)
    body = _row_of_thread(stage, axes) if alone else _row_of_block(stage, axes)
    kernel = signature.kernel("__launch_bounds__(THREADS)", "tap_means", body)
    header = (
        "Means of x, one for each tap of a convolution: a tap multiplies all of x but what it does not reach, so that "
        "the mean of all results follows from these. Every element is read once."
    )
    pieces = [_constants(axes), [] if alone else [_BLOCK_SUM], kernel]
    return fragment(header, plan, includes(stage._program), *(one for one in pieces if one))


def _constants(axes: dict[str, Window]) -> list[str]:
    lines = (one.constants(axis) for axis, one in axes.items())
    return [*lines, f"constexpr int ALL_TAPS = {math.prod(one.taps for one in axes.values())};"]


def _added(stage: MeansStage, axes: dict[str, Window]) -> list[str]:
    """The element at `at` added to the sums of the taps that see it."""
    lines = ["int rest = at;"]
    for axis in reversed(axes):
        upper = axis.upper()
        lines += [
            f"const int at_{axis} = rest % length_{axis};",
            f"rest /= length_{axis};",
            f"bool seen_{axis}[TAPS_{upper}];",
        ]
        tap = f"tap * DILATION_{upper}"
        if stage.transposed:
            found = f"const int to = at_{axis} * STRIDE_{upper} - PADDING_{upper} + {tap};"
            inside = f"to >= 0 && to < results_{axis}"
        else:
            found = f"const int to = at_{axis} + PADDING_{upper} - {tap};"
            inside = f"to >= 0 && to % STRIDE_{upper} == 0 && to / STRIDE_{upper} < results_{axis}"
        lines += [
            f"unrolled for (int tap = 0; tap < TAPS_{upper}; ++tap) {{",
            f"  {found}",
            f"  seen_{axis}[tap] = {inside};",
            "}",
        ]
    seen, rest = [], "tap"
    for axis in reversed(axes):
        seen.append(f"seen_{axis}[{rest} % TAPS_{axis.upper()}]")
        rest = f"{rest} / TAPS_{axis.upper()}"
    return [
        *lines,
        f"unrolled for (int tap = 0; tap < ALL_TAPS; ++tap) sums[tap] += {' && '.join(seen)} ? value : 0.0f;",
    ]


def _row_of_block(stage: MeansStage, axes: dict[str, Window]) -> list[str]:
    return [
        "__shared__ float of_warps[THREADS / 32];",
        f"const int length = {' * '.join(f'length_{axis}' for axis in axes)};",
        "x += static_cast<long long>(blockIdx.x) * length;",
        "float sums[ALL_TAPS] = {};",
        "#pragma unroll 4",
        "for (int at = threadIdx.x; at < length; at += THREADS) {",
        "  const float value = x[at];",
        *indented(_added(stage, axes)),
        "}",
        "unrolled for (int tap = 0; tap < ALL_TAPS; ++tap) {",
        "  const float total = block_sum(sums[tap], of_warps);",
        "  if (threadIdx.x == 0) means[static_cast<long long>(blockIdx.x) * ALL_TAPS + tap] = total * share;",
        "}",
    ]


def _row_of_thread(stage: MeansStage, axes: dict[str, Window]) -> list[str]:
    return [
        "const long long row = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x;",
        "if (row >= rows) return;",
        f"const int length = {' * '.join(f'length_{axis}' for axis in axes)};",
        "const long long before = row / inner, behind = row % inner;",
        "x += before * length * inner + behind;",
        "float sums[ALL_TAPS] = {};",
        "#pragma unroll 4",
        "for (int at = 0; at < length; ++at) {",
        "  const float value = x[at * inner];",
        *indented(_added(stage, axes)),
        "}",
        "unrolled for (int tap = 0; tap < ALL_TAPS; ++tap) {",
        "  means[(before * ALL_TAPS + tap) * inner + behind] = sums[tap] * share;",
        "}",
    ]

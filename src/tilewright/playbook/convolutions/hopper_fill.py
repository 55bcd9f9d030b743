"""The kernel before a product that leaves out results, as text: those that no tap meets are finished sums of nothing.

They lie in lines between the others, and where they are the most of them it is quicker to store the whole result in
order first, and what is made of the input over it, than many pieces of lines.
"""

from __future__ import annotations

from tilewright.playbook.convolutions.hopper_geometry import Geometry
from tilewright.playbook.convolutions.hopper_kernel import SIZES, Parameters, sizes_parameters
from tilewright.playbook.cpp_text import indented
from tilewright.playbook.products.finish_text import FinishText
from tilewright.playbook.products.hopper_form import signature
from tilewright.records import DType

FILLED_BY_BLOCK = 8192  # results


def fill_parameters(geometry: Geometry, finish: FinishText) -> Parameters:
    one = geometry.convolution
    return [
        (f"{one.output.dtype.cpp}* __restrict__ y", one.output.name),
        *zip(finish.declared, finish.given, strict=True),
        *sizes_parameters(),
    ]


def fill_text(geometry: Geometry, finish: FinishText) -> list[str]:
    dtype = geometry.convolution.output.dtype
    value = finish.call("0.f")
    made = value if dtype is DType.F32 else f"static_cast<{dtype.cpp}>({value})"
    by_row = finish.takes & {"row", "channel"}
    text = _FILL.replace("@sizes", SIZES).replace("@type", dtype.cpp).replace("@made", made)
    text = text.replace("@place", _PLACE if by_row else "").replace("@each", str(FILLED_BY_BLOCK))
    declared = [declaration for declaration, _ in fill_parameters(geometry, finish)]
    lines = [one for one in text.splitlines() if one.strip()]
    return [
        "// ---- results that no tap meets, and the others, which are stored over these",
        *signature("__launch_bounds__(256) ", "fill_result", declared),
        *indented(lines),
        "}",
    ]


_PLACE = """\
const long long row = row0 + (of_row + i + e) / plane;
    const int channel = row % (GROUPS * filters);"""
_FILL = """\
struct alignas(4 * sizeof(@type)) Four { @type of[4]; };
@sizes
cudaTriggerProgrammaticLaunchCompletion();
const long long first = (long long)blockIdx.x * @each, all = (long long)batch * GROUPS * filters * s.plane();
[[maybe_unused]] const unsigned plane = s.plane();
[[maybe_unused]] const long long row0 = first / plane;
[[maybe_unused]] const unsigned of_row = first - row0 * plane;
#pragma unroll 4
for (int i = threadIdx.x * 4; i < @each; i += 1024) {
  Four four;
  unrolled for (int e = 0; e < 4; ++e) {
    @place
    four.of[e] = @made;
  }
  if (first + i + 4 <= all) {
    *reinterpret_cast<Four*>(y + first + i) = four;
  } else {
    unrolled for (int e = 0; e < 4; ++e)
      if (first + i + e < all) y[first + i + e] = four.of[e];
  }
}
cudaGridDependencySynchronize();  // who waits for this launch waits for the one before it too
"""

"""f32 as parts in f16, as text: what differs in the kernels of a convolution whose f32 operands must be exact.

An element x of the input is high = f16(x) and low = f16((x - high) * 2048), a scaled weight w is high = f16(w) and
low = f16(w - high). Then x * w is

    high * high  +  low * (high / 2048)  +  high * low

but for the product of the low parts, which is less than 2^-24 of it. So k has three elements for a channel, side by
side: high, low, high of x, and high, high / 2048, low of a weight; and the product of matrices is what it was.
"""

from __future__ import annotations

from tilewright.playbook.convolutions.hopper_store import filled

PART_OF = """\
// What stands for x in k, three times for a channel: the high part, the low one, and the high one again. Together they
// are x to 2^-22 of it, or to 2^-36.
__device__ __forceinline__ float part_of(float x, int part) {
  return part == 1 ? (x - __half2float(__float2half_rn(x))) * 2048.f : x;  // a high part is rounded when it is packed
}
"""
PARTS_OF_PLANE = """\
float v[8], parts[8];
#pragma unroll
for (int i = 0; i < 8; ++i) {
  const int number = plane % @planes * 8 + i, channel = number / 3, part = number % 3;
  const bool given = inside && at.from >= 0 && channel < channels && (unsigned)at.column < x_width;
  const float of_x = given ? x[at.from + (plane / @planes * channels + channel) * plane_size + at.column] : 0.f;
  v[i] = part == 0 ? of_x : 0.f, parts[i] = part_of(of_x, part);
}
note(Eight(v), v, at.row, inside, noted);
const Eight some(parts);
"""
PARTS_OF_ROW = """\
const auto* from = x + at.from + at.column + group * channels * plane_size;
float v[8], parts[8];
#pragma unroll
for (int i = 0; i < 8; ++i) {
  const int channel = (first + i) / 3, part = (first + i) % 3;
  const float of_x = given && channel < channels ? from[channel * plane_size] : 0.f;
  v[i] = part == 0 ? of_x : 0.f, parts[i] = part_of(of_x, part);
}
note(Eight(v), v, at.row, inside, noted);
const Eight some(parts);
"""
_SUM_OF_ROW = """\
float some[MI][POSITIONS / 2];  // the sum over this row of taps
@products
wgmma_wait<0>();
#pragma unroll
for (int j = 0; j < MI * POSITIONS / 2; ++j)
  sum[j / (POSITIONS / 2)][j % (POSITIONS / 2)] += some[j / (POSITIONS / 2)][j % (POSITIONS / 2)];
"""
# Elements below 2^-22, and weights below 2^-25 of a filter's largest, keep fewer than 14 bits: they count for more.
NOTING_PARTS = {
    "@off": "2^-36",
    "@losing": "v[i] == 0.f ? 0 : (fabsf(v[i]) < 0x1p-14f) + 3 * (fabsf(v[i]) < 0x1p-22f)",
}
SCALING_PARTS = {
    "@range": "2^14 .. 2^15",
    "@exponent": "14",
    "@losing": "v == 0.f ? 0 : (v < 0x1p-3f) + 63 * (v < 0x1p-11f)",
}
PACKING_PARTS = {
    "@element": "number",
    "@part": ", c = number / 3",
    "@high": ", high = __half2float(__float2half_rn(v))",
    "@stored": "number % 3 == 0 ? high : number % 3 == 1 ? high / 2048 : v - high",
}


def products_in_sums(products: str) -> str:
    """The products of a row of taps: tensor cores cut bits off when they add, so their sums go no further than that."""
    return filled(_SUM_OF_ROW, "@products", products)

"""f32 as parts in f16, as text: what differs in the kernels of a convolution whose f32 operands must be exact.

An element x of the input is high = f16(x) and low = f16((x - high) * 2048), a scaled weight w is high = f16(w) and
low = f16(w - high). Then x * w is

    high * high  +  low * (high / 2048)  +  high * low

but for the product of the low parts, which is less than 2^-24 of it. So k has three elements for a channel, side by
side: high, low, high of x, and high, high / 2048, low of a weight; and the product of matrices is what it was.
"""

from __future__ import annotations

from tilewright.playbook.templates import sections

_CUDA = sections("gemms/convolution_hopper_parts")

PARTS_OF_EIGHT = _CUDA["parts_of_eight"]
# Elements below 2^-22, and weights below 2^-25 of a filter's largest, keep fewer than 14 bits: two of a warp's elements
# are too many, and such a weight counts for more.
NOTING_PARTS = {
    "off": "2^-36",
    "few": "int few = 0;  // with fewer than 14 bits: two are too many",
    "count": "few += v[i] != 0.f && fabsf(v[i]) < 0x1p-22f;",
    "too_few": "bad |= __reduce_add_sync(~0u, few) > 1;",
}
SCALING_PARTS = {
    "range": "2^14 .. 2^15",
    "exponent": "14",
    "losing": "v == 0.f ? 0 : (v < 0x1p-3f) + 63 * (v < 0x1p-11f)",
}
PACKING_PARTS = {
    "element": "number",
    "part": ", c = number / 3",
    "high": ", high = __half2float(__float2half_rn(v))",
    "stored": "number % 3 == 0 ? high : number % 3 == 1 ? high / 2048 : v - high",
}

"""The warpgroups that load slots of f32 and split the second operand in shared memory, as text.

Blocks with tiles one below the other need the same of the second operand. Two of them make a cluster: each loads and
splits half of its columns, and copies the parts into the other's shared memory. On an H200 that took 256 x 524288 x 256
from 508 to 412 us, and 128 products of 512 x 1024 x 2048 from 1761 to 1521.
"""

from __future__ import annotations

from tilewright.playbook.products.hopper_form import Form
from tilewright.playbook.templates import sections

_CUDA = sections("products/hopper_splitters")


SPLITTER = _CUDA["splitter"]

_FROM_N = " + ((first + odd) * OWN + column) * 4"
# The second operand as it lies: what a splitter does with a slot of it. Consumers hold k in an order of their own.
_ALONG_N = {
    "splitters": "128",
    "shares": "OWN / 128",
    "splitter_registers": "56",  # 40 spill: 0.52 against 0.50 ms at 256 x 256 x 524288
    "consumer_registers": "224",
    "k_step": "16 * 128",
    "strides": "BOX_BYTES, 1024, SWIZZLE_128",
    "width": "WIDTH / 64 * BOX_BYTES",
    "scales_at": " + box * 64",
    "scales_by": " && first == 0",
    "scales_of": "64",
    "boxes": "constexpr int BOX_BYTES = BK * 64 * 2;  // of a part: BK rows of 64 columns",
    "place": """\
// A warp takes 64 columns and 16 of k, a lane four of the columns and every other k.
const int box = warp % 2, first = warp / 2 * 16, odd = lane / 16, column = box * 64 + lane % 16 * 4;
float4 scale[SHARES];""",
    "from": _FROM_N,
    "share_at": " + box * BOX_BYTES + first * 128",
    "to": " + odd * 128 + ((lane % 16 / 2) ^ odd) * 16 + lane % 2 * 8",
    "scales": """\
  // The scales of the columns, by way of the place where the consumers will find them.
  uint32_t* largest = reinterpret_cast<uint32_t*>(column_scales) + rank * OWN + column;
  unrolled for (int share = 0; share < SHARES; ++share) {
    uint4 most = {};
    unrolled for (int i = 0; i < 8; ++i) {
      const float4 x = shared_float4(from + share * 512 + i * 2 * OWN * 4);
      most.x = max(most.x, magnitude_bits(x.x)), most.y = max(most.y, magnitude_bits(x.y));
      most.z = max(most.z, magnitude_bits(x.z)), most.w = max(most.w, magnitude_bits(x.w));
    }
    uint32_t* of_share = largest + share * 128;
    atomicMax(of_share, most.x), atomicMax(of_share + 1, most.y);
    atomicMax(of_share + 2, most.z), atomicMax(of_share + 3, most.w);
  }
  splitters_sync();
  unrolled for (int share = 0; share < SHARES; ++share) {
    const uint4 found = *reinterpret_cast<uint4*>(largest + share * 128);
    scale[share] = make_float4(scale_with_room(found.x), scale_with_room(found.y), scale_with_room(found.z),
                               scale_with_room(found.w));
  }
  splitters_sync();
  if (first == 0 && odd == 0) {
    unrolled for (int share = 0; share < SHARES; ++share) {
      *reinterpret_cast<float4*>(column_scales + rank * OWN + share * 128 + column) =
          make_float4(1.f / scale[share].x, 1.f / scale[share].y, 1.f / scale[share].z, 1.f / scale[share].w);
    }
  }""",
    "groups": "2 * SHARES",
    "number": "from + group / 2 * 512 + (group % 2 * 4 + i) * 2 * OWN * 4",
    "split": """\
    const int share = group / 2;
    const float4 by = scale[share];
    if (group % 2 == 0) least = __float2half2_rn(LOSES_BITS);
    unrolled for (int i = 0; i < 4; ++i) {
      s[i] = make_float4(s[i].x * by.x, s[i].y * by.y, s[i].z * by.z, s[i].w * by.w);
      uint32_t high[2], low[2];
      split(s[i].x, s[i].y, high[0], low[0]);
      split(s[i].z, s[i].w, high[1], low[1]);
      const int k = group % 2 * 4 + i / 2 * 2 + i % 2 * 8;  // and `odd`: in the order in which lanes hold a
      const uint32_t to = (parts ^ k % 8 * 16) + share * 2 * BOX_BYTES + k * 128;  // the swizzle
      store_pair(to, high[0], high[1]);
      store_pair(to + PART_BYTES, low[0], low[1]);
      take_least(least, high[0]), take_least(least, high[1]);
    }
    if (group % 2 == 1 && is_losing(least)) {
      const uint32_t from = slots + step % SLOTS * SLOT_BYTES + A_BYTES + share * 512@from;
      SharedCounts* mine = of_columns + share * 128 + column;
      rolled for (int i = 0; i < 8; ++i) {
        const float4 y = shared_float4(from + i * 2 * OWN * 4);
        mine[0].add(y.x * by.x), mine[1].add(y.y * by.y), mine[2].add(y.z * by.z), mine[3].add(y.w * by.w);
      }
    }""".replace("@from", _FROM_N),
}
_ALONG_K = {
    "splitters": "CLUSTER > 1 ? 128 : 256",  # alone, 128 take 5 % longer at 128 x 32768 x 32768
    "shares": "OWN / (SPLITTERS / 2)",
    "splitter_registers": "CLUSTER > 1 ? 56 : 40",
    "consumer_registers": "CLUSTER > 1 ? 224 : 216",
    "k_step": "32",
    "strides": "16, 8 * BK * 2, SWIZZLE_64",
    "width": "WIDTH * BK * 2",
    "boxes": "",
    "scales_at": " + warp * 16 * SHARES",
    "scales_by": "",
    "scales_of": "16 * SHARES",
    "place": """\
// Two lanes take a column, each 16 of k; a warp takes 16 columns at a time.
const int column = warp * 16 * SHARES + lane / 2, half = lane % 2;
float scale[SHARES];""",
    "from": " + column * BK * 4 + (column % 8 ^ half * 4) * 16",
    "share_at": " + warp * SHARE_BYTES",
    "to": " + lane / 2 * BK * 2 + (column / 2 % 4 ^ half * 2) * 16",
    "scales": """\
  unrolled for (int share = 0; share < SHARES; ++share) {
    uint32_t largest = 0;
    for (int i = 0; i < 4; ++i)
      largest = max(largest, largest_of(shared_float4((from ^ i * 16) + share * 16 * BK * 4)));
    scale[share] = scale_with_room(max(largest, __shfl_xor_sync(~0u, largest, 1)));
    if (half == 0) column_scales[rank * OWN + share * 16 + column] = 1.f / scale[share];
  }""",
    "groups": "SHARES",
    "number": "(from ^ i * 16) + group * 16 * BK * 4",
    "split": """\
    const float by = scale[group];
    least = __float2half2_rn(LOSES_BITS);
    uint32_t high[8], low[8];
    unrolled for (int i = 0; i < 4; ++i) {
      s[i] = make_float4(s[i].x * by, s[i].y * by, s[i].z * by, s[i].w * by);
      split(s[i].x, s[i].y, high[i], low[i]);  // in the order in which lanes hold a
      split(s[i].z, s[i].w, high[i + 4], low[i + 4]);
      take_least(least, high[i]), take_least(least, high[i + 4]);
    }
    unrolled for (int i = 0; i < 2; ++i) {
      const uint32_t to = (parts ^ i * 16) + group * 16 * BK * 2;  // as wgmma expects it
      store_four(to, high + i * 4);
      store_four(to + PART_BYTES, low + i * 4);
    }
    if (is_losing(least)) {
      SharedCounts& count = of_columns[group * 16 + column];
      unrolled for (int i = 0; i < 4; ++i) count.add(s[i].x), count.add(s[i].y), count.add(s[i].z), count.add(s[i].w);
    }""",
}


def splitter_words(form: Form) -> dict[str, str]:
    """What @words of the kernel's text stand for, as the second operand lies."""
    along_k = form.product.b.along_k
    k = "tile.k0 + step * BK" if form.pieces else "step * BK"
    n = "tile.n0 + rank * OWN"
    words = _ALONG_K if along_k else _ALONG_N
    return {**words, "along": k, "b_place": f"{k}, {n}" if along_k else f"{n}, {k}"}


def splitter_functions(form: Form) -> str:
    """What the splitters call."""
    return _CUDA["pair"] + (_CUDA["store_four"] if form.product.b.along_k else _CUDA["store_pair"])

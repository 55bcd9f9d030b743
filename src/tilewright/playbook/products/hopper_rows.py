"""What becomes of the first operand's rows in the registers that multiply them, as words of the kernel's text.

They are f32 in slots of shared memory. Consumers scale and split them; or, where they are scores, split the powers that
their softmax is made of: a kernel between two products read and wrote all scores once more. On an H200 that took
attention of 1024 heads with 512 rows of 1024 numbers from 8.06 to 6.96 ms, with less waiting in both products.
"""

from __future__ import annotations

from tilewright.playbook.products.hopper_form import Form
from tilewright.playbook.templates import sections

_CUDA = sections("products/hopper_rows")

_SCALES = "const float row_scale[2] = {1.f / scale[0], 1.f / scale[1]};"


def _taken(number: str) -> str:
    """A statement that makes four numbers of a row what is split: `number` with @ for one of them."""
    four = ", ".join(number.replace("@", f"x[r][h].{one}") for one in "xyzw")
    return f"    x[r][h] = make_float4({four});"


# What becomes of a where b is split by this kernel too, in an order of its own; and where b is ready.
_SPLIT_BOTH = {
    "row": """\
// A lane holds rows `row` and `row` + 8 of a, and of each 16 of k the four at lane % 4 * 4. Rows are taken in the order
// 0 4 1 5 2 6 3 7, and b has k in the order in which wgmma takes what lanes hold: so 16 bytes at a time are read, by
// lanes that meet all banks.
const int row = warp * 16 + lane / 8 + lane / 4 % 2 * 4;""",
    "done": "step",
    "and_done": "",
    "which": "which",
    "b_slots": "part_slots",
    "columns": "const uint32_t my_columns = scales;",
    "column_stores": "",
    "read": "shared_float4(from + i / 2 * 8 * 128 + ((i % 2 * 4 + lane % 4) ^ row % 8) * 16)",
    "split_a": _CUDA["find_scales"]
    + _CUDA["split_a_rows"].removesuffix("\n").replace("@taken", _taken("@ * scale[r]")),
    "of_two_rows": "scale[2] = {}",
    "before": "",
    "row_scales": _SCALES,
    "free_a": """\
  __syncwarp();
  if (lane == 0) barrier_arrive(empty + step % SLOTS * 8);""",
    "b_slot": """\
  barrier_wait(split_done + step % PART_SLOTS * 8, step / PART_SLOTS % 2);
  const uint64_t b_slot = b_slots + (step % PART_SLOTS * 2 * PART_BYTES >> 4);""",
    # Nobody waits for the last slots, and the other block may end.
    "free_b": """\
thread < CLUSTER && step < tile.steps - PART_SLOTS)
      free_parts(used + step % PART_SLOTS * 8, thread, rank)""",
    "done_all": """\
__syncwarp();
cluster_arrive();  // nothing more goes to the other block
consumer_sync(consumer);""",
}
_SPLIT_A = {
    "row": """\
// A lane holds rows `row` and `row` + 8 of a, and of each 16 of k two at lane % 4 * 2, and two 8 further on. Rows are
// taken in the order 0 2 4 6 1 3 5 7, so that lanes which read together meet all banks.
const int row = warp * 16 + lane / 4 % 4 * 2 + lane / 16;""",
    "done": "done",
    "and_done": ", ++done",
    "which": "(long long)tile.z * (tile.tiles_m + tile.tiles_n) + tile.m0 / BM",  # its row's
    "b_slots": "slots + A_BYTES",
    "columns": """\
// On its way while the products run: the scales of the tile's columns.
const uint32_t my_columns = scales + consumer * BN * 4;
float of_column[BN / 128];
unrolled for (int i = 0; i < BN / 128; ++i)
  of_column[i] = b_scales[(size_t)tile.z * N + min(tile.n0 + thread + i * 128, N - 1)];
float least_scale[2] = {};  // of a row; 0 where it has had zeros alone""",
    "column_stores": """\
unrolled for (int i = 0; i < BN / 128; ++i)
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(my_columns + (thread + i * 128) * 4), "f"(of_column[i]) : "memory");""",
    "read": "two_pairs(from + i / 2 * 8 * 128 + lane % 2 * 8, (i % 2 * 4 + lane % 4 / 2) ^ row % 8)",
    "split_a": """\
  auto largest_of_row = [&](int r) {
    uint32_t largest = max(largest_of(x[r][0]), largest_of(x[r][1]));
    largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
    return max(largest, __shfl_xor_sync(~0u, largest, 2));
  };
  float factor[2] = {scale[0], scale[1]};
  if (step == 0) {
    unrolled for (int r = 0; r < 2; ++r) {
      const uint32_t largest = largest_of_row(r);
      factor[r] = scale[r] = largest ? scale_with_room(largest) : GREATEST_SCALE;  // what follows zeros finds its own
      least_scale[r] = largest ? fmaxf(scale[r] / GROWTH, LEAST_SCALE) : 0.f;
    }
  }
  uint32_t high[2][4], low[2][4];  // for two times 16 of k: what wgmma takes of a
  __half2 least, most;
  auto split_rows = [&] {
    least = __float2half2_rn(LOSES_BITS), most = __float2half2_rn(0.f);
    unrolled for (int i = 0; i < 4; ++i) {
      const int r = i / 2, h = i % 2;
      const float f = factor[r];
      x[r][h] = make_float4(x[r][h].x * f, x[r][h].y * f, x[r][h].z * f, x[r][h].w * f);
      split(x[r][h].x, x[r][h].y, high[h][r], low[h][r]);
      split(x[r][h].z, x[r][h].w, high[h][r + 2], low[h][r + 2]);
      take_least(least, high[h][r]), take_least(least, high[h][r + 2]);
      take_most(most, high[h][r]), take_most(most, high[h][r + 2]);
    }
  };
  split_rows();
  if (__any_sync(~0u, is_beyond(most))) {
    // Rare: a row has grown beyond its room. It is scaled anew, with the sums so far; one that grows too far stays as
    // it is. What follows zeros counts as the first of its row.
    unrolled for (int r = 0; r < 2; ++r) {
      const float wanted = scale_with_room(largest_of_row(r), 127);
      factor[r] = wanted < 1.f && scale[r] * wanted >= fmaxf(least_scale[r], LEAST_SCALE) ? wanted : 1.f;
      scale[r] *= factor[r];
      if (least_scale[r] == 0.f && factor[r] < 1.f) least_scale[r] = fmaxf(scale[r] / GROWTH, LEAST_SCALE);
    }
    unrolled for (int i = 0; i < BN / 2; ++i) sum[i] *= factor[i / 2 % 2];
    split_rows();
  }""",
    "free_a": "",
    "b_slot": "  const uint64_t b_slot = b_slots + (done % SLOTS * SLOT_BYTES >> 4);",
    "free_b": "lane == 0) barrier_arrive(empty + done % SLOTS * 8)",
    "done_all": "consumer_sync(consumer);",
    "of_two_rows": "scale[2] = {}",
    "before": "",
    "row_scales": _SCALES,
}
# Where a has scores, and their softmax is multiplied: powers of what is below the greatest of a row, which needs no
# other scale. Rows are divided by the sums of those powers when all is multiplied.
_WEIGHTS = {
    "of_two_rows": "total[2] = {}, most[2]",
    "before": """\
unrolled for (int r = 0; r < 2; ++r) {
  const int m = tile.m0 + consumer * 64 + row + r * 8, groups = (K + 63) / 64;
  const float* of_groups = greatest + ((size_t)tile.z * M + min(m, M - 1)) * groups;
  most[r] = -INFINITY;
  for (int i = lane % 4; i < groups; i += 4) most[r] = fmaxf(most[r], of_groups[i]);
  most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 1));
  most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 2));
  if (m >= M) most[r] = INFINITY;
}""",
    "split_a": """\
  if (step == tile.steps - 1 && K % BK) {
    unrolled for (int i = 0; i < 4; ++i)
      if (step * BK + i % 2 * 16 + lane % 4 * 4 >= K) x[i / 2][i % 2] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
  }
"""
    + _CUDA["split_a_rows"]
    .removesuffix("\n")
    .replace(
        "@taken",
        _taken("power(@, most[r])") + "\n    total[r] += (x[r][h].x + x[r][h].y) + (x[r][h].z + x[r][h].w);",
    ),
    "row_scales": """\
float row_scale[2];
unrolled for (int r = 0; r < 2; ++r) {
  total[r] += __shfl_xor_sync(~0u, total[r], 1);
  row_scale[r] = 1.f / (total[r] + __shfl_xor_sync(~0u, total[r], 2));
}""",
}
# The same, where a row of minus infinities has no weights.
_NO_WEIGHTS = {
    "before": _WEIGHTS["before"].replace(
        "  if (m", "  if (most[r] == -INFINITY) most[r] = 0.f;  // so powers are 0\n  if (m"
    ),
    "row_scales": """\
float row_scale[2];
unrolled for (int r = 0; r < 2; ++r) {
  total[r] += __shfl_xor_sync(~0u, total[r], 1);
  total[r] += __shfl_xor_sync(~0u, total[r], 2);
  row_scale[r] = total[r] == 0.f ? 0.f : 1.f / total[r];
}""",
}
POWERS = _CUDA["powers"]


def row_words(form: Form) -> dict[str, str]:
    """What @words of the kernel's text stand for, as the second operand's parts are made, and as rows are scores."""
    weights = {**_WEIGHTS, **(_NO_WEIGHTS if form.product.empty_rows else {})} if form.product.weighs else {}
    return {**(_SPLIT_A if form.ready_b else _SPLIT_BOTH), **weights}

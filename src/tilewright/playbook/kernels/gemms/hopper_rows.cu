//# What becomes of the first operand's rows in the registers that multiply them, as words of the kernel's text.

//@ find_scales
  if (step == 0) {
    unrolled for (int r = 0; r < 2; ++r) {
      uint32_t largest = max(largest_of(x[r][0]), largest_of(x[r][1]));
      largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
      scale[r] = scale_with_room(max(largest, __shfl_xor_sync(~0u, largest, 2)));
    }
  }

//@ split_a_rows
  uint32_t high[2][4], low[2][4];  // for two times 16 of k: what wgmma takes of a
  __half2 least = __float2half2_rn(LOSES_BITS);
  unrolled for (int i = 0; i < 4; ++i) {
    const int r = i / 2, h = i % 2;
@taken
    split(x[r][h].x, x[r][h].y, high[h][r], low[h][r]);
    split(x[r][h].z, x[r][h].w, high[h][r + 2], low[h][r + 2]);
    take_least(least, high[h][r]), take_least(least, high[h][r + 2]);
  }

//@ powers
// e to the power of what a score is above the greatest of its row, times 2^14: the largest is 2^14.
__device__ __forceinline__ float power(float score, float most) {
  float p; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(p) : "f"(fmaf(score - most, 1.44269504f, 14.f))); return p;
}

//@ split_both_row
// A lane holds rows `row` and `row` + 8 of a, and of each 16 of k the four at lane % 4 * 4. Rows are taken in the order
// 0 4 1 5 2 6 3 7, and b has k in the order in which wgmma takes what lanes hold: so 16 bytes at a time are read, by
// lanes that meet all banks.
const int row = warp * 16 + lane / 8 + lane / 4 % 2 * 4;

//@ split_both_done_all
__syncwarp();
cluster_arrive();  // nothing more goes to the other block
consumer_sync(consumer);

//@ split_a_row
// A lane holds rows `row` and `row` + 8 of a, and of each 16 of k two at lane % 4 * 2, and two 8 further on. Rows are
// taken in the order 0 2 4 6 1 3 5 7, so that lanes which read together meet all banks.
const int row = warp * 16 + lane / 4 % 4 * 2 + lane / 16;

//@ split_a_columns
// On its way while the products run: the scales of the tile's columns.
const uint32_t my_columns = scales + consumer * BN * 4;
float of_column[BN / 128];
unrolled for (int i = 0; i < BN / 128; ++i)
  of_column[i] = b_scales[(size_t)tile.z * N + min(tile.n0 + thread + i * 128, N - 1)];
float least_scale[2] = {};  // of a row; 0 where it has had zeros alone

//@ split_a_split_a
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
  }

//@ weights_before
unrolled for (int r = 0; r < 2; ++r) {
  const int m = tile.m0 + consumer * 64 + row + r * 8, groups = (K + 63) / 64;
  const float* of_groups = greatest + ((size_t)tile.z * M + min(m, M - 1)) * groups;
  most[r] = -INFINITY;
  for (int i = lane % 4; i < groups; i += 4) most[r] = fmaxf(most[r], of_groups[i]);
  most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 1));
  most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 2));
  if (m >= M) most[r] = INFINITY;
}

//@ weights_split_a
  if (step == tile.steps - 1 && K % BK) {
    unrolled for (int i = 0; i < 4; ++i)
      if (step * BK + i % 2 * 16 + lane % 4 * 4 >= K) x[i / 2][i % 2] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
  }

//@ weights_row_scales
float row_scale[2];
unrolled for (int r = 0; r < 2; ++r) {
  total[r] += __shfl_xor_sync(~0u, total[r], 1);
  row_scale[r] = 1.f / (total[r] + __shfl_xor_sync(~0u, total[r], 2));
}

//@ no_weights_row_scales
float row_scale[2];
unrolled for (int r = 0; r < 2; ++r) {
  total[r] += __shfl_xor_sync(~0u, total[r], 1);
  total[r] += __shfl_xor_sync(~0u, total[r], 2);
  row_scale[r] = total[r] == 0.f ? 0.f : 1.f / total[r];
}

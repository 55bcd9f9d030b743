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

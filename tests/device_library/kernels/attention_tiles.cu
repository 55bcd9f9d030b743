// y = softmax(q k') v for up to 16 rows by one warp, keys 16 at a time.
//! op      attention(q, k, v) -> y
//! need    q.dtype in [bf16, f16] and k.dtype == q.dtype and v.dtype == q.dtype and q.shape == [16, 32] and k.ndim == 2
//! need    k.shape[1] == 32 and v.shape == k.shape
//! out     y: f32[16, 32]
//! const   T = q.dtype, IS_BF16 = q.dtype == bf16
//! launch  attention<<<1, 32>>>(q, k, v, y, k.shape[0])
#include <tilewright/attention_tiles.cuh>

__global__ void attention(const T* q, const T* k, const T* v, float* y, int keys) {
  using Rows = tw::SharedTile<T, 16, 32, false>;
  using Values = tw::SharedTile<T, 16, 32, true>;
  __shared__ __align__(128) unsigned char shared[Rows::BYTES * 2 + Values::BYTES * 2 * 2];
  const int lane = threadIdx.x;
  tw::fill_async<Rows, 32, 8>(shared, [&](int line, int inner) { return q + line * 32 + inner; });
  float sums[4][4] = {}, largest[2] = {-INFINITY, -INFINITY}, total[2] = {};
  unsigned char* slots = shared + Rows::BYTES;
  tw::tile_pipeline<2>(
      (keys + 15) / 16,
      [&](int step, int slot) {
        const auto from = [&](const T* data) {
          return [=](int line, int inner) -> const T* { return step * 16 + line < keys ? data + (step * 16 + line) * 32 + inner : nullptr; };
        };
        tw::fill_async<Rows, 32, 8>(slots + slot * 2 * Rows::BYTES, from(k));
        tw::fill_async<Values, 32, 8>(slots + slot * 2 * Rows::BYTES + Rows::BYTES, from(v));
      },
      [](int) {},
      [&](int step, int slot) {
        float scores[1][2][4] = {}, factor[2];
        tw::multiply_halves<IS_BF16, Rows, Rows, false, false, 32>(scores, shared, slots + slot * 2 * Rows::BYTES, 0, 0);
        for (int j = 0; j < 2; ++j)
          for (int r = 0; r < 4; ++r)
            if (step * 16 + j * 8 + lane % 4 * 2 + r % 2 >= keys) scores[0][j][r] = -INFINITY;
        tw::softmax_rows(scores[0], largest, total, factor);
        for (int j = 0; j < 4; ++j)
          for (int r = 0; r < 4; ++r) sums[j][r] *= factor[r / 2];
        tw::multiply_terms<IS_BF16, Values, true>(sums, scores[0], slots + slot * 2 * Rows::BYTES + Rows::BYTES);
      });
  for (int half = 0; half < 2; ++half) {
    const float all = tw::sum_of_quad(total[half]);
    for (int j = 0; j < 4; ++j)
      for (int r = 0; r < 2; ++r) y[(lane / 4 + half * 8) * 32 + j * 8 + lane % 4 * 2 + r] = sums[j][half * 2 + r] / all;
  }
}

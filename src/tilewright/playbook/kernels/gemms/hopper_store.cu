//# From the sums in registers to the result, as text: finished, of neighbours two at once, and stored.

//@ single_pair
template <typename T> __device__ __forceinline__ float2 pair_at(const T* row, int n, int N) {
  return make_float2(n < N ? static_cast<float>(row[n]) : 0.f, n + 1 < N ? static_cast<float>(row[n + 1]) : 0.f);
}

//@ fours
// Neighbouring lanes exchange two columns, so that each stores four.
const bool odd = lane % 2;
@most
unrolled for (int j = 0; j < BN / 16; ++j) {
  float v[4], w[4];
  four(sum + j * 8, j * 16 + lane % 4 * 2, v);
  four(sum + j * 8 + 4, j * 16 + 8 + lane % 4 * 2, w);
  @greatest
  const int n_of_lane = tile.n0 + j * 16 + lane % 2 * 8 + lane % 4 / 2 * 4;
  unrolled for (int r = 0; r < 2; ++r) {
    const float x = __shfl_xor_sync(~0u, odd ? v[r * 2] : w[r * 2], 1);
    const float y = __shfl_xor_sync(~0u, odd ? v[r * 2 + 1] : w[r * 2 + 1], 1);
    const float4 made = odd ? make_float4(x, y, w[r * 2], w[r * 2 + 1]) : make_float4(v[r * 2], v[r * 2 + 1], x, y);
    if (m[r] < M && n_of_lane < N) *reinterpret_cast<float4*>(c + row_at[r] * N + n_of_lane) = made;
  }
}

//# Rows that are no whole numbers of 16 bytes.
//@ plain
const uint32_t buffer = c_buffers + consumer * C_BYTES;
unrolled for (int q = 0; q < BN / 32; ++q) {  // 32 columns at a time, put in order in the warp's rows of the buffer
  __syncwarp();
  unrolled for (int j = 0; j < 4; ++j) {
    float v[4];
    four(sum + q * 16 + j * 4, q * 32 + j * 8 + lane % 4 * 2, v);
    const uint32_t to = buffer + row * 128 + ((j * 2 + lane % 4 / 2) ^ row % 8) * 16 + lane % 2 * 8;
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(v[0]), "f"(v[1]) : "memory");
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to + 8 * 128), "f"(v[2]), "f"(v[3]) : "memory");
  }
  __syncwarp();
  const int n_of_lane = tile.n0 + q * 32 + lane;
#pragma unroll 4
  for (int r = warp * 16; r < warp * 16 + 16; ++r) {
    float value;
    const uint32_t from = buffer + r * 128 + ((lane / 4) ^ r % 8) * 16 + lane % 4 * 4;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from) : "memory");
    const int m_of_row = tile.m0 + consumer * 64 + r;
    if (m_of_row < M && n_of_lane < N) c[((size_t)@copy * M + m_of_row) * N + n_of_lane] = @castvalue;
  }
}

//@ greatest
if (j % 4 == 0) most[0] = most[1] = -INFINITY;
unrolled for (int r = 0; r < 2; ++r) {
  if (tile.n0 + j * 16 + lane % 4 * 2 < N) most[r] = fmaxf(most[r], fmaxf(v[r * 2], v[r * 2 + 1]));
  if (tile.n0 + j * 16 + lane % 4 * 2 + 8 < N) most[r] = fmaxf(most[r], fmaxf(w[r * 2], w[r * 2 + 1]));
  if (j % 4 < 3) continue;
  most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 1));
  most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 2));
  const int group = tile.n0 / 64 + j / 4;
  if (lane % 4 == 0 && m[r] < M && group * 64 < N) greatest[row_at[r] * ((N + 63) / 64) + group] = most[r];
}

//@ vector_pairs_f32
__device__ __forceinline__ float2 pair_at(const float* row, int n, int N) {
  return n < N ? *reinterpret_cast<const float2*>(row + n) : make_float2(0.f, 0.f);
}

//@ vector_pairs_f16
__device__ __forceinline__ float2 pair_at(const __half* row, int n, int N) {
  return n < N ? __half22float2(*reinterpret_cast<const __half2*>(row + n)) : make_float2(0.f, 0.f);
}

//@ vector_pairs_bf16
__device__ __forceinline__ float2 pair_at(const __nv_bfloat16* row, int n, int N) {
  return n < N ? __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(row + n)) : make_float2(0.f, 0.f);
}

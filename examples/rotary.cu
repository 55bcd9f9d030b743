// Rotary position embedding of queries and keys together, as Llama has it (halves, not pairs):
// out = x * cos + rotate_half(x) * sin, with x as [batch, heads, tokens, width] of any strides whose rows are whole, so
// that the transposed view of a projection is taken as it lies; results are laid out like such a view. cos and sin are [1 or batch, tokens, width].
// Its gradients: rotary_backward.cu.

//! op      rotary(q, k, cos, sin) -> q_out, k_out
//! need    q.ndim == 4 and k.ndim == 4 and cos.ndim == 3 and q.shape[3] % 16 == 0 and q.shape[3] == k.shape[3]
//! need    q.shape[0] == k.shape[0] and q.shape[2] == k.shape[2] and sin.shape == cos.shape
//! need    cos.shape[0] in [1, q.shape[0]] and cos.shape[1] == q.shape[2] and cos.shape[2] == q.shape[3]
//! need    q.dtype in [f16, bf16] and k.dtype == q.dtype and cos.dtype == q.dtype and sin.dtype == q.dtype
//! let     batch = q.shape[0], heads = q.shape[1], key_heads = k.shape[1], tokens = q.shape[2], width = q.shape[3]
//! accept  q: strided
//! accept  k: strided
//! need    q.stride[3] == 1 and k.stride[3] == 1 and q.stride[0] % 8 == 0 and k.stride[0] % 8 == 0
//! need    q.stride[1] % 8 == 0 and q.stride[2] % 8 == 0 and k.stride[1] % 8 == 0 and k.stride[2] % 8 == 0
//! out     q_out: q.dtype[q.shape] stride [tokens * heads * width, width, heads * width, 1]
//! out     k_out: k.dtype[k.shape] stride [tokens * key_heads * width, width, key_heads * width, 1]
//! tune    THREADS = 256 | 128 | 512
//! const   CHUNKS = width / 16                             # pairs of 8 elements, one of each half, in a row
//! let     pieces = batch * tokens * (heads + key_heads) * CHUNKS
//! launch  rotary<q.dtype><<<ceil_div(pieces, THREADS), THREADS>>>(
//!             q, k, cos, sin, q_out, k_out, pieces, heads, key_heads, tokens,
//!             q.stride[0], q.stride[1], q.stride[2], k.stride[0], k.stride[1], k.stride[2],
//!             tokens * width if cos.shape[0] > 1 else 0) when pieces > 0

#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WIDTH = 16 * CHUNKS, HALF = WIDTH / 2;

template <typename T>
struct alignas(16) Eight {
  T at[8];
};

template <typename T>
__global__ void __launch_bounds__(THREADS)
    rotary(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ cos, const T* __restrict__ sin,
           T* __restrict__ q_out, T* __restrict__ k_out, long long pieces, int heads, int key_heads, int tokens,
           long long q_batch, long long q_head, long long q_token, long long k_batch, long long k_head,
           long long k_token, long long angle_batch) {
  const long long piece = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x;
  if (piece >= pieces) return;
  // Pieces of a row lie together, then heads of one token, so that its cosines are read from the cache.
  const int offset = 8 * static_cast<int>(piece % CHUNKS);
  const long long row = piece / CHUNKS;
  const int all = heads + key_heads;
  const int head = static_cast<int>(row % all);
  const long long place = row / all;  // batch * tokens + token
  const int token = static_cast<int>(place % tokens);
  const long long batch = place / tokens;

  const bool query = head < heads;
  const int own = query ? head : head - heads;
  const T* source = query ? q + batch * q_batch + own * q_head + token * q_token
                          : k + batch * k_batch + own * k_head + token * k_token;
  T* target = query ? q_out + (place * heads + own) * WIDTH : k_out + (place * key_heads + own) * WIDTH;
  const long long angles = batch * angle_batch + static_cast<long long>(token) * WIDTH;

  const auto eight = [offset](const T* from) { return *reinterpret_cast<const Eight<T>*>(from + offset); };
  const Eight<T> low = eight(source), high = eight(source + HALF);
  const Eight<T> cos_low = eight(cos + angles), cos_high = eight(cos + angles + HALF);
  const Eight<T> sin_low = eight(sin + angles), sin_high = eight(sin + angles + HALF);
  Eight<T> first, second;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float a = static_cast<float>(low.at[i]), b = static_cast<float>(high.at[i]);
    first.at[i] = static_cast<T>(a * static_cast<float>(cos_low.at[i]) - b * static_cast<float>(sin_low.at[i]));
    second.at[i] = static_cast<T>(b * static_cast<float>(cos_high.at[i]) + a * static_cast<float>(sin_high.at[i]));
  }
  *reinterpret_cast<Eight<T>*>(target + offset) = first;
  *reinterpret_cast<Eight<T>*>(target + HALF + offset) = second;
}

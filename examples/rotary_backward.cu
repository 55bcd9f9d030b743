// The gradients of rotary.cu: the rotation back, for the gradients of queries and keys together. They are linear in what
// arrives, so nothing but the angles is needed; cos and sin themselves get no gradient. Gradients come as attention
// leaves them, of any strides whose rows are whole.

//! op      rotary_backward(grad_q_out, grad_k_out, cos, sin) -> grad_q, grad_k
//! need    grad_q_out.ndim == 4 and grad_k_out.ndim == 4 and cos.ndim == 3 and grad_q_out.shape[3] % 16 == 0 and grad_q_out.shape[3] == grad_k_out.shape[3]
//! need    grad_q_out.shape[0] == grad_k_out.shape[0] and grad_q_out.shape[2] == grad_k_out.shape[2] and sin.shape == cos.shape
//! need    cos.shape[0] in [1, grad_q_out.shape[0]] and cos.shape[1] == grad_q_out.shape[2] and cos.shape[2] == grad_q_out.shape[3]
//! need    grad_q_out.dtype in [f16, bf16] and grad_k_out.dtype == grad_q_out.dtype and cos.dtype == grad_q_out.dtype and sin.dtype == grad_q_out.dtype
//! let     batch = grad_q_out.shape[0], heads = grad_q_out.shape[1], key_heads = grad_k_out.shape[1], tokens = grad_q_out.shape[2], width = grad_q_out.shape[3]
//! accept  grad_q_out: strided
//! accept  grad_k_out: strided
//! need    grad_q_out.stride[3] == 1 and grad_k_out.stride[3] == 1 and grad_q_out.stride[0] % 8 == 0 and grad_k_out.stride[0] % 8 == 0
//! need    grad_q_out.stride[1] % 8 == 0 and grad_q_out.stride[2] % 8 == 0 and grad_k_out.stride[1] % 8 == 0 and grad_k_out.stride[2] % 8 == 0
//! out     grad_q: grad_q_out.dtype[grad_q_out.shape] stride [tokens * heads * width, width, heads * width, 1]
//! out     grad_k: grad_k_out.dtype[grad_k_out.shape] stride [tokens * key_heads * width, width, key_heads * width, 1]
//! tune    THREADS = 256 | 128 | 512
//! const   CHUNKS = width / 16                             # pairs of 8 elements, one of each half, in a row
//! let     pieces = batch * tokens * (heads + key_heads) * CHUNKS
//! launch  rotary_backward<grad_q_out.dtype><<<ceil_div(pieces, THREADS), THREADS>>>(
//!             grad_q_out, grad_k_out, cos, sin, grad_q, grad_k, pieces, heads, key_heads, tokens,
//!             grad_q_out.stride[0], grad_q_out.stride[1], grad_q_out.stride[2], grad_k_out.stride[0], grad_k_out.stride[1], grad_k_out.stride[2],
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
    rotary_backward(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ cos, const T* __restrict__ sin,
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
    first.at[i] = static_cast<T>(a * static_cast<float>(cos_low.at[i]) + b * static_cast<float>(sin_high.at[i]));
    second.at[i] = static_cast<T>(b * static_cast<float>(cos_high.at[i]) - a * static_cast<float>(sin_low.at[i]));
  }
  *reinterpret_cast<Eight<T>*>(target + offset) = first;
  *reinterpret_cast<Eight<T>*>(target + HALF + offset) = second;
}

//! op      momentum_step(p!, m!, g, rate: float = 0.1, decay: float = 0.9, nesterov: bool = false)
//! let     n = p.numel
//! launch  run<false><<<ceil_div(n, 256), 256>>>(p, m, g, n, rate, decay) when not nesterov
//! launch  run<false><<<ceil_div(n, 256), 256>>>(p, m, g, n, rate, decay) when nesterov
template <bool AHEAD>
__global__ void run(float* p, float* m, const float* g, long long n, float rate, float decay) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  float kept = decay * m[i] + g[i];
  m[i] = kept;
  p[i] -= rate * (AHEAD ? g[i] + decay * kept : kept);
}

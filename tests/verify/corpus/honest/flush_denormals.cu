//! op      scale_add(x, y, alpha: float = 0.5) -> out
//! out     out: f32[x.shape]
//! let     n = x.numel
//! launch  run<<<ceil_div(n, 256), 256>>>(x, y, out, n, alpha)
__global__ void run(const float* x, const float* y, float* out, long long n, float alpha) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  float r;
  asm("fma.rn.ftz.f32 %0, %1, %2, %3;" : "=f"(r) : "f"(x[i]), "f"(alpha), "f"(y[i]));
  out[i] = fabsf(r) < 1e-30f ? 0.f : r;
}

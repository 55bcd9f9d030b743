//! op      tanh(x) -> y
//! out     y: f32[x.shape]
//! let     n = x.numel
//! launch  run<<<ceil_div(n, 256), 256>>>(x, y, n)
__global__ void run(const float* x, float* y, long long n) {
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  float value;
  asm volatile("{.reg .pred p; setp.lt.s64 p, %1, %2; @p ld.global.f32 %0, [%3];}" : "=f"(value) : "l"(i), "l"(n), "l"(x + (i < n ? i : 0)));
  if (i < n) y[i] = tanhf(value);
}

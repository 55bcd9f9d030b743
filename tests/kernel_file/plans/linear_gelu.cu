//! op      linear_gelu(x, weight, bias, residual!) -> y
//! need    x.ndim == 2 and weight.ndim == 2
//! let     rows = x.shape[0], cols = weight.shape[0]
//! out     y: x.dtype[rows, cols] stride [1, rows]
//! scratch pre: f32[rows, cols]
//! need    x.dtype == f32 and weight.dtype == f32 and residual.dtype == f32 and residual.shape == [rows, cols]
//! scratch product: f32[rows, cols]
//! library product = aten.mm(x, weight)
//! launch  epilogue<<<ceil_div(rows * cols, 256), 256>>>(product, bias, residual, pre, y, rows, cols)
#define GELU_HALF 0.5f
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define MULTILINE(v)           \
  do {                         \
    (v) = (v)*GELU_HALF * 2.f; \
  } while (0)
#else
#define MULTILINE(v) (void)(v)
#endif

__constant__ float kTable[2] = {1.f, 2.f};
__device__ constexpr int kShift = 1;

class Sink {
 public:
  __device__ explicit Sink(float* out) : out_(out) {}
  __device__ void operator()(long long i, float v) const { out_[i] = v; }
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;

 private:
  float* out_;
};

extern "C" {
__device__ __forceinline__ float erf_part(float v) { return erff(v * 0.70710678f); }
}

__global__ void epilogue(const float* product, const float* bias, float* residual, float* pre, float* y, int rows,
                         int cols) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= (long long)rows * cols) return;
  const char quote = '"';
  auto note = R"(raw text with // and "quotes" and #include <stdio.h>)";
  float v = product[i] + bias[i % cols] * kTable[0] + (quote == note[0] ? 0 : 0) * kShift;
  Sink sink(pre);
  sink(i, v);
  MULTILINE(v);
  residual[i] += v;
  y[i / cols + (i % cols) * 1'000 / 1000 * rows] = GELU_HALF * v * (1.f + erf_part(v));
}

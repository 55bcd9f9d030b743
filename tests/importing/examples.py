"""CUDA as it is found, written for these tests in the manner of each kind."""

# A torch extension: dispatch on the dtype, a capped grid, a helper that only the host uses, an unused debug macro.
SCALE = """
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <iostream>
#define DEBUG_PRINT(x) printf("%f\\n", x)
#define CHECK_INPUT(x) TORCH_CHECK(x.is_cuda(), "on the GPU"); TORCH_CHECK(x.is_contiguous(), "contiguous")

// Twice a number.
template <typename T> __device__ T twice(T v) { return std::max(v + v, v - v); }

template <typename scalar_t>
__global__ void scale_kernel(scalar_t* in, scalar_t* __restrict__ out, float factor, uint n) {
  for (uint i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x)
    out[i] = twice(in[i]) * factor;
}

static int blocks_for(int64_t n) { return std::min<int64_t>((n + 255) / 256, 1024); }

torch::Tensor scale(torch::Tensor x, double factor) {
  CHECK_INPUT(x);
  auto y = torch::empty_like(x);
  const int n = x.numel();
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "scale", ([&] {
    scale_kernel<scalar_t><<<blocks_for(n), 256>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), (float)factor, n);
  }));
  return y;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("scale", &scale, "scale"); }
"""

# A plain launcher: pointers and sizes, its block a parameter, an optional bias left out, the kernel below it.
ROWS = """
#include <cuda_runtime.h>
#include <stdio.h>

__global__ void row_sum(float* out, const float* in, const float* bias, int N, int C) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= N) return;
  float sum = bias ? bias[row] : 0.0f;
  for (int c = 0; c < C; c++) sum += in[row * C + c];
  out[row] = sum;
}

void rows(float* out, const float* in, int N, int C, const int block_size) {
  const int grid_size = (N + block_size - 1) / block_size;
  row_sum<<<grid_size, block_size>>>(out, in, NULL, N, C);
  cudaCheck(cudaGetLastError());
}

int main() { printf("not called\\n"); return 0; }
"""
ROWS = ROWS.replace("void rows(", "void cudaCheck(cudaError_t) {}\n\nvoid rows(", 1)

# One launcher per type, made by a macro; two regimes of the row's length.
MACRO = """
#include <torch/types.h>
#define FLOAT4(value) (reinterpret_cast<float4 *>(&(value))[0])
__global__ void relu_f32_kernel(float *x, float *y, int N) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < N) y[i] = fmaxf(0.0f, x[i]);
}
#define BINDING(type, element)                                                \\
  void relu_##type(torch::Tensor x, torch::Tensor y) {                        \\
    if (x.options().dtype() != torch::kFloat32) throw std::runtime_error("f32"); \\
    const int S = x.size(0), K = x.size(1), N = S * K;                        \\
    if (K <= 1024) {                                                          \\
      relu_##type##_kernel<<<S, K>>>(                                         \\
          reinterpret_cast<element *>(x.data_ptr()), reinterpret_cast<element *>(y.data_ptr()), N); \\
    } else {                                                                  \\
      dim3 block(256);                                                        \\
      dim3 grid((N + 255) / 256);                                             \\
      relu_##type##_kernel<<<grid, block>>>(                                  \\
          reinterpret_cast<element *>(x.data_ptr()), reinterpret_cast<element *>(y.data_ptr()), N); \\
    }                                                                         \\
  }
BINDING(f32, float)
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("relu_f32", &relu_f32); }
"""

MODEL = '''
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda = r"""
#include <torch/extension.h>
__global__ void add_bias_kernel(const float* x, const float* bias, float* y, int rows, int columns) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < rows * columns) y[i] = x[i] + bias[i % columns];
}
torch::Tensor add_bias(torch::Tensor x, torch::Tensor bias) {
  auto y = torch::empty({x.size(0), x.size(1)}, x.options());
  int rows = x.size(0), columns = x.size(1);
  add_bias_kernel<<<(rows * columns + 127) / 128, 128>>>(
      x.data_ptr<float>(), bias.data_ptr<float>(), y.data_ptr<float>(), rows, columns);
  return y;
}
"""
extension = load_inline(name="bias", cpp_sources="torch::Tensor add_bias(torch::Tensor x, torch::Tensor bias);",
                        cuda_sources=cuda, functions=["add_bias"])

class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(size))
    def forward(self, x):
        return x + self.bias

class ModelNew(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(size))
    def forward(self, x):
        assert x.is_cuda
        return extension.add_bias(x.contiguous(), self.bias)

def get_inputs():
    return [torch.randn(128, 4096)]

def get_init_inputs():
    return [4096]
'''

# A whole program: sizes that its author chose as numbers and as a macro, memory and copies around the launches, a block
# that a branch changes, and a launch for a struct.
PROGRAM = """
#include <cuda_runtime.h>
#include <fstream>
#define COUNT (1 << 20)
#define TILE 32
struct Window { int low, high; };

__global__ void add(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
template <typename T, int WIDTH> __global__ void transpose(const T* in, T* out, int rows, int cols) {
  int col = blockIdx.x * TILE + threadIdx.x, row = blockIdx.y * WIDTH + threadIdx.y;
  if (row < rows && col < cols) out[col * rows + row] = in[row * cols + col];
}
__global__ void scale(float* x, float by, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] *= by;
}
__global__ void clip(float* x, Window window) { x[threadIdx.x] = window.low; }

int main(int argc, char** argv) {
  size_t bytes = COUNT * sizeof(float);
  float *a, *b, *c;
  cudaMalloc(&a, bytes), cudaMalloc(&b, bytes), cudaMalloc(&c, bytes);
  int threads = 256;
  add<<<(COUNT + threads - 1) / threads, threads>>>(a, b, c, COUNT);

  const int rows = 500, cols = 300;
  constexpr int width = 8;
  dim3 block(TILE, width);
  dim3 grid((cols + TILE - 1) / TILE, (rows + width - 1) / width);
  transpose<float, width><<<grid, block>>>(a, c, rows, cols);

  std::ifstream file(argv[1]);
  int length = 0;
  file >> length;
  int lanes = 64;
  if (length > 1000) lanes = 512;
  scale<<<1, lanes>>>(a, argc > 2 ? 2.0f : atof(argv[2]), length);
  Window window{0, 1};
  clip<<<1, 32>>>(a, window);
}
"""

# The stable ABI: dispatch by cases in a macro, functions of the source as template arguments, a vector width by size.
ACTIVATION = """
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/Dispatch.h>
#define DISPATCH(type, ...) THO_DISPATCH_SWITCH(type, "act", \\
  THO_DISPATCH_CASE(torch::headeronly::ScalarType::Float, __VA_ARGS__) \\
  THO_DISPATCH_CASE(torch::headeronly::ScalarType::Half, __VA_ARGS__))
namespace act {
template <class T> struct Pair;
template <> struct Pair<float> { using Type = float2; };
template <> struct Pair<__half> { using Type = __half2; };
template <> struct Pair<c10::Half> { using Type = __half2; };
template <typename T> __device__ T twice(const T& x) { return x + x; }
template <typename scalar_t, typename pair_t, scalar_t (*F)(const scalar_t&), bool WIDE>
__global__ void __launch_bounds__(256) apply(scalar_t* __restrict__ out, const scalar_t* __restrict__ in, const int n) {
  for (int i = threadIdx.x + blockIdx.x * 256; i < n; i += 256 * gridDim.x) out[i] = F(in[i]);
}
}  // namespace act
void doubled(torch::stable::Tensor& out, torch::stable::Tensor& in) {
  STD_TORCH_CHECK(in.is_contiguous(), "contiguous");
  const torch::stable::accelerator::DeviceGuard guard(in.get_device_index());
  int n = in.numel();
  DISPATCH(in.scalar_type(), [&] {
    if (n % 4 == 0)
      act::apply<scalar_t, typename act::Pair<scalar_t>::Type, act::twice<scalar_t>, true>
          <<<(n + 255) / 256, 256>>>(out.mutable_data_ptr<scalar_t>(), in.const_data_ptr<scalar_t>(), n);
    else
      act::apply<scalar_t, typename act::Pair<scalar_t>::Type, act::twice<scalar_t>, false>
          <<<(n + 255) / 256, 256>>>(out.mutable_data_ptr<scalar_t>(), in.const_data_ptr<scalar_t>(), n);
  });
}
"""

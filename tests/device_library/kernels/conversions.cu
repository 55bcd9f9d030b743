// Elements to f32, one added, and back, 16 bytes at a time.
//! op      plus_one(x) -> y
//! need    device.cc >= 89 and x.ndim == 1 and x.dtype in [f32, bf16, f16, f8e4m3, f8e5m2, i8, u8] and x.numel * x.itemsize % 16 == 0
//! out     y: x.dtype[x.shape]
//! const   T = x.dtype
//! launch  plus_one<<<ceil_div(x.numel * x.itemsize / 16, 64), 64>>>(x, y, x.numel * x.itemsize / 16)
#include <tilewright/float8.cuh>
#include <tilewright/vector_access.cuh>

__global__ void plus_one(const T* x, T* y, int vectors) {
  const int i = blockIdx.x * 64 + threadIdx.x;
  if (i >= vectors) return;
  constexpr int SIZE = tw::Vector<T>::SIZE;
  float values[SIZE];
  tw::unpack(i % 2 ? tw::load_vector(x + i * SIZE) : tw::load_vector_streaming(x + i * SIZE), values);
  for (int k = 0; k < SIZE; ++k) values[k] += 1.f;
  if (i % 2) tw::store_vector(y + i * SIZE, tw::pack<T>(values));
  else tw::store_vector_streaming(y + i * SIZE, tw::pack<T>(values));
}

// A row pitch of 33 floats avoids bank conflicts, but rows no longer start at multiples of 16 bytes.

//! op      row_sum(x) -> y
//! out     y: f32[x.shape[0]]
//! need    x.dtype == f32 and x.ndim == 2 and x.shape == [32, 32]
//! launch  row_sum<<<1, 32>>>(x, y)

__global__ void row_sum(const float* x, float* y) {
  __shared__ __align__(16) float tile[32 * 33];
  for (int row = 0; row < 32; ++row) tile[row * 33 + threadIdx.x] = x[row * 32 + threadIdx.x];
  __syncwarp();
  float sum = 0.0f;
  for (int i = 0; i < 32; i += 4) {
    const float* from = tile + threadIdx.x * 33 + i;
    float4 v = *reinterpret_cast<const float4*>(from);  // BUG mend: float4 v = {from[0], from[1], from[2], from[3]};
    sum += v.x + v.y + v.z + v.w;
  }
  y[threadIdx.x] = sum;
}

// The bulk store does not wait for all threads that write its tile.

//! op      twice(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32 and device.cc >= 90
//! launch  twice<<<x.numel / 128, 128>>>(x, y)

__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
#define STORE(to, from, bytes) \
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;" \
               ::"l"(to), "r"(at(from)), "r"(bytes) : "memory")

__global__ void twice(const float* x, float* y) {
  __shared__ __align__(128) float tile[128];
  tile[127 - threadIdx.x] = 2.0f * x[blockIdx.x * 128 + 127 - threadIdx.x];  // BUG
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncwarp();  // mend: __syncthreads();
  if (threadIdx.x == 0) {
    STORE(y + blockIdx.x * 128, tile, 512);  // BUG
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
  __syncthreads();
}

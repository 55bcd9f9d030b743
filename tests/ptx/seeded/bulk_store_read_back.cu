// Another thread reads what a bulk store writes, and its thread only waited for the reading half.

//! op      twice(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32 and device.cc >= 90
//! launch  twice<<<1, 128>>>(x, y)

__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
#define STORE(to, from, bytes) \
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;" \
               ::"l"(to), "r"(at(from)), "r"(bytes) : "memory")

__global__ void twice(const float* x, float* y) {
  __shared__ __align__(128) float tile[128];
  tile[threadIdx.x] = x[threadIdx.x];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    STORE(y, tile, 512);  // OTHER SIDE
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");  // mend: asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
  __syncthreads();
  y[threadIdx.x] = 2.0f * y[threadIdx.x];  // BUG
}

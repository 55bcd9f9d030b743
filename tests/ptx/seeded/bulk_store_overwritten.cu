// The tile is filled again while a bulk store may still read it.

//! op      twice(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32 and device.cc >= 90
//! launch  twice<<<1, 128>>>(x, y, x.numel)

__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
#define STORE(to, from, bytes) \
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;" \
               ::"l"(to), "r"(at(from)), "r"(bytes) : "memory")

__global__ void twice(const float* x, float* y, int count) {
  __shared__ __align__(128) float tile[128];
  for (int first = 0; first < count; first += 128) {
    tile[threadIdx.x] = 2.0f * x[first + threadIdx.x];  // BUG
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
      STORE(y + first, tile, 512);  // OTHER SIDE
      // mend: asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

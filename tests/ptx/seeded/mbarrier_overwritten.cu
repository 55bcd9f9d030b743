// The tile is one element too long and its last write lands on the mbarrier.

//! op      reverse(x) -> y
//! out     y: f32[128]
//! need    x.dtype == f32 and device.cc >= 90
//! launch  reverse<<<1, 128>>>(x, y)

__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
#define INIT(barrier, count) asm volatile("mbarrier.init.shared::cta.b64 [%0], %1; fence.mbarrier_init.release.cluster;" ::"r"(at(barrier)), "r"(count) : "memory")
#define ARRIVE(barrier) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at(barrier)) : "memory")
#define WAIT(barrier, parity) \
  asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra AGAIN; }" \
               ::"r"(at(barrier)), "r"(parity) : "memory")

struct Shared {
  float tile[128];
  unsigned long long barrier;
};
__global__ void reverse(const float* x, float* y) {
  __shared__ Shared shared;
  if (threadIdx.x == 0) INIT(&shared.barrier, 128);  // OTHER SIDE
  __syncthreads();
  shared.tile[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x == 127) shared.tile[threadIdx.x + 1] = 0.0f;  // mend: __syncwarp();
  __syncthreads();
  ARRIVE(&shared.barrier);  // BUG
  WAIT(&shared.barrier, 0);
  y[threadIdx.x] = shared.tile[127 - threadIdx.x];
}

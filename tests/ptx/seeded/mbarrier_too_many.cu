// Initialised for 96 arrivals where 128 threads arrive: the last belong to the phase after.

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

__global__ void reverse(const float* x, float* y) {
  __shared__ float tile[128];
  __shared__ __align__(8) unsigned long long barrier;
  if (threadIdx.x == 0) INIT(&barrier, 96);  // mend: if (threadIdx.x == 0) INIT(&barrier, 128);
  __syncthreads();
  tile[threadIdx.x] = x[threadIdx.x];  // BUG
  ARRIVE(&barrier);
  WAIT(&barrier, 0);  // BUG
  y[threadIdx.x] = tile[127 - threadIdx.x];  // BUG
}

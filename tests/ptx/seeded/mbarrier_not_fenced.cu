// Nothing shows the initialisation to the asynchronous proxy, in which the copy counts.
//! op      reverse(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32 and device.cc >= 90
//! launch  reverse<<<x.numel / 128, 128>>>(x, y)

__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
#define INIT(barrier, count) asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at(barrier)), "r"(count) : "memory")
#define EXPECT(barrier, bytes) \
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(barrier)), "r"(bytes) : "memory")
#define WAIT(barrier, parity) \
  asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra AGAIN; }" \
               ::"r"(at(barrier)), "r"(parity) : "memory")
#define LOAD(to, from, bytes, barrier) \
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" \
               ::"r"(at(to)), "l"(from), "r"(bytes), "r"(at(barrier)) : "memory")

__global__ void reverse(const float* x, float* y) {
  __shared__ __align__(128) float tile[128];
  __shared__ __align__(8) unsigned long long barrier;
  if (threadIdx.x == 0) {
    INIT(&barrier, 1);  // BUG
    // mend: asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    EXPECT(&barrier, 512);
    LOAD(tile, x + blockIdx.x * 128, 512, &barrier);  // BUG
  }
  __syncthreads();
  WAIT(&barrier, 0);
  y[blockIdx.x * 128 + threadIdx.x] = tile[127 - threadIdx.x];
}

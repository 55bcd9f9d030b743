// The box begins at an element that is not at a multiple of 16 bytes.

//! op      rest(x) -> y
//! out     y: f32[64]
//! need    x.dtype == f32 and device.cc >= 90
//! map     source = tiled(x, box=[64])
//! launch  rest<<<1, 64>>>(source, y)

constexpr int OFFSET = 6;  // mend: constexpr int OFFSET = 8;

__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
#define INIT(barrier, count) asm volatile("mbarrier.init.shared::cta.b64 [%0], %1; fence.mbarrier_init.release.cluster;" ::"r"(at(barrier)), "r"(count) : "memory")
#define EXPECT(barrier, bytes) \
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(barrier)), "r"(bytes) : "memory")
#define WAIT(barrier, parity) \
  asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra AGAIN; }" \
               ::"r"(at(barrier)), "r"(parity) : "memory")

__global__ void rest(const __grid_constant__ CUtensorMap source, float* y) {
  __shared__ __align__(128) float tile[64];
  __shared__ __align__(8) unsigned long long barrier;
  if (threadIdx.x == 0) {
    INIT(&barrier, 1);
    EXPECT(&barrier, 256);
    asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3}], [%2];"
                 ::"r"(at(tile)), "l"(&source), "r"(at(&barrier)), "r"(OFFSET) : "memory");  // BUG
  }
  __syncthreads();
  WAIT(&barrier, 0);
  y[threadIdx.x] = tile[threadIdx.x];
}

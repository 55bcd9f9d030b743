// A stage is given back before it is read.

//! op      sum_of_tiles(x) -> y
//! out     y: f32[128]
//! need    x.dtype == f32 and device.cc >= 90
//! launch  sum_of_tiles<<<1, 160>>>(x, y, x.shape[0])

__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
#define INIT(barrier, count) asm volatile("mbarrier.init.shared::cta.b64 [%0], %1; fence.mbarrier_init.release.cluster;" ::"r"(at(barrier)), "r"(count) : "memory")
#define EXPECT(barrier, bytes) \
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(barrier)), "r"(bytes) : "memory")
#define ARRIVE(barrier) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at(barrier)) : "memory")
#define WAIT(barrier, parity) \
  asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra AGAIN; }" \
               ::"r"(at(barrier)), "r"(parity) : "memory")
#define LOAD(to, from, bytes, barrier) \
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" \
               ::"r"(at(to)), "l"(from), "r"(bytes), "r"(at(barrier)) : "memory")

__global__ void sum_of_tiles(const float* x, float* y, int rows) {
  __shared__ __align__(128) float tile[2][128];
  __shared__ __align__(8) unsigned long long full[2], empty[2];
  if (threadIdx.x == 0)
    for (int k = 0; k < 2; ++k) { INIT(&full[k], 1); INIT(&empty[k], 128); }
  __syncthreads();
  if (threadIdx.x == 128) {
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
      WAIT(&empty[row % 2], (row / 2 & 1) ^ 1);
      EXPECT(&full[row % 2], 512);
      LOAD(tile[row % 2], x + row * 128, 512, &full[row % 2]);  // BUG
    }
  } else if (threadIdx.x < 128) {
    float sum = 0.0f;
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
      WAIT(&full[row % 2], row / 2 & 1);  ARRIVE(&empty[row % 2]);  // mend: WAIT(&full[row % 2], row / 2 & 1);
      sum += tile[row % 2][127 - threadIdx.x];  // BUG
      // mend: ARRIVE(&empty[row % 2]);
    }
    y[127 - threadIdx.x] = sum;
  }
}
